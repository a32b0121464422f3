//! Mistakes that are planted in the engine are found, and told with a short schedule.

#![cfg(feature = "planted-bugs")]
#![forbid(unsafe_code)]

use fulmen_simulator::{Broken, Options, Planted, run, shorten};

const STEPS: u64 = 1500;
const FEW: &str = "drop=0.02,dup=0.02,reorder=0.05,corrupt=0.01";
/// Nodes come and go, and frames outlive them.
const MANY: &str = "drop=0.02,dup=0.02,reorder=0.2,delay=5ms,cut=0.01,kill=0.01,rejoin=0.1";

/// The first seed whose run fails, its shortest schedule, and that the same runs are clean without the mistake.
fn is_found(planted: Planted, faults: &str, within: u64, broken: &[Broken], longest: usize) {
    for seed in 0..within {
        let faults = faults.parse().expect("a list of faults");
        let clean = Options { faults, ..Options::new(seed, 3, STEPS) };
        let options = Options { planted: Some(planted), ..clean.clone() };
        let right = run(&clean).expect("such a run exists");
        assert_eq!(right.failure, None, "seed {seed} without a mistake");
        let Some(failure) = run(&options).expect("such a run exists").failure else { continue };
        assert!(broken.contains(&failure.broken), "{failure}");
        let shortest = shorten(&options, 400_000).expect("it fails again");
        println!("{planted:?}, seed {seed}: {failure}");
        for (number, told) in (1..).zip(&shortest.story) {
            println!("{number:>4}. [{}] {}", told.choice, told.what);
        }
        println!("   => {}", shortest.failure);
        assert_eq!(shortest.failure.broken, failure.broken);
        let count = shortest.story.len();
        assert!(count <= longest, "the shortest schedule has {count} choices");
        let again = run(&shortest.options).expect("such a run exists");
        assert_eq!(again.failure.as_ref(), Some(&shortest.failure), "it is replayed");
        let right = run(&Options { planted: None, ..shortest.options }).expect("such a run exists");
        assert_eq!(right.failure, None, "it is the mistake that breaks it");
        return;
    }
    panic!("{planted:?} is not found in {} steps", within * STEPS);
}

#[test]
fn a_credit_too_many_is_found() {
    is_found(Planted::CreditOffByOne, FEW, 5, &[Broken::Protocol], 60);
}

#[test]
fn a_frame_of_an_old_generation_is_found() {
    let broken = [Broken::Generation, Broken::Protocol, Broken::Message, Broken::Memory, Broken::Atomic];
    is_found(Planted::NoGenerationCheck, MANY, 20, &broken, 100);
}

#[test]
fn a_lost_acknowledgement_is_found() {
    is_found(Planted::LostAck, FEW, 20, &[Broken::Hang], 80);
}
