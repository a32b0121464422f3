//! Where ranks meet that another launcher has started: rank 0 serves the coordinator, and the others find it.

use std::fmt;
use std::fs::{DirBuilder, File};
use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, ToSocketAddrs};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, Mode, OFlags, flock};

use super::LaunchError;
use super::environment::Environment;
use crate::bootstrap::{BindError, Coordinator, Heartbeat, JoinConfig, JoinError, Options, Secret, Serving, Session};
use crate::clock::{after, until};

/// The pause between two looks for what is not there yet; it doubles up to [`LONGEST_PAUSE`].
const FIRST_PAUSE: Duration = Duration::from_millis(5);
const LONGEST_PAUSE: Duration = Duration::from_millis(200);
/// The shortest silence that a coordinator can tell from a busy rank.
const SHORTEST_SILENCE: Duration = Duration::from_millis(100);

/// Where the ranks of a world meet.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Meeting {
    /// At a coordinator that the launcher serves.
    Launcher(SocketAddr),
    /// At a coordinator that rank 0 serves at this address. The world ends with rank 0.
    RankZero(Address),
    /// On this host, at a coordinator that rank 0 serves on loopback; this file says where, as long as rank 0 holds a lock
    /// on it. The world ends with rank 0.
    ThisHost(PathBuf),
}

/// A host and a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address {
    /// The host's name, or its IP address.
    pub host: String,
    /// The port, which is not 0.
    pub port: u16,
}

impl Address {
    /// Reads `host:port`, where an IPv6 address stands in brackets.
    pub(super) fn parse(text: &str) -> Option<Address> {
        let (host, port) = text.rsplit_once(':')?;
        let bare = host.strip_prefix('[').map(|host| host.strip_suffix(']'));
        let host = match bare {
            Some(host) => host.filter(|host| host.parse::<IpAddr>().is_ok())?,
            None => Some(host).filter(|host| !host.contains(':'))?,
        };
        let port = super::environment::number(port).and_then(|port| u16::try_from(port).ok())?;
        Address::new(host, port)
    }

    /// `None` for what is no name of a host and no address of one, or for port 0.
    pub(super) fn new(host: &str, port: u16) -> Option<Address> {
        let letter = |letter: char| letter.is_ascii_alphanumeric() || ".-_".contains(letter);
        let named = !host.is_empty() && host.len() <= 253 && host.chars().all(letter);
        let single = host.parse::<IpAddr>().is_ok_and(|ip| !ip.is_unspecified() && !ip.is_multicast());
        let is_address = host.parse::<IpAddr>().is_ok();
        (port != 0 && (single || named && !is_address)).then(|| Address { host: host.to_owned(), port })
    }

    fn ip(&self) -> Option<IpAddr> {
        self.host.parse().ok()
    }

    /// What the host's name means now: IPv4 first, so that all ranks take the same one of several.
    fn resolve(&self) -> Result<SocketAddr, String> {
        if let Some(ip) = self.ip() {
            return Ok(SocketAddr::new(ip, self.port));
        }
        let found = (self.host.as_str(), self.port).to_socket_addrs().map_err(|error| error.to_string())?;
        found.min_by_key(|address| !address.is_ipv4()).ok_or_else(|| "the name has no address".to_string())
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') {
            write!(f, "[{}]:{}", self.host, self.port)
        } else {
            write!(f, "{}:{}", self.host, self.port)
        }
    }
}

/// One rank on its way to the meeting.
pub(super) struct Joining<'a> {
    pub rank: u32,
    pub size: u32,
    pub secret: &'a Secret,
    pub deadline: Duration,
    /// How long a rank may be silent; rank 0 tells the others.
    pub silence: Duration,
}

