//! Reductions and copies over any mixture of plain and exposed memory, with the elements' type as a value.

use std::marker::PhantomData;
use std::ops::Range;

use fulmen_memory::Exposed;

use crate::exposed::check;
use crate::level::Choice;
use crate::reduce::{ReduceError, reduce_at, reduce_raw_with, with_pointers};
use crate::{DType, Element, ReduceOp, Stores, stores};

/// Plain memory that is written as bytes whatever its elements' type: a `bool` in it never becomes anything but true or
/// false.
#[derive(Debug)]
pub struct ValuesMut<'a> {
    start: *mut u8,
    len: usize,
    /// The elements are `bool`, for which not every byte is a value.
    bools: bool,
    borrow: PhantomData<&'a mut [u8]>,
}

impl<'a> ValuesMut<'a> {
    /// The memory of `elements`.
    pub fn new<T: Element>(elements: &'a mut [T]) -> ValuesMut<'a> {
        let len = size_of_val(elements);
        ValuesMut { start: elements.as_mut_ptr().cast(), len, bools: T::DTYPE == DType::Bool, borrow: PhantomData }
    }

    /// Its length in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it has no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// What it holds.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: elements have no padding, and the memory is borrowed as long as `self` is.
        unsafe { std::slice::from_raw_parts(self.start, self.len) }
    }

    /// Its bytes, to be written; `None` if its elements are `bool`.
    #[must_use]
    pub fn bytes_mut(&mut self) -> Option<&mut [u8]> {
        // SAFETY: the memory is borrowed exclusively, and any byte is a part of a value, since there are no bools.
        (!self.bools).then(|| unsafe { std::slice::from_raw_parts_mut(self.start, self.len) })
    }

    /// A part of it, in bytes.
    ///
    /// # Panics
    /// If the range does not lie inside.
    #[must_use]
    #[track_caller]
    pub fn part(&mut self, range: Range<usize>) -> ValuesMut<'_> {
        assert!(range.start <= range.end && range.end <= self.len, "{range:?} does not lie in {} bytes", self.len);
        let start = self.start.wrapping_add(range.start);
        ValuesMut { start, len: range.end - range.start, bools: self.bools, borrow: PhantomData }
    }

    /// Copies from plain memory of the same length.
    ///
    /// # Panics
    /// If the lengths differ.
    #[track_caller]
    pub fn copy_from(&mut self, from: &[u8], stores: Stores) {
        assert_eq!(from.len(), self.len, "a copy between different lengths");
        // SAFETY: both have `len` bytes; a slice does not overlap what is borrowed exclusively.
        unsafe { self.fill_from(from.as_ptr(), stores) }
    }

    /// Copies from exposed memory, from offset `at`, as many bytes as this has.
    ///
    /// # Panics
    /// If they do not lie inside.
    #[track_caller]
    pub fn copy_out(&mut self, from: &Exposed, at: usize, stores: Stores) {
        check(from, at, self.len);
        // SAFETY: the source lies inside a mapping that its handle keeps; exposed memory has no references.
        unsafe { self.fill_from(from.as_ptr().add(at), stores) }
    }

    /// # Safety
    /// `from` may be read for `len` bytes and does not overlap this memory.
    unsafe fn fill_from(&mut self, from: *const u8, stores: Stores) {
        // SAFETY: the caller's promise, and this memory is borrowed exclusively. Every byte is a part of a value, except
        // for bools, where the reduction of one source stores 0 or 1 only.
        unsafe {
            if self.bools {
                reduce_raw_with(ReduceOp::Max, DType::Bool, self.start, &[from], self.len, stores);
            } else {
                stores::copy_out(from, self.start, self.len, stores);
            }
        }
    }
}

