//! Taking queue pairs from RESET to RTS.

use fulmen_verbs::{Access, AckTimeout, Gid, Path, PostError, QueuePair, RnrTimer, Transition};
use serde::{Deserialize, Serialize};

use super::error::{DeviceError, call};
use super::full::is_full;
use super::info::RailEnd;
use super::offer::{BITS_24, Offer};
use super::plan::Plan;
use super::rdma;
use crate::engine::Rights;

/// 67 ms, seven times again: a peer that does not answer is gone after half a second.
const TIMEOUT: AckTimeout = AckTimeout(14);
const RETRIES: u8 = 7;
/// For ever: credits see to it that a RECV is posted, sooner or later.
const RNR_RETRIES: u8 = 7;
/// 0.64 ms.
const RNR_TIMER: RnrTimer = RnrTimer(12);

/// One queue pair of a link, as its rank tells the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct End {
    pub number: u32,
    /// The first sequence number that it sends.
    pub psn: u32,
}

impl End {
    /// With a random sequence number: packets of an earlier connection are not taken for its own.
    pub(super) fn new(pair: &dyn QueuePair) -> Result<End, DeviceError> {
        let psn = getrandom::u32().map_err(DeviceError::Random)? & BITS_24;
        Ok(End { number: pair.qp_num(), psn })
    }
}

/// The queue pairs that a rank made for a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Ends {
    pub frames: End,
    pub moves: End,
    /// For one-sided operations: the one on which it asks, and the one on which it is asked.
    pub rdma: Option<(End, End)>,
}

impl Ends {
    /// Whether rank `peer`'s numbers are any.
    pub(super) fn check(&self, offer: &Offer, peer: u32) -> Result<(), DeviceError> {
        let told = |problem| DeviceError::Told { peer, device: offer.device.clone(), port: offer.port, problem };
        let rdma = self.rdma.iter().flat_map(|(out, into)| [out, into]);
        for end in [&self.frames, &self.moves].into_iter().chain(rdma) {
            if end.number == 0 || end.number > BITS_24 {
                return Err(told(format!(
                    "{} is no number of a queue pair, which has 24 bits and is not 0",
                    end.number
                )));
            }
            if end.psn > BITS_24 {
                return Err(told(format!("{} is no sequence number of a packet, which has 24 bits", end.psn)));
            }
        }
        Ok(())
    }
}

/// What peers may do through a queue pair, and how many READs and atomics at a time.
#[derive(Clone, Copy)]
pub(super) struct Service {
    pub access: Access,
    pub reads: u8,
}

impl Service {
    /// SEND and RECV.
    pub(super) const MESSAGES: Service = Service { access: Access::LOCAL_WRITE, reads: 0 };

    /// Asking the peer's device.
    pub(super) fn asks(plan: &Plan) -> Service {
        Service { reads: plan.reads, ..Service::MESSAGES }
    }

    /// Being asked by it.
    ///
    /// Drivers refuse access of a kind that the device here does not do, so that it is for these `verbs` alone.
    pub(super) fn is_asked(plan: &Plan, verbs: Rights) -> Service {
        Service { access: Access::LOCAL_WRITE | rdma::remote(verbs), reads: plan.reads }
    }
}

/// Both ends of a link.
#[derive(Clone, Copy)]
pub(super) struct Course<'a> {
    pub peer: u32,
    pub plan: &'a Plan,
    pub here: &'a Offer,
    pub there: &'a Offer,
}

impl Course<'_> {
    pub(super) fn end(offer: &Offer, queue_pair: u32) -> RailEnd {
        RailEnd {
            device: offer.device.clone(),
            port: offer.port,
            gid: Gid(offer.gid),
            gid_index: offer.gid_index,
            queue_pair,
        }
    }

    /// Why the first receives could not be posted.
    pub(super) fn unopened(&self, refused: &PostError) -> DeviceError {
        let device = &self.here.device;
        if is_full(refused) {
            return DeviceError::Full { device: device.clone(), peer: self.peer };
        }
        call(device, "post the first receives")(refused.cause.clone())
    }

    /// Takes a queue pair from RESET to RTS.
    pub(super) fn bring_up(
        &self,
        pair: &dyn QueuePair,
        (own, theirs): (End, End),
        service: Service,
    ) -> Result<(), DeviceError> {
        let path = Path {
            remote_gid: Gid(self.there.gid),
            remote_lid: self.there.lid,
            local_gid_index: self.here.gid_index,
            remote_qp: theirs.number,
            mtu: self.plan.mtu,
        };
        let steps = [
            Transition::Init { port: self.here.port, access: service.access },
            Transition::ReadyToReceive {
                path,
                recv_psn: theirs.psn,
                reads_served: service.reads,
                min_rnr_timer: RNR_TIMER,
            },
            Transition::ReadyToSend {
                send_psn: own.psn,
                timeout: TIMEOUT,
                retries: RETRIES,
                rnr_retries: RNR_RETRIES,
                reads_in_flight: service.reads,
            },
        ];
        for step in steps {
            pair.modify(&step).map_err(|cause| DeviceError::Connect {
                here: Box::new(Course::end(self.here, own.number)),
                peer: self.peer,
                there: Box::new(Course::end(self.there, theirs.number)),
                state: step.target(),
                cause: Box::new(cause),
            })?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::offer::tests::offer;
    use super::*;

    #[test]
    fn numbers_that_are_none_are_refused() {
        let offer = offer(true, None);
        let good = End { number: 0x17, psn: BITS_24 };
        let ends = Ends { frames: good, moves: good, rdma: Some((good, good)) };
        ends.check(&offer, 2).unwrap();
        for bad in [End { number: 0, ..good }, End { number: 1 << 24, ..good }, End { psn: 1 << 24, ..good }] {
            let all = [
                Ends { frames: bad, ..ends },
                Ends { moves: bad, ..ends },
                Ends { rdma: Some((bad, good)), ..ends },
                Ends { rdma: Some((good, bad)), ..ends },
            ];
            for ends in all {
                let text = ends.check(&offer, 2).unwrap_err().to_string();
                assert!(text.contains("rank 2's a") && text.contains("24 bits"), "{text}");
            }
        }
    }
}
