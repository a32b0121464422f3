//! Programs that are killed at random moments: their owners lose nothing, and their peers are told.

use std::path::Path;
use std::time::{Duration, Instant};

use fulmen_attach::LONGEST_MESSAGE;
use fulmen_testbed::{Child, Parent};
use fulmen_verbs::CompletionOpcode;

use super::crowd::gather;
use super::side::{Name, Side};
use super::support::{House, strict};
use super::talk::{Talk, nothing_is_left};
use super::{LONG, Random, rounds, until};

/// Pairs of victims at a time.
const ALLEYS: u64 = 3;
/// Requests of a victim's queue pair in each direction.
const WINDOW: usize = 8;
/// The moments: at a start, attached, with queue pairs, while it connects, and with messages on their way.
const STAGES: u64 = 5;
/// How long after such a moment at most, in microseconds.
const AFTER: [u64; STAGES as usize] = [15_000, 2000, 2000, 4000, 10_000];

/// Sends and takes messages for as long as it lives.
pub fn victim(words: &[&str]) {
    let mut random = Random(words[2].parse().expect("a seed"));
    let count = 1 + random.below(3) as usize;
    let mut side = Side::open(Path::new(words[1]), 1);
    Parent.tell("attached");
    (0..count).for_each(|_| side.create().expect("a queue pair"));
    Parent.tell(&side.name().to_line());
    let peer = Name::from_line(&Parent.hear());
    let start = Instant::now();
    // The peer may be dead.
    if side.connect(&peer).is_ok() {
        Parent.tell("connected");
        // Until the peer is.
        let _ = exchange(&side, &mut random, start);
    } else {
        Parent.tell("alone");
    }
    std::thread::sleep(LONG.saturating_sub(start.elapsed()));
    panic!("nobody killed this process");
}

fn exchange(side: &Side, random: &mut Random, start: Instant) -> Option<()> {
    let mut send = |pair: usize| {
        let longest = if random.below(4) == 0 { LONGEST_MESSAGE as u64 + 1 } else { 5000 };
        side.try_send(pair, pair as u64, 0, random.below(longest) as usize).ok()
    };
    let connected = (0..side.pairs.len()).filter(|pair| side.pairs[*pair].state().to_string() == "RTS");
    for pair in connected {
        for _ in 0..WINDOW {
            side.try_recv(pair, pair as u64, 0).ok()?;
            send(pair)?;
        }
    }
    while start.elapsed() < LONG {
        let Some(completion) = side.poll() else {
            std::thread::sleep(Duration::from_micros(50));
            continue;
        };
        let pair = completion.wr_id as usize;
        if completion.status.is_success() && completion.opcode == CompletionOpcode::Send {
            send(pair)?;
        } else if completion.status.is_success() {
            side.try_recv(pair, pair as u64, 0).ok()?;
        }
    }
    None
}

/// Kills two programs that are each other's peers.
fn kill_two(sockets: [&Path; 2], nobody: &str, random: &mut Random) {
    let mut all = sockets.map(|socket| {
        let child = Child::start(&format!("victim {} {}", socket.display(), random.below(1 << 32)));
        Some((child, random.below(STAGES)))
    });
    let mut names = [nobody.to_owned(), nobody.to_owned()];
    for (stage, after) in (0..).zip(AFTER) {
        for (at, slot) in all.iter_mut().enumerate() {
            let Some((child, last)) = slot else { continue };
            match stage {
                1 => assert_eq!(child.hear(), "attached"),
                2 => names[at] = child.hear(),
                3 => child.tell(&names[1 - at]),
                4 => assert!(["connected", "alone"].contains(&&*child.hear())),
                _ => {}
            }
            if *last == stage {
                std::thread::sleep(Duration::from_micros(random.below(after)));
                slot.take().expect("it was not killed yet").0.kill();
            }
        }
    }
}

