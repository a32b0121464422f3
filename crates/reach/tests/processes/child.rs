//! A second process: it opens a node, shares a region, tells both on its standard output, and plays its role.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Instant;

use fulmen_memory::{Exposed, Region};
use fulmen_reach::ring::{Consumer, Layout, Producer};
use fulmen_reach::{Doorbell, Node, NodeAddress, ShareKey};
use rustix::process::{Pid, Signal, WaitOptions};

use crate::LONG;

const ROLE: &str = "FULMEN_REACH_TEST_ROLE";

/// Bytes of the region that a child shares.
pub const LEN: usize = 1 << 16;

/// Rings in that region: towards the child, and from it.
pub const TO_CHILD: usize = 4096;
pub const FROM_CHILD: usize = 4096 + 16384;
/// Bytes of slots of either.
pub const CAPACITY: usize = 8192;
/// Doorbells in it: towards the child, and from it.
pub const CHILD_BELL: usize = 1024;
pub const PARENT_BELL: usize = 1152;
/// Frames that go there and back.
pub const FRAMES: u64 = 100_000;

/// A child process, killed with this value.
pub struct Running {
    process: Child,
    to: Option<ChildStdin>,
    from: BufReader<ChildStdout>,
    pub address: NodeAddress,
    pub key: ShareKey,
}

impl Running {
    /// Starts a child in a role and reads where it is found.
    pub fn start(role: &str) -> Running {
        // The test of that name is the child's entry; without the variable it does nothing.
        let mut process = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "child::the_child", "--nocapture", "--test-threads=1", "--quiet"])
            .env(ROLE, role)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let to = process.stdin.take();
        let from = BufReader::new(process.stdout.take().unwrap());
        let mut running = Guard(Some(process)).read(to, from);
        assert_eq!(running.address.pid(), running.process.id());
        running.go();
        running
    }

    fn pid(&self) -> Pid {
        Pid::from_child(&self.process)
    }

    fn go(&mut self) {
        let to = self.to.as_mut().expect("its input is open");
        writeln!(to).unwrap();
    }

    pub fn hear(&mut self) -> String {
        next(&mut self.from)
    }

    /// Stops all of its threads, and returns when they have stopped.
    pub fn stop(&self) {
        rustix::process::kill_process(self.pid(), Signal::STOP).unwrap();
        let (_, status) = rustix::process::waitpid(Some(self.pid()), WaitOptions::UNTRACED).unwrap().unwrap();
        assert!(status.stopped());
    }

    pub fn go_on(&self) {
        rustix::process::kill_process(self.pid(), Signal::CONT).unwrap();
    }

    /// Kills it as the system would, and waits for its end.
    pub fn kill(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }

    /// Closes its input, at which it ends by itself.
    pub fn finish(mut self) {
        self.to = None;
        let mut rest = String::new();
        self.from.read_to_string(&mut rest).unwrap();
        assert!(self.process.wait().unwrap().success(), "the child failed: {rest}");
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // It fails if the process has ended.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Kills a process that has not yet said where it is found.
struct Guard(Option<Child>);

impl Guard {
    fn read(mut self, to: Option<ChildStdin>, mut from: BufReader<ChildStdout>) -> Running {
        let words = next(&mut from);
        let (address, key) = words.split_once(' ').expect("an address and a key");
        let bytes: Vec<u8> =
            (0..address.len() / 2).map(|at| u8::from_str_radix(&address[2 * at..2 * at + 2], 16).unwrap()).collect();
        let address = NodeAddress::from_bytes(bytes.first_chunk().unwrap()).unwrap();
        let key = ShareKey::from_u64(key.parse().unwrap());
        Running { process: self.0.take().unwrap(), to, from, address, key }
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        if let Some(mut process) = self.0.take() {
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}

/// The next line that the child means for us: the test harness writes others.
fn next(from: &mut impl BufRead) -> String {
    loop {
        let mut line = String::new();
        assert_ne!(from.read_line(&mut line).unwrap(), 0, "the child ended early");
        if let Some((_, said)) = line.trim_end().split_once("child: ") {
            return said.to_owned();
        }
    }
}

/// Not a test but the other process's entry.
#[test]
fn the_child() {
    let Ok(role) = std::env::var(ROLE) else { return };
    // Whatever the role does, it ends with the parent.
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL)).unwrap();
    let node = Node::open().unwrap();
    let region = Region::alloc(LEN).unwrap();
    let memory = region.expose().unwrap();
    let key = node.share(&region).unwrap();
    let address: String = node.address().to_bytes().iter().map(|byte| format!("{byte:02x}")).collect();
    println!("\nchild: {address} {}", key.to_u64());
    hear();
    match role.as_str() {
        "serve" => {}
        "answer" => answer(&memory),
        "echo" => echo(&memory),
        "heir" => heir(),
        "forks" => forked(|| std::thread::sleep(LONG)),
        "forks and drops" => {
            forked(|| drop(node.clone()));
            let inherited = node.clone();
            // The last handle, as far as the child knows.
            forked(move || {
                assert!(inherited.is_inherited());
                drop(inherited);
                drop(node);
            });
        }
        other => panic!("no role {other}"),
    }
    // Until the input is closed.
    while !hear().is_empty() {}
}

fn hear() -> String {
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).unwrap();
    line
}

