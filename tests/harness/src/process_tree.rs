//! What a process costs, and its children: processor time and memory, as the system counts them.

use std::collections::HashMap;
use std::fs;
use std::time::Duration;

/// One tick of `/proc/PID/stat`: 100 a second on Linux, whatever the kernel's own clock.
const TICK_MS: u64 = 10;

/// A process and all that descend from it.
#[derive(Debug, Clone, Copy)]
pub struct ProcessTree {
    root: u32,
}

impl ProcessTree {
    /// The tree of this process.
    pub fn of(root: u32) -> Self {
        Self { root }
    }

    /// The process at its root.
    pub fn root(self) -> u32 {
        self.root
    }

    /// User and system time used so far, to 10 ms.
    pub fn cpu(self) -> Duration {
        let ticks: u64 = self.members().iter().filter_map(|pid| stat(*pid)).map(|stat| stat.ticks).sum();
        Duration::from_millis(ticks * TICK_MS)
    }

    /// Resident memory at this moment, in bytes. Pages that two processes share count twice.
    pub fn resident_bytes(self) -> u64 {
        self.members().iter().filter_map(|pid| status_bytes(*pid, "VmRSS:")).sum()
    }

    /// The most resident memory there ever was, in bytes.
    pub fn peak_resident_bytes(self) -> u64 {
        self.members().iter().filter_map(|pid| status_bytes(*pid, "VmHWM:")).sum()
    }

    /// Executable pieces of memory that no file is behind: code compiled at run time.
    pub fn code_pieces(self) -> usize {
        let maps =
            self.members().into_iter().filter_map(|pid| fs::read_to_string(format!("/proc/{pid}/maps")).ok());
        maps.map(|maps| maps.lines().filter(|line| is_code_without_file(line)).count()).sum()
    }

    fn members(self) -> Vec<u32> {
        let mut children: HashMap<u32, Vec<u32>> = HashMap::new();
        let pids = fs::read_dir("/proc").into_iter().flatten().flatten();
        for pid in pids.filter_map(|entry| entry.file_name().to_str()?.parse().ok()) {
            if let Some(stat) = stat(pid) {
                children.entry(stat.parent).or_default().push(pid);
            }
        }
        let mut members = vec![self.root];
        let mut next = 0;
        while let Some(pid) = members.get(next) {
            members.extend(children.remove(pid).unwrap_or_default());
            next += 1;
        }
        members
    }
}

struct Stat {
    parent: u32,
    ticks: u64,
}

fn stat(pid: u32) -> Option<Stat> {
    parse_stat(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
}

/// The name, the second field, may hold blanks and ends with the last `)`. The parent is field 4, user and system time
/// are 14 and 15.
fn parse_stat(text: &str) -> Option<Stat> {
    let fields: Vec<&str> = text.rsplit_once(')')?.1.split_whitespace().collect();
    let number = |field: usize| fields.get(field - 3)?.parse::<u64>().ok();
    Some(Stat { parent: u32::try_from(number(4)?).ok()?, ticks: number(14)? + number(15)? })
}

/// Of `/proc/PID/maps`: addresses, permissions, offset, device, inode, and a name if there is one.
fn is_code_without_file(line: &str) -> bool {
    let mut fields = line.split_whitespace().skip(1);
    fields.next().is_some_and(|permissions| permissions.contains('x')) && fields.nth(3).is_none()
}

fn status_bytes(pid: u32, line: &str) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let figure = status.lines().find_map(|text| text.strip_prefix(line))?;
    let kib: u64 = figure.split_whitespace().next()?.parse().ok()?;
    Some(kib * 1_024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_may_hold_anything() {
        let stat = parse_stat("7 (a) b (c) S 3 7 7 0 -1 4194304 104 0 0 0 12 30 0 0 20 0 1").expect("a line");
        assert_eq!((stat.parent, stat.ticks), (3, 42));
    }

    #[test]
    fn code_is_told_from_files_and_data() {
        for (line, is_code) in [
            ("7b8dac566000-7b8dac583000 r-xp 00000000 00:00 0 ", true),
            ("7b8dac566000-7b8dac583000 rw-p 00000000 00:00 0 ", false),
            ("7f9600b0a000-7f9600b0c000 r-xp 00000000 00:00 0                          [vdso]", false),
            (
                "7f960083d000-7f9600993000 r-xp 00026000 fe:00 326279                     /usr/lib/libc.so.6",
                false,
            ),
        ] {
            assert_eq!(is_code_without_file(line), is_code, "{line}");
        }
    }

    #[test]
    fn this_process_has_a_cost() {
        let tree = ProcessTree::of(std::process::id());
        assert!(tree.resident_bytes() > 1_000_000);
        assert!(tree.peak_resident_bytes() >= tree.resident_bytes() / 2);
    }
}
