//! By which algorithm a call goes.

use super::Messages;
use crate::CollectiveError;
use crate::call::{Call, Kind};
use crate::plan::{Algorithm, Goal, Order, Wanted};
use crate::request::Request;

impl Messages {
    /// What a call needs of an algorithm.
    pub(super) fn wanted(&self, request: &Request<'_>) -> Wanted {
        let Call { kind, dtype, op, root, by_counts, .. } = request.call;
        let root = root as usize;
        let (goal, mixed) = match kind {
            Kind::AllReduce => (Goal::AllReduce, false),
            Kind::Reduce => (Goal::Reduce(root), false),
            Kind::Broadcast => (Goal::Broadcast(root), false),
            Kind::Scan => (Goal::Scan, false),
            Kind::AllGather if !by_counts => (Goal::AllGather, false),
            Kind::ReduceScatter if !by_counts => (Goal::ReduceScatter, false),
            _ => (Goal::AllReduce, true),
        };
        let whole = mixed || goal == Goal::ReduceScatter;
        let bytes = if whole { request.longest() } else { request.vector() };
        let free = !goal.combines() || request.how.order == Order::Any || op.is_exact(dtype);
        let partial = if goal.combines() { op.partial(dtype).1 } else { dtype };
        Wanted { goal, bytes, element: dtype.size(), partial: partial.size(), free, mixed }
    }

    /// How a call goes: the same on all ranks that make it.
    pub(crate) fn plan(&self, request: &Request<'_>) -> Result<Algorithm, CollectiveError> {
        let wanted = self.wanted(request);
        match request.how.algorithm {
            Some(chosen) if wanted.allows(chosen, &self.planner.sites) => Ok(chosen),
            Some(chosen) if request.call.kind == Kind::AllReduce => {
                let call = request.call;
                let problem =
                    format!("the algorithm {chosen} does no {call} in this order, among so many ranks on these hosts");
                Err(CollectiveError::invalid(call.kind.name(), problem))
            }
            _ => Ok(self.planner.choose(&wanted)),
        }
    }
}
