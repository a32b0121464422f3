//! Rules against calls, without a device.

use fulmen_verbs::VerbsError;

use super::*;
use crate::error::Call;

fn lint(fails: bool) -> Lint {
    Lint::new(fails, None)
}

/// What breaks no rule.
fn good_pair() -> PairAsked {
    PairAsked {
        is_uc: true,
        kind: "UC",
        send_depth: 32,
        recv_depth: 4095,
        send_sges: 1,
        recv_sges: 1,
        inline: 0,
        has_srq: false,
    }
}

fn good_send() -> SendAsked {
    SendAsked { is_send: true, op: "SEND", has_imm: false, is_inline: false, sges: 1, bytes: 16_773_120 }
}

#[test]
fn names_are_those_of_the_documentation() {
    let docs = include_str!("../../../../docs/thunderbolt.md");
    for rule in Rule::ALL {
        assert!(docs.contains(&format!("`{}`", rule.name())), "docs/thunderbolt.md has no rule {}", rule.name());
        assert!(!rule.hardware().is_empty() && !rule.way_out().is_empty() && rule.errno() > 0);
    }
}

#[test]
fn calls_are_refused_in_mode_fail_only() {
    let bad_pairs = [
        PairAsked { is_uc: false, kind: "RC", ..good_pair() },
        PairAsked { send_depth: 4096, ..good_pair() },
        PairAsked { recv_depth: 4096, ..good_pair() },
        PairAsked { send_sges: 2, ..good_pair() },
        PairAsked { recv_sges: 2, ..good_pair() },
        PairAsked { inline: 1, ..good_pair() },
        PairAsked { has_srq: true, ..good_pair() },
    ];
    let bad_sends = [
        SendAsked { is_send: false, op: "RDMA WRITE", ..good_send() },
        SendAsked { has_imm: true, ..good_send() },
        SendAsked { is_inline: true, ..good_send() },
        SendAsked { sges: 2, ..good_send() },
        SendAsked { bytes: 16_773_121, ..good_send() },
    ];
    for (lint, fails) in [(lint(false), false), (lint(true), true)] {
        assert_eq!(lint.create_qp("ibv_create_qp", 1, &good_pair()), None);
        assert_eq!(lint.post_send("ibv_post_send", 1, &good_send()), None);
        assert!(lint.report.summary().is_empty(), "no rule was broken");
        for pair in &bad_pairs {
            assert_eq!(lint.create_qp("ibv_create_qp", 1, pair).is_some(), fails);
        }
        for send in &bad_sends {
            assert_eq!(lint.post_send("ibv_post_send", 1, send), fails.then_some(22));
        }
        let counted = lint.report.summary();
        assert_eq!(counted.len(), 8, "{counted:?}");
        assert!(
            counted.contains(&"fulmen lint: rule one-sge was broken 3 times, on 1 object".to_owned()),
            "{counted:?}"
        );
    }
}

#[test]
fn registrations_that_cross_4_gib_are_told() {
    let gib4 = 1_u64 << 32;
    for (range, crossing) in [
        (gib4 - 4096..gib4, false),
        (gib4..gib4 + 4096, false),
        (gib4 - 4096..gib4 + 1, true),
        (gib4..2 * gib4, false),
        (gib4 - 65536..3 * gib4, true),
    ] {
        assert_eq!(crosses(&range), crossing, "{range:x?}");
        assert_eq!(lint(true).reg_mr("ibv_reg_mr", &range, 1).is_some(), crossing, "{range:x?}");
    }
}

#[test]
fn registrations_have_rules_on_pages_and_rights() {
    let lint = lint(true);
    let page = fulmen_memory::page_size() as u64;
    assert_eq!(lint.reg_mr("ibv_reg_mr", &(page..page + 100), 1 | 2 | 4), None);
    for (start, access) in [(page + 64, 1), (page, 0), (page, 1 | 8), (page, 1 | 1 << 20)] {
        assert_eq!(lint.reg_mr("ibv_reg_mr", &(start..start + 4096), access), Some(22), "{start} {access}");
    }
}

/// Users of Macs were told these numbers.
#[test]
fn errors_have_darwins_numbers() {
    let device = || "rdma_en2".to_owned();
    let limit = |what| VerbsError::Limit { device: device(), what, asked: 11, limit: 10 };
    let peer = || "fe80::1".to_owned();
    let cases = [
        (VerbsError::NoSuchKind { device: device(), kind: fulmen_verbs::QueuePairKind::Rc }, Call::CreateQp, 102),
        (limit("queue pairs"), Call::CreateQp, 16),
        (limit("registrations"), Call::RegisterMemory, 12),
        (limit("pieces in a send request"), Call::CreateQp, 22),
        (VerbsError::Invalid { what: "GID", problem: "zero".to_owned() }, Call::ModifyToReceive, 22),
        (VerbsError::Unreachable { qp_num: 1, peer: peer(), cause: "gone".to_owned() }, Call::ModifyToReceive, 60),
        (
            VerbsError::Stale { qp_num: 1, peer: peer(), remote_qp: 2, problem: "is in error".to_owned() },
            Call::ModifyToReceive,
            16,
        ),
        (limit("protection domains"), Call::ModifyToReceive, 96),
        (VerbsError::QueueFull { queue: "send", qp_num: 1, depth: 512 }, Call::Post, 12),
        (VerbsError::Unsupported { device: device(), what: "RDMA WRITE" }, Call::Post, 22),
    ];
    for (error, call, errno) in cases {
        assert_eq!(errno_of(&error, call), errno, "{error}");
    }
    assert_eq!((number(libc::EOPNOTSUPP), number(22), number(60)), (102, 22, 60));
}
