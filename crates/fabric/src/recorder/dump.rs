//! Writing records to files, when something fails and on SIGUSR1.
//!
//! A thread of its own waits for the signal, so that a rank that is stuck is written too. There is one a process, made with
//! the first recorder that has a directory, and parked otherwise.

use std::collections::VecDeque;
use std::fs::{self, DirBuilder, File};
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, Once, OnceLock, PoisonError, Weak};
use std::thread;

use signal_hook::consts::SIGUSR1;
use signal_hook::iterator::Signals;

use super::file::{self, Header, Reason};
use super::{Record, cut};

/// The name of the thread that waits for SIGUSR1. Other processes recognize a rank that listens by it.
pub const LISTENER: &str = "fulmen-record";

/// Files of this process that are kept, of different worlds: a program that forms a new world after each failure leaves no more.
const FILES: usize = 8;

static RECORDS: Mutex<Vec<Weak<Record>>> = Mutex::new(Vec::new());

/// Has a record written whenever this process gets SIGUSR1.
pub(super) fn watch(record: &Arc<Record>) {
    let mut records = RECORDS.lock().unwrap_or_else(PoisonError::into_inner);
    records.retain(|record| record.strong_count() > 0);
    records.push(Arc::downgrade(record));
    drop(records);
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        if let Err(error) = listen() {
            tracing::warn!(%error, "SIGUSR1 will not write this rank's record");
        }
    });
}

fn listen() -> io::Result<()> {
    let mut signals = Signals::new([SIGUSR1])?;
    thread::Builder::new().name(LISTENER.into()).spawn(move || {
        for _ in signals.forever() {
            let records = RECORDS.lock().unwrap_or_else(PoisonError::into_inner).clone();
            for record in records.iter().filter_map(Weak::upgrade) {
                if let Some(directory) = &record.directory {
                    write(&record, directory, Reason::Signal);
                }
            }
        }
    })?;
    Ok(())
}

/// Writes a record. A rank that cannot goes on without.
pub(super) fn write(record: &Record, directory: &Path, reason: Reason) {
    match try_write(record, directory, reason) {
        Ok(file) => tracing::debug!(file = %file.display(), ?reason, "wrote the record"),
        Err(error) => tracing::warn!(%error, "the record could not be written"),
    }
}

/// Writes a record into a directory, and gives the file.
pub(super) fn try_write(record: &Record, directory: &Path, reason: Reason) -> io::Result<PathBuf> {
    // One at a time, so that the newest stays.
    static WRITTEN: Mutex<VecDeque<PathBuf>> = Mutex::new(VecDeque::new());
    let mut written = WRITTEN.lock().unwrap_or_else(PoisonError::into_inner);
    let named = |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", directory.display()));
    make_directory(directory).map_err(named)?;
    let (header, lines) = record.take(reason);
    let name = format!("rank-{}-{}.jsonl", header.rank, header.generation);
    let (path, passing) = (directory.join(&name), directory.join(format!(".{name}.{}", header.pid)));
    // Whoever reads the directory finds whole files only.
    let _ = fs::remove_file(&passing);
    let mut to = BufWriter::new(File::create_new(&passing).map_err(named)?);
    let done = file::write(&mut to, &header, &lines).and_then(|()| to.flush());
    if let Err(error) = done.and_then(|()| fs::rename(&passing, &path)) {
        let _ = fs::remove_file(&passing);
        return Err(named(error));
    }
    if !written.contains(&path) {
        written.push_back(path.clone());
        if written.len() > FILES
            && let Some(oldest) = written.pop_front()
        {
            let _ = fs::remove_file(oldest);
        }
    }
    Ok(path)
}

/// Makes a directory that only this user reads. One that is there already has to be this user's own: what a rank did is
/// nobody else's to read or to replace.
fn make_directory(directory: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
    let found = fs::symlink_metadata(directory)?;
    let own = rustix::process::geteuid().as_raw();
    // A link that the user made to a directory of the user's is as good.
    let target = fs::metadata(directory)?;
    if found.uid() != own || target.uid() != own {
        return Err(io::Error::new(
            io::ErrorKind::PermissionDenied,
            "it belongs to somebody else: name a directory of your own (FULMEN_TRACE_DIR)",
        ));
    }
    Ok(())
}

