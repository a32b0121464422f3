//! Calls as all ranks know them, random ones among them, made and compared bit by bit with a sequential reference.

use std::hint;
use std::thread;

use fulmen_collectives::{Algorithm, Buffer, Complex64, DType, Element, Group, ReduceOp};
use fulmen_kernels::{as_bytes, reduce_into};
use half::{bf16, f16};

use crate::world::{Random, rounds};

/// A type of which tests make values.
trait Sample: Element + Default {
    fn sample(random: &mut Random) -> Self;
}

macro_rules! integers {
    ($($type:ty),*) => {$(
        impl Sample for $type {
            fn sample(random: &mut Random) -> Self {
                random.next() as $type
            }
        }
    )*};
}
integers!(i8, i16, i32, i64, u8, u16, u32, u64);

impl Sample for bool {
    fn sample(random: &mut Random) -> Self {
        random.below(3) != 0
    }
}

/// Numbers of one magnitude, so that the order of additions shows in the last bits; and now and then a special one.
fn number(random: &mut Random) -> f64 {
    match random.below(64) {
        0 => f64::NAN,
        1 => -0.0,
        2 => f64::INFINITY,
        _ => (random.next() >> 11) as f64 / (1u64 << 50) as f64 - 4.0,
    }
}

impl Sample for f64 {
    fn sample(random: &mut Random) -> Self {
        number(random)
    }
}

impl Sample for f32 {
    fn sample(random: &mut Random) -> Self {
        number(random) as f32
    }
}

impl Sample for f16 {
    fn sample(random: &mut Random) -> Self {
        f16::from_f64(number(random))
    }
}

impl Sample for bf16 {
    fn sample(random: &mut Random) -> Self {
        bf16::from_f64(number(random))
    }
}

impl Sample for Complex64 {
    fn sample(random: &mut Random) -> Self {
        Complex64::new(number(random) as f32, number(random) as f32)
    }
}

/// Registered or plain memory.
enum Memory<T: Element> {
    Registered(Buffer<T>),
    Plain(Vec<T>),
}

impl<T: Sample> Memory<T> {
    fn new(group: &Group, registered: bool, elements: &[T]) -> Memory<T> {
        if registered {
            let mut buffer = group.alloc(elements.len()).unwrap();
            buffer.copy_from_slice(elements);
            Memory::Registered(buffer)
        } else {
            Memory::Plain(elements.to_vec())
        }
    }

    fn to_vec(&self) -> Vec<T> {
        match self {
            Memory::Registered(buffer) => buffer.to_vec(),
            Memory::Plain(elements) => elements.clone(),
        }
    }
}

/// Calls `$run` with whatever data `$memory` has.
macro_rules! with {
    ($memory:expr, |$data:ident| $run:expr) => {
        match $memory {
            Memory::Registered($data) => $run,
            Memory::Plain($data) => $run,
        }
    };
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    AllReduce,
    AllGather,
    ReduceScatter,
    Broadcast,
    Reduce,
    Gather,
    Scatter,
    AllToAll,
    Scan,
    Barrier,
}

impl Operation {
    /// All but barriers.
    pub const ALL: [Operation; 9] = [
        Operation::AllReduce,
        Operation::AllGather,
        Operation::ReduceScatter,
        Operation::Broadcast,
        Operation::Reduce,
        Operation::Gather,
        Operation::Scatter,
        Operation::AllToAll,
        Operation::Scan,
    ];
}

/// One operation, as all ranks know it.
#[derive(Debug)]
pub struct Plan {
    pub seed: u64,
    pub operation: Operation,
    pub dtype: DType,
    pub op: ReduceOp,
    pub count: usize,
    pub root: u32,
    pub in_place: bool,
    /// The ranks' parts have different lengths, in operations that can have such.
    pub by_counts: bool,
    /// By rank: is the input registered, is the output.
    pub registered: Vec<(bool, bool)>,
    /// By messages; else the planner's.
    pub algorithm: Option<Algorithm>,
}

/// An algorithm that can do it anywhere.
fn algorithm(random: &mut Random, size: u32, (dtype, op, count): (DType, ReduceOp, usize)) -> Option<Algorithm> {
    use Algorithm::*;
    let mut can = vec![None, Some(Whole)];
    if count > 0 && size > 1 {
        can.extend([Shares, Chain].map(Some));
        if op.is_exact(dtype) {
            can.extend([Ring, Halving, Doubling, Tree].map(Some));
        }
    }
    random.pick(&can)
}

