//! One-sided operations: what they do, what they refuse, and what ends them.

mod loss;
mod operations;
mod rights;

use std::thread;
use std::time::Instant;

use fulmen_fabric::{Fabric, Remote, RemoteKey, Rights, Shared};
use fulmen_memory::{Block, Exposed, Region};

use crate::world::LONG;

/// Tags of the messages that bring keys, and of others.
const KEY: u64 = 1;
const SAY: u64 = 2;

fn rounds(few: usize) -> usize {
    few * fulmen_testbed::by_tier(1, 2, 5)
}

/// Numbers that a seed repeats.
struct Dice(u64);

impl Dice {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed ^ (mixed >> 29)
    }

    fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }

    fn bytes(&mut self, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        for word in bytes.chunks_mut(8) {
            word.copy_from_slice(&self.next().to_le_bytes()[..word.len()]);
        }
        bytes
    }
}

fn all() -> Rights {
    Rights::all()
}

fn pooled(fabric: &Fabric, len: usize) -> Exposed {
    let memory = fabric.alloc(len).unwrap().into_exposed();
    memory.fill(0..len, 0);
    memory
}

fn private(len: usize) -> Exposed {
    Region::alloc(len.max(1)).unwrap().expose().unwrap().slice(0..len)
}

fn bytes(memory: &Exposed) -> Vec<u8> {
    let mut bytes = vec![0; memory.len()];
    memory.read(0, &mut bytes);
    bytes
}

fn give(fabric: &Fabric, to: u32, key: &RemoteKey) {
    fabric.send_bytes(to, KEY, &key.to_bytes(), LONG).unwrap();
}

fn take(fabric: &Fabric, from: u32) -> RemoteKey {
    let mut bytes = [0; 512];
    let len = fabric.recv_bytes(from, KEY, &mut bytes, LONG).unwrap();
    RemoteKey::from_bytes(&bytes[..len]).unwrap()
}

fn remote(fabric: &Fabric, from: u32) -> Remote {
    fabric.remote(from, &take(fabric, from)).unwrap()
}

fn say(fabric: &Fabric, to: u32) {
    fabric.send_bytes(to, SAY, &[], LONG).unwrap();
}

fn hear(fabric: &Fabric, from: u32) {
    fabric.recv_bytes(from, SAY, &mut [], LONG).unwrap();
}

/// What a rank has of rank 0's memory.
enum Side {
    Owner(Shared),
    Other(Remote),
}

/// Rank 0 shares, and the others get a remote of it.
fn on_rank_zero(fabric: &Fabric, memory: impl Fn() -> Exposed, rights: Rights) -> Side {
    if fabric.rank() != 0 {
        return Side::Other(remote(fabric, 0));
    }
    let shared = fabric.share(&memory(), rights).unwrap();
    (1..fabric.size()).for_each(|rank| give(fabric, rank, &shared.key()));
    Side::Owner(shared)
}

/// All other ranks have told rank 0 that they are so far.
fn all_done(fabric: &Fabric) {
    match fabric.rank() {
        0 => (1..fabric.size()).for_each(|rank| hear(fabric, rank)),
        _ => say(fabric, 0),
    }
}

/// The block behind memory that nobody works on any more. A thread of this rank that looked for such memory may hold a handle
/// to it for another moment.
fn sole(mut memory: Exposed) -> Block {
    let end = Instant::now() + LONG;
    loop {
        match memory.into_block() {
            Ok(block) => return block,
            Err(still) => memory = still,
        }
        assert!(Instant::now() < end, "somebody has the memory still");
        thread::yield_now();
    }
}
