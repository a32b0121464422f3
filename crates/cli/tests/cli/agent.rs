//! The agent and its processes: `fulmen up`, `spawn`, `ps`, `attach`, `kill` and `down`.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::support::{Ended, FULMEN, Running, fulmen, start_with_stdin, state, wait_until};

/// An agent in the foreground, so that all that descends from it is found.
pub struct Agent {
    pub place: TempDir,
    pub state: PathBuf,
    pub keeper: Running,
}

impl Agent {
    pub fn up() -> Agent {
        Agent::up_in(tempfile::tempdir().expect("a directory"))
    }

    fn up_in(place: TempDir) -> Agent {
        Agent::up_with(place, &[])
    }

    /// One that has these variables.
    pub fn up_with(place: TempDir, variables: &[(&str, &str)]) -> Agent {
        let state = place.path().join("state");
        let mut command = Command::new(FULMEN);
        command.args(["up", "--foreground", "--name", "here", "--state", state.to_str().unwrap()]);
        command.envs(variables.iter().copied());
        let keeper = start_with_stdin(&mut command, Stdio::null());
        let agent = Agent { place, state, keeper };
        wait_until("the agent to answer", || agent.ask("GET", "/v1/status", "").0 == 200);
        agent
    }

    pub fn start(&self, command: &str, args: &[&str]) -> Running {
        fulmen(&[&[command, "--state", self.state.to_str().unwrap()], args].concat())
    }

    pub fn run(&self, command: &str, args: &[&str]) -> Ended {
        self.start(command, args).end()
    }

    pub fn spawn(&self, options: &[&str], script: &str) -> Running {
        self.start("spawn", &[options, &["--", "/bin/sh", "-c", script]].concat())
    }

    /// A request to its socket: the status and the body of the answer.
    pub fn ask(&self, method: &str, path: &str, body: &str) -> (u16, String) {
        ask(&self.state, method, path, body).unwrap_or_default()
    }

    pub fn processes(&self) -> Vec<Value> {
        serde_json::from_str(&self.ask("GET", "/v1/processes", "").1).expect("JSON")
    }

    pub fn audit(&self) -> Vec<Value> {
        let text = fs::read_to_string(self.state.join("audit.log")).expect("an audit log");
        text.lines().map(|line| serde_json::from_str(line).expect("a line of JSON")).collect()
    }

    /// Its processes, without the agent and its keeper.
    pub fn children(&self) -> Vec<(Pid, String)> {
        let mut found = self.keeper.processes();
        found.retain(|(_, line)| !line.contains("--state"));
        found
    }

    pub fn pid(&self) -> Pid {
        let status: Value = serde_json::from_str(&self.ask("GET", "/v1/status", "").1).expect("JSON");
        Pid::from_raw(status["pid"].as_i64().unwrap() as i32).unwrap()
    }

    /// Ends it; nothing may be left but its logs and who it is.
    pub fn down(mut self) -> TempDir {
        let ended = self.run("down", &[]);
        assert_eq!((ended.code, ended.err.as_str()), (Some(0), ""));
        assert_eq!(self.keeper.wait_exit().code(), Some(0));
        assert_eq!(self.keeper.processes(), []);
        let mut left: Vec<_> = fs::read_dir(&self.state).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        left.retain(|name| !["audit.log", "next", "node.json", "registry.redb"].map(Into::into).contains(name));
        assert!(left.is_empty(), "{left:?}");
        self.place
    }
}

fn ask(state: &Path, method: &str, path: &str, body: &str) -> std::io::Result<(u16, String)> {
    let mut stream = UnixStream::connect(state.join("agent.sock"))?;
    let len = body.len();
    // At once: an agent that answers before it has the body closes a connection on which something comes, which resets it.
    let request = format!(
        "{method} {path} HTTP/1.1\r\nHost: agent\r\nConnection: close\r\nContent-Type: application/json\r\nContent-Length: {len}\r\n\r\n{body}"
    );
    stream.write_all(request.as_bytes())?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let status = answer.get(9..12).and_then(|status| status.parse().ok()).unwrap_or(0);
    let body = answer.split_once("\r\n\r\n").map_or("", |(_, body)| body);
    Ok((status, body.to_owned()))
}

