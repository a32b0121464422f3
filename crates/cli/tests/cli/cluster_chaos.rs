//! Agents on four hosts, which work while some are killed, stopped, cut off and started again: nothing is lost, done twice or left behind.
//!
//! `FULMEN_CHAOS_SEED` repeats a run's plan, and `FULMEN_CHAOS_SECONDS` says how long faults go on.

mod checks;
mod faults;
mod nodes;

use std::collections::BTreeSet;
use std::env;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use fulmen_testbed::Link;

use crate::random::Random;
use checks::{check_audit, check_commands, check_moments, watch};
use faults::{Done, Kind, ask, cut, fail};
use nodes::{Cluster, Node, descriptors, memory};

const NAMES: [&str; 4] = ["a", "b", "c", "d"];
const SLOTS: u32 = 4;
/// Loops that have something run.
const LOOPS: u64 = 8;
/// How long a node is taken for up after it was heard of last.
const LIFE: Duration = Duration::from_secs(5);
/// How much later than it should something may be seen, on machines that do much else.
const LATE: Duration = Duration::from_secs(1);
/// How often all agents are asked what they know, and how long an answer may take to count as one of that moment.
const LOOK: Duration = Duration::from_millis(150);
const AT_ONCE: Duration = Duration::from_millis(300);
/// How long nodes may take to agree again, once all is well.
const AGREE: Duration = Duration::from_secs(30);
/// How long it may take until a node notices that another one, or the way to it, is gone, with all that waits for that.
const NOTICE: Duration = Duration::from_secs(45);
/// Descriptors that an agent may have more than after its start: connections that it and three others keep for the next request.
const KEPT: usize = 2 * 3 * 4;
/// Bytes of memory that an agent may use: what it remembers of processes has a bound.
const MEMORY: u64 = 300 << 20;

/// What threads end by.
struct End<'a>([&'a AtomicBool; 2]);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.iter().for_each(|end| end.store(true, Ordering::Relaxed));
    }
}

fn number(name: &str) -> Option<u64> {
    env::var(name).ok().map(|text| text.parse().unwrap_or_else(|_| panic!("{name}={text} is no number")))
}

#[test]
fn nothing_is_lost_done_twice_or_left_behind() {
    let length = Duration::from_secs(number("FULMEN_CHAOS_SECONDS").unwrap_or(fulmen_testbed::by_tier(20, 40, 60)));
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
    let seed = number("FULMEN_CHAOS_SEED").unwrap_or(now.as_micros() as u64 % 1_000_000);
    let Some(cluster) = Cluster::or_skip("agents under faults", Link::new().seed(seed)) else { return };
    eprintln!("FULMEN_CHAOS_SEED={seed}, for {length:?}");
    let mut random = Random(seed);
    let before = cluster.nodes.iter().map(|node| descriptors(node.agent())).max().unwrap();

    let (began, over, quiet) = (Instant::now(), AtomicBool::new(false), AtomicBool::new(false));
    let until = began + length;
    let tell = move |what: &str| eprintln!("{:6.2} s: {what}", began.elapsed().as_secs_f64());
    let numbers = AtomicU64::new(0);
    let (done, cuts, moments) = thread::scope(|scope| {
        let (cluster, over, quiet, numbers, tell) = (&cluster, &over, &quiet, &numbers, &tell);
        // Also if this fails: threads would go on for ever.
        let _end = End([over, quiet]);
        let [fails, cuts] = [random.next(), random.next()].map(Random);
        let loops: Vec<Random> = (0..LOOPS).map(|_| Random(random.next())).collect();
        let loops = loops.into_iter().map(|random| scope.spawn(move || ask(cluster, random, numbers, over)));
        let loops: Vec<_> = loops.collect();
        let watcher = scope.spawn(move || watch(cluster, quiet));
        let fails = scope.spawn(move || fail(cluster, fails, until, tell));
        let cuts = scope.spawn(move || cut(cluster, cuts, until, tell));
        let (fails, cuts) = (fails.join(), cuts.join());
        over.store(true, Ordering::Relaxed);
        let agreed = fails.is_ok().then(|| cluster.wait_agreed());
        let done: Vec<_> = loops.into_iter().map(thread::ScopedJoinHandle::join).collect();
        quiet.store(true, Ordering::Relaxed);
        let moments = watcher.join().unwrap();
        fails.unwrap();
        drop(agreed);
        let done: Vec<Done> = done.into_iter().flat_map(|done| done.unwrap()).collect();
        (done, cuts.unwrap(), moments)
    });
    tell(&format!("all is quiet after {} commands", done.len()));

    cluster.wait_agreed();
    cluster.within(NOTICE, "nothing to run any more", || {
        cluster.look().into_iter().all(|status| {
            status.is_some_and(|status| {
                status.running == 0 && status.cluster.nodes.iter().all(|node| node.slots_taken == 0)
            })
        })
    });
    cluster.within(NOTICE, "connections to be closed", || {
        let now = |node: &Node| descriptors(node.agent());
        cluster.nodes.iter().all(|node| now(node) <= before + KEPT)
    });
    for node in &cluster.nodes {
        let (agent, status) = (node.agent(), node.status());
        tell(&format!(
            "{}: {} descriptors (at most {before} at first), {} MiB, {:?} started",
            node.name,
            descriptors(agent),
            memory(agent) >> 20,
            status.map(|status| status.spawned)
        ));
        assert!(memory(agent) < MEMORY, "{} uses {} bytes", node.name, memory(agent));
    }
    cluster.down();
    check_moments(&moments, &cuts);
    check_commands(&done, &check_audit(&cluster));
    let slowest = done.iter().max_by_key(|job| job.took).unwrap();
    tell(&format!("the slowest command: {slowest:?}"));
    let well = done.iter().filter(|job| matches!(job.kind, Kind::One(code) if job.code == Some(code))).count();
    tell(&format!("{well} processes did what they were asked for"));
    assert!(well > 0, "nothing worked at all");
}

