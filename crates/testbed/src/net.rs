//! What joins hosts: addresses, interfaces, and the hands on a wire.

use std::fmt::Write;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::wire::{Mac, Taps, Wire};
use crate::{Counts, Host, Link, sys};

/// Frames that the kernel keeps for the wire's thread while that does not run: more than any TCP connection has under way.
const WAITING: usize = 65_536;

/// What joins two or more hosts: a cable, a switch, or the kernel alone. Each host has one interface in it, with an IPv4 and an IPv6
/// address of a subnet that is the net's own, so that hosts may share several nets.
#[derive(Debug)]
pub struct Net {
    seats: Vec<Seat>,
    /// None where the kernel alone joins the hosts.
    taps: Option<Taps>,
}

#[derive(Debug)]
struct Seat {
    host: Host,
    device: String,
    mac: Mac,
    v4: Ipv4Addr,
    v6: Ipv6Addr,
}

impl Net {
    /// The host's IPv4 address in this net.
    ///
    /// # Panics
    /// If the host is not in it. So do all others that name hosts.
    #[must_use]
    pub fn address(&self, host: &Host) -> IpAddr {
        self.seat(host).v4.into()
    }

    /// The host's IPv6 address in this net.
    #[must_use]
    pub fn address6(&self, host: &Host) -> IpAddr {
        self.seat(host).v6.into()
    }

    /// The name of the host's interface in this net.
    #[must_use]
    pub fn device(&self, host: &Host) -> &str {
        &self.seat(host).device
    }

    /// The hosts, in the order in which they were named.
    pub fn hosts(&self) -> impl Iterator<Item = &Host> {
        self.seats.iter().map(|seat| &seat.host)
    }

    /// Sets what happens to frames that enter from now on, in all directions.
    ///
    /// # Panics
    /// If the kernel alone joins the hosts. So do all others that change or count what crosses.
    pub fn set(&self, link: Link) {
        self.taps().all_lines(|_, _, line| line.set(link));
    }

    /// The same for one direction.
    pub fn set_from(&self, from: &Host, to: &Host, link: Link) {
        self.taps().line(self.at(from), self.at(to), |line| line.set(link));
    }

    /// From now on nothing comes from one host to the other one, and neither is told; the way back stays.
    pub fn block(&self, from: &Host, to: &Host) {
        self.taps().line(self.at(from), self.at(to), |line| line.block(true));
    }

    /// Nothing comes from any of these sets of hosts to any other one.
    pub fn partition(&self, sides: &[&[&Host]]) {
        let side = |at: usize| sides.iter().position(|side| side.contains(&&self.seats[at].host));
        self.taps().all_lines(|from, to, line| {
            if let (Some(from), Some(to)) = (side(from), side(to)) {
                line.block(from != to);
            }
        });
    }

    /// Takes all blocks and partitions away.
    pub fn heal(&self) {
        self.taps().all_lines(|_, _, line| line.block(false));
    }

    /// Pulls the cable out of the host: its interface says that it has no carrier, and that of the host at the other end, where two
    /// share a cable. What is under way is lost.
    pub fn pull(&self, host: &Host) {
        self.plug_in(host, false);
    }

    /// Plugs it in again.
    pub fn plug(&self, host: &Host) {
        self.plug_in(host, true);
    }

    /// Takes the host's interface down, as an administrator would: its kernel knows no way to the others any more.
    pub fn down(&self, host: &Host) {
        host.ip(&format!("link set {} down", self.device(host)));
    }

    /// Brings it up again, with the addresses that it had.
    pub fn up(&self, host: &Host) {
        host.ip(&format!("link set {} up", self.device(host)));
    }

    /// Sets the longest packet, in bytes, that the host's interface sends: from 1280, for IPv6's sake, to 65521; 1500 at the beginning.
    pub fn set_mtu(&self, host: &Host, bytes: usize) {
        host.ip(&format!("link set {} mtu {bytes}", self.device(host)));
    }

    /// What became of the frames from one host to the other.
    #[must_use]
    pub fn counts(&self, from: &Host, to: &Host) -> Counts {
        self.taps().line(self.at(from), self.at(to), |line| line.counts())
    }