#[test]
fn output_and_code_come_back() {
    let agent = Agent::up();
    let ended = agent.spawn(&[], "echo out; echo err >&2; exit 7").end();
    assert_eq!((ended.code, ended.out.as_str(), ended.err.as_str()), (Some(7), "out\n", "err\n"));
    assert_eq!(agent.spawn(&[], "kill -9 $$").end().code, Some(128 + 9));
    let ended = agent.spawn(&["--env", "WORD=a b", "--cwd", "/"], "echo \"$WORD\"; pwd; cat").end();
    assert_eq!((ended.code, ended.out.as_str()), (Some(0), "a b\n/\n"));
    // Bytes that are no text, and more of them than anything holds.
    let ended = agent.spawn(&[], r"printf '\377\000'; head -c 5000000 /dev/zero").end();
    assert_eq!((ended.stdout.len(), &ended.stdout[..3]), (5_000_002, &b"\xff\0\0"[..]));
    agent.down();
}

#[test]
fn standard_input_goes_to_the_program() {
    let agent = Agent::up();
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("input");
    let bytes: Vec<u8> = (0..3_000_000_u32).map(|at| (at % 251) as u8).collect();
    fs::write(&path, &bytes).unwrap();
    let mut command = Command::new(FULMEN);
    command.args(["spawn", "--stdin", "--state", agent.state.to_str().unwrap(), "--", "cat"]);
    let ended = start_with_stdin(&mut command, Stdio::from(fs::File::open(path).unwrap())).end();
    assert_eq!(ended.code, Some(0));
    assert!(ended.stdout == bytes, "what came is something else");
    // Of one that does not ask for it, it is empty.
    assert_eq!(agent.spawn(&[], "cat | wc -c").end().out.trim(), "0");
    agent.down();
}

#[test]
fn time_is_limited_and_grace_too() {
    let agent = Agent::up();
    let ended = agent.spawn(&["--timeout", "0.1"], "sleep 1000").end();
    assert_eq!(
        (ended.code, ended.messages()),
        (Some(143), vec!["fulmen: the agent ended the program: its time was over"])
    );
    let stubborn = "trap '' TERM; echo ready; while :; do sleep 0.02; done";
    // The shell needs some time to set its trap.
    let ended = agent.spawn(&["--timeout", "3", "--grace", "0.2"], stubborn).end();
    assert_eq!((ended.code, ended.out.as_str()), (Some(137), "ready\n"));
    let audit = agent.audit();
    let signals = |id: u64| -> Vec<i64> {
        let of = audit.iter().filter(|note| note["event"] == "signalled" && note["id"] == id);
        of.map(|note| note["signal"].as_i64().unwrap()).collect()
    };
    let last = audit.iter().rfind(|note| note["event"] == "ended").expect("a note");
    assert_eq!(signals(last["id"].as_u64().unwrap()), [15, 9]);
    agent.down();
}

#[test]
fn a_program_ends_with_its_caller() {
    let agent = Agent::up();
    let mut caller = agent.spawn(&[], "sleep 1000 & echo ready; sleep 1001");
    caller.wait_for("ready", 1);
    caller.send(Signal::KILL);
    caller.wait_exit();
    wait_until("the program to end", || agent.children().is_empty());
    wait_until("its outcome", || agent.processes()[0]["outcome"]["because"] == "caller-gone");
    // As does one whose output nobody reads.
    let mut command = Command::new("/bin/sh");
    let script = r#""$0" spawn --state "$1" -- sh -c 'while :; do echo line; done' | head -n 1"#;
    command.args(["-c", script, FULMEN, agent.state.to_str().unwrap()]);
    let ended = start_with_stdin(&mut command, Stdio::null()).end();
    assert_eq!(ended.out, "line\n");
    wait_until("the program to end", || agent.children().is_empty());
    agent.down();
}