/// Most of the nodes go on without the one that all looked to, and it knows that it is alone.
#[test]
fn the_rest_goes_on_without_a_coordinator_that_is_cut_off() {
    let Some(cluster) = Cluster::or_skip("a coordinator that is cut off", Link::new()) else { return };
    for _ in 0..2 {
        let old = cluster.wait_agreed();
        let waits = cluster.named(if old == "a" { "b" } else { "a" });
        let mut work = waits.run("spawn", &["--node", &old, "--", "sh", "-c", "echo on; exec sleep 1000"]);
        work.wait_for("on", 1);
        cluster.cut_off(&[&old]);
        let cut = Instant::now();
        let named = || -> Vec<Option<String>> {
            let all = cluster.look().into_iter().zip(NAMES);
            all.map(|(status, _)| status.and_then(|status| status.cluster.coordinator)).collect()
        };
        // If it led the registry, too, another one is elected first, and gives it all its time once more. An election
        // may be in vain, and the next one begins up to two seconds later: there is time for two more.
        cluster.within(3 * LIFE + 2 * LATE, "the others to have another coordinator", || {
            let rest: BTreeSet<_> = named().into_iter().zip(NAMES).filter(|(_, name)| *name != old).collect();
            let rest: BTreeSet<_> = rest.into_iter().map(|(coordinator, _)| coordinator).collect();
            rest.len() == 1 && rest.first().unwrap().as_ref().is_some_and(|now| *now != old)
        });
        eprintln!("another coordinator after {:?}", cut.elapsed());
        // What is agreed on among the rest does not wait for it.
        let token = waits.run("token", &[]).end();
        assert_eq!(token.code, Some(0), "{}", token.err);
        let mut alone = None;
        cluster.within(NOTICE, "the one that is cut off to answer at once", || {
            alone = cluster.named(&old).status();
            alone.is_some()
        });
        let alone = alone.unwrap().cluster;
        assert!(!alone.in_touch && alone.coordinator.is_none(), "{alone:?}");
        // Nothing says that the connection is gone but that nothing comes.
        assert_eq!(work.wait_exit().code(), Some(1));
        eprintln!("its caller knows after {:?}", cut.elapsed());
        let ended = || cluster.named(&old).audit().iter().any(|line| line["because"] == "caller-gone");
        cluster.within(NOTICE, "the process there to end", ended);
        eprintln!("its process ended after {:?}", cut.elapsed());
        cluster.net.heal();
        let mended = Instant::now();
        cluster.wait_agreed();
        eprintln!("all agree {:?} after it was mended", mended.elapsed());
    }
    cluster.down();
}

/// Nodes far from one another, between which a new connection takes longer than the registry waits for an answer.
#[test]
fn nodes_that_are_far_from_each_other_agree() {
    let far = Link::new().delay(Duration::from_millis(60));
    let Some(cluster) = Cluster::or_skip("nodes far from one another", far) else { return };
    let coordinator = cluster.wait_agreed();
    let coordinator = cluster.named(&coordinator);
    coordinator.kill_agent();
    coordinator.start(None);
    cluster.wait_agreed();
    let ended = coordinator.run("spawn", &["--all", "--", "sh", "-c", "exit 7"]).end();
    assert_eq!((ended.code, &*ended.err), (Some(7), ""));
    cluster.down();
}
