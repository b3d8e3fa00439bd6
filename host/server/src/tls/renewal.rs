//! Certificates get renewed while the host runs: new files are taken when they are whole and belong together, and
//! handshakes from then on show the new one.

use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use rustls::crypto::CryptoProvider;
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;

use super::certificate::Pem;
use super::{TlsError, provider};
use crate::config::Tls;

/// Between two looks at the files. Certificates are renewed days before they expire; two small files are read.
pub const RENEWAL_INTERVAL: Duration = Duration::from_secs(10);

/// The certificate in force.
#[derive(Debug)]
pub(super) struct InForce(ArcSwap<CertifiedKey>);

impl ResolvesServerCert for InForce {
    fn resolve(&self, _hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.0.load_full())
    }
}

/// What a look at the files found.
#[derive(Debug)]
pub enum Renewed {
    /// The same as before, good or bad.
    Unchanged,
    /// A new pair, which is in force now.
    Taken,
    /// Something that cannot be used: the one before stays.
    Refused(TlsError),
}

/// Looks for renewed files.
#[derive(Debug)]
pub struct Renewal {
    files: Tls,
    provider: Arc<CryptoProvider>,
    in_force: Arc<InForce>,
    /// As last seen; `None` when they could not be read.
    seen: Option<Pem>,
}

impl Renewal {
    /// Reads the first pair, without which there is nothing to serve with.
    pub(super) fn open(files: &Tls) -> Result<Self, TlsError> {
        let provider = provider();
        let pem = Pem::read(files)?;
        let certified = pem.certified(files, &provider)?;
        let in_force = Arc::new(InForce(ArcSwap::from_pointee(certified)));
        Ok(Self { files: files.clone(), provider, in_force, seen: Some(pem) })
    }

    pub(super) fn certificate(&self) -> Arc<InForce> {
        self.in_force.clone()
    }

    /// Looks once. Reads files: not for the threads that serve. A fault is told once for as long as it stays the same.
    pub fn look(&mut self) -> Renewed {
        let pem = match Pem::read(&self.files) {
            Ok(pem) if self.seen.as_ref() == Some(&pem) => return Renewed::Unchanged,
            Ok(pem) => pem,
            Err(_) if self.seen.is_none() => return Renewed::Unchanged,
            Err(error) => {
                self.seen = None;
                return Renewed::Refused(error);
            }
        };
        let certified = pem.certified(&self.files, &self.provider);
        self.seen = Some(pem);
        match certified {
            Ok(certified) => {
                self.in_force.0.store(Arc::new(certified));
                Renewed::Taken
            }
            Err(error) => Renewed::Refused(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use rcgen::{KeyPair, generate_simple_self_signed};

    use super::*;

    struct Pair {
        cert: String,
        key: String,
    }

    fn pair() -> Pair {
        let made = generate_simple_self_signed(["localhost".to_owned()]).expect("made");
        Pair { cert: made.cert.pem(), key: made.signing_key.serialize_pem() }
    }

    fn write(files: &Tls, cert: &str, key: &str) {
        fs::write(&files.cert_file, cert).expect("written");
        fs::write(&files.key_file, key).expect("written");
    }

    fn files(folder: &Path) -> Tls {
        Tls { cert_file: folder.join("cert.pem"), key_file: folder.join("key.pem") }
    }

    fn shown(renewal: &Renewal) -> Vec<u8> {
        renewal.in_force.0.load().cert[0].to_vec()
    }

    #[test]
    fn a_good_new_pair_is_taken_and_a_bad_one_is_not() {
        let folder = tempfile::tempdir().expect("a folder");
        let files = files(folder.path());
        let (old, new) = (pair(), pair());
        write(&files, &old.cert, &old.key);
        let mut renewal = Renewal::open(&files).expect("a good pair");
        let first = shown(&renewal);
        assert!(matches!(renewal.look(), Renewed::Unchanged));

        // Half way through a renewal the files do not belong together; then nonsense, then nothing.
        for (cert, key) in [(&new.cert, &old.key), (&"x".to_owned(), &new.key), (&new.cert, &String::new())] {
            write(&files, cert, key);
            assert!(matches!(renewal.look(), Renewed::Refused(_)), "{cert} {key}");
            assert!(matches!(renewal.look(), Renewed::Unchanged), "a fault is told once");
            assert_eq!(shown(&renewal), first, "the old one stays");
        }
        fs::remove_file(&files.key_file).expect("removed");
        assert!(matches!(renewal.look(), Renewed::Refused(TlsError::Unreadable { .. })));
        assert!(matches!(renewal.look(), Renewed::Unchanged));

        write(&files, &new.cert, &new.key);
        assert!(matches!(renewal.look(), Renewed::Taken));
        assert_ne!(shown(&renewal), first);
        assert!(matches!(renewal.look(), Renewed::Unchanged));
    }

    #[test]
    fn what_cannot_be_served_with_is_refused_at_the_start() {
        let folder = tempfile::tempdir().expect("a folder");
        let files = files(folder.path());
        assert!(matches!(Renewal::open(&files), Err(TlsError::Unreadable { .. })));
        let good = pair();
        let other_key = KeyPair::generate().expect("a key").serialize_pem();
        for (cert, key) in [
            (good.cert.as_str(), ""),
            ("", good.key.as_str()),
            (good.key.as_str(), good.key.as_str()),
            (good.cert.as_str(), other_key.as_str()),
        ] {
            write(&files, cert, key);
            let error = Renewal::open(&files).expect_err("no pair");
            assert!(error.to_string().contains(".pem") && !error.cure().is_empty(), "{error}");
        }
    }
}
