//! WRITE, READ and atomics: done here, on the target's mapped memory, or in its process by the system's calls. What can be
//! done neither way its owner is [asked](super::ask) for.

use std::ops::Range;
use std::sync::atomic::{Ordering, fence};

use fulmen_memory::Exposed;
use fulmen_verbs::{Access, CompletionStatus, RemoteAddr, SendOp};

use super::link::{Link, Near};
use super::message::HEADER;
use super::send::{Begun, Send, Stage, each_piece, runs};
use super::{Inner, Pair};
use crate::directory::SharedKey;
use crate::remote::Lookup;
use crate::vm::{Fault, LAST, Process, Runs};

/// How a peer's memory is reached.
enum Way<'a> {
    /// It is mapped here, and the bytes start there.
    Mapped(Exposed, usize),
    /// The system copies to and from its process.
    Copied(&'a Process),
    /// Its owner does it.
    Asked,
}

/// Why a peer's memory is not reached.
enum Unreached {
    /// The region is being mapped.
    Later,
    Refused(CompletionStatus),
}

impl Pair {
    /// Does the next request, which reaches into the peer's memory. `settled`: whatever came before has had its effect.
    pub(super) fn reach_across(&self, inner: &mut Inner, settled: bool) -> Begun {
        let (remote, remote_access, local_access, announced) = match inner.sends[inner.begun].op {
            SendOp::Send { .. } | SendOp::SendTo { .. } => unreachable!("a SEND reaches nowhere"),
            SendOp::Write { remote, imm } => (remote, Access::REMOTE_WRITE, Access::empty(), imm.is_some()),
            SendOp::Read { remote } => (remote, Access::REMOTE_READ, Access::LOCAL_WRITE, false),
            SendOp::FetchAdd { remote, .. } | SendOp::CompareSwap { remote, .. } => {
                (remote, Access::REMOTE_ATOMIC, Access::LOCAL_WRITE, false)
            }
        };
        let Some(Link::Near(link)) = &inner.link else { return Begun::Blocked };
        let send = &inner.sends[inner.begun];
        let reached = (send.bytes > 0).then(|| self.reach(link, remote, send.bytes as usize, remote_access));
        if let Some(Ok((Way::Asked, _))) = reached {
            // It takes its turn behind what came before.
            return self.ask(inner);
        }
        if !settled {
            return Begun::Blocked;
        }
        // Room for the announcement comes first: the bytes are written once.
        if announced {
            match inner.wire.ring.reserve(HEADER) {
                Ok(Some(_)) => {}
                Ok(None) => return Begun::Blocked,
                Err(_) => return Begun::As(Stage::Failed(CompletionStatus::RemoteOperation)),
            }
        }
        if !send.inline && self.places(&send.pieces, local_access).is_none() {
            return Begun::As(Stage::Failed(CompletionStatus::LocalProtection));
        }
        if remote_access == Access::REMOTE_ATOMIC && !remote.addr.is_multiple_of(8) {
            return Begun::As(Stage::Failed(CompletionStatus::RemoteInvalidRequest));
        }
        if let Some(reached) = reached {
            match reached {
                Ok((way, key)) => {
                    inner.wire.work_on(key);
                    // Its owner ends it by taking it out of the table, and waits for those who say that they work.
                    let is_valid = || link.remote.directory.has_key(key);
                    let does_listen = || link.wire.takes(inner.wire.incarnation);
                    let (mut valid, mut listens) = (is_valid(), does_listen());
                    let mut done = Ok(());
                    if valid && listens {
                        done = match way {
                            Way::Mapped(memory, at) => {
                                transfer(send, &memory, at);
                                Ok(())
                            }
                            Way::Copied(process) => copy(send, process, remote.addr),
                            Way::Asked => unreachable!("asked above"),
                        };
                        if let SendOp::Read { .. } = send.op {
                            // It does not wait for ever: what a stopped process read after that may be anything.
                            fence(Ordering::SeqCst);
                            (valid, listens) = (is_valid(), does_listen());
                        }
                    }
                    inner.wire.work_done();
                    if !listens
                        || matches!(done, Err(Fault::Process | Fault::Gone))
                        || done.is_err() && !link.remote.is_alive()
                    {
                        // The clock tells what becomes of it; if the peer lives, its owner is asked from now on.
                        return Begun::Blocked;
                    }
                    if !valid {
                        return self.refused(send, CompletionStatus::RemoteAccess);
                    }
                    if done == Err(Fault::Memory) {
                        // It is registered, and yet not mapped there, or not here.
                        return self.refused(send, CompletionStatus::RemoteOperation);
                    }
                }
                Err(Unreached::Later) => return Begun::Blocked,
                Err(Unreached::Refused(status)) => return self.refused(send, status),
            }
        }
        if announced { self.send_written(inner) } else { Begun::As(Stage::Done(inner.sends[inner.begun].bytes)) }
    }

