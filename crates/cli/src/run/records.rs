//! Where the ranks of a run write their records, and what becomes of them.

use std::collections::{BTreeSet, HashMap};
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use fulmen::parts::fabric::recorder::file::{Header, Reason};
use rustix::io::Errno;
use rustix::process::{Pid, geteuid, getpid, test_kill_process};

use super::processes::{self, Recorder};

/// How long ranks may take to write their records before they are ended. They are done within milliseconds; only one
/// that is stopped, or has no processor, takes longer.
pub const WRITING: Duration = Duration::from_secs(5);

/// How often it is looked whether they have.
pub const LOOK: Duration = Duration::from_millis(5);

/// Directories of runs that have ended, which are kept.
const KEPT: usize = 16;

/// The variable that tells ranks where to write.
pub const DIRECTORY: &str = "FULMEN_TRACE_DIR";

/// The directory of a run's records. Ranks make it when they write.
pub struct Records {
    directory: PathBuf,
    /// It was not chosen by the user.
    default: bool,
    /// What was there when the run began.
    before: HashMap<PathBuf, u64>,
}

/// Ranks that were asked to write, and have not all done so.
pub struct Asked {
    recorders: Vec<Recorder>,
    before: HashMap<PathBuf, u64>,
    until: Instant,
}

impl Records {
    /// The directory that was chosen, or one of this run.
    pub fn choose(given: Option<&Path>) -> io::Result<Records> {
        let directory = match given {
            // Ranks may work in another directory.
            Some(given) => std::path::absolute(given)?,
            None => {
                let parent = parent();
                prune(&parent);
                let directory = parent.join(format!("run-{}", getpid().as_raw_nonzero()));
                // An earlier process of this number left it.
                remove(&directory);
                directory
            }
        };
        let before = files(&directory);
        Ok(Records { directory, default: given.is_none(), before })
    }

    /// Where ranks write.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Has the ranks that still run write their records. `None` if there is none that listens.
    pub fn ask(&self) -> Option<Asked> {
        let recorders = processes::recorders(getpid()).ok()?;
        Asked::ask(recorders)
    }

    /// The records that were written since the run began, in the order of their names.
    pub fn written(&self) -> Vec<PathBuf> {
        let now = files(&self.directory);
        let mut written: Vec<PathBuf> = changed(&self.before, &now).into_iter().map(Path::to_owned).collect();
        written.sort();
        written
    }

    /// After the run: what to tell about the records. Those of a run that did not fail go, unless somebody asked for them.
    pub fn finish(&self, failed: bool) -> Option<String> {
        sweep(&self.directory);
        let written = ranks(&changed(&self.before, &files(&self.directory)));
        if failed && !written.is_empty() {
            let (count, ranks) = (written.len(), if written.len() == 1 { "rank" } else { "ranks" });
            let place = self.directory.display();
            return Some(format!("the last operations of {count} {ranks} are in {place}: fulmen trace {place}"));
        }
        if self.default && !files(&self.directory).keys().any(|file| was_asked_for(file)) {
            remove(&self.directory);
        }
        None
    }
}

impl Asked {
    /// Asks all of these to write.
    pub fn ask(recorders: Vec<Recorder>) -> Option<Asked> {
        let before = recorders.iter().flat_map(|recorder| files(&recorder.directory)).collect();
        // One that has just ended cannot write any more.
        let recorders: Vec<Recorder> = recorders.into_iter().filter(|recorder| recorder.ask().is_ok()).collect();
        let until = Instant::now() + WRITING;
        (!recorders.is_empty()).then_some(Asked { recorders, before, until })
    }

    /// Whether all have written, or have had time enough.
    pub fn is_over(&self) -> bool {
        Instant::now() >= self.until || self.silent().is_empty()
    }

    /// The ranks that have not written yet.
    pub fn silent(&self) -> BTreeSet<u32> {
        let directories: BTreeSet<&Path> = self.recorders.iter().map(|recorder| recorder.directory.as_path()).collect();
        let now = directories.into_iter().flat_map(files).collect();
        let written = ranks(&changed(&self.before, &now));
        self.recorders.iter().map(|recorder| recorder.rank).filter(|rank| !written.contains(rank)).collect()
    }

