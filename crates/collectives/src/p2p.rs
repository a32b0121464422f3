//! Messages between two ranks of a group.

use std::time::Duration;

use fulmen_fabric::{Fabric, FabricError, OpName, TAG_LABEL};
use fulmen_kernels::{DType, Stores, ValuesMut};
use fulmen_memory::Exposed;

use crate::buffer::{Lent, Memory, Outgoing};
use crate::deadline::Deadline;
use crate::request::Output;
use crate::{CollectiveError, Data, Element, Group};

/// The tags that programs may use are below this one; those above are the group's own.
const TAGS: u64 = 1 << 48;

/// How [`Outgoing`] gives its memory. Not nameable outside, so that nobody else implements it.
pub trait Message {
    fn parcel<'a>(self) -> Parcel<'a>
    where
        Self: 'a;
}

/// What is sent.
pub enum Parcel<'a> {
    Plain(&'a [u8]),
    Lent(&'a mut Memory),
}

impl Group {
    /// Sends elements to a rank, which receives them with the same tag. Messages of one tag arrive in order. What a rank sends to itself
    /// is kept until it receives it.
    ///
    /// Returns when `data` may be used for other things. That may be before the receiver has called [`Group::recv`], except
    /// for a [`Buffer`](crate::Buffer) that is lent (`&mut buffer`) and has at least
    /// [`Flow::rendezvous`](fulmen_fabric::Flow) bytes: it is moved without a copy into memory of the fabric's, straight
    /// into the receiver's, and the send ends when that is done. Everything else goes in frames. What `data` holds stays as
    /// it is. A send that fails does not poison the group.
    ///
    /// # Errors
    /// [`CollectiveError::Fabric`], also if the receiver is seen to take a shorter message or another type;
    /// [`CollectiveError::Invalid`] for a tag of 2^48 or more.
    pub fn send<S: Outgoing>(&self, data: S, to: u32, tag: u64) -> Result<(), CollectiveError> {
        let (to, tag) = (self.peer("send", to)?, self.typed("send", tag, S::Element::DTYPE)?);
        let (fabric, deadline) = (self.fabric(), self.deadline());
        let memory = match data.parcel() {
            Parcel::Plain(bytes) => return Ok(fabric.send_bytes(to, tag, bytes, deadline)?),
            Parcel::Lent(memory) => memory,
        };
        if goes_in_frames(fabric, memory) {
            return Ok(fabric.send_bytes(to, tag, memory.bytes(), deadline)?);
        }
        let Some(lent) = memory.lend() else { unreachable!("it has bytes") };
        let sent = fabric.send(to, tag, lent.exposed(), deadline);
        lent.retire();
        Ok(sent?)
    }

    /// Sends elements to a rank and receives a message from one, which may be another one, both with this tag. Neither waits for the
    /// other, so that ranks can exchange in pairs or pass on in a circle. Returns how many elements came.
    ///
    /// What is sent is copied first, but for a [`Buffer`](crate::Buffer) that is lent (`&mut buffer`).
    ///
    /// # Errors
    /// As [`Group::send`] and [`Group::recv`], and [`CollectiveError::Fabric`] if the pool has no room for the copy. Both are
    /// tried in any case; if both fail, it is the receive's that is told.
    pub fn send_recv<S, D>(&self, data: S, to: u32, into: &mut D, from: u32, tag: u64) -> Result<usize, CollectiveError>
    where
        S: Outgoing,
        D: Data<Element = S::Element> + ?Sized,
    {
        let (to, typed) = (self.peer("send_recv", to)?, self.typed("send_recv", tag, S::Element::DTYPE)?);
        let mut deadline = Deadline::new(self.deadline());
        let fabric = self.fabric();
        let mut lent = None;
        let copied = match data.parcel() {
            Parcel::Plain(bytes) => Some(copy_of(fabric, bytes)?),
            Parcel::Lent(memory) => {
                lent = memory.lend();
                // An empty buffer has nothing to lend.
                if lent.is_none() { Some(copy_of(fabric, &[])?) } else { None }
            }
        };
        let outgoing = copied.as_ref().or(lent.as_ref().map(Lent::exposed)).expect("one or the other");
        let sent = fabric.start_send(to, typed, outgoing);
        let received = self.with_deadline(deadline.left()).recv(into, from, tag);
        let sent = sent.and_then(|sent| sent.wait(deadline.left()));
        lent.into_iter().for_each(Lent::retire);
        let count = received?;
        sent?;
        Ok(count)
    }

    /// Receives the oldest message with this tag of a rank. Returns how many elements it had: as many as `data` has,
    /// or fewer.
    ///
    /// # Errors
    /// [`CollectiveError::Mistyped`] for a message of another type, and [`CollectiveError::Fabric`], also for one that is
    /// longer than `data`: both take the message away and write nothing. [`CollectiveError::Invalid`] for a tag of 2^48 or
    /// more.
    pub fn recv<D: Data + ?Sized>(&self, data: &mut D, from: u32, tag: u64) -> Result<usize, CollectiveError> {
        let (sender, typed) = (self.peer("recv", from)?, self.typed("recv", tag, D::Element::DTYPE)?);
        let (fabric, deadline) = (self.fabric(), self.deadline());
        let mut output = data.output();
        let received = if let Output::Buffer(memory) = &mut output
            && !goes_in_frames(fabric, memory)
            && let Some(lent) = memory.lend()
        {
            let received = fabric.recv(sender, typed, lent.exposed(), deadline);
            lent.retire();
            received
        } else {
            receive_plain(fabric, sender, typed, output.values(), deadline)
        };
        received_from::<D::Element>(received.map(|len| len as u64), from, tag)
    }
}

/// How many elements came, of a message of so many bytes.
pub(crate) fn received_from<T: Element>(
    received: Result<u64, FabricError>,
    from: u32,
    tag: u64,
) -> Result<usize, CollectiveError> {
    match received {
        Ok(len) => Ok(len as usize / size_of::<T>()),
        Err(FabricError::Mislabelled { label, .. }) => {
            let theirs = label.checked_sub(1).and_then(|dtype| DType::try_from(dtype).ok());
            let theirs = theirs.map_or_else(|| "bytes".to_owned(), |dtype| dtype.to_string());
            Err(CollectiveError::Mistyped { rank: from, tag, mine: T::DTYPE, theirs })
        }
        Err(other) => Err(other.into()),
    }
}

impl Group {
    /// The fabric's tag of a message of this group, of elements of a type.
    pub(crate) fn typed(&self, operation: OpName, tag: u64, dtype: DType) -> Result<u64, CollectiveError> {
        if tag < TAGS {
            // Label 0 is that of what the fabric sends by itself.
            return Ok(self.tags().at(tag) | (dtype as u64 + 1) << TAG_LABEL.trailing_zeros());
        }
        Err(CollectiveError::invalid(operation, format!("tag {tag} is too large: use one below {TAGS}")))
    }

    /// A rank to talk to, as the fabric knows it.
    pub(crate) fn peer(&self, op: OpName, rank: u32) -> Result<u32, FabricError> {
        let ranks = self.team().ranks();
        ranks.get(rank as usize).copied().ok_or(FabricError::NoSuchRank { op, rank, size: self.size() })
    }
}

/// A copy in the pool.
pub(crate) fn copy_of(fabric: &Fabric, bytes: &[u8]) -> Result<Exposed, FabricError> {
    let copy = fabric.alloc(bytes.len())?.into_exposed();
    copy.write(0, bytes);
    Ok(copy)
}

/// Whether a message that a buffer holds is copied into frames whatever carries it. Then it is as good as plain memory, and there is nothing
/// to lend.
fn goes_in_frames(fabric: &Fabric, memory: &Memory) -> bool {
    let len = memory.bytes().len() as u64;
    len < fabric.flow().rendezvous.max(1)
}

/// Receives into plain memory.
fn receive_plain(
    fabric: &Fabric,
    from: u32,
    tag: u64,
    mut values: ValuesMut<'_>,
    deadline: Duration,
) -> Result<usize, FabricError> {
    if let Some(bytes) = values.bytes_mut() {
        return fabric.recv_bytes(from, tag, bytes, deadline);
    }
    // Whatever bytes come, they become bools.
    let mut bytes = vec![0; values.len()];
    let len = fabric.recv_bytes(from, tag, &mut bytes, deadline)?;
    values.part(0..len).copy_from(&bytes[..len], Stores::Cached);
    Ok(len)
}

/// Which of a fabric's tags are those of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tags {
    /// Odd, so that no two tags of the group come to the same.
    factor: u64,
    offset: u64,
    /// Above the label; 0 for those of the fabric's first group, which are what programs say.
    side: u64,
}

