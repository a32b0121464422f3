//! The operations on real data: setting it, calling, and comparing the result.

use std::collections::VecDeque;
use std::time::Duration;

use fulmen::parts::fabric::{FabricError, Operation};
use fulmen::parts::kernels::{ReduceOp, as_bytes, reduce_into};
use fulmen::parts::memory::Exposed;
use fulmen::{Buffer, CollectiveError, Data, Group};

use super::onesided::OneSided;
use super::operation::{Kind, Op};
use super::overlap;
use super::value::{self, Value};
use crate::run::now;

/// An operation that can be called again and again.
pub trait Case {
    /// Fills this rank's input for a round, and the output with what cannot be a result.
    fn set(&mut self, round: u64);

    /// Makes `count` calls, and nothing else.
    fn call(&mut self, count: usize) -> anyhow::Result<()>;

    /// How many elements of the output are not what the round must give. All ranks ask at the same time.
    fn wrong(&self, round: u64) -> anyhow::Result<u64>;

    /// Fewest calls of a batch.
    fn fewest_calls(&self) -> usize {
        1
    }

    /// Calls of the operation for one of [`Case::call`].
    fn parts_of_a_call(&self) -> f64 {
        1.0
    }

    /// Seconds of the target's processor that an operation takes while the target sleeps, if the operation has a target.
    /// All ranks ask at the same time, and rank 0 gets the answer for ranks 0 and 1.
    fn target_time(&mut self) -> anyhow::Result<Option<f64>> {
        Ok(None)
    }

    /// The share of a call's time that a program has for itself while a handle makes it, if the operation can be started.
    fn hidden(&mut self, _time: Duration) -> anyhow::Result<Option<f64>> {
        Ok(None)
    }
}

/// A case of `bytes`, a multiple of what [`Op::sizes`] gives.
pub fn case<'a, T: Value>(group: &'a Group, op: Op, kind: Kind, bytes: usize) -> anyhow::Result<Box<dyn Case + 'a>> {
    let (input, output) = op.buffers(bytes as u64, group.size());
    let (input, output) = (input as usize / size_of::<T>(), output as usize / size_of::<T>());
    if op == Op::Barrier {
        return Ok(Box::new(Barrier { group, entered: 0, left: 0 }));
    }
    if op.is_one_sided() {
        return Ok(Box::new(OneSided::<T>::new(group, op, kind, bytes)?));
    }
    Ok(match (op.is_between_pairs(), kind) {
        (false, Kind::Registered) => {
            let (input, output) = (group.alloc::<T>(input)?, group.alloc::<T>(output)?);
            Box::new(Collective { group, op, input, output })
        }
        (false, Kind::Plain) => {
            let (input, output) = (vec![T::default(); input], vec![T::default(); output]);
            Box::new(Collective { group, op, input, output })
        }
        (true, Kind::Registered) => {
            let exposed = || anyhow::Ok(group.fabric().alloc(bytes)?.into_exposed());
            Box::new(Pair::<T, _>::new(group, op, Shared { input: exposed()?, output: exposed()? }))
        }
        (true, Kind::Plain) => {
            Box::new(Pair::<T, _>::new(group, op, Private { input: vec![0; bytes], output: vec![0; bytes] }))
        }
    })
}

/// The round whose data an output is filled with before a call: it belongs to no call.
pub(super) const POISON: u64 = u64::MAX;

/// Memory that can be filled and looked at, and given away.
trait Holds: Data<Element: Value> + Send + Sized + 'static {
    fn none(group: &Group) -> anyhow::Result<Self>;
    fn len(&self) -> usize;
    fn set(&mut self, values: &[Self::Element]);
    fn get(&self) -> Vec<Self::Element>;
}

impl<T: Value> Holds for Buffer<T> {
    fn none(group: &Group) -> anyhow::Result<Buffer<T>> {
        Ok(group.alloc(0)?)
    }

    fn len(&self) -> usize {
        Buffer::len(self)
    }

    fn set(&mut self, values: &[T]) {
        self.copy_from_slice(values);
    }

    fn get(&self) -> Vec<T> {
        self.to_vec()
    }
}

impl<T: Value> Holds for Vec<T> {
    fn none(_group: &Group) -> anyhow::Result<Vec<T>> {
        Ok(Vec::new())
    }

