//! The queue pairs over the device to one other owner.
//!
//! Where the device wants a SEND and its RECV to have as many frames, there is a queue pair for each of a few lengths, and a message goes
//! over the one with the shortest that it fits in, filled up to that many frames. What belongs to one queue pair of a program
//! may so arrive in another order than it was sent in, and is numbered.

use std::collections::VecDeque;
use std::sync::Arc;

use fulmen_verbs::{
    Access, AckTimeout, CompletionQueue, DeviceInfo, Gid, Mtu, Path, ProtectionDomain, QueuePair, QueuePairInit,
    QueuePairKind, QueuePairLimits, RecvRequest, RnrTimer, SendRequest, Transition, VerbsError,
};

use super::slots::{Slot, Slots};
use crate::wire::{End, Header, LONGEST_MESSAGE, Place};

/// Frames of the device in a message, for each queue pair of a trunk; and requests in each direction.
const FRAMES: [(usize, usize); 3] = [(1, 128), (3, 64), (17, 32)];
/// The same where the device counts requests.
const REQUESTS: usize = 128;

/// The longest messages over a queue pair of a trunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Class {
    /// Bytes of a slot.
    pub size: usize,
    /// Bytes that a message has at least.
    pub least: usize,
    /// Requests in each direction.
    pub depth: usize,
}

impl Class {
    /// Those of a device.
    pub(super) fn all(info: &DeviceInfo) -> Vec<Class> {
        let size = Header::ROOM + LONGEST_MESSAGE;
        match info.limits.frame {
            None => vec![Class { size, least: 0, depth: REQUESTS }],
            Some(frame) => {
                // A device with other frames than Thunderbolt's, which are of 4096 bytes, gets as many bytes.
                let frames = |bytes: usize| bytes.div_ceil(frame as usize);
                let class = |(count, depth): (usize, usize)| {
                    let count = frames(count * 4096);
                    Class { size: count * frame as usize, least: (count - 1) * frame as usize + 1, depth }
                };
                FRAMES.into_iter().map(class).collect()
            }
        }
    }
}

/// What goes out: a slot, and how many bytes of it.
pub(super) struct Out {
    pub slot: Slot,
    pub len: usize,
}

/// One of a trunk's queue pairs.
pub(super) struct Way {
    class: Class,
    /// Its place among the classes.
    index: usize,
    pair: Arc<dyn QueuePair>,
    /// Whose RECVs were posted, and whose SENDs, oldest first.
    recvs: VecDeque<Slot>,
    sends: VecDeque<Out>,
    waiting: VecDeque<Out>,
}

/// The queue pairs to one other owner, connected or about to be.
pub(super) struct Trunk {
    pub ways: Vec<Way>,
}

/// What a completion is of: the trunk, the queue pair and the direction, in a request's number.
pub(super) fn name(trunk: u32, way: usize, is_recv: bool) -> u64 {
    u64::from(trunk) << 8 | (way as u64) << 1 | u64::from(is_recv)
}

/// The same, read.
pub(super) fn named(number: u64) -> (u32, usize, bool) {
    ((number >> 8) as u32, (number as usize & 0xff) >> 1, number & 1 == 1)
}

/// Where both ends are.
pub(super) struct Course {
    pub local_gid_index: u8,
    pub there: Place,
    pub port: u8,
    pub mtu: Mtu,
}

impl Trunk {
    /// Its queue pairs, in state RESET.
    pub(super) fn new(
        info: &DeviceInfo,
        domain: &dyn ProtectionDomain,
        queue: &Arc<dyn CompletionQueue>,
        classes: &[Class],
    ) -> Result<Trunk, VerbsError> {
        let make = |(index, class): (usize, &Class)| {
            let depth = (class.depth as u64 * info.limits.depth_of(class.size as u64)) as u32;
            let limits = QueuePairLimits {
                send_depth: depth,
                recv_depth: depth,
                send_pieces: 1,
                recv_pieces: 1,
                inline_bytes: 0,
            };
            let init = QueuePairInit {
                kind: if info.capabilities.rc { QueuePairKind::Rc } else { QueuePairKind::Uc },
                send_cq: queue.clone(),
                recv_cq: queue.clone(),
                limits,
                signal_all: false,
                srq: None,
            };
            let pair = domain.create_qp(&init)?;
            let empty = VecDeque::new;
            Ok(Way { class: *class, index, pair, recvs: empty(), sends: VecDeque::new(), waiting: VecDeque::new() })
        };
        Ok(Trunk { ways: classes.iter().enumerate().map(make).collect::<Result<_, VerbsError>>()? })
    }

    pub(super) fn ends(&self) -> Result<Vec<End>, VerbsError> {
        let end = |way: &Way| {
            let psn = getrandom::u32().map_err(|cause| VerbsError::Invalid {
                what: "a sequence number",
                problem: format!("the system gives no random bytes: {cause}"),
            })?;
            Ok(End { number: way.pair.qp_num(), psn: psn & 0xff_ffff })
        };
        self.ways.iter().map(end).collect()
    }

