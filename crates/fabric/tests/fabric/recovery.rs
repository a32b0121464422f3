//! Ranks that go on after others were killed or stopped: real processes, over everything that carries links.
//!
//! The last rank is this binary again, which runs the test [`child`] alone; the others are threads of the test.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::atomic::Ordering;
use std::thread;
use std::time::Duration;

use crate::world::{self, CARRIERS, Carrier, LONG, options};
use fulmen_fabric::bootstrap::Serving;
use fulmen_fabric::{
    Coordinator, Fabric, FabricError, JoinConfig, Loss, On, RecoveryError, Regroup, RegroupError, Secret, Session,
    SessionError,
};
use fulmen_memory::Exposed;
use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};

const ROLE: &str = "FULMEN_TEST_RECOVERY";
const WORLD: &str = "FULMEN_TEST_RECOVERY_WORLD";
const SIZE: u32 = 3;
/// The rank that is a process of its own.
const LAST: u32 = SIZE - 1;
/// A message that is not sent in frames.
const LARGE: usize = 300_000;

fn join(config: &JoinConfig, carrier: Carrier) -> Fabric {
    let session = Session::join(config).unwrap();
    Fabric::start(session, carrier.options(options()), carrier.providers()).unwrap()
}

/// A coordinator, and what it takes to join.
struct World {
    coordinator: Serving,
    secret: Secret,
    carrier: Carrier,
}

impl World {
    fn new(carrier: Carrier, silence: Duration) -> World {
        println!("over {carrier:?}");
        let secret = Secret::generate().unwrap();
        let address = ([127, 0, 0, 1], 0).into();
        let coordinator = Coordinator::bind(address, SIZE, secret.clone(), world::patient(silence)).unwrap();
        World { coordinator: coordinator.serve().unwrap(), secret, carrier }
    }

    fn config(&self, rank: u32) -> JoinConfig {
        let (coordinator, secret) = (self.coordinator.local_addr(), self.secret.clone());
        JoinConfig { coordinator, rank, size: SIZE, secret, deadline: LONG }
    }

    /// The ranks of this process, joined.
    fn join_all(&self) -> Vec<Fabric> {
        thread::scope(|scope| {
            let joining: Vec<_> =
                (0..LAST).map(|rank| scope.spawn(move || join(&self.config(rank), self.carrier))).collect();
            joining.into_iter().map(|joining| joining.join().unwrap()).collect()
        })
    }

    fn spawn(&self, role: &str) -> Last {
        let address = self.coordinator.local_addr();
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "recovery::child", "--nocapture", "--test-threads=1"])
            .env(ROLE, role)
            .env(WORLD, format!("{address} {} {}", self.secret.to_hex(), self.carrier.index()))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let words = BufReader::new(child.stdout.take().unwrap());
        Last { child, words }
    }
}

/// The last rank. It ends with this value, or with the test's process: its standard input closes.
struct Last {
    child: Child,
    words: BufReader<ChildStdout>,
}

