//! Real processes that are killed or stopped while others wait for them.
//!
//! The test's own process is rank 0. The last rank is this binary again, which runs the test [`victim`] alone, in the role that
//! its environment names.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::task::Poll;
use std::thread;
use std::time::{Duration, Instant};

use crate::world::{self, CARRIERS, Carrier, LONG, options};
use fulmen_fabric::bootstrap::Serving;
use fulmen_fabric::{Coordinator, Fabric, FabricError, JoinConfig, Loss, On, Secret, Session};
use fulmen_soft::Profile;
use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};

const ROLE: &str = "FULMEN_TEST_ROLE";
const WORLD: &str = "FULMEN_TEST_WORLD";
/// Far above the documented 2 s, since this machine may be busy; what was measured is printed.
const BOUND: Duration = Duration::from_secs(30);

fn join(coordinator: SocketAddr, rank: u32, size: u32, secret: Secret, carrier: Carrier) -> Fabric {
    let session = Session::join(&JoinConfig { coordinator, rank, size, secret, deadline: LONG }).unwrap();
    Fabric::start(session, carrier.options(options()), carrier.providers()).unwrap()
}

/// The last rank in a process of its own, which ends with this value, or with the test's process: its standard input
/// closes.
pub struct Victim {
    child: Child,
    words: BufReader<std::process::ChildStdout>,
    /// Gone if a test has ended it.
    coordinator: Option<Serving>,
    secret: Secret,
}

impl Victim {
    /// Rank 1 of two, and rank 0 with it.
    fn start(role: &str, carrier: Carrier) -> (Fabric, Victim) {
        Victim::start_watched(role, carrier, world::SILENCE)
    }

    /// Rank 1 of two as this binary's test `test` plays it, and rank 0 with it.
    pub fn start_as(test: &str, role: &str, carrier: Carrier) -> (Fabric, Victim) {
        let mut victim = Victim::spawn_as(test, role, carrier, 2, world::SILENCE);
        let fabric = victim.join(0, 2, carrier);
        victim.hear("ready");
        (fabric, victim)
    }

    /// The same, where the coordinator takes a rank for lost that is silent for so long.
    fn start_watched(role: &str, carrier: Carrier, silence: Duration) -> (Fabric, Victim) {
        let mut victim = Victim::spawn(role, carrier, 2, silence);
        let fabric = victim.join(0, 2, carrier);
        victim.hear("ready");
        (fabric, victim)
    }

    /// The last rank of so many; the others are to join.
    fn spawn(role: &str, carrier: Carrier, size: u32, silence: Duration) -> Victim {
        Victim::spawn_as("liveness::victim", role, carrier, size, silence)
    }

    fn spawn_as(test: &str, role: &str, carrier: Carrier, size: u32, silence: Duration) -> Victim {
        let secret = Secret::generate().unwrap();
        let options = world::patient(silence);
        let coordinator = Coordinator::bind(([127, 0, 0, 1], 0).into(), size, secret.clone(), options).unwrap();
        let coordinator = coordinator.serve().unwrap();
        let address = coordinator.local_addr();
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", test, "--nocapture", "--test-threads=1"])
            .env(ROLE, role)
            .env(WORLD, format!("{address} {} {} {size}", secret.to_hex(), carrier.index()))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let words = BufReader::new(child.stdout.take().unwrap());
        Victim { child, words, coordinator: Some(coordinator), secret }
    }

    fn join(&self, rank: u32, size: u32, carrier: Carrier) -> Fabric {
        let coordinator = self.coordinator.as_ref().expect("a coordinator").local_addr();
        join(coordinator, rank, size, self.secret.clone(), carrier)
    }

