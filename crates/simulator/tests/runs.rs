//! Whole runs: clean where the engine is right, equal where the seed is, and checked input.

#![forbid(unsafe_code)]

use fulmen_simulator::{Carrier, Counts, Faults, Keep, MAX_NODES, Options, OptionsError, Run, run};

/// Heavy rounds grow by this where the tier has time.
fn rounds(few: u64) -> u64 {
    few * fulmen_testbed::by_tier(1, 10, 50)
}

fn clean(options: &Options) -> Run {
    let run = run(options).expect("such a run exists");
    if let Some(failure) = &run.failure {
        panic!("seed {}, {} nodes: {failure}", options.seed, options.nodes);
    }
    run
}

#[test]
fn nothing_is_broken_over_any_carrier() {
    for carrier in [None, Some(Carrier::Mapped), Some(Carrier::Matched), Some(Carrier::Unreliable)] {
        let mut counts = Counts::default();
        for seed in 0..rounds(3) {
            let nodes = 2 + seed as usize % 4;
            counts.add(&clean(&Options { carrier, ..Options::new(seed, nodes, 1500) }).counts);
        }
        // A run in which nothing happens breaks nothing either.
        assert!(counts.succeeded > counts.steps / 2, "{counts:?}");
        assert!(counts.kill > 0 && counts.rejoin > 0 && counts.pause > 0, "{counts:?}");
        let lossy = carrier == Some(Carrier::Unreliable) || carrier.is_none();
        assert_eq!(counts.drop > 0 && counts.dup > 0 && counts.corrupt > 0 && counts.reorder > 0, lossy, "{counts:?}");
    }
}

#[test]
fn many_faults_break_nothing() {
    let faults: Faults =
        "drop=0.1,dup=0.1,reorder=0.2,corrupt=0.05,delay=5ms,partition=0.01,pause=0.01,cut=0.01,kill=0.005,rejoin=0.03"
            .parse()
            .expect("a list of faults");
    for seed in 0..rounds(2) {
        let options = Options { faults: faults.clone(), ..Options::new(1000 + seed, 3, 1000) };
        clean(&options);
    }
}

#[test]
fn without_faults_all_ends_well_but_what_the_program_asks_for() {
    let run = clean(&Options { faults: Faults::none(), ..Options::new(7, 3, 1000) });
    let struck = run.counts.drop + run.counts.dup + run.counts.reorder + run.counts.corrupt + run.counts.partition;
    assert_eq!(struck + run.counts.pause + run.counts.cut + run.counts.kill + run.counts.rejoin, 0);
}

#[test]
fn equal_seeds_give_equal_runs_and_other_seeds_others() {
    let options = Options { story: true, ..Options::new(42, 4, 500) };
    let (one, two) = (clean(&options), clean(&options));
    assert_eq!((one.digest, one.time, &one.counts, &one.story), (two.digest, two.time, &two.counts, &two.story));
    let silent = clean(&Options { story: false, ..options.clone() });
    assert_eq!(silent.digest, one.digest, "telling changes nothing");
    assert_ne!(clean(&Options { seed: 43, ..options }).digest, one.digest);
}

#[test]
fn all_choices_kept_give_the_same_run_and_none_kept_give_none() {
    let options = Options { story: true, ..Options::new(5, 3, 500) };
    let whole = clean(&options);
    let all = Keep::new(whole.story.iter().map(|told| told.choice).collect());
    let again =
        clean(&Options { keep: Some(all.to_string().parse().expect("a list that was shown")), ..options.clone() });
    assert_eq!(again.digest, whole.digest);
    let none = clean(&Options { keep: Some(Keep::default()), ..options });
    assert_eq!((none.counts.operations, none.story.len()), (0, 0));
}

#[test]
fn as_many_nodes_as_there_can_be_are_refused_or_run() {
    for nodes in [0, 1, MAX_NODES + 1, usize::MAX] {
        assert_eq!(run(&Options::new(1, nodes, 10)).err(), Some(OptionsError::Nodes { nodes }));
    }
    clean(&Options::new(1, MAX_NODES, 20));
}
