//! Writes first inputs into `corpus/`: conversations as correct peers have them, in the forms that the targets take.

use std::fs;
use std::path::Path;

use fulmen_abi::{
    Arguments, Buffer, Command, Endpoint, Network, NetworkAction, NetworkRequest, Origin, Protocol, RdmaBuffer, Rights,
    Spawn, SpawnFlags, SpawnRequest, SpawnText, Strings, Work, WorkItem, WorkKind,
};
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
    for (name, bytes) in records() {
        write("abi_records", name, &bytes);
    }
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
    let config = Config { frame: 256, long: None, credits: 16, unexpected: 2000, rendezvous, verify: false };
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

/// A record of each kind, in pieces without zeros, and a text.
fn records() -> Vec<(&'static str, Vec<u8>)> {
    let origin = Origin { node: 1, generation: 2 };
    let buffer =
        |tag, rights| Buffer { node: 1, generation: 2, slot: 3, tag, region_len: 64, offset: 8, len: 8, rights };
    let args = Strings::new(&["sh", "-c", "true"]);
    let command = Command { args, env: Strings::new(&["A=1"]), cwd: Some("/tmp") };
    let spawn = Spawn {
        flags: SpawnFlags::STDIN,
        stdin: Some(buffer(4, Rights::READ)),
        stdout: Some(buffer(5, Rights::WRITE)),
        stderr: Some(buffer(6, Rights::WRITE)),
        ..Spawn::new(7, origin, fulmen_abi::Target::Gateway, SpawnText::Inline(command))
    };
    let work = Work {
        id: 7,
        origin,
        target: fulmen_abi::Target::Any,
        kind: WorkKind::Kernel,
        kernel: 8,
        max_attempts: None,
        claims_before: 0,
        arguments: Arguments::Inline(b"arguments"),
        result: Some(buffer(9, Rights::WRITE)),
        counter: None,
    };
    let to = Endpoint::Host { name: "a.example", port: 80 };
    let action = NetworkAction::Connect { protocol: Protocol::Tcp, to };
    let network =
        Network { id: 7, origin, target: fulmen_abi::Target::Node(0), lease: None, deadline_ns: None, action };
    let mut text = [0; 64];
    let len = command.write(&mut text).expect("it fits in");
    let good = "a record as programs make it";
    vec![
        ("spawn", pieces(0, SpawnRequest::encode(&spawn).expect(good).as_bytes())),
        ("work", pieces(1, WorkItem::encode(&work).expect(good).as_bytes())),
        ("network", pieces(2, NetworkRequest::encode(&network).expect(good).as_bytes())),
        ("buffer", pieces(3, RdmaBuffer::encode(&buffer(4, Rights::all())).expect(good).as_bytes())),
        ("text", [&[4, 3, 1, 1], &text[..len]].concat()),
    ]
}

/// A record of this kind as an input: its words that are not zero, each with its place.
fn pieces(kind: u8, record: &[u8]) -> Vec<u8> {
    let mut input = vec![kind];
    for (at, word) in record.chunks(8).enumerate().filter(|(_, word)| word.iter().any(|byte| *byte != 0)) {
        input.extend((at as u16 * 8).to_le_bytes());
        piece(&mut input, word);
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
