use std::any::Any;
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

use fulmen_memory::Region;

use crate::{
    Access, AddressPath, Carrier, Completion, DeviceInfo, GidEntry, PortInfo, PostError, QueuePairInit,
    QueuePairLimits, QueuePairState, RecvRequest, SendRequest, Transition, VerbsError,
};

/// An RDMA device, opened.
///
/// Everything made from it keeps what it is made of alive, so that objects can be dropped in any order.
pub trait Device: Send + Sync {
    /// What it is and can do.
    fn info(&self) -> &DeviceInfo;

    /// A port's state now.
    ///
    /// # Errors
    /// [`VerbsError::Invalid`] if there is no such port.
    fn port(&self, number: u8) -> Result<PortInfo, VerbsError>;

    /// A port's GID table, without its empty entries.
    ///
    /// # Errors
    /// [`VerbsError::Invalid`] if there is no such port.
    fn gid_table(&self, port: u8) -> Result<Vec<GidEntry>, VerbsError>;

    /// Makes a protection domain.
    ///
    /// # Errors
    /// [`VerbsError::Limit`] if the device has no more.
    fn alloc_pd(&self) -> Result<Arc<dyn ProtectionDomain>, VerbsError>;

    /// Makes a completion queue of at least `entries` entries, which tells `channel` about completions when asked to.
    ///
    /// # Errors
    /// [`VerbsError::Limit`] and [`VerbsError::Foreign`].
    fn create_cq(
        &self,
        entries: u32,
        channel: Option<&Arc<dyn CompletionChannel>>,
    ) -> Result<Arc<dyn CompletionQueue>, VerbsError>;

    /// Calls back for each asynchronous event of the device, from any thread. The callback must not wait, nor call the
    /// device or what was made of it; there is one, and a later one takes its place.
    ///
    /// # Errors
    /// [`VerbsError::Unsupported`] if the device tells of no events.
    fn on_event(&self, callback: Arc<dyn Fn(AsyncEvent) + Send + Sync>) -> Result<(), VerbsError> {
        drop(callback);
        Err(VerbsError::Unsupported { device: self.info().name.clone(), what: "asynchronous events" })
    }

    /// Makes a channel on which a thread can park.
    ///
    /// # Errors
    /// [`VerbsError::Unsupported`] if the device's channels cannot be waited on, [`VerbsError::System`].
    fn create_channel(&self) -> Result<Arc<dyn CompletionChannel>, VerbsError>;
}

/// What a device tells of that no completion does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum AsyncEvent {
    /// A queue pair went to ERR by itself, and no completion says why.
    QueuePairFatal {
        /// Its number.
        qp_num: u32,
    },
    /// The first message arrived at a queue pair in state RTR.
    Established {
        /// Its number.
        qp_num: u32,
    },
    /// A queue pair in ERR takes no more RECVs out of its shared receive queue.
    LastReceive {
        /// Its number.
        qp_num: u32,
    },
    /// A shared receive queue holds fewer requests than the limit that was armed.
    SharedReceiveLimit {
        /// [`SharedReceiveQueue::number`].
        number: u32,
    },
    /// A completion queue overflowed.
    CompletionQueueFatal {
        /// [`CompletionQueue::number`].
        number: u32,
    },
    /// A port came up.
    PortActive {
        /// The port, from 1.
        port: u8,
    },
    /// A port went down: its cable was pulled.
    PortError {
        /// The port, from 1.
        port: u8,
    },
    /// The device is gone.
    DeviceFatal,
}

/// A protection domain: queue pairs reach memory that is registered in the same domain only.
pub trait ProtectionDomain: Send + Sync {
    /// Registers a piece of a region: see [`Region::registrations`] for the pieces that the device can register.
    ///
    /// # Errors
    /// [`VerbsError::Limit`], [`VerbsError::Invalid`] for a range outside of the region, a piece that the device cannot
    /// register, or rights that make no sense.
    fn register(
        &self,
        region: &Region,
        range: Range<usize>,
        access: Access,
    ) -> Result<Arc<dyn MemoryRegion>, VerbsError>;

