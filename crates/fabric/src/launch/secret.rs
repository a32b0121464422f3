//! Where the world's secret comes from: a descriptor, a file that is named, or the user's key file.
//!
//! Launchers that know nothing of Fulmen hand over no secret, so ranks of one user share a key file. The first one that needs
//! it makes it; ranks that start together agree, since the file appears under its name whole and once (a hard link to it).

use std::ffi::OsString;
use std::fs::{DirBuilder, File};
use std::io::Write;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use super::LaunchError;
use super::environment::{Environment, number, parse};
use crate::bootstrap::Secret;

pub(super) const SECRET_FD: &str = "FULMEN_SECRET_FD";
const SECRET_FILE: &str = "FULMEN_SECRET_FILE";

/// How long the secret may take to come out of a pipe.
pub(super) const SECRET_WAIT: Duration = Duration::from_secs(5);
/// The digits and a newline.
const SECRET_LEN: usize = 65;

/// The secret of ranks that another launcher has started.
pub(super) fn of_user(environment: &Environment<'_>) -> Result<Secret, LaunchError> {
    if let Some(fd) = environment.raw(SECRET_FD) {
        return from_descriptor(&fd);
    }
    if let Some(path) = environment.raw(SECRET_FILE).filter(|path| !path.is_empty()) {
        let path = PathBuf::from(path);
        return from_file(&path)?.ok_or_else(|| unusable(&path, "it does not exist"));
    }
    let folder = |name: &str| environment.raw(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let state = folder("XDG_STATE_HOME").or_else(|| Some(folder("HOME")?.join(".local/state")));
    let path = state.ok_or(LaunchError::NoKeyFile)?.join("fulmen").join("secret");
    match from_file(&path)? {
        Some(secret) => Ok(secret),
        None => {
            make(&path)?;
            from_file(&path)?.ok_or_else(|| unusable(&path, "it was removed a moment ago"))
        }
    }
}

/// The secret out of the descriptor that a variable names.
pub(super) fn from_descriptor(fd: &OsString) -> Result<Secret, LaunchError> {
    let fd =
        parse(SECRET_FD, fd, "the number of a descriptor", |text| number(text).filter(|fd| *fd <= i32::MAX as u32))?;
    read_descriptor(fd, SECRET_WAIT)
}

fn read_descriptor(fd: u32, wait: Duration) -> Result<Secret, LaunchError> {
    let unreadable = |error: Errno| LaunchError::SecretUnreadable { fd, cause: shown(error) };
    // Opening the descriptor by its path makes one that this process owns, and one that never blocks.
    let directory = if cfg!(target_os = "linux") { "/proc/self/fd" } else { "/dev/fd" };
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let file = rustix::fs::open(format!("{directory}/{fd}"), flags, Mode::empty()).map_err(|error| match error {
        Errno::NOENT | Errno::BADF => LaunchError::SecretClosed { fd },
        other => unreadable(other),
    })?;
    match read_digits(file.as_fd(), wait) {
        Ok(Some(secret)) => Ok(secret),
        Ok(None) => Err(LaunchError::SecretMalformed { fd }),
        Err(Errno::TIMEDOUT) => Err(LaunchError::SecretLate { fd }),
        Err(error) => Err(unreadable(error)),
    }
}

/// Reads 64 digits and at most a newline; `None` if there is something else. [`Errno::TIMEDOUT`] after `wait`.
fn read_digits(file: BorrowedFd<'_>, wait: Duration) -> Result<Option<Secret>, Errno> {
    let end = crate::clock::after(wait);
    let mut bytes = [0; SECRET_LEN + 1];
    let mut filled = 0;
    while filled < bytes.len() {
        match rustix::io::read(file, &mut bytes[filled..]) {
            Ok(0) => break,
            Ok(count) => filled += count,
            Err(Errno::INTR) => {}
            // A writer that keeps its end open may have said all there is to say.
            Err(Errno::AGAIN) if filled >= SECRET_LEN - 1 => break,
            Err(Errno::AGAIN) => {
                let left = end.saturating_duration_since(Instant::now());
                if left.is_zero() {
                    return Err(Errno::TIMEDOUT);
                }
                let left = Timespec { tv_sec: left.as_secs() as _, tv_nsec: left.subsec_nanos() as _ };
                match poll(&mut [PollFd::new(&file, PollFlags::IN)], Some(&left)) {
                    Ok(_) | Err(Errno::INTR) => {}
                    Err(error) => return Err(error),
                }
            }
            Err(error) => return Err(error),
        }
    }
    let text = std::str::from_utf8(&bytes[..filled]).ok();
    let digits = text.map(|text| text.strip_suffix('\n').unwrap_or(text));
    Ok(digits.and_then(|digits| Secret::from_hex(digits).ok()))
}

/// The secret in a file, which nobody but its owner may read. `None` if there is no such file.
fn from_file(path: &Path) -> Result<Option<Secret>, LaunchError> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let file = match rustix::fs::open(path, flags, Mode::empty()) {
        Ok(file) => File::from(file),
        Err(Errno::NOENT) => return Ok(None),
        Err(error) => return Err(unusable(path, &shown(error))),
    };
    // Of the file that was opened, whatever has its name by now.
    let about = file.metadata().map_err(|error| unusable(path, &error.to_string()))?;
    if !about.is_file() {
        return Err(unusable(path, "it is no plain file"));
    }
    let user = rustix::process::geteuid().as_raw();
    if about.uid() != user && about.uid() != 0 {
        return Err(unusable(path, "it belongs to another user"));
    }
    if about.mode() & 0o077 != 0 {
        return Err(LaunchError::SecretExposed { path: path.to_owned(), mode: about.mode() & 0o7777 });
    }
    match read_digits(file.as_fd(), Duration::ZERO) {
        Ok(Some(secret)) => Ok(Some(secret)),
        Ok(None) => Err(unusable(path, "it does not hold 64 lower-case hexadecimal digits")),
        Err(error) => Err(unusable(path, &shown(error))),
    }
}

