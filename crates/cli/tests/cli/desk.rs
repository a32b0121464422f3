//! Processes that a program in C asks for in memory.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use tempfile::TempDir;

use crate::support::{Ended, Running, fulmen, start, start_with_stdin, wait_until};

struct Desk {
    place: TempDir,
    program: PathBuf,
    keeper: Running,
}

impl Desk {
    /// An agent, and the program; `None` where no compiler is.
    fn up() -> Option<Desk> {
        let place = tempfile::tempdir().unwrap();
        let program = place.path().join("desk");
        let root = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
        let mut command = Command::new("cc");
        command.args(["-std=c11", "-Wall", "-Wextra", "-Werror", "-I"]).arg(root.join("../abi/include"));
        match command.arg(root.join("tests/cli/desk.c")).arg("-o").arg(&program).status() {
            Ok(status) => assert!(status.success(), "the program is compiled"),
            Err(error) => {
                eprintln!("SKIPPED: there is no C compiler (cc: {error}): install one, such as Debian's gcc");
                return None;
            }
        }
        let state = place.path().join("state");
        let keeper = fulmen(&["up", "--foreground", "--state", state.to_str().unwrap()]);
        let desk = Desk { place, program, keeper };
        let coordinates = || desk.run_fulmen(&["status", "--json"]).out.contains(r#""coordinator""#);
        wait_until("the agent to be up", coordinates);
        Some(desk)
    }

    fn run_fulmen(&self, args: &[&str]) -> Ended {
        fulmen(&[&args[..1], &["--state", self.place.path().join("state").to_str().unwrap()], &args[1..]].concat())
            .end()
    }

    fn command(&self, mode: &str, program: &[&str]) -> Command {
        let mut command = Command::new(&self.program);
        command.arg(self.place.path().join("state/desk.sock")).arg(mode).args(program);
        command
    }

    fn ask(&self, mode: &str, script: &str) -> Ended {
        start(self.command(mode, &["/bin/sh", "-c", script])).end()
    }

    fn audit(&self) -> String {
        fs::read_to_string(self.place.path().join("state/audit.log")).unwrap()
    }

    fn down(mut self) {
        assert_eq!(self.run_fulmen(&["down"]).code, Some(0));
        self.keeper.wait_exit();
        assert_eq!(self.keeper.processes(), []);
    }
}

#[test]
fn output_and_code_come_back_through_memory() {
    let Some(desk) = Desk::up() else { return };
    let ended = desk.ask("run", "echo out; echo err >&2; exit 7");
    assert_eq!((ended.code, &*ended.out, &*ended.err), (Some(7), "out\n", "err\n"));
    assert_eq!(desk.ask("run", "kill -9 $$").code, Some(137));
    // Many times what a ring holds.
    let ended = desk.ask("run", "head -c 200000 /dev/zero | tr '\\0' x; echo; seq 20000 >&2");
    assert_eq!((ended.code, ended.out.len(), ended.err.lines().count()), (Some(0), 200_001, 20_000));
    assert_eq!(desk.ask("gateway", "echo $0").out, "/bin/sh\n");
    let text: String = (0..20_000).map(|number| format!("{number}\n")).collect();
    let file = desk.place.path().join("input");
    fs::write(&file, &text).unwrap();
    let input = Stdio::from(fs::File::open(file).unwrap());
    let ended = start_with_stdin(&mut desk.command("input", &["sh", "-c", "cat; exit 3"]), input).end();
    assert!(ended.code == Some(3) && ended.out == text, "{:?} {}", ended.code, ended.out.len());
    assert!(desk.audit().contains(", by shared memory"), "{}", desk.audit());
    desk.down();
}

#[test]
fn what_cannot_be_done_is_said_and_what_is_given_up_ends() {
    let Some(desk) = Desk::up() else { return };
    let refused = |ended: Ended, error: &str| assert_eq!((ended.code, &*ended.err), (Some(96), error));
    refused(desk.ask("bad", "true"), "error 1 (0)\n");
    refused(desk.ask("stale", "true"), "error 5 (0)\n");
    refused(desk.ask("far", "true"), "error 4 (0)\n");
    refused(start(desk.command("run", &["/no/such/program"])).end(), "error 9 (2)\n");
    refused(start(desk.command("run", &["/etc/passwd"])).end(), "error 3 (13)\n");
    // Cancelled, with its grace.
    // The shell may tell of its sleep, which gets the signal, too.
    let cancelled = |ended: Ended, code: i32, out: &str| {
        assert_eq!((ended.code, &*ended.out), (Some(code), out));
        assert!(ended.err.ends_with("error 7 (0)\n"), "{}", ended.err);
    };
    let ended = desk.ask("cancel", "trap 'echo bye; exit 5' TERM; echo on; while :; do sleep 0.05; done");
    cancelled(ended, 5, "on\nbye\n");
    cancelled(desk.ask("cancel", "trap '' TERM; echo on; while :; do sleep 0.05; done"), 137, "on\n");
    // Whoever asked goes away.
    assert_eq!(desk.ask("leave", "echo on; exec sleep 1000").code, Some(0));
    wait_until("its process to end", || desk.audit().contains(r#""because":"caller-gone""#));
    // Whoever shares nonsense hurts nobody.
    let mut socket = std::os::unix::net::UnixStream::connect(desk.place.path().join("state/desk.sock")).unwrap();
    std::io::Write::write_all(&mut socket, &[0xff; 64]).unwrap();
    assert_eq!(desk.ask("run", "exit 4").code, Some(4));
    // The agent ends in the middle.
    let waits = start(desk.command("run", &["/bin/sh", "-c", "echo on; exec sleep 1000"]));
    waits.wait_for("on", 1);
    desk.down();
    let ended = waits.end();
    assert!(
        ended.code == Some(143) && ended.err == "error 14 (0)\n" || ended.code == Some(97),
        "{:?} {}",
        ended.code,
        ended.err
    );
}
