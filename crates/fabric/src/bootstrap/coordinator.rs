//! The coordinator as its owner sees it: an address, options, events, and a handle that ends it.

use std::fmt;
use std::io;
use std::net::{Shutdown, SocketAddr, TcpListener};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use fulmen_trust::{Authority, Identity};

use super::message::{Failure, Formed, LostRank, Refusal};
use super::secret::{Secret, SecretError, random};
use super::server::Server;
use super::world::World;
use super::{GREETING_TIMEOUT, Heartbeat, MAX_RANKS};

/// A coordinator that has its address and does not serve yet. Ranks that come meanwhile wait.
#[derive(Debug)]
pub struct Coordinator {
    listener: TcpListener,
    address: SocketAddr,
    world: World,
    identity: Identity,
    options: Options,
}

/// Told about everything that happens in a coordinator's world.
pub type OnEvent = Arc<dyn Fn(&Event) + Send + Sync>;

/// How a coordinator serves.
#[derive(Clone)]
pub struct Options {
    /// How long a connection may take to greet, prove itself and ask for its seat; [`GREETING_TIMEOUT`] by default.
    pub greeting: Duration,
    /// How connections that stopped without hanging up are found.
    pub heartbeat: Heartbeat,
    /// Called on the coordinator's thread: it serves nobody until the call returns.
    pub on_event: Option<OnEvent>,
    /// The rank in whose process the coordinator serves, if it does: it ends with that process, so ranks that lose the
    /// coordinator count that rank as lost. Then no process takes the place of a rank that has left, nor any place once this
    /// rank has left: it belongs to the next world at this address.
    pub ends_with: Option<u32>,
}

/// What happens in a coordinator's world. Ranks are those of the launch, but in a [`Failure`] those of its generation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// A rank took its seat.
    Joined {
        /// Its rank.
        rank: u32,
        /// Its process id.
        pid: u32,
    },
    /// All seats are taken.
    Complete,
    /// A connection was refused; the others are served on.
    Refused {
        /// Where it came from.
        from: SocketAddr,
        /// Why.
        refusal: Refusal,
    },
    /// A rank's connection ended without a goodbye.
    Lost(LostRank),
    /// A rank said goodbye.
    Left {
        /// Its rank.
        rank: u32,
    },
    /// The generation can finish no further round.
    Failed(Failure),
    /// A process came for the seat of one that was lost, left or was cut off, and waits for the others to ask for it.
    Waits {
        /// Its rank.
        rank: u32,
        /// Its process id.
        pid: u32,
    },
    /// There is a new generation.
    Formed(Formed),
}

/// Why a coordinator could not take its address.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BindError {
    /// The world's size is impossible.
    #[error("a world of {0} ranks is impossible: choose 1 to {max}", max = MAX_RANKS)]
    Size(u32),
    /// The address is not on this host.
    #[error("{ip} is no address of this host: the coordinator is served where rank 0 runs, so name one of that host's", ip = .0.ip())]
    NotOurs(SocketAddr),
    /// Another process has the port.
    #[error("port {port} of {ip} is in use: choose another one, or 0 for any free port", port = .0.port(), ip = .0.ip())]
    PortInUse(SocketAddr),
    /// The system refuses the port to this user.
    #[error("port {port} of {ip} is not allowed to this user: choose one above 1023, or 0 for any free port", port = .0.port(), ip = .0.ip())]
    NotAllowed(SocketAddr),
    /// The heartbeat's times are impossible.
    #[error(
        "a heartbeat every {every:?} that is lost after {silence:?} is impossible: silence must be longer, and the beat at least 1 ms"
    )]
    Heartbeat {
        /// How often.
        every: Duration,
        /// How long a silence.
        silence: Duration,
    },
    /// No randomness.
    #[error(transparent)]
    Secret(#[from] SecretError),
    /// No keys to be known by.
    #[error("{0}")]
    Keys(String),
    /// Anything else.
    #[error("cannot listen on {address}: {cause}")]
    System {
        /// The address.
        address: SocketAddr,
        /// What the system said.
        cause: String,
    },
}

