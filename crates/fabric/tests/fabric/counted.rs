//! What goes over the wire, counted.

use std::sync::Arc;

use fulmen_fabric::model::{Operation, Toward, Wire};
use fulmen_fabric::{Fabric, FabricOptions, Providers, RemoteKey, Rights};
use fulmen_soft::Profile;

use crate::counting::{Count, Counted, Posted};
use crate::devices::{check, fill};
use crate::world::{self, LONG, device, options};

const KEY: u64 = 1;
const DONE: u64 = 2;

/// Starts two ranks over Thunderbolt; rank 0 reaches memory of rank 1 while that does nothing but wait.
fn between_two(
    len: usize,
    body: impl Fn(&Fabric, &RemoteKey, &[Arc<Count>; 2]) + Sync,
    other: impl Fn(&Fabric) + Sync,
) {
    let counts = [0, 1].map(|_| Arc::new(Count::default()));
    let given = |rank: u32| {
        let device = Counted::over(device(Profile::Thunderbolt), &counts[rank as usize]);
        let options = FabricOptions { windows: false, pool: 64 << 20, ..options() };
        (Providers { devices: vec![device], ..Providers::default() }, options)
    };
    world::start_with(2, given, |rank, fabric| {
        let fabric = fabric.unwrap();
        if rank == 0 {
            let mut key = [0; 256];
            let key_len = fabric.recv_bytes(1, KEY, &mut key, LONG).unwrap();
            let key = RemoteKey::from_bytes(&key[..key_len]).unwrap();
            body(&fabric, &key, &counts);
            fabric.send_bytes(1, DONE, &[], LONG).unwrap();
        } else {
            let memory = fabric.alloc(len).unwrap().into_exposed();
            let shared = fabric.share(&memory, Rights::all()).unwrap();
            fabric.send_bytes(0, KEY, &shared.key().to_bytes(), LONG).unwrap();
            other(&fabric);
            fabric.recv_bytes(0, DONE, &mut [], LONG).unwrap();
            shared.close(LONG).unwrap();
        }
    });
}

const MIB: usize = 1 << 20;
const MESSAGE: u64 = 3;

#[test]
fn a_mebibyte_takes_little_more_than_its_bytes() {
    let body = |fabric: &Fabric, key: &RemoteKey, counts: &[Arc<Count>; 2]| {
        let data = fabric.alloc(MIB).unwrap().into_exposed();
        fill(&data, 9);
        let remote = fabric.remote(1, key).unwrap();
        let all = || counts.iter().map(|count| count.all().1).sum::<u64>();
        let (start, most) = (all(), MIB as u64 * 103 / 100);
        fabric.send(1, MESSAGE, &data, LONG).unwrap();
        let message = all() - start;
        remote.put(0, &data, LONG).unwrap();
        let put = all() - start - message;
        println!("a message of 1 MiB took {message} bytes, a put {put}");
        assert!(message <= most && put <= most, "{message} and {put} bytes");
        let into = fabric.alloc(MIB).unwrap().into_exposed();
        remote.get(0, &into, LONG).unwrap();
        check(&into, 9, "a put");
    };
    let other = |fabric: &Fabric| {
        let into = fabric.alloc(MIB).unwrap().into_exposed();
        fabric.recv(0, MESSAGE, &into, LONG).unwrap();
        check(&into, 9, "a message");
    };
    between_two(MIB, body, other);
}

#[test]
fn a_short_put_takes_one_round_trip() {
    let body = |fabric: &Fabric, key: &RemoteKey, counts: &[Arc<Count>; 2]| {
        let data = fabric.alloc(4096).unwrap().into_exposed();
        let remote = fabric.remote(1, key).unwrap();
        // A busy machine may make some wait so long that acknowledgements go alone, or frames go again.
        let sends = |_| {
            let before = [0, 1].map(|rank: usize| counts[rank].all());
            remote.put(0, &data, LONG).unwrap();
            [0, 1].map(|rank: usize| counts[rank].all().0 - before[rank].0)
        };
        let fewest = (0..50).map(sends).min_by_key(|[out, back]| out + back).unwrap();
        // With their headers, 4 KiB are more than one of the device's frames.
        assert!(fewest[0] <= 2 && fewest[1] <= 1, "{fewest:?}");
    };
    between_two(4096, body, |_| ());
}

