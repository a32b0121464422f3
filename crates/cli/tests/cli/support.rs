//! Starting the command, watching what it writes, and finding what it leaves behind.

use std::fs;
use std::io::Read;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex, Once};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// No wait of a test that passes comes near this.
pub const LIMIT: Duration = Duration::from_secs(60);

/// The command under test.
pub const FULMEN: &str = env!("CARGO_BIN_EXE_fulmen");

const MARK: &str = "FULMEN_TEST_MARK";

/// Whoever runs the tests may have signals ignored, and children inherit that. A signal with a handler is reset to its
/// default in children, so a handler that does nothing is put where a signal is ignored.
fn make_signals_default() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
        let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:")).unwrap_or("0");
        let ignored = u64::from_str_radix(mask.trim(), 16).expect("a mask");
        for signal in [Signal::HUP, Signal::INT, Signal::QUIT, Signal::TERM, Signal::USR1, Signal::USR2, Signal::TSTP] {
            if ignored & (1 << (signal.as_raw() - 1)) != 0 {
                signal_hook::flag::register(signal.as_raw(), Arc::new(AtomicBool::new(false))).expect("a handler");
            }
        }
    });
}

/// What a stream has given so far.
#[derive(Clone, Default)]
pub struct Captured(Arc<(Mutex<Vec<u8>>, Condvar)>);

impl Captured {
    pub fn follow(&self, mut stream: impl Read + Send + 'static) -> JoinHandle<()> {
        let shared = self.0.clone();
        thread::spawn(move || {
            let mut buffer = vec![0; 1 << 16];
            while let Ok(count @ 1..) = stream.read(&mut buffer) {
                shared.0.lock().unwrap().extend_from_slice(&buffer[..count]);
                shared.1.notify_all();
            }
        })
    }

    fn bytes(&self) -> Vec<u8> {
        self.0.0.lock().unwrap().clone()
    }

    pub fn wait(&self, what: &str, ready: impl Fn(&str) -> bool) -> String {
        let end = Instant::now() + LIMIT;
        let mut bytes = self.0.0.lock().unwrap();
        loop {
            let text = String::from_utf8_lossy(&bytes).into_owned();
            if ready(&text) {
                return text;
            }
            assert!(Instant::now() < end, "{what} did not come; there is:\n{text}");
            bytes = self.0.1.wait_timeout(bytes, Duration::from_secs(1)).unwrap().0;
        }
    }
}

/// A command at work. Dropping it kills it, and the command kills its ranks then.
pub struct Running {
    child: Child,
    mark: String,
    out: Captured,
    err: Captured,
    readers: Vec<JoinHandle<()>>,
}

/// What a command gave when it had ended.
pub struct Ended {
    pub code: Option<i32>,
    pub signal: Option<i32>,
    pub stdout: Vec<u8>,
    pub out: String,
    pub err: String,
}

/// Starts `fulmen` with these arguments.
pub fn fulmen(args: &[&str]) -> Running {
    let mut command = Command::new(FULMEN);
    command.args(args);
    start(command)
}

/// Starts `fulmen run` with these arguments; the ranks run `script` in a shell.
///
/// A script with traps sleeps in short pieces: a child that a shell has just forked still has the shell's traps, and a signal
/// in that moment is lost on it. With a long sleep, it would then be the grace time that ends it.
pub fn ranks(args: &[&str], script: &str) -> Running {
    fulmen(&[&["run"], args, &["--", "/bin/sh", "-c", script]].concat())
}

/// Starts a script that becomes or runs `$FULMEN`.
pub fn shell(script: &str) -> Running {
    let mut command = Command::new("/bin/sh");
    command.args(["-c", script]).env("FULMEN", FULMEN);
    start(command)
}

/// Starts a command, marked so that its descendants are found again. Its standard input is empty unless it was set.
pub fn start(mut command: Command) -> Running {
    start_with_stdin(&mut command, Stdio::null())
}

pub fn start_with_stdin(command: &mut Command, stdin: Stdio) -> Running {
    start_with(command, stdin, Stdio::piped(), Stdio::piped())
}

/// Streams that are piped are captured.
pub fn start_with(command: &mut Command, stdin: Stdio, stdout: Stdio, stderr: Stdio) -> Running {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    make_signals_default();
    let mark = format!("{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("FULMEN_") && name != "FULMEN_TEST_TIER") {
        command.env_remove(name);
    }
    // Whatever it starts is reached from this host alone.
    command.env("FULMEN_LISTEN", "127.0.0.1:0");
    command.env(MARK, &mark).stdin(stdin).stdout(stdout).stderr(stderr);
    let mut child = command.spawn().expect("the command starts");
    let (out, err) = (Captured::default(), Captured::default());
    let mut readers = Vec::new();
    readers.extend(child.stdout.take().map(|pipe| out.follow(pipe)));
    readers.extend(child.stderr.take().map(|pipe| err.follow(pipe)));
    Running { child, mark, out, err, readers }
}

