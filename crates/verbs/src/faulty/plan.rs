use std::time::Duration;

use crate::CompletionStatus;

/// How often something happens, or when.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Odds {
    per_million: u32,
    at: Option<u64>,
}

impl Odds {
    /// Never.
    pub const NEVER: Odds = Odds { per_million: 0, at: None };
    /// Each time.
    pub const ALWAYS: Odds = Odds { per_million: 1_000_000, at: None };

    /// Once in `count` times on average; never if `count` is 0.
    #[must_use]
    pub fn one_in(count: u32) -> Odds {
        Odds { per_million: 1_000_000_u32.checked_div(count).unwrap_or(0), at: None }
    }

    /// So many times in a million on average; each time from a million on.
    #[must_use]
    pub fn per_million(times: u32) -> Odds {
        Odds { per_million: times, at: None }
    }

    /// The `nth` time that it could happen on the device, counted from 1, and never else.
    #[must_use]
    pub fn at(nth: u64) -> Odds {
        Odds { per_million: 0, at: Some(nth) }
    }

    /// Whether it ever happens.
    pub(super) fn is_never(self) -> bool {
        self.per_million == 0 && self.at.is_none()
    }
}

/// What a device that was killed does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KillMode {
    /// Takes what is posted and never says anything again, like a driver that hangs.
    Silent,
    /// Fails everything: what is in flight completes with [`CompletionStatus::Fatal`], and calls are refused.
    FailsEverything,
}

/// When a device dies, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kill {
    /// The request that finds it dead, counted over all its queues.
    pub when: Odds,
    /// What it does then.
    pub mode: KillMode,
}

/// When the cable of a device is pulled, and for how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CablePull {
    /// The request, counted over all queues of the device, that finds it pulled.
    pub when: Odds,
    /// How long it is out; `None` for ever.
    pub lasts: Option<Duration>,
}

/// Which faults happen, and when. The same plan over the same requests (counted by queue pair, and queue pairs counted
/// in the order in which they are made) gives the same faults, whatever the timing. What happens at the n-th time is
/// counted over the device, so that several threads can share it out differently.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FaultPlan {
    /// Repeats the schedule.
    pub seed: u64,
    /// A send request is swallowed: on UC it completes as if it were sent, on RC it ends with
    /// [`CompletionStatus::RetryExceeded`].
    pub drop: Odds,
    /// A SEND arrives twice. On UC alone, and where the queue has room for it.
    pub duplicate: Odds,
    /// Some bit of a received message is flipped before its completion is handed out. On UC alone.
    pub corrupt: Odds,
    /// A completion, and those behind it, are withheld for some polls of the queue.
    pub delay: Odds,
    /// How many polls those are.
    pub delay_polls: u32,
    /// A post to the send queue is refused, as drivers do that run out of something.
    pub fail_post: Odds,
    /// A send request is not done and ends with [`FaultPlan::fail_status`], and its queue pair goes to ERR.
    pub fail_completion: Odds,
    /// How it ends.
    pub fail_status: CompletionStatus,
    /// The device dies.
    pub kill: Option<Kill>,
    /// Its cable is pulled: nothing goes out or comes in. A reliable request ends with
    /// [`CompletionStatus::RetryExceeded`] once its queue pair's time-outs are over, and goes out if the cable is back
    /// before; an unreliable one is lost, or waits where the device holds them. What peers send meanwhile is told when
    /// the cable is back; if it never is, peers see a side that is silent.
    pub cable: Option<CablePull>,
    /// A request ends the whole process, as `kill -9` would.
    pub kill_process: Odds,
}

impl FaultPlan {
    /// A plan without any faults, to be filled in.
    #[must_use]
    pub fn quiet(seed: u64) -> FaultPlan {
        FaultPlan {
            seed,
            drop: Odds::NEVER,
            duplicate: Odds::NEVER,
            corrupt: Odds::NEVER,
            delay: Odds::NEVER,
            delay_polls: 10,
            fail_post: Odds::NEVER,
            fail_completion: Odds::NEVER,
            fail_status: CompletionStatus::General,
            kill: None,
            cable: None,
            kill_process: Odds::NEVER,
        }
    }

    pub(super) fn odds(&self, fault: Fault) -> Odds {
        match fault {
            Fault::Drop => self.drop,
            Fault::Duplicate => self.duplicate,
            Fault::Corrupt => self.corrupt,
            Fault::Delay => self.delay,
            Fault::FailPost => self.fail_post,
            Fault::FailCompletion => self.fail_completion,
            Fault::Kill => self.kill.map_or(Odds::NEVER, |kill| kill.when),
            Fault::Cable => self.cable.map_or(Odds::NEVER, |cable| cable.when),
            Fault::KillProcess => self.kill_process,
        }
    }

    /// Whether a fault happens to a request of a queue pair, which is the `nth` that it could happen to.
    pub(super) fn strikes(&self, fault: Fault, pair: u64, request: u64, nth: u64) -> bool {
        let odds = self.odds(fault);
        odds.at == Some(nth)
            || odds.per_million > 0 && self.number(fault, pair, request) % 1_000_000 < u64::from(odds.per_million)
    }

    /// A number that depends on the seed and these alone.
    pub(super) fn number(&self, fault: Fault, pair: u64, request: u64) -> u64 {
        [fault as u64, pair, request].into_iter().fold(mix(self.seed), |mixed, part| mix(mixed ^ part))
    }
}

/// The faults that odds decide.
#[derive(Clone, Copy, Debug)]
pub(super) enum Fault {
    Drop,
    Duplicate,
    Corrupt,
    Delay,
    FailPost,
    FailCompletion,
    Kill,
    Cable,
    KillProcess,
}

impl Fault {
    pub(super) const COUNT: usize = 9;
}

/// The finisher of splitmix64: every bit of the input reaches every bit of the output.
fn mix(number: u64) -> u64 {
    let mut mixed = number.wrapping_add(0x9E37_79B9_7F4A_7C15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    mixed ^ (mixed >> 31)
}

/// How many faults were injected.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Injected {
    /// Requests swallowed.
    pub dropped: u64,
    /// SENDs posted twice.
    pub duplicated: u64,
    /// Messages damaged.
    pub corrupted: u64,
    /// Completions withheld for a while.
    pub delayed: u64,
    /// Posts refused.
    pub failed_posts: u64,
    /// Requests failed.
    pub failed_completions: u64,
}
