//! On which hosts the ranks are: what they can use to talk depends on it.

use std::time::Duration;

use crate::bootstrap::{Session, SessionError};

/// The hosts of a generation's ranks, by rank. `FULMEN_HOST_ID` can say which host a process is on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hosts {
    own: u32,
    /// None where a rank does not know.
    ids: Vec<Option<[u8; 16]>>,
}

impl Hosts {
    /// All ranks tell one another where they are. Each generation begins with this, whoever starts it.
    pub(crate) fn exchange(session: &Session, timeout: Duration) -> Result<Hosts, SessionError> {
        let own = fulmen_reach::this_host().map(Vec::from).unwrap_or_default();
        let blobs = session.all_gather(&own, timeout)?;
        let ids = blobs.into_iter().map(|blob| blob.try_into().ok()).collect();
        Ok(Hosts { own: session.rank(), ids })
    }

    /// The first rank that is on another host than this one; `None` if all are on this one.
    #[must_use]
    pub fn elsewhere(&self) -> Option<u32> {
        let own = self.ids[self.own as usize];
        let is_elsewhere =
            |(rank, id): (u32, &Option<_>)| (rank != self.own && (id.is_none() || *id != own)).then_some(rank);
        (0..).zip(&self.ids).find_map(is_elsewhere)
    }

    /// Whether all ranks are on one host; the same answer on each of them.
    #[must_use]
    pub fn are_one(&self) -> bool {
        self.ids.len() == 1 || self.ids.iter().all(|id| id.is_some() && *id == self.ids[0])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_are_on_one_host_if_all_say_so() {
        let hosts = |own, ids: &[Option<u8>]| {
            let ids = ids.iter().map(|id| id.map(|id| [id; 16])).collect();
            let hosts = Hosts { own, ids };
            (hosts.are_one(), hosts.elsewhere())
        };
        assert_eq!(hosts(0, &[Some(1)]), (true, None));
        assert_eq!(hosts(0, &[None]), (true, None));
        assert_eq!(hosts(1, &[Some(1), Some(1), Some(1)]), (true, None));
        assert_eq!(hosts(0, &[Some(1), Some(1), Some(2)]), (false, Some(2)));
        assert_eq!(hosts(2, &[Some(1), Some(1), Some(2)]), (false, Some(0)));
        assert_eq!(hosts(0, &[Some(1), None]), (false, Some(1)));
        assert_eq!(hosts(0, &[None, None]), (false, Some(1)));
    }
}