fn plan(random: &mut Random, size: u32) -> Plan {
    use Operation::*;
    let mut operations = vec![AllReduce, AllReduce, Barrier];
    operations.extend(Operation::ALL);
    let operation = random.pick(&operations);
    let dtype = random.pick(DType::all());
    let op = loop {
        let op = random.pick(ReduceOp::all());
        if op.supports(dtype).is_ok() {
            break op;
        }
    };
    // Around every threshold: a word, the line, what is read in place, or staged, the slot, a piece, all pieces; and anything.
    let edge = random.pick(&[0, 8, 40, 64, 1 << 10, 3 << 10, 10 << 10, 16 << 10, 64 << 10, 128 << 10, 512 << 10]);
    let count = match random.below(5) {
        0 => random.below(50) as usize,
        1 => random.below(5_000) as usize,
        2 if random.below(8) == 0 => random.below(600_000) as usize,
        _ => (edge / dtype.size() + random.below(3) as usize).saturating_sub(1),
    };
    let registered = match random.below(3) {
        0 => vec![(true, true); size as usize],
        1 => vec![(false, false); size as usize],
        _ => (0..size).map(|_| (random.below(3) > 0, random.below(3) > 0)).collect(),
    };
    let root = random.below(u64::from(size)) as u32;
    let (in_place, by_counts) = (random.below(2) == 0, random.below(3) == 0);
    let algorithm = algorithm(random, size, (dtype, op, count));
    Plan { seed: random.next(), operation, dtype, op, count, root, in_place, by_counts, registered, algorithm }
}

/// Lengths of parts around what is planned, some of them nothing.
fn counts(plan: &Plan, of: u64, ranks: usize) -> Vec<usize> {
    let mut random = Random::new(plan.seed.rotate_right(9) ^ of);
    (0..ranks)
        .map(|_| match random.below(4) {
            0 => 0,
            1 => plan.count,
            _ => random.below(2 * plan.count as u64 + 1) as usize,
        })
        .collect()
}

/// What lies before each part, and the sum.
fn places(counts: &[usize]) -> Vec<usize> {
    let ends = counts.iter().scan(0, |end, count| {
        *end += count;
        Some(*end)
    });
    [0].into_iter().chain(ends).collect()
}

fn input_of<T: Sample>(plan: &Plan, rank: u32, count: usize) -> Vec<T> {
    let mut random = Random::new(plan.seed ^ (u64::from(rank) + 1) << 32);
    (0..count).map(|_| T::sample(&mut random)).collect()
}

/// Holds this rank up, differently each time.
fn delay(random: &mut Random) {
    match random.below(4) {
        0 => (0..random.below(20_000)).for_each(|_| hint::spin_loop()),
        1 => (0..random.below(4)).for_each(|_| thread::yield_now()),
        _ => {}
    }
}

fn reduced<T: Sample>(op: ReduceOp, inputs: &[Vec<T>]) -> Vec<T> {
    let mut result = vec![T::default(); inputs[0].len()];
    let inputs: Vec<&[T]> = inputs.iter().map(Vec::as_slice).collect();
    reduce_into(op, &mut result, &inputs).unwrap();
    result
}

fn check<T: Sample>(plan: &Plan, rank: u32, got: &[T], expected: &[T]) {
    let size = size_of::<T>();
    assert_eq!(got.len(), expected.len(), "rank {rank}, {plan:?}");
    let (got, expected) = (as_bytes(got), as_bytes(expected));
    if let Some(at) = got.iter().zip(expected).position(|(got, expected)| got != expected) {
        let at = at / size * size;
        let (got, expected) = (&got[at..at + size], &expected[at..at + size]);
        panic!("rank {rank}, {plan:?}: element {} is {got:x?} and not {expected:x?}", at / size);
    }
}

