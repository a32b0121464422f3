//! Pools: what they cut never overlaps, never straddles two registrations, and all comes back.

use fulmen_memory::{Block, ChunkRule, Exposed, Pool, PoolError, PoolStats, Region, RegionError};
use proptest::prelude::*;

const GRAIN: usize = 64;

fn config() -> ProptestConfig {
    ProptestConfig {
        cases: 256 * fulmen_testbed::by_tier(1, 3, 8),
        failure_persistence: None,
        ..ProptestConfig::default()
    }
}

#[derive(Clone, Debug)]
enum Step {
    Take(usize),
    Drop(prop::sample::Index),
    Expose(prop::sample::Index),
    Clone(prop::sample::Index),
    DropHandle(prop::sample::Index),
    IntoBlock(prop::sample::Index),
}

fn step() -> impl Strategy<Value = Step> {
    let which = any::<prop::sample::Index>;
    prop_oneof![
        4 => prop_oneof![0_usize..300, 0_usize..20_000, Just(0), Just(usize::MAX)].prop_map(Step::Take),
        2 => which().prop_map(Step::Drop),
        1 => which().prop_map(Step::Expose),
        1 => which().prop_map(Step::Clone),
        1 => which().prop_map(Step::DropHandle),
        1 => which().prop_map(Step::IntoBlock),
    ]
}

fn rule() -> impl Strategy<Value = ChunkRule> {
    let boundary = prop::option::of((3_u32..17).prop_map(|bits| 1 << bits));
    let max_len = prop::option::of(prop_oneof![50_u64..500, 500_u64..70_000]);
    (boundary, max_len).prop_map(|(boundary, max_len)| ChunkRule { boundary, max_len })
}

/// One piece of the pool that is out, by one of its two faces.
enum Face {
    Block(Block),
    Exposed(Vec<Exposed>),
}

struct Out {
    face: Face,
    offset: usize,
    len: usize,
    stamp: u8,
}

impl Out {
    fn grains(&self) -> usize {
        self.len.div_ceil(GRAIN).max(1) * GRAIN
    }

    /// Finds its bytes as it left them: an overlap of any kind would have changed them.
    fn check(&self) {
        match &self.face {
            Face::Block(block) => {
                assert_eq!((block.offset(), block.len()), (self.offset, self.len));
                assert!(block.as_slice::<u8>().iter().all(|byte| *byte == self.stamp), "foreign bytes in a block");
            }
            Face::Exposed(handles) => {
                for handle in handles {
                    assert!(handle.offset() >= self.offset && handle.offset() + handle.len() <= self.offset + self.len);
                    let mut bytes = vec![!self.stamp; handle.len()];
                    handle.read(0, &mut bytes);
                    assert!(bytes.iter().all(|byte| *byte == self.stamp), "foreign bytes in exposed memory");
                }
            }
        }
    }
}

/// The pool, by the plainest books that there are.
struct Model {
    /// Usable pieces of the region, cut by looking at every grain.
    pieces: Vec<std::ops::Range<usize>>,
    cut: bool,
}

impl Model {
    fn new(region: &Region, rule: ChunkRule) -> Model {
        let registrations = region.registrations(rule);
        let piece_of = |byte: usize| registrations.iter().position(|piece| piece.contains(&byte)).unwrap();
        let mut pieces: Vec<std::ops::Range<usize>> = Vec::new();
        let mut last = None;
        for start in (0..region.len() / GRAIN).map(|grain| grain * GRAIN) {
            let piece = piece_of(start);
            if piece != piece_of(start + GRAIN - 1) {
                continue;
            }
            match pieces.last_mut().filter(|range| last == Some(piece) && range.end == start) {
                Some(range) => range.end += GRAIN,
                None => pieces.push(start..start + GRAIN),
            }
            last = Some(piece);
        }
        Model { pieces, cut: registrations.len() > 1 }
    }

