use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::net::UdpSocket;
use std::time::{Duration, Instant};

use fulmen_testbed::{Bed, Counts, Host, Link, Net};

use crate::common::{LONG, hears, pair, settled, socket, take, until};
use crate::hosts::echoes;

/// Not heard within this: not heard.
const SOON: Duration = Duration::from_millis(200);

/// Sends so many numbered datagrams of this size one way and gives those that come, in the order in which they do.
fn send(
    net: &Net,
    ends: (&Host, &Host),
    sockets: &(UdpSocket, UdpSocket),
    count: u64,
    len: usize,
) -> (Counts, Vec<u64>) {
    let before = net.counts(ends.0, ends.1);
    let mut come = Vec::new();
    let mut collect = || {
        let mut bytes = vec![0; 1 << 16];
        while let Ok(len) = take(&sockets.1, &mut bytes) {
            assert!(len >= 8);
            come.push(u64::from_le_bytes(bytes[..8].try_into().unwrap()));
        }
    };
    sockets.1.set_nonblocking(true).unwrap();
    for number in 0..count {
        let mut bytes = vec![0; len];
        bytes[..8].copy_from_slice(&number.to_le_bytes());
        sockets.0.send(&bytes).unwrap();
        // Before the socket has more than it can keep.
        if number % 50 == 49 {
            settled(net, ends.0, ends.1, before, number + 1);
            collect();
        }
    }
    let counts = settled(net, ends.0, ends.1, before, count);
    collect();
    (counts, come)
}

#[test]
fn frames_are_lost_doubled_and_overtaken_as_often_as_was_set() {
    let Some(bed) = Bed::or_skip("chances of a wire") else { return };
    let (a, b) = (bed.host("a"), bed.host("b"));
    let cable = bed.cable(&a, &b, Link::new());
    let sockets = pair(&cable, &a, &b);
    let (counts, come) = send(&cable, (&a, &b), &sockets, 2000, 100);
    assert_eq!((counts.dropped(), counts.duplicated, come), (0, 0, (0..2000).collect::<Vec<u64>>()));

    // Nine standard deviations, so that the kernel's own few frames, which are in the counts, do not matter.
    cable.set(Link::new().loss(0.05).seed(1));
    let (counts, come) = send(&cable, (&a, &b), &sockets, 2000, 100);
    assert!((12..190).contains(&counts.lost) && counts.lost == counts.dropped(), "{counts:?}");
    assert!(come.len() as u64 <= counts.delivered && come.len() >= 1800 && come.is_sorted(), "{counts:?}");

    cable.set(Link::new().duplicate(0.05).seed(2));
    let (counts, come) = send(&cable, (&a, &b), &sockets, 2000, 100);
    assert!((12..190).contains(&counts.duplicated) && counts.dropped() == 0, "{counts:?}");
    let mut times = BTreeMap::new();
    come.iter().for_each(|number| *times.entry(*number).or_insert(0) += 1);
    assert_eq!(times.len(), 2000);
    assert!(times.values().all(|times| (1..=2).contains(times)) && come.len() > 2000);

    cable.set(Link::new().reorder(0.05).seed(3));
    let (counts, come) = send(&cable, (&a, &b), &sockets, 2000, 100);
    assert!((12..190).contains(&counts.reordered) && counts.dropped() == 0, "{counts:?}");
    assert!(come.len() == 2000 && !come.is_sorted());

    // The kernel finds each of them by UDP's checksum.
    cable.set(Link::new().corrupt(0.05).seed(4));
    let (counts, come) = send(&cable, (&a, &b), &sockets, 2000, 100);
    assert!((12..190).contains(&counts.corrupted) && counts.dropped() == 0, "{counts:?}");
    assert!(come.len() < 2000 && come.len() as u64 + counts.corrupted >= 2000, "{} {counts:?}", come.len());

    // One direction has nothing to do with the other.
    let back = cable.counts(&b, &a);
    assert_eq!((back.dropped(), back.duplicated, back.corrupted), (0, 0, 0));
}

