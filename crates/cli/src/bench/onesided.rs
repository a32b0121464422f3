//! One-sided operations: the even rank of two works on memory that the odd one shares.

use std::marker::PhantomData;
use std::thread;
use std::time::{Duration, Instant};

use fulmen::parts::fabric::engine::Rights;
use fulmen::parts::fabric::{Remote, RemoteKey, Shared};
use fulmen::parts::kernels::as_bytes;
use fulmen::parts::memory::Exposed;
use fulmen::{CollectiveError, Group};
use rustix::time::{ClockId, clock_gettime};

use super::cases::{Case, POISON};
use super::operation::{Kind, Op};
use super::value::{self, Value};

/// The tag of the key to the shared memory.
const KEY: u64 = 2;
/// More than a key has bytes.
const LONGEST_KEY: usize = 256;
/// What is added to a word.
const STEP: u64 = 3;
/// How long the target sleeps while its processor time is measured.
const SLEEP: Duration = Duration::from_millis(40);

/// Memory of the rank that asks.
enum Own {
    Registered(Exposed),
    Plain(Vec<u8>),
}

impl Own {
    fn set(&mut self, bytes: &[u8]) {
        match self {
            Own::Registered(memory) => memory.write(0, bytes),
            Own::Plain(memory) => memory.copy_from_slice(bytes),
        }
    }

    fn get(&self) -> Vec<u8> {
        match self {
            Own::Registered(memory) => bytes_of(memory, memory.len()),
            Own::Plain(memory) => memory.clone(),
        }
    }
}

/// Operations between neighbours: rank 0 works on memory of rank 1, 2 on that of 3, and so on. With an odd number of ranks,
/// the last one has no peer. In a round trip of puts, the other one answers in kind.
pub struct OneSided<'a, T> {
    group: &'a Group,
    op: Op,
    bytes: usize,
    peer: Option<u32>,
    own: Own,
    /// What this rank shares: the data, and a word after it.
    shared: Option<Shared>,
    /// What its peer shares.
    remote: Option<Remote>,
    /// Where the word is.
    word: u64,
    /// What the word must be next.
    expected: u64,
    /// Words that were not what they must be.
    wrong: u64,
    /// How the ranks met after they had set their memory.
    met: Result<(), CollectiveError>,
    elements: PhantomData<T>,
}

impl<'a, T: Value> OneSided<'a, T> {
    pub fn new(group: &'a Group, op: Op, kind: Kind, bytes: usize) -> anyhow::Result<OneSided<'a, T>> {
        let fabric = group.fabric();
        let peer = Some(group.rank() ^ 1).filter(|&peer| peer < group.size());
        let word = bytes.next_multiple_of(8);
        let own = match kind {
            Kind::Registered => Own::Registered(fabric.alloc(bytes)?.into_exposed()),
            Kind::Plain => Own::Plain(vec![0; bytes]),
        };
        let mut case = OneSided {
            group,
            op,
            bytes,
            peer,
            own,
            shared: None,
            remote: None,
            word: word as u64,
            expected: 0,
            wrong: 0,
            met: Ok(()),
            elements: PhantomData,
        };
        let Some(peer) = peer else { return Ok(case) };
        let memory = fabric.alloc(word + 8)?.into_exposed();
        let shared = fabric.share(&memory, Rights::all())?;
        let mut key = [0; LONGEST_KEY];
        let sent = fabric.start_send(peer, KEY, &{
            let bytes = shared.key().to_bytes();
            let message = fabric.alloc(bytes.len())?.into_exposed();
            message.write(0, &bytes);
            message
        })?;
        let len = fabric.recv_bytes(peer, KEY, &mut key, group.deadline())?;
        sent.wait(group.deadline())?;
        case.remote = Some(fabric.remote(peer, &RemoteKey::from_bytes(&key[..len])?)?);
        case.shared = Some(shared);
        Ok(case)
    }

    fn asks(&self) -> bool {
        self.group.rank().is_multiple_of(2)
    }

    fn values(&self, rank: usize, round: u64) -> Vec<T> {
        let mut values = vec![T::default(); self.bytes / size_of::<T>()];
        value::fill(rank, round, 0, &mut values);
        values
    }

    /// One operation of the rank that asks.
    #[inline]
    fn once(&mut self) -> anyhow::Result<()> {
        let Some(remote) = &self.remote else { return Ok(()) };
        let deadline = self.group.deadline();
        match (self.op, &mut self.own) {
            (Op::Get, Own::Registered(memory)) => remote.get(0, memory, deadline)?,
            (Op::Get, Own::Plain(memory)) => remote.get_bytes(0, memory, deadline)?,
            (Op::FetchAdd, _) => {
                let old = remote.fetch_add(self.word, STEP, deadline)?;
                self.wrong += u64::from(old != self.expected);
                self.expected = self.expected.wrapping_add(STEP);
            }
            (Op::CompareSwap, _) => {
                let (expected, new) = (self.expected, self.expected.wrapping_add(STEP));
                let old = remote.compare_swap(self.word, expected, new, deadline)?;
                self.wrong += u64::from(old != expected);
                self.expected = new;
            }
            (_, Own::Registered(memory)) => remote.put(0, memory, deadline)?,
            (_, Own::Plain(memory)) => remote.put_bytes(0, memory, deadline)?,
        }
        Ok(())
    }

    /// A put that the peer waits for, or waiting for the peer's.
    fn answer(&mut self, puts: bool) -> anyhow::Result<()> {
        let (Some(remote), Some(shared)) = (&self.remote, &self.shared) else { return Ok(()) };
        let deadline = self.group.deadline();
        if !puts {
            self.expected += 1;
            shared.wait_counter(self.word, self.expected, deadline)?;
            return Ok(());
        }
        match &self.own {
            Own::Registered(memory) => remote.put_counted(0, memory, (remote, self.word, 1), deadline)?,
            Own::Plain(memory) => {
                remote.put_bytes(0, memory, deadline)?;
                self.group.fabric().fence(remote.rank())?;
                remote.fetch_add(self.word, 1, deadline)?;
            }
        }
        Ok(())
    }
}

impl<T: Value> Case for OneSided<'_, T> {
    fn set(&mut self, round: u64) {
        let rank = self.group.rank() as usize;
        let (asks, gets) = (self.asks(), self.op == Op::Get);
        // What is moved lies with the one that asks, but for a get.
        let filled = |fills: bool| self.values(rank, if fills { round } else { POISON });
        let answers = self.op == Op::PutLatency;
        let (own, theirs) = (filled(answers || asks != gets), filled(!asks && gets));
        self.own.set(as_bytes(&own));
        (self.expected, self.wrong) = (0, 0);
        if let Some(shared) = &self.shared {
            shared.memory().write(0, as_bytes(&theirs));
            shared.memory().write(self.word as usize, &0u64.to_le_bytes());
        }
        // The peer may begin with the next call, and nothing else holds it up.
        self.met = self.group.barrier();
    }

