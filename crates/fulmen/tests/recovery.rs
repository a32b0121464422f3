//! Groups that go on after processes were killed or stopped: every rank is this test's own executable, started again.
#![cfg(target_os = "linux")]

use std::env;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::thread;
use std::time::Duration;

use fulmen::parts::fabric::bootstrap::{Heartbeat, Options as CoordinatorOptions, Serving};
use fulmen::parts::fabric::{Coordinator, Secret};
use fulmen::prelude::*;

use self::carriers::Carrier;

mod carriers;

/// Says what a rank that a test starts is to do when the group fails: `shrink` or `rejoin`.
const ROLE: &str = "FULMEN_TEST_RECOVERY";
/// How many elements it reduces.
const COUNT: &str = "FULMEN_TEST_COUNT";

const SIZE: u32 = 3;
/// No process is taken for lost because the machine is busy.
const PATIENT: Duration = Duration::from_secs(600);

/// The ranks themselves. Nothing when it runs as a test.
#[test]
fn a_rank() {
    let Ok(role) = env::var(ROLE) else { return };
    let count = env::var(COUNT).unwrap().parse().unwrap();
    let mut group = fulmen::init().unwrap();
    say(&group, "joined");
    let mut kept = group.alloc::<f32>(count).unwrap();
    let mut rounds = 0;
    loop {
        let done = round(&group, &mut kept, count);
        rounds += u32::from(done.is_ok());
        // Enough to know that all of the group go on.
        if done.is_ok() && rounds == 3 {
            say(&group, "works");
        }
        // All count the same rounds.
        let grow = role == "shrink, rejoin" && group.size() < SIZE && rounds == 10;
        let next = match done {
            Ok(()) if grow => group.rejoin(),
            Ok(()) => continue,
            Err(error) => {
                println!("\n@failed {error}");
                if role == "rejoin" { group.rejoin() } else { group.shrink() }
            }
        };
        match next {
            Ok(next) => {
                let later = group.barrier().unwrap_err();
                assert!(matches!(later, CollectiveError::Poisoned { .. }), "{later}");
                group = next;
            }
            Err(CollectiveError::Partitioned { with, without }) => {
                println!("\n@out {with:?} {without:?}");
                return;
            }
            // Nobody is left to go on with: the coordinator has gone with the test.
            Err(error) => panic!("{error}"),
        }
        rounds = 0;
        say(&group, "regrouped");
    }
}

/// Sums over all ranks, of a buffer that stays and of one that is new, are right bit by bit.
fn round(group: &Group, kept: &mut Buffer<f32>, count: usize) -> Result<(), CollectiveError> {
    let value = |member: u32, at: usize| 0.1 + member as f32 * 1.7 + (at % 1000) as f32 / 7.0;
    let me = group.members()[group.rank() as usize];
    let sum = |at: usize| {
        let (first, others) = group.members().split_first().unwrap();
        others.iter().fold(value(*first, at), |sum, member| sum + value(*member, at))
    };
    let mut fresh = group.alloc::<f32>(count)?;
    for buffer in [kept, &mut fresh] {
        buffer.iter_mut().enumerate().for_each(|(at, element)| *element = value(me, at));
        group.all_reduce(buffer, ReduceOp::Sum)?;
        for (at, element) in buffer.iter().enumerate() {
            assert_eq!(element.to_bits(), sum(at).to_bits(), "element {at}");
        }
    }
    Ok(())
}

fn say(group: &Group, word: &str) {
    let failed: Vec<u32> = group.failed().iter().map(|lost| lost.rank).collect();
    let generation = group.fabric().generation();
    // The harness has begun a line.
    println!("\n@{word} {:?} {failed:?} {generation:x} {}", group.members(), usage());
    std::io::stdout().flush().unwrap();
}

/// What a leak would make grow: descriptors, mappings, threads, KiB of memory.
fn usage() -> String {
    let count = |path: &str| fs::read_dir(path).unwrap().count();
    let maps = fs::read_to_string("/proc/self/maps").unwrap().lines().count();
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    let resident = resident.trim().trim_end_matches(" kB");
    format!("{} {maps} {} {resident}", count("/proc/self/fd"), count("/proc/self/task"))
}

/// Ranks that meet at a coordinator of this process.
struct World {
    coordinator: Serving,
    secret: Secret,
    role: &'static str,
    carrier: Carrier,
    count: usize,
}

impl World {
    fn new(role: &'static str, carrier: &Carrier, count: usize, silence: Duration) -> World {
        println!("over {carrier}");
        let secret = Secret::generate().unwrap();
        let heartbeat = Heartbeat { every: (silence / 5).min(Duration::from_secs(2)), silence };
        let options = CoordinatorOptions { heartbeat, ..CoordinatorOptions::default() };
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let coordinator = Coordinator::bind(address, SIZE, secret.clone(), options).unwrap().serve().unwrap();
        World { coordinator, secret, role, carrier: carrier.clone(), count }
    }

