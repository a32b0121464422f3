use std::sync::atomic::AtomicBool;
use std::thread;
use std::time::{Duration, Instant};

use proptest::prelude::*;

use super::*;

fn values() -> impl Strategy<Value = u64> {
    prop_oneof![any::<u64>(), 0_u64..4, Just(u64::MAX), (0_u64..64).prop_map(|bit| 1 << bit)]
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let area = prop_oneof![any::<bool>().prop_map(Area::Directory), any::<bool>().prop_map(Area::Wire)];
    // Words of a wire's head, of its first frames, of its first answers, and anywhere.
    let answers = wire::ANSWERS_AT / 8;
    let word = prop_oneof![
        0..wire::RING_AT / 8,
        wire::RING_AT / 8..wire::RING_AT / 8 + 96,
        answers..answers + 64,
        0..1_000_000_usize
    ];
    let shifts = prop::sample::select(vec![1_u64, 8, 100, 4096, 4096_u64.wrapping_neg(), 8192_u64.wrapping_neg()]);
    let shift = (area.clone(), word.clone(), shifts).prop_map(|(area, word, by)| Step::Shift { area, word, by });
    let damage = (area, word, values()).prop_map(|(area, word, value)| Step::Damage { area, word, value });
    let act = (any::<bool>(), 0_u8..8).prop_map(|(which, what)| Step::Act(which, what));
    prop::collection::vec(prop_oneof![damage, shift, act.clone(), act], 1..60)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn damaged_words_break_connections_only(sort in prop::sample::select(&Sort::ALL), steps in steps()) {
        let hostile = Hostile::new(sort);
        for step in steps {
            hostile.step(step);
        }
        (0..8).for_each(|_| [true, false].into_iter().for_each(|which| hostile.step(Step::Act(which, 7))));
        hostile.check();
    }
}

/// Words change while they are read and used.
#[test]
fn racing_damage_breaks_connections_only() {
    let rounds = fulmen_testbed::by_tier(3, 15, 60);
    for sort in Sort::ALL {
        for _ in 0..rounds {
            let hostile = Hostile::new(sort);
            let stop = AtomicBool::new(false);
            thread::scope(|scope| {
                scope.spawn(|| {
                    // Damage where it is looked at most: in the first lines of each area, and of each ring.
                    let mut random = getrandom::u64().unwrap();
                    while !stop.load(Ordering::Relaxed) {
                        random = random.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
                        let part = [0, wire::RING_AT / 8, wire::ANSWERS_AT / 8][(random >> 33) as usize % 3];
                        let word = part + (random >> 37) as usize % 96;
                        let which = random >> 60 & 1 == 1;
                        let area = if random >> 61 & 3 == 0 { Area::Directory(which) } else { Area::Wire(which) };
                        let value = if random >> 63 == 0 { random >> 20 & 7 } else { random };
                        hostile.step(if random >> 50 & 3 == 0 {
                            Step::Shift {
                                area,
                                word,
                                by: if random >> 52 & 1 == 0 { 4096 } else { 4096_u64.wrapping_neg() },
                            }
                        } else {
                            Step::Damage { area, word, value }
                        });
                    }
                });
                let end = Instant::now() + Duration::from_millis(30);
                let mut what = 0_u8;
                while Instant::now() < end {
                    what = what.wrapping_add(1);
                    hostile.step(Step::Act(what & 8 == 0, what));
                }
                stop.store(true, Ordering::Relaxed);
            });
            hostile.check();
        }
    }
}

/// Each word of a registration decides whether it is one.
#[test]
fn a_damaged_registration_is_none() {
    let hostile = Hostile::new(Sort::Asked);
    let table = crate::directory::Directory::new(hostile.areas[0][0].clone());
    let key = hostile.sides[0].key;
    let entry = directory::KEYS + crate::directory::slot_of(key) * directory::KEY_SIZE;
    let shared = table.key(key).expect("it is registered");
    assert_eq!((shared.share, shared.len), (None, FENCED.len() as u64));
    let words = (0..directory::KEY_SIZE / 8).map(|word| entry + word * 8).chain([directory::SALT]);
    for at in words {
        let word = hostile.areas[0][0].atomic_u64(at);
        let right = word.load(Ordering::SeqCst);
        for bit in 0..64 {
            word.store(right ^ 1 << bit, Ordering::SeqCst);
            assert_eq!(table.key(key), None, "bit {bit} of the word at {at}");
        }
        word.store(right, Ordering::SeqCst);
    }
    assert_eq!(table.key(key), Some(shared));
}

#[test]
fn what_devices_say_to_one_another_is_heard() {
    for (name, bytes) in network::sayings() {
        assert!(network::hear(&bytes).contains(&network::Said::Right), "{name}");
        assert_eq!(network::hear(&bytes[..7]), [network::Said::Nothing; 3], "{name}");
    }
}
