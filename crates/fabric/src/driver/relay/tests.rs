//! The switch by itself: what neighbours carry to it, honest or not.

use std::collections::VecDeque;
use std::time::Duration;

use proptest::prelude::*;

use super::*;
use crate::driver::Parker;
use crate::engine::{Carried, Lent};
use crate::liveness::Life;
use crate::topology::Graph;
use crate::{Loss, LossCause};

struct Deaf;
impl Parker for Deaf {
    fn park(&self, _timeout: Duration, _awake: &mut dyn FnMut() -> bool) {}
    fn wake(&self) {}
}

/// Rank 1 of a square (0, 1, 2 and 3 in a circle) with rank 4 behind rank 3.
fn switch() -> (Switch, Mesh) {
    let mut graph = Graph::new(5);
    for (one, other) in [(0, 1), (1, 2), (2, 3), (3, 0), (3, 4)] {
        graph.join(one, other, 1);
    }
    let mesh = Mesh::new(graph, 1024);
    (Switch::new(1, &mesh), mesh)
}

fn link() -> Link {
    let config = Config {
        frame: 1024,
        long: None,
        credits: 60,
        unexpected: 1 << 20,
        rendezvous: Rendezvous::Matched,
        verify: false,
        #[cfg(feature = "planted-bugs")]
        planted: None,
    };
    let mut link = Link::new(config);
    link.carry_for_others();
    link
}

/// Has a neighbour carry these to the switch.
fn carry(switch: &Switch, from: u32, frames: &[Carried]) -> Result<(), String> {
    let (mut there, mut here) = (link(), link());
    for frame in frames {
        there.carry(frame.clone());
        let out = there.transmit(&Lent::Nothing).unwrap();
        let bytes = [out.header.as_bytes(), there.packed()].concat();
        there.transmitted(&out);
        here.receive(bytes.as_slice(), &mut Lent::Nothing).unwrap();
        switch.unload(from, &mut here).map_err(|broken| broken.0)?;
        while let Some(back) = here.transmit(&Lent::Nothing) {
            here.transmitted(&back);
            there.receive(back.header.as_bytes(), &mut Lent::Nothing).unwrap();
        }
    }
    Ok(())
}

fn carried(source: u16, destination: u16, hops: u8, bytes: &[u8]) -> Carried {
    Carried { source, destination, hops, bytes: bytes.to_vec() }
}

/// What the link to a neighbour would carry.
fn loaded(switch: &Switch, to: u32) -> Vec<Carried> {
    let (mut all, mut there) = (Vec::new(), link());
    loop {
        let mut link = link();
        switch.load(to, &mut link);
        if link.carrying() == 0 {
            return all;
        }
        while let Some(out) = link.transmit(&Lent::Nothing) {
            let bytes = [out.header.as_bytes(), link.packed()].concat();
            link.transmitted(&out);
            let sequence = (all.len() as u32).to_le_bytes();
            let bytes = [&bytes[..4], &sequence, &bytes[8..]].concat();
            there.receive(bytes.as_slice(), &mut Lent::Nothing).unwrap();
            all.push(there.next_carried().unwrap());
            while let Some(back) = there.transmit(&Lent::Nothing) {
                there.transmitted(&back);
            }
        }
    }
}

#[test]
fn what_is_for_others_goes_on_with_one_hop_less_and_what_is_for_this_rank_stays() {
    let (switch, _) = switch();
    carry(&switch, 0, &[carried(0, 2, 3, b"on"), carried(3, 1, 0, b"here")]).unwrap();
    assert_eq!(switch.waited_for().collect::<Vec<_>>(), [2, 3]);
    assert_eq!(loaded(&switch, 2), [carried(0, 2, 2, b"on")]);
    let mut come = VecDeque::new();
    switch.take(3, &mut come);
    assert_eq!(come, [carried(3, 1, 0, b"here")]);
    assert_eq!(switch.waited_for().count(), 0);
    let relayed = switch.relayed();
    assert_eq!((relayed.frames, relayed.bytes, relayed.held, relayed.dropped), (1, 2, 0, 0));
}

#[test]
fn a_frame_that_was_passed_on_too_often_is_dropped() {
    let (switch, _) = switch();
    carry(&switch, 0, &[carried(0, 2, 0, b"on")]).unwrap();
    assert_eq!((switch.waited_for().count(), switch.relayed().dropped), (0, 1));
}

