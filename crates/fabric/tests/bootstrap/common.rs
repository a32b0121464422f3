//! Worlds to test with, and ranks that are not what they should be.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::{Command, Stdio};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use fulmen_fabric::bootstrap::{
    Coordinator, Event, Heartbeat, JoinConfig, JoinError, Options, PROTOCOL_VERSION, Refusal, Regroup, RegroupError,
    Secret, Serving, Session, SessionError,
};
use fulmen_fabric::launch::{Launch, Meeting};
use fulmen_trust::{Identity, Protocol, Sealed};

/// A deadline that does not pass in a test that succeeds.
pub const LONG: Duration = Duration::from_secs(60);

/// Any free port.
pub fn any_port() -> SocketAddr {
    "127.0.0.1:0".parse().unwrap()
}

/// A coordinator with everything that happened to it.
pub struct World {
    serving: Option<Serving>,
    address: SocketAddr,
    size: u32,
    secret: Secret,
    log: Arc<Log>,
}

#[derive(Default)]
struct Log {
    events: Mutex<Vec<Event>>,
    changed: Condvar,
}

impl World {
    pub fn start(size: u32) -> World {
        // A process that a busy machine does not run for some seconds is not to be taken for a dead one.
        let heartbeat = Heartbeat { silence: Duration::from_secs(600), ..Heartbeat::default() };
        World::start_with(size, Options { heartbeat, ..Options::default() })
    }

    pub fn start_with(size: u32, options: Options) -> World {
        let log = Arc::new(Log::default());
        let writer = log.clone();
        let on_event = Arc::new(move |event: &Event| {
            writer.events.lock().unwrap().push(event.clone());
            writer.changed.notify_all();
        });
        let secret = Secret::generate().unwrap();
        let options = Options { on_event: Some(on_event), ..options };
        let coordinator = Coordinator::bind(any_port(), size, secret.clone(), options).unwrap();
        let serving = coordinator.serve().unwrap();
        World { address: serving.local_addr(), serving: Some(serving), size, secret, log }
    }

    pub fn serving(&self) -> &Serving {
        self.serving.as_ref().unwrap()
    }

    pub fn take_serving(&mut self) -> Serving {
        self.serving.take().unwrap()
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    pub fn config(&self, rank: u32) -> JoinConfig {
        JoinConfig { coordinator: self.address, rank, size: self.size, secret: self.secret.clone(), deadline: LONG }
    }

    pub fn join(&self, rank: u32) -> Result<Session, JoinError> {
        Session::join(&self.config(rank))
    }

    /// Runs all ranks as threads; returns what they return, by rank.
    pub fn run<T: Send>(&self, rank: impl Fn(Session) -> T + Sync) -> Vec<T> {
        thread::scope(|scope| {
            let body = &rank;
            let ranks: Vec<_> =
                (0..self.size).map(|rank| scope.spawn(move || body(self.join(rank).unwrap()))).collect();
            ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
        })
    }

    /// A connection that has said nothing yet. What it reads is bounded in time.
    pub fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(LONG)).unwrap();
        stream
    }

    /// Waits for an event, past ones included.
    pub fn wait_for(&self, wanted: impl Fn(&Event) -> bool) {
        let events = self.log.events.lock().unwrap();
        let (events, _) =
            self.log.changed.wait_timeout_while(events, LONG, |events| !events.iter().any(&wanted)).unwrap();
        assert!(events.iter().any(&wanted), "the event did not come: {events:?}");
    }

    /// Waits for a refusal and takes it out of the log.
    pub fn next_refusal(&self) -> Refusal {
        let at = |events: &Vec<Event>| events.iter().position(|event| matches!(event, Event::Refused { .. }));
        let events = self.log.events.lock().unwrap();
        let (mut events, _) = self.log.changed.wait_timeout_while(events, LONG, |events| at(events).is_none()).unwrap();
        let at = at(&events).expect("a refusal");
        let Event::Refused { refusal, .. } = events.remove(at) else { unreachable!() };
        refusal
    }
}

