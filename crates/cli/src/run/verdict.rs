//! How a run ended: which rank failed first, and the exit code.

use std::fmt;
use std::io;
use std::path::Path;
use std::time::Duration;

use signal_hook::consts::{SIGBUS, SIGFPE, SIGILL, SIGKILL, SIGSEGV, SIGSYS};

use super::control::{Event, limit_of};
use super::hosts::UNREACHED;
use super::signals;

/// How one rank ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// Its program ended or could not be started.
    Told(Event),
    /// Its supervisor was killed by this signal and took the program with it.
    Lost(i32),
    /// Its host cannot be reached any more, so nobody knows.
    HostLost,
}

impl Ending {
    /// Whether the rank did its work.
    pub fn is_success(self) -> bool {
        self == Ending::Told(Event::Exited(0))
    }

    /// Whether this happens to a rank from outside or by a fault of its own, and not because it noticed that another has
    /// failed: then it gave up in order, with an exit code, SIGABRT or SIGPIPE.
    pub fn is_sudden(self) -> bool {
        const SUDDEN: [i32; 6] = [SIGKILL, SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGSYS];
        match self {
            Ending::Told(Event::Signaled(signal)) => SUDDEN.contains(&signal),
            Ending::Told(_) => false,
            Ending::Lost(_) | Ending::HostLost => true,
        }
    }

    /// Whether a rank that ended so can be started again: its program ran, failed, and left nothing behind.
    pub fn can_start_again(self) -> bool {
        matches!(self, Ending::Told(Event::Exited(_) | Event::Signaled(_))) && !self.is_success()
    }

    /// The code that a shell would give.
    pub fn exit_code(self) -> u8 {
        match self {
            Ending::Told(Event::Exited(code)) => code as u8,
            Ending::Told(Event::Signaled(signal) | Event::Lost(signal)) | Ending::Lost(signal) => {
                128 + (signal & 0x7f) as u8
            }
            Ending::Told(Event::HostLost) | Ending::HostLost => UNREACHED,
            Ending::Told(Event::NoProcess(_)) => 2,
            Ending::Told(Event::NotExecuted(_)) => 126,
            Ending::Told(Event::Left(_)) => 1,
        }
    }

    /// `exited with code 3`, and so on. `path` is the program.
    pub fn describe(self, path: &Path) -> String {
        match self {
            Ending::Told(Event::Exited(code)) => format!("exited with code {code}"),
            Ending::Told(Event::Signaled(signal)) => format!("killed by {}", signals::name(signal)),
            Ending::Told(Event::NoProcess(errno)) => match system_error(errno) {
                (_, Some(limit)) => format!("cannot start: {limit}"),
                (error, None) => format!("cannot start: {error}"),
            },
            Ending::Told(Event::NotExecuted(errno)) => {
                let error = system_error(errno).0;
                let hint = match error.kind() {
                    io::ErrorKind::NotFound => " (does the interpreter in its first line exist?)",
                    _ => "",
                };
                format!("cannot execute {}: {error}{hint}", path.display())
            }
            Ending::Told(Event::Left(count)) => format!("left {count} processes that do not end"),
            Ending::Told(Event::Lost(signal)) | Ending::Lost(signal) => {
                format!("its supervising process was killed by {}", signals::name(signal))
            }
            Ending::Told(Event::HostLost) | Ending::HostLost => "its host is lost".to_string(),
        }
    }
}

/// The end of a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ended {
    /// How it ended.
    pub how: Ending,
    /// The last signal by which its program had been asked to end before, or 0.
    pub asked: i32,
    /// When (`control::now`). Of a rank on another host that is no more exact than what is known of that host's clock.
    pub at: Duration,
}

/// Which rank failed first, as far as it is known: of the ends of all ranks, in their order. Who had not been asked to end comes before
/// who had, whatever clocks say: the others are asked when one has failed. A rank that gave up after another's sudden end may
/// be reported before it, so sudden ends come first. Those by the launcher's own SIGKILL, at `killed_at`, are nobody's failure.
pub fn first_failure(ends: impl Iterator<Item = Option<Ended>>, killed_at: Option<Duration>) -> Option<(usize, Ended)> {
    let failures = ends.enumerate().filter_map(|(index, ended)| {
        let ended = ended.filter(|ended| !ended.how.is_success())?;
        let killed = killed_at.is_some_and(|killed_at| ended.asked == SIGKILL || ended.at >= killed_at);
        (!(ended.how.is_sudden() && killed)).then_some((index, ended))
    });
    failures.min_by_key(|&(index, ended)| (ended.asked != 0, !ended.how.is_sudden(), ended.at, index))
}

fn system_error(errno: i32) -> (io::Error, Option<&'static str>) {
    let error = io::Error::from_raw_os_error(errno);
    let limit = limit_of(&error);
    (error, limit)
}

/// A time span in words: `0.25 s`, `1.2 s`, `130 s`.
pub struct Seconds(pub Duration);

impl fmt::Display for Seconds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.0.as_secs_f64();
        match seconds {
            ..0.995 => write!(f, "{seconds:.2} s"),
            ..99.95 => write!(f, "{seconds:.1} s"),
            _ => write!(f, "{seconds:.0} s"),
        }
    }
}

