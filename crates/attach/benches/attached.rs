//! What it costs to attach to a device that another process owns, beside opening it: `cargo bench -p fulmen-attach`.
//!
//! Two programs talk through two owners, each of these four a process of its own, and two others over devices of their own, by turns.
//! Both have the software device with the limits of a narrow Thunderbolt port. Each figure is the median of all rounds, and each
//! ratio the median of the rounds' own.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use fulmen_attach::{Attached, Far, LONGEST_MESSAGE, Owner};
use fulmen_memory::Region;
use fulmen_reach::Node;
use fulmen_soft::{Profile, SoftDevice, SoftOptions};
use fulmen_verbs::{
    Access, AckTimeout, Completion, CompletionChannel, CompletionOpcode, CompletionQueue, Device, DeviceLimits, Gid,
    MemoryRegion, Mtu, Piece, QueuePair, QueuePairInit, QueuePairKind, QueuePairLimits, RecvRequest, RnrTimer,
    SendRequest, Transition,
};

const ROLE: &str = "FULMEN_ATTACH_BENCH_ROLE";
const NAME: &str = "rdma_en5";
const ROUNDS: usize = 15;
/// Messages that are on their way at a time, where as many are sent as go.
const WINDOW: u64 = 24;
/// Bytes of a message, and how many messages a round has.
const PINGS: [(usize, u64); 3] = [(8, 2000), (4096, 2000), (LONGEST_MESSAGE, 500)];
const STREAM: (usize, u64) = (LONGEST_MESSAGE, 2000);

fn main() {
    match std::env::var(ROLE) {
        Ok(role) => {
            rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL)).expect("Linux");
            match *role.split(' ').collect::<Vec<_>>() {
                ["owner", own, other] => own_device(Path::new(own), Path::new(other)),
                ["attached", place] => program(&Attached::open(&door(Path::new(place)), NAME).expect("an owner")),
                ["direct"] => program(&narrow()),
                _ => panic!("there is no role {role}"),
            }
        }
        Err(_) => measure(),
    }
}

// The one that measures.

/// Another process of this binary.
struct Other {
    process: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
}

impl Other {
    fn start(role: &str) -> Other {
        let mut process = Command::new(std::env::current_exe().expect("this binary has a path"))
            .env(ROLE, role)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("this binary starts again");
        let to = process.stdin.take().expect("a pipe");
        let from = BufReader::new(process.stdout.take().expect("a pipe"));
        Other { process, to, from }
    }

    fn tell(&mut self, line: &str) {
        writeln!(self.to, "{line}").expect("it listens");
    }

