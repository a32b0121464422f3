//! The rules of RDMA over Thunderbolt, each with what the hardware does to a program that breaks it, and the way out.
//!
//! `docs/thunderbolt.md` has the same rules with their sources and their tests.

use super::darwin;

/// A rule. Its name is stable: scripts look for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Rule {
    UcOnly,
    OwnReceiveQueue,
    SendRecvOnly,
    NoImmediate,
    OneSge,
    NoInline,
    MaxMessage,
    QueueDepthCap,
    FrameDepth,
    EqualFrames,
    QpLimit,
    MrLimit,
    CqLimit,
    PdLimit,
    PageAligned,
    FourGib,
    AccessFlags,
    GidIndex,
    StalePeer,
    CompletionIsNotDelivery,
    DestroyBeforeErr,
    PollForever,
}

/// What there is to say about a rule.
struct Entry {
    name: &'static str,
    hardware: &'static str,
    way_out: &'static str,
    /// What a call that `fail` refuses gives: the number that the device gives where it refuses the call itself.
    errno: i32,
}

impl Rule {
    #[cfg(test)]
    pub(crate) const ALL: [Rule; 22] = [
        Rule::UcOnly,
        Rule::OwnReceiveQueue,
        Rule::SendRecvOnly,
        Rule::NoImmediate,
        Rule::OneSge,
        Rule::NoInline,
        Rule::MaxMessage,
        Rule::QueueDepthCap,
        Rule::FrameDepth,
        Rule::EqualFrames,
        Rule::QpLimit,
        Rule::MrLimit,
        Rule::CqLimit,
        Rule::PdLimit,
        Rule::PageAligned,
        Rule::FourGib,
        Rule::AccessFlags,
        Rule::GidIndex,
        Rule::StalePeer,
        Rule::CompletionIsNotDelivery,
        Rule::DestroyBeforeErr,
        Rule::PollForever,
    ];