fn kill_many(houses: &[House; 2], programs: u32, seed: u64) {
    let nobody = |house: &House| {
        let gid = house.device.gid_table(1).expect("port 1")[0].gid;
        Name { gid, numbers: vec![0xab_cdef] }.to_line()
    };
    let nobody = nobody(&houses[0]);
    let sockets = [&*houses[0].socket, &*houses[1].socket];
    let each = u64::from(programs).div_ceil(2 * ALLEYS);
    std::thread::scope(|scope| {
        for alley in 0..ALLEYS {
            let nobody = &nobody;
            scope.spawn(move || {
                let mut random = Random(seed + alley);
                // Now and then both are programs of one owner.
                let streets = [sockets, [sockets[0]; 2], [sockets[1], sockets[0]]];
                (0..each).for_each(|_| kill_two(streets[random.below(3) as usize], nobody, &mut random));
            });
        }
    });
}

/// Descriptors, mappings of shareable memory, and threads of this process.
fn holdings() -> [usize; 3] {
    let count = |path: &str| std::fs::read_dir(path).expect("Linux lists them").count();
    let maps = std::fs::read_to_string("/proc/self/maps").expect("Linux lists them");
    let maps = maps.lines().filter(|line| line.contains("memfd:fulmen")).count();
    [count("/proc/self/fd"), maps, count("/proc/self/task")]
}

/// Its own process, since other tests of this binary open descriptors at the same time.
#[test]
fn who_is_killed_leaves_nothing() {
    let mut child = Child::start("town");
    println!("{}", child.hear());
    assert_eq!(child.hear(), "nothing is lost");
    child.finish();
}

pub fn town() {
    let houses = House::street([strict(), strict()]);
    let sockets = [&*houses[0].socket, &*houses[1].socket];
    // More memory for messages than is needed at any time later.
    gather(sockets);
    kill_many(&houses, 12, 1);
    nothing_is_left(&houses);
    let before = settled(&[usize::MAX; 3]);
    kill_many(&houses, rounds(1000, 10_000), 100);
    nothing_is_left(&houses);
    let after = settled(&before);
    Parent.tell(&format!("descriptors, mappings, threads: {before:?} before, {after:?} after"));
    gather(sockets);
    Talk::start(sockets, 31, 200).finish(|| {});
    Talk::start([sockets[0]; 2], 33, 200).finish(|| {});
    nothing_is_left(&houses);
    Parent.tell("nothing is lost");
}

/// What this process has, once that is no more than some. What the last programs had goes a moment after them.
fn settled(most: &[usize; 3]) -> [usize; 3] {
    let mut last = [0; 3];
    until("no more than before", || {
        let now = holdings();
        let is_still = now == last;
        last = now;
        // Nothing tells when the system has taken all back: what two looks find alike stays.
        std::thread::sleep(Duration::from_millis(100));
        (is_still && now.iter().zip(most).all(|(now, most)| now <= most)).then_some(now)
    })
}

/// Kills a program, and tells how long its peer's queue pair took to know.
fn until_noticed(child: Child, side: &Side) -> Duration {
    assert!(!side.pairs[0].is_peer_gone(), "it lives");
    let start = Instant::now();
    child.kill();
    until("the peer is gone", || side.pairs[0].is_peer_gone().then_some(()));
    start.elapsed()
}

#[test]
fn who_is_killed_is_missed() {
    let houses = House::street([strict(), strict()]);
    for from in [0, 1] {
        let mut child = Child::start(&format!("idle {}", houses[1].socket.display()));
        let side = Side::with(&houses[from].socket, 1, 1);
        let peer = Name::from_line(&child.hear());
        child.tell(&side.name().to_line());
        side.connect(&peer).expect("connected");
        assert_eq!(child.hear(), "connected");
        side.send(0, 0, 0, 100);
        side.next();
        println!("noticed after {:?}", until_noticed(child, &side));
    }
    nothing_is_left(&houses);
}

/// Nothing of it ever came, since it was not connected yet.
#[test]
fn who_is_killed_before_it_is_connected_is_missed() {
    let houses = House::street([strict(), strict()]);
    for (from, sends) in [(0, 0), (0, 3), (1, 0), (1, 3)] {
        let mut child = Child::start(&format!("idle {}", houses[1].socket.display()));
        let side = Side::with(&houses[from].socket, 1, 1);
        side.connect(&Name::from_line(&child.hear())).expect("connected");
        (0..sends).for_each(|number| side.send(0, number, 0, 100));
        println!("noticed after {:?}", until_noticed(child, &side));
    }
    nothing_is_left(&houses);
}
