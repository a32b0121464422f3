//! What a process has written, and how it ended: read by any number of readers, each at its own pace.
//!
//! The newest bytes are kept in memory, up to a bound. One reader may be the *holder*, for whom the process waits: it never misses
//! anything, and a process that writes faster than it reads is held up, as by a pipe. Others that fall behind are told how much they
//! missed.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;

use super::api::{Data, Event, Outcome, Stream};

/// The most bytes of output that are kept of a process.
const KEPT: u64 = 1 << 20;
/// How far the holder may be behind.
const AHEAD: u64 = KEPT / 2;
/// How much of standard error is looked at for the last line, and how many characters of that count.
const WORDS: usize = 4 << 10;
const LINE: usize = 200;

pub(super) struct Log {
    kept: Mutex<Kept>,
    /// Bytes and ends so far; changes with everything that happens.
    head: watch::Sender<u64>,
    /// The bytes that the holder has read; all there will ever be, if there is no holder.
    held: watch::Sender<u64>,
}

#[derive(Default)]
struct Kept {
    /// Where each piece begins, counted in bytes that were written.
    pieces: VecDeque<(u64, Stream, Vec<u8>)>,
    end: u64,
    outcome: Option<Outcome>,
}

/// A place in the log.
#[derive(Default)]
pub(super) struct Reader {
    at: u64,
    over: bool,
}

impl Log {
    pub(super) fn new(held: bool) -> Log {
        let kept = Mutex::default();
        Log { kept, head: watch::Sender::new(0), held: watch::Sender::new(if held { 0 } else { u64::MAX }) }
    }

    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds what was written, as soon as the holder is not too far behind.
    pub(super) async fn write(&self, stream: Stream, bytes: &[u8]) {
        let mut held = self.held.subscribe();
        let behind = |held: &u64| self.kept().end.saturating_sub(*held) < AHEAD;
        // It can only fail without a sender, which this log has.
        let _ = held.wait_for(behind).await;
        let mut kept = self.kept();
        let at = kept.end;
        kept.pieces.push_back((at, stream, bytes.to_vec()));
        kept.end += bytes.len() as u64;
        while kept.pieces.len() > 1 && kept.end - kept.pieces[0].0 - kept.pieces[0].2.len() as u64 >= KEPT {
            kept.pieces.pop_front();
        }
        drop(kept);
        self.head.send_modify(|head| *head += 1);
    }

    /// It has ended; nothing is written any more.
    pub(super) fn end(&self, outcome: Outcome) {
        self.kept().outcome = Some(outcome);
        self.head.send_modify(|head| *head += 1);
    }

    /// The last line of standard error that says something.
    pub(super) fn last_words(&self) -> Option<String> {
        let mut end: VecDeque<u8> = VecDeque::new();
        let kept = self.kept();
        for (_, _, bytes) in kept.pieces.iter().rev().filter(|(_, stream, _)| *stream == Stream::Stderr) {
            bytes.iter().rev().for_each(|byte| end.push_front(*byte));
            if end.len() >= WORDS {
                break;
            }
        }
        drop(kept);
        let text = String::from_utf8_lossy(end.make_contiguous()).into_owned();
        let plain = |line: &str| line.chars().filter(|c| !c.is_control()).collect::<String>().trim().to_owned();
        let line = text.lines().rev().map(plain).find(|line| !line.is_empty())?;
        Some(line.chars().take(LINE).collect())
    }

    pub(super) fn outcome(&self) -> Option<Outcome> {
        self.kept().outcome.clone()
    }

    /// There is no holder any more.
    pub(super) fn release(&self) {
        self.held.send_replace(u64::MAX);
    }

    /// What happened next, once it has; `None` after the end.
    pub(super) async fn next(&self, reader: &mut Reader, holds: bool) -> Option<Event> {
        let mut head = self.head.subscribe();
        loop {
            head.borrow_and_update();
            if let Some(event) = self.look(reader) {
                if holds {
                    self.held.send_replace(reader.at);
                }
                return Some(event);
            }
            if reader.over {
                return None;
            }
            let _ = head.changed().await;
        }
    }

