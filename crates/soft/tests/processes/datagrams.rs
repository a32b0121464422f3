//! Datagrams between processes, which are killed, stopped, and come and go.

use std::sync::Arc;
use std::time::{Duration, Instant};

use fulmen_memory::{Exposed, Region};
use fulmen_reach::{Node, NodeAddress};
use fulmen_soft::{Addressing, Profile, SoftDevice, SoftOptions};
use fulmen_testbed::{Child, Parent};
use fulmen_verbs::{
    Access, AddressHandle, AddressPath, Completion, CompletionOpcode, CompletionQueue, CompletionStatus, Destination,
    Device, Gid, MemoryRegion, Piece, ProtectionDomain, QueuePair, QueuePairInit, QueuePairKind, QueuePairLimits,
    RecvRequest, SendOp, SendRequest, Transition,
};
use rustix::process::{Signal, WaitOptions, waitpid};

use super::fork::forked;
use super::{LONG, rounds, until};

const QKEY: u32 = 0x0102_0304;
/// Bytes before a message.
const HEAD: usize = 40;
/// Bytes of a message.
const BYTES: usize = 1024;
const SLOTS: u64 = 32;
/// Sends in flight.
const WINDOW: u64 = 16;

/// A datagram queue pair on a numbered node, with `SLOTS` messages of memory to receive into, and as many to send from.
struct Post {
    qp: Arc<dyn QueuePair>,
    cq: Arc<dyn CompletionQueue>,
    pd: Arc<dyn ProtectionDomain>,
    mr: Arc<dyn MemoryRegion>,
    memory: Exposed,
    lid: u16,
}

/// A device that loses no message, however late its program posts the RECV.
fn open_device() -> Arc<dyn Device> {
    open_patient(LONG)
}

/// A device that keeps messages without a RECV for so long.
fn open_patient(patience: Duration) -> Arc<dyn Device> {
    let mut nodes = (1..=NodeAddress::MOST_NUMBERED).rev().filter_map(|number| {
        let node = Node::open_numbered(number).expect("a node opens, or its number is taken")?;
        Some((number, node))
    });
    let (number, node) = nodes.next().expect("not all numbers are taken");
    let mut options = SoftOptions::new(Profile::Infiniband);
    options.addressing = Addressing::Numbered(number);
    options.recv_patience = patience;
    SoftDevice::open_as(&node, options).expect("a device opens")
}

impl Post {
    fn open() -> Post {
        Post::on(&*open_device())
    }

    fn on(device: &dyn Device) -> Post {
        let pd = device.alloc_pd().expect("a domain");
        let bytes = SLOTS as usize * (HEAD + 2 * BYTES);
        let region = Region::alloc(bytes).expect("memory");
        let mr = pd.register(&region, 0..bytes, Access::LOCAL_WRITE).expect("a registration");
        let cq = device.create_cq(4000, None).expect("a completion queue");
        let limits =
            QueuePairLimits { send_depth: 1000, recv_depth: 1000, send_pieces: 1, recv_pieces: 1, inline_bytes: 0 };
        let init = QueuePairInit {
            kind: QueuePairKind::Ud,
            send_cq: cq.clone(),
            recv_cq: cq.clone(),
            limits,
            signal_all: true,
            srq: None,
        };
        let qp = pd.create_qp(&init).expect("a queue pair");
        let steps = [
            Transition::DatagramInit { port: 1, qkey: QKEY },
            Transition::DatagramReceive,
            Transition::DatagramSend { send_psn: 0 },
        ];
        steps.iter().for_each(|step| qp.modify(step).expect("a transition"));
        let lid = device.port(1).expect("port 1").lid;
        Post { qp, cq, pd, mr, memory: region.expose().expect("memory"), lid }
    }

    fn name(&self) -> String {
        format!("{} {}", self.lid, self.qp.qp_num())
    }

    fn handle(&self, lid: u16) -> Arc<dyn AddressHandle> {
        let path = AddressPath { port: 1, remote_gid: Gid::default(), remote_lid: lid, local_gid_index: 0 };
        self.pd.create_ah(&path).expect("an address handle")
    }

    fn piece(&self, at: usize, len: usize) -> Piece {
        Piece { memory: self.memory.slice(at..at + len), lkey: self.mr.lkey() }
    }