    fn call(&mut self, count: usize) -> anyhow::Result<()> {
        std::mem::replace(&mut self.met, Ok(()))?;
        let asks = self.asks();
        match self.op {
            Op::PutLatency => (0..count).try_for_each(|_| {
                self.answer(asks)?;
                self.answer(!asks)
            }),
            _ if asks => (0..count).try_for_each(|_| self.once()),
            _ => {
                self.expected = self.expected.wrapping_add(STEP.wrapping_mul(count as u64));
                Ok(())
            }
        }
    }

    fn wrong(&self, round: u64) -> anyhow::Result<u64> {
        // The one that asks may still be at it.
        self.group.barrier()?;
        let (Some(peer), Some(shared)) = (self.peer, &self.shared) else { return Ok(0) };
        let memory = shared.memory();
        let moved = match (self.op, self.asks()) {
            (Op::FetchAdd | Op::CompareSwap, true) => return Ok(self.wrong),
            (Op::FetchAdd | Op::CompareSwap, false) => {
                let mut word = [0; 8];
                memory.read(self.word as usize, &mut word);
                return Ok(u64::from(u64::from_le_bytes(word) != self.expected));
            }
            (Op::Get, true) => self.own.get(),
            (Op::Put, true) | (Op::Get, false) => return Ok(0),
            _ => bytes_of(memory, self.bytes),
        };
        Ok(value::wrong_bytes::<T>(&moved, |range, out| value::fill(peer as usize, round, range.start, out)))
    }

    fn parts_of_a_call(&self) -> f64 {
        if self.op == Op::PutLatency { 2.0 } else { 1.0 }
    }

    /// The target sleeps, and its processor time is that of all its threads. It counts its own and knows how many operations
    /// were done in that time only afterwards.
    fn target_time(&mut self) -> anyhow::Result<Option<f64>> {
        if self.op == Op::PutLatency {
            return Ok(None);
        }
        self.group.barrier()?;
        let (asks, mut told) = (self.asks() && self.peer.is_some(), [0.0f64; 2]);
        if asks {
            // Less, so that it ends while the target still sleeps.
            let (end, mut count) = (Instant::now() + SLEEP / 2, 0u64);
            while Instant::now() < end {
                self.once()?;
                count += 1;
            }
            told[0] = count as f64;
        } else {
            let before = processor_time();
            thread::sleep(SLEEP);
            told[1] = (processor_time() - before).as_secs_f64();
        }
        let mut all = vec![0.0; 2 * self.group.size() as usize];
        self.group.all_gather(&told, &mut all)?;
        // The first two ranks are there in any case.
        Ok(Some(all[3] / all[0].max(1.0)))
    }
}

/// The time that all threads of this process have used.
fn processor_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec.try_into().unwrap_or(0), time.tv_nsec.try_into().unwrap_or(0))
}

fn bytes_of(memory: &Exposed, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    memory.read(0, &mut bytes);
    bytes
}