/// What a reduction into other memory reads: as many bytes as its target has.
#[derive(Clone, Copy, Debug)]
pub enum Source<'a> {
    /// Plain memory of just that length.
    Plain(&'a [u8]),
    /// Exposed memory, from a byte offset on.
    Exposed(&'a Exposed, usize),
    /// What the target itself holds.
    Target,
}

/// The sources of a reduction, in its order.
pub trait Sources<'s>: IntoIterator<Item = Source<'s>, IntoIter: ExactSizeIterator> {}

impl<'s, I: IntoIterator<Item = Source<'s>, IntoIter: ExactSizeIterator>> Sources<'s> for I {}

/// `target[i] = sources[0][i] op sources[1][i] op …` into plain memory; see the crate's bit rules.
///
/// # Panics
/// If the elements of `target` are `bool` and `dtype` is not.
#[track_caller]
pub fn reduce_to_plain<'s>(
    op: ReduceOp,
    dtype: DType,
    target: &mut ValuesMut<'_>,
    sources: impl Sources<'s>,
    stores: Stores,
) -> Result<(), ReduceError> {
    assert!(!target.bools || dtype == DType::Bool, "memory of bools takes no {dtype}");
    let (to, bytes) = (target.start, target.len);
    // SAFETY: the target is borrowed exclusively, so it overlaps no slice and no exposed memory; any bytes are values of
    // its elements, or the reduction stores bools.
    unsafe { reduce_to(op, dtype, (&[to], stores.past(1)), to, bytes, sources, |_, _| Ok(())) }
}

/// [`reduce_to_plain`], and the same into exposed memory from an offset on, in one pass, each with its own way of storing.
/// [`Source::Target`] is what the plain memory holds. A source may be the same bytes as the exposed target, or must not overlap them; what
/// is the same memory is told by addresses, as by [`reduce`](crate::reduce).
///
/// # Panics
/// As [`reduce_to_plain`], and if the exposed target does not lie inside its memory.
#[track_caller]
pub fn reduce_to_both<'s>(
    op: ReduceOp,
    dtype: DType,
    (plain, plain_stores): (&mut ValuesMut<'_>, Stores),
    (exposed, at, exposed_stores): (&Exposed, usize, Stores),
    sources: impl Sources<'s>,
) -> Result<(), ReduceError> {
    assert!(!plain.bools || dtype == DType::Bool, "memory of bools takes no {dtype}");
    let bytes = plain.len;
    check(exposed, at, bytes);
    if !exposed.is_writable() {
        return Err(ReduceError::ReadOnly);
    }
    let (one, other) = (plain.start, exposed.as_ptr().wrapping_add(at));
    let alike = (one.addr() ^ other.addr()).is_multiple_of(Stores::LINE);
    // Whose lines begin elsewhere is not written past the caches with the other one.
    let (to, past) = match (plain_stores, exposed_stores) {
        (Stores::Streaming, Stores::Cached) => ([other, one], 1),
        (Stores::Streaming, Stores::Streaming) if alike => ([one, other], 2),
        (_, exposed_stores) => ([one, other], exposed_stores.past(1)),
    };
    let apart = |source_index, from: *const u8| match from.addr().abs_diff(other.addr()) {
        distance if (1..bytes).contains(&distance) => Err(ReduceError::Overlap { source_index }),
        _ => Ok(()),
    };
    // SAFETY: the plain target is borrowed exclusively, so it overlaps no slice and no exposed memory, and takes any bytes or the
    // reduction stores bools. The exposed one lies inside a writable mapping that its handle keeps and has no references; `apart` sees to
    // it that each source is the same memory or apart from it.
    unsafe { reduce_to(op, dtype, (&to, past), one, bytes, sources, apart) }
}