/// Ranks in words: `rank 3`, `ranks 0, 2 and 3`, and only a few of many.
pub fn name_ranks(ranks: &[u32]) -> String {
    const SHOWN: usize = 8;
    match ranks {
        [] => "no rank".to_string(),
        [rank] => format!("rank {rank}"),
        [.., last] => {
            let shown: Vec<String> = ranks.iter().take(SHOWN.min(ranks.len() - 1)).map(u32::to_string).collect();
            let rest = ranks.len() - shown.len();
            let end = if rest == 1 { last.to_string() } else { format!("{rest} others") };
            format!("ranks {} and {end}", shown.join(", "))
        }
    }
}

#[cfg(test)]
mod tests {
    use signal_hook::consts::SIGTERM;

    use super::*;

    #[test]
    fn codes_are_those_of_a_shell() {
        assert_eq!(Ending::Told(Event::Exited(7)).exit_code(), 7);
        assert_eq!(Ending::Told(Event::Signaled(9)).exit_code(), 137);
        assert_eq!(Ending::Lost(15).exit_code(), 143);
        assert_eq!(Ending::Told(Event::NotExecuted(8)).exit_code(), 126);
        assert_eq!(Ending::HostLost.exit_code(), 255);
        assert!(Ending::Told(Event::Exited(0)).is_success());
        assert!(!Ending::Told(Event::Exited(256)).is_success());
        assert!(Ending::Told(Event::Signaled(9)).can_start_again() && Ending::Told(Event::Exited(1)).can_start_again());
        assert!(!Ending::Told(Event::Exited(0)).can_start_again() && !Ending::Lost(9).can_start_again());
    }

    #[test]
    fn giving_up_is_not_sudden() {
        assert!(Ending::Told(Event::Signaled(SIGKILL)).is_sudden() && Ending::Lost(15).is_sudden());
        assert!(Ending::HostLost.is_sudden() && !Ending::HostLost.can_start_again());
        assert!(!Ending::Told(Event::Signaled(6)).is_sudden() && !Ending::Told(Event::Exited(1)).is_sudden());
    }

    #[test]
    fn the_cause_is_blamed_and_not_those_who_noticed_it() {
        let asked =
            |asked, event, millis| Some(Ended { how: Ending::Told(event), asked, at: Duration::from_millis(millis) });
        let at = |event, millis| asked(0, event, millis);
        let first = |ends: &[Option<Ended>], killed_at: Option<u64>| {
            first_failure(ends.iter().copied(), killed_at.map(Duration::from_millis)).map(|(index, _)| index)
        };
        let [gave_up, earlier, fine] = [at(Event::Exited(9), 20), at(Event::Exited(9), 10), at(Event::Exited(0), 0)];
        let killed = at(Event::Signaled(SIGKILL), 3000);
        assert_eq!(first(&[fine, None, fine], None), None);
        assert_eq!(first(&[fine, gave_up, None, earlier], None), Some(3));
        // Its supervisor had no processor for seconds.
        assert_eq!(first(&[fine, gave_up, killed, earlier], None), Some(2));
        assert_eq!(first(&[fine, gave_up, killed, earlier], Some(3001)), Some(2));
        // The launcher did it.
        assert_eq!(first(&[fine, gave_up, killed, earlier], Some(3000)), Some(3));
        assert_eq!(first(&[fine, killed], Some(0)), None);
        // Of another host, whose clock is believed to be behind: the launcher did these as well.
        let [ended, crashed] =
            [Event::Signaled(SIGTERM), Event::Signaled(SIGSEGV)].map(|event| asked(SIGTERM, event, 1));
        assert_eq!(first(&[fine, ended, crashed, gave_up], None), Some(3));
        assert_eq!(first(&[fine, asked(SIGKILL, Event::Signaled(SIGKILL), 1)], Some(3000)), None);
        // All were asked to end, but one of them had been killed before.
        assert_eq!(first(&[ended, killed], None), Some(1));
        assert_eq!(first(&[fine, ended, crashed], None), Some(2));
    }

    #[test]
    fn endings_name_the_way_out() {
        let path = Path::new("/x");
        let describe = |event| Ending::Told(event).describe(path);
        assert!(describe(Event::NoProcess(rustix::io::Errno::AGAIN.raw_os_error())).contains("ulimit -u"));
        assert!(describe(Event::NoProcess(rustix::io::Errno::MFILE.raw_os_error())).contains("ulimit -n"));
        assert!(describe(Event::NotExecuted(rustix::io::Errno::NOENT.raw_os_error())).contains("interpreter"));
        assert_eq!(describe(Event::Signaled(9)), "killed by SIGKILL");
    }

    #[test]
    fn ranks_and_times_read_well() {
        assert_eq!(name_ranks(&[3]), "rank 3");
        assert_eq!(name_ranks(&[0, 2]), "ranks 0 and 2");
        assert_eq!(name_ranks(&[0, 2, 3]), "ranks 0, 2 and 3");
        let many: Vec<u32> = (0..20).collect();
        assert_eq!(name_ranks(&many), "ranks 0, 1, 2, 3, 4, 5, 6, 7 and 12 others");
        let shown = [0.25, 1.24, 130.2].map(|seconds| Seconds(Duration::from_secs_f64(seconds)).to_string());
        assert_eq!(shown, ["0.25 s", "1.2 s", "130 s"]);
    }
}