    fn stats(&self, out: &[Out]) -> PoolStats {
        let mut taken: Vec<_> = out.iter().map(|out| (out.offset, out.grains())).collect();
        taken.sort_unstable();
        let total = self.pieces.iter().map(ExactSizeIterator::len).sum();
        let free = total - taken.iter().map(|(_, len)| len).sum::<usize>();
        let mut largest = 0;
        for piece in &self.pieces {
            let mut at = piece.start;
            for (offset, len) in taken.iter().filter(|(offset, _)| piece.contains(offset)) {
                largest = largest.max(offset - at);
                at = offset + len;
            }
            largest = largest.max(piece.end - at);
        }
        PoolStats { blocks: out.len(), total, free, largest }
    }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn any_history_keeps_the_promises(
        len in prop_oneof![1_usize..5000, 5000_usize..200_000],
        rule in rule(),
        steps in prop::collection::vec(step(), 0..120),
    ) {
        let region = Region::alloc(len).unwrap();
        let pool = Pool::with_rule(&region, rule).unwrap();
        let model = Model::new(&region, rule);
        let longest = model.pieces.iter().map(ExactSizeIterator::len).max().unwrap_or(0);
        let mut out: Vec<Out> = Vec::new();
        let mut stamp = 0_u8;
        for step in steps {
            let before = model.stats(&out);
            prop_assert_eq!(pool.stats(), before);
            match step {
                Step::Take(len) => match pool.take(len) {
                    Ok(mut block) => {
                        prop_assert_eq!(block.len(), len);
                        prop_assert_eq!(block.addr() % GRAIN, 0);
                        prop_assert_eq!(block.addr(), region.addr() + block.offset());
                        prop_assert!(block.offset() + len <= region.len());
                        if let (Some(boundary), true) = (rule.boundary, len > 0) {
                            let (first, last) = (block.addr() as u64, (block.addr() + len - 1) as u64);
                            prop_assert_eq!(first / boundary, last / boundary, "a block across a registration's boundary");
                        }
                        prop_assert!(
                            region.registrations(rule).iter().any(|r| r.start <= block.offset() && block.offset() + len <= r.end),
                            "a block in no single registration"
                        );
                        stamp = stamp.wrapping_add(1);
                        block.as_mut_slice::<u8>().fill(stamp);
                        out.push(Out { offset: block.offset(), len, stamp, face: Face::Block(block) });
                    }
                    Err(PoolError::LargerThanChunk { len: asked, largest }) => {
                        prop_assert!(model.cut && len > longest);
                        prop_assert_eq!((asked, largest), (len, longest));
                    }
                    Err(PoolError::Full { len: asked, total, free, largest }) => {
                        prop_assert!(len.max(1) > before.largest, "refused, though it fits");
                        prop_assert!(!model.cut || len <= longest);
                        prop_assert_eq!((asked, total, free, largest), (len, before.total, before.free, before.largest));
                    }
                    Err(other) => prop_assert!(false, "{}", other),
                },
                Step::Drop(which) if !out.is_empty() => {
                    let gone = out.swap_remove(which.index(out.len()));
                    gone.check();
                }
                Step::Expose(which) if !out.is_empty() => {
                    let at = which.index(out.len());
                    let mut one = out.swap_remove(at);
                    if let Face::Block(block) = one.face {
                        one.face = Face::Exposed(vec![block.into_exposed()]);
                    }
                    out.push(one);
                }
                Step::Clone(which) if !out.is_empty() => {
                    let at = which.index(out.len());
                    if let Face::Exposed(handles) = &mut out[at].face {
                        let part = handles[0].len() / 2..handles[0].len();
                        let more = handles[0].slice(part);
                        handles.insert(0, more);
                    }
                }
                Step::DropHandle(which) if !out.is_empty() => {
                    let at = which.index(out.len());
                    if let Face::Exposed(handles) = &mut out[at].face && handles.len() > 1 {
                        handles.remove(0);
                    }
                }
                Step::IntoBlock(which) if !out.is_empty() => {
                    let mut one = out.swap_remove(which.index(out.len()));
                    if let Face::Exposed(mut handles) = one.face {
                        let others = handles.split_off(1);
                        match handles.remove(0).into_block() {
                            Ok(block) => {
                                prop_assert!(others.is_empty(), "a block while others hold its memory");
                                one.face = Face::Block(block);
                            }
                            Err(handle) => {
                                prop_assert!(!others.is_empty(), "the last handle is the block");
                                handles.push(handle);
                                handles.extend(others);
                                one.face = Face::Exposed(handles);
                            }
                        }
                    }
                    out.push(one);
                }
                _ => {}
            }
        }
        out.iter().for_each(Out::check);
        drop(out);
        prop_assert_eq!(pool.stats(), model.stats(&[]), "everything comes back");
        // ... as the pieces that there were: each can be taken whole.
        let mut whole: Vec<usize> = model.pieces.iter().map(ExactSizeIterator::len).collect();
        whole.sort_unstable_by(|a, b| b.cmp(a));
        let blocks: Vec<Block> = whole.into_iter().map(|len| pool.take(len).unwrap()).collect();
        prop_assert_eq!(pool.stats().free, 0);
        drop(blocks);
    }
}