/// Says the plain words that come before the seal.
pub fn greet_as_rank(stream: &mut TcpStream) {
    stream.write_all(&hello(PROTOCOL_VERSION, 0)).unwrap();
    let mut theirs = [0; 40];
    stream.read_exact(&mut theirs).unwrap();
    assert_eq!(theirs[..], hello(PROTOCOL_VERSION, 0));
}

/// The protocol's bytes, written down a second time so that a change of either side shows.
pub fn hello(version: u16, verdict: u16) -> Vec<u8> {
    [b"FULM", &version.to_le_bytes()[..], &verdict.to_le_bytes(), &[0; 32]].concat()
}

pub fn frame(message: &[u8], body: &[u8]) -> Vec<u8> {
    [&(message.len() as u32).to_le_bytes()[..], &(body.len() as u32).to_le_bytes(), message, body].concat()
}

/// What the seal is for.
pub const CONTROL: Protocol = Protocol(b"fulmen-control/5");

fn identity(secret: &Secret) -> Identity {
    secret.authority().unwrap().identity("a test").unwrap()
}

pub fn greet_as_coordinator(mut stream: TcpStream, secret: &Secret) -> Raw {
    let mut theirs = [0; 40];
    stream.read_exact(&mut theirs).unwrap();
    assert_eq!(theirs[..], hello(PROTOCOL_VERSION, 0));
    stream.write_all(&hello(PROTOCOL_VERSION, 0)).unwrap();
    Raw { sealed: identity(secret).accept(stream, CONTROL, Instant::now() + LONG).unwrap() }
}

/// A rank, or a coordinator, that holds the secret and does only what it is told.
pub struct Raw {
    pub sealed: Sealed,
}

impl Raw {
    pub fn greet(world: &World) -> Raw {
        Raw::greet_at(world.connect(), &world.secret)
    }

    fn greet_at(mut stream: TcpStream, secret: &Secret) -> Raw {
        greet_as_rank(&mut stream);
        Raw { sealed: identity(secret).connect(stream, CONTROL, Instant::now() + LONG).unwrap() }
    }

    pub fn write(&self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            bytes = &bytes[self.sealed.write(bytes, LONG).unwrap()..];
        }
    }

    fn read_exact(&self, into: &mut [u8]) {
        let mut filled = 0;
        while filled < into.len() {
            let count = self.sealed.read(&mut into[filled..], LONG).unwrap();
            assert_ne!(count, 0, "it ended after {filled} bytes");
            filled += count;
        }
    }

    /// All that comes until the other side ends it.
    pub fn read_to_end(&self) -> Vec<u8> {
        let mut all = Vec::new();
        let mut piece = [0; 4096];
        loop {
            match self.sealed.read(&mut piece, LONG) {
                Ok(0) => return all,
                Ok(count) => all.extend_from_slice(&piece[..count]),
                Err(error) if error.kind() == std::io::ErrorKind::TimedOut => panic!("it did not end"),
                Err(_) => return all,
            }
        }
    }

    /// Takes a seat. Ranks, sizes and process ids below 128 are one byte each.
    pub fn join(world: &World, rank: u8, size: u8) -> Raw {
        let mut raw = Raw::greet(world);
        raw.send(&[0, rank, size, 77, 0], &[]);
        world.wait_for(|event| *event == Event::Joined { rank: u32::from(rank), pid: 77 });
        raw
    }

    pub fn send(&mut self, message: &[u8], body: &[u8]) {
        self.write(&frame(message, body));
    }

    /// The next message; none of those that come here has a body.
    pub fn next(&mut self) -> Vec<u8> {
        let mut header = [0; 8];
        self.read_exact(&mut header);
        let [a, b, c, d, 0, 0, 0, 0] = header else { panic!("a body: {header:?}") };
        let mut message = vec![0; u32::from_le_bytes([a, b, c, d]) as usize];
        self.read_exact(&mut message);
        message
    }
}

