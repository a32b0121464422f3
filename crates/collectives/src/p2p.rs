//! Messages between two ranks of a group.

use fulmen_fabric::OpName;
use fulmen_kernels::Stores;

use crate::{CollectiveError, Data, Element, Group};

/// The tags that programs may use are below this one; those above are the group's own.
const TAGS: u64 = 1 << 48;

impl Group {
    /// Sends elements to another rank, which receives them with the same tag. Messages of one tag arrive in order.
    ///
    /// Returns when `data` may be used for other things; the receiver may not have called [`Group::recv`] yet. Does not
    /// poison the group when it fails.
    ///
    /// # Errors
    /// [`CollectiveError::Fabric`]; [`CollectiveError::Invalid`] for a tag of 2^48 or more.
    pub fn send<S: Data + ?Sized>(&self, data: &S, to: u32, tag: u64) -> Result<(), CollectiveError> {
        let tag = check_tag("send", tag)?;
        Ok(self.fabric().send_bytes(to, tag, data.input().bytes(), self.deadline())?)
    }

    /// Receives a message of another rank. Returns how many elements it had: as many as `data` has, or fewer.
    ///
    /// # Errors
    /// [`CollectiveError::Fabric`] (also when the message is longer than `data`); [`CollectiveError::Invalid`] for a tag
    /// of 2^48 or more, and for a message that ends inside an element.
    pub fn recv<D: Data + ?Sized>(&self, data: &mut D, from: u32, tag: u64) -> Result<usize, CollectiveError> {
        let tag = check_tag("recv", tag)?;
        let (fabric, deadline) = (self.fabric(), self.deadline());
        let mut output = data.output();
        let mut values = output.values();
        let len = if let Some(bytes) = values.bytes_mut() {
            fabric.recv_bytes(from, tag, bytes, deadline)?
        } else {
            // Whatever bytes come, they become bools.
            let mut bytes = vec![0; values.len()];
            let len = fabric.recv_bytes(from, tag, &mut bytes, deadline)?;
            values.part(0..len).copy_from(&bytes[..len], Stores::Cached);
            len
        };
        let size = size_of::<D::Element>();
        if !len.is_multiple_of(size) {
            let problem = format!(
                "rank {from} sent {len} bytes, which are no whole number of {}: send and receive the same type",
                D::Element::DTYPE
            );
            return Err(CollectiveError::invalid("recv", problem));
        }
        Ok(len / size)
    }
}

fn check_tag(operation: OpName, tag: u64) -> Result<u64, CollectiveError> {
    if tag < TAGS {
        return Ok(tag);
    }
    Err(CollectiveError::invalid(operation, format!("tag {tag} is too large: use one below {TAGS}")))
}
