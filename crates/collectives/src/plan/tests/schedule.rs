//! Schedules, run on paper.

use std::collections::BTreeMap;

use super::*;

const PATTERNS: [Pattern; 6] =
    [Pattern::Chain(7), Pattern::Chain(1000), Pattern::Ring, Pattern::Halving, Pattern::Doubling, Pattern::Tree];

/// What a rank has of an element: whose contributions in which order, written as it was combined; and whether it is the result.
type Has = (String, bool);

/// Runs a schedule: what each rank has in the end.
fn run(schedule: &Schedule) -> Vec<Vec<Has>> {
    let ranks = schedule.ranks;
    let mut has: Vec<Vec<Has>> = (0..ranks).map(|rank| vec![(rank.to_string(), false); schedule.count]).collect();
    match schedule.goal {
        Goal::Broadcast(root) => has[root].iter_mut().for_each(|has| has.1 = true),
        Goal::AllGather => {
            for (rank, has) in has.iter_mut().enumerate() {
                let own = |at: usize| at / schedule.count == rank;
                *has = (0..ranks * schedule.count).map(|at| (rank.to_string(), own(at))).collect();
            }
        }
        Goal::AllReduce | Goal::Reduce(_) | Goal::Scan | Goal::ReduceScatter => {}
    }
    // What is passed on of a scan has the same contributions as the result.
    let results_go_on = schedule.goal == Goal::Scan;
    for round in 0..schedule.rounds() {
        let all: Vec<Round> = (0..ranks).map(|rank| schedule.round(rank, round)).collect();
        // By who sends and who receives, in their order.
        let mut sent: BTreeMap<(usize, usize), Vec<Transfer>> = BTreeMap::new();
        let mut received = sent.clone();
        for (rank, round) in all.iter().enumerate() {
            for send in &round.sends {
                assert!(send.peer != rank && !send.range.is_empty());
                sent.entry((rank, send.peer)).or_default().push(Transfer { peer: 0, ..send.clone() });
            }
            for receive in &round.receives {
                received.entry((receive.peer, rank)).or_default().push(Transfer { peer: 0, ..receive.clone() });
            }
        }
        assert_eq!(sent, received, "round {round} of {schedule:?}");
        let before = has.clone();
        for (rank, round) in all.iter().enumerate() {
            for Transfer { peer, range, result } in &round.receives {
                for element in range.clone() {
                    let (theirs, is_result) = &before[*peer][element];
                    assert!(is_result == result || results_go_on, "round {round:?} of {schedule:?}");
                    let mine = &mut has[rank][element];
                    assert!(!mine.1, "a result is not touched any more");
                    // The lower one first: to combine two is the same either way.
                    *mine = match (result, number(theirs) < number(&mine.0)) {
                        (true, _) => (theirs.clone(), true),
                        (false, true) => (format!("({theirs} {})", mine.0), false),
                        (false, false) => (format!("({} {theirs})", mine.0), false),
                    };
                }
            }
            for range in &round.finished {
                for element in range.clone() {
                    assert!(!has[rank][element].1);
                    has[rank][element].1 = true;
                }
            }
        }
    }
    has
}

/// The first rank in it.
fn number(has: &str) -> usize {
    has.trim_start_matches('(').split(' ').next().unwrap().trim_end_matches(')').parse().unwrap()
}

#[test]
fn every_contribution_is_in_every_result_once_and_all_ranks_have_the_same() {
    for ranks in 2..=17 {
        for pattern in PATTERNS {
            for count in [1, 5, 40, 97] {
                let schedule = Schedule { pattern, goal: Goal::AllReduce, ranks, count };
                let has = run(&schedule);
                for element in 0..count {
                    let (result, done) = &has[0][element];
                    let mut whose: Vec<usize> =
                        result.split([' ', '(', ')']).filter(|part| !part.is_empty()).flat_map(str::parse).collect();
                    whose.sort_unstable();
                    assert!(*done && whose.iter().copied().eq(0..ranks), "{result} of {schedule:?}");
                    assert!(has.iter().all(|rank| rank[element] == has[0][element]), "{schedule:?}");
                }
                for rank in 0..ranks {
                    let mut peers: Vec<usize> = (0..schedule.rounds())
                        .map(|round| schedule.round(rank, round))
                        .flat_map(|round| round.sends.into_iter().chain(round.receives))
                        .map(|transfer| transfer.peer)
                        .collect();
                    peers.sort_unstable();
                    peers.dedup();
                    assert_eq!(schedule.peers(rank), peers);
                }
            }
        }
    }
}

#[test]
fn a_chain_combines_in_rank_order() {
    let schedule = Schedule { pattern: Pattern::Chain(2), goal: Goal::AllReduce, ranks: 4, count: 5 };
    assert!(run(&schedule).iter().flatten().all(|has| *has == ("(((0 1) 2) 3)".into(), true)));
}

#[test]
fn one_rank_gets_or_gives_all() {
    for ranks in 2..=9 {
        for root in 0..ranks {
            for pattern in [Pattern::Chain(3), Pattern::Tree] {
                let schedule = Schedule { pattern, goal: Goal::Reduce(root), ranks, count: 8 };
                let has = run(&schedule);
                assert!(
                    has[root].iter().all(|(has, done)| *done && has.matches(|c: char| c.is_numeric()).count() == ranks)
                );
                let schedule = Schedule { goal: Goal::Broadcast(root), ..schedule };
                let has = run(&schedule);
                assert!(has.iter().flatten().all(|has| *has == (root.to_string(), true)), "{schedule:?}");
            }
        }
    }
}

#[test]
fn each_rank_gets_what_those_up_to_it_have() {
    for ranks in 2..=9 {
        for (pattern, count) in [(Pattern::Chain(3), 8), (Pattern::Chain(3), 3), (Pattern::Chain(9), 2)] {
            let schedule = Schedule { pattern, goal: Goal::Scan, ranks, count };
            let mut expected = "0".to_owned();
            for (rank, has) in run(&schedule).into_iter().enumerate() {
                if rank > 0 {
                    expected = format!("({expected} {rank})");
                }
                assert!(has.iter().all(|has| *has == (expected.clone(), rank > 0)), "rank {rank} of {schedule:?}");
            }
        }
    }
}

#[test]
fn each_rank_gets_what_all_have() {
    for ranks in 2..=9 {
        for count in [1, 2, 5] {
            let schedule = Schedule { pattern: Pattern::Ring, goal: Goal::AllGather, ranks, count };
            for has in run(&schedule) {
                assert!(
                    has.iter().enumerate().all(|(at, has)| *has == ((at / count).to_string(), true)),
                    "{schedule:?}"
                );
            }
            // Each cable of a ring carries half of all the parts but one, each way, and nothing goes further.
            for rank in 0..ranks {
                let rounds = (0..schedule.rounds()).map(|round| schedule.round(rank, round));
                let sends: Vec<Transfer> = rounds.flat_map(|round| round.sends).collect();
                assert!(sends.iter().all(|send| [1, ranks - 1].contains(&((send.peer + ranks - rank) % ranks))));
                assert_eq!(sends.iter().map(|send| send.range.len()).sum::<usize>(), (ranks - 1) * count);
            }
        }
    }
}
