//! Servers of etcd on this machine, as one service: each can be killed, stopped and started again.

use std::fs::{self, File};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::unix::fs::DirBuilderExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

/// How long a server may take to listen.
const STARTING: Duration = Duration::from_secs(60);
/// Where servers listen.
const PORTS: std::ops::Range<u16> = 20_000..32_000;
/// Memory that looks like a disk: a server that waits for a busy one is no leader for long.
const MEMORY: &str = "/dev/shm";

/// The etcd of one test: its data is in a folder that goes with it, and its servers end with it.
#[derive(Debug)]
pub struct Etcd {
    program: &'static str,
    folder: PathBuf,
    /// Where each server hears clients, and where it hears the others.
    ports: Vec<(u16, u16)>,
    servers: Mutex<Vec<Option<Child>>>,
}

/// The program, which may be where Debian has it and not in everybody's PATH.
fn program() -> Option<&'static str> {
    let runs = |program: &&str| Command::new(program).arg("--version").stdin(Stdio::null()).output().is_ok();
    ["etcd", "/usr/bin/etcd"].into_iter().find(runs)
}

/// Ports of which nobody listens at the moment. They are none of those that the system gives to connections, which would take them while
/// a server is down.
fn free_ports(count: usize) -> Vec<u16> {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    // Tests of other processes begin elsewhere.
    let place = || std::process::id().wrapping_mul(97).wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed));
    let ports = std::iter::repeat_with(|| PORTS.start + (place() % u32::from(PORTS.end - PORTS.start)) as u16);
    ports.filter(|port| TcpListener::bind((Ipv4Addr::LOCALHOST, *port)).is_ok()).take(count).collect()
}

impl Etcd {
    /// So many servers, which are up; or none, and a line that says that `what` is skipped, and why.
    ///
    /// # Panics
    /// If they do not come up although the program is there.
    #[must_use]
    pub fn or_skip(what: &str, count: usize) -> Option<Etcd> {
        let Some(program) = program() else {
            eprintln!("SKIPPED: {what}: etcd is not there (apt-get install etcd-server)");
            return None;
        };
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name = format!("fulmen-etcd-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let memory = PathBuf::from(MEMORY);
        let folder = if memory.is_dir() { memory } else { std::env::temp_dir() }.join(name);
        fs::DirBuilder::new().mode(0o700).create(&folder).expect("a folder for data");
        let ports = free_ports(2 * count);
        let ports = ports.chunks(2).map(|pair| (pair[0], pair[1])).collect();
        let etcd = Etcd { program, folder, ports, servers: Mutex::new((0..count).map(|_| None).collect()) };
        // One of several answers when most of them are there.
        (0..count).for_each(|server| etcd.launch(server));
        (0..count).for_each(|server| etcd.wait(server));
        Some(etcd)
    }

    /// Where a server hears clients.
    #[must_use]
    pub fn endpoint(&self, server: usize) -> String {
        format!("127.0.0.1:{}", self.ports[server].0)
    }

    /// Starts a server again, which finds its data, and waits until it listens.
    ///
    /// # Panics
    /// If it does not.
    pub fn start(&self, server: usize) {
        self.launch(server);
        self.wait(server);
    }

    /// Kills a server.
    pub fn kill(&self, server: usize) {
        let child = self.servers()[server].take();
        if let Some(mut child) = child {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// Has a server that was killed know nothing any more.
    ///
    /// # Panics
    /// If it has no data.
    pub fn empty(&self, server: usize) {
        fs::remove_dir_all(self.folder.join(server.to_string())).expect("its data");
    }

    /// Has a server do nothing, as if it were cut off: its connections stay.
    ///
    /// # Panics
    /// If it is not there.
    pub fn stop(&self, server: usize) {
        self.signal(server, Signal::STOP);
    }

    /// Has it go on.
    ///
    /// # Panics
    /// If it is not there.
    pub fn go_on(&self, server: usize) {
        self.signal(server, Signal::CONT);
    }

    fn signal(&self, server: usize, signal: Signal) {
        let servers = self.servers();
        let child = servers[server].as_ref().expect("it was started");
        kill_process(Pid::from_child(child), signal).expect("it was not waited for");
    }

    fn servers(&self) -> std::sync::MutexGuard<'_, Vec<Option<Child>>> {
        self.servers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn log(&self, server: usize) -> PathBuf {
        self.folder.join(format!("{server}.log"))
    }

    fn launch(&self, server: usize) {
        let url = |port: u16| format!("http://127.0.0.1:{port}");
        let (clients, others) = self.ports[server];
        let all = self.ports.iter().enumerate().map(|(at, (_, port))| format!("s{at}={}", url(*port)));
        let log = File::options().append(true).create(true).open(self.log(server)).expect("a log");
        let child = Command::new(self.program)
            .args(["--name", &format!("s{server}"), "--data-dir"])
            .arg(self.folder.join(server.to_string()))
            .args(["--listen-client-urls", &url(clients), "--advertise-client-urls", &url(clients)])
            .args(["--listen-peer-urls", &url(others), "--initial-advertise-peer-urls", &url(others)])
            .args(["--initial-cluster", &all.collect::<Vec<_>>().join(","), "--logger", "zap"])
            .stdin(Stdio::null())
            .stdout(log.try_clone().expect("the log"))
            .stderr(log)
            .spawn()
            .expect("etcd starts");
        self.servers()[server] = Some(child);
    }

    fn wait(&self, server: usize) {
        let end = Instant::now() + STARTING;
        while let Err(error) = TcpStream::connect((Ipv4Addr::LOCALHOST, self.ports[server].0)) {
            let ended = self.servers()[server].as_mut().is_none_or(|child| !matches!(child.try_wait(), Ok(None)));
            let late = Instant::now() >= end;
            assert!(!ended && !late, "server {server} of etcd does not listen: {error}; {}", self.last_words(server));
            thread::sleep(Duration::from_millis(5));
        }
    }

    /// What a server said last.
    fn last_words(&self, server: usize) -> String {
        let said = fs::read_to_string(self.log(server)).unwrap_or_default();
        let lines: Vec<&str> = said.lines().collect();
        format!("it said last:\n{}", lines[lines.len().saturating_sub(10)..].join("\n"))
    }
}

impl Drop for Etcd {
    fn drop(&mut self) {
        if thread::panicking() {
            (0..self.ports.len()).for_each(|server| eprintln!("server {server} of etcd: {}", self.last_words(server)));
        }
        (0..self.ports.len()).for_each(|server| self.kill(server));
        let _ = fs::remove_dir_all(&self.folder);
    }
}