    fn plug_in(&self, host: &Host, is_there: bool) {
        let taps = self.taps();
        let ends = if self.seats.len() == 2 { 0..2 } else { self.at(host)..self.at(host) + 1 };
        for at in ends {
            taps.plug(at, is_there).unwrap_or_else(|error| panic!("the carrier of {host}: {error}"));
        }
    }

    fn taps(&self) -> &Taps {
        self.taps.as_ref().expect("the kernel alone joins these hosts: use a cable or a switch")
    }

    fn at(&self, host: &Host) -> usize {
        let at = self.seats.iter().position(|seat| seat.host == *host);
        at.unwrap_or_else(|| panic!("{host} is not in this net"))
    }

    fn seat(&self, host: &Host) -> &Seat {
        &self.seats[self.at(host)]
    }
}

/// A net that is being made.
pub(crate) struct Plan<'a> {
    hosts: &'a [Host],
    number: usize,
}

impl<'a> Plan<'a> {
    pub(crate) fn new(hosts: &'a [Host], number: usize) -> Plan<'a> {
        assert!(number < 255, "a bed has at most 254 nets");
        assert!((2..255).contains(&hosts.len()), "a net joins 2 to 254 hosts");
        Plan { hosts, number }
    }

    pub(crate) fn switch(self, wire: &Wire, link: Link) -> Net {
        let seats = self.seats();
        let made = seats.iter().map(|seat| {
            let tap = seat.host.run(|| sys::tap(&seat.device));
            let tap = tap.unwrap_or_else(|error| panic!("a TAP device on {}: {error}", seat.host));
            (tap, seat.mac)
        });
        let taps = wire.add(made.collect(), link).unwrap_or_else(|error| panic!("the wire: {error}"));
        bring_up(&seats, &format!("txqueuelen {WAITING}"));
        Net { seats, taps: Some(taps) }
    }

    pub(crate) fn direct(self, bridge: Option<Host>) -> Net {
        let seats = self.seats();
        let pair = |from: &Seat, name: &str, to: &Host| {
            let (device, to) = (&from.device, to.namespace());
            from.host.ip(&format!("link add {device} type veth peer name {name} netns {}", to.display()));
        };
        match &bridge {
            None => pair(&seats[0], &seats[1].device, &seats[1].host),
            Some(bridge) => {
                let mut lines = String::from("link add bridge type bridge mcast_snooping 0\nlink set bridge up\n");
                for (at, seat) in seats.iter().enumerate() {
                    pair(seat, &format!("port{at}"), bridge);
                    let _ = writeln!(lines, "link set port{at} master bridge up");
                }
                bridge.ip(&lines);
            }
        }
        bring_up(&seats, "");
        Net { seats, taps: None }
    }

    fn seats(&self) -> Vec<Seat> {
        let number = self.number as u8;
        let seat = |(at, host): (u8, &Host)| Seat {
            host: host.clone(),
            device: format!("eth{number}"),
            mac: Mac::new(number, at),
            v4: Ipv4Addr::new(10, 77, number, at + 1),
            v6: Ipv6Addr::new(0xfd77, 0, 0, number.into(), 0, 0, 0, u16::from(at) + 1),
        };
        let seats: Vec<Seat> = (0..).zip(self.hosts).map(seat).collect();
        for (at, seat) in seats.iter().enumerate() {
            assert!(seats[..at].iter().all(|other| other.host != seat.host), "{} is twice in one net", seat.host);
        }
        seats
    }
}

/// Brings the interfaces up, with more settings of theirs. No link-local address is made up, which would have the kernel send
/// frames by itself; and an interface has its addresses, of which the kernel tells others, when all of them take frames.
fn bring_up(seats: &[Seat], more: &str) {
    for Seat { host, device, mac, .. } in seats {
        host.ip(&format!("link set {device} address {mac} addrgenmode none {more}\nlink set {device} up\n"));
    }
    for Seat { host, device, v4, v6, .. } in seats {
        host.ip(&format!("addr add {v4}/24 dev {device}\naddr add {v6}/64 dev {device} nodad\n"));
    }
}