    /// A refusal fails a reliable request; an unreliable one is lost.
    fn refused(&self, send: &Send, status: CompletionStatus) -> Begun {
        Begun::As(if self.is_reliable() { Stage::Failed(status) } else { Stage::Done(send.bytes) })
    }

    /// How the bytes at the peer are reached, and the key of their registration, which is never another one's.
    fn reach<'a>(
        &self,
        link: &'a Near,
        remote: RemoteAddr,
        len: usize,
        needed: Access,
    ) -> Result<(Way<'a>, u32), Unreached> {
        const DENIED: Unreached = Unreached::Refused(CompletionStatus::RemoteAccess);
        let shared = link.remote.directory.key(remote.rkey).ok_or(DENIED)?;
        let within = within(&shared, remote.addr, len).ok_or(DENIED)?;
        if !shared.access.contains(needed)
            || !link.wire.access().contains(needed)
            || shared.domain != link.wire.domain()
        {
            return Err(DENIED);
        }
        let Some(share) = shared.share else {
            // A word that is compared and swapped belongs to one executor.
            let process = link.remote.process().filter(|_| needed != Access::REMOTE_ATOMIC);
            return Ok((process.map_or(Way::Asked, Way::Copied), shared.key));
        };
        let memory = match link.remote.region(share, &self.domain.device.progress) {
            Lookup::Mapped(memory) => memory,
            Lookup::Later => return Err(Unreached::Later),
            // A peer that died meanwhile is told by the clock.
            Lookup::Refused if !link.remote.is_alive() => return Err(Unreached::Later),
            Lookup::Refused => return Err(Unreached::Refused(CompletionStatus::RemoteOperation)),
        };
        let misaligned = needed == Access::REMOTE_ATOMIC && !within.start.is_multiple_of(8);
        // A correct peer shares what it registered; the table may say anything.
        if within.end > memory.len() || misaligned {
            return Err(Unreached::Refused(CompletionStatus::RemoteOperation));
        }
        Ok((Way::Mapped(memory, within.start), shared.key))
    }
}

/// Where `len` bytes at the peer's address lie in the shared region; `None` if they are not all in the registration.
fn within(shared: &SharedKey, addr: u64, len: usize) -> Option<Range<usize>> {
    let len = len as u64;
    let at = addr.checked_sub(shared.addr)?;
    if at.checked_add(len)? > shared.len {
        return None;
    }
    let start = shared.offset.checked_add(at)?;
    let end = start.checked_add(len)?;
    Some(usize::try_from(start).ok()?..usize::try_from(end).ok()?)
}

fn transfer(send: &Send, memory: &Exposed, at: usize) {
    match send.op {
        SendOp::Send { .. } | SendOp::SendTo { .. } => unreachable!("a SEND reaches nowhere"),
        SendOp::Write { .. } => {
            let len = send.bytes as usize;
            let last = len.min(LAST);
            write(send, memory, at, 0, len - last);
            fence(Ordering::Release);
            write(send, memory, at, len - last, last);
        }
        SendOp::Read { .. } => {
            each_piece(&send.pieces, 0, send.bytes as usize, |piece, start, len, done| {
                memory.copy_to(at + done, piece, start, len);
            });
        }
        SendOp::FetchAdd { add, .. } => {
            give_back(send, memory.atomic_u64(at).fetch_add(add, Ordering::SeqCst));
        }
        SendOp::CompareSwap { compare, swap, .. } => {
            let swapped = memory.atomic_u64(at).compare_exchange(compare, swap, Ordering::SeqCst, Ordering::SeqCst);
            give_back(send, swapped.unwrap_or_else(|found| found));
        }
    }
}

/// Has the system do a WRITE or READ at `addr` of another process.
fn copy(send: &Send, process: &Process, addr: u64) -> Result<(), Fault> {
    let mut bytes = Runs::new();
    match &send.kept {
        Some(kept) => bytes.push_bytes(kept),
        None => bytes = runs(&send.pieces, 0, send.bytes as usize),
    }
    match send.op {
        SendOp::Write { .. } => process.write(bytes, addr),
        SendOp::Read { .. } => process.read(addr, bytes),
        _ => unreachable!("neither a SEND nor an atomic is copied"),
    }
}

/// Writes bytes `from..from + len` of a request to where they belong, `at` being the place of its first byte.
fn write(send: &Send, memory: &Exposed, at: usize, from: usize, len: usize) {
    if let Some(kept) = &send.kept {
        memory.write(at + from, &kept[from..from + len]);
        return;
    }
    each_piece(&send.pieces, from, len, |piece, start, len, done| {
        piece.copy_to(start, memory, at + from + done, len);
    });
}

/// Scatters an atomic's old value.
fn give_back(send: &Send, old: u64) {
    let bytes = old.to_ne_bytes();
    each_piece(&send.pieces, 0, bytes.len(), |piece, start, len, done| {
        piece.write(start, &bytes[done..done + len]);
    });
}