#[test]
fn a_delay_is_what_was_set() {
    let Some(bed) = Bed::or_skip("the delay of a wire") else { return };
    let (a, b) = (bed.host("a"), bed.host("b"));
    let cable = bed.cable(&a, &b, Link::new());
    let (one, other) = pair(&cable, &a, &b);
    let round = || {
        let mut word = [0; 1];
        let begin = Instant::now();
        one.send(b"?").unwrap();
        take(&other, &mut word).unwrap();
        other.send(b"!").unwrap();
        take(&one, &mut word).unwrap();
        begin.elapsed()
    };
    for delay in [20, 50].map(Duration::from_millis) {
        cable.set(Link::new().delay(delay).jitter(delay / 10));
        let fastest = (0..10).map(|_| round()).min().unwrap();
        // A machine that is busy makes it longer, nothing makes it shorter.
        assert!((2 * delay..10 * delay).contains(&fastest), "{delay:?} each way took {fastest:?}");
    }
    cable.set_from(&a, &b, Link::new());
    assert!(round() >= Duration::from_millis(50));
}

#[test]
fn a_rate_is_what_was_set() {
    let Some(bed) = Bed::or_skip("the rate of a wire") else { return };
    let (a, b) = (bed.host("a"), bed.host("b"));
    let cable = bed.cable(&a, &b, Link::new());
    let (one, other) = pair(&cable, &a, &b);
    // 20 frames of 1042 bytes and no more wait: 250 ms at 1 Mb/s are 31,250 bytes.
    cable.set(Link::new().rate(1_000_000));
    let before = cable.counts(&a, &b);
    let begin = Instant::now();
    (0..20).for_each(|_| assert_eq!(one.send(&[7; 1000]).unwrap(), 1000));
    (0..20).for_each(|_| assert_eq!(take(&other, &mut [0; 2000]).unwrap(), 1000));
    let took = begin.elapsed();
    assert!((Duration::from_millis(166)..LONG / 10).contains(&took), "{took:?}");
    (0..500).for_each(|_| assert_eq!(one.send(&[7; 1000]).unwrap(), 1000));
    let counts = settled(&cable, &a, &b, before, 520);
    assert!((1..=480).contains(&counts.overflowed) && counts.dropped() == counts.overflowed, "{counts:?}");
    let begin = Instant::now();
    echoes(&cable, &a, &b, cable.address(&b), 50_000);
    // 400,000 bits each way, which overlap in part.
    assert!(begin.elapsed() >= Duration::from_millis(400));
}

#[test]
fn packets_longer_than_the_mtu_vanish() {
    let Some(bed) = Bed::or_skip("the MTU of a wire") else { return };
    let (a, b) = (bed.host("a"), bed.host("b"));
    let cable = bed.cable(&a, &b, Link::new());
    let (one, other) = pair(&cable, &a, &b);
    cable.set(Link::new().mtu(1400));
    // IP's and UDP's headers are 28 bytes.
    one.send(&[1; 1373]).unwrap();
    one.send(&[2; 1372]).unwrap();
    let mut bytes = [0; 2000];
    assert_eq!((take(&other, &mut bytes).unwrap(), bytes[0]), (1372, 2));
    assert_eq!(cable.counts(&a, &b).too_big, 1);
    // TCP does not get large segments through, and small ones well.
    echoes(&cable, &a, &b, cable.address(&b), 1000);
    cable.set(Link::new());
    // Ends that differ: each sends what it believes in, and takes what comes.
    cable.set_mtu(&a, 9000);
    one.send(&[3; 8972]).unwrap();
    let mut bytes = [0; 10_000];
    assert_eq!((take(&other, &mut bytes).unwrap(), bytes[8971]), (8972, 3));
    echoes(&cable, &a, &b, cable.address(&b), 200_000);
}

