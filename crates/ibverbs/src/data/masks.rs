//! Which attributes a change of a queue pair's state needs, and which it allows (the tables of `ibv_modify_qp(3)` and
//! of the InfiniBand specification, 11.2.5.2).

use fulmen_verbs::{QueuePairKind as Kind, QueuePairState as State};

use crate::ffi::*;

/// What one change of state asks for. `IBV_QP_STATE` is left out of both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Rule {
    required: u32,
    optional: u32,
}

const PATH_EXTRAS: u32 = IBV_QP_ALT_PATH | IBV_QP_PATH_MIG_STATE;

/// The rule of a change; `None` if there is no such change.
fn rule(kind: Kind, from: State, to: State) -> Option<Rule> {
    let by_kind = |rc: u32, uc: u32, ud: u32| match kind {
        Kind::Rc => rc,
        Kind::Uc => uc,
        Kind::Ud => ud,
    };
    let identity = IBV_QP_PKEY_INDEX | IBV_QP_PORT;
    let first = by_kind(identity | IBV_QP_ACCESS_FLAGS, identity | IBV_QP_ACCESS_FLAGS, identity | IBV_QP_QKEY);
    let (required, optional) = match (from, to) {
        (_, State::Reset | State::Error) => (0, 0),
        (State::Reset, State::Init) => (first, 0),
        (State::Init, State::Init) => (0, first),
        (State::Init, State::ReadyToReceive) => {
            let uc = IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
            let connected = IBV_QP_ALT_PATH | IBV_QP_ACCESS_FLAGS | IBV_QP_PKEY_INDEX;
            (
                by_kind(uc | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER, uc, 0),
                by_kind(connected, connected, IBV_QP_PKEY_INDEX | IBV_QP_QKEY),
            )
        }
        (State::ReadyToReceive, State::ReadyToSend) => {
            let counts = IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;
            (by_kind(IBV_QP_SQ_PSN | counts, IBV_QP_SQ_PSN, IBV_QP_SQ_PSN), working(kind))
        }
        (State::ReadyToSend | State::SendDrain, State::ReadyToSend) => (0, working(kind)),
        (State::ReadyToSend, State::SendDrain) => (0, IBV_QP_EN_SQD_ASYNC_NOTIFY),
        (State::SendDrain, State::SendDrain) => {
            let uc = IBV_QP_AV | IBV_QP_ACCESS_FLAGS | IBV_QP_PKEY_INDEX | PATH_EXTRAS;
            let counts = IBV_QP_TIMEOUT
                | IBV_QP_RETRY_CNT
                | IBV_QP_RNR_RETRY
                | IBV_QP_MAX_QP_RD_ATOMIC
                | IBV_QP_MAX_DEST_RD_ATOMIC
                | IBV_QP_MIN_RNR_TIMER;
            (0, by_kind(uc | counts | IBV_QP_PORT, uc, IBV_QP_PKEY_INDEX | IBV_QP_QKEY))
        }
        _ => return None,
    };
    Some(Rule { required, optional })
}

/// What may change on a queue pair that works.
fn working(kind: Kind) -> u32 {
    let connected = IBV_QP_CUR_STATE | IBV_QP_ACCESS_FLAGS | PATH_EXTRAS;
    match kind {
        Kind::Rc => connected | IBV_QP_MIN_RNR_TIMER,
        Kind::Uc => connected,
        Kind::Ud => IBV_QP_CUR_STATE | IBV_QP_QKEY,
    }
}

/// Whether a queue pair may go from one state to another with this mask.
///
/// # Errors
/// What is wrong, in words that name the bits.
pub(super) fn check(kind: Kind, from: State, to: State, mask: u32) -> Result<(), String> {
    let Some(rule) = rule(kind, from, to) else {
        return Err(format!("a {kind} queue pair cannot go from {from} to {to}"));
    };
    let missing = rule.required & !mask;
    if missing != 0 {
        return Err(format!("{from} to {to} on {kind} needs {} in the mask", names(missing)));
    }
    let superfluous = mask & !(rule.required | rule.optional | IBV_QP_STATE);
    if superfluous != 0 {
        return Err(format!("{from} to {to} on {kind} does not take {}", names(superfluous)));
    }
    Ok(())
}