#[test]
fn threads_share_a_pool() {
    let pool = Pool::with_rule(&Region::alloc(1 << 18).unwrap(), ChunkRule { boundary: Some(1 << 16), max_len: None })
        .unwrap();
    let all = pool.stats();
    std::thread::scope(|scope| {
        for thread in 0..4_u8 {
            let pool = pool.clone();
            scope.spawn(move || {
                let mut seed = usize::from(thread) + 1;
                let mut kept: Vec<Block> = Vec::new();
                for round in 0..5_000 {
                    seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    if kept.len() < 8
                        && let Ok(mut block) = pool.take((seed >> 33) % 9000)
                    {
                        block.as_mut_slice::<u8>().fill(thread);
                        kept.push(block);
                    } else if !kept.is_empty() {
                        let block = kept.swap_remove(round % kept.len());
                        assert!(block.as_slice::<u8>().iter().all(|byte| *byte == thread), "another thread's bytes");
                    }
                }
            });
        }
    });
    assert_eq!(pool.stats(), all);
}

#[test]
fn a_block_comes_back_from_whichever_handle_is_last() {
    let pool = Pool::new(&Region::alloc(4096).unwrap()).unwrap();
    let mut block = pool.take(100).unwrap();
    block.as_mut_slice::<u8>().fill(1);
    let exposed = block.into_exposed();
    let part = exposed.slice(10..20);
    let (writer, exposed) = (exposed.clone(), exposed.into_block().expect_err("others hold it"));
    std::thread::spawn(move || writer.fill(0..100, 2)).join().unwrap();
    drop(exposed);
    let block = part.into_block().expect("the last handle");
    assert_eq!(block.as_slice::<u8>(), [2; 100]);
    assert_eq!(pool.stats().blocks, 1);
    drop(block);
    assert_eq!(pool.stats().blocks, 0);
}

#[test]
fn a_forgotten_handle_keeps_its_memory_for_ever() {
    let pool = Pool::new(&Region::alloc(4096).unwrap()).unwrap();
    let exposed = pool.take(4096).unwrap().into_exposed();
    std::mem::forget(exposed.clone());
    let exposed = exposed.into_block().expect_err("the forgotten handle counts");
    drop(exposed);
    assert_eq!(pool.stats().blocks, 1);
    assert!(matches!(pool.take(1), Err(PoolError::Full { .. })));
}

#[test]
fn the_memory_outlives_the_region_s_and_the_pool_s_handles() {
    let block = {
        let region = Region::alloc(4096).unwrap();
        let pool = Pool::new(&region).unwrap();
        pool.take(64).unwrap()
    };
    assert_eq!(block.as_slice::<u64>(), [0; 8]);
    assert_eq!(block.into_exposed().into_block().unwrap().pool().stats().blocks, 1);
}