impl Last {
    /// Reads what it says until it says this, and gives what follows the word.
    fn hear(&mut self, word: &str) -> String {
        let mut line = String::new();
        loop {
            line.clear();
            assert!(self.words.read_line(&mut line).unwrap() > 0, "the process ended before it said \"{word}\"");
            if let Some((_, rest)) = line.trim_end().split_once(&format!("@{word}")) {
                return rest.trim().to_owned();
            }
        }
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// Stops it, and returns when all of its threads have stopped: then the system says so.
    fn stop(&self) {
        self.signal(Signal::STOP);
        let status = waitpid(Some(Pid::from_child(&self.child)), WaitOptions::UNTRACED).unwrap();
        assert!(status.is_some_and(|(_, status)| status.stopped()), "{status:?}");
    }
}

impl Drop for Last {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn say(word: &str) {
    let mut out = std::io::stdout().lock();
    writeln!(out, "@{word}").unwrap();
    out.flush().unwrap();
}

/// The other process. As a test of its own it does nothing.
#[test]
fn child() {
    let Ok(role) = std::env::var(ROLE) else { return };
    thread::spawn(|| {
        // Nobody is left to end this process.
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        std::process::exit(3);
    });
    let world = std::env::var(WORLD).unwrap();
    let [address, secret, carrier] = world.split(' ').collect::<Vec<_>>().try_into().unwrap();
    let carrier = CARRIERS[carrier.parse::<usize>().unwrap()];
    let secret = Secret::from_hex(secret).unwrap();
    let config = JoinConfig { coordinator: address.parse().unwrap(), rank: LAST, size: SIZE, secret, deadline: LONG };
    let fabric = join(&config, carrier);
    say("ready");
    match role.as_str() {
        // It takes part in exchanges, until there is nobody left.
        "exchange" => {
            while try_exchange(&fabric, None).is_ok() {
                say("exchanged");
            }
        }
        // It writes to rank 0's memory for ever, as a copy that was under way does.
        "scribble" => {
            let mut place = [0; 24];
            fabric.recv_bytes(0, 9, &mut place, LONG).unwrap();
            let [key, offset, len] = [0, 8, 16].map(|at| u64::from_le_bytes(place[at..at + 8].try_into().unwrap()));
            let target = fabric.map(0, fulmen_fabric::RegionRef { key, offset, len }).unwrap();
            for round in 0_u64.. {
                target.fill(0..len as usize, round as u8 | 1);
                match round {
                    3 => say("scribbles"),
                    _ if round.is_multiple_of(100) => say("goes on"),
                    _ => {}
                }
            }
        }
        // It waits for what does not come, until it is told otherwise.
        "wait" => {
            let error = fabric.recv_bytes(0, 77, &mut [0], LONG).unwrap_err();
            let kind = match &error {
                FabricError::PeerLost { rank, .. } => format!("lost {rank}"),
                _ => "other".to_owned(),
            };
            say(&format!("ended {kind}: {error}"));
            let error = fabric.regroup(Regroup::Survivors, LONG).unwrap_err();
            let out = matches!(error, RecoveryError::Regroup(RegroupError::Partitioned { .. }));
            say(&format!("out {out}: {error}"));
        }
        // It goes on by itself, as the other ranks do.
        "regroup" => {
            let error = fabric.wait("my_wait", On::All, LONG, || std::task::Poll::<()>::Pending).unwrap_err();
            say(&format!("ended {error}"));
            let fabric = fabric.regroup(Regroup::Survivors, LONG).unwrap();
            exchange(&fabric, None);
            say("exchanged");
        }
        _ => {}
    }
    loop {
        thread::park();
    }
}

pub fn exchange(fabric: &Fabric, own: Option<&Exposed>) {
    try_exchange(fabric, own).unwrap();
}

/// All ranks send one another a short and a large message, and find what was sent.
pub fn try_exchange(fabric: &Fabric, own: Option<&Exposed>) -> Result<(), FabricError> {
    let (rank, size) = (fabric.rank(), fabric.size());
    let data = own.cloned().unwrap_or_else(|| fabric.alloc(LARGE).unwrap().into_exposed());
    data.fill(0..LARGE, 10 + rank as u8);
    for peer in (0..size).filter(|peer| *peer != rank) {
        let sent = fabric.start_send(peer, 2, &data)?;
        fabric.send_bytes(peer, 1, &[rank as u8], LONG)?;
        let mut byte = [0];
        fabric.recv_bytes(peer, 1, &mut byte, LONG)?;
        assert_eq!(byte, [peer as u8]);
        let into = fabric.alloc(LARGE).unwrap().into_exposed();
        assert_eq!(fabric.recv(peer, 2, &into, LONG)?, LARGE);
        assert_eq!(into.into_block().unwrap().as_slice::<u8>(), [10 + peer as u8; LARGE]);
        sent.wait(LONG)?;
    }
    Ok(())
}

/// Runs this on each of the ranks of this process, and gives what it gives.
fn each<T: Send, U: Sync>(ranks: &[U], body: impl Fn(&U) -> T + Sync) -> Vec<T> {
    thread::scope(|scope| {
        let body = &body;
        let running: Vec<_> = ranks.iter().map(|rank| scope.spawn(move || body(rank))).collect();
        running.into_iter().map(|running| running.join().unwrap()).collect()
    })
}

fn is_loss_of_last(error: &FabricError) -> bool {
    matches!(error, FabricError::PeerLost { rank: LAST, .. })
}

#[test]
fn survivors_of_a_kill_go_on_and_a_new_process_takes_the_place() {
    for carrier in CARRIERS {
        let world = World::new(carrier, world::SILENCE);
        let mut last = world.spawn("exchange");
        let mut ranks = world.join_all();
        // Handles to what has ended keep no queue pair and no registration, of which a device may have few.
        let mut stale = Vec::new();
        for round in 0..fulmen_testbed::by_tier(2, 3, 5) {
            last.hear("ready");
            each(&ranks, |fabric| exchange(fabric, None));
            last.hear("exchanged");
            let old = ranks.clone();
            let kept: Vec<Exposed> = each(&old, |fabric| {
                let memory = fabric.alloc(LARGE).unwrap().into_exposed();
                memory.fill(0..LARGE, 77);
                memory
            });
            thread::scope(|scope| {
                let waits = [
                    scope.spawn(|| old[0].recv_bytes(LAST, 5, &mut [0], LONG).unwrap_err()),
                    scope.spawn(|| old[1].wait("w", On::All, LONG, || std::task::Poll::<()>::Pending).unwrap_err()),
                ];
                thread::sleep(Duration::from_millis(30));
                last.signal(Signal::KILL);
                for error in waits.map(|wait| wait.join().unwrap()) {
                    assert!(is_loss_of_last(&error), "{error}");
                }
            });
            // A rank that waits for another one that is not lost is told, too.
            ranks = thread::scope(|scope| {
                let waits = scope.spawn(|| old[1].recv_bytes(0, 6, &mut [0], LONG).unwrap_err());
                let first = scope.spawn(|| old[0].regroup(Regroup::Survivors, LONG).unwrap());
                let error = waits.join().unwrap();
                assert!(is_loss_of_last(&error), "{error}");
                let second = old[1].regroup(Regroup::Survivors, LONG).unwrap();
                vec![first.join().unwrap(), second]
            });
            let generation = ranks[0].generation();
            for (fabric, (old, kept)) in ranks.iter().zip(old.iter().zip(&kept)) {
                assert_eq!((fabric.size(), fabric.members(), fabric.generation()), (2, &[0, 1][..], generation));
                assert_ne!(fabric.generation(), old.generation());
                assert_eq!(fabric.failed().iter().map(|lost| lost.rank).collect::<Vec<_>>(), [LAST]);
                let error = old.send_bytes(1 - old.rank(), 1, &[1], LONG).unwrap_err();
                assert!(is_loss_of_last(&error), "{error}");
                let error = old.recv(1 - old.rank(), 1, kept, LONG).unwrap_err();
                assert!(is_loss_of_last(&error), "{error}");
                if carrier == Carrier::Reach {
                    let error = old.window(10, LONG).unwrap_err();
                    assert!(is_loss_of_last(&error), "{error}");
                    assert!(old.region_ref(kept).is_none() && fabric.region_ref(kept).is_some(), "the pool serves on");
                }
                let again = old.regroup(Regroup::Survivors, LONG).unwrap_err();
                assert!(matches!(again, RecoveryError::Regroup(RegroupError::Superseded)), "{again}");
                assert_eq!(old.pool().region().id(), fabric.pool().region().id());
                let mut bytes = vec![0; LARGE];
                kept.read(0, &mut bytes);
                assert!(bytes.iter().all(|byte| *byte == 77));
            }
            let pairs: Vec<_> = ranks.iter().zip(&kept).collect();
            each(&pairs, |(fabric, kept)| exchange(fabric, Some(kept)));
            stale.extend(old);
            stale.extend(ranks.iter().cloned());
            // The place is taken again.
            println!("round {round}: rejoin");
            last = world.spawn("exchange");
            ranks = each(&ranks, |fabric| fabric.regroup(Regroup::Everybody, LONG).unwrap());
            assert!(ranks.iter().all(|fabric| fabric.size() == SIZE && fabric.members() == [0, 1, 2]));
        }
        last.hear("ready");
        each(&ranks, |fabric| exchange(fabric, None));
        last.hear("exchanged");
    }
}

#[test]
fn what_a_stopped_rank_writes_late_is_never_seen() {
    let world = World::new(Carrier::Reach, Duration::from_secs(2));
    let mut last = world.spawn("scribble");
    let ranks = world.join_all();
    last.hear("ready");
    let len = 1 << 20;
    let target = ranks[0].alloc(len).unwrap().into_exposed();
    let at = ranks[0].region_ref(&target).unwrap();
    let place: Vec<u8> = [at.key, at.offset, at.len].iter().flat_map(|word| word.to_le_bytes()).collect();
    ranks[0].send_bytes(LAST, 9, &place, LONG).unwrap();
    last.hear("scribbles");
    last.stop();
    let errors = each(&ranks, |fabric| fabric.wait("w", On::All, LONG, || std::task::Poll::<()>::Pending).unwrap_err());
    for error in errors {
        assert!(is_loss_of_last(&error), "{error}");
    }
    let next = each(&ranks, |fabric| fabric.regroup(Regroup::Survivors, LONG).unwrap());
    assert_ne!(next[0].pool().region().id(), ranks[0].pool().region().id());
    target.fill(0..len, 0);
    last.signal(Signal::CONT);
    let mut bytes = vec![0; len];
    for _ in 0..4 {
        // It scribbles on: what was said before it was stopped was one word at most.
        last.hear("goes on");
        exchange_pair(&next);
        target.read(0, &mut bytes);
        assert!(bytes.iter().all(|byte| *byte == 0), "something of it is seen");
    }
    // The old memory is plain memory to the new generation, and of use.
    let old = ranks[0].pool().clone();
    drop(ranks);
    assert!(old.take(1).is_err());
    thread::scope(|scope| {
        target.fill(0..len, 5);
        scope.spawn(|| next[0].send(1, 3, &target, LONG).unwrap());
        let into = next[1].alloc(len).unwrap().into_exposed();
        next[1].recv(0, 3, &into, LONG).unwrap();
        assert!(into.into_block().unwrap().as_slice::<u8>().iter().all(|byte| *byte == 5));
    });
}

fn exchange_pair(ranks: &[Fabric]) {
    each(ranks, |fabric| exchange(fabric, None));
}

#[test]
fn a_rank_that_was_stopped_for_too_long_is_told_that_it_is_out() {
    for carrier in CARRIERS {
        let world = World::new(carrier, Duration::from_secs(2));
        let mut last = world.spawn("wait");
        let ranks = world.join_all();
        last.hear("ready");
        last.stop();
        let errors = each(&ranks, |fabric| fabric.recv_bytes(LAST, 1, &mut [0], LONG).unwrap_err());
        for error in errors {
            assert!(is_loss_of_last(&error), "{error}");
        }
        let next = each(&ranks, |fabric| fabric.regroup(Regroup::Survivors, LONG).unwrap());
        drop(ranks);
        exchange_pair(&next);
        last.signal(Signal::CONT);
        let ended = last.hear("ended");
        assert!(ended.starts_with("lost "), "{ended}");
        let out = last.hear("out");
        assert!(out.starts_with("true"), "{out}");
        exchange_pair(&next);
        drop(next);
    }
}

#[test]
fn a_rank_that_is_stopped_for_less_than_the_silence_is_not_lost() {
    for carrier in CARRIERS {
        let world = World::new(carrier, world::SILENCE);
        let mut last = world.spawn("exchange");
        let ranks = world.join_all();
        last.hear("ready");
        thread::scope(|scope| {
            let exchanging = scope.spawn(|| each(&ranks, |fabric| exchange(fabric, None)));
            last.stop();
            thread::sleep(Duration::from_millis(500));
            assert!(ranks.iter().all(|fabric| fabric.loss(LAST).is_none()));
            last.signal(Signal::CONT);
            exchanging.join().unwrap();
        });
        last.hear("exchanged");
    }
}

#[test]
fn nobody_regroups_without_the_others() {
    let world = World::new(Carrier::Reach, world::SILENCE);
    let mut last = world.spawn("wait");
    let ranks = world.join_all();
    last.hear("ready");
    let error = ranks[0].regroup(Regroup::Survivors, Duration::from_millis(500)).unwrap_err();
    let RecoveryError::Regroup(RegroupError::TimedOut { missing, .. }) = &error else { panic!("{error}") };
    assert!(missing.contains(&1), "{error}");
    // Nothing of the generation goes on, and all can ask again.
    let error = ranks[0].recv_bytes(1, 1, &mut [0], LONG).unwrap_err();
    assert!(matches!(error, FabricError::Ended { .. }), "{error}");
    let error = ranks[1].recv_bytes(LAST, 1, &mut [0], LONG).unwrap_err();
    assert!(matches!(error, FabricError::PeerLost { rank: 0, cause: Loss::Regroups, .. }), "{error}");
    let error = ranks[1].window(10, LONG).unwrap_err();
    assert!(matches!(error, FabricError::PeerLost { rank: 0, cause: Loss::Regroups, .. }), "{error}");
    last.hear("ended");
    drop(last);
    let next = each(&ranks, |fabric| fabric.regroup(Regroup::Survivors, LONG).unwrap());
    exchange_pair(&next);
}

#[test]
fn all_handles_of_an_old_generation_fail_at_once() {
    for carrier in CARRIERS {
        let world = World::new(carrier, world::SILENCE);
        let mut last = world.spawn("regroup");
        let ranks = world.join_all();
        last.hear("ready");
        thread::scope(|scope| {
            // Threads of rank 0 that wait for rank 1 in every way, while another one regroups.
            let fabric = &ranks[0];
            let sent = fabric.alloc(LARGE).unwrap().into_exposed();
            let memory = sent.clone();
            let waits = [
                scope.spawn(move || fabric.recv_bytes(1, 1, &mut [0], LONG).unwrap_err()),
                scope.spawn(move || fabric.send(1, 2, &memory, LONG).unwrap_err()),
                scope.spawn(move || {
                    let memory = fabric.alloc(LARGE).unwrap().into_exposed();
                    fabric.start_recv(1, 3, &memory).unwrap().wait(LONG).unwrap_err()
                }),
                scope.spawn(move || fabric.send_bytes(1, 4, &vec![0; 20 << 20], LONG).unwrap_err()),
                scope.spawn(move || fabric.agree("a", Ok::<(), FabricError>(()), LONG).unwrap_err()),
            ];
            let operation = {
                let memory = fabric.alloc(LARGE).unwrap().into_exposed();
                fabric.start_recv(1, 8, &memory).unwrap()
            };
            thread::sleep(Duration::from_millis(50));
            let next = each(&ranks, |fabric| fabric.regroup(Regroup::Survivors, LONG).unwrap());
            for error in waits.map(|wait| wait.join().unwrap()) {
                let ended = matches!(error, FabricError::Ended { .. } | FabricError::PeerLost { .. });
                let session = matches!(&error, FabricError::Session { cause: SessionError::Regrouping { .. }, .. });
                assert!(ended || session, "{error}");
            }
            assert!(sent.into_block().is_ok(), "nobody has the memory any more");
            let error = operation.wait(LONG).unwrap_err();
            assert!(matches!(error, FabricError::Ended { .. } | FabricError::PeerLost { .. }), "{error}");
            assert_eq!((next[0].size(), next[0].failed()), (SIZE, &[][..]));
            exchange_pair(&next);
        });
        let ended = last.hear("ended");
        assert!(ended.contains("new generation"), "{ended}");
        last.hear("exchanged");
    }
}

#[test]
fn a_callback_is_called_once_at_the_end() {
    use std::sync::Arc;
    use std::sync::atomic::AtomicU32;

    // Its coordinator is there as long as this goes on.
    world::run(1, |fabric| {
        let called = Arc::new(AtomicU32::new(0));
        let callback: Arc<dyn Fn(&str) + Send + Sync> = Arc::new({
            let called = called.clone();
            move |why| {
                assert!(why.contains("has ended"), "{why}");
                called.fetch_add(1, Ordering::SeqCst);
            }
        });
        fabric.on_end(Arc::downgrade(&callback));
        let _next = fabric.regroup(Regroup::Survivors, LONG).unwrap();
        assert_eq!(called.load(Ordering::SeqCst), 1);
        fabric.on_end(Arc::downgrade(&callback));
        assert_eq!(called.load(Ordering::SeqCst), 2, "at once");
    });
}

#[test]
fn shares_and_keys_end_with_their_generation() {
    use fulmen_fabric::engine::Rights;

    for carrier in CARRIERS {
        let world = World::new(carrier, world::SILENCE);
        let mut last = world.spawn("");
        let ranks = world.join_all();
        last.hear("ready");
        let [zero, one] = [0, 1].map(|rank: usize| &ranks[rank]);
        let memory = zero.alloc(64).unwrap().into_exposed();
        memory.fill(0..64, 0);
        let share = zero.share(&memory, Rights::all()).unwrap();
        let key = share.key();
        let remote = one.remote(0, &key).unwrap();
        let old = remote.fetch_add(0, 5, LONG);
        assert!(matches!(old, Ok(0)), "{old:?}; {:?}", zero.loss(1));
        thread::scope(|scope| {
            let waits = scope.spawn(|| share.wait_counter(8, 1, LONG).unwrap_err());
            last.signal(Signal::KILL);
            let error = waits.join().unwrap();
            assert!(is_loss_of_last(&error), "{error}");
        });
        let next = each(&ranks, |fabric| fabric.regroup(Regroup::Survivors, LONG).unwrap());
        let errors = [
            remote.fetch_add(0, 5, LONG).unwrap_err(),
            remote.put_bytes(0, &[9; 64], LONG).unwrap_err(),
            one.remote(0, &key).unwrap_err(),
            one.flush(0, LONG).unwrap_err(),
            zero.share(&memory, Rights::all()).unwrap_err(),
            share.wait_counter(8, 1, LONG).unwrap_err(),
        ];
        for error in errors {
            assert!(is_loss_of_last(&error), "{error}");
        }
        // The memory can be shared anew, and the old key is good for nothing.
        let again = next[0].share(&memory, Rights::all()).unwrap();
        let error = next[1].remote(0, &key).and_then(|remote| remote.fetch_add(0, 5, LONG)).unwrap_err();
        assert!(matches!(error, FabricError::NoSuchKey { .. }), "{error}");
        drop(share);
        assert_eq!(memory.atomic_u64(0).load(Ordering::SeqCst), 5);
        assert_eq!(next[1].remote(0, &again.key()).unwrap().fetch_add(0, 5, LONG).unwrap(), 5);
    }
}
