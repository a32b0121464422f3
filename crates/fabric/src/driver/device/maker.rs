//! Making the queue pairs of a rail: at the start, and again after it has failed.

use std::sync::Arc;

use fulmen_verbs::{
    CompletionQueue, DeviceInfo, ProtectionDomain, QueuePair, QueuePairInit, QueuePairKind, QueuePairLimits, VerbsError,
};

use super::bring_up::{Course, End, Ends, Service};
use super::error::{DeviceError, call};
use super::info::RailInfo;
use super::needs::ONE_SIDED;
use super::offer::Offer;
use super::plan::Plan;
use super::rail::Pairs;
use crate::options::Flow;

/// All that it takes.
pub(super) struct Maker {
    pub domain: Arc<dyn ProtectionDomain>,
    pub queue: Arc<dyn CompletionQueue>,
    pub info: DeviceInfo,
    pub plan: Plan,
    pub flow: Flow,
    pub peer: u32,
    pub here: Offer,
    pub there: Offer,
}

/// The queue pairs of a rail, to be connected.
pub(super) struct Both {
    pub pairs: Pairs,
    pub rdma: Option<[Arc<dyn QueuePair>; 2]>,
}

impl Maker {
    pub(super) fn course(&self) -> Course<'_> {
        Course { peer: self.peer, plan: &self.plan, here: &self.here, there: &self.there }
    }

    /// Those for one-sided operations only if it `asks`.
    pub(super) fn make(&self, asks: bool) -> Result<(Both, Ends), DeviceError> {
        let (info, plan) = (&self.info, &self.plan);
        let frame = info.limits.depth_of(plan.frame.into());
        let chunks = info.limits.depth_of(plan.chunk) * u64::from(plan.chunks);
        let depths = (plan.sends() as u64 * frame, plan.receives(&self.flow) as u64 * frame);
        let (frames, frames_end) = self.pair(depths.0, depths.1)?;
        let (moves, moves_end) = self.pair(chunks, chunks)?;
        let mut rdma = None;
        if asks && plan.kind == QueuePairKind::Rc {
            let (out, out_end) = self.pair(ONE_SIDED as u64, 1)?;
            let (into, into_end) = self.pair(1, 1)?;
            rdma = Some(([out, into], (out_end, into_end)));
        }
        let (pairs, ends) = rdma.unzip();
        let both = Both { pairs: Pairs { frames, moves: Some(moves) }, rdma: pairs };
        Ok((both, Ends { frames: frames_end, moves: moves_end, rdma: ends }))
    }

    fn pair(&self, send_depth: u64, recv_depth: u64) -> Result<(Arc<dyn QueuePair>, End), DeviceError> {
        let info = &self.info;
        let limits = QueuePairLimits {
            send_depth: send_depth as u32,
            recv_depth: recv_depth as u32,
            send_pieces: 1,
            recv_pieces: 1,
            inline_bytes: 0,
        };
        let (send_cq, recv_cq) = (self.queue.clone(), self.queue.clone());
        let init = QueuePairInit { kind: self.plan.kind, send_cq, recv_cq, limits, signal_all: false, srq: None };
        let pair = self.domain.create_qp(&init).map_err(|cause| match cause {
            VerbsError::NoSuchKind { device, kind } => DeviceError::Refuses { device, kind, peer: self.peer },
            cause => call(&info.name, "make a queue pair")(cause),
        })?;
        // The system may give less than it was asked for.
        let given = pair.limits();
        for (needed, limit) in [(send_depth, given.send_depth.into()), (recv_depth, given.recv_depth.into())] {
            if needed > limit {
                return Err(DeviceError::Depth { device: info.name.clone(), needed, limit });
            }
        }
        let end = End::new(&*pair)?;
        Ok((pair, end))
    }

    /// Connects those for messages.
    pub(super) fn bring_up(&self, pairs: &Pairs, own: &Ends, theirs: &Ends) -> Result<(), DeviceError> {
        let course = self.course();
        theirs.check(course.there, self.peer)?;
        course.bring_up(&*pairs.frames, (own.frames, theirs.frames), Service::MESSAGES)?;
        let moves = |pair: &Arc<dyn QueuePair>| course.bring_up(&**pair, (own.moves, theirs.moves), Service::MESSAGES);
        pairs.moves.iter().try_for_each(moves)
    }

    /// What a program is told of the rail.
    pub(super) fn describe(&self, pairs: &Pairs, own: &Ends, theirs: &Ends, one_sided: bool) -> RailInfo {
        RailInfo {
            here: Course::end(&self.here, own.frames.number),
            there: Course::end(&self.there, theirs.frames.number),
            kind: self.plan.kind,
            carrier: pairs.frames.carrier(),
            mtu: self.plan.mtu,
            one_sided,
        }
    }
}