#[test]
fn a_caller_that_does_not_read_holds_its_program_up_but_not_the_agent() {
    let agent = Agent::up();
    let go = agent.place.path().join("go");
    let go = go.display();
    // Some still have something to write, and some have ended, but not all of their output has gone.
    let callers = [3_000_000, 1_200_000, 1_000_000, 800_000, 600_000].map(|bytes| {
        let caller = agent
            .spawn(&[], &format!("echo ready; while [ ! -e {go} ]; do sleep 0.02; done; head -c {bytes} /dev/zero"));
        caller.wait_for("ready", 1);
        caller.send(Signal::STOP);
        wait_until("it to be stopped", || state(caller.pid()) == Some('T'));
        caller
    });
    fs::write(agent.place.path().join("go"), "").unwrap();
    let over = || agent.processes().iter().filter(|process| process.get("outcome").is_some()).count();
    wait_until("some to be through", || over() > 0);
    assert!(over() < callers.len());
    agent.down();
}

#[test]
fn signals_go_to_the_program() {
    let agent = Agent::up();
    let script = "trap 'echo one' USR1; trap 'echo bye; exit 3' TERM; echo ready; while :; do sleep 0.02; done";
    let caller = agent.spawn(&[], script);
    caller.wait_for("ready", 1);
    caller.send(Signal::USR1);
    caller.wait_for("one", 1);
    caller.send(Signal::TERM);
    let ended = caller.end();
    assert_eq!((ended.code, ended.out.as_str()), (Some(3), "ready\none\nbye\n"));
    agent.down();
}

#[test]
fn what_is_detached_goes_on_and_is_found_again() {
    let agent = Agent::up();
    let script = "echo begun; while [ ! -e $GO ]; do sleep 0.02; done; echo gone; exit 5";
    let go = agent.place.path().join("go");
    let variable = format!("GO={}", go.display());
    let ended = agent.spawn(&["--detach", "--keep-output", "--env", &variable], script).end();
    let id = ended.out.trim().to_owned();
    assert_eq!(ended.code, Some(0));
    let listed = agent.run("ps", &["--running"]).out;
    assert!(listed.trim_start().starts_with(&format!("{id} ")) && listed.contains("begun"), "{listed}");
    let follower = agent.start("attach", &[&id]);
    follower.wait_for("begun", 1);
    fs::write(&go, "").unwrap();
    let ended = follower.end();
    assert_eq!((ended.code, ended.out.as_str()), (Some(5), "begun\ngone\n"));
    // Also when it is over.
    let ended = agent.run("attach", &[&id]);
    assert_eq!((ended.code, ended.out.as_str()), (Some(5), "begun\ngone\n"));
    let kept = agent.processes()[0]["kept"].as_str().unwrap().to_owned();
    assert_eq!(fs::read_to_string(kept + ".stdout").unwrap(), "begun\ngone\n");
    assert_eq!(agent.run("ps", &["--running"]).out, "");
    fs::remove_file(&go).unwrap();

    let id = agent.spawn(&["--detach"], "sleep 1000").end().out.trim().to_owned();
    assert_eq!(agent.run("kill", &[&id, "--signal", "INT"]).code, Some(0));
    assert_eq!(agent.run("attach", &[&id]).code, Some(128 + 2));
    let ended = agent.run("kill", &[&id]);
    assert_eq!((ended.code, ended.err.contains("has ended")), (Some(1), true), "{}", ended.err);
    agent.down();
}

#[test]
fn what_a_program_leaves_behind_ends() {
    let agent = Agent::up();
    let ended = agent.spawn(&[], "sleep 1000 & echo done").end();
    assert_eq!((ended.code, ended.out.as_str()), (Some(0), "done\n"));
    assert_eq!(agent.children(), []);
    // What has left its group ends with the agent.
    agent.spawn(&[], "setsid sleep 1000 >/dev/null 2>&1 & echo done").end();
    agent.spawn(&["--detach"], "sleep 1001").end();
    wait_until("both to be there", || agent.children().len() >= 2);
    agent.down();
}

