//! Writes first inputs into `corpus/`: conversations as correct peers have them, in the forms that the targets take.

use std::fs;
use std::path::Path;

use fulmen_fabric::bootstrap::ToCoordinator;
use fulmen_fabric::bootstrap::{Regroup, Round};
use fulmen_fabric::engine::{
    At, Atomic, Body, Config, Counter, Exports, Lent, Link, Place, Rendezvous, Source, Target,
};
use fulmen_fuzz::Guarded;

fn main() {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus");
    let write = |target: &str, name: &str, bytes: &[u8]| {
        let folder = corpus.join(target);
        fs::create_dir_all(&folder).expect("a folder for the corpus");
        fs::write(folder.join(name), bytes).expect("a file of the corpus");
    };
    for (name, rendezvous) in [("mapped", 0), ("matched", 1)] {
        for (part, bytes) in engine(rendezvous).into_iter().enumerate() {
            write("engine_frames", &format!("{name}-{part}"), &bytes);
        }
    }
    for (part, bytes) in bootstrap().into_iter().enumerate() {
        write("bootstrap_frames", &format!("talk-{part}"), &bytes);
    }
    for (name, cut) in [("whole", 255), ("bytes", 1)] {
        // Version 4, as a rank says it.
        let hello = [&[cut], &b"FULM\x04\0\0\0"[..], &[0; 32]].concat();
        write("bootstrap_hello", name, &hello);
    }
    write("trust_name", "member", &fulmen_trust::fuzzing::certificate("rank 3, pid 77 on host-b"));
    for sort in 0..6 {
        write("soft_shared", &format!("sort-{sort}"), &soft(sort));
    }
    for (name, bytes) in fulmen_soft::fuzzing::network::sayings() {
        write("soft_hello", name, &bytes);
    }
}

/// What two sides of soft devices do in turns, with a damaged word now and then.
fn soft(sort: u8) -> Vec<u8> {
    let mut input = vec![sort];
    for turn in 0..60_u8 {
        input.push(turn.wrapping_mul(7).wrapping_add(3) & 15);
        if turn % 10 == 9 {
            // A byte of a word in the head, or in the first frames.
            input.extend([0x80 | turn & 3, 60 + turn, turn & 7]);
        }
    }
    input
}

fn piece(input: &mut Vec<u8>, bytes: &[u8]) {
    input.push(bytes.len() as u8);
    input.extend(bytes);
}

/// What the peer of `engine_frames` says when it does all that a peer does.
fn engine(flags: u8) -> Vec<Vec<u8>> {
    let rendezvous = if flags == 0 { Rendezvous::Mapped } else { Rendezvous::Matched };
    let config = Config { frame: 256, credits: 16, unexpected: 2000, rendezvous, verify: false };
    let memory = Guarded::new(&[3000]);
    let data = |len: usize| Source::Memory(memory.piece(0).slice(0..len));
    let offered = || Source::Offered { memory: memory.piece(0), place: Place { key: 1, ..Place::default() } };
    let target = |len: usize| Target::Memory { memory: memory.piece(0).slice(0..len), direct: true };
    let key = u64::from_le_bytes;
    let [read, write, all] = [key(*b"readable"), key(*b"writable"), key(*b"allright")];
    let at = |key, offset| At { key, offset };
    type Talk<'a> = Box<dyn Fn(&mut Link) + 'a>;
    let talks: Vec<Talk<'_>> = vec![
        Box::new(|link| {
            (0..3).for_each(|tag| {
                let _ = link.send(tag, data(40));
            })
        }),
        Box::new(|link| {
            let _ = (link.send(1, data(1000)), link.send(2, offered()));
        }),
        Box::new(|link| {
            let _ = (link.put(at(write, 8), data(100), None), link.get(at(read, 0), target(64)));
        }),
        Box::new(|link| {
            let counter = Counter { at: at(all, 8), add: 1 };
            let _ = (link.put(at(all, 16), data(900), Some(counter)), link.put(at(all, 0), offered(), None));
        }),
        Box::new(|link| {
            let _ = link.get(at(all, 0), target(1000));
        }),
        Box::new(|link| {
            let _ = link.atomic(at(all, 8), Atomic::FetchAdd(1));
            link.fence();
            let _ = link.atomic(at(all, 8), Atomic::CompareSwap { expect: 1, new: 2 });
        }),
        Box::new(|link| link.close()),
    ];
    talks.into_iter().map(|talk| conversation(flags, config, &*talk)).collect()
}

fn conversation(flags: u8, config: Config, talk: &dyn Fn(&mut Link)) -> Vec<u8> {
    let mut peer = Link::with_exports(config, Exports::new());
    talk(&mut peer);
    let mut input = vec![flags];
    // What the target's program does: two receives, and sends that the peer may answer.
    for (what, tag) in [(4, 1), (3, 2), (0, 1), (1, 2), (8, 1), (11, 2), (12, 0)] {
        input.extend([what << 3 | 5, tag]);
    }
    while let Some(frame) = peer.transmit(&Lent::Nothing) {
        let mut bytes = frame.header.as_bytes().to_vec();
        match &frame.body {
            Body::Empty => {}
            Body::Memory(op, range) => {
                let at = bytes.len();
                bytes.resize(at + range.len(), 0);
                peer.memory(*op).read(range.start, &mut bytes[at..]);
            }
            Body::Packed => bytes.extend(peer.packed()),
            Body::Lent(..) => unreachable!("nothing was lent"),
        }
        peer.transmitted(&frame);
        input.push(1 << 6);
        piece(&mut input, &bytes[..bytes.len().min(255)]);
    }
    input
}

/// What ranks say when they do all that ranks do.
fn bootstrap() -> Vec<Vec<u8>> {
    let generation = fulmen_fabric::bootstrap::world::World::new(2, [7; 32]).generation();
    let join = |rank| ToCoordinator::Join { rank, size: 2, pid: 100 + rank, pids: None };
    let part = |round| ToCoordinator::Contribute { generation, number: 0, round };
    let talks = [
        vec![(0, join(0)), (1, join(1)), (0, part(Round::Barrier)), (1, part(Round::Barrier))],
        vec![(0, join(0)), (1, join(1)), (0, part(Round::AllGather)), (1, part(Round::AllGather))],
        vec![
            (0, join(0)),
            (1, join(1)),
            (0, ToCoordinator::Cut { generation, rank: 1 }),
            (0, ToCoordinator::Regroup { attempt: 1, how: Regroup::Survivors }),
            (1, ToCoordinator::Regroup { attempt: 1, how: Regroup::Everybody }),
            (1, ToCoordinator::GiveUpRegroup { attempt: 1 }),
        ],
        vec![
            (0, join(0)),
            (1, join(1)),
            (0, ToCoordinator::GiveUp { generation, number: Some(0) }),
            (0, ToCoordinator::Pong),
            (1, ToCoordinator::Goodbye),
        ],
    ];
    let mut inputs: Vec<Vec<u8>> = Vec::new();
    for talk in talks {
        let mut input = vec![1];
        for (id, message) in talk {
            input.push(3 << 3 | id);
            piece(&mut input, &fulmen_fabric::bootstrap::fuzzing::to_coordinator(&message));
        }
        inputs.push(input);
    }
    inputs
}
