//! What ranks did last: written when something fails and on request, and merged.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use fulmen::ReduceOp;
use rustix::process::{Signal, getpid, kill_process};
use serde_json::Value;

use crate::support::{Ended, FULMEN, LIMIT, Running, fulmen, start, wait_until};

/// Says what a rank that a test starts is to do.
pub const ROLE: &str = "TRACE_TEST_ROLE";

/// The rank that does something else than all others.
const ODD: u32 = 2;

/// No test of its own: what the ranks of the tests below run.
#[test]
fn a_rank() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let group = fulmen::init().expect("a group");
    let mut data = [1.0f32; 2];
    for _ in 0..4 {
        group.all_reduce(&mut data, ReduceOp::Sum).expect("all ranks are there");
    }
    println!("ready");
    let odd = group.rank() == ODD.min(group.size() - 1);
    match role.as_str() {
        "late" if odd => loop {
            std::thread::sleep(LIMIT);
        },
        "late" => {
            group.with_deadline(Duration::from_secs(1)).all_reduce(&mut data, ReduceOp::Sum).expect_err("one is late");
            std::process::exit(3);
        }
        "spin" if odd => loop {
            std::hint::spin_loop();
        },
        "spin" | "die" if !odd => {
            let _ = group.barrier();
            std::process::exit(4);
        }
        "die" => kill_process(getpid(), Signal::KILL).expect("a signal to oneself"),
        "split" => {
            let half = group.split(Some(group.rank() % 2), 0).expect("all split").expect("all have a colour");
            half.barrier().expect("both are there");
            match group.rank() {
                0 => half.with_deadline(Duration::from_secs(1)).barrier().expect_err("rank 2 does not come"),
                ODD => loop {
                    std::thread::sleep(LIMIT);
                },
                _ => {
                    (0..3).for_each(|_| half.barrier().expect("both are there"));
                    return;
                }
            };
            std::process::exit(3);
        }
        "recover" => {
            // The group is of no use any more, but the program ends well.
            let longer = vec![0u8; 8 + group.rank() as usize];
            group.all_reduce(&mut longer.clone()[..], ReduceOp::Sum).expect_err("all have other lengths");
            std::process::exit(0);
        }
        _ => std::process::exit(0),
    }
}

fn run(role: &str, ranks: &str, more: &[&str], runtime: &Path) -> Running {
    let mut command = Command::new(FULMEN);
    command.args(["run", "-n", ranks]).args(more).arg("--").arg(std::env::current_exe().unwrap());
    command.args(["--exact", "trace::a_rank", "--nocapture", "--test-threads=1"]);
    command.env(ROLE, role).env("XDG_RUNTIME_DIR", runtime);
    start(command)
}

fn trace(args: &[&str]) -> Ended {
    fulmen(&[&["trace"], args].concat()).end()
}

fn json(ended: &Ended) -> Value {
    serde_json::from_str(&ended.out).unwrap_or_else(|error| panic!("{error}: {}{}", ended.out, ended.err))
}

fn ranks(list: &Value) -> Vec<u64> {
    list.as_array().unwrap().iter().map(|rank| rank.as_u64().unwrap()).collect()
}

/// The directory in the message of a run that failed.
pub fn told(ended: &Ended) -> String {
    let line = ended.messages().into_iter().find(|line| line.contains("fulmen trace ")).unwrap_or_default().to_owned();
    let (_, directory) = line.split_once("fulmen trace ").unwrap_or_else(|| panic!("no directory in {}", ended.err));
    directory.to_owned()
}