/// Why a coordinator could not begin to serve.
#[derive(Debug, thiserror::Error)]
#[error("cannot start the coordinator's thread ({0}): check the limits on processes and open files")]
pub struct ServeError(#[from] io::Error);

impl Coordinator {
    /// Takes an address for a world of `size` ranks. Port 0 takes any free port; [`Coordinator::local_addr`] tells which.
    ///
    /// The address may be one that other hosts reach, or all of this host's (`0.0.0.0`, `[::]`): whoever holds the secret is let
    /// in and nobody else, and nobody between can read or change what is said.
    pub fn bind(address: SocketAddr, size: u32, secret: Secret, options: Options) -> Result<Coordinator, BindError> {
        if !(1..=MAX_RANKS).contains(&size) {
            return Err(BindError::Size(size));
        }
        let Heartbeat { every, silence } = options.heartbeat;
        if every < Duration::from_millis(1) || silence <= every {
            return Err(BindError::Heartbeat { every, silence });
        }
        let world = World::new(size, random()?).ending_with(options.ends_with);
        let named = |authority: Authority| authority.identity(&format!("the coordinator, pid {}", std::process::id()));
        let identity = secret.authority().and_then(named).map_err(|error| BindError::Keys(error.to_string()))?;
        let system = |error: io::Error| match error.kind() {
            io::ErrorKind::AddrInUse => BindError::PortInUse(address),
            io::ErrorKind::PermissionDenied => BindError::NotAllowed(address),
            io::ErrorKind::AddrNotAvailable => BindError::NotOurs(address),
            _ => BindError::System { address, cause: error.to_string() },
        };
        let listener = TcpListener::bind(address).map_err(system)?;
        listener.set_nonblocking(true).map_err(system)?;
        let address = listener.local_addr().map_err(system)?;
        Ok(Coordinator { listener, address, world, identity, options })
    }

    /// Where ranks find it.
    pub fn local_addr(&self) -> SocketAddr {
        self.address
    }

    /// The first generation of its world.
    pub fn generation(&self) -> u64 {
        self.world.generation()
    }

    /// Begins to serve, on a thread of its own, until the result is dropped.
    pub fn serve(self) -> Result<Serving, ServeError> {
        let (stop, stopped) = UnixStream::pair()?;
        let address = self.address;
        let generation = self.world.generation();
        let seated = Arc::new(Seated::default());
        let server = Server::new(self.listener, self.world, self.identity, self.options, seated.clone());
        let thread = thread::Builder::new().name("fulmen-coord".into()).spawn(move || server.run(&stopped))?;
        Ok(Serving { address, generation, stop, seated, thread: Some(thread) })
    }
}

/// A coordinator at work. Dropping it closes all connections: ranks that still need it are told that it was lost.
#[derive(Debug)]
pub struct Serving {
    address: SocketAddr,
    generation: u64,
    stop: UnixStream,
    seated: Arc<Seated>,
    thread: Option<JoinHandle<()>>,
}

/// How many ranks are connected.
#[derive(Debug, Default)]
pub(super) struct Seated {
    count: Mutex<usize>,
    changed: Condvar,
}

impl Seated {
    pub fn set(&self, count: usize) {
        let before = std::mem::replace(&mut *self.count.lock().unwrap_or_else(PoisonError::into_inner), count);
        if before != count {
            self.changed.notify_all();
        }
    }
}

impl Serving {
    /// Where ranks find it.
    pub fn local_addr(&self) -> SocketAddr {
        self.address
    }

    /// The first generation of its world.
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// Waits until no rank is connected, or for `time`; true if none is.
    pub fn wait_until_empty(&self, time: Duration) -> bool {
        let count = self.seated.count.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.seated.changed.wait_timeout_while(count, time, |count| *count > 0);
        *waited.unwrap_or_else(PoisonError::into_inner).0 == 0
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        // The thread looks at its end of the pair in every turn and waits for nothing else, save an event's callback.
        let _ = self.stop.shutdown(Shutdown::Both);
        if let Some(thread) = self.thread.take()
            && thread.thread().id() != thread::current().id()
        {
            let _ = thread.join();
        }
    }
}

impl Default for Options {
    fn default() -> Options {
        Options { greeting: GREETING_TIMEOUT, heartbeat: Heartbeat::default(), on_event: None, ends_with: None }
    }
}

impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let told = self.on_event.is_some();
        f.debug_struct("Options")
            .field("greeting", &self.greeting)
            .field("heartbeat", &self.heartbeat)
            .field("on_event", &told)
            .field("ends_with", &self.ends_with)
            .finish()
    }
}
