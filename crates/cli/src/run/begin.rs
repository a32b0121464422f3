//! The beginning of a run: hosts are reached, the meeting is opened, and ranks are started.

use std::fs::File;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

use super::hosts::{Bridge, Hosts, Stopped, Where};
use super::launcher::{Beginning, Launcher, refused};
use super::meeting::Meeting;
use super::rank::Kit;
use super::records::Records;
use super::relay::{Relay, Source};
use super::signals::Signals;
use super::starter::{Starter, pipes, reads, words};
use super::verdict::Seconds;
use super::{Job, Output, RunError, TIMED_OUT, processes};
use crate::output::say;

/// Runs the ranks and gives the exit code.
pub fn run(mut job: Job) -> anyhow::Result<u8> {
    let began = Instant::now();
    let ranks = job.ranks;
    let refused = |doing: &str, error| refused(ranks, doing, error);
    // A signal that was ignored when the command began, as under nohup, stays ignored.
    let mut signals =
        Signals::listen(processes::ignored_signals()).map_err(|error| refused("listen to signals", error))?;
    // The orphans of a supervisor that was killed come here. A process that was this one's child before has nothing to do
    // with the run: a shell that started it in the background and then became this command.
    let strangers = processes::children().unwrap_or_default();
    processes::adopt_orphans().map_err(|error| refused("adopt orphaned processes", error))?;
    let time_limit = job.timeout.and_then(|limit| Some((began.checked_add(limit)?, limit)));
    let records =
        Records::choose(job.trace.as_deref()).map_err(|error| refused("find the current directory", error))?;

    let hosts = job.hosts.take();
    let (meeting, connections) = match &hosts {
        None => (Meeting::open(ranks, job.silence, SocketAddr::from((Ipv4Addr::LOCALHOST, 0)))?, Vec::new()),
        Some(hosts) => match meet(&mut job, hosts, &mut signals, time_limit)? {
            Ok(met) => met,
            Err(code) => return Ok(code),
        },
    };

    let (labels, mut reader) = match std::mem::replace(&mut job.output, Output::Labelled) {
        Output::Labelled => (true, None),
        Output::Plain => (false, None),
        Output::Read(reader) => (true, Some(reader)),
    };
    let mut sources: Vec<Source> = Vec::new();
    let mut bridges = Vec::new();
    let others = hosts.iter().flat_map(|hosts| hosts.placement.others());
    for (host, connection) in others.zip(connections) {
        let (source, end) = words(&host.name).map_err(|error| refused("make pipes for the output", error))?;
        sources.push(source);
        let reads = host.first == 0 && reads();
        let bridge = Bridge::start(host.name.clone(), connection, end, reads, job.silence);
        bridges.push(bridge.map_err(|error| refused("start a thread for each host", error))?);
    }
    let kit = Kit {
        path: job.path.clone(),
        program: job.program.clone(),
        grace: job.grace,
        env: job.here(&hosts, &meeting, records.directory()),
        program_env: job.program_env.clone(),
        first: hosts
            .as_ref()
            .map_or(0, |hosts| hosts.placement.here().map_or(0, |here| hosts.placement.hosts[here].first)),
        secret: meeting.secret().to_owned(),
    };
    let nothing = File::open("/dev/null").map_err(|error| refused("open /dev/null", error))?;
    let starter = Starter { kit, hosts, nothing, labels };
    let mut ends = Vec::new();
    for rank in 0..ranks {
        // The first rank's lines are what a reader wants.
        let (two, pair) = pipes(rank, labels, reader.take(), starter.bridge_of(rank).is_some())
            .map_err(|error| refused("make pipes for the output", error))?;
        sources.extend(two);
        ends.push(pair);
    }
    let relay = Relay::start(sources).map_err(|error| refused("start the output thread", error))?;

    let mut launcher = Launcher::new(&job, Beginning { time_limit, bridges, records, signals, relay });
    let mut failure = None;
    for (rank, ends) in ends.into_iter().enumerate() {
        if let Err(error) = launcher.start(&starter, ends) {
            failure = Some(refused(&format!("start rank {rank}"), error));
            launcher.code = Some(2);
            launcher.kill_at = Some(Instant::now());
            break;
        }
    }
    launcher.drive(&starter)?;
    // Ranks that still need the coordinator are none of this run's.
    drop(meeting);
    launcher.end_orphans(&strangers)?;
    let code = launcher.finish_output()?;
    failure.map_or(Ok(code), |failure| Err(failure.into()))
}

/// A meeting, and the other hosts ready to start their ranks.
type Met = (Meeting, Vec<super::hosts::Connection>);

/// Reaches the other hosts and opens the meeting where they see it; or gives the exit code of a run that ends before it has begun.
fn meet(
    job: &mut Job,
    hosts: &Hosts,
    signals: &mut Signals,
    time_limit: Option<(Instant, Duration)>,
) -> anyhow::Result<Result<Met, u8>> {
    let until = time_limit.map(|(at, _)| at);
    let reached = match hosts.reach(signals, until) {
        Ok(reached) => reached,
        Err(stopped) => return stop(job, stopped, time_limit).map(Err),
    };
    let meeting = Meeting::open(job.ranks, job.silence, reached.listen)?;
    let port = meeting.address().port();
    job.place = hosts.placement.here().map(|here| reached.places[here].clone());
    match hosts.prepare(reached, job, meeting.secret(), port, signals) {
        Ok(connections) => Ok(Ok((meeting, connections))),
        Err(stopped) => stop(job, stopped, time_limit).map(Err),
    }
}

/// Says why a run ends before it has begun, and gives its exit code.
fn stop(job: &Job, stopped: Stopped, time_limit: Option<(Instant, Duration)>) -> anyhow::Result<u8> {
    match stopped {
        Stopped::Failed(errors) => {
            let mut errors = errors.into_iter();
            let first = errors.next().map(|first| {
                errors.for_each(|error| say(&error.to_string()));
                RunError::Host(Box::new(first))
            });
            first.map_or(Ok(1), |first| Err(first.into()))
        }
        Stopped::Asked(signal) => Ok(128 + signal.as_raw() as u8),
        Stopped::TimedOut => {
            let limit = time_limit.map_or(Duration::ZERO, |(_, limit)| limit);
            say(&format!("timed out after {}: not all hosts have answered (--timeout sets the limit)", Seconds(limit)));
            Ok(TIMED_OUT)
        }
        Stopped::System(error) => Err(refused(job.ranks, "wait for the hosts", error).into()),
    }
}

impl Hosts {
    /// Whether all ranks are on this machine.
    pub fn are_here(&self) -> bool {
        self.placement.hosts.iter().all(|host| host.whereabouts == Where::Here)
    }

    /// The most ranks that one of them has.
    pub fn most_together(&self) -> u32 {
        self.placement.hosts.iter().map(|host| host.count).max().unwrap_or(0)
    }
}