    /// Registers `len` bytes of a dma-buf, memory of another device such as a GPU, from byte `offset` on, which is whole
    /// pages ([`fulmen_memory::page_size`]). Peers and requests address it from 0.
    ///
    /// # Errors
    /// [`VerbsError::Unsupported`] if the device cannot, [`VerbsError::Invalid`] for an offset that is not whole pages or
    /// rights that make no sense, [`VerbsError::System`] if the system refuses.
    fn register_dma_buf(
        &self,
        fd: BorrowedFd<'_>,
        offset: u64,
        len: usize,
        access: Access,
    ) -> Result<Box<dyn DmaBufRegistration>, VerbsError> {
        let _ = (fd, offset, len, access);
        Err(VerbsError::Unsupported { device: "this device".to_owned(), what: "dma-buf registrations" })
    }

    /// Makes a queue pair in state RESET.
    ///
    /// # Errors
    /// [`VerbsError::Limit`], [`VerbsError::NoSuchKind`], [`VerbsError::Foreign`].
    fn create_qp(&self, init: &QueuePairInit) -> Result<Arc<dyn QueuePair>, VerbsError>;

    /// Makes a receive queue that queue pairs of this domain share, of `depth` requests of up to `pieces` pieces.
    ///
    /// # Errors
    /// [`VerbsError::Unsupported`] if the device has none, [`VerbsError::Limit`].
    fn create_srq(&self, depth: u32, pieces: u32) -> Result<Arc<dyn SharedReceiveQueue>, VerbsError> {
        let _ = (depth, pieces);
        Err(VerbsError::Unsupported { device: "this device".to_owned(), what: "shared receive queues" })
    }

    /// Makes an address handle: a port to which datagrams can go. It is not asked whether anybody is there.
    ///
    /// # Errors
    /// [`VerbsError::Unsupported`] if the device has no datagrams, [`VerbsError::Invalid`].
    fn create_ah(&self, path: &AddressPath) -> Result<Arc<dyn AddressHandle>, VerbsError> {
        let _ = path;
        Err(VerbsError::Unsupported { device: "this device".to_owned(), what: "address handles" })
    }
}

/// A port to which datagrams can go. Dropping it ends it: what was posted with it still goes out.
pub trait AddressHandle: Send + Sync {
    /// The number by which requests name it ([`Destination::handle`](crate::Destination::handle)).
    fn number(&self) -> u32;
}

/// A receive queue that several queue pairs share.
pub trait SharedReceiveQueue: Send + Sync {
    /// Posts to it, in order.
    ///
    /// # Errors
    /// [`PostError`] names the first request that was refused; those before it were posted.
    fn post_recv(&self, requests: &[RecvRequest]) -> Result<(), PostError>;

    /// Asks for one [`AsyncEvent::SharedReceiveLimit`] once fewer than `limit` requests are left; 0 asks for none.
    ///
    /// # Errors
    /// [`VerbsError::Limit`] if `limit` exceeds the depth.
    fn arm_limit(&self, limit: u32) -> Result<(), VerbsError>;

    /// The limit that is armed; 0 for none.
    fn limit(&self) -> u32;

    /// How many requests it holds at most.
    fn depth(&self) -> u32;

    /// How many pieces a request has at most.
    fn pieces(&self) -> u32;

    /// What events call it, unlike all others of its device.
    fn number(&self) -> u32;

    /// For the device that made it.
    fn as_any(&self) -> &dyn Any;
}

/// Registered memory. Dropping the last handle ends the registration: its keys are refused from then on, and never
/// given out again for other memory while the device is open.
pub trait MemoryRegion: Send + Sync {
    /// The region in which it lies.
    fn region(&self) -> &Region;
    /// The bytes of the region that it covers.
    fn range(&self) -> Range<usize>;
    /// What may be done to it.
    fn access(&self) -> Access;
    /// The key by which requests of this process name it.
    fn lkey(&self) -> u32;
    /// The key by which peers name it.
    fn rkey(&self) -> u32;
}

/// A registered dma-buf. Dropping it ends the registration.
pub trait DmaBufRegistration: Send + Sync {
    /// The key by which requests of this process name it.
    fn lkey(&self) -> u32;
    /// The key by which peers name it.
    fn rkey(&self) -> u32;
}