impl Running {
    pub fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    pub fn send(&self, signal: Signal) {
        kill_process(self.pid(), signal).expect("the command runs");
    }

    /// Waits until standard output has `count` times `text`, and gives the output.
    pub fn wait_for(&self, text: &str, count: usize) -> String {
        self.out.wait(&format!("{count} times {text:?}"), |out| out.matches(text).count() >= count)
    }

    pub fn wait_for_message(&self, text: &str) -> String {
        self.err.wait(&format!("the message {text:?}"), |err| err.contains(text))
    }

    /// The processes of this command that are there now: number and command line.
    pub fn processes(&self) -> Vec<(Pid, String)> {
        let wanted = format!("{MARK}={}", self.mark);
        let mut found = Vec::new();
        for entry in fs::read_dir("/proc").expect("processes can be listed").flatten() {
            let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()).and_then(Pid::from_raw)
            else {
                continue;
            };
            let read = |file| fs::read(entry.path().join(file)).unwrap_or_default();
            if read("environ").split(|&byte| byte == 0).any(|variable| variable == wanted.as_bytes()) {
                found.push((pid, String::from_utf8_lossy(&read("cmdline")).replace('\0', " ")));
            }
        }
        found
    }

    /// Whether the command itself has ended. It still has its number afterwards only if nobody takes its status.
    pub fn has_ended(&self) -> bool {
        state(self.pid()) == Some('Z')
    }

    /// Waits until the command itself has ended, and takes its status.
    pub fn wait_exit(&mut self) -> ExitStatus {
        let end = Instant::now() + LIMIT;
        loop {
            if let Some(status) = self.child.try_wait().expect("the command can be waited for") {
                return status;
            }
            assert!(Instant::now() < end, "the command did not end; it said:\n{}", self.err.wait("", |_| true));
            thread::sleep(Duration::from_millis(5));
        }
    }

    /// Waits until no process of the command is left.
    pub fn wait_gone(&self) {
        wait_until("all processes to end", || self.processes().is_empty());
    }

    /// Waits for the command's end; nothing of it may be left at that moment.
    pub fn end(mut self) -> Ended {
        let status = self.wait_exit();
        let left = self.processes();
        assert!(left.is_empty(), "left behind: {left:?}");
        for reader in self.readers.drain(..) {
            reader.join().unwrap();
        }
        let (stdout, err) = (self.out.bytes(), self.err.bytes());
        Ended {
            code: status.code(),
            signal: status.signal(),
            out: String::from_utf8_lossy(&stdout).into_owned(),
            stdout,
            err: String::from_utf8_lossy(&err).into_owned(),
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Ended {
    /// The messages of the command itself, without what ranks wrote to standard error.
    pub fn messages(&self) -> Vec<&str> {
        self.err.lines().filter(|line| line.starts_with("fulmen: ")).collect()
    }

    /// The lines of standard output, in the order of their text: ranks write in any order.
    pub fn sorted(&self) -> Vec<&str> {
        let mut lines: Vec<&str> = self.out.lines().collect();
        lines.sort_unstable();
        lines
    }
}

/// Waits until `ready` holds.
pub fn wait_until(what: &str, ready: impl Fn() -> bool) {
    let end = Instant::now() + LIMIT;
    while !ready() {
        assert!(Instant::now() < end, "waited in vain for {what}");
        thread::sleep(Duration::from_millis(5));
    }
}

/// Waits until all nodes that were started together are up and settled, and each says so: `up` does not wait for ever.
pub fn wait_until_settled(state: &Path) {
    let states = || (1..).map(|number| state.join(format!("node-{number}"))).take_while(|node| node.exists());
    let count = states().count();
    for own in states() {
        wait_until("the nodes to be settled", || {
            let ended = fulmen(&["status", "--json", "--state", own.to_str().unwrap()]).end();
            let status: Value = serde_json::from_str(&ended.out).unwrap_or_default();
            let cluster = &status["cluster"];
            let all_up = |nodes: &Vec<Value>| nodes.len() == count && nodes.iter().all(|node| node["state"] == "up");
            cluster["nodes"].as_array().is_some_and(all_up)
                && cluster["settled"] == true
                && cluster["coordinator"].is_string()
        });
    }
}

/// The state letter of a process, `None` when it is gone.
pub fn state(pid: Pid) -> Option<char> {
    let stat = fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero())).ok()?;
    stat.rsplit(") ").next()?.chars().next()
}
