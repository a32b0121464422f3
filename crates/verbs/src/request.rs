use fulmen_memory::Exposed;
use smallvec::SmallVec;

/// One scatter/gather element: bytes, and the key of the registration in which they lie.
///
/// The device checks that they do, so that a wrong key is a failed completion and no harm.
#[derive(Clone, Debug)]
pub struct Piece {
    /// The bytes.
    pub memory: Exposed,
    /// The local key of the registration.
    pub lkey: u32,
}

/// The scatter/gather list of a request. Up to two elements need no allocation.
pub type Pieces = SmallVec<[Piece; 2]>;

/// A place in a peer's registered memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemoteAddr {
    /// The address in the peer's process.
    pub addr: u64,
    /// The remote key of its registration.
    pub rkey: u32,
}

/// The queue pair to which a datagram goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Destination {
    /// [`AddressHandle::number`](crate::AddressHandle::number) of the port at which it is. The device keeps what it
    /// means from the post on, so that the handle may go.
    pub handle: u32,
    /// The queue pair's number (24 bits).
    pub qp_num: u32,
    /// The key that it expects.
    pub qkey: u32,
}

/// What a send request does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendOp {
    /// A message for the peer's next RECV.
    Send {
        /// 32 bits that arrive with the completion of the RECV.
        imm: Option<u32>,
    },
    /// A message for the next RECV of a datagram queue pair: of these queue pairs alone. The RECV gets 40 bytes more,
    /// before the message, for a routing header ([`Origin::grh`](crate::Origin::grh)).
    SendTo {
        /// Who gets it.
        to: Destination,
        /// 32 bits that arrive with the completion of the RECV.
        imm: Option<u32>,
    },
    /// Bytes into the peer's memory. With immediate data it also takes the peer's next RECV, of which no byte is used.
    Write {
        /// Where to.
        remote: RemoteAddr,
        /// 32 bits that arrive with the completion of the RECV.
        imm: Option<u32>,
    },
    /// Bytes out of the peer's memory.
    Read {
        /// Where from.
        remote: RemoteAddr,
    },
    /// Adds to a 64-bit word of the peer and brings its old value, in host byte order.
    FetchAdd {
        /// The word, aligned to 8 bytes.
        remote: RemoteAddr,
        /// What is added, wrapping.
        add: u64,
    },
    /// Replaces a 64-bit word of the peer if it has the expected value, and brings its old value, in host byte order.
    CompareSwap {
        /// The word, aligned to 8 bytes.
        remote: RemoteAddr,
        /// The value expected.
        compare: u64,
        /// The new value.
        swap: u64,
    },
}

/// A request for a send queue.
#[derive(Clone, Debug)]
pub struct SendRequest {
    /// Comes back with the completion.
    pub wr_id: u64,
    /// What to do.
    pub op: SendOp,
    /// The local bytes: gathered for SEND and WRITE, scattered to for READ and atomics (8 bytes).
    pub pieces: Pieces,
    /// Whether it completes visibly (a failure always does).
    pub signaled: bool,
    /// The bytes are copied when it is posted; their keys are not looked at.
    pub inline: bool,
    /// Wakes a peer that waits for solicited completions only.
    pub solicited: bool,
}

impl SendRequest {
    /// A signalled SEND without immediate data.
    #[must_use]
    pub fn send(wr_id: u64, pieces: impl IntoIterator<Item = Piece>) -> SendRequest {
        SendRequest::new(wr_id, SendOp::Send { imm: None }, pieces)
    }

    /// A signalled request.
    #[must_use]
    pub fn new(wr_id: u64, op: SendOp, pieces: impl IntoIterator<Item = Piece>) -> SendRequest {
        SendRequest { wr_id, op, pieces: pieces.into_iter().collect(), signaled: true, inline: false, solicited: false }
    }

    /// The bytes that it names, in all its pieces.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        bytes(&self.pieces)
    }
}

/// A request for a receive queue.
#[derive(Clone, Debug)]
pub struct RecvRequest {
    /// Comes back with the completion.
    pub wr_id: u64,
    /// Where a message's bytes are scattered to.
    pub pieces: Pieces,
}

impl RecvRequest {
    /// A receive request.
    #[must_use]
    pub fn new(wr_id: u64, pieces: impl IntoIterator<Item = Piece>) -> RecvRequest {
        RecvRequest { wr_id, pieces: pieces.into_iter().collect() }
    }

    /// The bytes that it has room for, in all its pieces.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        bytes(&self.pieces)
    }
}

fn bytes(pieces: &[Piece]) -> u64 {
    pieces.iter().map(|piece| piece.memory.len() as u64).sum()
}