    fn look(&self, reader: &mut Reader) -> Option<Event> {
        let kept = self.kept();
        let first = kept.pieces.front().map_or(kept.end, |(at, ..)| *at);
        if reader.at < first {
            let bytes = first - reader.at;
            reader.at = first;
            return Some(Event::Missed { bytes });
        }
        let next = kept.pieces.partition_point(|(at, ..)| *at < reader.at);
        if let Some((at, stream, bytes)) = kept.pieces.get(next) {
            reader.at = at + bytes.len() as u64;
            return Some(Event::Output { stream: *stream, data: Data::new(bytes) });
        }
        let outcome = kept.outcome.clone().filter(|_| !reader.over)?;
        reader.over = true;
        Some(Event::Ended(outcome))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    const OUTCOME: Outcome = Outcome { code: Some(0), signal: None, because: None, ran_ms: 1, said: None };

    fn run<T>(test: impl Future<Output = T>) -> T {
        tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(test)
    }

    async fn all(log: &Log, holds: bool) -> (Vec<u8>, u64) {
        let (mut reader, mut bytes, mut missed) = (Reader::default(), Vec::new(), 0);
        while let Some(event) = log.next(&mut reader, holds).await {
            match event {
                Event::Output { data, .. } => bytes.extend(data.bytes().unwrap()),
                Event::Missed { bytes } => missed += bytes,
                Event::Ended(outcome) => assert_eq!(outcome, OUTCOME),
                Event::Started(_) => unreachable!(),
            }
        }
        (bytes, missed)
    }

    #[test]
    fn every_reader_has_it_all_in_order() {
        run(async {
            let log = Arc::new(Log::new(false));
            let early = tokio::spawn({
                let log = log.clone();
                async move { all(&log, false).await }
            });
            for piece in 0..100_u8 {
                log.write(if piece % 2 == 0 { Stream::Stdout } else { Stream::Stderr }, &[piece; 3]).await;
                tokio::task::yield_now().await;
            }
            log.end(OUTCOME);
            let expected: Vec<u8> = (0..100_u8).flat_map(|piece| [piece; 3]).collect();
            assert_eq!(early.await.unwrap(), (expected.clone(), 0));
            assert_eq!(all(&log, false).await, (expected, 0));
        });
    }

    #[test]
    fn the_last_line_of_standard_error_is_what_was_said() {
        run(async {
            let log = Log::new(false);
            assert_eq!(log.last_words(), None);
            log.write(Stream::Stderr, b"first\nno such \x1bfi").await;
            log.write(Stream::Stdout, b"not this\n").await;
            log.write(Stream::Stderr, b"le\n\n  \n").await;
            assert_eq!(log.last_words().as_deref(), Some("no such file"));
            log.write(Stream::Stderr, &[b'x'; 10_000]).await;
            assert_eq!(log.last_words(), Some("x".repeat(LINE)));
        });
    }

    #[test]
    fn what_is_kept_has_a_bound_and_what_is_not_is_counted() {
        run(async {
            let log = Log::new(false);
            for piece in 0..48_u8 {
                log.write(Stream::Stdout, &vec![piece; 64 << 10]).await;
            }
            log.end(OUTCOME);
            let (bytes, missed) = all(&log, false).await;
            assert_eq!(bytes.len() as u64 + missed, 48 * (64 << 10));
            assert!((KEPT..=KEPT + (64 << 10)).contains(&(bytes.len() as u64)), "{}", bytes.len());
            assert_eq!(bytes.last(), Some(&47));
        });
    }

    #[test]
    fn the_process_waits_for_the_holder_until_there_is_none() {
        run(async {
            let log = Arc::new(Log::new(true));
            let writer = tokio::spawn({
                let log = log.clone();
                async move {
                    for _ in 0..64 {
                        log.write(Stream::Stdout, &[0; 64 << 10]).await;
                    }
                    log.end(OUTCOME);
                }
            });
            // As often as it could have written all.
            for _ in 0..1000 {
                tokio::task::yield_now().await;
            }
            assert!(!writer.is_finished() && log.kept().end <= AHEAD + (64 << 10));
            let (mut reader, mut got) = (Reader::default(), 0);
            while got < 2 * KEPT {
                match log.next(&mut reader, true).await {
                    Some(Event::Output { data, .. }) => got += data.bytes().unwrap().len() as u64,
                    other => panic!("{other:?}"),
                }
            }
            log.release();
            writer.await.unwrap();
        });
    }
}