    fn len(&self) -> usize {
        Vec::len(self)
    }

    fn set(&mut self, values: &[T]) {
        self.copy_from_slice(values);
    }

    fn get(&self) -> Vec<T> {
        self.clone()
    }
}

/// A collective operation, not in place (a broadcast has only one buffer).
struct Collective<'a, D> {
    group: &'a Group,
    op: Op,
    input: D,
    output: D,
}

impl<D: Holds> Collective<'_, D> {
    /// What the output must be from element `first` on.
    fn must(&self, round: u64, first: usize, out: &mut [D::Element]) {
        let (rank, size) = (self.group.rank() as usize, self.group.size() as usize);
        match self.op {
            Op::Reduce | Op::Gather if rank != 0 => value::fill(rank, POISON, first, out),
            Op::AllReduce | Op::Reduce => sum(size, round, first, out),
            Op::Scan => sum(rank + 1, round, first, out),
            Op::ReduceScatter => sum(size, round, rank * self.output.len() + first, out),
            Op::Scatter => value::fill(0, round, rank * self.output.len() + first, out),
            Op::AllGather | Op::Gather | Op::AllToAll => {
                let part = self.output.len() / size;
                let before = if self.op == Op::AllToAll { rank * part } else { 0 };
                let mut done = 0;
                while done < out.len() {
                    let (owner, at) = ((first + done) / part, (first + done) % part);
                    let count = (part - at).min(out.len() - done);
                    value::fill(owner, round, before + at, &mut out[done..done + count]);
                    done += count;
                }
            }
            Op::Broadcast => value::fill(0, round, first, out),
            _ => {}
        }
    }
}

/// The sum of the first `size` ranks' inputs from element `first` on, in rank order.
fn sum<T: Value>(size: usize, round: u64, first: usize, out: &mut [T]) {
    let inputs: Vec<Vec<T>> = (0..size)
        .map(|rank| {
            let mut input = vec![T::default(); out.len()];
            value::fill(rank, round, first, &mut input);
            input
        })
        .collect();
    let inputs: Vec<&[T]> = inputs.iter().map(Vec::as_slice).collect();
    reduce_into(ReduceOp::Sum, out, &inputs).expect("there is a rank, all lengths are one, and every type has sums");
}

/// Makes `count` calls, and nothing else.
fn call<D: Holds>(group: &Group, op: Op, input: &D, output: &mut D, count: usize) -> Result<(), CollectiveError> {
    match op {
        Op::AllReduce => (0..count).try_for_each(|_| group.all_reduce_into(input, output, ReduceOp::Sum)),
        Op::ReduceScatter => (0..count).try_for_each(|_| group.reduce_scatter(input, output, ReduceOp::Sum)),
        Op::AllGather => (0..count).try_for_each(|_| group.all_gather(input, output)),
        Op::Broadcast => (0..count).try_for_each(|_| group.broadcast(output, 0)),
        Op::Reduce => (0..count).try_for_each(|_| group.reduce_into(input, output, ReduceOp::Sum, 0)),
        Op::Gather => (0..count).try_for_each(|_| group.gather(input, output, 0)),
        Op::Scatter => (0..count).try_for_each(|_| group.scatter(input, output, 0)),
        Op::AllToAll => (0..count).try_for_each(|_| group.all_to_all(input, output)),
        Op::Scan => (0..count).try_for_each(|_| group.scan_into(input, output, ReduceOp::Sum)),
        _ => unreachable!("the others have their own cases"),
    }
}

impl<D: Holds> Case for Collective<'_, D> {
    fn set(&mut self, round: u64) {
        let rank = self.group.rank() as usize;
        let mut values = vec![D::Element::default(); self.input.len()];
        value::fill(rank, round, 0, &mut values);
        self.input.set(&values);
        values.resize(self.output.len(), D::Element::default());
        let root = self.op == Op::Broadcast && rank == 0;
        value::fill(rank, if root { round } else { POISON }, 0, &mut values);
        self.output.set(&values);
    }

    fn call(&mut self, count: usize) -> anyhow::Result<()> {
        Ok(call(self.group, self.op, &self.input, &mut self.output, count)?)
    }

    fn wrong(&self, round: u64) -> anyhow::Result<u64> {
        Ok(value::wrong(&self.output.get(), |range, out| self.must(round, range.start, out)))
    }

    fn hidden(&mut self, time: Duration) -> anyhow::Result<Option<f64>> {
        let taken = |held: &mut D| anyhow::Ok(std::mem::replace(held, D::none(self.group)?));
        let data = (self.op, taken(&mut self.input)?, taken(&mut self.output)?);
        let (data, share) =
            overlap::hidden(self.group, time, data, |group, (op, input, output)| call(group, *op, input, output, 1))?;
        (_, self.input, self.output) = data;
        Ok(Some(share))
    }
}

