//! Hosts and networks that go away, and come back.

use std::thread;
use std::time::Duration;

use fulmen_testbed::{Host, Link};

use fulmen_testbed::is_full;

use crate::world::{Plan, Rank, What, World};

/// Longer than any pause of a busy machine, and not much.
const SILENCE: Duration = Duration::from_secs(5);
/// How long a rank waits that is cut off from all others, and hears of nobody's loss.
const PATIENCE: Duration = Duration::from_secs(20);
/// Shorter than the silence by far.
const MOMENT: Duration = Duration::from_millis(700);

/// Ranks on three hosts, which work.
fn at_work(name: &str, plan: Plan) -> Option<(World, Vec<Rank>)> {
    let world = World::new(&format!("{}: {name}", plan.what), plan)?;
    let ranks = world.at_work();
    Some((world, ranks))
}

/// Those that are left go on without rank 2.
fn shrink_to_two(ranks: &mut [Rank]) {
    for rank in ranks.iter_mut() {
        rank.hear("failed");
        assert_eq!(rank.hear("regrouped"), "[0, 1] [2]");
    }
    ranks.iter_mut().for_each(|rank| drop(rank.hear("works")));
}

fn the_greater_part_goes_on(what: What) {
    let plan = Plan { then: "shrink", silence: SILENCE, timeout: PATIENCE, ..Plan::new(what, 3) };
    let Some((world, mut ranks)) = at_work("a partition", plan) else { return };
    let [a, b, c] = &world.hosts[..] else { unreachable!() };
    world.net.partition(&[&[a, b, &world.launcher], &[c]]);
    let mut cut = ranks.pop().unwrap();
    shrink_to_two(&mut ranks);
    // The coordinator, which could tell it more, is on the other side.
    cut.hear("failed");
    let alone = cut.hear("alone");
    assert!(alone.contains("the coordinator was lost"), "{alone}");
    cut.ends();
}

fn a_network_that_heals_has_all_of_them_again(what: What) {
    let plan = Plan { then: "rejoin", silence: SILENCE, ..Plan::new(what, 3) };
    let Some((world, mut ranks)) = at_work("a partition that heals", plan) else { return };
    let [a, b, c] = &world.hosts[..] else { unreachable!() };
    world.net.partition(&[&[a, b, &world.launcher], &[c]]);
    let cut = ranks.pop().unwrap();
    ranks.iter_mut().for_each(|rank| drop(rank.hear("failed")));
    // Whoever looks after that host starts the program again.
    drop(cut);
    world.net.heal();
    let mut again = world.start(2);
    assert_eq!(again.hear("joined"), "[0, 1, 2] [2]");
    for rank in &mut ranks {
        assert_eq!(rank.hear("regrouped"), "[0, 1, 2] [2]");
    }
    ranks.push(again);
    ranks.iter_mut().for_each(|rank| drop(rank.hear("works")));
}

fn a_host_that_ends_is_done_without_and_replaced(what: What) {
    for then in ["shrink", "rejoin"] {
        let plan = Plan { then, ranks_a_host: 2, ..Plan::new(what, 3) };
        let Some((world, mut ranks)) = at_work("a host that ends", plan) else { return };
        assert_eq!(world.hosts[2].kill_all(), 2);
        ranks.truncate(4);
        ranks.iter_mut().for_each(|rank| drop(rank.hear("failed")));
        let members = if then == "shrink" {
            "[0, 1, 2, 3] [4, 5]"
        } else {
            let again = [4, 5].map(|rank| world.start(rank));
            ranks.extend(again);
            "[0, 1, 2, 3, 4, 5] [4, 5]"
        };
        ranks[..4].iter_mut().for_each(|rank| assert_eq!(rank.hear("regrouped"), members, "{then}"));
        ranks.iter_mut().for_each(|rank| drop(rank.hear("works")));
    }
}

fn a_host_that_vanishes_is_missed(what: What) {
    let plan = Plan { then: "shrink", silence: SILENCE, ..Plan::new(what, 3) };
    let Some((world, mut ranks)) = at_work("a host that vanishes", plan) else { return };
    // Nothing hangs up for it.
    world.net.pull(&world.hosts[2]);
    ranks.truncate(2);
    shrink_to_two(&mut ranks);
}

