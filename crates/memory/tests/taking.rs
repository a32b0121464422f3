//! Memory that is taken back from a process that goes on writing to it.
#![cfg(target_os = "linux")]

use std::fs::File;
use std::os::fd::AsRawFd;
use std::process::{Child, Command};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use fulmen_memory::{Block, Exposed, Pool, PoolError, Region, RegionError, page_size};

const WORLD: &str = "FULMEN_TEST_WRITES";
/// Never reached when all is well.
const LONG: Duration = Duration::from_secs(60);
/// Bytes of a block: a grain, so that pages hold blocks that the writer writes and blocks that it leaves alone.
const LEN: usize = 64;

/// Where the writer says that it goes on, and where it is told to end.
const BEAT: usize = 0;
const END: usize = 8;

/// The process that writes, and does not end before the test.
struct Writer(Child);

impl Drop for Writer {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The other process: fills every second block with one number after the other. As a test of its own it does nothing.
#[test]
fn writer() {
    let Ok(world) = std::env::var(WORLD) else { return };
    let (path, len) = world.split_once(' ').unwrap();
    let len: usize = len.parse().unwrap();
    let file = File::options().read(true).write(true).open(path).unwrap();
    let memory = Region::from_fd(file.into(), len).unwrap().expose().unwrap();
    let start = Instant::now();
    for number in 1_u64.. {
        for at in (LEN..len).step_by(2 * LEN) {
            memory.fill(at..at + LEN, number as u8);
        }
        memory.atomic_u64(BEAT).store(number, Ordering::SeqCst);
        if memory.atomic_u64(END).load(Ordering::SeqCst) != 0 || start.elapsed() > 4 * LONG {
            return;
        }
    }
}

fn until(what: &str, mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < LONG, "{what}");
        thread::yield_now();
    }
}

/// Whether the writer writes all blocks once more.
fn goes_on(file: &Exposed) {
    let beat = || file.atomic_u64(BEAT).load(Ordering::SeqCst);
    let before = beat();
    until("the writer goes on", || beat() > before + 2);
}

/// Ends the threads that work, also when the test fails.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

fn rounds() -> usize {
    fulmen_testbed::by_tier(5, 20, 50)
}

#[test]
fn nothing_of_the_others_is_seen_and_nothing_of_ones_own_is_lost() {
    for round in 0..rounds() {
        take_back_under_fire(round);
    }
}

fn take_back_under_fire(round: usize) {
    let len = 24 * page_size();
    let region = Region::alloc(len).unwrap();
    let pool = Pool::new(&region).unwrap();
    let path = format!("/proc/{}/fd/{}", std::process::id(), region.fd().unwrap().as_raw_fd());
    // The file, as others see it.
    let descriptor = region.fd().unwrap().try_clone_to_owned().unwrap();
    let file = Region::from_fd(descriptor, len).unwrap().expose().unwrap();
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "writer", "--test-threads=1"])
        .env(WORLD, format!("{path} {len}"))
        .spawn()
        .unwrap();
    let _writer = Writer(child);

    // All but the last four pages, in which nothing is in use.
    let mut blocks: Vec<Block> = (0..20 * page_size() / LEN).map(|_| pool.take(LEN).unwrap()).collect();
    blocks.sort_by_key(Block::offset);
    let first = blocks.remove(0);
    assert_eq!(first.offset(), 0, "the words for the writer");
    let mut own: Vec<Block> = Vec::new();
    let mut written: Vec<Exposed> = Vec::new();
    for block in blocks {
        if (block.offset() / LEN).is_multiple_of(2) { own.push(block) } else { written.push(block.into_exposed()) }
    }
    for block in &mut own {
        block.as_mut_slice::<u64>().fill(0);
    }
    let counted = own.split_off(own.len() / 2);
    let counters: Vec<Exposed> = counted.into_iter().map(Block::into_exposed).collect();
    goes_on(&file);

    let over = AtomicBool::new(false);
    let (plain, adds) = thread::scope(|scope| {
        // Plain stores of one's own blocks.
        let plain = scope.spawn(|| {
            let mut rounds = 0_u64;
            while !over.load(Ordering::SeqCst) {
                rounds += 1;
                for block in &mut own {
                    for word in block.as_mut_slice::<u64>() {
                        assert_eq!(*word, rounds - 1, "a store is lost");
                        *word = rounds;
                    }
                }
            }
            rounds
        });
        // Atomic additions of two threads.
        let add = || {
            let mut rounds = 0_u64;
            while !over.load(Ordering::SeqCst) {
                rounds += 1;
                for counter in &counters {
                    counter.atomic_u64(0).fetch_add(1, Ordering::Relaxed);
                }
            }
            rounds
        };
        let adds = [scope.spawn(add), scope.spawn(add)];
        let ending = Over(&over);
        thread::sleep(Duration::from_millis(5 + 3 * round as u64 % 20));
        pool.take_back().unwrap();
        // Whatever is seen from now on stays.
        let seen = |memory: &Exposed| {
            let mut bytes = [0; LEN];
            memory.read(0, &mut bytes);
            bytes
        };
        let before: Vec<_> = written.iter().map(seen).collect();
        goes_on(&file);
        pool.take_back().unwrap();
        goes_on(&file);
        for (memory, before) in written.iter().zip(&before) {
            assert_eq!(seen(memory), *before, "at {}", memory.offset());
        }
        drop(ending);
        (plain.join().unwrap(), adds.map(|add| add.join().unwrap()).iter().sum::<u64>())
    });
    assert!(own.iter().all(|block| block.as_slice::<u64>().iter().all(|word| *word == plain)));
    assert!(counters.iter().all(|counter| counter.atomic_u64(0).load(Ordering::SeqCst) == adds));

    // The other way round nothing goes either, and nobody new gets at it.
    written[0].fill(0..LEN, 0xab);
    goes_on(&file);
    let mut bytes = [0; LEN];
    written[0].read(0, &mut bytes);
    assert_eq!(bytes, [0xab; LEN]);
    assert!(region.fd().is_none());
    assert!(matches!(pool.take(LEN), Err(PoolError::TakenBack)));
    drop((own, counters, first));
    written.truncate(1);
    assert_eq!(pool.stats().blocks, 1);
    assert!(matches!(pool.take(LEN), Err(PoolError::TakenBack)));
    let block = written.pop().unwrap().into_block().unwrap();
    assert_eq!(block.as_slice::<u8>(), [0xab; LEN]);
    file.atomic_u64(END).store(1, Ordering::SeqCst);
}

#[test]
fn an_empty_pool_is_taken_back_and_adopted_memory_is_not() {
    let pool = Pool::new(&Region::alloc(100).unwrap()).unwrap();
    drop(pool.take(10).unwrap());
    pool.take_back().unwrap();
    assert!(matches!(pool.take(1), Err(PoolError::TakenBack)));

    let owner = Region::alloc(page_size()).unwrap();
    let memory = owner.expose().unwrap();
    let start = std::ptr::NonNull::new(memory.as_ptr()).unwrap();
    // SAFETY: the owner keeps the page mapped, and nothing else is done with it.
    let adopted = unsafe { Region::adopt(start, page_size(), Box::new(owner)) }.unwrap();
    let pool = Pool::new(&adopted).unwrap();
    let mut block = pool.take(10).unwrap();
    assert!(matches!(pool.take_back(), Err(RegionError::CannotTakeBack { .. })));
    block.as_mut_slice::<u8>().fill(1);
}