    fn start(&self, rank: u32) -> Rank {
        let mut command = Command::new(env::current_exe().unwrap());
        command.args(["--exact", "a_rank", "--nocapture", "--test-threads=1"]);
        self.start_program(rank, command.env(ROLE, self.role).env(COUNT, self.count.to_string()))
    }

    fn start_program(&self, rank: u32, command: &mut Command) -> Rank {
        let mut process = self
            .carrier
            .set(rank, command)
            .env("FULMEN_RANK", rank.to_string())
            .env("FULMEN_SIZE", SIZE.to_string())
            .env("FULMEN_COORDINATOR", self.coordinator.local_addr().to_string())
            .env("FULMEN_SECRET_FD", "0")
            .env("FULMEN_TIMEOUT", "120")
            .env("FULMEN_POOL", "64M")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        process.stdin.take().unwrap().write_all(self.secret.to_hex().as_bytes()).unwrap();
        let output = BufReader::new(process.stdout.take().unwrap());
        Rank { process, output }
    }

    fn start_all(&self) -> Vec<Rank> {
        let mut ranks: Vec<Rank> = (0..SIZE).map(|rank| self.start(rank)).collect();
        hear_all(&mut ranks, "works");
        ranks
    }
}

/// A process that does not outlive its test.
struct Rank {
    process: Child,
    output: BufReader<ChildStdout>,
}

/// What a rank says of itself.
#[derive(Debug, PartialEq)]
struct Said {
    members: String,
    failed: String,
    generation: String,
    usage: Vec<u64>,
}

impl Rank {
    /// Reads what it says until it says this, and gives what follows the word.
    fn hear(&mut self, word: &str) -> String {
        let mut line = String::new();
        loop {
            line.clear();
            assert!(self.output.read_line(&mut line).unwrap() > 0, "the rank ended before it said \"{word}\"");
            if let Some((_, rest)) = line.trim_end().split_once(&format!("@{word}")) {
                return rest.trim().to_owned();
            }
        }
    }

    fn said(&mut self, word: &str) -> Said {
        let text = self.hear(word);
        let (members, rest) = text.split_once("] [").unwrap();
        let (failed, rest) = rest.split_once("] ").unwrap();
        let (generation, usage) = rest.split_once(' ').unwrap();
        let usage = usage.split(' ').map(|number| number.parse().unwrap()).collect();
        Said {
            members: members.trim_start_matches('[').to_owned(),
            failed: failed.to_owned(),
            generation: generation.to_owned(),
            usage,
        }
    }

    fn signal(&self, signal: &str) {
        let sent = Command::new("kill").args([signal, &self.process.id().to_string()]).status().unwrap();
        assert!(sent.success());
    }
}

