//! Changing a queue pair's state, and telling its attributes.

use std::ffi::c_int;
use std::sync::PoisonError;

use fulmen_soft::Profile;
use fulmen_verbs::{Access, AckTimeout, Mtu, Path, QueuePairKind, QueuePairState as State, RnrTimer, Transition};

use super::ah::address_path;
use super::masks;
use super::qp::Qp;
use crate::context::Context;
use crate::error::{self, Call};
use crate::export::export;
use crate::ffi::*;
use crate::thunderbolt;

const NAME: &str = "ibv_modify_qp";

/// What the program has set, to be told when it asks.
#[derive(Clone, Copy)]
pub(super) struct Shadow {
    attr: ibv_qp_attr,
    init: ibv_qp_init_attr,
}

impl Shadow {
    /// Of a new queue pair, with what it was given.
    pub(super) fn new(init: &ibv_qp_init_attr) -> Shadow {
        // SAFETY: numbers, of which each may be zero.
        let mut attr: ibv_qp_attr = unsafe { std::mem::zeroed() };
        attr.cap = init.cap;
        attr.path_mig_state = IBV_MIG_MIGRATED;
        Shadow { attr, init: *init }
    }
}

/// A refusal: its number, and why.
struct Refusal(c_int, String);

fn invalid<T>(why: impl Into<String>) -> Result<T, Refusal> {
    Err(Refusal(libc::EINVAL, why.into()))
}

fn unsupported<T>(why: impl Into<String>) -> Result<T, Refusal> {
    Err(Refusal(libc::EOPNOTSUPP, why.into()))
}

/// How the header numbers it.
fn number(state: State) -> ibv_qp_state {
    match state {
        State::Reset => IBV_QPS_RESET,
        State::Init => IBV_QPS_INIT,
        State::ReadyToReceive => IBV_QPS_RTR,
        State::ReadyToSend => IBV_QPS_RTS,
        State::SendDrain => IBV_QPS_SQD,
        State::Error => IBV_QPS_ERR,
    }
}

/// A state that can be asked for. A failed send takes the whole queue pair to ERR here, so that nobody is in SQE.
fn state(number: ibv_qp_state) -> Option<State> {
    Some(match number {
        IBV_QPS_RESET => State::Reset,
        IBV_QPS_INIT => State::Init,
        IBV_QPS_RTR => State::ReadyToReceive,
        IBV_QPS_RTS => State::ReadyToSend,
        IBV_QPS_SQD => State::SendDrain,
        IBV_QPS_ERR => State::Error,
        _ => return None,
    })
}

fn mtu(number: ibv_mtu) -> Result<Mtu, Refusal> {
    Ok(match number {
        IBV_MTU_256 => Mtu::B256,
        IBV_MTU_512 => Mtu::B512,
        IBV_MTU_1024 => Mtu::B1024,
        IBV_MTU_2048 => Mtu::B2048,
        IBV_MTU_4096 => Mtu::B4096,
        _ => return invalid(format!("path_mtu {number} is none of 1 (256 bytes) to 5 (4096)")),
    })
}

fn access(flags: u32) -> Result<Access, Refusal> {
    let flags = flags & !IBV_ACCESS_OPTIONAL_RANGE;
    match Access::from_bits(flags & !IBV_ACCESS_MW_BIND) {
        Some(access) => Ok(access),
        None => invalid(format!("qp_access_flags {flags:#x} are not rights of queue pairs")),
    }
}

