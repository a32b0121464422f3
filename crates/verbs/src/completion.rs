use std::fmt;

/// How a request ended. The numbers are libibverbs' own (`enum ibv_wc_status`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum CompletionStatus {
    /// It was done.
    Success = 0,
    /// A message was longer than the RECV's room, or longer than can be sent.
    LocalLength = 1,
    /// The device failed inside the queue pair.
    LocalQueuePair = 2,
    /// A local key does not cover the bytes, or does not allow the access.
    LocalProtection = 4,
    /// The queue pair was in the error state, or went there, before this request was done.
    Flushed = 5,
    /// The peer's message was not what was expected.
    BadResponse = 7,
    /// This side cannot do what the peer asked.
    LocalAccess = 8,
    /// The peer cannot do what was asked, such as a message longer than its RECV.
    RemoteInvalidRequest = 9,
    /// A remote key does not cover the bytes, or does not allow the access.
    RemoteAccess = 10,
    /// The peer failed while it did this.
    RemoteOperation = 11,
    /// The peer did not answer, however often it was asked: it is gone, or its queue pair is not ready.
    RetryExceeded = 12,
    /// The peer had no RECV posted, however often it was asked.
    RnrRetryExceeded = 13,
    /// The queue pair or its device failed in another way.
    Fatal = 19,
    /// Another failure.
    General = 21,
}

impl CompletionStatus {
    /// Whether the request was done.
    #[must_use]
    pub fn is_success(self) -> bool {
        self == CompletionStatus::Success
    }
}

impl fmt::Display for CompletionStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            CompletionStatus::Success => "success",
            CompletionStatus::LocalLength => "a message longer than its room",
            CompletionStatus::LocalQueuePair => "a failure inside the local queue pair",
            CompletionStatus::LocalProtection => "a local key that does not allow the access",
            CompletionStatus::Flushed => "flushed after an earlier failure",
            CompletionStatus::BadResponse => "an unexpected response",
            CompletionStatus::LocalAccess => "a local access error",
            CompletionStatus::RemoteInvalidRequest => "a request that the peer cannot do",
            CompletionStatus::RemoteAccess => "a remote key that does not allow the access",
            CompletionStatus::RemoteOperation => "a failure of the peer",
            CompletionStatus::RetryExceeded => "no answer from the peer",
            CompletionStatus::RnrRetryExceeded => "no receive posted by the peer",
            CompletionStatus::Fatal => "a fatal failure of the device",
            CompletionStatus::General => "a failure",
        })
    }
}

/// What a completed request was.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CompletionOpcode {
    /// A SEND.
    Send,
    /// A WRITE.
    Write,
    /// A READ.
    Read,
    /// A fetch-and-add.
    FetchAdd,
    /// A compare-and-swap.
    CompareSwap,
    /// A RECV that took a SEND.
    Recv,
    /// A RECV that took a WRITE with immediate data.
    RecvWriteWithImm,
}

/// The end of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// The request's own number.
    pub wr_id: u64,
    /// How it ended. If it failed, only `wr_id`, `qp_num` and this mean anything.
    pub status: CompletionStatus,
    /// What it was.
    pub opcode: CompletionOpcode,
    /// Bytes received, or read.
    pub byte_len: u32,
    /// Immediate data that came with it.
    pub imm: Option<u32>,
    /// The queue pair on this side.
    pub qp_num: u32,
    /// Who sent a datagram.
    pub origin: Option<Origin>,
}

impl Completion {
    /// One that means nothing, to be filled by a poll.
    pub const BLANK: Completion = Completion {
        wr_id: 0,
        status: CompletionStatus::General,
        opcode: CompletionOpcode::Send,
        byte_len: 0,
        imm: None,
        qp_num: 0,
        origin: None,
    };
}

/// Who sent a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Origin {
    /// The sender's queue pair.
    pub qp_num: u32,
    /// The address of the sender's port within the subnet.
    pub lid: u16,
    /// Whether the first 40 bytes of the RECV hold a global routing header, with the sender's GID.
    pub grh: bool,
}
