//! Bytes that no program and no owner says.

use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::Path;

use fulmen_attach::Owner;

use super::support::{House, NAME, strict};
use super::talk::{Talk, nothing_is_left};
use super::{LONG, Random, until};

const REFUSED: u8 = 6;

/// What a program asks, as it stands on the socket.
mod ask {
    /// A number of the format: seven bits in each byte, the lowest first.
    pub fn number(mut number: u32) -> Vec<u8> {
        let mut bytes = Vec::new();
        while number >= 0x80 {
            bytes.push(number as u8 | 0x80);
            number >>= 7;
        }
        bytes.push(number as u8);
        bytes
    }

    fn of(kind: u8, rest: &[&[u8]]) -> Vec<u8> {
        [&[kind], &*rest.concat()].concat()
    }

    pub fn offer(version: u32) -> Vec<u8> {
        of(0, &[&number(version)])
    }

    pub fn attach(device: &str, gid: [u8; 16]) -> Vec<u8> {
        of(1, &[&number(1), &number(device.len() as u32), device.as_bytes(), &gid])
    }

    pub fn port(port: u8) -> Vec<u8> {
        of(2, &[&[port]])
    }

    pub fn create(soft: u32) -> Vec<u8> {
        of(3, &[&number(soft)])
    }

    pub fn connect(pair: u32, gid_index: u8, gid: [u8; 16], remote: u32) -> Vec<u8> {
        of(4, &[&number(pair), &[gid_index], &gid, &number(0), &number(remote)])
    }

    pub fn disconnect(pair: u32) -> Vec<u8> {
        of(5, &[&number(pair)])
    }

    pub fn remove(pair: u32) -> Vec<u8> {
        of(6, &[&number(pair)])
    }
}

/// What an owner asks another one.
mod call {
    /// To be the other end of a trunk of so many queue pairs.
    pub fn open(from: [u8; 16], to: [u8; 16], pairs: u8) -> Vec<u8> {
        let place = |gid: [u8; 16]| [&gid[..], &[0]].concat();
        let (number, ends) = ([7], [1, 2].repeat(pairs.into()));
        [&[0][..], &place(from), &place(to), &number, &[pairs], &ends].concat()
    }
}

/// Somebody at the socket.
struct Stranger(UnixStream);

impl Stranger {
    fn come(socket: &Path) -> Stranger {
        let stream = UnixStream::connect(socket).expect("the owner serves");
        stream.set_read_timeout(Some(LONG)).expect("a socket");
        Stranger(stream)
    }

    fn say(&mut self, bytes: &[u8]) {
        // The owner may have had enough.
        let _ = self.0.write_all(bytes);
    }

    /// Asks, and tells what kind of answer comes.
    fn ask(&mut self, bytes: &[u8]) -> Vec<u8> {
        self.say(&[&(bytes.len() as u32).to_le_bytes()[..], bytes].concat());
        let mut len = [0; 4];
        self.0.read_exact(&mut len).expect("an answer");
        let mut answer = vec![0; u32::from_le_bytes(len) as usize];
        self.0.read_exact(&mut answer).expect("an answer");
        answer
    }

    #[track_caller]
    fn is_refused(&mut self, bytes: &[u8]) {
        assert_eq!(self.ask(bytes)[0], REFUSED);
    }

    /// Nothing comes any more.
    fn until_shut_out(mut self) {
        let mut rest = Vec::new();
        // An error if the owner did not read all that was said.
        let _ = self.0.read_to_end(&mut rest).map_err(|error| assert_ne!(error.kind(), std::io::ErrorKind::WouldBlock));
    }
}

fn owner(house: &House) -> &Owner {
    house.owner.as_ref().expect("open")
}

#[test]
fn strange_bytes_at_the_socket_harm_nobody() {
    let houses = House::street([strict(), strict()]);
    let sockets = [&*houses[0].socket, &*houses[1].socket];
    let gid = houses[1].device.gid_table(1).expect("port 1")[0].gid.0;
    let talk = Talk::start(sockets, 61, 2000);

    let mut random = Random(3);
    for _ in 0..300 {
        let mut stranger = Stranger::come(sockets[0]);
        let bytes: Vec<u8> = (0..1 + random.below(200)).map(|_| random.next() as u8).collect();
        if random.below(2) == 0 {
            stranger.say(&(bytes.len() as u32).to_le_bytes());
        }
        stranger.say(&bytes);
        stranger.0.shutdown(Shutdown::Write).expect("a socket");
        stranger.until_shut_out();
    }
    for len in [u32::MAX, (64 << 10) + 1, 1 << 31] {
        let mut stranger = Stranger::come(sockets[0]);
        stranger.say(&len.to_le_bytes());
        stranger.until_shut_out();
    }
    // Halves of what is asked: some go on to wait, some leave.
    let whole = ask::attach(NAME, gid);
    let waiting: Vec<Stranger> = (0..=whole.len())
        .map(|len| {
            let mut stranger = Stranger::come(sockets[0]);
            stranger.say(&(whole.len() as u32).to_le_bytes());
            stranger.say(&whole[..len]);
            stranger
        })
        .step_by(2)
        .collect();

    out_of_order(sockets[0], gid);
    foreign_numbers(sockets[0], gid);
    talk.finish(|| {});
    drop(waiting);
    nothing_is_left(&houses);
    Talk::start(sockets, 63, 100).finish(|| {});
}