/// Around every border: of short puts, of frames, of fragments, of large messages, of chunks and of the receives for them.
const SIZES: [usize; 33] = [
    0,
    1,
    8,
    40,
    64,
    256,
    257,
    1000,
    4006,
    4007,
    4030,
    4031,
    4040,
    4041,
    4064,
    4065,
    4096,
    8070,
    8080,
    8081,
    12_120,
    16_383,
    16_384,
    65_536,
    262_144,
    524_287,
    524_288,
    524_289,
    MIB,
    3 * MIB + 5,
    4 * MIB,
    4 * MIB + 1,
    9 * MIB,
];

/// Fails if the model says something else about an operation than what two ranks have posted for it.
#[track_caller]
fn compare(wire: &Wire, what: (Operation, usize), before: [Posted; 2], counts: &[Arc<Count>; 2]) {
    let steps = wire.steps(what.0, what.1 as u64);
    for (rank, toward) in [Toward::There, Toward::Here].into_iter().enumerate() {
        let posted = counts[rank].now().operations.since(before[rank]);
        let load = steps.load(toward, wire);
        // A grant more, if one went for less than it could have.
        let more = posted.sends.saturating_sub(load.sends);
        let grant = steps.legs.iter().find(|leg| leg.spare > 0).map_or(0, |leg| leg.longest);
        let said = Posted { sends: load.sends + more, bytes: load.bytes + more * grant, units: load.units + more };
        assert!(
            posted == said && more <= load.spare,
            "{what:?}, rank {rank} posted {posted:?}, the model says {load:?}"
        );
    }
}

#[test]
fn the_model_says_what_operations_post() {
    let wire = Wire::new(&FabricOptions::default(), device(Profile::Thunderbolt).info()).unwrap();
    let largest = *SIZES.last().unwrap();
    let body = |fabric: &Fabric, key: &RemoteKey, counts: &[Arc<Count>; 2]| {
        let now = || [0, 1].map(|rank: usize| counts[rank].now().operations);
        let data = fabric.alloc(largest).unwrap().into_exposed();
        fill(&data, 7);
        let remote = fabric.remote(1, key).unwrap();
        for len in SIZES {
            let part = data.slice(0..len);
            let before = now();
            fabric.send(1, MESSAGE, &part, LONG).unwrap();
            compare(&wire, (Operation::Message, len), before, counts);
            let before = now();
            remote.put(8, &part, LONG).unwrap();
            compare(&wire, (Operation::Put, len), before, counts);
            let before = now();
            remote.put_counted(8, &part, (&remote, 0, 1), LONG).unwrap();
            compare(&wire, (Operation::PutCounted, len), before, counts);
            let before = now();
            remote.get(8, &part, LONG).unwrap();
            compare(&wire, (Operation::Get, len), before, counts);
        }
        check(&data, 7, "what was put and got");
        let before = now();
        assert_eq!(remote.fetch_add(0, 1, LONG).unwrap(), SIZES.len() as u64);
        compare(&wire, (Operation::FetchAdd, 8), before, counts);
        let before = now();
        remote.compare_swap(0, 0, 1, LONG).unwrap();
        compare(&wire, (Operation::CompareSwap, 8), before, counts);
        // Plain memory goes in frames, whatever its length.
        let plain = Wire { rendezvous: u64::MAX, ..wire };
        let bytes = vec![3; MIB];
        for len in SIZES.into_iter().filter(|len| *len <= MIB) {
            let before = now();
            fabric.send_bytes(1, MESSAGE, &bytes[..len], LONG).unwrap();
            compare(&plain, (Operation::Message, len), before, counts);
        }
    };
    let other = |fabric: &Fabric| {
        let into = fabric.alloc(largest).unwrap().into_exposed();
        for len in SIZES {
            assert_eq!(fabric.recv(0, MESSAGE, &into, LONG).unwrap(), len);
        }
        check(&into, 7, "a message");
        for len in SIZES.into_iter().filter(|len| *len <= MIB) {
            assert_eq!(fabric.recv(0, MESSAGE, &into, LONG).unwrap(), len);
        }
    };
    between_two(largest + 8, body, other);
}