#[test]
fn whatever_ends_the_agent_ends_its_processes() {
    let mut place = tempfile::tempdir().unwrap();
    let mut last = 0;
    for kill_keeper in [false, true] {
        let mut agent = Agent::up_in(place);
        let id: u64 = agent.spawn(&["--detach"], "sleep 1000").end().out.trim().parse().unwrap();
        assert!(id > last, "{id} was used before");
        last = id;
        let caller = agent.spawn(&[], "setsid sleep 1001 & echo ready; sleep 1002");
        caller.wait_for("ready", 1);
        let victim = if kill_keeper { agent.keeper.pid() } else { agent.pid() };
        kill_process(victim, Signal::KILL).unwrap();
        let ended = caller.end();
        assert!(ended.code == Some(1) || ended.code == Some(143), "{:?} {}", ended.code, ended.err);
        agent.keeper.wait_exit();
        agent.keeper.wait_gone();
        place = agent.place;
    }
    // Its state is as good as before.
    Agent::up_in(place).down();
}

#[test]
fn every_process_has_one_outcome() {
    let agent = Agent::up();
    let callers: Vec<Running> = (0..24)
        .map(|number| match number % 4 {
            0 => agent.spawn(&[], "exit 3"),
            1 => agent.spawn(&["--timeout", "0.05"], "sleep 1000"),
            2 => agent.spawn(&["--detach"], "sleep 0.1"),
            _ => agent.spawn(&[], "echo ready; sleep 1000"),
        })
        .collect();
    for caller in callers.iter().skip(3).step_by(4) {
        caller.wait_for("ready", 1);
        caller.send(Signal::KILL);
    }
    wait_until("all to end", || agent.children().is_empty() && agent.processes().len() == 24);
    wait_until("all outcomes", || agent.processes().iter().all(|process| process.get("outcome").is_some()));
    drop(callers);
    let mut ends: HashMap<u64, u32> = HashMap::new();
    for note in agent.audit() {
        let change = match note["event"].as_str().unwrap() {
            "spawned" => 100,
            "ended" => 1,
            _ => continue,
        };
        *ends.entry(note["id"].as_u64().unwrap()).or_default() += change;
    }
    assert_eq!((ends.len(), ends.values().all(|marks| *marks == 101)), (24, true), "{ends:?}");
    let (_, metrics) = agent.ask("GET", "/metrics", "");
    assert!(
        metrics.contains("fulmen_processes_spawned_total 24\n") && metrics.contains("fulmen_processes_running 0\n")
    );
    agent.down();
}

#[test]
fn it_is_its_users_alone_and_keeps_secrets() {
    let agent = Agent::up();
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&agent.state), 0o700);
    for name in ["agent.sock", "audit.log", "agent.lock"] {
        assert_eq!(mode(&agent.state.join(name)), 0o600, "{name}");
    }
    agent.spawn(&["--env", "PASSWORD=hunter2"], "true").end();
    let text = fs::read_to_string(agent.state.join("audit.log")).unwrap();
    assert!(text.contains("PASSWORD") && !text.contains("hunter2"), "{text}");
    agent.down();
}

