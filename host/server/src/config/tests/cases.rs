//! Faulty configurations, each a file in `cases/` with the message it must give next to it.
//!
//! `UPDATE_EXPECT=1` writes the messages anew; read the difference before keeping it.

use std::fs;
use std::path::{Path, PathBuf};

use crate::config::{ConfigError, MAX_CONFIG_BYTES, load, parse, text_of};

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("src/config/cases")
}

#[test]
fn each_faulty_configuration_gives_its_message() {
    let update = std::env::var_os("UPDATE_EXPECT").is_some();
    let mut files: Vec<PathBuf> =
        fs::read_dir(folder()).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    let mut wrong = Vec::new();
    let mut cases = 0;
    for file in files.iter().filter(|file| file.extension().is_some_and(|kind| kind == "toml")) {
        cases += 1;
        let text = fs::read_to_string(file).unwrap();
        let message = match parse(Path::new("sluice.toml"), &text) {
            Ok(_) => "accepted".to_owned(),
            Err(fault) => fault.to_string(),
        };
        let expected_file = file.with_extension("txt");
        if update {
            fs::write(&expected_file, format!("{message}\n")).unwrap();
        }
        let expected = fs::read_to_string(&expected_file).unwrap_or_default();
        if expected.trim_end() != message || message == "accepted" {
            wrong.push(format!("{}\nexpected:\n{expected}\ngot:\n{message}\n", file.display()));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(cases > 0 && files.len() == 2 * cases, "each case is a .toml with its .txt, and nothing else");
}

#[test]
fn a_missing_file_is_named() {
    let path = folder().join("no-such-file");
    let fault = load(&path).unwrap_err();
    assert!(matches!(fault, ConfigError::Unreadable { .. }), "{fault}");
    assert!(fault.to_string().starts_with(&format!("{}: cannot be read: ", path.display())), "{fault}");
    assert_eq!(fault.exit_code(), 2);
}

#[test]
fn a_folder_is_not_read() {
    assert!(matches!(load(&folder()), Err(ConfigError::Unreadable { .. })));
}

#[test]
fn what_is_not_a_text_of_a_configuration_is_refused() {
    let path = Path::new("sluice.toml");
    assert_eq!(text_of(path, "größe".into()).unwrap(), "größe");
    assert!(text_of(path, vec![b' '; MAX_CONFIG_BYTES as usize]).is_ok());
    let fault = text_of(path, vec![b' '; MAX_CONFIG_BYTES as usize + 1]).unwrap_err();
    assert!(matches!(fault, ConfigError::TooLarge { .. }), "{fault}");
    let fault = text_of(path, b"ab\xff".to_vec()).unwrap_err();
    assert!(matches!(fault, ConfigError::NotUtf8 { offset_bytes: 2, .. }), "{fault}");
}

#[test]
fn a_pool_has_so_many_workers_and_no_more() {
    let text = |workers: usize| {
        let worker = |row| format!("{{name='w{row}',role='unified',url='http://h:{row}'}},\n");
        let workers: String = (1..=workers).map(worker).collect();
        format!("[[pool]]\nname='p'\nmodel='m'\nmode='unified'\nworker=[\n{workers}]\n")
    };
    let path = Path::new("sluice.toml");
    assert_eq!(parse(path, &text(4_096)).map(|config| config.pools[0].workers.len()).unwrap(), 4_096);
    let message = parse(path, &text(4_097)).unwrap_err().to_string();
    assert!(
        message.starts_with("sluice.toml:4102: pool \"p\" has 4097 workers, more than 4096"),
        "{message}"
    );
}

#[test]
fn credentials_never_stand_in_a_message() {
    for secret in [
        "http://u:hunter2@h:1",
        "u:hunter2@h",
        "https://u:hunter2@h",
        "http://u:hun@ter/hunter2@h:1",
        "http://u:'hunter2@h",
    ] {
        let text = format!("[[pool]]\nworker = [{{ name = 'a', url = \"{secret}\", wrong = 1 }}]\n");
        let message = parse(Path::new("sluice.toml"), &text).unwrap_err().to_string();
        assert!(!message.contains("hunter2"), "{message}");
    }
}

#[test]
fn api_keys_never_stand_in_a_message() {
    for tenant in [
        "keys = 'hunter2'",
        "keys = ['hunter2']\nwrong = 1",
        "keys = ['hunter2', 1]",
        "keys = [\n  'hunter2', 1\n]",
        "keys = [\n  \"hunter2=\n]",
        "\"keys\" = 'hunter2'",
        "inner = { keys = 'hunter2' }",
    ] {
        let text = format!("[[tenant]]\nname = 'a'\n{tenant}\n");
        let message = parse(Path::new("sluice.toml"), &text).unwrap_err().to_string();
        assert!(!message.contains("hunter2"), "{message}");
    }
}

#[test]
fn many_problems_are_cut_short() {
    let text: String = (0..30).map(|key| format!("key{key} = 1\n")).collect();
    let message = parse(Path::new("sluice.toml"), &text).unwrap_err().to_string();
    assert_eq!(message.matches("cure:").count(), 20);
    assert!(message.ends_with("sluice.toml: and 11 more problems"), "{message}");
}

#[test]
fn long_lines_and_long_values_are_cut_short() {
    let text = format!("# first\n{} = {}\n", "k".repeat(5_000), "1".repeat(5_000));
    let message = parse(Path::new("sluice.toml"), &text).unwrap_err().to_string();
    assert!(message.len() < 2_000, "{} bytes", message.len());
    assert!(message.contains("sluice.toml:2: unknown key"), "{message}");
}