#[test]
fn blocks_are_typed_slices() {
    let pool = Pool::new(&Region::alloc(4096).unwrap()).unwrap();
    let mut block = pool.take(24).unwrap();
    block.as_mut_slice::<f64>().copy_from_slice(&[1.0, -2.0, f64::INFINITY]);
    assert_eq!(block.as_slice::<u64>()[0], 1.0_f64.to_bits());
    assert_eq!(block.as_slice::<[u16; 3]>().len(), 4);
    let empty = pool.take(0).unwrap();
    assert!(empty.is_empty() && empty.as_slice::<u64>().is_empty());
    assert_ne!(empty.addr(), pool.take(0).unwrap().addr());
}

#[test]
#[should_panic(expected = "a block of 25 bytes holds no whole number of 8-byte values")]
fn a_block_of_broken_length_is_no_slice() {
    let block = Pool::new(&Region::alloc(4096).unwrap()).unwrap().take(25).unwrap();
    let _ = block.as_slice::<u64>();
}

#[test]
#[should_panic(expected = "a type of no size")]
fn a_type_of_no_size_has_no_slices() {
    let block = Pool::new(&Region::alloc(4096).unwrap()).unwrap().take(8).unwrap();
    let _ = block.as_slice::<[u8; 0]>();
}

#[test]
fn a_region_has_one_pool_or_is_exposed() {
    let pooled = Region::alloc(4096).unwrap();
    let pool = Pool::new(&pooled).unwrap();
    assert!(matches!(Pool::new(&pooled), Err(RegionError::Claimed { claim: "in a pool" })));
    assert!(matches!(pooled.clone().expose(), Err(RegionError::Claimed { claim: "in a pool" })));
    drop(pool);
    assert!(matches!(pooled.expose(), Err(RegionError::Claimed { .. })), "its blocks may have been registered");

    let exposed = Region::alloc(4096).unwrap();
    let (first, second) = (exposed.expose().unwrap(), exposed.expose().unwrap());
    first.write(0, &[7]);
    let mut byte = [0];
    second.read(0, &mut byte);
    assert_eq!(byte, [7]);
    assert!(first.into_block().is_err(), "a region is no block");
    assert!(matches!(Pool::new(&exposed), Err(RegionError::Claimed { claim: "exposed" })));
}

#[test]
fn a_bad_rule_leaves_the_region_free() {
    let region = Region::alloc(4096).unwrap();
    let bad = ChunkRule { boundary: Some(3), max_len: None };
    let panicked = std::panic::catch_unwind(|| Pool::with_rule(&region, bad).is_ok());
    assert!(panicked.is_err());
    Pool::new(&region).unwrap();
}

#[test]
fn messages_name_the_way_out() {
    let pool = Pool::new(&Region::alloc(4096).unwrap()).unwrap();
    let _block = pool.take(4000).unwrap();
    assert_eq!(
        pool.take(8192).unwrap_err().to_string(),
        "no block of 8192 bytes in a pool of 4096: 64 are free, 64 in one piece; drop blocks or make the pool larger"
    );
    let rule = ChunkRule { boundary: Some(1024), max_len: None };
    let pool = Pool::with_rule(&Region::alloc(4096).unwrap(), rule).unwrap();
    assert_eq!(
        pool.take(1025).unwrap_err().to_string(),
        "a block of 1025 bytes cannot lie in one registration of at most 1024 bytes: use several blocks"
    );
    let shown = format!("{pool:?} {:?} {:?}", pool.take(10).unwrap(), pool.take(20).unwrap().into_exposed());
    assert!(shown.contains("total: 4096") && shown.contains("len: 10") && shown.contains("len: 20"), "{shown}");
    assert!(shown.len() < 400, "books do not belong into a message: {shown}");
}
