//! Queue pairs: those of the software device, whose peers are the owner's.

use std::sync::Arc;

use fulmen_verbs::{
    Gid, Path, PostError, QueuePair, QueuePairKind, QueuePairLimits, QueuePairState, RecvRequest, SendOp, SendRequest,
    Transition, VerbsError,
};

use super::Core;
use crate::inside::inside;
use crate::wire::{Ask, Place, Told};

pub(super) struct AttachedPair {
    core: Arc<Core>,
    inner: Option<Arc<dyn QueuePair>>,
    /// By which its peer names it.
    number: u32,
}

impl AttachedPair {
    pub(super) fn new(core: Arc<Core>, inner: Arc<dyn QueuePair>) -> Result<AttachedPair, VerbsError> {
        let soft = inner.qp_num();
        let Told::Created { number } = core.ask("create_qp", &Ask::Create { soft })? else {
            return Err(core.garbled("create_qp"));
        };
        core.names.add(soft, number);
        Ok(AttachedPair { core, inner: Some(inner), number })
    }

    fn inner(&self) -> &dyn QueuePair {
        &**self.inner.as_ref().expect("only dropping takes it")
    }

    /// What the software device says of its own queue pair is of this one.
    fn of_this(&self, mut cause: VerbsError) -> VerbsError {
        use VerbsError as E;
        if let E::State { qp_num, .. }
        | E::QueueFull { qp_num, .. }
        | E::Unreachable { qp_num, .. }
        | E::Stale { qp_num, .. } = &mut cause
        {
            *qp_num = self.number;
        }
        cause
    }

    fn posted(&self, result: Result<(), PostError>) -> Result<(), PostError> {
        result.map_err(|refused| PostError { cause: self.of_this(refused.cause), ..refused })
    }

    /// Finds the peer.
    fn connect(&self, path: &Path) -> Result<(), VerbsError> {
        let (_, gids) = self.core.look(1)?;
        let gid_index = path.local_gid_index;
        if !gids.iter().any(|entry| entry.index == gid_index) {
            let problem = format!("the port has no GID of index {gid_index}");
            return Err(VerbsError::Invalid { what: "GID index", problem });
        }
        let unreachable =
            |cause: String| VerbsError::Unreachable { qp_num: self.number, peer: path.remote_gid.to_string(), cause };
        let to = Place { gid: path.remote_gid.0, lid: path.remote_lid };
        let ask = Ask::Connect { number: self.number, gid_index, to, remote: path.remote_qp };
        let (gid, pair) = match self.core.owner.ask(&ask) {
            Ok(Told::Connected { gid, pair }) => (Gid(gid), pair),
            Ok(Told::Refused(reason)) => return Err(unreachable(reason.to_string())),
            Ok(_) => return Err(self.core.garbled("modify_qp")),
            Err(cause) => return Err(unreachable(format!("the owner of the device does not answer: {cause}"))),
        };
        let [_, ready_to_receive, _] = inside(gid, pair);
        let ready = self.inner().modify(&ready_to_receive);
        ready.inspect_err(|_| self.part()).map_err(|cause| self.of_this(cause))
    }

    /// The peer's word counts no more.
    fn part(&self) {
        // An owner that does not answer has nothing that could be parted.
        let _ = self.core.owner.ask(&Ask::Disconnect { number: self.number });
    }
}

impl QueuePair for AttachedPair {
    fn qp_num(&self) -> u32 {
        self.number
    }

    fn state(&self) -> QueuePairState {
        self.inner().state()
    }

    fn limits(&self) -> QueuePairLimits {
        self.inner().limits()
    }

    fn is_peer_gone(&self) -> bool {
        self.inner().is_peer_gone()
    }

    fn modify(&self, transition: &Transition) -> Result<(), VerbsError> {
        let before = self.state();
        self.core.info.check_transition(self.number, before, transition)?;
        let below = |transition: &Transition| self.inner().modify(transition).map_err(|cause| self.of_this(cause));
        match transition {
            Transition::ReadyToReceive { path, .. } => self.connect(path),
            Transition::ReadyToSend { .. } => {
                let [_, _, ready_to_send] = inside(Gid::default(), 0);
                below(&ready_to_send)
            }
            Transition::Reset | Transition::Error => {
                below(transition)?;
                if !matches!(before, QueuePairState::Reset | QueuePairState::Init) {
                    self.part();
                }
                Ok(())
            }
            other => below(other),
        }
    }

    fn post_send(&self, requests: &[SendRequest]) -> Result<(), PostError> {
        let limits = self.limits();
        let check = |request| self.core.info.check_send(QueuePairKind::Uc, &limits, request);
        let refused = requests.iter().enumerate().find_map(|(index, request)| Some((index, check(request).err()?)));
        let good = refused.as_ref().map_or(requests, |(index, _)| &requests[..*index]);
        let posted = if good.iter().any(|request| request.solicited) {
            // No completion tells the owner of it.
            let loud = |request: &SendRequest| {
                let op = SendOp::Send { imm: request.solicited.then_some(1) };
                SendRequest { op, ..request.clone() }
            };
            self.inner().post_send(&good.iter().map(loud).collect::<Vec<_>>())
        } else {
            self.inner().post_send(good)
        };
        self.posted(posted)?;
        refused.map_or(Ok(()), |(index, cause)| Err(PostError { index, cause }))
    }

    fn post_recv(&self, requests: &[RecvRequest]) -> Result<(), PostError> {
        self.posted(self.inner().post_recv(requests))
    }
}

impl Drop for AttachedPair {
    fn drop(&mut self) {
        let soft = self.inner().qp_num();
        // First: its memory is let go of before anybody hears that it is gone.
        drop(self.inner.take());
        self.core.names.remove(soft);
        // An owner that is gone has nothing of it.
        let _ = self.core.owner.ask(&Ask::Remove { number: self.number });
    }
}