fn round<T: Sample>(group: &Group, plan: &Plan) {
    match plan.operation {
        Operation::AllToAll => return round_of_pairs::<T>(group, plan),
        Operation::Gather | Operation::Scatter => return round_of_parts::<T>(group, plan),
        Operation::AllGather | Operation::ReduceScatter if plan.by_counts => return round_of_parts::<T>(group, plan),
        _ => {}
    }
    let (rank, size) = (group.rank(), group.size());
    let (ranks, this) = (size as usize, rank as usize);
    let (input_registered, output_registered) = plan.registered[this];
    let count = plan.count;
    // What each rank contributes.
    let each = match plan.operation {
        Operation::ReduceScatter => count * ranks,
        _ => count,
    };
    let inputs: Vec<Vec<T>> = (0..size).map(|rank| input_of(plan, rank, each)).collect();
    let mine = &inputs[this];
    let memory = |registered, elements: &[T]| Memory::new(group, registered, elements);
    let mut input = memory(input_registered, mine);
    let mut random = Random::new(plan.seed.rotate_left(7) ^ u64::from(rank));
    match plan.operation {
        Operation::AllReduce => {
            let expected = reduced(plan.op, &inputs);
            if plan.in_place {
                delay(&mut random);
                with!(&mut input, |data| group.all_reduce(data, plan.op).unwrap());
                check(plan, rank, &input.to_vec(), &expected);
            } else {
                let mut output = memory(output_registered, &input_of::<T>(plan, 99, count));
                delay(&mut random);
                with!(&input, |from| with!(&mut output, |to| group.all_reduce_into(from, to, plan.op).unwrap()));
                check(plan, rank, &output.to_vec(), &expected);
                check(plan, rank, &input.to_vec(), mine);
            }
        }
        Operation::AllGather => {
            let expected = inputs.concat();
            let mut all = input_of::<T>(plan, 99, count * ranks);
            if plan.in_place {
                all[this * count..(this + 1) * count].copy_from_slice(mine);
            }
            let mut output = memory(output_registered, &all);
            delay(&mut random);
            if plan.in_place {
                with!(&mut output, |data| group.all_gather_in_place(data).unwrap());
            } else {
                with!(&input, |from| with!(&mut output, |to| group.all_gather(from, to).unwrap()));
                check(plan, rank, &input.to_vec(), mine);
            }
            check(plan, rank, &output.to_vec(), &expected);
        }
        Operation::ReduceScatter => {
            let expected = &reduced(plan.op, &inputs)[this * count..(this + 1) * count];
            delay(&mut random);
            if plan.in_place {
                let range = with!(&mut input, |data| group.reduce_scatter_in_place(data, plan.op).unwrap());
                assert_eq!(range, this * count..(this + 1) * count);
                check(plan, rank, &input.to_vec()[range], expected);
            } else {
                let mut output = memory(output_registered, &input_of::<T>(plan, 99, count));
                with!(&input, |from| with!(&mut output, |to| group.reduce_scatter(from, to, plan.op).unwrap()));
                check(plan, rank, &output.to_vec(), expected);
                check(plan, rank, &input.to_vec(), mine);
            }
        }
        Operation::Reduce | Operation::Scan => {
            let scan = plan.operation == Operation::Scan;
            let is_root = rank == plan.root;
            let result = if scan { reduced(plan.op, &inputs[..=this]) } else { reduced(plan.op, &inputs) };
            delay(&mut random);
            if plan.in_place {
                with!(&mut input, |data| match scan {
                    true => group.scan(data, plan.op).unwrap(),
                    false => group.reduce(data, plan.op, plan.root).unwrap(),
                });
                check(plan, rank, &input.to_vec(), if scan || is_root { &result } else { mine });
            } else {
                let before = input_of::<T>(plan, 99, count);
                let mut output = memory(output_registered, &before);
                with!(&input, |from| with!(&mut output, |to| match scan {
                    true => group.scan_into(from, to, plan.op).unwrap(),
                    false => group.reduce_into(from, to, plan.op, plan.root).unwrap(),
                }));
                check(plan, rank, &output.to_vec(), if scan || is_root { &result } else { &before });
                check(plan, rank, &input.to_vec(), mine);
            }
        }
        Operation::Gather | Operation::Scatter | Operation::AllToAll => unreachable!("done above"),
        Operation::Broadcast => {
            delay(&mut random);
            with!(&mut input, |data| group.broadcast(data, plan.root).unwrap());
            check(plan, rank, &input.to_vec(), &inputs[plan.root as usize]);
        }
        Operation::Barrier => {
            delay(&mut random);
            group.barrier().unwrap();
        }
    }
}

