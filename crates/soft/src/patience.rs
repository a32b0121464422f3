//! How long a message that finds no RECV is kept, over transports that may lose it.

use std::time::{Duration, Instant};

/// Of one queue pair. Its rule: [`SoftOptions::recv_patience`](crate::SoftOptions::recv_patience).
#[derive(Debug)]
pub(crate) struct Patience {
    long: Duration,
    /// Since when a message waits.
    since: Option<Instant>,
    /// A message was kept in vain, and there was no RECV since.
    spent: bool,
}

impl Patience {
    pub(crate) fn new(long: Duration) -> Patience {
        Patience { long, since: None, spent: false }
    }

    /// The next message finds no RECV: whether it is lost.
    pub(crate) fn is_over(&mut self) -> bool {
        if self.spent || self.long.is_zero() {
            return true;
        }
        if self.since.get_or_insert_with(Instant::now).elapsed() < self.long {
            return false;
        }
        (self.since, self.spent) = (None, true);
        true
    }

    /// There is a RECV again.
    #[inline]
    pub(crate) fn renew(&mut self) {
        (self.since, self.spent) = (None, false);
    }

    /// When the message that waits is lost, if one does.
    pub(crate) fn until(&self) -> Option<Instant> {
        self.since.map(|since| since + self.long)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_patience_everything_is_lost_at_once() {
        let mut none = Patience::new(Duration::ZERO);
        assert!(none.is_over() && none.is_over());
        assert_eq!(none.until(), None);
    }

    #[test]
    fn one_message_is_kept_and_those_after_it_are_not_until_there_is_a_recv() {
        let long = Duration::from_millis(5);
        let mut patience = Patience::new(long);
        let start = Instant::now();
        for round in 0..2 {
            assert!(round == 1 || !patience.is_over() || start.elapsed() >= long);
            while !patience.is_over() {
                assert!(patience.until().is_some());
                std::thread::yield_now();
            }
            assert!(start.elapsed() >= long);
            assert!(patience.is_over() && patience.until().is_none());
            patience.renew();
        }
    }
}