/// Makes the user's key file, unless another process does so first.
fn make(path: &Path) -> Result<(), LaunchError> {
    let unmade = |what: &str, error: std::io::Error| unusable(path, &format!("{what}: {error}"));
    let secret = Secret::generate().map_err(|error| unusable(path, &error.to_string()))?;
    let folder = path.parent().unwrap_or(Path::new("."));
    let made = DirBuilder::new().recursive(true).mode(0o700).create(folder);
    made.map_err(|error| unmade("its folder cannot be made", error))?;

    let mut random = [0; 8];
    getrandom::fill(&mut random).map_err(|error| unusable(path, &error.to_string()))?;
    let draft = folder.join(format!(".secret-{:016x}", u64::from_le_bytes(random)));
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
    let file = rustix::fs::open(&draft, flags, Mode::RUSR | Mode::WUSR);
    let mut file = File::from(file.map_err(|error| unmade("it cannot be made", error.into()))?);
    let written = writeln!(file, "{}", secret.to_hex()).and_then(|()| file.sync_all());
    let linked = written.and_then(|()| std::fs::hard_link(&draft, path));
    // What is left of a draft is a secret that nobody uses.
    let _ = std::fs::remove_file(&draft);
    match linked {
        Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => Err(unmade("it cannot be made", error)),
        _ => Ok(()),
    }
}

fn unusable(path: &Path, cause: &str) -> LaunchError {
    LaunchError::SecretFile { path: path.to_owned(), cause: cause.to_owned() }
}

fn shown(error: Errno) -> String {
    std::io::Error::from(error).to_string()
}

#[cfg(test)]
pub(super) mod tests {
    use std::os::fd::{AsRawFd, OwnedFd};
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    pub(in crate::launch) const HEX: &str = "00112233445566778899aabbccddeeff0123456789abcdef0123456789abcdef";

    /// A pipe that holds `content`, its writing end closed.
    pub(in crate::launch) fn pipe(content: &str) -> OwnedFd {
        let (reader, mut writer) = std::io::pipe().unwrap();
        writer.write_all(content.as_bytes()).unwrap();
        reader.into()
    }

    fn read_from(fd: &OwnedFd) -> Result<Secret, LaunchError> {
        read_descriptor(fd.as_raw_fd() as u32, Duration::from_secs(60))
    }

    fn in_state(folder: &Path) -> Result<Secret, LaunchError> {
        let folder = OsString::from(folder);
        of_user(&Environment(&|name| (name == "XDG_STATE_HOME").then(|| folder.clone())))
    }

    fn named(path: &Path) -> Result<Secret, LaunchError> {
        let path = OsString::from(path);
        of_user(&Environment(&|name| (name == SECRET_FILE).then(|| path.clone())))
    }

