//! Parts of different lengths, and ranks that do not agree on them.

use std::time::Duration;

use fulmen_collectives::{CollectiveError, Group, ReduceOp};
use fulmen_soft::Profile;

use crate::world::{run_by_messages, run_group, run_over_hosts};

fn on_every_path(size: u32, body: fn(&Group)) {
    run_group(size, body);
    run_by_messages(size, body);
    run_over_hosts(Profile::Infiniband, size, body);
}

#[track_caller]
fn is_refused(result: Result<(), CollectiveError>, parts: &[&str]) {
    let error = result.unwrap_err();
    let text = error.to_string();
    assert!(matches!(error, CollectiveError::Invalid { .. }), "{text}");
    assert!(parts.iter().all(|part| text.contains(part)), "{text}");
}

/// Lengths that are wrong on one rank alone are refused there, before anybody else hears of the call.
#[test]
fn lengths_that_are_not_as_the_counts_say_are_refused_and_nothing_is_lost() {
    on_every_path(2, |group| {
        let rank = group.rank() as usize;
        let (counts, mine, mut all) = ([3, 5], vec![1u8; [3, 5][rank]], [0u8; 8]);
        is_refused(group.all_gather_v(&mine, &mut all, &[3]), &["all_gather", "1 counts", "2 ranks"]);
        is_refused(group.all_gather_v(&mine[1..], &mut all, &counts), &["input", "count of rank"]);
        is_refused(group.all_gather_v(&mine, &mut all[1..], &counts), &["output has 7", "say 8 in all"]);
        let endless = [mine.len(), usize::MAX];
        is_refused(
            group.reduce_scatter_v(&all[..], &endless, &mut [0; 1][..], ReduceOp::Sum),
            &["more than there is memory"],
        );
        is_refused(group.gather(&mine, &mut all, 2), &["gather", "no rank 2"]);
        is_refused(group.scatter_v(&all, &counts, &mut all.clone(), rank as u32), &["scatter", "output has 8"]);
        is_refused(group.all_to_all(&all[..7], &mut [0; 7]), &["all_to_all", "7 elements"]);
        is_refused(group.reduce_into(&mine, &mut all, ReduceOp::Sum, rank as u32), &["output has 8"]);
        let mean = group.all_reduce(&mut [1u8], ReduceOp::Mean).unwrap_err();
        assert!(matches!(mean, CollectiveError::Unsupported(_)), "{mean}");
        group.all_gather_v(&mine, &mut all, &counts).unwrap();
        assert_eq!(all, [1; 8]);
    });
}

/// Both ends' counts are compared before anything goes, and all ranks hear the same of it.
#[test]
fn ranks_that_expect_other_lengths_than_they_are_given_are_told_and_nothing_is_lost() {
    on_every_path(3, |group| {
        let gives = [[1, 2, 3], [1, 2, 3], [1, 2, 3]][group.rank() as usize];
        // Rank 2 expects 4 elements of rank 1.
        let gets = [[1, 1, 1], [2, 2, 2], [3, 4, 3]][group.rank() as usize];
        let (from, mut to) = (vec![7u16; 6], vec![0; gets.iter().sum()]);
        let told = ["all_to_all", "rank 1 gives rank 2 3 elements", "expects 4"];
        is_refused(group.all_to_all_v(&from, &gives, &mut to, &gets), &told);
        group.barrier().unwrap();
    });
}

/// Not all ranks call the same.
fn ranks_disagree(call: fn(&Group) -> Result<(), CollectiveError>) {
    let body = |group: &Group| {
        let group = group.with_deadline(Duration::from_secs(5));
        // Who only gives hears of it by its next call.
        let error = call(&group).and_then(|()| group.barrier()).unwrap_err();
        let alike = match &error {
            CollectiveError::Mismatch { .. } => true,
            // Whoever passes it on adds nothing, or else its end would be cut off.
            CollectiveError::Poisoned { cause } => {
                cause.starts_with("rank ")
                    && !cause.contains(": rank ")
                    && cause.ends_with("call it alike on all ranks")
            }
            _ => false,
        };
        assert!(alike, "{error}");
    };
    run_group(3, body);
    run_by_messages(3, body);
    run_over_hosts(Profile::Infiniband, 5, body);
}

#[test]
fn ranks_with_other_roots_all_fail() {
    ranks_disagree(|group| group.gather(&[1i64], &mut vec![0; group.size() as usize], group.rank() % 2));
    ranks_disagree(|group| group.reduce(&mut vec![1f32; 50_000], ReduceOp::Sum, group.rank() % 2));
}

#[test]
fn ranks_with_other_counts_all_fail() {
    ranks_disagree(|group| {
        let (rank, size) = (group.rank() as usize, group.size() as usize);
        // The first two have each other's.
        let mut counts = vec![2; size];
        counts[1 - rank.min(1)] = 3;
        group.all_gather_v(&vec![0u8; counts[rank]], &mut vec![0; 2 * size + 1], &counts)
    });
}

#[test]
fn means_are_of_as_many_as_were_combined() {
    on_every_path(4, |group| {
        let rank = group.rank();
        let mut mean = vec![rank as f32; 5_000];
        group.all_reduce(&mut mean, ReduceOp::Mean).unwrap();
        assert!(mean.iter().all(|mean| *mean == 1.5));
        let mut means = [rank as f64];
        group.scan(&mut means, ReduceOp::Mean).unwrap();
        assert_eq!(means, [f64::from(rank) / 2.0]);
    });
}
