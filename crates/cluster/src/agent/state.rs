//! The directory of an agent's state.
//!
//! ```text
//! agent.sock   where programs of this host reach the agent; mode 0600
//! desk.sock    where programs of this host hand memory to the agent, in which they ask for processes; mode 0600
//! devices.sock where they come for the devices that it owns, if it owns any; mode 0600
//! agent.lock   locked by the agent as long as it lives
//! agent.log    what the agent has to say
//! node.json    who the node is: its key, and the nodes that it knows
//! registry.redb its part of what the nodes agree on
//! audit.log    what it started, signalled, ended and refused
//! next         a number that no process has
//! output/      what processes wrote, where it is kept
//! ```

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use rustix::fs::{FlockOperation, flock};

/// Numbers that are taken out of the file at a time: those that are left when the agent ends are never used.
const NUMBERS: u64 = 1000;

/// Why the state cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum StateError {
    /// Another agent has it.
    #[error("an agent is up already with the state in {}: give another directory (--state), or end it (fulmen down)", .0.display())]
    Taken(PathBuf),
    /// Its path is too long for a socket.
    #[error("{} is too long for the path of a socket, which has {most} bytes at most: give another directory (--state)", path.display())]
    TooLong {
        /// The socket's path.
        path: PathBuf,
        /// Bytes that it may have.
        most: usize,
    },
    /// It belongs to somebody else, or others may write to it.
    #[error("{} is not this user's alone, so that others could pretend to be the agent: give another directory (--state)", .0.display())]
    Open(PathBuf),
    /// The system refused something.
    #[error("{}: {cause}", path.display())]
    System {
        /// The file.
        path: PathBuf,
        /// What the system said.
        cause: io::Error,
    },
}

/// Bytes of the longest path of a socket, where it is shortest (macOS).
const LONGEST: usize = 103;

/// An agent's state. One agent has it at a time.
pub(super) struct State {
    directory: PathBuf,
    /// Locked as long as it is open.
    _lock: File,
    numbers: Mutex<Numbers>,
}

#[derive(Default)]
struct Numbers {
    next: u64,
    end: u64,
}

impl State {
    /// Takes the directory, which is made if there is none.
    pub(super) fn take(directory: &Path) -> Result<State, StateError> {
        let system = |path: &Path| {
            let path = path.to_owned();
            move |cause| StateError::System { path, cause }
        };
        DirBuilder::new().recursive(true).mode(0o700).create(directory).map_err(system(directory))?;
        let directory = directory.canonicalize().map_err(system(directory))?;
        let socket = socket(&directory);
        if socket.as_os_str().len() > LONGEST {
            return Err(StateError::TooLong { path: socket, most: LONGEST });
        }
        let about = fs::metadata(&directory).map_err(system(&directory))?;
        if about.uid() != rustix::process::geteuid().as_raw() || about.mode() & 0o022 != 0 {
            return Err(StateError::Open(directory));
        }
        let path = directory.join("agent.lock");
        let open = OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(&path);
        let lock = open.map_err(system(&path))?;
        match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(rustix::io::Errno::WOULDBLOCK) => return Err(StateError::Taken(directory)),
            Err(error) => return Err(system(&path)(error.into())),
        }
        // Of an agent that was killed.
        for socket in [&socket, &directory.join("desk.sock"), &fulmen_attach::socket(&directory)] {
            match fs::remove_file(socket) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(system(socket)(error)),
                _ => {}
            }
        }
        Ok(State { directory, _lock: lock, numbers: Mutex::default() })
    }

    pub(super) fn directory(&self) -> &Path {
        &self.directory
    }

    pub(super) fn audit(&self) -> PathBuf {
        self.directory.join("audit.log")
    }

    /// Where programs hand over memory.
    pub(super) fn desk(&self) -> PathBuf {
        self.directory.join("desk.sock")
    }

    /// Where the output of a process is kept, without an extension.
    pub(super) fn output(&self, id: u64) -> PathBuf {
        self.directory.join("output").join(id.to_string())
    }

    /// A number that no process has or had.
    pub(super) fn next_id(&self) -> io::Result<u64> {
        let mut numbers = self.numbers.lock().unwrap_or_else(PoisonError::into_inner);
        if numbers.next == numbers.end {
            let path = self.directory.join("next");
            let mut text = String::new();
            match File::open(&path) {
                Ok(mut file) => drop(file.read_to_string(&mut text)?),
                Err(error) if error.kind() == io::ErrorKind::NotFound => text.push('1'),
                Err(error) => return Err(error),
            }
            let damaged = |_| io::Error::other(format!("{} is damaged: it holds no number", path.display()));
            let next: u64 = text.trim().parse().map_err(damaged)?;
            let new = self.directory.join("next.new");
            let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&new)?;
            writeln!(file, "{}", next + NUMBERS)?;
            file.sync_all()?;
            fs::rename(&new, &path)?;
            DirBuilder::new().recursive(true).mode(0o700).create(self.directory.join("output"))?;
            *numbers = Numbers { next, end: next + NUMBERS };
        }
        numbers.next += 1;
        Ok(numbers.next - 1)
    }

    /// Leaves nothing but the logs behind.
    pub(super) fn clear(&self) {
        let _ = fs::remove_dir_all(self.directory.join("output"));
        for name in ["agent.sock", "desk.sock", "devices.sock", "agent.lock"] {
            let _ = fs::remove_file(self.directory.join(name));
        }
    }
}

/// The socket of the agent whose state is there.
#[must_use]
pub fn socket(directory: &Path) -> PathBuf {
    directory.join("agent.sock")
}

/// The node's part of what nodes agree on.
pub(super) fn registry(directory: &Path) -> PathBuf {
    directory.join("registry.redb")
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn one_agent_has_it_at_a_time() {
        let place = tempfile::tempdir().unwrap();
        let state = State::take(place.path()).unwrap();
        assert!(matches!(State::take(place.path()), Err(StateError::Taken(_))));
        drop(state);
        State::take(place.path()).unwrap();
    }

    #[test]
    fn numbers_are_never_used_again() {
        let place = tempfile::tempdir().unwrap();
        let numbers = |count: usize| -> Vec<u64> {
            let state = State::take(place.path()).unwrap();
            (0..count).map(|_| state.next_id().unwrap()).collect()
        };
        assert_eq!(numbers(3), [1, 2, 3]);
        let later = numbers(NUMBERS as usize + 1);
        assert!(later[0] > 3 && later.is_sorted_by(|a, b| a < b));
        fs::write(place.path().join("next"), "many").unwrap();
        let error = State::take(place.path()).unwrap().next_id().unwrap_err().to_string();
        assert!(error.contains("damaged"), "{error}");
    }

    #[test]
    fn what_others_could_write_is_refused() {
        let place = tempfile::tempdir().unwrap();
        fs::set_permissions(place.path(), fs::Permissions::from_mode(0o777)).unwrap();
        assert!(matches!(State::take(place.path()), Err(StateError::Open(_))));
        let deep = place.path().join("x".repeat(100));
        assert!(matches!(State::take(&deep), Err(StateError::TooLong { .. })));
    }
}