#[test]
fn a_rank_that_never_enters_an_operation_is_named_after_the_deadline() {
    let runtime = tempfile::tempdir().unwrap();
    let ended = run("late", "4", &[], runtime.path()).end();
    assert_eq!(ended.code, Some(3), "{}", ended.err);
    let directory = told(&ended);
    assert!(Path::new(&directory).starts_with(runtime.path()), "{directory}");
    assert!(ended.err.contains("the last operations of 4 ranks are in "), "{}", ended.err);

    let shown = trace(&[&directory]);
    assert_eq!((shown.code, shown.err.as_str()), (Some(0), ""));
    let sentence = "rank 2 never entered all_reduce 5 of group 1: the last call there, all_reduce 4, ended ";
    assert!(shown.out.lines().any(|line| line.starts_with(sentence)), "{}", shown.out);
    assert!(shown.out.lines().any(|line| line.starts_with("first failure: rank ")), "{}", shown.out);

    let found = json(&trace(&["--json", "--last", "3", &directory]));
    let group = &found["groups"][0];
    assert_eq!((&group["call"], &group["op"]), (&5.into(), &"all_reduce".into()));
    assert_eq!((ranks(&group["behind"]), ranks(&found["no_record"])), (vec![2], vec![]));
    let mut there = [ranks(&group["waiting"]), ranks(&group["failed"])].concat();
    there.sort_unstable();
    assert_eq!(there, [0, 1, 3]);
    assert_eq!(found["ranks"][2]["last"].as_array().unwrap().len(), 3);
    for rank in there {
        // The clock was looked at when the wait began to last.
        let last = found["ranks"][rank as usize]["last"].as_array().unwrap();
        let call = last.iter().find(|call| call["sequence"] == 5).unwrap();
        assert_eq!(call["exact"], true, "{call}");
    }

    let timeline = runtime.path().join("timeline.json");
    assert_eq!(trace(&["--chrome", timeline.to_str().unwrap(), &directory]).code, Some(0));
    let timeline: Value = serde_json::from_slice(&fs::read(timeline).unwrap()).unwrap();
    let events = timeline["traceEvents"].as_array().unwrap();
    for rank in 0..4 {
        let calls = events.iter().filter(|event| event["name"] == "all_reduce" && event["pid"] == rank);
        assert_eq!(calls.count(), if rank == 2 { 4 } else { 5 });
    }
}

#[test]
fn a_rank_is_missed_in_its_own_groups_alone() {
    let runtime = tempfile::tempdir().unwrap();
    let ended = run("split", "4", &[], runtime.path()).end();
    assert_eq!(ended.code, Some(3), "{}", ended.err);
    let directory = told(&ended);
    let found = json(&trace(&["--json", &directory]));
    let groups: Vec<_> = found["groups"].as_array().unwrap().iter().filter(|group| group["op"] == "barrier").collect();
    let stuck = groups.iter().find(|group| ranks(&group["behind"]) == [2]).unwrap_or_else(|| panic!("{found}"));
    assert_eq!([ranks(&stuck["waiting"]), ranks(&stuck["failed"])].concat(), [0], "{found}");
    assert!(ranks(&stuck["done"]).is_empty(), "{found}");
    // The other half is in none of its calls.
    let shown = trace(&[&directory]).out;
    let sentence = |line: &&str| line.starts_with("rank 2 never entered barrier ") && line.contains("(ranks 0 and 2)");
    assert_eq!(shown.lines().filter(sentence).count(), 1, "{shown}");
    assert!(!shown.contains("rank 1 never") && !shown.contains("rank 3 never"), "{shown}");
}

#[test]
fn a_rank_that_spins_answers_too_and_the_run_goes_on() {
    let runtime = tempfile::tempdir().unwrap();
    let records = runtime.path().join("records");
    let run = run("spin", "2", &["--trace", records.to_str().unwrap()], runtime.path());
    let pid = run.pid().as_raw_nonzero().to_string();
    wait_until("one rank to wait for the other", || {
        // Before the ranks listen, there is nothing to ask.
        let ended = trace(&["--pid", &pid, "--json"]);
        if ended.code != Some(0) {
            assert!(ended.err.contains("no ranks that record") || ended.err.contains("no record in"), "{}", ended.err);
            return false;
        }
        let group = json(&ended)["groups"][0].clone();
        group["op"] == "barrier" && ranks(&group["waiting"]) == [0] && ranks(&group["behind"]) == [1]
    });
    assert!(!run.has_ended());
    run.send(Signal::TERM);
    let ended = run.end();
    // Nobody failed, and what was asked for stays.
    assert!(!ended.err.contains("last operations"), "{}", ended.err);
    assert_eq!(fs::read_dir(&records).unwrap().count(), 2);
}

