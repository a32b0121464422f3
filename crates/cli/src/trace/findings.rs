//! Who is where: what the records say together.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use fulmen::parts::fabric::recorder::file::{Operation, Phase, SPLIT};
use serde::Serialize;

use super::records::World;
use crate::run::{Seconds, name_ranks};

/// Tags of programs are below this one. Eight bits above it say what a message holds, the highest that a group sent it.
const TAGS: u64 = 1 << 48;
const OF_GROUP: u64 = 1 << 63;

/// What was found.
#[derive(Debug, Default, PartialEq, Eq, Serialize)]
pub struct Findings {
    /// The failure that came first, if any.
    pub first_failure: Option<FirstFailure>,
    /// By group, who is where in its calls.
    pub groups: Vec<GroupPlaces>,
    /// Ranks without a record.
    pub no_record: Vec<u32>,
    /// All of it in sentences, the most telling first.
    pub sentences: Vec<String>,
}

/// The failure that came first.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub struct FirstFailure {
    /// The rank that saw it.
    pub rank: u32,
    /// When, in nanoseconds from the origin.
    pub at: u64,
    /// What failed.
    pub op: String,
    /// The error.
    pub text: String,
}

/// Who is where in the calls of a group. A rank is in one of the lists.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct GroupPlaces {
    /// The group.
    pub group: u32,
    /// The last call that any rank entered.
    pub call: u64,
    /// Its operation.
    pub op: String,
    /// Ranks that are in it.
    pub waiting: Vec<u32>,
    /// Ranks that gave it up.
    pub failed: Vec<u32>,
    /// Ranks that have done it.
    pub done: Vec<u32>,
    /// Ranks that never entered it, though they have a record.
    pub behind: Vec<u32>,
    /// Ranks without a record.
    pub no_record: Vec<u32>,
    /// Whether the ranks that entered it called different things.
    pub mismatch: bool,
}

/// Looks at all records.
pub fn find(world: &World) -> Findings {
    let mut found = Findings { no_record: world.missing(), ..Findings::default() };
    let groups: BTreeSet<u32> = calls(world).map(|(_, call)| call.group).collect();
    for group in groups {
        let places = places(world, group, &mut found.sentences);
        found.groups.push(places);
    }
    waits(world, &mut found.sentences);
    if !found.no_record.is_empty() {
        let (has, its) = if found.no_record.len() == 1 { ("has", "its process") } else { ("have", "their processes") };
        found.sentences.push(format!(
            "{} {has} no record: {its} ended or did not answer before writing one",
            name_ranks(&found.no_record)
        ));
    }
    found.first_failure = first_failure(world);
    found
}

/// The failure that came first. That a rank heard of another's failure says less than the failure itself.
fn first_failure(world: &World) -> Option<FirstFailure> {
    let failures = world.ranks.iter().filter_map(|(rank, read)| Some((*rank, read.header.failure.as_ref()?)));
    let (rank, failure) = failures.min_by_key(|(rank, failure)| (failure.at, *rank))?;
    let at = failure.at.saturating_sub(world.origin);
    Some(FirstFailure { rank, at, op: failure.op.clone(), text: failure.text.clone() })
}

/// The calls of groups, with their ranks.
fn calls(world: &World) -> impl Iterator<Item = (u32, &Operation)> {
    let calls = world.ranks.iter().flat_map(|(rank, read)| read.operations.iter().map(move |call| (*rank, call)));
    calls.filter(|(_, call)| call.group != 0)
}

