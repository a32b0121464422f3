//! Messages between two ranks of a group.

use fulmen_fabric::{FabricError, OpName, TAG_LABEL};
use fulmen_kernels::{DType, Stores};

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
    /// [`CollectiveError::Fabric`], also if the receiver is seen to take a shorter message or another type;
    /// [`CollectiveError::Invalid`] for a tag of 2^48 or more.
    pub fn send<S: Data + ?Sized>(&self, data: &S, to: u32, tag: u64) -> Result<(), CollectiveError> {
        let tag = typed("send", tag, S::Element::DTYPE)?;
        Ok(self.fabric().send_bytes(to, tag, data.input().bytes(), self.deadline())?)
    }

    /// Receives the oldest message with this tag of another rank. Returns how many elements it had: as many as `data` has,
    /// or fewer.
    ///
    /// # Errors
    /// [`CollectiveError::Mistyped`] for a message of another type, and [`CollectiveError::Fabric`], also for one that is
    /// longer than `data`: both take the message away and write nothing. [`CollectiveError::Invalid`] for a tag of 2^48 or
    /// more.
    pub fn recv<D: Data + ?Sized>(&self, data: &mut D, from: u32, tag: u64) -> Result<usize, CollectiveError> {
        let typed = typed("recv", tag, D::Element::DTYPE)?;
        let (fabric, deadline) = (self.fabric(), self.deadline());
        let mut output = data.output();
        let mut values = output.values();
        let received = if let Some(bytes) = values.bytes_mut() {
            fabric.recv_bytes(from, typed, bytes, deadline)
        } else {
            // Whatever bytes come, they become bools.
            let mut bytes = vec![0; values.len()];
            let received = fabric.recv_bytes(from, typed, &mut bytes, deadline);
            if let Ok(len) = received {
                values.part(0..len).copy_from(&bytes[..len], Stores::Cached);
            }
            received
        };
        match received {
            Ok(len) => Ok(len / size_of::<D::Element>()),
            Err(FabricError::Mislabelled { label, .. }) => {
                let theirs = label.checked_sub(1).and_then(|dtype| DType::try_from(dtype).ok());
                let theirs = theirs.map_or_else(|| "bytes".to_owned(), |dtype| dtype.to_string());
                Err(CollectiveError::Mistyped { rank: from, tag, mine: D::Element::DTYPE, theirs })
            }
            Err(other) => Err(other.into()),
        }
    }
}

/// The tag of a message of elements of a type.
fn typed(operation: OpName, tag: u64, dtype: DType) -> Result<u64, CollectiveError> {
    if tag < TAGS {
        // Label 0 is that of what the fabric sends by itself.
        return Ok(tag | (dtype as u64 + 1) << TAG_LABEL.trailing_zeros());
    }
    Err(CollectiveError::invalid(operation, format!("tag {tag} is too large: use one below {TAGS}")))
}