    /// Reads what the victim says until it says this.
    pub fn hear(&mut self, word: &str) {
        let mut line = String::new();
        loop {
            line.clear();
            assert!(self.words.read_line(&mut line).unwrap() > 0, "the victim ended before it said \"{word}\"");
            if line.trim_end().ends_with(&format!("@{word}")) {
                return;
            }
        }
    }

    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// Stops it, and returns when all of its threads have stopped: then the system says so.
    pub fn stop(&self) {
        self.signal(Signal::STOP);
        let status = waitpid(Some(Pid::from_child(&self.child)), WaitOptions::UNTRACED).unwrap();
        assert!(status.is_some_and(|(_, status)| status.stopped()), "{status:?}");
    }
}

impl Drop for Victim {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub fn say(word: &str) {
    let mut out = std::io::stdout().lock();
    writeln!(out, "@{word}").unwrap();
    out.flush().unwrap();
}

/// The role and the fabric of this process, if it is another one's victim.
pub fn play() -> Option<(String, Fabric)> {
    let role = std::env::var(ROLE).ok()?;
    thread::spawn(|| {
        // Nobody is left to end this process.
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        std::process::exit(3);
    });
    let world = std::env::var(WORLD).unwrap();
    let [address, secret, carrier, size] = world.split(' ').collect::<Vec<_>>().try_into().unwrap();
    let carrier = CARRIERS[carrier.parse::<usize>().unwrap()];
    let size = size.parse().unwrap();
    Some((role, join(address.parse().unwrap(), size - 1, size, Secret::from_hex(secret).unwrap(), carrier)))
}

/// The other process. As a test of its own it does nothing.
#[test]
fn victim() {
    let Some((role, fabric)) = play() else { return };
    match role.as_str() {
        // It answers each message.
        "echo" => {
            say("ready");
            loop {
                let mut byte = [0; 1];
                fabric.recv_bytes(0, 1, &mut byte, LONG).unwrap();
                fabric.send_bytes(0, 2, &byte, LONG).unwrap();
            }
        }
        // It begins a long message that it cannot finish without the other.
        "midway" => {
            say("ready");
            let _ = fabric.send_bytes(0, 1, &vec![1; 20 << 20], LONG);
        }
        "window" => {
            say("ready");
            let _window = fabric.window(4096, LONG).unwrap();
            say("window");
            park();
        }
        // It offers two messages out of its window.
        "offers" => {
            say("ready");
            let window = fabric.window(OFFERED, LONG).unwrap();
            window.local().fill(0..OFFERED, 7);
            let sends = [1, 2].map(|tag| fabric.start_send(0, tag, window.local()).unwrap());
            say("offered");
            let _ = sends.map(|send| send.wait(LONG));
        }
        _ => say("ready"),
    }
    park();
}

/// Bytes of a message that is not sent in frames.
const OFFERED: usize = 64 << 10;

pub fn park() -> ! {
    loop {
        thread::park();
    }
}

/// Kills rank 1 while rank 0 is in `wait`, which must end with its loss.
fn kill_during(role: &str, op: &str, wait: impl Fn(&Fabric) -> FabricError) {
    for carrier in CARRIERS {
        println!("over {carrier:?}");
        let (fabric, victim) = Victim::start(role, carrier);
        kill(&fabric, &victim, role, op, || wait(&fabric));
    }
}

fn kill(fabric: &Fabric, victim: &Victim, role: &str, op: &str, wait: impl FnOnce() -> FabricError) {
    let (error, took) = thread::scope(|scope| {
        let killer = scope.spawn(|| {
            // The wait has most likely begun and is parked by then; the outcome is the same if not.
            thread::sleep(Duration::from_millis(100));
            victim.signal(Signal::KILL);
            Instant::now()
        });
        let error = wait();
        let ended = Instant::now();
        (error, ended.saturating_duration_since(killer.join().unwrap()))
    });
    let text = error.to_string();
    println!("{role}: {took:?} after the kill: {text}");
    assert!(matches!(error, FabricError::PeerLost { rank: 1, .. }), "{text}");
    assert!(text.contains(op) && text.contains("rank 1") && text.contains(&fabric.link_kind().to_string()), "{text}");
    assert!(took < BOUND, "it took {took:?}");
    assert!(fabric.loss(1).is_some_and(|loss| loss != Loss::Left), "a kill is no goodbye");
    // And from now on nothing waits.
    let again = Instant::now();
    let error = fabric.recv_bytes(1, 77, &mut [0], LONG).unwrap_err();
    assert!(matches!(error, FabricError::PeerLost { rank: 1, .. }), "{error}");
    assert!(again.elapsed() < BOUND);
}

/// Nothing was sent that could fail, and no coordinator tells of the death.
#[test]
fn a_kill_ends_a_receive_when_the_link_alone_tells_of_it() {
    for carrier in [Carrier::Reach, Carrier::Device(Profile::Infiniband), Carrier::Hosts(Profile::Infiniband)] {
        println!("over {carrier:?}");
        let (fabric, mut victim) = Victim::start("recv", carrier);
        drop(victim.coordinator.take());
        kill(&fabric, &victim, "recv", "recv", || fabric.recv_bytes(1, 1, &mut [0; 8], LONG).unwrap_err());
    }
}

#[test]
fn a_kill_ends_a_receive() {
    kill_during("recv", "recv", |fabric| fabric.recv_bytes(1, 1, &mut [0; 8], LONG).unwrap_err());
}

#[test]
fn a_kill_ends_a_receive_into_registered_memory_and_releases_it() {
    kill_during("recv", "recv", |fabric| {
        let memory = fabric.alloc(100_000).unwrap().into_exposed();
        let error = fabric.recv(1, 1, &memory, LONG).unwrap_err();
        assert!(memory.into_block().is_ok(), "nobody has the memory any more");
        error
    });
}

#[test]
fn a_kill_ends_a_receive_in_the_middle_of_a_message() {
    kill_during("midway", "recv", |fabric| {
        // The other tag's message fills what is kept, and then its sender waits.
        fabric.recv_bytes(1, 2, &mut [0; 8], LONG).unwrap_err()
    });
}

#[test]
fn a_kill_ends_a_send_by_rendezvous_and_releases_its_memory() {
    kill_during("send", "send", |fabric| {
        let memory = fabric.alloc(100_000).unwrap().into_exposed();
        let error = fabric.send(1, 1, &memory, LONG).unwrap_err();
        assert!(memory.into_block().is_ok(), "nobody has the memory any more");
        error
    });
}

#[test]
fn a_kill_ends_a_send_in_frames() {
    kill_during("send", "send", |fabric| fabric.send_bytes(1, 1, &vec![1; 20 << 20], LONG).unwrap_err());
}

#[test]
fn a_kill_ends_the_wait_for_a_handle() {
    kill_during("recv", "recv", |fabric| {
        let memory = fabric.alloc(8).unwrap().into_exposed();
        fabric.start_recv(1, 1, &memory).unwrap().wait(LONG).unwrap_err()
    });
}

#[test]
fn a_kill_ends_a_wait_on_a_window() {
    let (fabric, mut victim) = Victim::start("window", Carrier::Reach);
    let window = fabric.window(4096, LONG).unwrap();
    victim.hear("window");
    let word = window.peer(1).slice(0..8);
    let ready = || match word.atomic_u64(0).load(std::sync::atomic::Ordering::Acquire) {
        0 => Poll::Pending,
        _ => Poll::Ready(()),
    };
    kill(&fabric, &victim, "window", "my_wait", || fabric.wait("my_wait", On::All, LONG, ready).unwrap_err());
}

#[test]
fn survivors_of_a_kill_name_the_dead_rank_and_keep_their_links() {
    for carrier in CARRIERS {
        println!("over {carrier:?}");
        let mut victim = Victim::spawn("ready", carrier, 3, world::SILENCE);
        let fabrics = thread::scope(|scope| {
            let joining = [0, 1].map(|rank| {
                scope.spawn({
                    let victim = &victim;
                    move || victim.join(rank, 3, carrier)
                })
            });
            joining.map(|joining| joining.join().unwrap())
        });
        victim.hear("ready");
        thread::scope(|scope| {
            let waiting = [0, 1].map(|rank: usize| {
                let fabric = &fabrics[rank];
                scope.spawn(move || match rank {
                    // It finds out by its link, maybe before anybody says so.
                    0 => loop {
                        if let Err(error) = fabric.send_bytes(2, 1, &[1], LONG) {
                            break error;
                        }
                    },
                    _ => fabric.wait("my_wait", On::All, LONG, || Poll::<()>::Pending).unwrap_err(),
                })
            });
            victim.signal(Signal::KILL);
            for error in waiting.map(|waiting| waiting.join().unwrap()) {
                assert!(matches!(error, FabricError::PeerLost { rank: 2, .. }), "{error}");
            }
        });
        let [zero, one] = &fabrics;
        for (from, to) in [(zero, one), (one, zero)] {
            from.send_bytes(to.rank(), 1, &[1], LONG).unwrap();
            assert_eq!(to.recv_bytes(from.rank(), 1, &mut [0], LONG).unwrap(), 1);
            assert_eq!(to.loss(from.rank()), None);
        }
    }
}

#[test]
fn a_kill_ends_the_making_of_a_window() {
    let (fabric, victim) = Victim::start("recv", Carrier::Reach);
    let error = thread::scope(|scope| {
        scope.spawn(|| {
            // The window is most likely being made by then; the outcome is the same if not.
            thread::sleep(Duration::from_millis(100));
            victim.signal(Signal::KILL);
        });
        fabric.window(4096, LONG).unwrap_err()
    });
    let text = error.to_string();
    assert!(matches!(error, FabricError::Session { op: "window", .. }) && text.contains("rank 1"), "{text}");
}

#[test]
fn a_stopped_process_is_not_lost_and_goes_on_when_it_continues() {
    for carrier in CARRIERS {
        stop_and_continue(carrier);
    }
}

fn stop_and_continue(carrier: Carrier) {
    let (fabric, victim) = Victim::start("echo", carrier);
    let ask = |timeout| {
        fabric.send_bytes(1, 1, &[42], LONG).unwrap();
        let mut byte = [0];
        fabric.recv_bytes(1, 2, &mut byte, timeout).map(|_| byte)
    };
    assert_eq!(ask(LONG).unwrap(), [42]);
    victim.stop();
    let error = ask(Duration::from_secs(1)).unwrap_err();
    let text = error.to_string();
    assert!(matches!(&error, FabricError::TimedOut { op: "recv", missing, .. } if *missing == [1]), "{text}");
    assert!(text.contains("rank 1") && text.contains(&fabric.link_kind().to_string()), "{text}");
    assert_eq!(fabric.loss(1), None);
    victim.signal(Signal::CONT);
    // First the answer to the question that it got while it was stopped.
    let mut byte = [0];
    fabric.recv_bytes(1, 2, &mut byte, LONG).unwrap();
    assert_eq!(ask(LONG).unwrap(), [42]);
}

#[test]
fn a_deadline_also_bounds_the_wait_for_a_stopped_senders_memory() {
    let (fabric, mut victim) = Victim::start("offers", Carrier::Reach);
    // Its memory is mapped no longer when the messages come.
    drop(fabric.window(OFFERED, LONG).unwrap());
    victim.hear("offered");
    victim.stop();
    let into = fabric.alloc(OFFERED).unwrap().into_exposed();
    let error = fabric.recv(1, 1, &into, Duration::from_millis(300)).unwrap_err();
    assert!(matches!(&error, FabricError::TimedOut { op: "recv", missing, .. } if *missing == [1]), "{error}");
    // A receive that nobody waits for is tried again and again.
    let receive = fabric.start_recv(1, 2, &into).unwrap();
    victim.signal(Signal::CONT);
    assert_eq!(receive.wait(LONG).unwrap(), OFFERED as u64);
    assert_eq!(into.into_block().unwrap().as_slice::<u8>(), [7; OFFERED]);
}
