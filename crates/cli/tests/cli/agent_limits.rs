//! Limits of memory and processors: `fulmen spawn --limit`, by cgroups and by looking.

use std::fs;
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use crate::agent::Agent;
use crate::support::{FULMEN, start_with_stdin, wait_until};

/// An agent that uses no cgroups.
fn looking() -> Agent {
    Agent::up_with(tempfile::tempdir().unwrap(), &[("FULMEN_CGROUPS", "off")])
}

/// An agent that uses cgroups, where they can be used.
fn grouping() -> Option<Agent> {
    let agent = Agent::up();
    let ended = agent.spawn(&["--limit", "cpu=1,mem=1G"], "exit 0").end();
    if ended.code == Some(0) {
        return Some(agent);
    }
    assert!(ended.err.contains("its processors cannot be limited here"), "{}", ended.err);
    eprintln!("SKIPPED: limits by cgroups, because the agent cannot use them here: {}", ended.err.trim());
    agent.down();
    None
}

fn each_way(check: impl Fn(&Agent)) {
    let agents = [Some(looking()), grouping()];
    for agent in agents.into_iter().flatten() {
        check(&agent);
        agent.down();
    }
}

/// A script that holds so many MiB: nobody reads what fills a buffer.
fn hold(mib: u32) -> String {
    format!("dd if=/dev/zero bs={mib}M count=1 2>/dev/null | sleep 1000")
}

fn last(agent: &Agent, event: &str) -> Value {
    agent.audit().into_iter().rfind(|note| note["event"] == event).expect("a note")
}

#[test]
fn what_uses_too_much_memory_is_killed() {
    each_way(|agent| {
        let ended = agent.spawn(&["--limit", "mem=100M"], &format!("echo begun; {}", hold(300))).end();
        assert_eq!((ended.code, ended.out.as_str()), (Some(253), "begun\n"), "{}", ended.err);
        assert_eq!(ended.messages(), ["fulmen: the agent ended the program: it used more memory than its limit"]);
        assert_eq!(agent.children(), []);
        let note = last(agent, "ended");
        assert_eq!((&note["because"], &note["signal"], &note["code"]), (&json!("memory"), &json!(9), &Value::Null));
        assert_eq!(last(agent, "spawned")["limit"], json!({"memory_bytes": 100 << 20}));
        // Within its limit, and in the end by itself.
        let ended = agent.spawn(&["--limit", "mem=100M"], "dd if=/dev/zero of=/dev/null bs=30M count=9; exit 3").end();
        assert_eq!(ended.code, Some(3), "{}", ended.err);
        assert_eq!(last(agent, "ended").get("because"), None);
    });
}

#[test]
fn memory_is_that_of_all_together() {
    each_way(|agent| {
        let many = format!("for each in 1 2 3 4 5 6 7 8; do {} & done; wait", hold(30));
        let ended = agent.spawn(&["--limit", "mem=150M"], &many).end();
        assert_eq!(ended.code, Some(253), "{}", ended.err);
        assert_eq!(agent.children(), []);
        // Also of what has left the group.
        let apart = format!("setsid sh -c '{}' & setsid sleep 1000 & wait", hold(300));
        let ended = agent.spawn(&["--limit", "mem=150M"], &apart).end();
        assert_eq!(ended.code, Some(253), "{}", ended.err);
        assert_eq!(agent.children(), []);
    });
}

#[test]
fn memory_that_is_shared_counts_once() {
    each_way(|agent| {
        // Shells that have their variables from the first, and write to none of them.
        let script = "word=$(head -c 20000000 /dev/zero | tr '\\0' x); \
                      for each in 1 2 3 4 5 6 7 8 9 10; do (sleep 0.5; :) & done; wait; exit 3";
        let ended = agent.spawn(&["--limit", "mem=200M"], script).end();
        assert_eq!(ended.code, Some(3), "{}", ended.err);
    });
}

