//! Linux: cgroups where the agent may make them, and a watch over memory where it may not.

use std::io;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use rustix::process::Pid;

use super::super::api::Limit;
use super::cgroup::{Cgroup, Cgroups};
use super::watch::{Looks, Watch};

/// How long killed processes may take to vanish, and how often that is looked at.
const VANISH: Duration = Duration::from_secs(30);
pub(super) const LOOK: Duration = Duration::from_millis(5);

/// What the agent holds processes to their limits with.
pub(in crate::agent) struct Limits {
    /// Whether they may be used.
    wanted: bool,
    /// Prepared when they are first needed: an agent that limits nothing stays where it is.
    cgroups: OnceLock<Result<Cgroups, String>>,
    looks: Arc<Looks>,
}

impl Limits {
    /// Nothing is done before it is asked for.
    pub(in crate::agent) fn new(cgroups: bool) -> Limits {
        Limits { wanted: cgroups, cgroups: OnceLock::new(), looks: Arc::default() }
    }

    fn cgroups(&self) -> Result<&Cgroups, String> {
        let prepare = || {
            if !self.wanted {
                return Err("the agent was told to use no cgroups (FULMEN_CGROUPS=off)".into());
            }
            let found = Cgroups::find();
            match &found {
                Ok(_) => tracing::info!("processes are limited by cgroups"),
                Err(problem) => tracing::info!(problem, "cgroups cannot be used"),
            }
            found
        };
        self.cgroups.get_or_init(prepare).as_ref().map_err(Clone::clone)
    }

    /// Prepares the limits of a process that is to be started. The system may take some time for it.
    pub(in crate::agent) fn bound(&self, limit: Limit, id: u64) -> io::Result<Bound> {
        let cgroups = self.cgroups();
        let cgroups = cgroups.as_ref();
        let able =
            |of: fn(&Cgroups) -> Result<(), String>| cgroups.map_err(Clone::clone).and_then(|cgroups| of(cgroups));
        if limit.cpu_millis.is_some() {
            let problem = |problem| io::Error::other(format!("its processors cannot be limited here: {problem}"));
            able(Cgroups::cpu).map_err(problem)?;
        }
        let watched = limit.memory_bytes.filter(|_| able(Cgroups::memory).is_err());
        let rest = Limit { memory_bytes: limit.memory_bytes.filter(|_| watched.is_none()), ..limit };
        let group = cgroups.ok().filter(|_| rest != Limit::default()).map(|cgroups| cgroups.create(rest, id));
        Ok(Bound {
            group: group.transpose()?,
            watch: watched.map(|bytes| Arc::new(Watch::new(self.looks.clone(), bytes))),
        })
    }
}

/// A process that is held to its limits, with all that descends from it.
pub(in crate::agent) struct Bound {
    /// By the system.
    group: Option<Cgroup>,
    /// By the agent, which looks.
    watch: Option<Arc<Watch>>,
}

impl Bound {
    /// Whether the process has to enter something before its program begins.
    pub(in crate::agent) fn is_entered(&self) -> bool {
        self.group.is_some()
    }

    /// Has the process enter it.
    pub(in crate::agent) fn enter(&self, leader: Pid) -> io::Result<()> {
        self.group.as_ref().map_or(Ok(()), |group| group.enter(leader))
    }

    /// Returns as soon as it uses too much and has to be killed; where the system does that, never.
    pub(in crate::agent) async fn exceeded(&self, leader: Pid) {
        match &self.watch {
            Some(watch) => watch.exceeded(leader).await,
            None => std::future::pending().await,
        }
    }

    /// Whether the system has killed it for that.
    pub(in crate::agent) fn was_exceeded(&self) -> bool {
        self.group.as_ref().is_some_and(Cgroup::was_exceeded)
    }

    /// Kills all that belongs to it, wherever it went.
    pub(in crate::agent) fn kill(&self) {
        match (&self.group, &self.watch) {
            (Some(group), _) => group.kill(),
            (None, Some(watch)) => drop(watch.kill()),
            (None, None) => {}
        }
    }

    /// Leaves nothing of it behind.
    pub(in crate::agent) async fn clear(&self) {
        let end = Instant::now() + VANISH;
        match (&self.group, &self.watch) {
            (Some(group), _) => {
                group.kill();
                group.remove(end).await;
            }
            // What has ended is a member until it was waited for, which the agent does.
            (None, Some(watch)) => {
                while watch.kill() && Instant::now() < end {
                    tokio::time::sleep(LOOK).await;
                }
            }
            (None, None) => {}
        }
    }
}