fn places(world: &World, group: u32, sentences: &mut Vec<String>) -> GroupPlaces {
    let mut last: BTreeMap<u32, &Operation> = BTreeMap::new();
    for (rank, call) in calls(world).filter(|(_, call)| call.group == group) {
        let known = last.entry(rank).or_insert(call);
        if call.sequence >= known.sequence {
            *known = call;
        }
    }
    let Some(front) = last.values().max_by_key(|call| call.sequence).copied() else {
        return GroupPlaces { group, ..GroupPlaces::default() };
    };
    let members = world.members(group);
    // Of a group of some ranks whose forming is not on record any more, those that called something are known.
    let belongs = |rank: &u32| match members {
        Some(members) => members.contains(rank),
        None => group < SPLIT || last.contains_key(rank),
    };
    let mut places = GroupPlaces {
        group,
        call: front.sequence,
        op: front.op.to_string(),
        no_record: world.missing().into_iter().filter(|rank| belongs(rank)).collect(),
        ..GroupPlaces::default()
    };
    let there = || last.iter().filter(|(_, call)| call.sequence == front.sequence);
    for rank in world.ranks.keys().filter(|rank| belongs(rank)) {
        match last.get(rank) {
            Some(call) if call.sequence == front.sequence => match call.phase {
                Phase::Running => places.waiting.push(*rank),
                Phase::Failed => places.failed.push(*rank),
                Phase::Done | Phase::LetGo => places.done.push(*rank),
            },
            _ => places.behind.push(*rank),
        }
    }
    let same = |a: &Operation, b: &Operation| (&a.op, a.bytes, a.peer) == (&b.op, b.bytes, b.peer);
    places.mismatch = there().any(|(_, call)| !same(call, front));
    if places.mismatch {
        let calls: Vec<String> = there().map(|(rank, call)| format!("rank {rank} called {}", describe(call))).collect();
        let group = group_name(group);
        sentences.push(format!("the ranks disagree on call {} of {group}: {}", front.sequence, calls.join(", ")));
    }
    let who = members.map_or(String::new(), |members| format!(" ({})", name_ranks(members)));
    let name = format!("{} {} of {}{who}", front.op, front.sequence, group_name(group));
    let stuck = !places.waiting.is_empty() || !places.failed.is_empty();
    if !stuck && places.behind.is_empty() {
        return places;
    }

    // Who is behind at the same place is told in one sentence.
    let mut behind: BTreeMap<String, Vec<u32>> = BTreeMap::new();
    for rank in &places.behind {
        behind.entry(why_behind(world, *rank, last.get(rank).copied(), front, &name)).or_default().push(*rank);
    }
    for (what, ranks) in &behind {
        let mut sentence = format!("{} {what}", name_ranks(ranks));
        if let Some(who) = who_waits(world, &places, &last, "it") {
            sentence.push_str("; ");
            sentence.push_str(&who);
        }
        sentences.push(sentence);
    }
    if behind.is_empty()
        && let Some(who) = who_waits(world, &places, &last, &name)
    {
        let done = match places.done.as_slice() {
            [] => String::new(),
            done => format!("; {} {} done it", name_ranks(done), if done.len() == 1 { "has" } else { "have" }),
        };
        sentences.push(format!("{who}{done}"));
    }
    places
}

/// Where a rank is that did not enter the call `front`.
fn why_behind(world: &World, rank: u32, last: Option<&Operation>, front: &Operation, name: &str) -> String {
    match last {
        Some(call) if call.phase == Phase::Running => {
            format!("never entered {name}: still in {} {} for {}", call.op, call.sequence, age(world, rank, call.begin))
        }
        Some(call) => {
            let verb = if call.phase == Phase::Failed { "failed" } else { "ended" };
            let ended = call.end.unwrap_or(call.begin);
            format!(
                "never entered {name}: the last call there, {} {}, {verb} {} before",
                call.op,
                call.sequence,
                age(world, rank, ended)
            )
        }
        None => {
            if world.ranks[&rank].header.since.is_none_or(|since| since <= front.begin) {
                format!("never entered {name}, nor any call of that group on record")
            } else {
                format!("did not enter {name} in all that is on record")
            }
        }
    }
}

