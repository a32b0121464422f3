//! Programs with a terminal: `fulmen spawn --tty`, which itself has one or has none.

use std::fs::File;
use std::io::Write;
use std::os::fd::OwnedFd;
use std::process::{Command, Stdio};

use rustix::fs::{Mode, OFlags};
use rustix::process::{Signal, kill_process};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{LocalModes, Winsize, tcgetattr, tcsetwinsize};
use serde_json::{Value, json};

use crate::agent::Agent;
use crate::support::{Captured, FULMEN, Running, start_with, start_with_stdin, state, wait_until};

/// A terminal at which somebody sits.
struct Seat {
    terminal: OwnedFd,
    end: File,
    shown: Captured,
}

impl Seat {
    fn take() -> Seat {
        let end = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
        grantpt(&end).unwrap();
        unlockpt(&end).unwrap();
        let path = ptsname(&end, Vec::new()).unwrap();
        let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
        let terminal = rustix::fs::open(path, flags, Mode::empty()).unwrap();
        let (end, shown) = (File::from(end), Captured::default());
        shown.follow(end.try_clone().unwrap());
        let seat = Seat { terminal, end, shown };
        seat.resize(33, 101);
        seat
    }

    fn resize(&self, rows: u16, cols: u16) {
        let size = Winsize { ws_row: rows, ws_col: cols, ws_xpixel: 0, ws_ypixel: 0 };
        tcsetwinsize(&self.terminal, size).unwrap();
    }

    fn spawn(&self, agent: &Agent, script: &str) -> Running {
        let mut command = Command::new(FULMEN);
        command.args(["spawn", "--tty", "--state", agent.state.to_str().unwrap(), "--", "/bin/sh", "-c", script]);
        let stream = || Stdio::from(self.terminal.try_clone().unwrap());
        start_with(&mut command, stream(), stream(), stream())
    }

    fn typed(&self, bytes: &[u8]) {
        (&self.end).write_all(bytes).unwrap();
    }

    fn wait_for(&self, text: &str) -> String {
        self.shown.wait(text, |shown| shown.contains(text))
    }

    /// Everything that a program can have changed of it.
    fn modes(&self) -> String {
        let modes = tcgetattr(&self.terminal).unwrap();
        let (input, output, local) = (modes.input_modes, modes.output_modes, modes.local_modes);
        format!("{input:?} {output:?} {:?} {local:?}", modes.control_modes)
    }

    fn is_raw(&self) -> bool {
        !tcgetattr(&self.terminal)
            .unwrap()
            .local_modes
            .intersects(LocalModes::ICANON | LocalModes::ISIG | LocalModes::ECHO)
    }
}

#[test]
fn a_program_has_a_terminal_also_where_its_caller_has_none() {
    let agent = Agent::up();
    let script = "test -t 0 && test -t 1 && test -t 2 && stty size; cut -d' ' -f1,5,6,8 /proc/$$/stat; \
                  echo err >&2; exit 7";
    let ended = agent.spawn(&["--tty"], script).end();
    let lines: Vec<&str> = ended.out.split("\r\n").collect();
    assert_eq!((ended.code, ended.err.as_str(), lines[0], lines[2]), (Some(7), "", "24 80", "err"), "{}", ended.out);
    // Its number is that of its group, of its session, and of the group in the foreground of its terminal.
    let numbers: Vec<&str> = lines[1].split(' ').collect();
    assert!(numbers.len() == 4 && numbers.iter().all(|number| *number == numbers[0]), "{numbers:?}");
    assert_eq!(agent.spawn(&["--tty"], "kill -9 $$").end().code, Some(128 + 9));
    let ended = agent.start("spawn", &["--tty", "--", "no-such-program"]).end();
    assert!(ended.code == Some(1) && ended.err.contains("no-such-program was not started"), "{}", ended.err);
    // More than anything holds.
    let ended = agent.spawn(&["--tty"], "stty -opost; head -c 3000000 /dev/zero; echo done").end();
    assert_eq!((ended.code, ended.stdout.len()), (Some(0), 3_000_005));
    agent.down();
}

#[test]
fn what_comes_by_a_pipe_is_typed_to_its_end() {
    let agent = Agent::up();
    for input in ["one\ntwo\n", "one\ntwo"] {
        let path = agent.place.path().join("input");
        std::fs::write(&path, input).unwrap();
        let mut command = Command::new(FULMEN);
        let script = "stty -echo; echo ready; exec cat";
        command.args(["spawn", "--tty", "--state", agent.state.to_str().unwrap(), "--", "/bin/sh", "-c", script]);
        let ended = start_with_stdin(&mut command, Stdio::from(File::open(path).unwrap())).end();
        assert!(ended.code == Some(0) && ended.out.contains("two"), "{:?} {} {}", ended.code, ended.out, ended.err);
    }
    agent.down();
}

