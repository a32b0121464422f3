//! Other processes of a test: its program in another role, spoken to by lines.

use std::io::{BufRead, BufReader, Write};
use std::process::{ChildStdin, ChildStdout, Command, Stdio};

use rustix::process::{Pid, Signal};

use crate::tier;

const ROLE: &str = "FULMEN_TEST_ROLE";
/// Told apart from what the test harness prints.
const MARK: &str = "@@ ";

/// A child, killed at the latest when dropped.
#[derive(Debug)]
pub struct Child {
    process: std::process::Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
}

impl Child {
    /// This program once more, where it runs its test `child::in_a_role` alone, which finds the role by [`Parent::role`].
    ///
    /// # Panics
    /// If it does not start.
    #[must_use]
    pub fn start(role: &str) -> Child {
        Child::start_with(role, None)
    }

    /// The same, on another host as far as Fulmen knows.
    ///
    /// # Panics
    /// If it does not start.
    #[must_use]
    pub fn start_elsewhere(role: &str) -> Child {
        Child::start_with(role, Some(("FULMEN_HOST_ID", "another host")))
    }

    fn start_with(role: &str, host: Option<(&str, &str)>) -> Child {
        let mut process = Command::new(std::env::current_exe().expect("this program has a path"))
            .args(["--exact", "child::in_a_role", "--nocapture", "--test-threads", "1"])
            .env(ROLE, role)
            .envs([tier::child_of_this_test()])
            .envs(host)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("this program starts again");
        let to = process.stdin.take().expect("a pipe");
        let from = BufReader::new(process.stdout.take().expect("a pipe"));
        Child { process, to, from }
    }

    /// Tells it a line.
    ///
    /// # Panics
    /// If it has ended.
    #[track_caller]
    pub fn tell(&mut self, line: &str) {
        writeln!(self.to, "{line}").expect("the child listens");
    }

    /// The next line that the child said. It ends with the child, whose own waits all end.
    ///
    /// # Panics
    /// If it has ended.
    #[track_caller]
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

    /// Sends it a signal.
    ///
    /// # Panics
    /// If it is not there.
    pub fn signal(&self, signal: Signal) {
        rustix::process::kill_process(Pid::from_child(&self.process), signal)
            .expect("it is there until it is waited for");
    }

    /// Kills it, wherever it is.
    pub fn kill(mut self) {
        self.end();
    }

    /// Waits until it has ended by itself.
    ///
    /// # Panics
    /// If it failed.
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
#[derive(Clone, Copy, Debug)]
pub struct Parent;

impl Parent {
    /// For the test where children start: the words of this one's role. None if it has no role, but is run as a test. From here on the child
    /// does not outlive its parent.
    ///
    /// # Panics
    /// If the system does not let it ask for that.
    #[must_use]
    pub fn role() -> Option<Vec<String>> {
        let role = std::env::var(ROLE).ok()?;
        rustix::process::set_parent_process_death_signal(Some(Signal::KILL)).expect("a child can ask for that");
        Some(role.split(' ').map(str::to_owned).collect())
    }

    /// Tells the parent a line.
    ///
    /// # Panics
    /// If it has ended.
    #[track_caller]
    pub fn tell(&self, line: &str) {
        println!("{MARK}{line}");
        std::io::stdout().flush().expect("the parent listens");
    }

    /// The next line that the parent told.
    ///
    /// # Panics
    /// If it has ended.
    #[must_use]
    #[track_caller]
    pub fn hear(&self) -> String {
        let mut line = String::new();
        let read = std::io::stdin().read_line(&mut line).expect("the parent's pipe");
        assert!(read > 0, "the parent has ended");
        line.trim_end().to_owned()
    }
}
