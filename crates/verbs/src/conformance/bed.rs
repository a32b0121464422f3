//! What a case is, what it needs, and what it is given.

use std::sync::Arc;

use fulmen_memory::{Region, RegionError};

use super::Bench;
use crate::{Device, DeviceInfo, PostError, QueuePairKind, VerbsError};

/// Both kinds of queue pairs.
pub(super) const BOTH: &[QueuePairKind] = &[QueuePairKind::Rc, QueuePairKind::Uc];
/// Reliable connected ones only.
pub(super) const RC: &[QueuePairKind] = &[QueuePairKind::Rc];
/// Unreliable connected ones only.
pub(super) const UC: &[QueuePairKind] = &[QueuePairKind::Uc];

/// Unreliable datagram ones only.
pub(super) const UD: &[QueuePairKind] = &[QueuePairKind::Ud];

/// How a case ends when it does not pass.
#[derive(Debug)]
pub(super) enum Failure {
    /// The device broke a promise.
    Failed(String),
    /// The device says that it has not what the case needs.
    Missing(String),
}

pub(super) type Outcome<T = ()> = Result<T, Failure>;

impl From<VerbsError> for Failure {
    fn from(error: VerbsError) -> Failure {
        Failure::Failed(error.to_string())
    }
}

impl From<PostError> for Failure {
    fn from(error: PostError) -> Failure {
        Failure::Failed(error.to_string())
    }
}

impl From<RegionError> for Failure {
    fn from(error: RegionError) -> Failure {
        Failure::Failed(format!("no memory to test with: {error}"))
    }
}

impl From<String> for Failure {
    fn from(text: String) -> Failure {
        Failure::Failed(text)
    }
}

/// What a device did, or the end of the case as skipped if it says that it cannot.
pub(super) fn supported<T>(result: Result<T, VerbsError>) -> Outcome<T> {
    result.map_err(|error| match error {
        VerbsError::Unsupported { what, .. } => Failure::Missing(what.to_string()),
        error => error.into(),
    })
}

/// Ends a case as failed unless the condition holds.
macro_rules! ensure {
    ($condition:expr, $($words:tt)+) => {
        if !$condition {
            return Err($crate::conformance::bed::Failure::Failed(format!($($words)+)));
        }
    };
}
/// Ends a case as failed unless both are equal.
macro_rules! ensure_eq {
    ($left:expr, $right:expr, $($words:tt)+) => {{
        let (left, right) = (&$left, &$right);
        if left != right {
            let what = format!($($words)+);
            return Err($crate::conformance::bed::Failure::Failed(format!("{what}: {left:?}, and not {right:?}")));
        }
    }};
}
pub(super) use {ensure, ensure_eq};

/// What a device must have for a case.
#[derive(Clone, Copy, Debug)]
pub(super) enum Need {
    Write,
    Read,
    Atomics,
    Immediate,
    Inline,
    /// More than one scatter/gather element.
    Pieces,
    /// Queues that count frames.
    Frames,
    /// Queues that count requests, whatever their length.
    NoFrames,
    /// On UC, a SEND without a RECV waits.
    Holds,
    /// On UC, a SEND without a RECV is lost.
    Loses,
    /// A SEND without a RECV stays in its queue, for whichever reason.
    Waits,
    ReportsDeadPeers,
    /// Receive queues that queue pairs share.
    SharedReceive,
}

impl Need {
    fn missing(self, kind: QueuePairKind, info: &DeviceInfo) -> Option<&'static str> {
        let can = &info.capabilities;
        let (there, name) = match self {
            Need::Write => (can.write, "RDMA WRITE"),
            Need::Read => (can.read, "RDMA READ"),
            Need::Atomics => (can.atomics, "atomics"),
            Need::Immediate => (can.immediate, "immediate data"),
            Need::Inline => (info.limits.inline_bytes > 0, "inline data"),
            Need::Pieces => (info.limits.pieces > 1, "scatter/gather lists"),
            Need::Frames => (info.limits.frame.is_some(), "frames in its queues"),
            Need::NoFrames => (info.limits.frame.is_none(), "messages shorter than their RECV by a frame"),
            Need::Holds => (can.holds_sends, "SENDs that wait for their RECV"),
            Need::Loses => (!can.holds_sends, "loss of SENDs without a RECV"),
            Need::Waits => (kind == QueuePairKind::Rc || can.holds_sends, "SENDs that wait for their RECV"),
            Need::SharedReceive => (can.srq, "shared receive queues"),
            Need::ReportsDeadPeers => (can.reports_dead_peers, "word of dead peers"),
        };
        (!there).then_some(name)
    }
}

/// One promise, and how it is checked.
pub(super) struct Case {
    pub name: &'static str,
    pub kinds: &'static [QueuePairKind],
    pub needs: &'static [Need],
    pub run: fn(&Bed<'_>) -> Outcome,
}

impl Case {
    pub(super) const fn new(
        name: &'static str,
        kinds: &'static [QueuePairKind],
        needs: &'static [Need],
        run: fn(&Bed<'_>) -> Outcome,
    ) -> Case {
        Case { name, kinds, needs, run }
    }

    pub(super) fn full_name(&self, kind: QueuePairKind) -> String {
        match self.kinds {
            [_] => self.name.to_string(),
            _ => format!("{} ({kind})", self.name),
        }
    }

    pub(super) fn check_needs(&self, bed: &Bed<'_>) -> Outcome {
        for device in &bed.devices {
            let info = device.info();
            if !info.capabilities.has(bed.kind) {
                return Err(Failure::Missing(format!("{} queue pairs", bed.kind)));
            }
            if let Some(missing) = self.needs.iter().find_map(|need| need.missing(bed.kind, info)) {
                return Err(Failure::Missing(missing.to_string()));
            }
        }
        Ok(())
    }
}

/// What a case runs on: two devices, and the kind of queue pairs to use.
pub(super) struct Bed<'a> {
    bench: &'a dyn Bench,
    pub devices: [Arc<dyn Device>; 2],
    pub port: u8,
    pub kind: QueuePairKind,
}

impl<'a> Bed<'a> {
    pub(super) fn new(bench: &'a dyn Bench, kind: QueuePairKind) -> Outcome<Bed<'a>> {
        Ok(Bed { bench, devices: bench.pair()?, port: bench.port(), kind })
    }

    /// The same with devices that nobody else has.
    pub(super) fn again(&self) -> Outcome<Bed<'a>> {
        Bed::new(self.bench, self.kind)
    }

    /// Memory to register.
    pub(super) fn memory(&self, len: usize) -> Outcome<Region> {
        Ok(self.bench.memory(len)?)
    }

    /// The first side's device.
    pub(super) fn info(&self) -> &DeviceInfo {
        self.devices[0].info()
    }
}
