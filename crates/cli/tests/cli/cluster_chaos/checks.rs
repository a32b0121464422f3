//! What must be true of it all.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use super::faults::{Cut, Done, Kind, LINES};
use super::nodes::{Cluster, lock};
use super::{LATE, LIFE, LOOK, NAMES, NOTICE};

/// What all agents said at a moment.
pub(super) struct Moment {
    pub(super) since: Instant,
    pub(super) until: Instant,
    /// By name: whether it is in touch, and whom it names.
    pub(super) said: BTreeMap<&'static str, (bool, Option<String>)>,
}

pub(super) fn watch(cluster: &Cluster, over: &AtomicBool) -> Vec<Moment> {
    let mut moments = Vec::new();
    while !over.load(Ordering::Relaxed) {
        let since = Instant::now();
        let said = cluster.look().into_iter().zip(NAMES).filter_map(|(status, name)| {
            let cluster = status?.cluster;
            Some((name, (cluster.in_touch, cluster.coordinator)))
        });
        let said = said.collect();
        moments.push(Moment { since, until: Instant::now(), said });
        thread::sleep(LOOK);
    }
    moments
}

/// Nobody who is cut off takes itself for one of a majority, and there are no two coordinators.
pub(super) fn check_moments(moments: &[Moment], cuts: &[Cut]) {
    let mut checked = 0;
    for cut in cuts {
        // It was heard of last before the cut, and knows until when that lasts.
        let inside = |moment: &&Moment| moment.since >= cut.since + LIFE + LATE && moment.until <= cut.until;
        for moment in moments.iter().filter(inside) {
            checked += cut.minority.len();
            for name in &cut.minority {
                let said = moment.said.get(name);
                assert!(
                    said.is_none_or(|(in_touch, coordinator)| !in_touch && coordinator.is_none()),
                    "{name} was cut off {:?} ago, and says {said:?}",
                    moment.since - cut.since
                );
            }
        }
    }
    let longest = |two: &dyn Fn(&Moment) -> bool| {
        let mut longest = Duration::ZERO;
        let mut began = None;
        for moment in moments {
            began = two(moment).then(|| began.unwrap_or(moment.since));
            longest = longest.max(began.map_or(Duration::ZERO, |began| moment.until - began));
        }
        longest
    };
    // Who was in touch a moment ago may not have heard of another coordinator as long as its lease lasts.
    let named = |moment: &Moment| {
        moment.said.values().filter_map(|(_, name)| name.as_deref()).collect::<BTreeSet<_>>().len() > 1
    };
    // But a coordinator's own lease is over before there is another one.
    let coordinates =
        |moment: &Moment| moment.said.iter().filter(|(own, (_, named))| named.as_deref() == Some(**own)).count() > 1;
    eprintln!(
        "{} moments, {checked} of nodes that were long cut off: two coordinators were named for {:?}, and two took themselves for it for {:?}",
        moments.len(),
        longest(&named),
        longest(&coordinates)
    );
    assert!(longest(&named) < LIFE + LATE, "two coordinators were named for {:?}", longest(&named));
    assert!(longest(&coordinates) < LATE, "two took themselves for the coordinator for {:?}", longest(&coordinates));
}

/// What the audit logs say of a job's processes.
#[derive(Debug, Default)]
pub(super) struct Told {
    /// How many were started, by node.
    pub(super) started: BTreeMap<&'static str, usize>,
    pub(super) codes: Vec<Option<i64>>,
}

/// Each process has one outcome, but for those of agents that were killed; no number is used twice. Gives what is said of each job.
pub(super) fn check_audit(cluster: &Cluster) -> BTreeMap<String, Told> {
    let mut jobs = BTreeMap::<String, Told>::new();
    for node in &cluster.nodes {
        let killed = lock(&node.killed);
        let mut all = BTreeSet::new();
        let mut running = BTreeMap::<u64, String>::new();
        let mut agent = 0;
        let over = |agent: u64, running: &mut BTreeMap<u64, String>| {
            let told = running.is_empty() || killed.contains(&agent);
            assert!(told, "agent {agent} of {} has not said how these ended: {running:?}", node.name);
            running.clear();
        };
        for line in node.audit() {
            let id = || line["id"].as_u64().unwrap();
            match line["event"].as_str().unwrap() {
                "up" => {
                    over(agent, &mut running);
                    agent = line["pid"].as_u64().unwrap();
                }
                "spawned" => {
                    assert!(all.insert(id()), "{} has used number {} twice", node.name, id());
                    let job = line["command"].as_array().unwrap().last().unwrap().as_str().unwrap().to_owned();
                    *jobs.entry(job.clone()).or_default().started.entry(node.name).or_default() += 1;
                    running.insert(id(), job);
                }
                "ended" => {
                    let job = running.remove(&id());
                    let job = job.unwrap_or_else(|| panic!("{} ended, and did not run: {line}", node.name));
                    jobs.entry(job).or_default().codes.push(line["code"].as_i64());
                }
                _ => {}
            }
        }
        over(agent, &mut running);
    }
    jobs
}

/// Each command told the one thing that happened, which is what the logs say.
pub(super) fn check_commands(done: &[Done], jobs: &BTreeMap<String, Told>) {
    let nothing = Told::default();
    for job in done {
        let told = jobs.get(&format!("job-{}", job.number)).unwrap_or(&nothing);
        assert!(job.took < NOTICE, "{job:?} {told:?}");
        let most = if matches!(job.kind, Kind::All(_)) { NAMES.len() } else { 1 };
        if job.kind != Kind::Ranks {
            let once = told.started.values().all(|count| *count == 1) && told.started.len() <= most;
            assert!(once, "it was started more than once: {job:?} {told:?}");
        }
        let refused = job.code == Some(1) && job.err.starts_with("fulmen: ");
        // The agent there was ended.
        let ended = matches!(job.code, Some(143 | 137)) && job.err.contains("the agent ended the program");
        match job.kind {
            Kind::One(code) | Kind::All(code) => {
                let as_told = job.code == Some(code);
                assert!(as_told || refused || ended, "{job:?} {told:?}");
                let code = if code == 143 { None } else { Some(i64::from(code)) };
                assert!(!as_told || told.codes.contains(&code), "{job:?} {told:?}");
                assert!(job.code != Some(5) || job.out.lines().count() == LINES, "not all came: {job:?}");
            }
            Kind::Detached => assert!(refused || (job.code == Some(0) && !told.started.is_empty()), "{job:?}"),
            Kind::Left => assert!(refused || ended || job.code.is_none(), "{job:?}"),
            Kind::Ranks => assert!(job.code.is_some(), "{job:?}"),
        }
    }
}