/// `target[i] = sources[0][i] op sources[1][i] op …` into exposed memory, in one pass into all targets, `bytes` of each from an offset on. They
/// lie apart from one another. A source may be the same bytes as a target, or must not overlap them; what is the same memory is told by
/// addresses, as by [`reduce`](crate::reduce). [`Source::Target`] is what the first one holds.
///
/// # Panics
/// If a target does not lie inside its memory, or there is none.
#[track_caller]
pub fn reduce_to_all<'s>(
    op: ReduceOp,
    dtype: DType,
    targets: &[(&Exposed, usize)],
    bytes: usize,
    sources: impl Sources<'s>,
    stores: Stores,
) -> Result<(), ReduceError> {
    assert!(!targets.is_empty(), "a reduction needs at least one target");
    let start = |(target, at): &(&Exposed, usize)| target.as_ptr().wrapping_add(*at);
    for (target, at) in targets {
        check(target, *at, bytes);
        if !target.is_writable() {
            return Err(ReduceError::ReadOnly);
        }
    }
    let distance = |one: *const u8, other: &(&Exposed, usize)| one.addr().abs_diff(start(other).addr());
    for (number, target) in targets.iter().enumerate() {
        if targets[..number].iter().any(|other| distance(start(target), other) < bytes) {
            return Err(ReduceError::Outputs);
        }
    }
    let apart = |source_index, from: *const u8| {
        let overlaps = |target| (1..bytes).contains(&distance(from, target));
        if targets.iter().any(overlaps) { Err(ReduceError::Overlap { source_index }) } else { Ok(()) }
    };
    let mut outcome = Ok(());
    with_pointers(targets.iter().map(|target| Ok(start(target))), |to| {
        // SAFETY: the targets lie inside writable mappings that their handles keep, have no references, and are apart from one
        // another; `apart` sees to it that each source is the same memory as a target or apart from it.
        outcome = unsafe { reduce_to(op, dtype, (to, stores.past(to.len())), to[0], bytes, sources, apart) };
    })?;
    outcome
}

/// # Safety
/// Each of `to`, of which there is one at least, may be written for `bytes` bytes of `dtype` and overlaps no other one, no plain
/// source, and no exposed source that `apart` lets pass, except for being the same. `past` of them at most are written past the caches, from the
/// last one on. `target`, which [`Source::Target`] stands for, is one of them.
unsafe fn reduce_to<'s>(
    op: ReduceOp,
    dtype: DType,
    (to, past): (&[*mut u8], usize),
    target: *const u8,
    bytes: usize,
    sources: impl Sources<'s>,
    apart: impl Fn(usize, *const u8) -> Result<(), ReduceError>,
) -> Result<(), ReduceError> {
    op.supports(dtype)?;
    if !bytes.is_multiple_of(dtype.size()) {
        return Err(ReduceError::PartialElement { bytes, dtype });
    }
    let pointers = sources.into_iter().enumerate().map(|(source_index, source)| {
        let length = |source_bytes| ReduceError::Length { source_index, source_bytes, output_bytes: bytes };
        match source {
            Source::Plain(source) if source.len() != bytes => Err(length(source.len())),
            Source::Plain(source) => Ok(source.as_ptr()),
            Source::Exposed(source, at) if at.checked_add(bytes).is_none_or(|end| end > source.len()) => {
                Err(length(source.len().saturating_sub(at)))
            }
            Source::Exposed(source, at) => {
                let from = source.as_ptr().wrapping_add(at).cast_const();
                apart(source_index, from).map(|()| from)
            }
            Source::Target => Ok(target),
        }
    });
    // SAFETY: all sources have `bytes` bytes, as just checked; the rest is the caller's promise.
    let run =
        |pointers: &[_]| unsafe { reduce_at(Choice::best(), op, dtype, to, past, pointers, bytes / dtype.size()) };
    with_pointers(pointers, run)
}