    /// Takes them to RTS.
    pub(super) fn connect(&self, course: &Course, own: &[End], theirs: &[End]) -> Result<(), VerbsError> {
        for (way, (own, theirs)) in self.ways.iter().zip(own.iter().zip(theirs)) {
            let path = Path {
                remote_gid: Gid(course.there.gid),
                remote_lid: course.there.lid,
                local_gid_index: course.local_gid_index,
                remote_qp: theirs.number,
                mtu: course.mtu,
            };
            way.pair.modify(&Transition::Init { port: course.port, access: Access::LOCAL_WRITE })?;
            let min_rnr_timer = RnrTimer(12);
            let ready =
                Transition::ReadyToReceive { path, recv_psn: theirs.psn & 0xff_ffff, reads_served: 0, min_rnr_timer };
            way.pair.modify(&ready)?;
            way.pair.modify(&Transition::ReadyToSend {
                send_psn: own.psn,
                timeout: AckTimeout(14),
                retries: 7,
                rnr_retries: 7,
                reads_in_flight: 0,
            })?;
        }
        Ok(())
    }

    /// The way for a message of so many bytes.
    pub(super) fn way(&mut self, len: usize) -> &mut Way {
        let last = self.ways.len() - 1;
        let at = self.ways.iter().position(|way| Header::ROOM + len <= way.class.size).unwrap_or(last);
        &mut self.ways[at]
    }

    /// Whether the device knows that nobody is at the other end.
    pub(super) fn is_over(&self) -> bool {
        self.ways.iter().any(|way| way.pair.is_peer_gone())
    }

    /// All memory that it has.
    pub(super) fn into_slots(self) -> impl Iterator<Item = Slot> {
        self.ways.into_iter().flat_map(|way| {
            drop(way.pair);
            way.recvs.into_iter().chain(way.sends.into_iter().chain(way.waiting).map(|out| out.slot))
        })
    }
}

impl Way {
    /// Posts as many RECVs as it has room for.
    pub(super) fn listen(&mut self, trunk: u32, slots: &mut Slots) -> Result<(), VerbsError> {
        while self.recvs.len() < self.class.depth {
            let slot = slots.take(self.index)?;
            let request = RecvRequest::new(name(trunk, self.index, true), [slot.outside(self.class.size)]);
            match self.pair.post_recv(&[request]) {
                Ok(()) => self.recvs.push_back(slot),
                Err(refused) => {
                    slots.give(slot);
                    // A device may have less room than it says. It is tried again when a RECV has completed.
                    let is_full = matches!(refused.cause, VerbsError::QueueFull { .. }) && !self.recvs.is_empty();
                    return if is_full { Ok(()) } else { Err(refused.cause) };
                }
            }
        }
        Ok(())
    }

    /// The slot of the RECV that has completed.
    pub(super) fn received(&mut self) -> Option<Slot> {
        self.recvs.pop_front()
    }

    /// The slot of the SEND that has completed.
    pub(super) fn sent(&mut self) -> Option<Slot> {
        self.sends.pop_front().map(|out| out.slot)
    }

    pub(super) fn push(&mut self, out: Out) {
        self.waiting.push_back(out);
    }

    /// Posts what waits, as far as there is room.
    pub(super) fn send(&mut self, trunk: u32) -> Result<(), VerbsError> {
        while self.sends.len() < self.class.depth
            && let Some(out) = self.waiting.pop_front()
        {
            let piece = out.slot.outside(out.len.max(self.class.least));
            match self.pair.post_send(&[SendRequest::send(name(trunk, self.index, false), [piece])]) {
                Ok(()) => self.sends.push_back(out),
                Err(refused) => {
                    self.waiting.push_front(out);
                    let is_full = matches!(refused.cause, VerbsError::QueueFull { .. }) && !self.sends.is_empty();
                    return if is_full { Ok(()) } else { Err(refused.cause) };
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use fulmen_reach::Node;
    use fulmen_soft::{Profile, SoftDevice};

    use super::*;

    #[test]
    fn each_message_has_a_way_with_as_many_frames() {
        let info = |profile| SoftDevice::open(&Node::open().unwrap(), profile).unwrap().info().clone();
        let narrow = Class::all(&info(Profile::Thunderbolt));
        assert_eq!(narrow.iter().map(|class| class.size / 4096).collect::<Vec<_>>(), [1, 3, 17]);
        for class in &narrow {
            assert_eq!(class.least.div_ceil(4096), class.size / 4096);
        }
        for classes in [narrow, Class::all(&info(Profile::Infiniband))] {
            assert!(classes.last().unwrap().size >= Header::ROOM + LONGEST_MESSAGE);
        }
    }

    #[test]
    fn completions_name_their_request() {
        for all in [(0, 0, false), (7, 2, true), (u32::MAX, 2, false)] {
            assert_eq!(named(name(all.0, all.1, all.2)), all);
        }
    }
}