fn out_of_order(socket: &Path, gid: [u8; 16]) {
    let mut stranger = Stranger::come(socket);
    stranger.is_refused(&ask::offer(99));
    for early in [ask::port(1), ask::create(1), ask::connect(1, 0, gid, 1), ask::disconnect(1), ask::remove(1)] {
        stranger.is_refused(&early);
    }
    stranger.is_refused(&ask::attach("rdma_en9", gid));
    assert_ne!(stranger.ask(&ask::attach(NAME, [9; 16]))[0], REFUSED);
    stranger.is_refused(&ask::attach(NAME, gid));
    stranger.is_refused(&ask::port(0));
    stranger.is_refused(&ask::port(255));
    // A queue pair of a software device that is nowhere.
    let created = stranger.ask(&ask::create(77));
    assert_ne!(created[0], REFUSED);
    let number = created[1..].iter().rev().fold(0, |number, byte| number << 7 | u32::from(byte & 0x7f));
    stranger.is_refused(&ask::connect(number, 0, gid, 1));
    stranger.is_refused(&ask::connect(number, 200, gid, 1));
    stranger.is_refused(&ask::connect(number, 0, [7; 16], u32::MAX));
    // It was not connected, which is nothing to complain of.
    assert_ne!(stranger.ask(&ask::disconnect(number))[0], REFUSED);
    assert_ne!(stranger.ask(&ask::remove(number))[0], REFUSED);
    stranger.is_refused(&ask::remove(number));
}

/// All numbers that those who talk may have.
fn foreign_numbers(socket: &Path, gid: [u8; 16]) {
    let mut stranger = Stranger::come(socket);
    assert_ne!(stranger.ask(&ask::attach(NAME, [9; 16]))[0], REFUSED);
    for number in (0..20).chain([u32::MAX]) {
        for foreign in [ask::connect(number, 0, gid, 1), ask::disconnect(number), ask::remove(number)] {
            stranger.is_refused(&foreign);
        }
    }
    // As many as there are, and then it is refused.
    while stranger.ask(&ask::create(1))[0] != REFUSED {}
}

/// Nor are queue pairs looked for: beside the trunk that is there, the device has none, and would say so.
#[test]
fn trunks_of_another_kind_end_none() {
    let houses = House::street([strict(), strict()]);
    let gids = [0, 1].map(|house: usize| houses[house].device.gid_table(1).expect("port 1")[0].gid.0);
    let talk = Talk::start([&houses[0].socket, &houses[1].socket], 81, 1000);
    for (house, pairs) in [0, 1].into_iter().flat_map(|house| [0, 2, 4, 100].map(|pairs| (house, pairs))) {
        until("a trunk", || (owner(&houses[house]).status()[0].trunks == 1).then_some(()));
        let answer = owner(&houses[house]).answer(&call::open(gids[1 - house], gids[house], pairs));
        let answer = String::from_utf8_lossy(&answer);
        assert!(answer.contains("devices alike"), "{pairs} queue pairs: {answer:?}");
    }
    talk.finish(|| {});
    nothing_is_left(&houses);
}

/// The other end is to ask for one: each of two that open one at a time would end that of the other.
#[test]
fn a_trunk_of_the_wrong_end_ends_none() {
    let houses = House::street([strict(), strict()]);
    let gids = [0, 1].map(|house: usize| houses[house].device.gid_table(1).expect("port 1")[0].gid.0);
    let talk = Talk::start([&houses[0].socket, &houses[1].socket], 82, 1000);
    let first = usize::from(gids[1] < gids[0]);
    for _ in 0..10 {
        until("a trunk", || (owner(&houses[first]).status()[0].trunks == 1).then_some(()));
        let answer = owner(&houses[first]).answer(&call::open(gids[1 - first], gids[first], 3));
        let answer = String::from_utf8_lossy(&answer);
        assert!(answer.contains("has to ask for it"), "{answer:?}");
    }
    talk.finish(|| {});
    nothing_is_left(&houses);
}

#[test]
fn strange_bytes_of_other_owners_harm_nobody() {
    let houses = House::street([strict(), strict()]);
    let sockets = [&*houses[0].socket, &*houses[1].socket];
    let talk = Talk::start(sockets, 71, 1000);
    let gid = houses[0].device.gid_table(1).expect("port 1")[0].gid.0;
    let mut random = Random(5);
    for round in 0..3000_u32 {
        // The place of an owner that is not there, then this one's, and anything.
        let mut call = vec![random.below(4) as u8];
        call.extend([[3; 16], [0; 16]].concat().iter().take(16));
        call.extend(ask::number(0));
        call.extend(gid);
        call.extend(ask::number(0));
        call.extend((0..random.below(40)).map(|_| random.next() as u8));
        if round % 2 == 0 {
            call.truncate(random.below(call.len() as u64) as usize);
        }
        assert!(!owner(&houses[0]).answer(&call).is_empty());
        let bytes: Vec<u8> = (0..random.below(100)).map(|_| random.next() as u8).collect();
        assert!(!owner(&houses[0]).answer(&bytes).is_empty());
    }
    talk.finish(|| houses.iter().for_each(|house| assert_eq!(owner(house).status()[0].trunks, 1)));
    nothing_is_left(&houses);
}