/// The elements that `bytes` hold, one after the other, into `elements`.
///
/// # Panics
/// If the lengths in bytes differ.
#[track_caller]
pub fn copy_from_bytes<T: Element>(bytes: &[u8], elements: &mut [T]) {
    ValuesMut::new(elements).copy_from(bytes, Stores::Cached);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::as_bytes;
    use fulmen_memory::Region;

    fn memory(len: usize) -> Exposed {
        Region::alloc(len).expect("a small region").expose().expect("no pool has it")
    }

    #[test]
    fn every_mixture_of_sources_gives_the_same() {
        let (a, b, c) = ([1.5f32, 2.0], [10.0f32, 20.0], [-3.0f32, 7.0]);
        let exposed = memory(64);
        exposed.write(5, as_bytes(&b));
        for stores in [Stores::Cached, Stores::Streaming] {
            let mut plain = c;
            let sources = [Source::Plain(as_bytes(&a)), Source::Exposed(&exposed, 5), Source::Target];
            reduce_to_plain(ReduceOp::Sum, DType::F32, &mut ValuesMut::new(&mut plain), sources, stores).unwrap();
            assert_eq!(plain, [8.5, 29.0]);
            let target = memory(64);
            target.write(3, as_bytes(&c));
            reduce_to_all(ReduceOp::Sum, DType::F32, &[(&target, 3)], 8, sources, stores).unwrap();
            let mut sums = [0f32; 2];
            ValuesMut::new(&mut sums).copy_out(&target, 3, stores);
            assert_eq!(sums, [8.5, 29.0]);
        }
    }

    #[test]
    fn all_targets_get_the_same_whatever_their_alignment() {
        let (a, b) = ([1.5f32; 200], [2.5f32; 200]);
        for (stores, ats) in [
            (Stores::Cached, [0, 4, 64]),
            (Stores::Streaming, [0, 64, 128]),
            (Stores::Streaming, [4, 68, 132]),
            (Stores::Streaming, [0, 4, 1]),
        ] {
            let targets = [0, 1, 2].map(|_| memory(1024));
            targets[0].write(ats[0], as_bytes(&b));
            let all: Vec<_> = targets.iter().zip(ats).collect();
            let sources = [Source::Plain(as_bytes(&a)), Source::Target];
            reduce_to_all(ReduceOp::Sum, DType::F32, &all, 800, sources, stores).unwrap();
            for (target, at) in all {
                let mut sums = [0f32; 200];
                ValuesMut::new(&mut sums).copy_out(target, at, Stores::Cached);
                assert_eq!(sums, [4.0; 200]);
                let mut around = vec![0; 1024];
                target.read(0, &mut around);
                assert!(around[..at].iter().chain(&around[at + 800..]).all(|byte| *byte == 0));
            }
        }
    }

    #[test]
    fn plain_and_exposed_targets_get_the_same_however_they_are_stored() {
        const STORES: [Stores; 2] = [Stores::Cached, Stores::Streaming];
        let (a, b) = ([1.5f32; 200], [2.5f32; 200]);
        for (start, at, one, other) in [0, 1, 16].into_iter().flat_map(|start| {
            [0, 4, 61]
                .into_iter()
                .flat_map(move |at| STORES.into_iter().flat_map(move |one| STORES.map(|other| (start, at, one, other))))
        }) {
            // In place, from a start that makes the lines of both begin at the same elements, or not.
            let mut plain = vec![b[0]; 256];
            let exposed = memory(1024);
            let line = plain.as_ptr().addr().wrapping_neg() % Stores::LINE / 4;
            let to = (line + start)..(line + start + 200);
            {
                let mut values = ValuesMut::new(&mut plain[to.clone()]);
                let sources = [Source::Plain(as_bytes(&a)), Source::Target];
                reduce_to_both(ReduceOp::Sum, DType::F32, (&mut values, one), (&exposed, at, other), sources).unwrap();
            }
            assert!(plain.iter().enumerate().all(|(i, value)| *value == if to.contains(&i) { 4.0 } else { b[0] }));
            let mut all = vec![0; 1024];
            exposed.read(0, &mut all);
            assert!(all[..at].iter().chain(&all[at + 800..]).all(|byte| *byte == 0));
            assert_eq!(all[at..at + 800], *as_bytes(&[4.0f32; 200]));
        }
    }

    #[test]
    fn what_two_targets_of_both_kinds_cannot_do_is_refused() {
        let exposed = memory(64);
        let mut plain = [0u8; 8];
        let mut reduce = |at, sources: &[Source]| {
            let plain = (&mut ValuesMut::new(&mut plain), Stores::Cached);
            reduce_to_both(ReduceOp::Sum, DType::U8, plain, (&exposed, at, Stores::Cached), sources.iter().copied())
        };
        assert_eq!(reduce(8, &[Source::Exposed(&exposed, 9)]), Err(ReduceError::Overlap { source_index: 0 }));
        assert_eq!(reduce(8, &[Source::Plain(&[1; 8]), Source::Exposed(&exposed, 8)]), Ok(()));
        assert_eq!(reduce(8, &[]), Err(ReduceError::NoSources));
    }

    #[test]
    #[should_panic = "do not lie in exposed memory"]
    fn an_exposed_target_lies_inside() {
        let (exposed, mut plain) = (memory(64), [0u8; 8]);
        let plain = (&mut ValuesMut::new(&mut plain), Stores::Cached);
        let end = exposed.len() - 7;
        let _ =
            reduce_to_both(ReduceOp::Sum, DType::U8, plain, (&exposed, end, Stores::Cached), [Source::Plain(&[1; 8])]);
    }

    #[test]
    fn targets_that_overlap_are_refused() {
        let target = memory(64);
        let reduce = |ats: [usize; 2]| {
            let targets = ats.map(|at| (&target, at));
            reduce_to_all(ReduceOp::Sum, DType::U8, &targets, 8, [Source::Plain(&[1; 8])], Stores::Cached)
        };
        assert_eq!((reduce([0, 7]), reduce([9, 9])), (Err(ReduceError::Outputs), Err(ReduceError::Outputs)));
        assert_eq!(reduce([16, 8]), Ok(()));
    }

    #[test]
    fn lengths_and_overlaps_are_refused() {
        let exposed = memory(64);
        let mut plain = [0u8; 8];
        let mut reduce = |sources: &[Source]| {
            reduce_to_plain(
                ReduceOp::Sum,
                DType::U8,
                &mut ValuesMut::new(&mut plain),
                sources.iter().copied(),
                Stores::Cached,
            )
        };
        let length = |source_bytes| Err(ReduceError::Length { source_index: 0, source_bytes, output_bytes: 8 });
        assert_eq!(reduce(&[Source::Plain(&[0; 7])]), length(7));
        assert_eq!(reduce(&[Source::Exposed(&exposed, exposed.len() - 7)]), length(7));
        assert_eq!(reduce(&[Source::Exposed(&exposed, usize::MAX)]), length(0));
        assert_eq!(reduce(&[Source::Exposed(&exposed, exposed.len() - 8)]), Ok(()));
        assert_eq!(reduce(&[]), Err(ReduceError::NoSources));
        let within = |at| {
            let sources = [Source::Exposed(&exposed, at)];
            reduce_to_all(ReduceOp::Sum, DType::U8, &[(&exposed, 8)], 8, sources, Stores::Cached)
        };
        assert_eq!(within(9), Err(ReduceError::Overlap { source_index: 0 }));
        assert_eq!(within(1), Err(ReduceError::Overlap { source_index: 0 }));
        assert_eq!((within(0), within(8), within(16)), (Ok(()), Ok(()), Ok(())));
    }

    #[test]
    fn memory_of_bools_holds_bools_only() {
        let bytes: Vec<u8> = (0..=255).collect();
        let exposed = memory(256);
        exposed.write(0, &bytes);
        let mut bools = [false; 256];
        let ones = |bools: &[bool; 256]| as_bytes(bools).iter().filter(|byte| **byte == 1).count();
        let mut values = ValuesMut::new(&mut bools);
        assert!(values.bytes_mut().is_none());
        values.copy_from(&bytes, Stores::Cached);
        assert_eq!((ones(&bools), bools[0]), (255, false));
        bools.fill(false);
        ValuesMut::new(&mut bools).part(1..256).copy_out(&exposed, 1, Stores::Cached);
        assert_eq!((ones(&bools), bools[0]), (255, false));
    }

    #[test]
    #[should_panic = "takes no u8"]
    fn memory_of_bools_takes_no_bytes() {
        let mut bools = [false; 2];
        let _ = reduce_to_plain(
            ReduceOp::Sum,
            DType::U8,
            &mut ValuesMut::new(&mut bools),
            [Source::Plain(&[2, 2])],
            Stores::Cached,
        );
    }
}