/// Where tags have room for which group's they are: seven bits, above the label and below the mark of a group's own.
const SIDE: u32 = 56;
const SIDES: u64 = 127;

impl Tags {
    /// Of the group of this number. Those of two groups are all but certainly different ones: there are some 2^55.
    pub(crate) fn of(number: u64) -> Tags {
        if number == 0 {
            return Tags { factor: 1, offset: 0, side: 0 };
        }
        // A step of SplitMix64 each (Steele and others 2014).
        let mix = |step: u64| {
            let mixed = number.wrapping_add(step.wrapping_mul(0x9e37_79b9_7f4a_7c15));
            let mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
            mixed ^ mixed >> 31
        };
        Tags { factor: mix(1) | 1, offset: mix(2), side: mix(3) % SIDES + 1 }
    }

    fn at(self, tag: u64) -> u64 {
        (tag.wrapping_mul(self.factor).wrapping_add(self.offset) % TAGS) | self.side << SIDE
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;
    use crate::parts::digest;

    #[test]
    fn tags_of_groups_are_different_and_leave_room_for_labels() {
        let numbers = (0..40).map(|number| 2 * number).chain((0..40).map(|call| digest(&[0, call]) | 1));
        let tags = (0..200).chain((0..200).map(|tag| TAGS - 1 - tag)).chain((0..40).map(|shift| 1 << shift));
        let tags: HashSet<u64> = tags.collect();
        let mut all = HashSet::new();
        for number in numbers {
            for tag in &tags {
                let there = Tags::of(number).at(*tag);
                assert!(there & (TAG_LABEL | 1 << 63) == 0 && all.insert(there), "{tag} of {number}");
            }
        }
        assert_eq!(Tags::of(0).at(7), 7);
    }
}
