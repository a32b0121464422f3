//! Finding the program of a run before anything is started, so that a typing error is told once and not by every rank.

use std::env;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{Access, access};

use super::RunError;

/// Where a shell looks when PATH is not set.
const DEFAULT_PATH: &str = "/usr/local/bin:/usr/bin:/bin";

/// Finds `name` as a shell does: a name with a slash is a path, anything else is looked up in PATH.
pub fn find(name: &OsStr) -> Result<PathBuf, RunError> {
    let shown = || name.to_string_lossy().into_owned();
    if name.as_bytes().contains(&b'/') {
        let path = PathBuf::from(name);
        return match path.metadata() {
            Err(error) => Err(RunError::NotFound { name: shown(), reason: error.to_string() }),
            Ok(_) => check(&path).map(|()| path),
        };
    }
    let search = env::var_os("PATH").unwrap_or_else(|| DEFAULT_PATH.into());
    let mut refused = None;
    for folder in env::split_paths(&search) {
        if name.is_empty() {
            break;
        }
        // An empty entry means the working directory; joined with "." it stays a path and is not looked up again.
        let path = if folder.as_os_str().is_empty() { Path::new(".").join(name) } else { folder.join(name) };
        if path.is_file() {
            match check(&path) {
                Ok(()) => return Ok(path),
                Err(error) => refused = refused.or(Some(error)),
            }
        }
    }
    Err(refused.unwrap_or_else(|| RunError::NotFound {
        name: shown(),
        reason: "it is in no directory of PATH (a program in this directory is written ./name)".to_string(),
    }))
}

fn check(path: &Path) -> Result<(), RunError> {
    let refuse = |reason: &str| Err(RunError::NotExecutable { path: path.to_owned(), reason: reason.to_string() });
    if path.is_dir() {
        return refuse("it is a directory");
    }
    match access(path, Access::EXEC_OK) {
        Ok(()) => Ok(()),
        Err(_) => refuse("you have no permission to execute it (chmod +x gives it)"),
    }
}