    /// Where they write.
    pub fn directories(&self) -> BTreeSet<PathBuf> {
        self.recorders.iter().map(|recorder| recorder.directory.clone()).collect()
    }
}

/// Where the directories of this user's runs are.
pub fn parent() -> PathBuf {
    let base = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from).filter(|base| base.is_absolute());
    base.unwrap_or_else(std::env::temp_dir).join(format!("fulmen-{}", geteuid().as_raw()))
}

/// The records in a directory, with what changes when one is written anew.
fn files(directory: &Path) -> HashMap<PathBuf, u64> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let records = entries.map(|entry| entry.path()).filter(|path| rank_of(path).is_some());
    records
        .filter_map(|path| Some((fs::symlink_metadata(&path).ok()?.ino(), path)))
        .map(|(ino, path)| (path, ino))
        .collect()
}

/// Puts a record that came from elsewhere into a directory, as its rank would have.
pub fn put(directory: &Path, name: &str, bytes: &[u8]) -> io::Result<()> {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'.';
    if !name.bytes().all(is_plain) || rank_of(Path::new(name)).is_none() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, format!("{name:?} is no name of a record")));
    }
    fs::DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
    // What a rank did is nobody else's to read or to replace.
    if fs::metadata(directory)?.uid() != geteuid().as_raw() {
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, "it belongs to somebody else"));
    }
    // Whoever reads the directory finds whole files only.
    let passing = directory.join(format!(".{name}.{}", getpid().as_raw_nonzero()));
    let _ = fs::remove_file(&passing);
    let done = File::create_new(&passing).and_then(|mut file| file.write_all(bytes));
    done.and_then(|()| fs::rename(&passing, directory.join(name))).inspect_err(|_| drop(fs::remove_file(&passing)))
}

/// The rank in the name of a record: `rank-3-0123456789abcdef.jsonl`.
fn rank_of(path: &Path) -> Option<u32> {
    let name = path.file_name()?.to_str()?.strip_prefix("rank-")?.strip_suffix(".jsonl")?;
    name.split_once('-')?.0.parse().ok()
}

fn changed<'a>(before: &HashMap<PathBuf, u64>, now: &'a HashMap<PathBuf, u64>) -> Vec<&'a Path> {
    now.iter().filter(|(path, ino)| before.get(*path) != Some(ino)).map(|(path, _)| path.as_path()).collect()
}

fn ranks(files: &[&Path]) -> BTreeSet<u32> {
    files.iter().filter_map(|path| rank_of(path)).collect()
}

/// Removes what processes that were killed while they wrote left of it.
fn sweep(directory: &Path) {
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        let path = entry.path();
        if writer_of(&path).is_some_and(|writer| test_kill_process(writer) == Err(Errno::SRCH)) {
            let _ = fs::remove_file(path);
        }
    }
}

/// The process in the name of a record that is being written: `.rank-3-0123456789abcdef.jsonl.77`.
fn writer_of(path: &Path) -> Option<Pid> {
    let (name, pid) = path.file_name()?.to_str()?.strip_prefix('.')?.rsplit_once('.')?;
    rank_of(Path::new(name))?;
    Pid::from_raw(pid.parse().ok()?)
}

/// Whether a record was written because the rank got SIGUSR1, and not because something failed.
fn was_asked_for(file: &Path) -> bool {
    let header = fs::read(file).ok().and_then(|bytes| {
        let first = bytes.split(|byte| *byte == b'\n').next()?;
        serde_json::from_slice::<Header>(first).ok()
    });
    // One that cannot be read is not this program's to remove.
    header.is_none_or(|header| header.reason == Reason::Signal)
}