/// A number as postcard writes it.
pub fn varint(mut number: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    while number >= 0x80 {
        bytes.push(number as u8 | 0x80);
        number >>= 7;
    }
    bytes.push(number as u8);
    bytes
}

/// A rank that is a process of its own. It ends with this value.
pub struct Child(std::process::Child);

const CHILD: &str = "FULMEN_TEST_CHILD_RANK";

/// What a child does once it has joined.
#[derive(Clone, Copy)]
pub enum Role {
    /// It gathers once and waits to be killed.
    Gather,
    /// It hangs up without a goodbye and lives on.
    HangUp,
    /// It gathers once, and when it finds itself lost, it asks for everybody and gathers again.
    ComeBack,
}

impl Child {
    pub fn start(world: &World, rank: u32) -> Child {
        Child::start_as(world, rank, Role::Gather)
    }

    pub fn start_as(world: &World, rank: u32, role: Role) -> Child {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "losses::child_rank", "--nocapture"])
            .env(CHILD, (role as u8).to_string())
            .env("FULMEN_RANK", rank.to_string())
            .env("FULMEN_SIZE", world.size.to_string())
            .env("FULMEN_COORDINATOR", world.address.to_string())
            .env("FULMEN_SECRET_FD", "0")
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        child.stdin.take().unwrap().write_all(world.secret.to_hex().as_bytes()).unwrap();
        Child(child)
    }

    pub fn pid(&self) -> u32 {
        self.0.id()
    }

    pub fn kill(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }

    pub fn signal(&self, signal: rustix::process::Signal) {
        rustix::process::kill_process(rustix::process::Pid::from_child(&self.0), signal).unwrap();
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

pub fn is_child() -> bool {
    std::env::var_os(CHILD).is_some()
}

pub fn child_role() {
    // Should the parent be killed, this process must not outlive it.
    #[cfg(target_os = "linux")]
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL)).unwrap();
    let launch = Launch::from_env().unwrap();
    let role = std::env::var(CHILD).unwrap();
    if role == (Role::HangUp as u8).to_string() {
        hang_up(&launch);
    } else if let Ok(session) = launch.join(LONG) {
        let mine = [session.rank() as u8];
        let _ = session.all_gather(&mine, LONG);
        if role == (Role::ComeBack as u8).to_string() {
            let error = session.barrier(LONG).unwrap_err();
            assert!(matches!(error, SessionError::PeerLost { rank, .. } if rank == session.rank()), "{error}");
            let error = session.regroup(Regroup::Survivors, LONG).unwrap_err();
            assert!(matches!(error, RegroupError::Partitioned { .. }), "{error}");
            let session = session.regroup(Regroup::Everybody, LONG).unwrap();
            session.all_gather(&mine, LONG).unwrap();
            thread::park_timeout(LONG);
        }
        thread::park_timeout(LONG);
    }
}

/// Among whose processes this one has its id.
fn pids() -> u64 {
    let link = std::fs::read_link("/proc/self/ns/pid").unwrap_or_else(|_| "0".into());
    let namespace: u64 = link.to_str().unwrap().trim_matches(|letter: char| !letter.is_ascii_digit()).parse().unwrap();
    let mut hasher = blake3::Hasher::new();
    hasher.update(&fulmen_reach::this_host().unwrap()).update(&namespace.to_le_bytes());
    u64::from_le_bytes(*hasher.finalize().as_bytes().first_chunk().unwrap())
}

fn hang_up(launch: &Launch) {
    let Launch::Rank { rank, size, meeting: Meeting::Launcher(coordinator), secret, .. } = launch else {
        panic!("not launched by a test")
    };
    let mut raw = Raw::greet_at(TcpStream::connect(coordinator).unwrap(), secret);
    let pid = varint(u64::from(std::process::id()));
    raw.send(&[&[0, *rank as u8, *size as u8], &pid[..], &[1], &varint(pids())].concat(), &[]);
    // All have come.
    while raw.next() != [2] {}
    drop(raw);
    thread::park_timeout(LONG);
}