    fn recv(&self, number: u64) {
        let at = (number % SLOTS) as usize * (HEAD + BYTES);
        self.qp.post_recv(&[RecvRequest::new(number, [self.piece(at, HEAD + BYTES)])]).expect("a RECV is posted");
    }

    /// Reads the message of a RECV: its number, if all of it is as it was sent.
    #[track_caller]
    fn read(&self, recv: u64) -> u64 {
        let mut words = [0; BYTES];
        self.memory.read((recv % SLOTS) as usize * (HEAD + BYTES) + HEAD, &mut words);
        let number = u64::from_ne_bytes(*words.first_chunk().expect("eight bytes"));
        let whole = words.chunks(8).zip(number..).all(|(word, wanted)| word == wanted.to_ne_bytes());
        assert!(whole, "message {number} is not as it was sent");
        number
    }

    fn send(&self, to: &To, number: u64) {
        let at = SLOTS as usize * (HEAD + BYTES) + (number % SLOTS) as usize * BYTES;
        let message: Vec<u8> = (number..).take(BYTES / 8).flat_map(u64::to_ne_bytes).collect();
        self.memory.write(at, &message);
        let destination = Destination { handle: to.handle.number(), qp_num: to.qp_num, qkey: QKEY };
        let op = SendOp::SendTo { to: destination, imm: None };
        self.qp.post_send(&[SendRequest::new(number, op, [self.piece(at, BYTES)])]).expect("a SEND is posted");
    }

    fn poll(&self) -> Option<Completion> {
        let mut completions = [Completion::BLANK];
        let count = self.cq.poll(&mut completions).expect("the queue is large enough");
        (count == 1).then_some(completions[0])
    }

    /// The next completion, which is a success of this sort.
    #[track_caller]
    fn next(&self, opcode: CompletionOpcode) -> Completion {
        let done = until("a completion", || self.poll());
        assert_eq!((done.status, done.opcode), (CompletionStatus::Success, opcode));
        done
    }
}

/// Who gets messages.
struct To {
    handle: Arc<dyn AddressHandle>,
    lid: u16,
    qp_num: u32,
}

impl To {
    fn from_line(post: &Post, line: &str) -> To {
        let (lid, qp_num) = line.split_once(' ').expect("two words");
        To::new(post, lid.parse().expect("a LID"), qp_num.parse().expect("a number"))
    }

    fn new(post: &Post, lid: u16, qp_num: u32) -> To {
        To { handle: post.handle(lid), lid, qp_num }
    }
}

pub fn child(words: &[&str]) {
    match words[1] {
        "echo" => echo(u64::MAX),
        "heirs" => echo(50),
        "flood" => flood(),
        _ => leaks(),
    }
}

/// Sends everything back to where it came from, until it is killed or told to end. From time to time it forks a child that
/// drops all that it inherited.
fn echo(messages_an_heir: u64) {
    let post = Post::open();
    (0..SLOTS).for_each(|number| post.recv(number));
    Parent.tell(&post.name());
    std::thread::spawn(|| {
        assert_eq!(Parent.hear(), "end");
        std::process::exit(0);
    });
    let mut senders: Vec<To> = Vec::new();
    loop {
        let Some(done) = post.poll() else {
            std::thread::yield_now();
            continue;
        };
        assert_eq!(done.status, CompletionStatus::Success);
        if done.opcode == CompletionOpcode::Send {
            continue;
        }
        let origin = done.origin.expect("a datagram has an origin");
        assert!(!origin.grh, "it was sent to a LID");
        let known = senders.iter().position(|to| (to.lid, to.qp_num) == (origin.lid, origin.qp_num));
        let at = known.unwrap_or_else(|| {
            senders.push(To::new(&post, origin.lid, origin.qp_num));
            senders.len() - 1
        });
        let number = post.read(done.wr_id);
        post.send(&senders[at], number);
        post.recv(done.wr_id + SLOTS);
        if number % messages_an_heir == messages_an_heir - 1 {
            // SAFETY: the bits of handles, which only the child drops: its memory is its own.
            let inherited = unsafe { (std::ptr::read(&post), std::ptr::read(&senders)) };
            let heir = forked(move || {
                let refused = inherited.0.qp.modify(&Transition::Error);
                assert!(refused.is_err(), "it is the parent's");
                drop(inherited);
            });
            let ended = waitpid(Some(heir), WaitOptions::empty()).expect("a child").expect("its end");
            assert_eq!(ended.1.exit_status(), Some(0), "the child's end");
        }
    }
}