/// Takes what the mask says out of the program's attributes. Nothing is asked of the device.
fn take(shadow: &mut ibv_qp_attr, attr: &ibv_qp_attr, mask: u32) -> Result<(), Refusal> {
    macro_rules! copy {
        ($($bit:ident: $($field:ident)*,)*) => {
            $(if mask & $bit != 0 { $(shadow.$field = attr.$field;)* })*
        };
    }
    copy! {
        IBV_QP_ACCESS_FLAGS: qp_access_flags,
        IBV_QP_PKEY_INDEX: pkey_index,
        IBV_QP_PORT: port_num,
        IBV_QP_QKEY: qkey,
        IBV_QP_AV: ah_attr,
        IBV_QP_PATH_MTU: path_mtu,
        IBV_QP_TIMEOUT: timeout,
        IBV_QP_RETRY_CNT: retry_cnt,
        IBV_QP_RNR_RETRY: rnr_retry,
        IBV_QP_RQ_PSN: rq_psn,
        IBV_QP_MAX_QP_RD_ATOMIC: max_rd_atomic,
        IBV_QP_MIN_RNR_TIMER: min_rnr_timer,
        IBV_QP_SQ_PSN: sq_psn,
        IBV_QP_MAX_DEST_RD_ATOMIC: max_dest_rd_atomic,
        IBV_QP_DEST_QPN: dest_qp_num,
    }
    if mask & IBV_QP_PKEY_INDEX != 0 && attr.pkey_index != 0 {
        return invalid(format!("pkey_index {} is beyond the table, which has one entry", attr.pkey_index));
    }
    if mask & IBV_QP_ALT_PATH != 0 || mask & IBV_QP_PATH_MIG_STATE != 0 && attr.path_mig_state != IBV_MIG_MIGRATED {
        return unsupported("there are no alternate paths");
    }
    if mask & IBV_QP_EN_SQD_ASYNC_NOTIFY != 0 && attr.en_sqd_async_notify != 0 {
        return unsupported("no event tells that the send queue is drained: poll for its completions");
    }
    Ok(())
}

/// The steps on the device that lead to the new attributes.
fn steps(
    kind: QueuePairKind,
    from: State,
    to: State,
    new: &ibv_qp_attr,
    old: &ibv_qp_attr,
) -> Result<Vec<Transition>, Refusal> {
    let init = || {
        Ok(match kind {
            QueuePairKind::Ud => Transition::DatagramInit { port: new.port_num, qkey: new.qkey },
            _ => Transition::Init { port: new.port_num, access: access(new.qp_access_flags)? },
        })
    };
    if matches!(from, State::ReadyToReceive | State::ReadyToSend | State::SendDrain)
        && !matches!(to, State::Reset | State::Error)
    {
        unchanged(kind, new, old)?;
    }
    Ok(match (from, to) {
        (_, State::Reset) => vec![Transition::Reset],
        (_, State::Error) => vec![Transition::Error],
        (_, State::Init) => vec![init()?],
        (_, State::ReadyToReceive) => {
            let mut steps = Vec::new();
            // Rights and keys may change once more on the way.
            if (new.qp_access_flags, new.qkey) != (old.qp_access_flags, old.qkey) {
                steps.push(init()?);
            }
            steps.push(receive(kind, new)?);
            steps
        }
        (State::ReadyToSend, State::ReadyToSend) | (State::SendDrain, State::SendDrain) => Vec::new(),
        (_, State::ReadyToSend) => vec![match kind {
            QueuePairKind::Ud => Transition::DatagramSend { send_psn: new.sq_psn },
            _ => Transition::ReadyToSend {
                send_psn: new.sq_psn,
                timeout: AckTimeout(new.timeout),
                retries: new.retry_cnt,
                rnr_retries: new.rnr_retry,
                reads_in_flight: new.max_rd_atomic,
            },
        }],
        (_, State::SendDrain) => vec![Transition::SendDrain],
    })
}

fn receive(kind: QueuePairKind, new: &ibv_qp_attr) -> Result<Transition, Refusal> {
    if kind == QueuePairKind::Ud {
        return Ok(Transition::DatagramReceive);
    }
    let peer = address_path(&new.ah_attr);
    if peer.port != new.port_num {
        let why = format!("ah_attr.port_num is {}, and the queue pair is on port {}", peer.port, new.port_num);
        return invalid(why);
    }
    Ok(Transition::ReadyToReceive {
        path: Path {
            remote_gid: peer.remote_gid,
            remote_lid: peer.remote_lid,
            local_gid_index: peer.local_gid_index,
            remote_qp: new.dest_qp_num,
            mtu: mtu(new.path_mtu)?,
        },
        recv_psn: new.rq_psn,
        reads_served: new.max_dest_rd_atomic,
        min_rnr_timer: RnrTimer(new.min_rnr_timer),
    })
}

/// What a device takes before a queue pair works, and not later.
fn unchanged(kind: QueuePairKind, new: &ibv_qp_attr, old: &ibv_qp_attr) -> Result<(), Refusal> {
    let path = |attr: &ibv_qp_attr| (address_path(&attr.ah_attr), attr.port_num);
    let what = if new.qp_access_flags != old.qp_access_flags {
        "qp_access_flags"
    } else if new.qkey != old.qkey {
        "qkey"
    } else if kind != QueuePairKind::Ud && path(new) != path(old) {
        "ah_attr or port_num"
    } else if new.min_rnr_timer != old.min_rnr_timer {
        "min_rnr_timer"
    } else if new.max_dest_rd_atomic != old.max_dest_rd_atomic {
        "max_dest_rd_atomic"
    } else {
        return Ok(());
    };
    unsupported(format!("{what} cannot change on a queue pair that works: take it to RESET first"))
}