/// Barriers. The ranks are processes of one machine, whose clock shows whether a barrier was one.
struct Barrier<'a> {
    group: &'a Group,
    /// When this rank came to the last barrier, and when it went on: nanoseconds of the machine's clock.
    entered: u64,
    left: u64,
}

impl Case for Barrier<'_> {
    fn set(&mut self, _round: u64) {
        (self.entered, self.left) = (0, 0);
    }

    fn call(&mut self, count: usize) -> anyhow::Result<()> {
        (1..count).try_for_each(|_| self.group.barrier())?;
        self.entered = now().as_nanos() as u64;
        self.group.barrier()?;
        self.left = now().as_nanos() as u64;
        Ok(())
    }

    /// The ranks that came after this one had gone on.
    fn wrong(&self, _round: u64) -> anyhow::Result<u64> {
        let mut entered = vec![u64::MAX; self.group.size() as usize];
        self.group.all_gather(&[self.entered], &mut entered)?;
        Ok(entered.iter().filter(|&&entered| entered > self.left).count() as u64)
    }
}

/// Messages that both ends have under way at once.
const UNDER_WAY: usize = 32;
/// The tag of messages.
const DATA: u64 = 0;
/// The tag of the word that tells a sender that all has arrived.
const DONE: u64 = 1;

/// Memory that messages go out of and into.
trait Ends {
    fn set(&mut self, input: &[u8], output: &[u8]);
    fn output(&self) -> Vec<u8>;
    fn len(&self) -> usize;
    fn send(&mut self, group: &Group, to: u32) -> anyhow::Result<()>;
    fn recv(&mut self, group: &Group, from: u32) -> anyhow::Result<()>;
    /// Sends `count` messages, many at once.
    fn stream(&mut self, group: &Group, to: u32, count: usize) -> anyhow::Result<()>;
    /// Receives them.
    fn drain(&mut self, group: &Group, from: u32, count: usize) -> anyhow::Result<()>;
}

struct Shared {
    input: Exposed,
    output: Exposed,
}

impl Ends for Shared {
    fn set(&mut self, input: &[u8], output: &[u8]) {
        self.input.write(0, input);
        self.output.write(0, output);
    }

    fn output(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.output.len()];
        self.output.read(0, &mut bytes);
        bytes
    }

    fn len(&self) -> usize {
        self.output.len()
    }

    fn send(&mut self, group: &Group, to: u32) -> anyhow::Result<()> {
        Ok(group.fabric().send(to, DATA, &self.input, group.deadline())?)
    }

    fn recv(&mut self, group: &Group, from: u32) -> anyhow::Result<()> {
        let received = group.fabric().recv(from, DATA, &self.output, group.deadline())?;
        whole(received, self.output.len())
    }

    fn stream(&mut self, group: &Group, to: u32, count: usize) -> anyhow::Result<()> {
        many(group, count, |_| Ok(()), || group.fabric().start_send(to, DATA, &self.input))
    }

    fn drain(&mut self, group: &Group, from: u32, count: usize) -> anyhow::Result<()> {
        let whole = |received| whole(received, self.output.len());
        many(group, count, whole, || group.fabric().start_recv(from, DATA, &self.output))
    }
}

/// Has `count` operations end, many of them under way at once, each with an outcome that is checked.
fn many(
    group: &Group,
    count: usize,
    check: impl Fn(usize) -> anyhow::Result<()>,
    start: impl Fn() -> Result<Operation, FabricError>,
) -> anyhow::Result<()> {
    let mut under_way: VecDeque<Operation> = VecDeque::with_capacity(UNDER_WAY);
    let end = |operation: Operation| check(operation.wait(group.deadline())? as usize);
    for _ in 0..count {
        if under_way.len() == UNDER_WAY
            && let Some(oldest) = under_way.pop_front()
        {
            end(oldest)?;
        }
        under_way.push_back(start()?);
    }
    under_way.into_iter().try_for_each(end)
}