/// `ranks 0 and 1 wait in it for 2.0 s`, and so on.
fn who_waits(world: &World, places: &GroupPlaces, last: &BTreeMap<u32, &Operation>, name: &str) -> Option<String> {
    let mut parts = Vec::new();
    if let Some(longest) = places.waiting.iter().map(|rank| span(world, *rank, last[rank].begin)).max() {
        let verb = if places.waiting.len() == 1 { "waits" } else { "wait" };
        parts.push(format!("{} {verb} in {name} for {}", name_ranks(&places.waiting), Seconds(longest)));
    }
    let failed =
        places.failed.iter().map(|rank| last[rank]).filter_map(|call| Some(call.end?.saturating_sub(call.begin)));
    if let Some(longest) = failed.max() {
        parts.push(format!(
            "{} gave {name} up after {}",
            name_ranks(&places.failed),
            Seconds(Duration::from_nanos(longest))
        ));
    }
    (!parts.is_empty()).then(|| parts.join(", "))
}

/// Who waits in an operation between two ranks.
fn waits(world: &World, sentences: &mut Vec<String>) {
    for (rank, read) in &world.ranks {
        let own = |operation: &&Operation| operation.group == 0 && operation.sequence & OF_GROUP == 0;
        let waiting =
            read.operations.iter().filter(|operation| operation.phase == Phase::Running && !operation.started);
        for operation in waiting.filter(own) {
            sentences.push(format!(
                "rank {rank} waits in {} for {}",
                describe(operation),
                age(world, *rank, operation.begin)
            ));
        }
    }
}

/// What a group is called: those of all ranks are counted.
pub fn group_name(group: u32) -> String {
    if group < SPLIT { format!("group {group}") } else { format!("group #{:x}", group - SPLIT) }
}

/// An operation in a few words.
pub fn describe(operation: &Operation) -> String {
    let Operation { op, group, sequence, peer, bytes, .. } = operation;
    let peer = match (peer, *group, op.as_ref()) {
        (None, ..) => String::new(),
        (Some(root), 1.., _) => format!(" root {root}"),
        (Some(peer), 0, "recv" | "get") => format!(" from rank {peer}"),
        (Some(peer), 0, _) => format!(" to rank {peer}"),
    };
    match (*group, op.as_ref()) {
        (0, "send" | "recv") => format!("{op}{peer}, tag {}, {bytes} bytes", sequence % TAGS),
        (0, _) => format!("{op}{peer}, offset {sequence}, {bytes} bytes"),
        _ => format!("{op} {sequence} of {},{peer} {bytes} bytes", group_name(*group)),
    }
}

fn span(world: &World, rank: u32, since: u64) -> Duration {
    Duration::from_nanos(world.end_of(rank).saturating_sub(since))
}

fn age(world: &World, rank: u32, since: u64) -> String {
    Seconds(span(world, rank, since)).to_string()
}

#[cfg(test)]
mod tests {
    use fulmen::parts::fabric::recorder::file::{Failure, Note, Read};

    use super::super::records::tests::{call, record, world};
    use super::*;

    fn with(rank: u32, size: u32, calls: &[Operation]) -> Read {
        Read { operations: calls.to_vec(), ..record(rank, size) }
    }

    #[test]
    fn a_rank_that_never_entered_a_call_is_named_and_so_is_who_waits() {
        let done = call("all_reduce", 1, 416, 1, Some((2, Phase::Done)));
        let waits = call("all_reduce", 1, 417, 3, None);
        let records = (0..4).map(|rank| {
            if rank == 2 {
                with(rank, 4, std::slice::from_ref(&done))
            } else {
                with(rank, 4, &[done.clone(), waits.clone()])
            }
        });
        let found = find(&world(records.collect()).0);
        assert_eq!(
            found.sentences,
            [
                "rank 2 never entered all_reduce 417 of group 1: the last call there, all_reduce 416, ended 8.0 s before; \
              ranks 0, 1 and 3 wait in it for 7.0 s"
            ]
        );
        let places = &found.groups[0];
        assert_eq!((&places.waiting[..], &places.behind[..], places.call), (&[0, 1, 3][..], &[2][..], 417));
    }

