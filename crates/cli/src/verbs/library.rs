//! Finding the shared object that stands in for libibverbs.

use std::env;
use std::path::{Path, PathBuf};

use super::VerbsError;

/// The variable that names its file.
const VARIABLE: &str = "FULMEN_VERBS_DROPIN";

/// The name under which it is built.
const NAME: &str = if cfg!(target_os = "macos") { "libfulmen_ibverbs.dylib" } else { "libfulmen_ibverbs.so" };

/// The library's file.
///
/// # Errors
/// [`VerbsError::NoLibrary`] says where it was looked for.
pub fn find() -> Result<PathBuf, VerbsError> {
    let named = env::var_os(VARIABLE).filter(|path| !path.is_empty());
    let candidates = match named {
        Some(path) => vec![PathBuf::from(path)],
        None => env::current_exe().ok().as_deref().and_then(Path::parent).map(beside).unwrap_or_default(),
    };
    let found = candidates.iter().filter(|path| path.is_file()).find_map(|path| path.canonicalize().ok());
    found.ok_or(VerbsError::NoLibrary { tried: candidates })
}

/// Where it is for a program in this folder. Cargo builds it into `deps`, and what lies beside the program may be the copy
/// of an earlier build.
fn beside(folder: &Path) -> Vec<PathBuf> {
    ["deps", ".", "../deps", "../lib"].iter().map(|place| folder.join(place).join(NAME)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_looked_for_where_cargo_and_packages_put_it() {
        let paths = beside(Path::new("/opt/bin"));
        for place in ["/opt/bin/deps/", "/opt/bin/./", "/opt/bin/../deps/", "/opt/bin/../lib/"] {
            let path = PathBuf::from(format!("{place}{NAME}"));
            assert!(paths.contains(&path), "{} in {paths:?}", path.display());
        }
    }
}