/// Whether ports of both sides are as the mask says, and what is left to ask of the device.
fn plan(
    kind: QueuePairKind,
    current: State,
    attr: &ibv_qp_attr,
    mask: u32,
    shadow: &Shadow,
) -> Result<(State, ibv_qp_attr, Vec<Transition>), Refusal> {
    let to = if mask & IBV_QP_STATE == 0 {
        current
    } else {
        match state(attr.qp_state) {
            Some(to) => to,
            None => return invalid(format!("qp_state {} cannot be asked for", attr.qp_state)),
        }
    };
    if mask & IBV_QP_CUR_STATE != 0 && attr.cur_qp_state != number(current) {
        return invalid(format!("cur_qp_state is {}, and the queue pair is in {current}", attr.cur_qp_state));
    }
    if let Err(why) = masks::check(kind, current, to, mask) {
        return invalid(why);
    }
    let mut new = shadow.attr;
    take(&mut new, attr, mask)?;
    let steps = steps(kind, current, to, &new, &shadow.attr)?;
    if to == State::Reset {
        new = Shadow::new(&shadow.init).attr;
    }
    Ok((to, new, steps))
}

/// The call whose error numbers a transition has.
fn call(transition: &Transition) -> Call {
    match transition {
        Transition::ReadyToReceive { .. } | Transition::DatagramReceive => Call::ModifyToReceive,
        _ => Call::Modify,
    }
}

export! {
    /// Changes the attributes that the mask names, and the state.
    "IBVERBS_1.1" fn ibv_modify_qp(qp: *mut ibv_qp, attr: *mut ibv_qp_attr, attr_mask: c_int) -> c_int {
        // SAFETY: a queue pair that lives, of an open device, and the program's attributes.
        let (own, context, attr) = unsafe { (Qp::of(qp), Context::of((*qp).context), &*attr) };
        let mut shadow = own.shadow.lock().unwrap_or_else(PoisonError::into_inner);
        let (to, new, steps) = match plan(own.kind, own.pair.state(), attr, attr_mask as u32, &shadow) {
            Ok(plan) => plan,
            Err(Refusal(errno, why)) => {
                return error::refuse(NAME, errno, format!("queue pair {}: {why}", own.pair.qp_num()));
            }
        };
        let refused = own.lint.and_then(|lint| match to {
            State::Error => lint.modify_to_error(own.pair.qp_num()),
            State::Reset => lint.modify_to_reset(own.pair.qp_num()),
            _ => None,
        });
        if let Some(errno) = refused {
            return error::refuse(NAME, errno, "it breaks a rule of Thunderbolt");
        }
        for step in &steps {
            let allowed = match step {
                Transition::ReadyToReceive { .. } if own.profile == Profile::Thunderbolt => {
                    thunderbolt::check_domains(context)
                }
                _ => Ok(()),
            };
            if let Err(cause) = allowed.and_then(|()| own.pair.modify(step)) {
                return context.fail(NAME, call(step), &cause);
            }
        }
        shadow.attr = new;
        own.set_qkey(new.qkey);
        // SAFETY: the program's own, which says what was asked for last.
        unsafe { (*qp).state = number(to) };
        0
    }

    /// Tells all attributes, whatever the mask says, and those that the queue pair was made with.
    "IBVERBS_1.1" fn ibv_query_qp(qp: *mut ibv_qp, attr: *mut ibv_qp_attr, _attr_mask: c_int, init_attr: *mut ibv_qp_init_attr) -> c_int {
        // SAFETY: a queue pair that lives.
        let own = unsafe { Qp::of(qp) };
        let Shadow { attr: mut told, init } = *own.shadow.lock().unwrap_or_else(PoisonError::into_inner);
        let state = number(own.pair.state());
        (told.qp_state, told.cur_qp_state) = (state, state);
        // SAFETY: the program's places, and its own field of the queue pair.
        unsafe {
            *attr = told;
            *init_attr = init;
            (*qp).state = state;
        }
        0
    }
}