    fn hear(&mut self) -> String {
        let mut line = String::new();
        assert!(self.from.read_line(&mut line).expect("a pipe") > 0, "a process ended early");
        line.trim_end().to_owned()
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Two programs that are connected.
fn two(roles: [&str; 2]) -> [Other; 2] {
    let mut both = roles.map(Other::start);
    let names = [both[0].hear(), both[1].hear()];
    both[0].tell(&names[1]);
    both[1].tell(&names[0]);
    both
}

/// Lets two programs do something, of which the first tells how many seconds it took.
fn time(both: &mut [Other; 2], what: [&str; 2], wait: &str, (bytes, count): (usize, u64)) -> f64 {
    for (program, what) in both.iter_mut().zip(what).rev() {
        program.tell(&format!("{what} {bytes} {count} {wait}"));
    }
    assert_eq!(both[1].hear(), "done");
    both[0].hear().parse().expect("seconds")
}

fn measure() {
    let place = tempfile::tempdir().expect("a directory");
    let places = ["one", "other"].map(|name| place.path().join(name));
    let [one, other] = places.each_ref().map(|place| place.display());
    let mut owners = [format!("owner {one} {other}"), format!("owner {other} {one}")].map(|role| Other::start(&role));
    owners.iter_mut().for_each(|owner| assert_eq!(owner.hear(), "open"));
    let attached = two([&format!("attached {one}"), &format!("attached {other}")]);
    let mut pairs = [attached, two(["direct"; 2])];

    println!("On {} processors.\n", std::thread::available_parallelism().expect("some"));
    println!("| | attached | direct | attached / direct |\n|---|---|---|---|");
    for wait in ["looks", "sleeps"] {
        for (bytes, count) in PINGS {
            let rounds = rounds(&mut pairs, ["ping", "pong"], wait, (bytes, count));
            let show = |seconds: f64| format!("{:.2} us", seconds / count as f64 / 2.0 * 1e6);
            let name = format!("latency, {}, a program {wait}", size(bytes));
            row(&name, &rounds, show, |attached, direct| attached / direct);
        }
        let rounds = rounds(&mut pairs, ["send", "take"], wait, STREAM);
        let show = |seconds: f64| format!("{:.2} GB/s", (STREAM.0 as u64 * STREAM.1) as f64 / seconds / 1e9);
        let name = format!("throughput, {}, a program {wait}", size(STREAM.0));
        row(&name, &rounds, show, |attached, direct| direct / attached);
    }
}

fn size(bytes: usize) -> String {
    if bytes < 1024 { format!("{bytes} B") } else { format!("{} KiB", bytes / 1024) }
}

/// Seconds of both, by turns, after a round that does not count.
fn rounds(pairs: &mut [[Other; 2]; 2], what: [&str; 2], wait: &str, messages: (usize, u64)) -> Vec<[f64; 2]> {
    let round = |number: usize| {
        let mut seconds = [0.0; 2];
        for turn in 0..2 {
            let which = (turn + number) % 2;
            seconds[which] = time(&mut pairs[which], what, wait, messages);
        }
        seconds
    };
    (0..=ROUNDS).map(round).skip(1).collect()
}

fn row(name: &str, rounds: &[[f64; 2]], show: impl Fn(f64) -> String, ratio: impl Fn(f64, f64) -> f64) {
    let of = |which: usize| show(median(rounds.iter().map(|round| round[which]).collect()));
    let ratio = median(rounds.iter().map(|round| ratio(round[0], round[1])).collect());
    println!("| {name} | {} | {} | {ratio:.2} |", of(0), of(1));
}

fn median(mut all: Vec<f64>) -> f64 {
    all.sort_by(f64::total_cmp);
    all[all.len() / 2]
}

// Owners.

/// The software device as a Thunderbolt port that has few of everything.
fn narrow() -> Arc<dyn Device> {
    let limits = DeviceLimits {
        queue_pairs: 3,
        completion_queues: 6,
        protection_domains: 6,
        queue_depth: 1024,
        ..Profile::Thunderbolt.limits()
    };
    let options = SoftOptions { limits, name: Some(NAME.to_owned()), ..SoftOptions::new(Profile::Thunderbolt) };
    SoftDevice::open_as(&Node::open().expect("a node"), options).expect("a device")
}

/// Where programs come to an owner, and where the other owner does.
fn door(place: &Path) -> PathBuf {
    place.with_extension("programs")
}

fn side_door(place: &Path) -> PathBuf {
    place.with_extension("owner")
}

/// The other owner.
struct Neighbour(PathBuf);

impl Far for Neighbour {
    fn ask(&self, _gid: Gid, call: &[u8]) -> Result<Vec<u8>, String> {
        let ask = || {
            let mut stream = UnixStream::connect(&self.0)?;
            stream.write_all(call)?;
            stream.shutdown(std::net::Shutdown::Write)?;
            let mut answer = Vec::new();
            stream.read_to_end(&mut answer)?;
            Ok(answer)
        };
        ask().map_err(|error: std::io::Error| error.to_string())
    }
}

fn own_device(own: &Path, other: &Path) {
    let neighbours = UnixListener::bind(side_door(own)).expect("a socket");
    let owner = Owner::new(vec![narrow()], Arc::new(Neighbour(side_door(other)))).expect("a device to own");
    let _desk = owner.serve(UnixListener::bind(door(own)).expect("a socket")).expect("a desk");
    println!("open");
    for stream in neighbours.incoming() {
        let (owner, mut stream) = (owner.clone(), stream.expect("a neighbour"));
        // It may ask in turn before it answers.
        std::thread::spawn(move || {
            let mut call = Vec::new();
            stream.read_to_end(&mut call).expect("a call");
            stream.write_all(&owner.answer(&call)).expect("a neighbour that listens");
        });
    }
}

// Programs.

/// A queue pair, with memory for a window in each direction.
struct Side {
    pair: Arc<dyn QueuePair>,
    cq: Arc<dyn CompletionQueue>,
    channel: Arc<dyn CompletionChannel>,
    /// Whether it leaves the processor to others while nothing has come.
    sleeps: bool,
    memory: fulmen_memory::Exposed,
    mr: Arc<dyn MemoryRegion>,
}

fn hear() -> Option<String> {
    let mut line = String::new();
    (std::io::stdin().read_line(&mut line).expect("a pipe") > 0).then(|| line.trim_end().to_owned())
}

fn program(device: &Arc<dyn Device>) {
    let mut side = Side::open(&**device);
    let gid = u128::from_be_bytes(device.gid_table(1).expect("port 1")[0].gid.0);
    let lid = device.port(1).expect("port 1").lid;
    println!("{gid} {} {lid}", side.pair.qp_num());
    side.connect(&hear().expect("a peer"));
    while let Some(line) = hear() {
        let words: Vec<&str> = line.split(' ').collect();
        let (bytes, count) = (words[1].parse().expect("bytes"), words[2].parse().expect("messages"));
        side.sleeps = words[3] == "sleeps";
        let start = Instant::now();
        match words[0] {
            "ping" => side.ping(bytes, count, true),
            "pong" => side.ping(bytes, count, false),
            "send" => side.stream(bytes, count),
            _ => side.take(bytes, count),
        }
        match words[0] {
            "ping" | "send" => println!("{}", start.elapsed().as_secs_f64()),
            _ => println!("done"),
        }
    }
}

impl Side {
    fn open(device: &dyn Device) -> Side {
        let bytes = 2 * WINDOW as usize * LONGEST_MESSAGE;
        let rule = device.info().limits.registration;
        // Where the system maps it is luck.
        let regions: Vec<Region> = (0..8).map(|_| Region::alloc(bytes).expect("memory")).collect();
        let region =
            regions.into_iter().find(|region| region.registrations(rule).len() == 1).expect("one in one piece");
        let pd = device.alloc_pd().expect("a domain");
        let mr = pd.register(&region, 0..bytes, Access::LOCAL_WRITE).expect("a registration");
        let channel = device.create_channel().expect("a channel");
        let cq = device.create_cq(2048, Some(&channel)).expect("a completion queue");
        let depth = (WINDOW * device.info().limits.depth_of(LONGEST_MESSAGE as u64)) as u32;
        let limits =
            QueuePairLimits { send_depth: depth, recv_depth: depth, send_pieces: 1, recv_pieces: 1, inline_bytes: 0 };
        let (kind, send_cq, recv_cq) = (QueuePairKind::Uc, cq.clone(), cq.clone());
        let init = QueuePairInit { kind, send_cq, recv_cq, limits, signal_all: true, srq: None };
        let pair = pd.create_qp(&init).expect("a queue pair");
        Side { pair, cq, channel, sleeps: false, memory: region.expose().expect("memory"), mr }
    }

    fn connect(&self, peer: &str) {
        let words: Vec<u128> = peer.split(' ').map(|word| word.parse().expect("a number")).collect();
        let (remote_gid, remote_qp, remote_lid) = (Gid(words[0].to_be_bytes()), words[1] as u32, words[2] as u16);
        let path = fulmen_verbs::Path { remote_gid, remote_lid, local_gid_index: 0, remote_qp, mtu: Mtu::B4096 };
        let (min_rnr_timer, timeout) = (RnrTimer(1), AckTimeout(14));
        for transition in [
            Transition::Init { port: 1, access: Access::LOCAL_WRITE },
            Transition::ReadyToReceive { path, recv_psn: 0, reads_served: 0, min_rnr_timer },
            Transition::ReadyToSend { send_psn: 0, timeout, retries: 7, rnr_retries: 7, reads_in_flight: 0 },
        ] {
            self.pair.modify(&transition).expect("a state");
        }
    }

    /// A place for a message: one in each window for its number, the second window's for RECVs.
    fn piece(&self, window: u64, number: u64, bytes: usize) -> Piece {
        let at = (window * WINDOW + number % WINDOW) as usize * LONGEST_MESSAGE;
        Piece { memory: self.memory.slice(at..at + bytes), lkey: self.mr.lkey() }
    }

    fn send(&self, number: u64, bytes: usize) {
        let request = SendRequest::send(number, [self.piece(0, number, bytes)]);
        self.pair.post_send(&[request]).expect("room for a SEND");
    }

    fn recv(&self, number: u64, bytes: usize) {
        let request = RecvRequest::new(number, [self.piece(1, number, bytes)]);
        self.pair.post_recv(&[request]).expect("room for a RECV");
    }

    fn next(&self) -> Completion {
        let mut one = [Completion::BLANK];
        let mut looks = 0_u32;
        let mut look = || self.cq.poll(&mut one).expect("a queue that is large enough") == 1;
        while !look() {
            looks += 1;
            if self.sleeps {
                self.cq.request_notify(false).expect("a channel");
                if look() {
                    break;
                }
                self.channel.wait(Duration::from_secs(1)).expect("a channel");
            } else if looks.is_multiple_of(32) {
                // There may be fewer processors than processes.
                std::thread::yield_now();
            }
        }
        assert!(one[0].status.is_success(), "{one:?}");
        one[0]
    }

    /// Waits until so many SENDs and RECVs have completed.
    fn wait(&self, mut sends: u64, mut recvs: u64) {
        while sends + recvs > 0 {
            let left = if self.next().opcode == CompletionOpcode::Send { &mut sends } else { &mut recvs };
            *left -= 1;
        }
    }

    /// One message at a time, to and fro.
    fn ping(&self, bytes: usize, count: u64, first: bool) {
        for number in 0..count {
            self.recv(number, bytes);
            if first {
                self.send(number, bytes);
                self.wait(1, 1);
            } else {
                self.wait(0, 1);
                self.send(number, bytes);
                self.wait(1, 0);
            }
        }
    }

    /// As many as go, until the other has taken the last one.
    fn stream(&self, bytes: usize, count: u64) {
        self.recv(0, 1);
        (0..WINDOW).for_each(|number| self.send(number, bytes));
        for number in WINDOW..count {
            self.wait(1, 0);
            self.send(number, bytes);
        }
        self.wait(WINDOW, 1);
    }

    fn take(&self, bytes: usize, count: u64) {
        (0..WINDOW).for_each(|number| self.recv(number, bytes));
        for number in WINDOW..count {
            self.wait(0, 1);
            self.recv(number, bytes);
        }
        self.wait(0, WINDOW);
        self.send(0, 1);
        self.wait(1, 0);
    }
}
