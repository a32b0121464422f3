//! The folder in which programs find the library under the names that they look for.
//!
//! It lies in this user's runtime folder, and nobody else may write there: who could would have programs load what he likes.

use std::env;
use std::fs::{self, DirBuilder};
use std::io::ErrorKind;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, symlink};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, Mode, OFlags, flock, fstat, open};
use rustix::process::{geteuid, getpid};

use super::{VerbsError, splits};

/// The names under which programs open the library.
pub const NAMES: &[&str] =
    if cfg!(target_os = "macos") { &["librdma.dylib"] } else { &["libibverbs.so.1", "librdmacm.so.1"] };

/// The folders of runs are named by the process that made them, for people: who uses one holds a lock on it. Containers
/// that share a runtime folder have processes of the same number, and know nothing of each other's.
const RUN: &str = "verbs-run-";
/// How often a name is tried. Each time, another run has taken it, or removed it, at that moment.
const TRIES: u32 = 1000;

/// A folder with links to the library.
pub struct Folder {
    path: PathBuf,
    /// The lock of one that goes with this value.
    lock: Option<OwnedFd>,
}

impl Folder {
    /// A folder that is removed with the value. Those of runs that were killed are removed by the next one.
    ///
    /// # Errors
    /// [`VerbsError::Folder`].
    pub fn of_run(library: &Path) -> Result<Folder, VerbsError> {
        Folder::of_run_in(&parent(), library)
    }

    fn of_run_in(parent: &Path, library: &Path) -> Result<Folder, VerbsError> {
        let mut cause = "other runs have all names".to_string();
        for attempt in 0..TRIES {
            // Another run may just have removed what seemed to be left of all runs. Otherwise the next time fails, too.
            if let Err(VerbsError::Folder { cause: refusal, .. }) = make_private(parent) {
                cause = refusal;
                continue;
            }
            prune(parent);
            let path = parent.join(format!("{RUN}{}-{attempt}", getpid().as_raw_nonzero()));
            match DirBuilder::new().mode(0o700).create(&path) {
                Ok(()) => {}
                // As above, or another run has it.
                Err(error) if matches!(error.kind(), ErrorKind::AlreadyExists | ErrorKind::NotFound) => continue,
                Err(error) => return Err(VerbsError::Folder { path, cause: error.to_string() }),
            }
            // Another run may think that it was left, until it is locked.
            if let Some(lock) = lock(&path) {
                return Folder::fill(path, library, Some(lock));
            }
        }
        Err(VerbsError::Folder { path: parent.to_owned(), cause })
    }

    /// A folder that stays, the same one for the same library each time.
    ///
    /// # Errors
    /// [`VerbsError::Folder`].
    pub fn lasting(library: &Path) -> Result<Folder, VerbsError> {
        let parent = parent();
        let name = blake3::hash(library.as_os_str().as_encoded_bytes()).to_hex();
        make_private(&parent)?;
        Folder::fill(parent.join(format!("verbs-{}", &name[..16])), library, None)
    }

    fn fill(path: PathBuf, library: &Path, lock: Option<OwnedFd>) -> Result<Folder, VerbsError> {
        if splits(&path) {
            let cause = "a path with spaces, colons or semicolons cannot be given to the dynamic linker".to_string();
            return Err(VerbsError::Folder { path, cause });
        }
        make_private(&path)?;
        let folder = Folder { path, lock };
        for name in NAMES {
            folder.link(name, library).map_err(|error| folder.refused(error.to_string()))?;
        }
        Ok(folder)
    }