/// Sends until it is killed.
fn flood() {
    let post = Post::open();
    let to = To::from_line(&post, &Parent.hear());
    for number in 0.. {
        post.send(&to, number);
        if number >= WINDOW {
            until("a message that goes out", || post.poll());
        }
        if number == 2 * SLOTS {
            Parent.tell("under way");
        }
    }
}

/// Sends `messages` to an echo and waits for the answers.
fn exchange(post: &Post, to: &To, messages: u64) {
    (0..SLOTS).for_each(|number| post.recv(number));
    let (mut sent, mut done, mut received) = (0, 0, 0);
    while received < messages || done < messages {
        while sent < messages && sent < received + WINDOW {
            post.send(to, sent);
            sent += 1;
        }
        let completion = until("a message or its end", || post.poll());
        assert_eq!(completion.status, CompletionStatus::Success);
        if completion.opcode == CompletionOpcode::Send {
            assert_eq!(completion.wr_id, done, "sends complete in order");
            done += 1;
            continue;
        }
        assert_eq!(completion.origin.map(|origin| origin.qp_num), Some(to.qp_num));
        assert_eq!(post.read(completion.wr_id), received, "a message is lost");
        if received + SLOTS < messages {
            post.recv(received + SLOTS);
        }
        received += 1;
    }
}

#[test]
fn messages_go_there_and_back() {
    let mut child = Child::start("datagrams echo");
    let post = Post::open();
    let to = To::from_line(&post, &child.hear());
    exchange(&post, &to, rounds(20_000, 200_000).into());
    child.tell("end");
    child.finish();
}

#[test]
fn forked_children_that_drop_everything_do_no_harm() {
    let mut child = Child::start("datagrams heirs");
    let post = Post::open();
    let to = To::from_line(&post, &child.hear());
    exchange(&post, &to, 1000);
    child.tell("end");
    child.finish();
}

#[test]
fn several_threads_talk_to_several_processes() {
    let mut children = [(); 3].map(|()| Child::start("datagrams echo"));
    let names = children.each_mut().map(|child| child.hear());
    let device = open_device();
    std::thread::scope(|scope| {
        for name in names.iter().chain(&names) {
            let device = &device;
            scope.spawn(move || {
                let post = Post::on(&**device);
                let to = To::from_line(&post, name);
                exchange(&post, &to, 2_000);
            });
        }
    });
    for mut child in children {
        child.tell("end");
        child.finish();
    }
}

/// A receiver is killed while messages are under way to it.
#[test]
fn a_killed_receiver_is_no_failure() {
    let device = open_device();
    let mut other = Child::start("datagrams echo");
    let name = other.hear();
    for _ in 0..rounds(5, 50) {
        let post = Post::on(&*device);
        let mut child = Child::start("datagrams echo");
        let to = To::from_line(&post, &child.hear());
        let mut victim = Some(child);
        for number in 0..4 * SLOTS {
            if number == 2 * SLOTS {
                victim.take().expect("it is killed once").kill();
            }
            post.send(&to, number);
            post.next(CompletionOpcode::Send);
        }
        let fresh = Post::on(&*device);
        exchange(&fresh, &To::from_line(&fresh, &name), 100);
    }
    other.tell("end");
    other.finish();
}

/// A sender is killed while it sends.
#[test]
fn a_killed_sender_leaves_whole_messages() {
    let device = open_device();
    for _ in 0..rounds(5, 50) {
        let post = Post::on(&*device);
        (0..SLOTS).for_each(|number| post.recv(number));
        let mut child = Child::start("datagrams flood");
        child.tell(&post.name());
        for number in 0..2 * SLOTS {
            let done = post.next(CompletionOpcode::Recv);
            assert_eq!((done.wr_id, post.read(done.wr_id)), (number, number), "in order, and whole");
            post.recv(number + SLOTS);
        }
        child.kill();
        // What it left is whole, and in order, too.
        let mut number = 2 * SLOTS;
        while number < 3 * SLOTS {
            let Some(done) = post.poll() else { break };
            assert_eq!((done.wr_id, post.read(done.wr_id)), (number, number));
            number += 1;
        }
    }
}

