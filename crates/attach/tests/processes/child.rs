//! Child processes: this binary in another role, spoken to by lines.

use std::io::{BufRead, BufReader, Write};
use std::process::{ChildStdin, ChildStdout, Command, Stdio};

use rustix::process::Signal;

const ROLE: &str = "FULMEN_ATTACH_TEST_ROLE";
/// Told apart from what the test harness prints.
const MARK: &str = "@@ ";

/// A child, killed at the latest when dropped.
pub struct Child {
    process: std::process::Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
}

impl Child {
    pub fn start(role: &str) -> Child {
        let mut process = Command::new(std::env::current_exe().expect("this binary has a path"))
            .args(["--exact", "child::in_a_role", "--nocapture", "--test-threads", "1"])
            .env(ROLE, role)
            .envs([fulmen_testbed::child_of_this_test()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("this binary starts again");
        let to = process.stdin.take().expect("a pipe");
        let from = BufReader::new(process.stdout.take().expect("a pipe"));
        Child { process, to, from }
    }

    pub fn tell(&mut self, line: &str) {
        writeln!(self.to, "{line}").expect("the child listens");
    }

    /// The next line that the child said. It ends with the child, whose own waits all end.
    pub fn hear(&mut self) -> String {
        let mut line = String::new();
        loop {
            line.clear();
            let read = self.from.read_line(&mut line).expect("the child's pipe");
            assert!(read > 0, "the child ended early");
            if let Some((_, said)) = line.split_once(MARK) {
                return said.trim_end().to_owned();
            }
        }
    }

    /// Kills it, wherever it is.
    pub fn kill(mut self) {
        self.end();
    }

    /// Waits until it has ended by itself.
    #[track_caller]
    pub fn finish(mut self) {
        let status = self.process.wait().expect("the child can be waited for");
        assert!(status.success(), "the child failed: {status}");
    }

    fn end(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        self.end();
    }
}

/// What a child says and hears.
pub struct Parent;

impl Parent {
    pub fn tell(&self, line: &str) {
        println!("{MARK}{line}");
        std::io::stdout().flush().expect("the parent listens");
    }

    pub fn hear(&self) -> String {
        let mut line = String::new();
        let read = std::io::stdin().read_line(&mut line).expect("the parent's pipe");
        assert!(read > 0, "the parent has ended");
        line.trim_end().to_owned()
    }
}

/// Where children start. Without a role it is no test.
#[test]
fn in_a_role() {
    let Ok(role) = std::env::var(ROLE) else { return };
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL)).expect("a child can ask for that");
    let words: Vec<&str> = role.split(' ').collect();
    match words[0] {
        "talk" => super::talk::child(&words),
        "idle" => super::idle::child(&words),
        "crowd" => super::crowd::child(&words),
        "victim" => super::kill::victim(&words),
        "town" => super::kill::town(),
        role => panic!("there is no role {role}"),
    }
}
