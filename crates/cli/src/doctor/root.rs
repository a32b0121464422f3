//! The files in which the system tells about itself.

use std::fs;
use std::path::PathBuf;

/// Where `/proc`, `/sys`, `/dev` and `/run` are. Only tests have them elsewhere than at `/`.
pub struct Root(pub PathBuf);

impl Root {
    fn at(&self, path: &str) -> PathBuf {
        self.0.join(path.trim_start_matches('/'))
    }

    /// What a file says, without the space around it; `None` if it is not there or may not be read.
    pub fn read(&self, path: &str) -> Option<String> {
        let bytes = fs::read(self.at(path)).ok()?;
        Some(String::from_utf8_lossy(&bytes).trim().to_string())
    }

    /// Whether there is something by this name.
    pub fn has(&self, path: &str) -> bool {
        fs::symlink_metadata(self.at(path)).is_ok()
    }

    /// The names in a directory, in order; none if it is not there.
    pub fn list(&self, path: &str) -> Vec<String> {
        let entries = fs::read_dir(self.at(path)).into_iter().flatten().flatten();
        let mut names: Vec<String> = entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
        names.sort_unstable();
        names
    }

    /// The last part of what a link points to.
    #[cfg(target_os = "linux")]
    pub fn link(&self, path: &str) -> Option<String> {
        Some(fs::read_link(self.at(path)).ok()?.file_name()?.to_string_lossy().into_owned())
    }

    /// The value of `key` in a file of lines such as `key: value`.
    pub fn field(&self, path: &str, key: &str) -> Option<String> {
        let text = self.read(path)?;
        text.lines().find_map(|line| Some(line.strip_prefix(key)?.strip_prefix(':')?.trim().to_string()))
    }

    /// The word in brackets: `always [madvise] never` has `madvise` chosen.
    pub fn chosen(&self, path: &str) -> Option<String> {
        let text = self.read(path)?;
        Some(text.split_once('[')?.1.split_once(']')?.0.to_string())
    }
}