/// A stopped receiver holds up those who talk to it, for a while, and nobody else.
#[test]
fn a_stopped_receiver_is_waited_for_and_given_up() {
    // Answers for which there are no RECVs hold up those behind them for so long.
    let device = open_patient(Duration::from_secs(1));
    let [post, other_post] = [(); 2].map(|()| Post::on(&*device));
    let [mut stopped, mut other] = [(); 2].map(|()| Child::start("datagrams echo"));
    let to = To::from_line(&post, &stopped.hear());
    let to_other = To::from_line(&other_post, &other.hear());
    exchange(&post, &to, 100);
    stopped.signal(Signal::STOP);
    // More than a ring holds.
    const MESSAGES: u64 = 800;
    (0..MESSAGES).for_each(|number| post.send(&to, number));
    exchange(&other_post, &to_other, 1000);
    for _ in 0..MESSAGES {
        post.next(CompletionOpcode::Send);
    }
    stopped.signal(Signal::CONT);
    // What is sent is lost until it has made room.
    let probe = Post::on(&*device);
    ask(&probe, &To::new(&probe, to.lid, to.qp_num), 0);
    // It answers what was in the ring, for which there are no RECVs, and works again.
    let fresh = Post::on(&*device);
    exchange(&fresh, &To::new(&fresh, to.lid, to.qp_num), 100);
    for mut child in [stopped, other] {
        child.tell("end");
        child.finish();
    }
}

/// Senders and receivers come and go, and nothing of them stays. Its own process, since other tests of this binary open
/// descriptors at the same time.
#[test]
fn nothing_of_senders_stays() {
    let mut child = Child::start("datagrams leaks");
    assert_eq!(child.hear(), "nothing leaked");
    child.finish();
}

/// Descriptors, mappings of shareable memory, and threads of this process.
fn holdings() -> [usize; 3] {
    let count = |path| std::fs::read_dir(path).expect("Linux lists them").count();
    let maps = std::fs::read_to_string("/proc/self/maps").expect("Linux lists them");
    let mappings = maps.lines().filter(|line| line.contains("memfd:fulmen")).count();
    [count("/proc/self/fd"), mappings, count("/proc/self/task")]
}

/// Sends one message, and waits until both sides have it.
fn pass(from: &Post, to: &To, into: &Post, number: u64) {
    into.recv(0);
    from.send(to, number);
    let mut left = 2;
    until("a message and its end", || {
        for side in [from, into] {
            left -= side.poll().map_or(0, |done| {
                assert_eq!(done.status, CompletionStatus::Success);
                1
            });
        }
        (left == 0).then_some(())
    });
}

/// Sends a message until it is answered. What goes to an address whose process was killed is lost, until that is known here.
fn ask(post: &Post, to: &To, number: u64) {
    post.recv(0);
    let mut sent: Option<Instant> = None;
    until("an answer", || {
        if sent.is_none_or(|sent| sent.elapsed() > Duration::from_secs(1)) {
            post.send(to, number);
            sent = Some(Instant::now());
        }
        let done = post.poll()?;
        assert_eq!(done.status, CompletionStatus::Success);
        (done.opcode == CompletionOpcode::Recv).then_some(())
    });
}

fn leaks() {
    let post = Post::open();
    let own = To::from_line(&post, &post.name());
    pass(&post, &own, &post, 0);
    let first = holdings();
    for cycle in 0..rounds(200, 1000) {
        // Both ways with a device of its own, which goes while the ways are open.
        let guest = Post::open();
        let (here, there) = (To::from_line(&guest, &post.name()), To::from_line(&post, &guest.name()));
        for (from, to, into) in [(&guest, &here, &post), (&post, &there, &guest), (&post, &own, &post)] {
            pass(from, to, into, cycle.into());
        }
        if cycle % 2 == 0 {
            drop((guest, here));
            drop(there);
        }
    }
    for cycle in 0..rounds(10, 100) {
        let mut child = Child::start("datagrams echo");
        let to = To::from_line(&post, &child.hear());
        ask(&post, &to, cycle.into());
        child.kill();
    }
    // Ways are kept a moment, and the system gives back descriptors and stacks a moment later.
    until("what there was at first is all there is", || {
        let now = holdings();
        (0..3).all(|at| now[at] <= first[at]).then_some(())
    });
    Parent.tell("nothing leaked");
}