#[test]
fn what_is_typed_and_the_size_go_to_the_programs_terminal() {
    let (agent, seat) = (Agent::up(), Seat::take());
    let before = seat.modes();
    let script = "trap 'stty size' WINCH; trap 'echo interrupted; exit 9' INT; stty size; \
                  printf 'word? '; read line; echo \"<$line>\"; while :; do sleep 0.05; done";
    let mut caller = seat.spawn(&agent, script);
    seat.wait_for("33 101\r\n");
    seat.wait_for("word? ");
    wait_until("the caller's terminal to be raw", || seat.is_raw());
    seat.typed(b"words\r");
    seat.wait_for("<words>\r\n");
    seat.resize(50, 132);
    caller.send(Signal::WINCH);
    seat.wait_for("50 132\r\n");
    seat.typed(b"\x03");
    seat.wait_for("interrupted\r\n");
    assert_eq!(caller.wait_exit().code(), Some(9));
    assert_eq!(seat.modes(), before);
    agent.down();
}

#[test]
fn the_callers_terminal_is_as_it_was_however_it_ends() {
    let (mut agent, seat) = (Agent::up(), Seat::take());
    let before = seat.modes();
    let begin = |agent: &Agent| {
        let caller = seat.spawn(agent, "echo $$ begun; sleep 1000");
        wait_until("the caller's terminal to be raw", || seat.is_raw());
        caller
    };
    // A signal goes to the program.
    let mut caller = begin(&agent);
    caller.send(Signal::TERM);
    assert_eq!((caller.wait_exit().code(), seat.modes()), (Some(143), before.clone()));
    // Stopped from elsewhere, and continued.
    let mut caller = begin(&agent);
    caller.send(Signal::TSTP);
    wait_until("it to be stopped", || state(caller.pid()) == Some('T'));
    assert_eq!(seat.modes(), before);
    caller.send(Signal::CONT);
    wait_until("the caller's terminal to be raw", || seat.is_raw());
    seat.typed(b"\x03");
    assert_eq!((caller.wait_exit().code(), seat.modes()), (Some(130), before.clone()));
    // Time is over, which is said when the terminal is as it was.
    let mut caller = begin(&agent);
    kill_process(agent.pid(), Signal::KILL).unwrap();
    assert_eq!((caller.wait_exit().code(), seat.modes()), (Some(1), before));
    seat.wait_for("fulmen: the agent went away");
    agent.keeper.wait_exit();
    agent.keeper.wait_gone();
}

#[test]
fn a_program_at_a_terminal_ends_with_its_caller() {
    let (agent, seat) = (Agent::up(), Seat::take());
    let mut caller = seat.spawn(&agent, "exec sh -i");
    wait_until("the caller's terminal to be raw", || seat.is_raw());
    // A job in a group of its own, in the foreground.
    seat.typed(b"echo sum $((40 + 2)); cat\n");
    seat.wait_for("sum 42");
    wait_until("the job", || agent.children().iter().any(|(_, line)| line.starts_with("cat")));
    caller.send(Signal::KILL);
    caller.wait_exit();
    wait_until("all to end", || agent.children().is_empty());
    wait_until("its outcome", || agent.processes()[0]["outcome"]["because"] == "caller-gone");
    let notes = agent.audit();
    let asked = notes.iter().find(|note| note["event"] == "signalled").expect("a signal");
    assert_eq!(asked["signal"], Signal::HUP.as_raw());
    agent.down();
}

#[test]
fn what_a_shell_leaves_in_other_groups_ends_with_the_agent() {
    let (agent, seat) = (Agent::up(), Seat::take());
    let mut caller = seat.spawn(&agent, "exec sh -i");
    wait_until("the caller's terminal to be raw", || seat.is_raw());
    seat.typed(b"trap '' HUP; sleep 1000 & exit 5\n");
    assert_eq!(caller.wait_exit().code(), Some(5));
    // It may be no more than a copy of the shell yet.
    wait_until("what it left", || agent.children().iter().any(|(_, line)| line.starts_with("sleep 1000")));
    agent.down();
}

#[test]
fn a_limit_holds_at_a_terminal_too() {
    let agent = Agent::up();
    let script = "echo begun; dd if=/dev/zero bs=300M count=1 2>/dev/null | sleep 1000";
    let ended = agent.spawn(&["--tty", "--limit", "mem=100M"], script).end();
    assert_eq!((ended.code, ended.out.as_str()), (Some(253), "begun\r\n"), "{}", ended.err);
    assert_eq!(agent.children(), []);
    agent.down();
}

#[test]
fn only_a_terminal_has_a_size() {
    let agent = Agent::up();
    let ask = |body: Value| agent.ask("POST", "/v1/processes", &body.to_string());
    let started = |body: Value| serde_json::from_str::<Value>(&ask(body).1).unwrap()["id"].to_string();
    let plain = started(json!({"command": ["sleep", "1000"], "detach": true}));
    let size = json!({"rows": 10, "cols": 20});
    let with = started(json!({"command": ["sleep", "1000"], "detach": true, "tty": size}));
    let resize = |id: &str, body: &Value| agent.ask("POST", &format!("/v1/processes/{id}/size"), &body.to_string()).0;
    assert_eq!((resize(&with, &size), resize(&plain, &size), resize("77", &size)), (204, 409, 404));
    assert_eq!((resize(&with, &json!({"rows": 10})), resize(&with, &json!({"rows": -1, "cols": 1}))), (400, 400));
    agent.run("kill", &[&with, "--signal", "KILL"]);
    wait_until("its end", || agent.processes()[1].get("outcome").is_some());
    assert_eq!(resize(&with, &size), 409);
    agent.down();
}