/// Removes a directory of records, if it holds nothing else.
fn remove(directory: &Path) {
    // It must be a directory of this user's, and not a link to somewhere else.
    let own = fs::symlink_metadata(directory).is_ok_and(|found| found.is_dir() && found.uid() == geteuid().as_raw());
    if !own {
        return;
    }
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        let name = entry.file_name();
        if name.to_str().is_some_and(|name| name.starts_with("rank-") || name.starts_with(".rank-")) {
            let _ = fs::remove_file(entry.path());
        }
    }
    let _ = fs::remove_dir(directory);
    // The last one takes the parent along; one that is not empty stays.
    if let Some(parent) = directory.parent() {
        let _ = fs::remove_dir(parent);
    }
}

/// Removes what is left of all but the newest runs that have ended.
fn prune(parent: &Path) {
    let ended = |path: &Path| {
        let number = path.file_name()?.to_str()?.strip_prefix("run-")?.parse().ok()?;
        Some(test_kill_process(Pid::from_raw(number)?).is_err())
    };
    let entries = fs::read_dir(parent).into_iter().flatten().flatten().map(|entry| entry.path());
    let mut old: Vec<(std::time::SystemTime, PathBuf)> = entries
        .filter(|path| ended(path) == Some(true))
        .filter_map(|path| Some((fs::symlink_metadata(&path).ok()?.modified().ok()?, path)))
        .collect();
    old.sort();
    for (_, path) in old.iter().take(old.len().saturating_sub(KEPT)) {
        remove(path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_known_by_their_names() {
        assert_eq!(rank_of(Path::new("/x/rank-12-00ff.jsonl")), Some(12));
        for other in ["rank-1.jsonl", "rank-x-1.jsonl", ".rank-1-2.jsonl.77", "rank-1-2", "notes"] {
            assert_eq!(rank_of(Path::new(other)), None, "{other}");
        }
    }

    #[test]
    fn what_killed_processes_left_goes_and_what_others_write_stays() {
        let folder = tempfile::tempdir().unwrap();
        // No process has such a number.
        let gone = format!(".rank-0-1.jsonl.{}", i32::MAX);
        let own = format!(".rank-1-1.jsonl.{}", getpid().as_raw_nonzero());
        let stay = [own.as_str(), "rank-0-1.jsonl", ".rank-0-1.jsonl", ".notes.2147483647", ".rank-0-1.jsonl.0"];
        for name in stay.into_iter().chain([gone.as_str()]) {
            fs::write(folder.path().join(name), "{}").unwrap();
        }
        sweep(folder.path());
        assert!(!folder.path().join(&gone).exists());
        for name in stay {
            assert!(folder.path().join(name).exists(), "{name}");
        }
    }

    #[test]
    fn a_directory_goes_with_its_records_and_stays_with_anything_else() {
        let folder = tempfile::tempdir().unwrap();
        let make = |name: &str, file: &str| {
            let directory = folder.path().join(name);
            fs::create_dir(&directory).unwrap();
            fs::write(directory.join(file), "{}").unwrap();
            directory
        };
        let (records, mixed) = (make("records", "rank-0-1.jsonl"), make("mixed", "mine.txt"));
        remove(&records);
        remove(&mixed);
        assert!(!records.exists() && mixed.join("mine.txt").exists());
        let link = folder.path().join("link");
        let target = make("target", "rank-0-1.jsonl");
        std::os::unix::fs::symlink(&target, &link).unwrap();
        remove(&link);
        assert!(target.join("rank-0-1.jsonl").exists());
    }

    #[test]
    fn the_directories_of_old_runs_do_not_pile_up() {
        let folder = tempfile::tempdir().unwrap();
        for run in 0..2 * KEPT {
            // No process has such a number.
            let directory = folder.path().join(format!("run-{}", i32::MAX as usize - run));
            fs::create_dir(&directory).unwrap();
            fs::write(directory.join("rank-0-1.jsonl"), "{}").unwrap();
        }
        let own = folder.path().join(format!("run-{}", getpid().as_raw_nonzero()));
        fs::create_dir(&own).unwrap();
        prune(folder.path());
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), KEPT + 1);
        assert!(own.exists());
    }
}
