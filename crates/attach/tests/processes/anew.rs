//! An owner that ends and begins anew: programs that were attached to it hear of that, and later ones find the new one.

use fulmen_attach::{AttachError, Attached};
use fulmen_testbed::Child;
use fulmen_verbs::{CompletionStatus, Transition, VerbsError};

use super::side::{Name, Side};
use super::support::{House, NAME, strict};
use super::talk::{Talk, nothing_is_left};
use super::until;

/// A program in this process, and one in another that takes nothing.
fn joined(here: &House, there: &House) -> (Side, Child) {
    let mut child = Child::start(&format!("idle {}", there.socket.display()));
    let side = Side::with(&here.socket, 1, 1);
    let peer = Name::from_line(&child.hear());
    child.tell(&side.name().to_line());
    side.connect(&peer).expect("connected");
    assert_eq!(child.hear(), "connected");
    (side, child)
}

/// The peer is known to be gone. As over the device itself, nothing else tells of that, and the queue pair can be ended.
fn is_lost(side: &Side) {
    until("the peer is gone", || side.pairs[0].is_peer_gone().then_some(()));
    side.recv(0, 1, 0);
    side.pairs[0].modify(&Transition::Error).expect("ERR");
    let completion = until("the end of a RECV", || side.poll());
    assert_eq!((completion.wr_id, completion.status), (1, CompletionStatus::Flushed));
}

#[test]
fn programs_of_an_owner_that_ends_hear_of_it() {
    let mut houses = House::street([strict(), strict()]);
    let (mut own, _other) = joined(&houses[0], &houses[1]);
    let (far, _another) = joined(&houses[1], &houses[0]);
    houses[0].close();
    is_lost(&own);
    is_lost(&far);
    for error in [own.create().expect_err("nobody counts it"), own.device.port(1).expect_err("nobody knows")] {
        assert!(matches!(error, VerbsError::System { .. }), "{error:?}");
        assert!(error.to_string().contains("the owner of the device does not answer"), "{error}");
    }
    let Err(error) = Attached::open(&houses[0].socket, NAME) else { panic!("nobody serves") };
    assert!(matches!(error, AttachError::NoOwner { .. }), "{error:?}");
    // Programs of the owner that is there cannot reach the other one, and hear why.
    let side = Side::with(&houses[1].socket, 1, 1);
    let gid = houses[0].device.gid_table(1).expect("port 1")[0].gid;
    let error = side.connect(&Name { gid, numbers: vec![1] }).expect_err("nobody owns it");
    assert!(error.to_string().contains("nobody has"), "{error}");
    drop((own, far, side));
    houses[0].open();
    Talk::start([&houses[0].socket, &houses[1].socket], 41, 300).finish(|| {});
}

#[test]
fn owners_that_begin_anew_join_again() {
    let mut houses = House::street([strict(), strict()]);
    Talk::start([&houses[0].socket, &houses[1].socket], 51, 50).finish(|| {});
    for round in 0..20 {
        let (one, other) = joined(&houses[0], &houses[1]);
        // The other one keeps its end of the trunk, and may not know yet.
        houses[round % 2].close();
        houses[round % 2].open();
        let first = round / 2 % 2;
        let sockets = [&*houses[first].socket, &*houses[1 - first].socket];
        Talk::start(sockets, 52 + round as u64, 50).finish(|| {});
        is_lost(&one);
        other.kill();
        drop(one);
        nothing_is_left(&houses);
        let trunks = houses.iter().map(|house| house.owner.as_ref().expect("open").status()[0].trunks);
        assert_eq!(trunks.collect::<Vec<_>>(), [1, 1]);
    }
}
