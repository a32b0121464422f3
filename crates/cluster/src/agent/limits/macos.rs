//! macOS can do neither: it has no groups of processes with limits, and gives orphans to nobody, so that not all that descends from a
//! process could be watched.

use std::io;

use rustix::process::Pid;

use super::super::api::Limit;

/// Nothing is ever limited.
pub(in crate::agent) struct Limits;

impl Limits {
    pub(in crate::agent) fn new(_cgroups: bool) -> Limits {
        Limits
    }

    /// Refuses.
    pub(in crate::agent) fn bound(&self, _limit: Limit, _id: u64) -> io::Result<Bound> {
        Err(io::Error::other("its memory and processors can only be limited on Linux: leave the limits away"))
    }
}

/// A process that is held to its limits: there is none.
pub(in crate::agent) enum Bound {}

impl Bound {
    pub(in crate::agent) fn is_entered(&self) -> bool {
        match *self {}
    }

    pub(in crate::agent) fn enter(&self, _leader: Pid) -> io::Result<()> {
        match *self {}
    }

    pub(in crate::agent) async fn exceeded(&self, _leader: Pid) {
        match *self {}
    }

    pub(in crate::agent) fn was_exceeded(&self) -> bool {
        match *self {}
    }

    pub(in crate::agent) fn kill(&self) {
        match *self {}
    }

    pub(in crate::agent) async fn clear(&self) {
        match *self {}
    }
}