impl Drop for Rank {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// What all of them say; of the same group.
fn hear_all(ranks: &mut [Rank], word: &str) -> Vec<Said> {
    let said: Vec<Said> = ranks.iter_mut().map(|rank| rank.said(word)).collect();
    assert!(said.iter().all(|other| {
        (&other.members, &other.failed, &other.generation) == (&said[0].members, &said[0].failed, &said[0].generation)
    }));
    said
}

#[test]
fn survivors_shrink_until_one_is_left() {
    for carrier in Carrier::all() {
        let world = World::new("shrink", &carrier, 100_000, PATIENT);
        let mut ranks = world.start_all();
        drop(ranks.remove(1));
        for rank in &mut ranks {
            let failed = rank.hear("failed");
            assert!(failed.contains("was lost") || failed.contains("has ended"), "{failed}");
        }
        let said = hear_all(&mut ranks, "regrouped");
        assert_eq!((said[0].members.as_str(), said[0].failed.as_str()), ("0, 2", "1"));
        hear_all(&mut ranks, "works");
        // Of two, only the lower one goes on alone where the other one may live.
        let (victim, members, failed) = if carrier.hides_ends() { (1, "0", "2") } else { (0, "2", "0") };
        drop(ranks.remove(victim));
        let said = hear_all(&mut ranks, "regrouped");
        assert_eq!((said[0].members.as_str(), said[0].failed.as_str()), (members, failed));
        hear_all(&mut ranks, "works");
    }
}

/// How many kills in a row; of how many a leak is told from what is there once.
fn cycles() -> (usize, usize) {
    fulmen_testbed::by_tier((7, 3), (60, 20), (334, 50))
}

#[test]
fn processes_take_the_places_of_those_that_were_killed_and_nothing_is_left_of_them() {
    for carrier in Carrier::all() {
        let world = World::new("rejoin", &carrier, 20_000, PATIENT);
        let mut ranks = world.start_all();
        let mut usages: Vec<Vec<u64>> = Vec::new();
        let (cycles, settled) = cycles();
        for cycle in 0..cycles {
            // In the middle of whatever they do.
            thread::sleep(Duration::from_millis(cycle as u64 % 7));
            drop(ranks.pop());
            let replacement = world.start(SIZE - 1);
            ranks.push(replacement);
            let said = hear_all(&mut ranks[..2], "regrouped");
            assert_eq!((said[0].members.as_str(), said[0].failed.as_str()), ("0, 1, 2", "2"), "cycle {cycle}");
            let said = hear_all(&mut ranks, "works");
            usages.push(said[0].usage.clone());
        }
        println!("descriptors, mappings, threads, KiB: {:?} … {:?}", usages[settled], usages.last().unwrap());
        let first: Vec<u64> =
            (0..4).map(|what| usages[..=settled].iter().map(|usage| usage[what]).max().unwrap()).collect();
        let last = usages.last().unwrap();
        // The allocator may take some pages more; one leaked buffer a cycle would be more than that.
        let slack = [2, 8, 1, 16 << 10];
        for (what, (first, last)) in first.iter().zip(last).enumerate() {
            assert!(*last <= first + slack[what], "{what}: {first} became {last}: {usages:?}");
        }
    }
}

#[test]
fn a_group_shrinks_and_then_all_rejoin() {
    for carrier in Carrier::all() {
        let world = World::new("shrink, rejoin", &carrier, 1000, PATIENT);
        let mut ranks = world.start_all();
        for cycle in 0..fulmen_testbed::by_tier(3, 8, 30) {
            let victim = cycle % SIZE;
            drop(ranks.remove(victim as usize));
            let said = hear_all(&mut ranks, "regrouped");
            assert_eq!((said[0].members.len(), said[0].failed.as_str()), (4, &*victim.to_string()), "{said:?}");
            hear_all(&mut ranks, "works");
            ranks.insert(victim as usize, world.start(victim));
            for rank in (0..SIZE).filter(|rank| *rank != victim) {
                let said = ranks[rank as usize].said("regrouped");
                assert_eq!((said.members.as_str(), said.failed.as_str()), ("0, 1, 2", ""));
            }
            hear_all(&mut ranks, "works");
        }
    }
}

#[test]
fn what_a_rank_that_was_stopped_midway_writes_late_is_never_seen() {
    let rounds = fulmen_testbed::by_tier(1, 3, 10);
    thread::scope(|scope| {
        for carrier in Carrier::all() {
            scope.spawn(move || (0..rounds).for_each(|round| stop_midway(&carrier, round)));
        }
    });
}

fn stop_midway(carrier: &Carrier, round: u64) {
    // Buffers of 1 MB: most of the time goes into copies and into looking at them.
    let world = World::new("shrink", carrier, 250_000, Duration::from_secs(3));
    let mut ranks = world.start_all();
    thread::sleep(Duration::from_millis(17 * round));
    let mut stopped = ranks.remove(1);
    stopped.signal("-STOP");
    let said = hear_all(&mut ranks, "regrouped");
    assert_eq!((said[0].members.as_str(), said[0].failed.as_str()), ("0, 2", "1"));
    stopped.signal("-CONT");
    // They check each element, in the buffer that they had before and in new ones.
    hear_all(&mut ranks, "works");
    let out = stopped.hear("out");
    assert!(out.starts_with("[1]"), "{out}");
}

#[test]
fn the_example_survives_a_kill() {
    let examples = env::current_exe().unwrap().parent().unwrap().with_file_name("examples");
    let path = examples.join("recover");
    if !path.exists() {
        println!("it is not tried: it is built by `cargo test` without `--test`");
        return;
    }
    for (how, steps) in [("rejoin", "300"), ("shrink", "300")] {
        let world = World::new("", &Carrier::all()[0], 0, PATIENT);
        let start = |rank| world.start_program(rank, Command::new(&path).args([how, steps]));
        let mut ranks: Vec<Rank> = (0..SIZE).map(start).collect();
        for rank in &mut ranks {
            let mut line = String::new();
            rank.output.read_line(&mut line).unwrap();
            assert!(line.ends_with("at step 0\n"), "{line}");
        }
        drop(ranks.pop());
        let expected = if how == "rejoin" {
            ranks.push(start(SIZE - 1));
            "of 3: 300 steps are done"
        } else {
            "of 2: 300 steps are done"
        };
        for mut rank in ranks {
            let mut text = String::new();
            rank.output.read_to_string(&mut text).unwrap();
            assert!(rank.process.wait().unwrap().success() && text.contains(expected), "{text}");
        }
    }
}