#[test]
fn what_has_left_a_limited_group_ends_with_it() {
    each_way(|agent| {
        // So long that what has left is seen beside its parent, also where seconds pass between two looks.
        let script = "setsid sleep 1000 >/dev/null 2>&1 & sleep 5; echo done";
        let ended = agent.spawn(&["--limit", "mem=100M"], script).end();
        assert_eq!((ended.code, ended.out.as_str()), (Some(0), "done\n"));
        assert_eq!(agent.children(), []);
    });
}

#[test]
fn only_a_part_of_the_processors_is_had() {
    let Some(agent) = grouping() else { return };
    let busy = "(while :; do :; done) & (while :; do :; done) & sleep 3; kill %1 %2; wait; times";
    let ended = agent.spawn(&["--limit", "cpu=0.2"], &format!("set -m; {busy}")).end();
    // The second line has what its children used: the user's part and the system's, such as 0m0.40s.
    let line = ended.out.lines().nth(1).expect("what its children used");
    let seconds = |word: &str| -> f64 {
        let (minutes, seconds) = word.trim_end_matches('s').split_once('m').expect("minutes");
        60.0 * minutes.parse::<f64>().unwrap() + seconds.parse::<f64>().unwrap()
    };
    let used: f64 = line.split_whitespace().map(seconds).sum();
    assert!(used < 1.2, "0.2 processors were to be had for 3 s: {}", ended.out);
    agent.down();
}

#[test]
fn a_limited_program_is_begun_as_any_other() {
    each_way(|agent| {
        let options = ["--limit", "mem=500M", "--env", "WORD=a b", "--cwd", "/"];
        let ended = agent.spawn(&options, "echo \"$WORD\"; pwd; cat; echo err >&2; kill -TERM $$").end();
        assert_eq!(
            (ended.code, ended.out.as_str(), ended.err.as_str()),
            (Some(143), "a b\n/\n", "err\n"),
            "{}",
            ended.err
        );
        let mut command = Command::new(FULMEN);
        command.args(["spawn", "--stdin", "--limit", "mem=500M", "--state", agent.state.to_str().unwrap()]);
        let path = agent.place.path().join("input");
        fs::write(&path, "input").unwrap();
        command.args(["--", "cat"]);
        let ended = start_with_stdin(&mut command, Stdio::from(fs::File::open(path).unwrap())).end();
        assert_eq!((ended.code, ended.out.as_str()), (Some(0), "input"), "{}", ended.err);
        let ended = agent.start("spawn", &["--limit", "mem=500M", "--", "no-such-program"]).end();
        let words = "no-such-program was not started: No such file or directory";
        assert!(ended.code == Some(1) && ended.err.contains(words), "{}", ended.err);
        let ended = agent.spawn(&["--limit", "mem=500M", "--timeout", "0.1"], "sleep 1000").end();
        assert_eq!(ended.code, Some(143), "{}", ended.err);
        wait_until("all to end", || agent.children().is_empty());
    });
}

#[test]
fn what_cannot_be_limited_is_refused() {
    let agent = looking();
    for limit in ["cpu=1", "cpu=0.5,mem=1G"] {
        let ended = agent.spawn(&["--limit", limit], "echo begun").end();
        let words = "its processors cannot be limited here: the agent was told to use no cgroups (FULMEN_CGROUPS=off)";
        assert!(ended.code == Some(1) && ended.err.contains(words), "{}", ended.err);
        assert_eq!((ended.out.as_str(), &last(&agent, "refused")["command"][2]), ("", &json!("echo begun")));
    }
    for limit in ["", "mem=0", "mem=lots", "cpu=0", "disk=1G", "mem=1G,mem=2G"] {
        let ended = agent.spawn(&["--limit", limit], "echo begun").end();
        assert!(ended.code == Some(2) && ended.err.contains("--limit"), "{limit}: {:?} {}", ended.code, ended.err);
    }
    for limit in [json!({}), json!({"memory_bytes": 0}), json!({"cpu_millis": 9}), json!({"disk_bytes": 1})] {
        let body = json!({"command": ["true"], "limit": limit});
        assert_eq!(agent.ask("POST", "/v1/processes", &body.to_string()).0, 400, "{limit}");
    }
    agent.down();
}