/// A completion queue.
pub trait CompletionQueue: Send + Sync {
    /// Moves completions into `into`, oldest first, and tells how many. Needs no system call while nothing happens, but
    /// for offering the processor to others once in many polls.
    ///
    /// # Errors
    /// [`VerbsError::Overflow`] once more completions have come than fit.
    fn poll(&self, into: &mut [Completion]) -> Result<usize, VerbsError>;

    /// Asks for one event on the queue's channel for the next completion (or the next solicited or failed one). A
    /// request for solicited ones does not weaken a pending request for any. Poll once more after asking: for a channel,
    /// completions that came before do not count.
    ///
    /// # Errors
    /// [`VerbsError::Invalid`] if the queue has no channel and no notifier.
    fn request_notify(&self, solicited_only: bool) -> Result<(), VerbsError>;

    /// How many entries it has.
    fn entries(&self) -> u32;

    /// Has `notifier` called for each event that [`CompletionQueue::request_notify`] asked for, instead of a channel,
    /// from any thread. It must not wait, nor call the queue. There is one, and a later one takes its place. From then
    /// on the device looks after the queue by itself while an event is asked for. Whoever asks after polling has it called
    /// at once for a completion that came in between: adapters do that, and programs that do not poll once more rely on
    /// it. Whoever asks first after an event, and polls then, is not called twice for what that poll finds.
    ///
    /// # Errors
    /// [`VerbsError::Unsupported`] if the device tells channels alone.
    fn set_notifier(&self, notifier: Arc<dyn Fn() + Send + Sync>) -> Result<(), VerbsError> {
        drop(notifier);
        Err(VerbsError::Unsupported { device: "this device".to_owned(), what: "notifiers of completion queues" })
    }

    /// Changes how many entries it has.
    ///
    /// # Errors
    /// [`VerbsError::Unsupported`], [`VerbsError::Limit`], and [`VerbsError::Invalid`] if more completions wait.
    fn resize(&self, entries: u32) -> Result<(), VerbsError> {
        let _ = entries;
        Err(VerbsError::Unsupported { device: "this device".to_owned(), what: "resizing of completion queues" })
    }

    /// What events call it, unlike all others of its device.
    fn number(&self) -> u32 {
        0
    }

    /// For the device that made it.
    fn as_any(&self) -> &dyn Any;
}

/// Where a thread parks until a completion queue has something.
pub trait CompletionChannel: Send + Sync {
    /// Waits for an event: the queue's [`CompletionQueue::request_notify`] was answered. `false` after `timeout`.
    ///
    /// # Errors
    /// [`VerbsError::System`].
    fn wait(&self, timeout: Duration) -> Result<bool, VerbsError>;

    /// For the device that made it.
    fn as_any(&self) -> &dyn Any;
}

/// A queue pair. Dropping the last handle destroys it: what was posted is forgotten, without completions.
pub trait QueuePair: Send + Sync {
    /// Its number, by which the peer names it.
    fn qp_num(&self) -> u32;

    /// Its state now.
    fn state(&self) -> QueuePairState;

    /// What the device gave: at least what was asked for.
    fn limits(&self) -> QueuePairLimits;

    /// Whether the device knows that the peer died or let its queue pair go, although no completion tells of it. `false`
    /// also where the device cannot know.
    fn is_peer_gone(&self) -> bool {
        false
    }

    /// Whether it waits for the first request of either side to open what carries it. Until then neither side hears of the
    /// other one's end.
    fn is_dormant(&self) -> bool {
        false
    }

    /// What its bytes go over, once it is connected: only a device in software has a choice.
    fn carrier(&self) -> Carrier {
        Carrier::Hardware
    }

    /// Changes its state.
    ///
    /// # Errors
    /// [`VerbsError::State`] for an illegal change, [`VerbsError::Invalid`] for an attribute out of range,
    /// [`VerbsError::Unreachable`] if there is no such peer.
    fn modify(&self, transition: &Transition) -> Result<(), VerbsError>;

    /// Posts to the send queue, in order.
    ///
    /// # Errors
    /// [`PostError`] names the first request that was refused; those before it were posted.
    fn post_send(&self, requests: &[SendRequest]) -> Result<(), PostError>;

    /// Posts to the receive queue, in order.
    ///
    /// # Errors
    /// [`PostError`] names the first request that was refused; those before it were posted.
    fn post_recv(&self, requests: &[RecvRequest]) -> Result<(), PostError>;
}