fn what_comes_back_in_time_was_never_away(what: What) {
    let Some((world, mut ranks)) = at_work("short absences", Plan::new(what, 2)) else { return };
    let a = &world.hosts[0];
    type Act = fn(&World);
    let absences: [(Act, Act); 4] = [
        (|world| world.net.down(&world.hosts[0]), |world| world.net.up(&world.hosts[0])),
        (|world| world.net.pull(&world.hosts[0]), |world| world.net.plug(&world.hosts[0])),
        (
            |world| world.net.partition(&[&[&world.hosts[0]], &[&world.hosts[1], &world.launcher]]),
            |world| world.net.heal(),
        ),
        (|world| assert_eq!(world.hosts[0].stop_all(), 1), |world| assert_eq!(world.hosts[0].cont_all(), 1)),
    ];
    for (away, back) in absences {
        away(&world);
        thread::sleep(MOMENT);
        back(&world);
        ranks.iter_mut().for_each(Rank::goes_on);
    }
    // One direction is enough to stop all, and to go on.
    world.net.block(&world.launcher, a);
    world.net.block(&world.hosts[1], a);
    thread::sleep(MOMENT);
    world.net.heal();
    ranks.iter_mut().for_each(Rank::goes_on);
}

fn a_black_hole_is_an_error(what: What) {
    let plan = Plan { silence: SILENCE, scale: 50_000, link: Link::new().mtu(1400), ..Plan::new(what, 2) };
    let Some(world) = World::new(&format!("{what}: a network that swallows long packets"), plan) else { return };
    // Small ones cross, so that ranks meet.
    for mut rank in world.start_all() {
        rank.hear("joined");
        let failed = rank.hear("failed");
        assert!(failed.contains("lost"), "{failed}");
        rank.ends();
    }
    let ends: Vec<&Host> = world.net.hosts().collect();
    let pairs = ends.iter().flat_map(|from| ends.iter().map(move |to| (*from, *to)));
    assert!(pairs.filter(|(from, to)| from != to).any(|(from, to)| world.net.counts(from, to).too_big > 0));
}

/// The coordinator reaches both and knows of nothing, and neither sends: all that can tell is the connection itself.
fn who_only_receives_is_told(what: What) {
    let plan = Plan { is_apart: true, silence: SILENCE, ..Plan::new(what, 2) };
    let Some((world, ranks)) = at_work("a partition of the rail", plan) else { return };
    let [a, b] = &world.hosts[..] else { unreachable!() };
    world.net.partition(&[&[a], &[b]]);
    let heard = ranks.into_iter().map(|mut rank| {
        let failed = rank.hear("failed");
        rank.ends();
        failed
    });
    let heard: Vec<String> = heard.collect();
    // Who finds out second may hear of it from the first, by way of the coordinator.
    assert!(heard.iter().any(|failed| failed.contains("its other end is gone")), "{heard:?}");
    assert!(heard.iter().all(|failed| failed.contains("was lost")), "{heard:?}");
}

/// Ranks that all reach the coordinator, and no longer each other.
fn the_lesser_part_is_told() {
    let plan = Plan { then: "shrink", is_apart: true, silence: SILENCE, ..Plan::new(What::Work, 3) };
    let Some((world, mut ranks)) = at_work("a partition of the rails", plan) else { return };
    let [a, b, c] = &world.hosts[..] else { unreachable!() };
    world.net.partition(&[&[a, b], &[c]]);
    let mut cut = ranks.pop().unwrap();
    for rank in &mut ranks {
        rank.hear("failed");
        // Rank 2 is cut off, and not lost.
        assert!(rank.hear("regrouped").starts_with("[0, 1] "));
    }
    ranks.iter_mut().for_each(|rank| drop(rank.hear("works")));
    cut.hear("failed");
    assert_eq!(cut.hear("out"), "[2] [0, 1]");
    cut.ends();
}

#[test]
fn a_partition_leaves_the_greater_part() {
    the_greater_part_goes_on(What::Work);
    if is_full() {
        the_greater_part_goes_on(What::Control);
    }
}

#[test]
fn a_partition_of_the_rails_alone() {
    if is_full() {
        the_lesser_part_is_told();
    }
}

#[test]
fn a_partition_between_receivers() {
    who_only_receives_is_told(What::Receivers);
}

#[test]
fn a_partition_heals() {
    a_network_that_heals_has_all_of_them_again(What::Control);
    if is_full() {
        a_network_that_heals_has_all_of_them_again(What::Work);
    }
}

#[test]
fn a_host_ends() {
    a_host_that_ends_is_done_without_and_replaced(What::Work);
    if is_full() {
        a_host_that_ends_is_done_without_and_replaced(What::Control);
    }
}

#[test]
fn a_host_vanishes() {
    a_host_that_vanishes_is_missed(What::Control);
    if is_full() {
        a_host_that_vanishes_is_missed(What::Work);
    }
}

#[test]
fn a_host_is_away_for_a_moment() {
    what_comes_back_in_time_was_never_away(What::Work);
    if is_full() {
        what_comes_back_in_time_was_never_away(What::Control);
    }
}

#[test]
fn a_network_swallows_long_packets() {
    a_black_hole_is_an_error(What::Control);
    if is_full() {
        a_black_hole_is_an_error(What::Work);
    }
}