    #[test]
    fn the_secret_may_end_with_a_newline_or_with_an_open_pipe() {
        assert_eq!(read_from(&pipe(HEX)).unwrap().to_hex(), HEX);
        assert_eq!(read_from(&pipe(&format!("{HEX}\n"))).unwrap().to_hex(), HEX);
        let (reader, mut writer) = std::io::pipe().unwrap();
        writer.write_all(HEX.as_bytes()).unwrap();
        assert_eq!(read_from(&reader.into()).unwrap().to_hex(), HEX);
        drop(writer);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_memory_file_is_read_from_its_beginning() {
        let memory = rustix::fs::memfd_create("secret", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        rustix::io::write(&memory, HEX.as_bytes()).unwrap();
        assert_eq!(read_from(&memory).unwrap().to_hex(), HEX);
        assert_eq!(read_from(&memory).unwrap().to_hex(), HEX);
    }

    #[test]
    fn every_bad_descriptor_has_an_error_of_its_own() {
        let long = "0".repeat(1000);
        for content in ["", "short", &HEX[1..], &HEX.to_uppercase(), &format!("{HEX}0"), &format!("{HEX}\n\n"), &long] {
            let fd = pipe(content);
            assert_eq!(read_from(&fd).unwrap_err(), LaunchError::SecretMalformed { fd: fd.as_raw_fd() as u32 });
        }
        // No process has that many descriptors.
        let fd = i32::MAX as u32;
        assert_eq!(read_descriptor(fd, Duration::ZERO).unwrap_err(), LaunchError::SecretClosed { fd });
        let directory: OwnedFd = File::open("/").unwrap().into();
        assert!(matches!(read_from(&directory).unwrap_err(), LaunchError::SecretUnreadable { .. }));
        let (reader, writer) = std::io::pipe().unwrap();
        let fd = reader.as_raw_fd() as u32;
        assert_eq!(read_descriptor(fd, Duration::from_millis(1)).unwrap_err(), LaunchError::SecretLate { fd });
        drop(writer);
    }

    #[test]
    fn ranks_that_start_together_make_one_key_file() {
        let folder = tempfile::tempdir().unwrap();
        let secrets: Vec<String> = std::thread::scope(|scope| {
            let ranks: Vec<_> = (0..8).map(|_| scope.spawn(|| in_state(folder.path()).unwrap().to_hex())).collect();
            ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
        });
        assert!(secrets.iter().all(|secret| *secret == secrets[0]), "{secrets:?}");
        let made = folder.path().join("fulmen");
        let names: Vec<_> = made.read_dir().unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(names, ["secret"]);
        assert_eq!(made.join("secret").metadata().unwrap().mode() & 0o7777, 0o600);
        assert_eq!(made.metadata().unwrap().mode() & 0o777, 0o700);
    }

    #[test]
    fn a_key_file_that_others_may_read_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("key");
        std::fs::write(&path, HEX).unwrap();
        for mode in [0o644, 0o640, 0o604, 0o620, 0o777] {
            path.metadata().unwrap().permissions().set_mode(mode);
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
            let error = named(&path).unwrap_err();
            assert_eq!(error, LaunchError::SecretExposed { path: path.clone(), mode });
            assert!(error.to_string().contains("chmod 600") && error.to_string().contains(path.to_str().unwrap()));
        }
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o400)).unwrap();
        assert_eq!(named(&path).unwrap().to_hex(), HEX);
    }

    #[test]
    fn every_other_bad_key_file_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("key");
        let said = |error: LaunchError, part: &str| {
            let text = error.to_string();
            assert!(text.contains(path.to_str().unwrap()) && text.contains(part) && !text.contains('\n'), "{text}");
        };
        said(named(&path).unwrap_err(), "does not exist");
        std::fs::create_dir(&path).unwrap();
        said(named(&path).unwrap_err(), "no plain file");
        std::fs::remove_dir(&path).unwrap();
        std::fs::write(&path, "secret").unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
        said(named(&path).unwrap_err(), "64 lower-case hexadecimal digits");
        // Where a folder should be, there is this file.
        assert!(matches!(in_state(&path).unwrap_err(), LaunchError::SecretFile { .. }));
        assert_eq!(of_user(&Environment(&|_| None)).unwrap_err(), LaunchError::NoKeyFile);
    }
}
