//! A device that says or does something else than the one below it.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::{Arc, LazyLock, Mutex};

use fulmen_memory::Region;
use fulmen_verbs::{
    Access, CompletionChannel, CompletionQueue, Device, DeviceInfo, Gid, GidEntry, MemoryRegion, PortInfo, PostError,
    ProtectionDomain, QueuePair, QueuePairInit, QueuePairKind, QueuePairLimits, QueuePairState, RecvRequest,
    SendRequest, Transition, VerbsError,
};

/// What becomes of something: what it is given is what the device below says or is asked for.
type Hook<T> = Box<dyn Fn(T) -> Result<T, VerbsError> + Send + Sync>;

/// The addresses of devices below, by those that they are said to have.
static ALIASES: LazyLock<Mutex<HashMap<Gid, Gid>>> = LazyLock::new(Mutex::default);

/// See the [module](self). The device below has one port and one address; all ports are that one, all addresses too.
pub struct Scripted {
    inner: Arc<dyn Device>,
    info: DeviceInfo,
    port: Hook<PortInfo>,
    gids: Box<dyn Fn(u8, GidEntry) -> Vec<GidEntry> + Send + Sync>,
    domain: Hook<()>,
    pairs: Arc<Pairs>,
}

struct Pairs {
    kind: Hook<QueuePairKind>,
    step: Hook<Transition>,
    number: Box<dyn Fn(u32) -> u32 + Send + Sync>,
    register: Hook<Access>,
    room: Box<dyn Fn(Queue, u32) -> u32 + Send + Sync>,
}

/// A queue of a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Queue {
    Send,
    Receive,
}

impl Scripted {
    /// Like the device below, until something else is said.
    pub fn over(inner: Arc<dyn Device>) -> Scripted {
        let info = inner.info().clone();
        let pairs = Arc::new(Pairs {
            kind: Box::new(Ok),
            step: Box::new(Ok),
            number: Box::new(|number| number),
            register: Box::new(Ok),
            room: Box::new(|_, asked| asked),
        });
        Scripted { inner, info, port: Box::new(Ok), gids: Box::new(|_, own| vec![own]), domain: Box::new(Ok), pairs }
    }

    /// What it is and can do.
    pub fn info(mut self, change: impl FnOnce(&mut DeviceInfo)) -> Scripted {
        change(&mut self.info);
        self
    }

    /// How a port is, each time that it is asked for.
    pub fn port(mut self, hook: impl Fn(&mut PortInfo) + Send + Sync + 'static) -> Scripted {
        self.port = Box::new(move |mut port| {
            hook(&mut port);
            Ok(port)
        });
        self
    }

    /// The table of a port, made of the entry that there is.
    pub fn gids(mut self, hook: impl Fn(u8, GidEntry) -> Vec<GidEntry> + Send + Sync + 'static) -> Scripted {
        self.gids = Box::new(hook);
        self
    }

    /// Whether there is room for a protection domain.
    pub fn domain(mut self, hook: impl Fn() -> Result<(), VerbsError> + Send + Sync + 'static) -> Scripted {
        self.domain = Box::new(move |()| hook());
        self
    }

    fn pairs(&mut self) -> &mut Pairs {
        Arc::get_mut(&mut self.pairs).expect("nothing was made of it yet")
    }

    /// Whether a queue pair is made.
    pub fn kind(
        mut self,
        hook: impl Fn(QueuePairKind) -> Result<QueuePairKind, VerbsError> + Send + Sync + 'static,
    ) -> Scripted {
        self.pairs().kind = Box::new(hook);
        self
    }

    /// What becomes of a change of state.
    pub fn step(mut self, hook: impl Fn(&Transition) -> Result<(), VerbsError> + Send + Sync + 'static) -> Scripted {
        self.pairs().step = Box::new(move |step| hook(&step).map(|()| step));
        self
    }

    /// The number that a queue pair is said to have.
    pub fn number(mut self, hook: impl Fn(u32) -> u32 + Send + Sync + 'static) -> Scripted {
        self.pairs().number = Box::new(hook);
        self
    }

    /// Whether memory is registered for this access.
    pub fn register(mut self, hook: impl Fn(Access) -> Result<(), VerbsError> + Send + Sync + 'static) -> Scripted {
        self.pairs().register = Box::new(move |access| hook(access).map(|()| access));
        self
    }

