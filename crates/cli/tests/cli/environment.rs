//! What a rank finds: its place, its standard streams, its descriptors, and the secret.

use std::collections::BTreeSet;
use std::io::Write;
use std::process::{Command, Stdio};

use crate::support::{FULMEN, ranks, start, start_with_stdin};

#[test]
fn each_rank_knows_its_place() {
    let ended = ranks(
        &["-n", "3", "--profile", "thunderbolt"],
        "echo $FULMEN_RANK $FULMEN_SIZE $FULMEN_LOCAL_RANK $FULMEN_LOCAL_SIZE $FULMEN_PROFILE",
    )
    .end();
    assert_eq!(ended.code, Some(0));
    assert_eq!(ended.sorted(), ["[0] 0 3 0 3 thunderbolt", "[1] 1 3 1 3 thunderbolt", "[2] 2 3 2 3 thunderbolt"]);
}

#[test]
fn without_a_profile_there_is_none() {
    let ended = ranks(&["-n", "1"], "echo profile=${FULMEN_PROFILE-none}").end();
    assert_eq!(ended.out, "[0] profile=none\n");
}

#[test]
fn a_device_is_named_to_the_ranks() {
    let ended = ranks(&["-n", "1", "--device", "rxe0"], "echo $FULMEN_DEVICE profile=${FULMEN_PROFILE-none}").end();
    assert_eq!(ended.out, "[0] rxe0 profile=none\n");
}

#[test]
fn a_machine_without_the_library_says_so() {
    let mut command = Command::new(FULMEN);
    command.args(["bench", "all-reduce", "-n2", "--max=8", "--device=any"]);
    command.env("FULMEN_VERBS_LIBRARY", "/nonexistent/libibverbs.so.1");
    let ended = start(command).end();
    assert_eq!(ended.code, Some(1), "{}", ended.err);
    for part in ["FULMEN_DEVICE=any", "/nonexistent/libibverbs.so.1", "fulmen doctor"] {
        assert!(ended.err.contains(part), "{part} in {}", ended.err);
    }
}

/// Processors as the system lists them: `0-3,8`.
fn processors(list: &str) -> BTreeSet<u32> {
    let number = |text: &str| text.parse::<u32>().unwrap();
    list.trim()
        .split(',')
        .flat_map(|range| {
            let (first, last) = range.split_once('-').unwrap_or((range, range));
            number(first)..=number(last)
        })
        .collect()
}

#[test]
fn ranks_are_bound_to_their_parts_of_the_processors() {
    let script = "sed -n 's/^Cpus_allowed_list://p' /proc/self/status";
    let of_ranks = |options: &[&str]| -> Vec<BTreeSet<u32>> {
        let ended = ranks(&[options, &["--no-labels"]].concat(), script).end();
        assert_eq!(ended.code, Some(0), "{}", ended.err);
        ended.out.lines().map(processors).collect()
    };
    let all = &of_ranks(&["-n", "1"])[0];
    assert_eq!(&of_ranks(&["-n", "1", "--bind"])[0], all);
    assert!(of_ranks(&["-n", "2"]).iter().all(|rank| rank == all), "without the option, each runs on any");
    for ranks in [2, 5] {
        let parts = of_ranks(&["-n", &ranks.to_string(), "--bind"]);
        assert_eq!(&parts.iter().flatten().copied().collect::<BTreeSet<u32>>(), all, "none is left");
        // Nobody shares any unless there are too few.
        assert_eq!(parts.iter().map(BTreeSet::len).sum::<usize>(), all.len().max(ranks), "{parts:?}");
    }
}

#[test]
fn the_first_rank_reads_the_input() {
    let mut input = tempfile::tempfile().unwrap();
    input.write_all(b"one\ntwo\n").unwrap();
    std::io::Seek::rewind(&mut input).unwrap();
    let mut command = Command::new(FULMEN);
    command.args(["run", "-n", "2", "--", "cat"]);
    let ended = start_with_stdin(&mut command, Stdio::from(input)).end();
    assert_eq!((ended.code, ended.out.as_str()), (Some(0), "[0] one\n[0] two\n"));
}

#[test]
fn the_secret_comes_by_descriptor_alone() {
    let script = "secret=$(cat /proc/self/fd/$FULMEN_SECRET_FD); echo secret $secret
        tr '\\0' '\\n' < /proc/self/environ | grep -c -- \"$secret\"
        cat /proc/$$/cmdline /proc/$PPID/cmdline | tr '\\0' '\\n' | grep -c -- \"$secret\"
        true";
    let ended = ranks(&["-n", "2"], script).end();
    let secrets: BTreeSet<&str> =
        ended.out.lines().filter_map(|line| line.split_once("secret ")).map(|(_, hex)| hex).collect();
    assert_eq!(secrets.len(), 1, "all ranks have the same secret: {}", ended.out);
    let secret = secrets.first().unwrap();
    assert!(secret.len() == 64 && secret.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f')), "{secret}");
    assert_eq!(ended.out.lines().filter(|line| line.ends_with("] 0")).count(), 4, "{}", ended.out);
}

#[test]
fn a_rank_gets_no_other_descriptor() {
    let list = |mut command: Command| {
        let ended = start({
            command.args(["/bin/sh", "-c", "echo fd $FULMEN_SECRET_FD; ls /proc/self/fd"]);
            command
        })
        .end();
        assert_eq!(ended.code, Some(0), "{}", ended.err);
        ended.out
    };
    // What this test's process was itself given, ls gets in any case.
    let plain: BTreeSet<String> = list(Command::new("env")).lines().skip(1).map(str::to_owned).collect();
    let mut command = Command::new(FULMEN);
    command.args(["run", "-n", "1", "--no-labels", "--"]);
    let ranked = list(command);
    let (first, rest) = ranked.split_once('\n').unwrap();
    let secret = first.strip_prefix("fd ").unwrap();
    let more: Vec<&str> = rest.lines().filter(|fd| !plain.contains(*fd) && *fd != secret).collect();
    assert!(more.is_empty(), "{more:?} beyond {plain:?} and {secret}");
}

#[test]
fn arguments_arrive_as_they_were_given() {
    let args = ["run", "-n", "1", "--no-labels", "printf", "%s|", "a b", "", "--timeout", "-n", "--", "*"];
    let ended = crate::support::fulmen(&args).end();
    assert_eq!((ended.code, ended.out.as_str()), (Some(0), "a b||--timeout|-n|--|*|"));
}

#[test]
fn a_name_is_looked_up_in_path() {
    let ended = crate::support::fulmen(&["run", "-n", "1", "sh", "-c", "echo $0"]).end();
    assert_eq!((ended.code, ended.out.as_str()), (Some(0), "[0] sh\n"));
}