#[test]
fn partitions_and_blocks_hold_until_they_are_healed() {
    let Some(bed) = Bed::or_skip("partitions") else { return };
    let hosts = bed.hosts(4);
    let [a, b, c, d] = &hosts[..] else { unreachable!() };
    let switch = bed.switch(&hosts, Link::new());
    // Those that hear each other do so in the end, the others not at all.
    let hear = |expected: &str| {
        for (from, to) in hosts.iter().flat_map(|from| hosts.iter().map(move |to| (from, to))) {
            let pair = format!("{}{}", from.name(), to.name());
            if expected.split(' ').any(|expected| expected == pair) {
                until(&pair, || hears(&switch, from, to, SOON));
            } else if from != to {
                assert!(!hears(&switch, from, to, SOON / 4), "{pair}");
            }
        }
    };
    hear("ab ac ad ba bc bd ca cb cd da db dc");
    switch.partition(&[&[a, c], &[b, d]]);
    hear("ac bd ca db");
    let lost = switch.counts(a, b);
    assert!(lost.blocked > 0 && lost.dropped() == lost.blocked, "{lost:?}");
    switch.heal();
    hear("ab ac ad ba bc bd ca cb cd da db dc");
    switch.block(a, b);
    hear("ac ad ba bc bd ca cb cd da db dc");
    // Who is in no set keeps all.
    switch.heal();
    switch.partition(&[&[a], &[b]]);
    hear("ac ad bc bd ca cb cd da db dc");
}

#[test]
fn cables_are_pulled_and_interfaces_go_down() {
    let Some(bed) = Bed::or_skip("cables that are pulled") else { return };
    let hosts = bed.hosts(3);
    let [a, b, c] = &hosts[..] else { unreachable!() };
    let nets = [bed.cable(a, b, Link::new()), bed.switch(&hosts, Link::new())];
    let has_carrier = |net: &Net, host: &Host| {
        let said = host.command("ip").args(["-oneline", "link", "show", net.device(host)]).output().unwrap();
        !String::from_utf8(said.stdout).unwrap().contains("NO-CARRIER")
    };
    let [cable, switch] = &nets;
    for net in &nets {
        until("they hear each other", || hears(net, a, b, SOON) && hears(net, b, a, SOON));
        net.pull(a);
        assert!(!hears(net, a, b, SOON) && !hears(net, b, a, SOON));
        until("it has no carrier", || !has_carrier(net, a));
        net.plug(a);
        until("they hear each other again", || hears(net, a, b, SOON) && hears(net, b, a, SOON));
        assert!(has_carrier(net, a));
    }
    cable.pull(a);
    until("both ends lose it", || !has_carrier(cable, a) && !has_carrier(cable, b));
    cable.plug(b);
    switch.pull(a);
    until("the others keep theirs", || !has_carrier(switch, a));
    assert!(has_carrier(switch, b) && has_carrier(switch, c) && hears(switch, b, c, LONG));
    switch.plug(a);

    for net in &nets {
        let (one, to) = (socket(net, a), socket(net, b));
        net.down(a);
        let refused = one.send_to(b"word", to.local_addr().unwrap()).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::NetworkUnreachable);
        assert!(!hears(net, b, a, SOON));
        net.up(a);
        until("they hear each other after that", || hears(net, a, b, SOON) && hears(net, b, a, SOON));
        echoes(net, a, b, net.address6(b), 1000);
        echoes(net, b, a, net.address6(a), 1000);
    }
}

#[test]
fn tcp_brings_every_byte_over_a_bad_wire() {
    let Some(bed) = Bed::or_skip("a bad wire") else { return };
    let (a, b) = (bed.host("a"), bed.host("b"));
    let ms = Duration::from_millis;
    let link = Link::new().delay(ms(1)).jitter(ms(2)).loss(0.01).reorder(0.02).duplicate(0.02).corrupt(0.005);
    let cable = bed.cable(&a, &b, link.rate(50_000_000).seed(9));
    echoes(&cable, &a, &b, cable.address(&b), 1_000_000);
    let counts = cable.counts(&a, &b);
    assert!(counts.lost > 0 && counts.reordered > 0 && counts.duplicated > 0, "{counts:?}");
}