#[test]
fn what_cannot_be_done_is_said() {
    let place = tempfile::tempdir().unwrap();
    let state = place.path().to_str().unwrap();
    let check = |args: &[&str], code: i32, words: &str| {
        let ended = fulmen(&[args, &["--state", state]].concat()).end();
        assert!(ended.code == Some(code) && ended.err.contains(words), "{args:?}: {:?} {}", ended.code, ended.err);
    };
    for args in [&["status"][..], &["down"], &["ps"], &["attach", "1"], &["kill", "1"]] {
        check(args, 1, "no agent is up");
    }
    check(&["up", "--name", "a b"], 2, "cannot be a name");
    check(&["kill", "1", "--signal", "NOPE"], 2, "no signal");
    let agent = Agent::up_in(place);
    let ended = agent.run("up", &[]);
    assert!(ended.code == Some(1) && ended.err.contains("is up already"), "{}", ended.err);
    let ended = agent.start("spawn", &["--", "no-such-program"]).end();
    assert!(ended.code == Some(1) && ended.err.contains("no-such-program was not started"), "{}", ended.err);
    let ended = agent.start("spawn", &["--env", "FULMEN_NO_SUCH", "--", "true"]).end();
    assert!(ended.code == Some(2) && ended.err.contains("FULMEN_NO_SUCH"), "{}", ended.err);
    assert_eq!(agent.run("attach", &["77"]).code, Some(1));
    agent.down();
}

#[test]
fn it_goes_to_the_background_and_comes_back() {
    let place = tempfile::tempdir().unwrap();
    let state = place.path().to_str().unwrap();
    let mut starter = fulmen(&["up", "--name", "back", "--state", state]);
    assert_eq!(starter.wait_exit().code(), Some(0), "{}", starter.wait_for_message(""));
    assert!(starter.wait_for("is up", 1).starts_with("agent back is up (pid "));
    let status: Value = serde_json::from_str(&fulmen(&["status", "--json", "--state", state]).end().out).unwrap();
    assert_eq!((&status["name"], &status["running"]), (&json!("back"), &json!(0)));
    // At once after its end, the next one is up.
    let mut before = Vec::new();
    for _ in 0..5 {
        let ended = fulmen(&["down", "--state", state]).end();
        assert_eq!((ended.code, ended.out.as_str()), (Some(0), "agent back has ended\n"));
        before.push(starter);
        starter = fulmen(&["up", "--name", "back", "--state", state]);
        assert_eq!(starter.wait_exit().code(), Some(0), "{}", starter.wait_for_message(""));
        assert_eq!(starter.wait_for("is up", 1).lines().count(), 1);
    }
    assert_eq!(fulmen(&["down", "--state", state]).end().code, Some(0));
    before.iter().chain([&starter]).for_each(Running::wait_gone);
}