    /// What a queue has room for, which reports the depth that was asked for.
    pub fn room(mut self, hook: impl Fn(Queue, u32) -> u32 + Send + Sync + 'static) -> Scripted {
        self.pairs().room = Box::new(hook);
        self
    }

    pub fn device(self) -> Arc<dyn Device> {
        Arc::new(self)
    }
}

impl Device for Scripted {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn port(&self, number: u8) -> Result<PortInfo, VerbsError> {
        (self.port)(PortInfo { number, ..self.inner.port(1)? })
    }

    fn gid_table(&self, port: u8) -> Result<Vec<GidEntry>, VerbsError> {
        let own = self.inner.gid_table(1)?[0];
        let table = (self.gids)(port, own);
        ALIASES.lock().unwrap().extend(table.iter().map(|entry| (entry.gid, own.gid)));
        Ok(table)
    }

    fn alloc_pd(&self) -> Result<Arc<dyn ProtectionDomain>, VerbsError> {
        (self.domain)(())?;
        Ok(Arc::new(Domain { inner: self.inner.alloc_pd()?, pairs: self.pairs.clone() }))
    }

    fn create_cq(
        &self,
        entries: u32,
        channel: Option<&Arc<dyn CompletionChannel>>,
    ) -> Result<Arc<dyn CompletionQueue>, VerbsError> {
        self.inner.create_cq(entries, channel)
    }

    fn create_channel(&self) -> Result<Arc<dyn CompletionChannel>, VerbsError> {
        self.inner.create_channel()
    }
}

struct Domain {
    inner: Arc<dyn ProtectionDomain>,
    pairs: Arc<Pairs>,
}

impl ProtectionDomain for Domain {
    fn register(
        &self,
        region: &Region,
        range: Range<usize>,
        access: Access,
    ) -> Result<Arc<dyn MemoryRegion>, VerbsError> {
        (self.pairs.register)(access)?;
        self.inner.register(region, range, access)
    }

    fn create_qp(&self, init: &QueuePairInit) -> Result<Arc<dyn QueuePair>, VerbsError> {
        (self.pairs.kind)(init.kind)?;
        let (asked, room) = (init.limits, &self.pairs.room);
        let (sends, receives) = (room(Queue::Send, asked.send_depth), room(Queue::Receive, asked.recv_depth));
        let limits = QueuePairLimits { send_depth: sends.max(1), recv_depth: receives.max(1), ..asked };
        let inner = self.inner.create_qp(&QueuePairInit { limits, ..init.clone() })?;
        Ok(Arc::new(Pair { inner, pairs: self.pairs.clone(), asked, rooms: (sends, receives) }))
    }
}

struct Pair {
    inner: Arc<dyn QueuePair>,
    pairs: Arc<Pairs>,
    asked: QueuePairLimits,
    rooms: (u32, u32),
}

impl Pair {
    fn check(&self, queue: &'static str, room: u32) -> Result<(), PostError> {
        if room > 0 {
            return Ok(());
        }
        let cause = VerbsError::QueueFull { queue, qp_num: self.qp_num(), depth: 0 };
        Err(PostError { index: 0, cause })
    }
}

impl QueuePair for Pair {
    fn qp_num(&self) -> u32 {
        (self.pairs.number)(self.inner.qp_num())
    }

    fn state(&self) -> QueuePairState {
        self.inner.state()
    }

    fn limits(&self) -> QueuePairLimits {
        let (given, asked) = (self.inner.limits(), self.asked);
        QueuePairLimits {
            send_depth: given.send_depth.max(asked.send_depth),
            recv_depth: given.recv_depth.max(asked.recv_depth),
            ..given
        }
    }

    fn modify(&self, transition: &Transition) -> Result<(), VerbsError> {
        let mut step = (self.pairs.step)(*transition)?;
        match &mut step {
            Transition::Init { port, .. } => *port = 1,
            Transition::ReadyToReceive { path, .. } => {
                path.local_gid_index = 0;
                path.remote_gid = *ALIASES.lock().unwrap().get(&path.remote_gid).unwrap_or(&path.remote_gid);
            }
            _ => {}
        }
        self.inner.modify(&step)
    }

    fn post_send(&self, requests: &[SendRequest]) -> Result<(), PostError> {
        self.check("send", self.rooms.0)?;
        self.inner.post_send(requests)
    }

    fn post_recv(&self, requests: &[RecvRequest]) -> Result<(), PostError> {
        self.check("receive", self.rooms.1)?;
        self.inner.post_recv(requests)
    }
}