#[test]
fn a_flow_has_its_room_and_takes_none_of_others() {
    let (switch, _) = switch();
    let flood: Vec<_> = (0..3 * ROOM).map(|_| carried(0, 2, 9, &[7; 100])).collect();
    carry(&switch, 0, &flood).unwrap();
    carry(&switch, 2, &[carried(2, 0, 9, &[8; 100])]).unwrap();
    let relayed = switch.relayed();
    assert_eq!((relayed.dropped, relayed.held), (u64::from(2 * ROOM), u64::from(ROOM + 1) * 100));
    assert_eq!(loaded(&switch, 2).len(), ROOM as usize);
    assert_eq!(loaded(&switch, 0), [carried(2, 0, 8, &[8; 100])]);
    carry(&switch, 0, &flood[..1]).unwrap();
    assert_eq!(loaded(&switch, 2).len(), 1, "there is room again");
}

#[test]
fn what_waits_for_a_lost_rank_goes_another_way() {
    let (switch, _) = switch();
    let life = Life::new(5, Box::new(Deaf));
    assert_eq!(switch.path(4), Some(vec![0, 3]));
    switch.send(4, b"seal", b"frame");
    assert_eq!(switch.waited_for().collect::<Vec<_>>(), [0]);
    life.lose(0, Loss::Session(LossCause::Closed));
    switch.heed(&life);
    assert_eq!(switch.path(4), Some(vec![2, 3]));
    assert_eq!(switch.cut_off(4), None);
    let [frame] = &loaded(&switch, 2)[..] else { panic!("one frame") };
    assert_eq!((frame.source, frame.destination, &*frame.bytes), (1, 4, &b"sealframe"[..]));
    // One far away that only says goodbye passes on until its neighbours hear it.
    life.lose(3, Loss::Left);
    switch.heed(&life);
    assert_eq!(switch.path(4), Some(vec![2, 3]));
    life.lose(2, Loss::Ended);
    switch.heed(&life);
    let cause = switch.cut_off(4).unwrap();
    assert!(cause.contains("no path leads to rank 4") && cause.contains("rank 0"), "{cause}");
    switch.send(4, b"seal", b"frame");
    assert_eq!(switch.waited_for().count(), 0);
}

#[test]
fn a_rank_leaves_when_none_of_two_that_talk_over_it_needs_it() {
    let (switch, _) = switch();
    let life = Life::new(5, Box::new(Deaf));
    assert!(!switch.may_leave(&life));
    carry(&switch, 0, &[carried(0, 1, 0, b"")]).unwrap();
    assert!(switch.may_leave(&life), "0 has finished, and 2 reaches nobody else over this rank");
    switch.finish();
    assert_eq!((loaded(&switch, 0), loaded(&switch, 2)), (vec![carried(1, 0, 0, b"")], vec![carried(1, 2, 0, b"")]));
}

proptest! {
    #[test]
    fn whatever_neighbours_carry_no_more_is_held_than_there_is_room(
        frames in prop::collection::vec(
            (prop_oneof![Just(0u32), Just(2)], 0u16..6, 0u16..6, 0u8..4, prop_oneof![0usize..40, 900usize..1009]),
            1..300,
        ),
        lost in 0u32..6,
    ) {
        let (switch, mesh) = switch();
        let life = Life::new(5, Box::new(Deaf));
        for (at, (from, source, destination, hops, len)) in frames.iter().enumerate() {
            if at == frames.len() / 2 {
                life.lose(lost, Loss::Ended);
                switch.heed(&life);
            }
            let taken = carry(&switch, *from, &[carried(*source, *destination, *hops, &vec![1; *len])]);
            let own = *destination == 1 && matches!(source, 0 | 2);
            let talks = source != destination && *source < 5 && *destination < 5 && *source != 1;
            let right = talks && *len <= mesh.longest && (!own || u32::from(*source) == *from && *len == 0);
            prop_assert_eq!(taken.is_ok(), right);
            let relayed = switch.relayed();
            prop_assert!(relayed.held <= relayed.most_held);
            // 1 of 5 ranks may be the source of nothing, and none talks to itself.
            prop_assert!(relayed.most_held <= 4 * 4 * u64::from(ROOM) * mesh.longest as u64);
        }
        for rank in [0, 2] {
            loaded(&switch, rank);
        }
        for rank in [3, 4] {
            switch.take(rank, &mut VecDeque::new());
        }
        prop_assert_eq!((switch.relayed().held, switch.waited_for().count()), (0, 0));
    }
}
