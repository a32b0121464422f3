//! Signals as something to poll for.

use std::io;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use rustix::event::Timespec;
use rustix::process::Signal;
use signal_hook::consts::{SIGCHLD, SIGCONT, SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGTSTP, SIGUSR1, SIGUSR2};
use signal_hook::iterator::backend::SignalDelivery;
use signal_hook::iterator::exfiltrator::SignalOnly;
use signal_hook::low_level::signal_name;

/// The signals that are passed on to ranks.
const PASSED_ON: [i32; 8] = [SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2, SIGTSTP, SIGCONT];

/// The signals that reached this process. SIGCHLD is always among them, as [`Signal::CHILD`].
pub struct Signals {
    delivery: SignalDelivery<UnixStream, SignalOnly>,
    defaults: Arc<AtomicBool>,
}

impl Signals {
    /// Starts to listen to all signals that are passed on, except those in `left_alone` (bits: signal 1 is bit 0).
    pub fn listen(left_alone: u64) -> io::Result<Signals> {
        let (read, write) = UnixStream::pair()?;
        let wanted = PASSED_ON.into_iter().filter(|signal| left_alone & (1 << (signal - 1)) == 0);
        let defaults = Arc::new(AtomicBool::new(false));
        for signal in wanted.clone() {
            signal_hook::flag::register_conditional_default(signal, defaults.clone())?;
        }
        let delivery = SignalDelivery::with_pipe(read, write, SignalOnly, wanted.chain([SIGCHLD]))?;
        Ok(Signals { delivery, defaults })
    }

    /// From now on, each signal that is listened to also does what it does by default.
    pub fn restore_defaults(&self) {
        self.defaults.store(true, Ordering::SeqCst);
    }

    /// What is readable when a signal has come.
    pub fn socket(&self) -> &UnixStream {
        self.delivery.get_read()
    }

    /// The signals that have come since the last call.
    pub fn pending(&mut self) -> Vec<Signal> {
        self.delivery.pending().filter_map(Signal::from_named_raw).collect()
    }
}

/// Whether a program that does not handle this signal is ended by it on a user's wish.
pub fn asks_to_end(signal: Signal) -> bool {
    [Signal::HUP, Signal::INT, Signal::QUIT, Signal::TERM].contains(&signal)
}

/// `SIGTERM`, or `signal 64` where a number has no name.
pub fn name(signal: i32) -> String {
    signal_name(signal).map_or_else(|| format!("signal {signal}"), str::to_owned)
}

/// The time until `until` as poll takes it: never negative, an hour at most.
pub fn time_left(until: Instant) -> Timespec {
    let left = until.saturating_duration_since(Instant::now()).min(std::time::Duration::from_secs(3600));
    Timespec { tv_sec: left.as_secs() as _, tv_nsec: left.subsec_nanos() as _ }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signals_have_names() {
        assert_eq!(name(9), "SIGKILL");
        assert_eq!(name(63), "signal 63");
    }
}