/// What is the same for all records of this process.
pub(super) fn process() -> Header {
    static PROCESS: OnceLock<Header> = OnceLock::new();
    let process = PROCESS.get_or_init(|| {
        let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
        let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        let boot = if boot.is_empty() { host.clone() } else { boot.trim().to_owned() };
        let program = std::env::args_os().next().unwrap_or_default();
        let program = std::env::current_exe().unwrap_or_else(|_| program.into());
        Header { host: cut(&host), boot, program: cut(&program.to_string_lossy()), ..Header::default() }
    });
    // A process that was forked has another number.
    Header { pid: std::process::id(), ..process.clone() }
}

#[cfg(test)]
mod tests {
    use super::super::{Action, Owner, Recorder, What};
    use super::*;

    fn folder(name: &str) -> PathBuf {
        let folder = std::env::temp_dir().join(format!("fulmen-recorder-{}-{name}", std::process::id()));
        let _ = fs::remove_dir_all(&folder);
        folder
    }

    fn recorder(generation: u64, directory: Option<&Path>) -> Recorder {
        Recorder::new(Owner { rank: 1, size: 2, generation }, true, directory.map(Path::to_owned))
    }

    fn files(folder: &Path) -> Vec<String> {
        let mut names: Vec<String> = fs::read_dir(folder)
            .into_iter()
            .flatten()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    #[test]
    fn a_failure_writes_the_record_where_a_directory_was_named_and_nowhere_else() {
        let folder = folder("failure");
        recorder(1, None).failed("all_reduce", 1, "it broke");
        let recorder = recorder(2, Some(&folder));
        recorder.end(recorder.begin(What::of(Action::Send, 0, 3, 8)), true);
        assert!(!folder.exists(), "nothing has failed yet");
        recorder.failed("all_reduce", 1, "it broke");
        assert_eq!(files(&folder), ["rank-1-0000000000000002.jsonl"]);
        assert_eq!(fs::metadata(&folder).unwrap().mode() & 0o777, 0o700);
        let read = file::read(&fs::read(folder.join(&files(&folder)[0])).unwrap()).unwrap();
        assert_eq!((read.header.reason, read.header.pid), (Reason::Error, std::process::id()));
        assert_eq!((read.operations.len(), read.problems.len()), (1, 0));
        assert_eq!(read.header.failure.unwrap().text, "it broke");
        // Failures between two ranks after the first change nothing; those of groups do.
        fs::remove_dir_all(&folder).unwrap();
        recorder.failed("recv", 0, "it broke");
        assert!(!folder.exists());
        recorder.failed("barrier", 2, "it broke");
        assert_eq!(files(&folder).len(), 1);
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn records_of_many_worlds_do_not_pile_up() {
        let folder = folder("worlds");
        for generation in 0..2 * FILES as u64 {
            recorder(generation, None).write(&folder).unwrap().unwrap();
        }
        assert!(files(&folder).len() <= FILES, "{:?}", files(&folder));
        assert!(files(&folder).contains(&"rank-1-000000000000000f.jsonl".to_owned()));
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn a_directory_of_somebody_else_is_refused() {
        // The system's own directory belongs to root, and this test may be root: then nobody else's is at hand.
        if rustix::process::geteuid().is_root() {
            let folder = folder("else");
            fs::create_dir(&folder).unwrap();
            std::os::unix::fs::chown(&folder, Some(12345), None).unwrap();
            let error = recorder(1, None).write(&folder).unwrap_err().to_string();
            fs::remove_dir_all(&folder).unwrap();
            assert!(error.contains("somebody else"), "{error}");
        } else {
            let error = recorder(1, None).write(Path::new("/usr")).unwrap_err().to_string();
            assert!(error.contains("somebody else"), "{error}");
        }
    }

    #[test]
    fn a_directory_that_cannot_be_made_is_named() {
        let error = recorder(1, None).write(Path::new("/dev/null/x")).unwrap_err().to_string();
        assert!(error.contains("/dev/null/x"), "{error}");
    }
}