    pub(crate) fn name(self) -> &'static str {
        self.entry().name
    }

    pub(crate) fn hardware(self) -> &'static str {
        self.entry().hardware
    }

    pub(crate) fn way_out(self) -> &'static str {
        self.entry().way_out
    }

    pub(crate) fn errno(self) -> i32 {
        self.entry().errno
    }

    fn entry(self) -> &'static Entry {
        match self {
            Rule::UcOnly => &Entry {
                name: "uc-only",
                hardware: "the hardware has UC queue pairs only and refuses others with errno 102",
                way_out: "use IBV_QPT_UC and do retransmission yourself",
                errno: darwin::EOPNOTSUPP,
            },
            Rule::OwnReceiveQueue => &Entry {
                name: "own-receive-queue",
                hardware: "the hardware has no shared receive queues",
                way_out: "post to each queue pair's own receive queue",
                errno: darwin::EOPNOTSUPP,
            },
            Rule::SendRecvOnly => &Entry {
                name: "send-recv-only",
                hardware: "the hardware does SEND and RECV only: no RDMA WRITE, no READ, no atomics",
                way_out: "send the bytes, and let the receiver place them",
                errno: darwin::EINVAL,
            },
            Rule::NoImmediate => &Entry {
                name: "no-immediate",
                hardware: "the hardware carries no immediate data",
                way_out: "put the word into the message",
                errno: darwin::EINVAL,
            },
            Rule::OneSge => &Entry {
                name: "one-sge",
                hardware: "the hardware takes one scatter/gather element a request",
                way_out: "copy the pieces into one buffer, or send a message each",
                errno: darwin::EINVAL,
            },
            Rule::NoInline => &Entry {
                name: "no-inline",
                hardware: "the hardware has no inline data",
                way_out: "set max_inline_data to 0 and send from registered memory",
                errno: darwin::EINVAL,
            },
            Rule::MaxMessage => &Entry {
                name: "max-message",
                hardware: "a message is at most 16,773,120 bytes, which are 4095 frames of 4096",
                way_out: "send it in several messages",
                errno: darwin::EINVAL,
            },
            Rule::QueueDepthCap => &Entry {
                name: "queue-depth-cap",
                hardware: "a queue holds at most 4095 requests",
                way_out: "ask for less, and read back with ibv_query_qp what was granted",
                errno: darwin::EINVAL,
            },
            Rule::FrameDepth => &Entry {
                name: "frame-depth",
                hardware: "queue depth counts frames of 4096 bytes, not requests, and a post that exceeds it fails with -12",
                way_out: "count frames against what ibv_query_qp says, and poll before posting more",
                errno: darwin::ENOMEM,
            },
            Rule::EqualFrames => &Entry {
                name: "equal-frames",
                hardware: "a SEND and its RECV must cover equally many frames of 4096 bytes, else the RECV ends with \
                           LOC_LEN_ERR or memory is silently corrupted",
                way_out: "agree on sizes beforehand, or send frames of one size always",
                errno: darwin::EINVAL,
            },
            Rule::QpLimit => &Entry {
                name: "qp-limit",
                hardware: "a device has few queue pairs (10, on one host 3), and gives NULL and EBUSY for one more",
                way_out: "share queue pairs, and destroy those that are done",
                errno: darwin::EBUSY,
            },
            Rule::MrLimit => &Entry {
                name: "mr-limit",
                hardware: "a device has 100 memory regions and gives NULL for one more; before macOS 26.3 the machine \
                           crashed at 128",
                way_out: "register few large regions and cut buffers out of them",
                errno: darwin::ENOMEM,
            },
            Rule::CqLimit => &Entry {
                name: "cq-limit",
                hardware: "a device has few completion queues (on one host 6)",
                way_out: "let queue pairs share one",
                errno: darwin::ENOMEM,
            },
            Rule::PdLimit => &Entry {
                name: "pd-limit",
                hardware: "a device has few protection domains (on one host 6); once they are used up, going to RTR \
                           fails with errno 96",
                way_out: "use one protection domain a device",
                errno: darwin::ENODATA,
            },
            Rule::PageAligned => &Entry {
                name: "page-aligned",
                hardware: "the hardware maps whole pages (16 KiB on Apple silicon): memory that does not start at one \
                           was refused on some machines",
                way_out: "allocate with mmap, or posix_memalign to sysconf(_SC_PAGESIZE)",
                errno: darwin::EINVAL,
            },
            Rule::FourGib => &Entry {
                name: "four-gib",
                hardware: "the driver keeps 32 bits of an address: what lies behind a 4 GiB boundary within one \
                           registration is read and written exactly 4 GiB too low",
                way_out: "register the memory in pieces that end at multiples of 4 GiB of their address",
                errno: darwin::EINVAL,
            },
            Rule::AccessFlags => &Entry {
                name: "access-flags",
                hardware: "the hardware wants LOCAL_WRITE, on some systems with REMOTE_READ and REMOTE_WRITE, and \
                           nothing else",
                way_out: "pass IBV_ACCESS_LOCAL_WRITE; where that alone is refused, add REMOTE_READ and REMOTE_WRITE",
                errno: darwin::EINVAL,
            },
            Rule::GidIndex => &Entry {
                name: "gid-index",
                hardware: "going to RTR fails with errno 22 without a usable GID and with 60 for a wrong one",
                way_out: "send the peer the GID of one index of the own table, and give that index as sgid_index",
                errno: darwin::EINVAL,
            },
            Rule::StalePeer => &Entry {
                name: "stale-peer",
                hardware: "going to RTR fails with errno 16 while an earlier connection's resources are still there",
                way_out: "destroy the queue pairs of both sides and connect new ones",
                errno: darwin::EBUSY,
            },
            Rule::CompletionIsNotDelivery => &Entry {
                name: "completion-is-not-delivery",
                hardware: "a SEND completes when it went out: nobody acknowledges it, and what is on its way may be \
                           lost with the queue pair",
                way_out: "wait for a message of the peer that says that it has everything",
                errno: darwin::EBUSY,
            },
            Rule::DestroyBeforeErr => &Entry {
                name: "destroy-before-err",
                hardware: "queue pairs that go to ERR before they are destroyed were seen to hang or to leak",
                way_out: "destroy the queue pair first, from RTS, and then what it used",
                errno: darwin::EINVAL,
            },
            Rule::PollForever => &Entry {
                name: "poll-forever",
                hardware: "a dead peer gives no completion at all, so that this loop never ends",
                way_out: "poll with a deadline, and watch the peer by other means, such as a TCP connection",
                errno: darwin::ETIMEDOUT,
            },
        }
    }
}