/// The names of a mask's bits, as the header has them.
fn names(mask: u32) -> String {
    const NAMES: [(u32, &str); 22] = [
        (IBV_QP_STATE, "IBV_QP_STATE"),
        (IBV_QP_CUR_STATE, "IBV_QP_CUR_STATE"),
        (IBV_QP_EN_SQD_ASYNC_NOTIFY, "IBV_QP_EN_SQD_ASYNC_NOTIFY"),
        (IBV_QP_ACCESS_FLAGS, "IBV_QP_ACCESS_FLAGS"),
        (IBV_QP_PKEY_INDEX, "IBV_QP_PKEY_INDEX"),
        (IBV_QP_PORT, "IBV_QP_PORT"),
        (IBV_QP_QKEY, "IBV_QP_QKEY"),
        (IBV_QP_AV, "IBV_QP_AV"),
        (IBV_QP_PATH_MTU, "IBV_QP_PATH_MTU"),
        (IBV_QP_TIMEOUT, "IBV_QP_TIMEOUT"),
        (IBV_QP_RETRY_CNT, "IBV_QP_RETRY_CNT"),
        (IBV_QP_RNR_RETRY, "IBV_QP_RNR_RETRY"),
        (IBV_QP_RQ_PSN, "IBV_QP_RQ_PSN"),
        (IBV_QP_MAX_QP_RD_ATOMIC, "IBV_QP_MAX_QP_RD_ATOMIC"),
        (IBV_QP_ALT_PATH, "IBV_QP_ALT_PATH"),
        (IBV_QP_MIN_RNR_TIMER, "IBV_QP_MIN_RNR_TIMER"),
        (IBV_QP_SQ_PSN, "IBV_QP_SQ_PSN"),
        (IBV_QP_MAX_DEST_RD_ATOMIC, "IBV_QP_MAX_DEST_RD_ATOMIC"),
        (IBV_QP_PATH_MIG_STATE, "IBV_QP_PATH_MIG_STATE"),
        (IBV_QP_CAP, "IBV_QP_CAP"),
        (IBV_QP_DEST_QPN, "IBV_QP_DEST_QPN"),
        (IBV_QP_RATE_LIMIT, "IBV_QP_RATE_LIMIT"),
    ];
    let mut words: Vec<String> =
        NAMES.iter().filter(|(bit, _)| mask & bit != 0).map(|(_, name)| (*name).to_owned()).collect();
    let known = NAMES.iter().fold(0, |known, (bit, _)| known | bit);
    if mask & !known != 0 {
        words.push(format!("{:#x}", mask & !known));
    }
    words.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    const INIT: u32 = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;
    const RTR_UC: u32 = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
    const RTR_RC: u32 = RTR_UC | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
    const RTS_RC: u32 =
        IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_TIMEOUT;

    /// The tables of the man page, whose masks pass, and of which each bit is missed.
    #[test]
    fn each_required_attribute_is_missed_by_name() {
        let (init_ud, rts) =
            (IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY, IBV_QP_STATE | IBV_QP_SQ_PSN);
        let table = [
            (Kind::Rc, State::Reset, State::Init, INIT),
            (Kind::Uc, State::Reset, State::Init, INIT),
            (Kind::Ud, State::Reset, State::Init, init_ud),
            (Kind::Rc, State::Init, State::ReadyToReceive, RTR_RC),
            (Kind::Uc, State::Init, State::ReadyToReceive, RTR_UC),
            (Kind::Ud, State::Init, State::ReadyToReceive, IBV_QP_STATE),
            (Kind::Rc, State::ReadyToReceive, State::ReadyToSend, RTS_RC),
            (Kind::Uc, State::ReadyToReceive, State::ReadyToSend, rts),
            (Kind::Ud, State::ReadyToReceive, State::ReadyToSend, rts),
        ];
        for (kind, from, to, mask) in table {
            assert_eq!(check(kind, from, to, mask), Ok(()), "{kind} {from} {to}");
            for bit in (0..26).map(|bit| 1 << bit).filter(|bit| mask & bit & !IBV_QP_STATE != 0) {
                let refused = check(kind, from, to, mask & !bit).expect_err("a bit is missing");
                assert!(refused.contains(&names(bit)), "{refused}");
            }
        }
    }

    #[test]
    fn what_a_change_does_not_take_is_refused() {
        assert!(check(Kind::Uc, State::Init, State::ReadyToReceive, RTR_RC).is_err_and(|why| {
            why.contains("IBV_QP_MAX_DEST_RD_ATOMIC, ") && why.contains("IBV_QP_MIN_RNR_TIMER")
                || why.contains("IBV_QP_MIN_RNR_TIMER, IBV_QP_MAX_DEST_RD_ATOMIC")
        }));
        assert!(check(Kind::Rc, State::Reset, State::ReadyToSend, RTS_RC).is_err());
        assert!(check(Kind::Rc, State::ReadyToReceive, State::ReadyToReceive, RTR_RC).is_err());
        assert!(check(Kind::Rc, State::Error, State::Init, INIT).is_err());
        assert!(check(Kind::Rc, State::ReadyToSend, State::Error, IBV_QP_STATE | IBV_QP_AV).is_err());
        assert!(
            check(Kind::Rc, State::Reset, State::Init, INIT | 1 << 30).is_err_and(|why| why.contains("0x40000000"))
        );
        for from in [State::Reset, State::Init, State::ReadyToReceive, State::ReadyToSend, State::SendDrain] {
            assert_eq!(check(Kind::Uc, from, State::Error, IBV_QP_STATE), Ok(()));
            assert_eq!(check(Kind::Ud, from, State::Reset, IBV_QP_STATE), Ok(()));
        }
    }
}