    /// Makes a link that is there at every moment: programs may be starting.
    fn link(&self, name: &str, library: &Path) -> std::io::Result<()> {
        let link = self.path.join(name);
        if fs::read_link(&link).is_ok_and(|target| target == library) {
            return Ok(());
        }
        let new = self.path.join(format!(".{name}.{}", getpid().as_raw_nonzero()));
        let _ = fs::remove_file(&new);
        symlink(library, &new)?;
        fs::rename(&new, &link)
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    fn refused(&self, cause: String) -> VerbsError {
        VerbsError::Folder { path: self.path.clone(), cause }
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // The parent stays: others may be about to put something there.
        if self.lock.is_some() {
            remove(&self.path);
        }
    }
}

/// This user's folder for what lives no longer than the machine runs; the same one in which ranks meet.
fn parent() -> PathBuf {
    let user = geteuid().as_raw();
    let folder = |name| env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    // `su` and `sudo` may hand on that of the user who called them.
    let is_own = |path: &PathBuf| path.metadata().is_ok_and(|about| about.is_dir() && about.uid() == user);
    match folder("XDG_RUNTIME_DIR").filter(is_own) {
        Some(folder) => folder.join("fulmen"),
        None => folder("TMPDIR").unwrap_or_else(|| "/tmp".into()).join(format!("fulmen-{user}")),
    }
}

/// Makes a folder that only this user may use, or sees that it is one.
fn make_private(path: &Path) -> Result<(), VerbsError> {
    let refused = |cause: String| VerbsError::Folder { path: path.to_owned(), cause };
    match DirBuilder::new().mode(0o700).create(path) {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => return Err(refused(error.to_string())),
        _ => {}
    }
    // Not through a link: in a folder that belongs to all, it may be another user's.
    let about = fs::symlink_metadata(path).map_err(|error| refused(error.to_string()))?;
    if !about.is_dir() || about.uid() != geteuid().as_raw() || about.mode() & 0o077 != 0 {
        return Err(refused("remove it, since it is no folder that only this user may use".to_string()));
    }
    Ok(())
}

/// Removes a folder of links with what programs wrote there.
fn remove(path: &Path) {
    // It must be a folder, and not a link to somewhere else. Its parent is this user's alone.
    if !fs::symlink_metadata(path).is_ok_and(|about| about.is_dir()) {
        return;
    }
    for entry in fs::read_dir(path).into_iter().flatten().flatten() {
        let _ = fs::remove_file(entry.path());
    }
    let _ = fs::remove_dir(path);
}

/// Locks the folder of a run, unless somebody has it, or it has gone. The system unlocks it when its owner ends.
fn lock(path: &Path) -> Option<OwnedFd> {
    let folder =
        open(path, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty()).ok()?;
    flock(&folder, FlockOperation::NonBlockingLockExclusive).ok()?;
    // The name may have gone, and come again, meanwhile.
    let named = fs::symlink_metadata(path).ok()?;
    (fstat(&folder).ok()?.st_ino == named.ino()).then_some(folder)
}

/// Removes the folders of runs that were killed.
fn prune(parent: &Path) {
    for entry in fs::read_dir(parent).into_iter().flatten().flatten() {
        let is_of_a_run = entry.file_name().to_str().is_some_and(|name| name.starts_with(RUN));
        if is_of_a_run && let Some(_lock) = lock(&entry.path()) {
            remove(&entry.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_folder_of_others_is_refused() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("folder");
        make_private(&path).unwrap();
        make_private(&path).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        let text = make_private(&path).unwrap_err().to_string();
        assert!(text.contains("only this user") && text.contains("XDG_RUNTIME_DIR"), "{text}");
    }

    #[test]
    fn a_link_is_no_folder() {
        let place = tempfile::tempdir().unwrap();
        let (real, link) = (place.path().join("real"), place.path().join("link"));
        make_private(&real).unwrap();
        fs::write(real.join("mine"), "").unwrap();
        symlink(&real, &link).unwrap();
        assert!(make_private(&link).is_err());
        remove(&link);
        assert!(real.join("mine").exists());
    }

    #[test]
    fn the_links_lead_to_the_library_and_follow_it() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("folder");
        for library in ["/first/library", "/second/library"] {
            let folder = Folder::fill(path.clone(), Path::new(library), None).unwrap();
            for name in NAMES {
                assert_eq!(fs::read_link(folder.path().join(name)).unwrap(), Path::new(library));
            }
        }
        assert_eq!(fs::read_dir(&path).unwrap().count(), NAMES.len());
    }

    #[test]
    fn only_the_folders_of_the_dead_are_removed() {
        let place = tempfile::tempdir().unwrap();
        fs::set_permissions(place.path(), fs::Permissions::from_mode(0o700)).unwrap();
        // The number of a process says nothing: it may be one of another container.
        let alive = Folder::of_run_in(place.path(), Path::new("/library")).unwrap();
        let names = [format!("{RUN}{}", getpid().as_raw_nonzero()), format!("{RUN}{}-1", i32::MAX), "verbs-0".into()];
        for name in &names {
            fs::create_dir(place.path().join(name)).unwrap();
            fs::write(place.path().join(name).join("lint"), "").unwrap();
        }
        prune(place.path());
        let left: Vec<bool> = names.iter().map(|name| place.path().join(name).exists()).collect();
        assert_eq!(left, [false, false, true]);
        assert!(fs::read_link(alive.path().join(NAMES[0])).is_ok());
        let path = alive.path().to_owned();
        drop(alive);
        assert!(!path.exists());
    }

    #[test]
    fn runs_that_begin_and_end_at_once_do_not_meet() {
        let place = tempfile::tempdir().unwrap();
        let parent = place.path().join("fulmen");
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..100 {
                        let folder = Folder::of_run_in(&parent, Path::new("/library")).unwrap();
                        for name in NAMES {
                            assert_eq!(fs::read_link(folder.path().join(name)).unwrap(), Path::new("/library"));
                        }
                        drop(folder);
                        // As the removal of records does, which shares the parent.
                        let _ = fs::remove_dir(&parent);
                    }
                });
            }
        });
    }

    #[test]
    fn a_path_that_the_linker_would_split_is_refused() {
        let place = tempfile::tempdir().unwrap();
        for name in ["a b", "a:b", "a;b"] {
            assert!(Folder::fill(place.path().join(name), Path::new("/library"), None).is_err(), "{name}");
        }
    }
}