    #[test]
    fn ranks_that_are_not_in_a_group_are_not_missed_there() {
        let group = SPLIT | 0x2f;
        let formed =
            Note { at: 1, event: "group".into(), group, peer: None, text: "split off".into(), members: vec![0, 2] };
        let (done, waits) = (call("barrier", group, 4, 1, Some((2, Phase::Done))), call("barrier", group, 5, 3, None));
        let other = call("barrier", SPLIT | 0x30, 9, 4, None);
        let records = |formed: &[Note]| {
            let with = |rank, calls: &[Operation]| Read { notes: formed.to_vec(), ..with(rank, 4, calls) };
            vec![
                with(0, &[done.clone(), waits.clone()]),
                with(1, std::slice::from_ref(&other)),
                with(2, std::slice::from_ref(&done)),
            ]
        };
        let found = find(&world(records(&[formed])).0);
        let sentence = "rank 2 never entered barrier 5 of group #2f (ranks 0 and 2): the last call there, barrier 4, ended 8.0 s \
                        before; rank 0 waits in it for 7.0 s";
        assert!(found.sentences.iter().any(|found| found == sentence), "{:?}", found.sentences);
        let places =
            |found: &Findings, group| found.groups.iter().find(|places| places.group == group).cloned().unwrap();
        assert_eq!((places(&found, group).behind, places(&found, group).no_record), (vec![2], vec![]));
        // Nothing says who else is in it.
        let alone = places(&found, SPLIT | 0x30);
        assert_eq!((alone.waiting, alone.behind, alone.no_record), (vec![1], vec![], vec![]));
        let found = find(&world(records(&[])).0);
        assert_eq!(places(&found, group).behind, [2]);
    }

    #[test]
    fn a_rank_without_a_record_is_named_and_nothing_is_said_about_where_it_is() {
        let failed = call("barrier", 1, 5, 3, Some((5, Phase::Failed)));
        let found = find(&world(vec![with(0, 3, std::slice::from_ref(&failed)), with(1, 3, &[failed])]).0);
        assert_eq!(
            found.sentences,
            [
                "ranks 0 and 1 gave barrier 5 of group 1 up after 2.0 s",
                "rank 2 has no record: its process ended or did not answer before writing one",
            ]
        );
        assert_eq!(found.no_record, [2]);
    }

    #[test]
    fn ranks_that_call_different_things_are_told_apart() {
        let (one, other) = (call("barrier", 1, 5, 3, None), call("all_reduce", 1, 5, 3, None));
        let found = find(&world(vec![with(0, 2, &[one]), with(1, 2, &[other])]).0);
        assert!(found.groups[0].mismatch);
        assert!(found.sentences[0].starts_with("the ranks disagree on call 5 of group 1: "), "{:?}", found.sentences);
    }

    #[test]
    fn groups_that_are_done_are_no_news_and_messages_that_are_waited_for_are() {
        let done = call("all_reduce", 1, 9, 1, Some((2, Phase::Done)));
        let recv = Operation { peer: Some(0), ..call("recv", 0, 7 | 3 << 48, 4, None) };
        let internal = Operation { sequence: OF_GROUP, ..recv.clone() };
        let started = Operation { started: true, ..recv.clone() };
        let found = find(
            &world(vec![with(0, 2, std::slice::from_ref(&done)), with(1, 2, &[done.clone(), recv, internal, started])])
                .0,
        );
        assert_eq!(found.sentences, ["rank 1 waits in recv from rank 0, tag 7, 8 bytes for 6.0 s"]);
    }

    #[test]
    fn the_first_failure_is_the_earliest() {
        let failing = |rank, at| {
            let mut read = record(rank, 2);
            read.header.failure = Some(Failure { at, op: "barrier".into(), group: 1, text: format!("rank {rank}") });
            read
        };
        let found = find(&world(vec![failing(0, 9), failing(1, 8)]).0);
        assert_eq!(found.first_failure.unwrap().rank, 1);
    }
}
