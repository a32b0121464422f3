//! Networks that are slow and bad, and bring every byte all the same.

use std::sync::Mutex;
use std::thread;
use std::time::Duration;

use fulmen_testbed::{Counts, Host, Link};

use crate::world::{Plan, Rank, What, World};

const fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// What a network does, and how many bytes a round over it moves.
struct Case {
    name: &'static str,
    link: Link,
    scale: usize,
    /// What must have happened to some frames.
    seen: fn(&Counts) -> u64,
    /// Whether one host's interface believes in longer packets than the others'.
    has_jumbo: bool,
}

const fn case(name: &'static str, link: Link, scale: usize, seen: fn(&Counts) -> u64) -> Case {
    Case { name, link, scale, seen, has_jumbo: false }
}

fn any(counts: &Counts) -> u64 {
    counts.delivered
}

const CASES: [Case; 11] = [
    case("nothing in the way", Link::new(), 50_000, any),
    case("1 ms", Link::new().delay(ms(1)), 20_000, any),
    case("50 ms and up to 10 more", Link::new().delay(ms(50)).jitter(ms(10)), 2000, any),
    case("1 % lost", Link::new().loss(0.01).seed(1), 20_000, |counts| counts.lost),
    case("5 % lost", Link::new().loss(0.05).seed(2), 5000, |counts| counts.lost),
    case("overtaken", Link::new().reorder(0.05).seed(3), 20_000, |counts| counts.reordered),
    case("doubled", Link::new().duplicate(0.05).seed(4), 20_000, |counts| counts.duplicated),
    case("damaged", Link::new().corrupt(0.02).seed(5), 10_000, |counts| counts.corrupted),
    case("1 Mb/s", Link::new().rate(1_000_000), 500, any),
    Case { has_jumbo: true, ..case("MTUs that differ", Link::new(), 20_000, any) },
    case("all at once", BAD.loss(0.01).reorder(0.02).duplicate(0.02).corrupt(0.01).rate(100_000_000), 2000, |counts| {
        counts.reordered + counts.duplicated
    }),
];

const BAD: Link = Link::new().delay(ms(2)).jitter(ms(2)).seed(6);

fn run(case: &Case, what: What, hosts: usize, ranks_a_host: usize) {
    let name = format!("{what} on {hosts} hosts over a network: {}", case.name);
    let plan = Plan { ranks_a_host, link: case.link, rounds: Some(3), scale: case.scale, ..Plan::new(what, hosts) };
    let Some(world) = World::new(&name, plan) else { return };
    if case.has_jumbo {
        world.net.set_mtu(&world.hosts[0], 9000);
    }
    let mut ranks = world.start_all();
    ranks.iter_mut().for_each(|rank| drop(rank.hear("done")));
    ranks.into_iter().for_each(Rank::ends);
    let (mut entered, mut seen) = (0, 0);
    let ends: Vec<&Host> = world.net.hosts().collect();
    for (from, to) in ends.iter().flat_map(|from| ends.iter().map(move |to| (*from, *to))) {
        if from != to {
            let counts = world.net.counts(from, to);
            (entered, seen) = (entered + counts.entered, seen + (case.seen)(&counts));
        }
    }
    println!("{name}: {seen} of {entered} frames");
    assert!(seen > 0, "{name}: the network did not do what it was told");
}

/// As many at a time as the machine has processors, since most of them wait.
fn run_all(what: What) {
    let both = [(2, 2), (4, 1)];
    let hosts: &[(usize, usize)] = fulmen_testbed::by_tier(&both, &both, &[(2, 2), (4, 1), (8, 1)]);
    let cases = hosts.iter().flat_map(|hosts| CASES.iter().map(move |case| (case, *hosts)));
    let cases = Mutex::new(cases);
    let next = || cases.lock().unwrap().next();
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while let Some((case, (hosts, ranks_a_host))) = next() {
                    run(case, what, hosts, ranks_a_host);
                }
            });
        }
    });
}

#[test]
fn ranks_meet_over_every_network() {
    if fulmen_testbed::is_full() {
        run_all(What::Control);
    } else {
        run(&CASES[4], What::Control, 2, 2);
    }
}

#[test]
fn groups_work_over_every_network() {
    if fulmen_testbed::is_full() {
        run_all(What::Work);
    } else {
        [0, 4].into_iter().for_each(|at| run(&CASES[at], What::Work, 2, 2));
    }
}

#[test]
fn who_reads_late_keeps_nobody_else_waiting() {
    let plan = Plan { scale: 100_000, ..Plan::new(What::SlowReader, 3) };
    let Some(world) = World::new("a slow reader", plan) else { return };
    let mut ranks = world.start_all();
    // It says so before it has received anything of rank 0's.
    ranks[1].hear("worked");
    ranks.iter_mut().for_each(|rank| drop(rank.hear("done")));
    ranks.into_iter().for_each(Rank::ends);
}