#[test]
fn bad_requests_are_refused_and_lose_nothing() {
    let agent = Agent::up();
    let refused = |method: &str, path: &str, body: &str, status: u16| {
        let (found, text) = agent.ask(method, path, body);
        let words: Value = serde_json::from_str(&text).unwrap_or_default();
        assert!(found == status && words["error"].is_string(), "{method} {path} {body}: {found} {text}");
    };
    refused("GET", "/", "", 404);
    refused("GET", "/v1/processes/many", "", 404);
    refused("GET", "/v1/processes/18446744073709551616/events", "", 404);
    for body in ["", "{", "[]", r#"{"command":"true"}"#, r#"{"command":["true"],"user":"root"}"#] {
        refused("POST", "/v1/processes", body, 400);
    }
    for body in [
        json!({"command": []}),
        json!({"command": [""]}),
        json!({"command": ["true", "a\0b"]}),
        json!({"command": ["true"], "env": {"A=B": ""}}),
        json!({"command": ["true"], "env": {"A": "\0"}}),
        json!({"command": ["true"], "cwd": "here"}),
    ] {
        refused("POST", "/v1/processes", &body.to_string(), 400);
    }
    refused("POST", "/v1/processes", r#"{"command":["true"],"cwd":"/no/such/place"}"#, 422);
    // What is no HTTP at all.
    for bytes in [&b"\0\xff\x16\x03\x01"[..], b"GET", b"GET / HTTP/1.1\r\nContent-Length: -1\r\n\r\n", &[b'a'; 100_000]]
    {
        let mut stream = UnixStream::connect(agent.state.join("agent.sock")).unwrap();
        let _ = stream.write_all(bytes);
        let _ = stream.shutdown(std::net::Shutdown::Write);
        let _ = stream.read_to_end(&mut Vec::new());
    }
    assert_eq!(agent.spawn(&[], "exit 0").end().code, Some(0));
    let (_, text) = agent.ask("GET", "/v1/status", "");
    assert_eq!(serde_json::from_str::<Value>(&text).unwrap()["spawned"], 1);
    agent.down();
}

/// The description says of every route what it is, and of every answer what it holds.
#[test]
fn the_description_is_true() {
    let agent = Agent::up();
    agent.spawn(&["--keep-output"], "echo out; echo err >&2; kill -9 $$").end();
    let id = agent.processes()[0]["id"].as_u64().unwrap();
    let described: Value = serde_json::from_str(&agent.ask("GET", "/openapi.json", "").1).unwrap();
    let schemas = &described["components"]["schemas"];
    let mut seen: BTreeMap<String, usize> = BTreeMap::new();
    for (path, methods) in described["paths"].as_object().unwrap() {
        for (method, about) in methods.as_object().unwrap() {
            *seen.entry(path.clone()).or_default() += 1;
            if ["/v1/down", "/v1/leave"].contains(&&**path) {
                continue;
            }
            let body = match path.rsplit('/').next().unwrap() {
                "processes" if method == "post" => r#"{"command":["true"],"detach":true}"#,
                "signal" => r#"{"signal":15}"#,
                "tokens" => r#"{"role":"guest","uses":1,"valid_ms":1000}"#,
                "roles" => r#"{"name":"builder","spawn":{"only":["make"]}}"#,
                "{rest}" if method == "post" => r#"{"command":["true"]}"#,
                _ => "",
            };
            let node = if path.ends_with("{node}") { "nobody" } else { "@gateway" };
            let asked = path.replace("{id}", &id.to_string()).replace("{node}", node).replace("{rest}", "processes");
            let (status, text) = agent.ask(&method.to_uppercase(), &asked, body);
            let answer = &about["responses"][status.to_string()];
            assert!(answer.is_object(), "{method} {path}: {status} is not described: {text}");
            let schema = &answer["content"]["application/json"]["schema"];
            let values: Vec<Value> = match &schema["type"] {
                Value::String(kind) if kind == "array" => serde_json::from_str(&text).unwrap(),
                _ if schema.is_object() => vec![serde_json::from_str(&text).unwrap()],
                _ => Vec::new(),
            };
            let name = schema["$ref"].as_str().or_else(|| schema["items"]["$ref"].as_str()).unwrap_or_default();
            for value in values {
                fits(schemas, name, &value);
            }
        }
    }
    for (path, count) in [("/v1/processes", 2), ("/v1/processes/{id}/stdin", 1), ("/v1/down", 1)] {
        assert_eq!(seen.get(path), Some(&count), "{path}");
    }
    let source = include_str!("../../../cluster/src/agent/server.rs");
    let routes = source.split(".route(\"").skip(1).filter_map(|rest| rest.split('"').next());
    // What nodes ask each other is theirs alone.
    let routes = routes.filter(|path| !["/v1/registry/{kind}", "/v1/join", "/v1/trunks/{gid}"].contains(path));
    assert_eq!(
        seen.into_keys().collect::<std::collections::BTreeSet<_>>(),
        routes.map(|path| path.replace('*', "")).collect()
    );
    agent.down();
}

/// A value has all that its schema requires, and nothing that it does not name.
fn fits(schemas: &Value, reference: &str, value: &Value) {
    let Some(name) = reference.rsplit('/').next().filter(|name| !name.is_empty()) else { return };
    let schema = &schemas[name];
    let required = schema["required"].as_array().unwrap().iter().map(|key| key.as_str().unwrap());
    for key in required {
        assert!(value.get(key).is_some(), "{name} has no {key}: {value}");
    }
    for (key, inner) in value.as_object().unwrap() {
        let about = &schema["properties"][key];
        assert!(about.is_object(), "{name} says {key}, which is not described: {value}");
        fits(schemas, about["$ref"].as_str().unwrap_or_default(), inner);
    }
}