struct Private {
    input: Vec<u8>,
    output: Vec<u8>,
}

impl Ends for Private {
    fn set(&mut self, input: &[u8], output: &[u8]) {
        self.input.copy_from_slice(input);
        self.output.copy_from_slice(output);
    }

    fn output(&self) -> Vec<u8> {
        self.output.clone()
    }

    fn len(&self) -> usize {
        self.output.len()
    }

    fn send(&mut self, group: &Group, to: u32) -> anyhow::Result<()> {
        Ok(group.fabric().send_bytes(to, DATA, &self.input, group.deadline())?)
    }

    fn recv(&mut self, group: &Group, from: u32) -> anyhow::Result<()> {
        let received = group.fabric().recv_bytes(from, DATA, &mut self.output, group.deadline())?;
        whole(received, self.output.len())
    }

    fn stream(&mut self, group: &Group, to: u32, count: usize) -> anyhow::Result<()> {
        // A send of plain memory ends when the link has taken the bytes, which is before they are received.
        (0..count).try_for_each(|_| self.send(group, to))
    }

    fn drain(&mut self, group: &Group, from: u32, count: usize) -> anyhow::Result<()> {
        (0..count).try_for_each(|_| self.recv(group, from))
    }
}

fn whole(received: usize, wanted: usize) -> anyhow::Result<()> {
    anyhow::ensure!(received == wanted, "a message of {received} bytes came instead of one of {wanted}");
    Ok(())
}

/// Messages between neighbours: ranks 0 and 1, 2 and 3, and so on. With an odd number of ranks, the last one has no peer.
struct Pair<'a, T, E> {
    group: &'a Group,
    op: Op,
    peer: Option<u32>,
    ends: E,
    elements: std::marker::PhantomData<T>,
}

impl<'a, T: Value, E: Ends> Pair<'a, T, E> {
    fn new(group: &'a Group, op: Op, ends: E) -> Self {
        let peer = Some(group.rank() ^ 1).filter(|&peer| peer < group.size());
        Pair { group, op, peer, ends, elements: std::marker::PhantomData }
    }

    fn begins(&self) -> bool {
        self.group.rank().is_multiple_of(2)
    }
}

impl<T: Value, E: Ends> Case for Pair<'_, T, E> {
    fn set(&mut self, round: u64) {
        let rank = self.group.rank() as usize;
        let count = self.ends.len() / size_of::<T>();
        let (mut input, mut output) = (vec![T::default(); count], vec![T::default(); count]);
        value::fill(rank, round, 0, &mut input);
        value::fill(rank, POISON, 0, &mut output);
        self.ends.set(as_bytes(&input), as_bytes(&output));
    }

    fn call(&mut self, count: usize) -> anyhow::Result<()> {
        let Some(peer) = self.peer else { return Ok(()) };
        let (begins, group, ends) = (self.begins(), self.group, &mut self.ends);
        match (self.op, begins) {
            (Op::Bandwidth, true) => {
                ends.stream(group, peer, count)?;
                group.fabric().recv_bytes(peer, DONE, &mut [], group.deadline())?;
            }
            (Op::Bandwidth, false) => {
                ends.drain(group, peer, count)?;
                group.fabric().send_bytes(peer, DONE, &[], group.deadline())?;
            }
            (_, true) => (0..count).try_for_each(|_| {
                ends.send(group, peer)?;
                ends.recv(group, peer)
            })?,
            (_, false) => (0..count).try_for_each(|_| {
                ends.recv(group, peer)?;
                ends.send(group, peer)
            })?,
        }
        Ok(())
    }

    fn wrong(&self, round: u64) -> anyhow::Result<u64> {
        let receives = self.op == Op::Latency || !self.begins();
        let Some(peer) = self.peer.filter(|_| receives) else { return Ok(0) };
        let got = self.ends.output();
        Ok(value::wrong_bytes::<T>(&got, |range, out| value::fill(peer as usize, round, range.start, out)))
    }

    fn fewest_calls(&self) -> usize {
        if self.op == Op::Bandwidth { 8 } else { 1 }
    }

    fn parts_of_a_call(&self) -> f64 {
        if self.op == Op::Latency { 2.0 } else { 1.0 }
    }
}
