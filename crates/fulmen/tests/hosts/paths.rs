//! Hosts with several networks, and with addresses that only look like one.

use fulmen_testbed::{Host, Link};

use crate::world::{Plan, Rank, What, World};

/// What a message has.
const LONG: usize = 64 << 20;

fn world(name: &str) -> Option<World> {
    World::new(name, Plan { second: Some(Link::new()), scale: LONG, ..Plan::new(What::Paths, 2) })
}

/// Gives the host a bridge for containers, as every host has one, with the same address.
fn decoy(host: &Host) {
    for line in [
        "link add docker0 type veth peer name docker1",
        "address add 172.17.0.1/16 dev docker0",
        "link set docker0 up",
        "link set docker1 up",
    ] {
        let status = host.command("ip").args(line.split(' ')).status().unwrap();
        assert!(status.success(), "ip {line}");
    }
}

/// Runs the two ranks, and gives what both say of what they go over.
fn run(world: &World) -> [String; 2] {
    let mut ranks = world.start_all();
    let over = [0, 1].map(|rank: usize| ranks[rank].hear("over"));
    ranks.iter_mut().for_each(|rank| drop(rank.hear("done")));
    ranks.into_iter().for_each(Rank::ends);
    over
}

#[test]
fn bridges_with_one_address_are_no_path() {
    let Some(world) = world("hosts with bridges") else { return };
    world.hosts.iter().for_each(decoy);
    let device = world.net.device(&world.hosts[0]);
    assert_eq!(run(&world), [format!("{device} {device}"), format!("{device} {device}")]);
}

#[test]
fn a_path_is_found_where_the_first_addresses_do_not_meet() {
    let Some(world) = world("hosts whose first addresses do not meet") else { return };
    world.hosts.iter().for_each(decoy);
    // Both reach the coordinator over it, and not each other.
    let [a, b] = [&world.hosts[0], &world.hosts[1]];
    world.net.block(a, b);
    world.net.block(b, a);
    let device = world.second.as_ref().unwrap().device(a);
    assert_eq!(run(&world), [format!("{device} {device}"), format!("{device} {device}")]);
}

#[test]
fn two_networks_carry_at_once_and_one_is_gone_for_a_while() {
    let plan = Plan { second: Some(Link::new()), scale: 8 << 20, ..Plan::new(What::Stripes, 2) };
    let Some(world) = World::new("two networks between two hosts", plan) else { return };
    let mut ranks = world.start_all();
    let each = |ranks: &mut Vec<Rank>, word| ranks.iter_mut().for_each(|rank| drop(rank.hear(word)));
    each(&mut ranks, "both");
    let second = world.second.as_ref().unwrap();
    second.down(&world.hosts[1]);
    each(&mut ranks, "one");
    second.up(&world.hosts[1]);
    each(&mut ranks, "done");
    ranks.into_iter().for_each(Rank::ends);
}

#[test]
fn networks_of_unequal_speed_carry_what_both_together_can() {
    const RATES: [u64; 2] = [200_000_000, 50_000_000];
    let [fast, slow] = RATES.map(|rate| Link::new().rate(rate));
    let plan = Plan { link: fast, second: Some(slow), scale: LONG, ..Plan::new(What::Sum, 2) };
    let Some(world) = World::new("two networks of unequal speed", plan) else { return };
    let mut ranks = world.start_all();
    let said = ranks[1].hear("sum");
    let numbers: Vec<f64> = said.split(' ').map(|word| word.parse().unwrap()).collect();
    let [speed, one, other] = numbers[..] else { panic!("{said}") };
    // Of a frame of 1514 bytes, 66 are headers. A figure for people: a busy machine is slower.
    let payload = RATES.iter().sum::<u64>() as f64 / 8.0 * 1448.0 / 1514.0;
    println!(
        "64 MiB: {:.1} MB/s, {:.2} of what both networks can; {one} and {other} bytes",
        speed / 1e6,
        speed / payload
    );
    assert!(one > 0.0 && other > 0.0, "{said}");
    ranks.iter_mut().for_each(|rank| drop(rank.hear("done")));
    ranks.into_iter().for_each(Rank::ends);
}
