//! The ranks of a group, among those of the fabric.

use std::sync::Arc;

use fulmen_fabric::{Fabric, Window};

use crate::CollectiveError;
use crate::deadline::Deadline;
use crate::messages::Nearby;
use crate::plan::Placement;
use crate::windows::Windows;

/// Who is in a group, in the order of its ranks.
#[derive(Clone)]
pub(crate) struct Team {
    pub(crate) fabric: Fabric,
    /// By rank of the group, the rank of the fabric.
    ranks: Arc<[u32]>,
    /// Without this one.
    others: Arc<[u32]>,
    rank: usize,
}

impl Team {
    /// All ranks.
    pub(crate) fn all(fabric: &Fabric) -> Team {
        let ranks: Vec<u32> = (0..fabric.size()).collect();
        Team::of(fabric, &ranks).expect("this rank is one of all")
    }

    /// These, if this rank is one of them.
    pub(crate) fn of(fabric: &Fabric, ranks: &[u32]) -> Option<Team> {
        let rank = ranks.iter().position(|rank| *rank == fabric.rank())?;
        let others = ranks.iter().copied().filter(|other| *other != fabric.rank()).collect();
        Some(Team { fabric: fabric.clone(), ranks: ranks.into(), others, rank })
    }

    /// Where the ranks are, if calls can go by way of their hosts.
    pub(crate) fn placement(&self) -> Option<Placement> {
        let numbers = self.fabric.hosts().numbers();
        let hosts: Vec<u32> = self.ranks.iter().map(|rank| numbers[*rank as usize]).collect();
        // The same on all ranks.
        let maps = self.fabric.has_windows_among(&[self.fabric.rank()]);
        Placement::new(&hosts).filter(|_| maps)
    }

    /// What this rank has beside messages, over a window of the ranks of its host. Collective among these.
    pub(crate) fn nearby(
        &self,
        placement: Placement,
        window: Window,
        deadline: &mut Deadline,
    ) -> Result<Nearby, CollectiveError> {
        let near: Vec<u32> = placement.ranks(placement.host(self.rank)).map(|rank| self.in_fabric(rank)).collect();
        let team = Team::of(&self.fabric, &near).expect("this rank is on its host");
        Ok(Nearby::new(Windows::new(team, window, deadline)?, placement, self.rank))
    }

    /// This rank in the group.
    pub(crate) fn rank(&self) -> usize {
        self.rank
    }

    pub(crate) fn size(&self) -> usize {
        self.ranks.len()
    }

    /// The ranks of the fabric.
    pub(crate) fn ranks(&self) -> &[u32] {
        &self.ranks
    }

    /// The ranks of the fabric but this one.
    pub(crate) fn others(&self) -> &[u32] {
        &self.others
    }

    /// A rank of the group, as the fabric knows it.
    #[inline]
    pub(crate) fn in_fabric(&self, rank: usize) -> u32 {
        self.ranks[rank]
    }
}