impl Joining<'_> {
    pub fn at(&self, meeting: &Meeting) -> Result<Session, JoinError> {
        match meeting {
            Meeting::Launcher(address) => self.join(*address, self.deadline, &|| true),
            Meeting::RankZero(address) if self.rank == 0 => {
                let serving = self.serve_at(address)?;
                self.join_own(serving, None)
            }
            Meeting::RankZero(address) => {
                let unresolved = |cause| JoinError::Unresolved { host: address.host.clone(), cause };
                self.join_next(|end| wait_until(end, || address.resolve()).map_err(unresolved), |_| true)
            }
            Meeting::ThisHost(path) if self.rank == 0 => {
                let serving = self.serve(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)))?;
                let cause =
                    |error: std::io::Error| JoinError::Announce { path: path.clone(), cause: error.to_string() };
                let notice = Notice::post(path, serving.local_addr()).map_err(cause)?;
                self.join_own(serving, Some(notice))
            }
            Meeting::ThisHost(path) => {
                let nowhere = |state| JoinError::NoMeeting { waited: self.deadline, path: path.clone(), state };
                self.join_next(
                    |end| wait_until(end, || read_notice(path)).map_err(nowhere),
                    |coordinator| read_notice(path) == Ok(coordinator),
                )
            }
        }
    }

    /// Joins what rank 0 serves. One program may follow another under the same variables (`srun sh -c './a; ./b'`), and a rank of
    /// it come while rank 0 of the one before still serves: that world is not this rank's, and the next one is looked for.
    fn join_next(
        &self,
        find: impl Fn(Instant) -> Result<SocketAddr, JoinError>,
        is_meant: impl Fn(SocketAddr) -> bool,
    ) -> Result<Session, JoinError> {
        let end = after(self.deadline);
        let mut pause = FIRST_PAUSE;
        loop {
            let coordinator = find(end)?;
            let outcome = self.join(coordinator, until(end), &|| is_meant(coordinator));
            let error = match outcome {
                Err(
                    error @ (JoinError::RankLeft { .. }
                    | JoinError::NotAwaited { .. }
                    | JoinError::CoordinatorLost { .. }
                    | JoinError::Unreachable { .. }),
                ) => error,
                outcome => return outcome,
            };
            if until(end) <= pause {
                return Err(error);
            }
            tracing::debug!(%error, "that was no world of this rank: it looks for the next one");
            thread::sleep(pause);
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    fn join(
        &self,
        coordinator: SocketAddr,
        deadline: Duration,
        is_meant: &dyn Fn() -> bool,
    ) -> Result<Session, JoinError> {
        let (rank, size, secret) = (self.rank, self.size, self.secret.clone());
        Session::join_while(&JoinConfig { coordinator, rank, size, secret, deadline }, is_meant)
    }

    /// Joins what this process serves.
    fn join_own(&self, serving: Serving, notice: Option<Notice>) -> Result<Session, JoinError> {
        let mut address = serving.local_addr();
        if address.ip().is_unspecified() {
            address.set_ip(Ipv4Addr::LOCALHOST.into());
        }
        let session = self.join(address, self.deadline, &|| true)?;
        session.keep(serving, notice);
        Ok(session)
    }

    fn serve_at(&self, address: &Address) -> Result<Serving, JoinError> {
        let found = wait_until(after(self.deadline), || address.resolve());
        let found = found.map_err(|cause| JoinError::Unresolved { host: address.host.clone(), cause })?;
        let is_own_name = address.ip().is_none() && !address.host.eq_ignore_ascii_case("localhost");
        if is_own_name && found.ip().is_loopback() {
            // A host may know its own name by a loopback address only, and yet others know it by another one.
            tracing::debug!(%address, "the name of this host means loopback here: the coordinator listens on all its addresses");
            return self.serve(SocketAddr::from((Ipv4Addr::UNSPECIFIED, address.port)));
        }
        self.serve(found)
    }

    fn serve(&self, address: SocketAddr) -> Result<Serving, JoinError> {
        let silence = self.silence.max(SHORTEST_SILENCE);
        let heartbeat = Heartbeat { every: Heartbeat::default().every.min(silence / 5), silence };
        let options = Options { heartbeat, ends_with: Some(0), ..Options::default() };
        let coordinator =
            Coordinator::bind(address, self.size, self.secret.clone(), options).map_err(JoinError::Bind)?;
        coordinator.serve().map_err(|error| JoinError::Bind(BindError::System { address, cause: error.to_string() }))
    }
}

/// Looks until there is something, or until `end`; then with the last cause.
fn wait_until<T, E>(end: Instant, mut look: impl FnMut() -> Result<T, E>) -> Result<T, E> {
    let mut pause = FIRST_PAUSE;
    loop {
        let left = end.saturating_duration_since(Instant::now());
        match look() {
            Err(_) if !left.is_zero() => thread::sleep(pause.min(left)),
            outcome => return outcome,
        }
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

/// Rank 0's word to the other ranks of its host. It is valid as long as rank 0's process holds the lock on it.
#[derive(Debug)]
pub(crate) struct Notice {
    path: PathBuf,
    file: File,
}

impl Notice {
    /// Puts it in the place of one that an earlier process has left behind.
    fn post(path: &Path, address: SocketAddr) -> std::io::Result<Notice> {
        let mut random = [0; 8];
        getrandom::fill(&mut random).map_err(std::io::Error::other)?;
        let draft = path.with_extension(format!("{:016x}", u64::from_le_bytes(random)));
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let file = File::from(rustix::fs::open(&draft, flags, Mode::RUSR | Mode::WUSR)?);
        let posted = flock(&file, FlockOperation::NonBlockingLockExclusive)
            .map_err(std::io::Error::from)
            .and_then(|()| writeln!(&file, "{address}"))
            .and_then(|()| std::fs::rename(&draft, path));
        if let Err(error) = posted {
            let _ = std::fs::remove_file(&draft);
            return Err(error);
        }
        Ok(Notice { path: path.to_owned(), file })
    }
}

impl Drop for Notice {
    fn drop(&mut self) {
        // Another process may have put its own in this place. Nobody believes this one without the lock in any case.
        let is_own = |about: std::fs::Metadata| self.file.metadata().is_ok_and(|own| own.ino() == about.ino());
        if std::fs::metadata(&self.path).is_ok_and(is_own) {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// Where rank 0 serves; else what is there instead.
fn read_notice(path: &Path) -> Result<SocketAddr, &'static str> {
    let mut file = File::open(path).map_err(|error| match error.kind() {
        ErrorKind::NotFound => "not there",
        _ => "not readable",
    })?;
    if flock(&file, FlockOperation::NonBlockingLockShared).is_ok() {
        return Err("left over from a process that has ended");
    }
    let mut text = String::new();
    let read = (&mut file).take(128).read_to_string(&mut text);
    read.ok().and_then(|_| text.trim().parse().ok()).ok_or("not an address")
}

/// Where ranks of this host meet that belong to a job of this name: a file in a folder that is the user's alone.
pub(super) fn on_this_host(environment: &Environment<'_>, job: &str) -> Result<Meeting, LaunchError> {
    let user = rustix::process::geteuid().as_raw();
    let folder = |name: &str| environment.raw(name).map(PathBuf::from).filter(|path| path.is_absolute());
    // `su` and `sudo` may hand on that of the user who called them.
    let is_own = |path: &PathBuf| path.metadata().is_ok_and(|about| about.is_dir() && about.uid() == user);
    let path = match folder("XDG_RUNTIME_DIR").filter(is_own) {
        Some(folder) => folder.join("fulmen"),
        None => folder("TMPDIR").unwrap_or_else(|| "/tmp".into()).join(format!("fulmen-{user}")),
    };
    let refused = |cause: String| LaunchError::NoMeetingPlace { path: path.clone(), cause };
    match DirBuilder::new().mode(0o700).create(&path) {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => return Err(refused(error.to_string())),
        _ => {}
    }
    // Not through a link: in a folder that belongs to all, it may be another user's.
    let about = std::fs::symlink_metadata(&path).map_err(|error| refused(error.to_string()))?;
    if !about.is_dir() || about.uid() != user || about.mode() & 0o077 != 0 {
        return Err(refused("remove it, since it is no folder that only this user may use".into()));
    }
    let name = blake3::hash(job.as_bytes()).to_hex();
    Ok(Meeting::ThisHost(path.join(format!("meeting-{}", &name[..32]))))
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;
    use std::os::unix::fs::PermissionsExt;

    use proptest::prelude::*;

    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn addresses_are_hosts_and_ports() {
        let read = |text| Address::parse(text).map(|address| (address.host.clone(), address.port, address.to_string()));
        for (text, host, port) in [
            ("192.0.2.1:7000", "192.0.2.1", 7000),
            ("[2001:db8::1]:1", "2001:db8::1", 1),
            ("node-1.example:65535", "node-1.example", 65535),
        ] {
            assert_eq!(read(text), Some((host.to_owned(), port, text.to_owned())));
        }
        for text in [
            "",
            ":",
            "a",
            "a:",
            ":1",
            "a:0",
            "a:65536",
            "a:+1",
            "a:b",
            "a b:1",
            "0.0.0.0:1",
            "[::]:1",
            "224.0.0.1:1",
            "[a]:1",
            "::1:1",
            "[::1:1",
            "a/b:1",
        ] {
            assert_eq!(read(text), None, "{text}");
        }
    }

    #[test]
    fn a_notice_is_valid_while_its_process_holds_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("meeting");
        let (first, second) = ("127.0.0.1:1".parse().unwrap(), "127.0.0.1:2".parse().unwrap());
        assert_eq!(read_notice(&path), Err("not there"));
        let notice = Notice::post(&path, first).unwrap();
        assert_eq!(read_notice(&path), Ok(first));
        let newer = Notice::post(&path, second).unwrap();
        drop(notice);
        assert_eq!(read_notice(&path), Ok(second));
        // As a process does that is killed: the lock goes, the file stays.
        flock(&newer.file, FlockOperation::Unlock).unwrap();
        assert_eq!(read_notice(&path), Err("left over from a process that has ended"));
        drop(newer);
        assert_eq!(read_notice(&path), Err("not there"));
        assert_eq!(folder.path().read_dir().unwrap().count(), 0);
    }

    #[test]
    fn a_runtime_folder_of_another_user_is_left_alone() {
        let (other, own) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let user = rustix::process::geteuid().as_raw();
        // The superuser may give a folder away; to all others, that of the root is another user's.
        let given = std::os::unix::fs::chown(other.path(), Some(user ^ 65_534), None).is_ok();
        let runtime = if given { other.path() } else { Path::new("/") };
        if runtime.metadata().unwrap().uid() == user {
            return eprintln!(
                "SKIPPED: a runtime folder of another user, because this user has / and may give nothing away"
            );
        }
        let variable = |name: &str| match name {
            "XDG_RUNTIME_DIR" => Some(OsString::from(runtime)),
            "TMPDIR" => Some(OsString::from(own.path())),
            _ => None,
        };
        let Meeting::ThisHost(path) = on_this_host(&Environment(&variable), "one").unwrap() else { panic!() };
        assert_eq!(path.parent(), Some(&*own.path().join(format!("fulmen-{user}"))));
    }

    #[test]
    fn a_meeting_place_is_the_users_alone() {
        let folder = tempfile::tempdir().unwrap();
        let runtime = OsString::from(folder.path());
        let place =
            |job: &str| on_this_host(&Environment(&|name| (name == "XDG_RUNTIME_DIR").then(|| runtime.clone())), job);
        let one = place("one").unwrap();
        assert_eq!(one, place("one").unwrap());
        assert_ne!(one, place("two").unwrap());
        std::fs::set_permissions(folder.path().join("fulmen"), std::fs::Permissions::from_mode(0o755)).unwrap();
        let said = place("one").unwrap_err().to_string();
        for part in ["remove it", "only this user", "FULMEN_COORDINATOR"] {
            assert!(said.contains(part), "{part}: {said}");
        }
        std::fs::remove_dir(folder.path().join("fulmen")).unwrap();
        std::os::unix::fs::symlink("/tmp", folder.path().join("fulmen")).unwrap();
        assert!(place("one").is_err());
    }

    fn joining(rank: u32, secret: &Secret, deadline: Duration) -> Joining<'_> {
        Joining { rank, size: 2, secret, deadline, silence: Duration::from_secs(10) }
    }

    #[test]
    fn ranks_meet_in_either_order_and_rank_zero_waits_for_the_last() {
        let folder = tempfile::tempdir().unwrap();
        let secret = Secret::generate().unwrap();
        let path = folder.path().join("meeting");
        let here = Meeting::ThisHost(path.clone());
        thread::scope(|scope| {
            let one = scope.spawn(|| {
                let session = joining(1, &secret, LONG).at(&here).unwrap();
                session.barrier(LONG).unwrap();
                // Rank 0 has said goodbye and leads nobody there any more, and the coordinator is still there.
                let state = wait_until(after(LONG), || read_notice(&path).map_or_else(Ok, Err));
                assert_eq!(state, Ok("not there"));
                thread::sleep(Duration::from_millis(300));
                assert_eq!(session.lost(), None);
            });
            thread::sleep(Duration::from_millis(50));
            let zero = joining(0, &secret, LONG).at(&here).unwrap();
            zero.barrier(LONG).unwrap();
            drop(zero);
            one.join().unwrap();
        });
        assert_eq!(folder.path().read_dir().unwrap().count(), 0);
    }

    /// A program and then another one with the same variables, whose rank 1 is quick and whose rank 0 is slow.
    fn one_after_the_other(meeting: &Meeting) {
        let secret = Secret::generate().unwrap();
        let join = |rank| joining(rank, &secret, LONG).at(meeting).unwrap();
        let quick = || join(1).generation();
        let slow = || {
            let session = join(0);
            // Rank 1 leaves and comes again.
            thread::sleep(Duration::from_millis(300));
            session.generation()
        };
        thread::scope(|scope| {
            let quick = scope.spawn(|| [quick(), quick(), quick()]);
            let slow = [slow(), slow(), slow()];
            assert_eq!(quick.join().unwrap(), slow);
            assert!(slow[0] != slow[1] && slow[1] != slow[2]);
        });
    }

    #[test]
    fn programs_one_after_the_other_meet_apart() {
        let folder = tempfile::tempdir().unwrap();
        one_after_the_other(&Meeting::ThisHost(folder.path().join("meeting")));
        let is_free = |port: &u16| std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, *port)).is_ok();
        let port = (10_000 + (std::process::id() % 9_000) as u16..20_000).find(is_free).unwrap();
        one_after_the_other(&Meeting::RankZero(Address::new("127.0.0.1", port).unwrap()));
    }

    #[test]
    fn a_rank_does_not_hold_on_to_a_coordinator_that_is_gone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("meeting");
        let secret = Secret::generate().unwrap();
        // Nobody serves at this port.
        let _gone = Notice::post(&path, "127.0.0.1:1".parse().unwrap()).unwrap();
        let here = Meeting::ThisHost(path);
        thread::scope(|scope| {
            let one = scope.spawn(|| joining(1, &secret, LONG).at(&here).unwrap().generation());
            thread::sleep(Duration::from_millis(50));
            let zero = joining(0, &secret, LONG).at(&here).unwrap();
            assert_eq!(one.join().unwrap(), zero.generation());
        });
    }

    #[test]
    fn a_world_that_does_not_end_is_named_at_the_deadline() {
        let folder = tempfile::tempdir().unwrap();
        let secret = Secret::generate().unwrap();
        let here = Meeting::ThisHost(folder.path().join("meeting"));
        thread::scope(|scope| {
            let one = scope.spawn(|| drop(joining(1, &secret, LONG).at(&here).unwrap()));
            let zero = joining(0, &secret, LONG).at(&here).unwrap();
            one.join().unwrap();
            let error = joining(1, &secret, Duration::from_millis(500)).at(&here).unwrap_err();
            assert!(matches!(error, JoinError::RankLeft { rank: 1 } | JoinError::Unreachable { .. }), "{error}");
            drop(zero);
        });
    }

    #[test]
    fn whoever_finds_nobody_says_where_it_looked() {
        let folder = tempfile::tempdir().unwrap();
        let secret = Secret::generate().unwrap();
        let nowhere = Meeting::ThisHost(folder.path().join("meeting"));
        let said = joining(1, &secret, Duration::from_millis(20)).at(&nowhere).unwrap_err().to_string();
        assert!(said.contains("rank 0") && said.contains("not there") && said.contains("FULMEN_COORDINATOR"), "{said}");
        let elsewhere = Meeting::RankZero(Address::new("192.0.2.1", 7117).unwrap());
        let error = joining(0, &secret, LONG).at(&elsewhere).unwrap_err();
        assert!(matches!(error, JoinError::Bind(BindError::NotOurs(_))), "{error}");
        let unnamed = Meeting::RankZero(Address::new("no-such-host.invalid", 7117).unwrap());
        for rank in [0, 1] {
            let error = joining(rank, &secret, Duration::from_millis(20)).at(&unnamed).unwrap_err();
            assert!(matches!(&error, JoinError::Unresolved { host, .. } if host == "no-such-host.invalid"), "{error}");
        }
    }

    proptest! {
        #[test]
        fn no_address_is_too_strange(text in ".{0,40}") {
            if let Some(address) = Address::parse(&text) {
                prop_assert_eq!(Address::parse(&address.to_string()), Some(address));
            }
        }
    }
}