/// Operations in which the ranks' parts may differ in length.
fn round_of_parts<T: Sample>(group: &Group, plan: &Plan) {
    let (rank, ranks) = (group.rank(), group.size() as usize);
    let this = rank as usize;
    let counts = if plan.by_counts { counts(plan, 0, ranks) } else { vec![plan.count; ranks] };
    let places = places(&counts);
    let (whole, own) = (places[ranks], places[this]..places[this + 1]);
    let memory = |registered, elements: &[T]| Memory::new(group, registered, elements);
    let (input_registered, output_registered) = plan.registered[this];
    let mut random = Random::new(plan.seed.rotate_left(7) ^ u64::from(rank));
    let is_root = rank == plan.root;
    // What each rank has, and what this one gets.
    let inputs: Vec<Vec<T>> = (0..ranks)
        .map(|rank| {
            let count = match plan.operation {
                Operation::AllGather | Operation::Gather => counts[rank],
                Operation::Scatter if rank != plan.root as usize => 0,
                _ => whole,
            };
            input_of(plan, rank as u32, count)
        })
        .collect();
    let expected = match plan.operation {
        Operation::AllGather => inputs.concat(),
        Operation::Gather if is_root => inputs.concat(),
        Operation::Gather => vec![],
        Operation::Scatter => inputs[plan.root as usize][own.clone()].to_vec(),
        Operation::ReduceScatter => reduced(plan.op, &inputs)[own.clone()].to_vec(),
        other => unreachable!("{other:?} has no parts"),
    };
    let mine = &inputs[this];
    let input = memory(input_registered, mine);
    let mut output = memory(output_registered, &input_of::<T>(plan, 99, expected.len()));
    delay(&mut random);
    with!(&input, |from| with!(&mut output, |to| match (plan.operation, plan.by_counts) {
        (Operation::AllGather, true) => group.all_gather_v(from, to, &counts),
        (Operation::AllGather, false) => group.all_gather(from, to),
        (Operation::Gather, true) => group.gather_v(from, to, &counts, plan.root),
        (Operation::Gather, false) => group.gather(from, to, plan.root),
        (Operation::Scatter, true) => group.scatter_v(from, &counts, to, plan.root),
        (Operation::Scatter, false) => group.scatter(from, to, plan.root),
        (_, true) => group.reduce_scatter_v(from, &counts, to, plan.op),
        (_, false) => group.reduce_scatter(from, to, plan.op),
    }))
    .unwrap();
    check(plan, rank, &output.to_vec(), &expected);
    check(plan, rank, &input.to_vec(), mine);
}

fn round_of_pairs<T: Sample>(group: &Group, plan: &Plan) {
    let (rank, ranks) = (group.rank(), group.size() as usize);
    let this = rank as usize;
    let given = |from: usize| if plan.by_counts { counts(plan, from as u64, ranks) } else { vec![plan.count; ranks] };
    let inputs: Vec<Vec<T>> = (0..ranks).map(|from| input_of(plan, from as u32, given(from).iter().sum())).collect();
    let parts: Vec<&[T]> = (0..ranks)
        .map(|from| {
            let places = places(&given(from));
            &inputs[from][places[this]..places[this + 1]]
        })
        .collect();
    let (expected, gets) = (parts.concat(), parts.iter().map(|part| part.len()).collect::<Vec<_>>());
    let (input_registered, output_registered) = plan.registered[this];
    let input = Memory::new(group, input_registered, &inputs[this]);
    let mut output = Memory::new(group, output_registered, &input_of::<T>(plan, 99, expected.len()));
    delay(&mut Random::new(plan.seed.rotate_left(7) ^ u64::from(rank)));
    with!(&input, |from| with!(&mut output, |to| match plan.by_counts {
        true => group.all_to_all_v(from, &given(this), to, &gets),
        false => group.all_to_all(from, to),
    }))
    .unwrap();
    check(plan, rank, &output.to_vec(), &expected);
    check(plan, rank, &input.to_vec(), &inputs[this]);
}

/// Makes the call on this rank, and compares what came of it.
pub fn run_plan(group: &Group, plan: &Plan) {
    let group = &group.with_algorithm(plan.algorithm);
    match plan.dtype {
        DType::Bool => round::<bool>(group, plan),
        DType::I8 => round::<i8>(group, plan),
        DType::I16 => round::<i16>(group, plan),
        DType::I32 => round::<i32>(group, plan),
        DType::I64 => round::<i64>(group, plan),
        DType::U8 => round::<u8>(group, plan),
        DType::U16 => round::<u16>(group, plan),
        DType::U32 => round::<u32>(group, plan),
        DType::U64 => round::<u64>(group, plan),
        DType::F16 => round::<f16>(group, plan),
        DType::BF16 => round::<bf16>(group, plan),
        DType::F32 => round::<f32>(group, plan),
        DType::F64 => round::<f64>(group, plan),
        DType::Complex64 => round::<Complex64>(group, plan),
    }
}

/// So many random calls, and more in the heavier tiers.
pub fn random_operations(group: &Group, few: u64) {
    random_operations_by(group, few, |plan| plan);
}

/// The same with something changed of what is planned.
pub fn random_operations_by(group: &Group, few: u64, change: impl Fn(Plan) -> Plan) {
    let size = group.size();
    let mut random = Random::new(u64::from(size));
    for _ in 0..rounds(few) {
        run_plan(group, &change(plan(&mut random, size)));
    }
}
