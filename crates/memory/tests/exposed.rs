//! Exposed memory: copies and atomics, inside their bounds only.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;

use fulmen_memory::{Exposed, Pool, Region};
use proptest::prelude::*;

fn panics(run: impl FnOnce()) -> String {
    let panic = catch_unwind(AssertUnwindSafe(run)).expect_err("went through");
    match panic.downcast::<String>() {
        Ok(text) => *text,
        Err(panic) => (*panic.downcast::<&str>().expect("a message")).to_owned(),
    }
}

fn contents(exposed: &Exposed) -> Vec<u8> {
    let mut bytes = vec![0; exposed.len()];
    exposed.read(0, &mut bytes);
    bytes
}

#[derive(Clone, Debug)]
enum Step {
    Write(usize, Vec<u8>),
    Fill(usize, usize, u8),
    Copy(usize, usize, usize),
    Slice(usize, usize),
}

fn step() -> impl Strategy<Value = Step> {
    // Mostly inside of 300 bytes, at times outside, at times where sums overflow.
    let at = || prop_oneof![8 => 0_usize..300, 1 => 290_usize..310, 1 => (0_usize..400).prop_map(|n| usize::MAX - n)];
    prop_oneof![
        (at(), prop::collection::vec(any::<u8>(), 0..64)).prop_map(|(at, bytes)| Step::Write(at, bytes)),
        (at(), at(), any::<u8>()).prop_map(|(from, to, byte)| Step::Fill(from, to, byte)),
        (at(), at(), at()).prop_map(|(from, to, len)| Step::Copy(from, to, len)),
        (at(), at()).prop_map(|(from, to)| Step::Slice(from, to)),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn copies_are_those_of_a_vector_and_stay_inside(steps in prop::collection::vec(step(), 0..40)) {
        let pool = Pool::new(&Region::alloc(1024).unwrap()).unwrap();
        let guards: Vec<_> = (0..2).map(|_| pool.take(64).unwrap()).collect();
        drop(pool.take(320).unwrap());
        let exposed = pool.take(300).unwrap().into_exposed();
        exposed.fill(0..300, 0);
        let mut model = vec![0_u8; 300];
        for step in steps {
            // A slice's own panics say what is outside; the model is changed only where it does not panic.
            let mut next = model.clone();
            let (expected, done) = match step {
                Step::Write(at, from) => (
                    catch_unwind(AssertUnwindSafe(|| next[at..at.saturating_add(from.len())].copy_from_slice(&from))),
                    catch_unwind(AssertUnwindSafe(|| exposed.write(at, &from))),
                ),
                Step::Fill(from, to, byte) => (
                    catch_unwind(AssertUnwindSafe(|| next[from..to].fill(byte))),
                    catch_unwind(AssertUnwindSafe(|| exposed.fill(from..to, byte))),
                ),
                Step::Copy(from, to, len) => (
                    catch_unwind(AssertUnwindSafe(|| next.copy_within(from..from.saturating_add(len), to))),
                    catch_unwind(AssertUnwindSafe(|| exposed.copy_to(from, &exposed, to, len))),
                ),
                Step::Slice(from, to) => (
                    catch_unwind(AssertUnwindSafe(|| { let _ = &next[from..to]; })),
                    catch_unwind(AssertUnwindSafe(|| {
                        let part = exposed.slice(from..to);
                        assert_eq!((part.len(), part.addr()), (to - from, exposed.addr() + from));
                        assert_eq!(contents(&part), model[from..to]);
                    })),
                ),
            };
            prop_assert_eq!(expected.is_ok(), done.is_ok());
            if expected.is_ok() {
                model = next;
            }
            prop_assert_eq!(&contents(&exposed), &model);
        }
        for guard in &guards {
            prop_assert!(guard.as_slice::<u8>().iter().all(|byte| *byte == 0), "a write beyond its bounds");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn copies_past_the_caches_are_those_of_a_vector_even_where_they_overlap(
        from in 0_usize..9000, to in 0_usize..9000, len in 0_usize..7000,
    ) {
        let exposed = Region::alloc(16_384).unwrap().expose().unwrap();
        let mut model: Vec<u8> = (0..exposed.len()).map(|at| (at * 7 + at / 251) as u8).collect();
        exposed.write(0, &model);
        model.copy_within(from..from + len, to);
        exposed.copy_past_to(from, &exposed, to, len);
        prop_assert!(contents(&exposed) == model);
    }
}

#[test]
fn bounds_are_those_of_the_part_not_of_the_region() {
    let whole = Region::alloc(4096).unwrap().expose().unwrap();
    let part = whole.slice(64..128);
    assert_eq!((part.offset(), part.len()), (64, 64));
    assert_eq!(panics(|| part.write(60, &[0; 5])), "5 bytes at 60 do not lie in exposed memory of 64 bytes");
    panics(|| part.read(65, &mut []));
    panics(|| part.read(usize::MAX, &mut [0; 2]));
    panics(|| drop(part.slice(0..65)));
    #[allow(clippy::reversed_empty_ranges, reason = "what is tested")]
    let reversed = 2..1;
    assert!(panics(|| drop(part.slice(reversed.clone()))).contains("a range starts before its end"));
    panics(|| part.fill(reversed, 0));
    panics(|| drop(part.slice(64..usize::MAX)));
    panics(|| whole.copy_to(0, &part, 0, 65));
    panics(|| part.copy_to(0, &whole, 0, 65));
    panics(|| part.copy_past_to(0, &whole, 0, 65));
    part.read(64, &mut []);
    assert!(part.slice(64..64).is_empty());
    let nested = part.slice(32..64).slice(16..32);
    nested.write(0, &[9; 16]);
    assert_eq!(contents(&whole.slice(112..128)), [9; 16]);
    assert_eq!(nested.as_ptr() as usize, whole.addr() + 112);
}

#[test]
fn atomics_are_aligned_and_inside() {
    let exposed = Region::alloc(4096).unwrap().expose().unwrap();
    let odd = exposed.slice(4..24);
    odd.atomic_u32(0).store(0x0102_0304, Ordering::Release);
    assert_eq!(contents(&exposed)[4..8], 0x0102_0304_u32.to_ne_bytes());
    odd.atomic_u64(4).fetch_add(5, Ordering::AcqRel);
    assert_eq!(exposed.atomic_u64(8).load(Ordering::Acquire), 5);
    assert!(panics(|| _ = odd.atomic_u64(0)).starts_with("an atomic of 8 bytes cannot lie at address"));
    panics(|| _ = odd.atomic_u32(2));
    panics(|| _ = odd.atomic_u32(20));
    panics(|| _ = odd.atomic_u64(16));
    panics(|| _ = odd.atomic_u64(usize::MAX - 3));
}

#[test]
fn words_are_the_same_bytes_as_everything_else() {
    let exposed = Region::alloc(4096).unwrap().expose().unwrap();
    let part = exposed.slice(8..27);
    assert_eq!(part.words().len(), 2);
    part.words()[1].store(7, Ordering::Release);
    assert_eq!(exposed.atomic_u64(16).load(Ordering::Acquire), 7);
    assert!(exposed.slice(0..7).words().is_empty());
    assert!(panics(|| _ = exposed.slice(4..32).words()).starts_with("words cannot lie at address"));
}