/// Forks a child that runs this and ends, and says its number.
fn forked(run: impl FnOnce()) {
    // SAFETY: the child only runs what was given, which takes no lock that another thread can hold, and ends without
    // running anything of its parent's.
    match unsafe { libc::fork() } {
        0 => {
            let ran = std::panic::catch_unwind(std::panic::AssertUnwindSafe(run));
            // SAFETY: ends this process.
            unsafe { libc::_exit(i32::from(ran.is_err())) }
        }
        pid => {
            // It is the child that drops what it holds.
            std::mem::forget(run);
            println!("\nchild: {pid}");
        }
    }
}

/// Adds one to each byte that the parent wrote, when its doorbell rings.
fn answer(memory: &Exposed) {
    let (mine, theirs) = (Doorbell::at(memory, CHILD_BELL), Doorbell::at(memory, PARENT_BELL));
    assert!(mine.wait(0, LONG));
    let mut bytes = [0; 256];
    memory.read(8192, &mut bytes);
    memory.write(8192, &bytes.map(|byte| byte.wrapping_add(1)));
    theirs.ring();
}

/// Sends every frame back.
fn echo(memory: &Exposed) {
    let layout = Layout::new(CAPACITY);
    let size = layout.size();
    let mut from = Consumer::new(memory.slice(TO_CHILD..TO_CHILD + size), layout).unwrap();
    let mut to = Producer::new(memory.slice(FROM_CHILD..FROM_CHILD + size), layout).unwrap();
    let (mine, theirs) = (Doorbell::at(memory, CHILD_BELL), Doorbell::at(memory, PARENT_BELL));
    for _ in 0..FRAMES {
        let frame = patiently(&mine, || from.try_pop(|frame| frame.to_vec()).unwrap());
        theirs.ring();
        patiently(&mine, || to.try_push(&[&frame[..8], &frame[8..]]).unwrap().then_some(()));
        theirs.ring();
    }
}

/// Starts a process that outlives this one, with whatever descriptors it inherits.
#[expect(clippy::zombie_processes, reason = "it is to outlive this process, and the parent kills it")]
fn heir() {
    let heir = Command::new("sleep").arg("120").stdin(Stdio::null()).stdout(Stdio::null()).spawn().unwrap();
    println!("child: {}", heir.id());
}

/// Tries, spins for a while, and then parks on the doorbell.
pub fn patiently<T>(bell: &Doorbell, mut attempt: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        let seen = bell.sequence();
        if let Some(result) = attempt() {
            return result;
        }
        assert!(bell.wait(seen, LONG) && start.elapsed() < 4 * LONG, "the other process does not answer");
    }
}
