//! What is told when the library, its devices or their calls refuse: each error names the thing and the way out.
//!
//! All of it runs over the fake library (`tests/fake`), so that no device is needed.
#![cfg(target_os = "linux")]

#[path = "errors/calls.rs"]
mod calls;
#[path = "errors/devices.rs"]
mod devices;
mod fake;
#[path = "errors/library.rs"]
mod library;
#[path = "errors/ports.rs"]
mod ports;

use std::fmt::Display;
use std::fs;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use fulmen_system::{Library, OpenError, SystemDevice};
use tempfile::TempDir;

/// A copy of the fake library with a configuration of its own.
struct Fake {
    dir: TempDir,
    library: Arc<Library>,
}

impl Fake {
    /// `None`, with a line that says why, where the library cannot be built.
    fn new(config: &str) -> Option<Fake> {
        let (dir, path) = files(config)?;
        let library = Library::open_at(&path).expect("the fake library has all that is needed");
        Some(Fake { dir, library })
    }

    fn open(&self, device: &str) -> Arc<SystemDevice> {
        self.library.open_device(device).expect("the device opens")
    }

    #[track_caller]
    fn refusal(&self, device: &str) -> OpenError {
        match self.library.open_device(device) {
            Ok(_) => panic!("{device} opens"),
            Err(error) => error,
        }
    }

    /// What was called, if the configuration begins with [`LOG`].
    fn log(&self) -> String {
        fs::read_to_string(self.dir.path().join("log")).expect("there is a log")
    }
}

/// Stands for the line that asks for a log.
const LOG: &str = "log\n";

/// A directory with a copy of the library and its configuration.
fn files(config: &str) -> Option<(TempDir, PathBuf)> {
    static BUILT: OnceLock<Option<Vec<u8>>> = OnceLock::new();
    let built = BUILT.get_or_init(|| {
        let dir = tempfile::tempdir().expect("a directory");
        let library = fake::build(dir.path(), &[])?;
        Some(fs::read(library).expect("it was built"))
    });
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("libfakeverbs.so");
    fs::write(&path, built.as_ref()?).expect("it is written");
    let log = format!("log={}\n", dir.path().join("log").display());
    let config = config.strip_prefix(LOG).map_or_else(|| config.to_owned(), |rest| log + rest);
    fs::write(dir.path().join("libfakeverbs.so.conf"), config).expect("it is written");
    Some((dir, path))
}

/// The text of an error is one line, and has all these words.
#[track_caller]
fn says(error: &impl Display, words: &[&str]) {
    let text = error.to_string();
    assert!(!text.contains('\n'), "one line: {text}");
    for word in words {
        assert!(text.contains(word), "it says {word:?}: {text}");
    }
}