#[test]
fn a_rank_that_was_killed_is_named_as_without_a_record() {
    let runtime = tempfile::tempdir().unwrap();
    let ended = run("die", "3", &[], runtime.path()).end();
    assert_eq!(ended.code, Some(137), "{}", ended.err);
    let shown = trace(&[&told(&ended)]);
    assert!(shown.out.contains("rank 2 has no record: its process ended"), "{}", shown.out);
    assert_eq!(ranks(&json(&trace(&["--json", &told(&ended)]))["no_record"]), [2]);
}

#[test]
fn a_run_that_ends_well_leaves_nothing() {
    let runtime = tempfile::tempdir().unwrap();
    for role in ["nothing", "recover"] {
        let ended = run(role, "2", &[], runtime.path()).end();
        assert_eq!((ended.code, ended.messages()), (Some(0), vec![]), "{role}: {}", ended.err);
        assert_eq!(fs::read_dir(runtime.path()).unwrap().count(), 0, "{role}");
    }
}

#[test]
fn without_the_variable_nothing_is_written_and_the_signal_does_what_it_does() {
    let runtime = tempfile::tempdir().unwrap();
    let mut command = Command::new("env");
    command.args(["-u", "FULMEN_TRACE_DIR"]).arg(std::env::current_exe().unwrap());
    command.args(["--exact", "trace::a_rank", "--nocapture", "--test-threads=1"]);
    command.env(ROLE, "spin").env("XDG_RUNTIME_DIR", runtime.path()).current_dir(runtime.path());
    let alone = start(command);
    alone.wait_for("ready", 1);
    alone.send(Signal::USR1);
    assert_eq!(alone.end().signal, Some(Signal::USR1.as_raw()));
    assert_eq!(fs::read_dir(runtime.path()).unwrap().count(), 0);
}

#[test]
fn what_is_no_record_is_named_and_the_rest_is_used() {
    let runtime = tempfile::tempdir().unwrap();
    let nothing = trace(&[runtime.path().to_str().unwrap()]);
    assert_eq!(nothing.code, Some(1));
    assert!(nothing.err.contains("no record in ") && nothing.err.contains("SIGUSR1"), "{}", nothing.err);
    let absent = trace(&["/no/such/place"]);
    assert_eq!((absent.code, absent.err.contains("/no/such/place")), (Some(1), true), "{}", absent.err);
    assert_eq!(trace(&[]).code, Some(2));
    assert_eq!(trace(&["--pid", "0"]).code, Some(2));
    let mut sleeper = Command::new("sleep").arg("1000").spawn().unwrap();
    let stranger = trace(&["--pid", &sleeper.id().to_string()]);
    sleeper.kill().unwrap();
    sleeper.wait().unwrap();
    assert_eq!((stranger.code, stranger.err.contains("no ranks that record")), (Some(1), true), "{}", stranger.err);

    let ended = run("late", "3", &[], runtime.path()).end();
    let directory = told(&ended);
    let files: Vec<_> = fs::read_dir(&directory).unwrap().map(|entry| entry.unwrap().path()).collect();
    let file =
        |rank: u32| files.iter().find(|path| path.to_str().unwrap().contains(&format!("/rank-{rank}-"))).unwrap();
    fs::write(Path::new(&directory).join("rank-9-foreign.jsonl"), "\u{0}\u{1}hello").unwrap();
    let whole = fs::read(file(0)).unwrap();
    fs::write(file(0), &whole[..whole.len() - 30]).unwrap();
    let text = fs::read_to_string(file(1)).unwrap();
    fs::write(file(1), text.replacen("\"phase\":\"done\"", "\"phase\":\"\u{7f}\"", 1)).unwrap();
    let shown = trace(&["--json", &directory]);
    assert_eq!(shown.code, Some(0));
    assert_eq!(ranks(&json(&shown)["groups"][0]["behind"]), [2]);
    for problem in ["rank-9-foreign.jsonl: line 1 is no header", "it was cut off", "line 3: unknown variant"] {
        assert!(shown.err.contains(problem), "{problem}: {}", shown.err);
    }
}
