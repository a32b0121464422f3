//! What becomes of a rail that fails, from the failure to its return.

use std::time::{Duration, Instant};

use super::bring_up::Ends;
use super::bundle::Bundle;
use super::mender::{Job, Making, Stage, Tale};
use super::ping::Ping;
use super::rail::LAST_WORDS;
use super::track::{Call, PROOF, State};
use crate::driver::Broken;
use crate::engine::Link;

/// How long a call may go unanswered until it is repeated, and until the rail has failed, if the peer is there.
const AGAIN: Duration = Duration::from_millis(200);
const SILENT: Duration = Duration::from_secs(2);
/// How long a chunk may make no progress until the rail is asked whether it still carries.
const STALL: Duration = Duration::from_secs(1);

impl Bundle {
    /// A rail has failed: its queue pairs go, and what was to come over it comes over others. The peer is told, unless it said
    /// so.
    pub(super) fn fail(&mut self, at: usize, cause: &str, tell: bool, link: &mut Link) {
        let now = Instant::now();
        let track = &mut self.tracks[at];
        // In this order: no device has a hand in the memory any more.
        track.pairs = None;
        self.stripes.withdraw(track, link);
        track.close(cause, now);
        let (rail, device, incarnation) = (track.berth.rail, &*track.info.here.device, track.incarnation);
        let out = matches!(track.state, State::Down { out: true, .. });
        let text = format!("{device} to rank {}: rail {rail} {cause}", self.peer);
        tracing::warn!(rank = self.peer, rail, device, cause, out, "a rail of a link has failed: the others go on");
        self.life.note("rail", self.peer, &format!("failed: {text}"));
        self.first_cause.get_or_insert(text);
        if tell {
            link.tell(Tale::Down { rail, incarnation }.to_word());
        }
        if self.primary == Some(at) {
            self.primary = None;
            self.choose_primary();
            self.resend();
        }
    }

    /// Takes what the peer's end has said about rails.
    pub(super) fn hear(&mut self, link: &mut Link) -> Result<(), Broken> {
        while let Some(word) = link.next_told() {
            let garbled = || Broken(format!("rank {} said something about rails that makes no sense", self.peer));
            let tale = Tale::read(&word).ok_or_else(garbled)?;
            let (Tale::Down { rail, .. } | Tale::Ends { rail, .. }) = tale;
            let Some(at) = self.tracks.iter().position(|track| track.berth.rail == rail) else { continue };
            match tale {
                Tale::Down { incarnation, .. } if incarnation == self.tracks[at].incarnation => {
                    if !matches!(self.tracks[at].state, State::Down { .. }) {
                        self.fail(at, "failed at the other end", false, link);
                    }
                }
                Tale::Ends { incarnation, ends, .. } => self.hear_ends(at, incarnation, ends, link),
                // Of one that is gone.
                Tale::Down { .. } => {}
            }
        }
        Ok(())
    }

    fn hear_ends(&mut self, at: usize, incarnation: u32, ends: Ends, link: &mut Link) {
        let now = Instant::now();
        let begins = self.rank < self.peer;
        let known = self.tracks[at].incarnation;
        let job = if begins {
            let track = &mut self.tracks[at];
            let state = std::mem::replace(&mut track.state, State::Up);
            match state {
                State::Making(Making { stage: Stage::Told(pairs, own), .. }) if incarnation == known => {
                    Job::connect(track.maker.clone(), (pairs, own), ends)
                }
                state => {
                    track.state = state;
                    return;
                }
            }
        } else if incarnation > known {
            if !matches!(self.tracks[at].state, State::Down { .. }) {
                self.fail(at, "failed at the other end", false, link);
            }
            self.tracks[at].incarnation = incarnation;
            Job::answer(self.tracks[at].maker.clone(), ends)
        } else {
            return;
        };
        self.set_making(at, job, now, link);
    }

    fn set_making(&mut self, at: usize, job: Result<Job, String>, now: Instant, link: &mut Link) {
        match job {
            Ok(job) => self.tracks[at].state = State::Making(Making::new(job, now)),
            Err(cause) => self.fail(at, &cause, true, link),
        }
    }

    /// Looks after what time changes: whether anything was done.
    pub(super) fn look_after(&mut self, link: &mut Link, now: Instant) -> bool {
        let mut worked = false;
        for at in 0..self.tracks.len() {
            if let Some(cause) = self.tracks[at].broken.take() {
                self.fail(at, &cause, true, link);
                worked = true;
                continue;
            }
            worked |= match self.tracks[at].state {
                State::Up => self.watch(at, now, link),
                State::Proving { until, calls } => self.prove(at, (until, calls), now, link),
                State::Down { until, .. } if now >= until && self.rank < self.peer => self.begin(at, now, link),
                State::Down { .. } => false,
                State::Making(_) => self.made(at, now, link),
            };
        }
        worked
    }

    /// Begins to make a rail anew.
    fn begin(&mut self, at: usize, now: Instant, link: &mut Link) -> bool {
        // Without another one nobody could be told.
        self.tracks[at].incarnation += 1;
        let job = Job::make(self.tracks[at].maker.clone());
        self.set_making(at, job, now, link);
        true
    }

    /// Looks at what the mender has made.
    fn made(&mut self, at: usize, now: Instant, link: &mut Link) -> bool {
        let track = &mut self.tracks[at];
        let State::Making(making) = &mut track.state else { return false };
        let made = match making.outcome() {
            Some(Ok(made)) => made,
            Some(Err(cause)) => {
                self.fail(at, &format!("cannot be made anew: {cause}"), true, link);
                return true;
            }
            None => {
                if now >= making.until {
                    self.fail(at, "cannot be made anew: the other end does not answer", true, link);
                }
                return false;
            }
        };
        let (rail, incarnation, own) = (track.berth.rail, track.incarnation, made.own);
        let begins = self.rank < self.peer;
        match made.info {
            None => making.stage = Stage::Told(made.pairs, own),
            Some(info) => {
                track.info = info;
                track.state = State::Proving { until: now + PROOF, calls: begins };
                if let Err(cause) = track.open(made.pairs) {
                    self.fail(at, &format!("cannot receive frames: {cause}"), true, link);
                    return true;
                }
            }
        }
        // The one that begins tells of its queue pairs before they are connected, the other one when they are.
        if !(begins && matches!(self.tracks[at].state, State::Proving { .. })) {
            link.tell(Tale::Ends { rail, incarnation, ends: own }.to_word());
        }
        true
    }

    fn prove(&mut self, at: usize, (until, calls): (Instant, bool), now: Instant, link: &mut Link) -> bool {
        if now >= until {
            self.fail(at, "has not answered since it was made", true, link);
            return true;
        }
        calls && self.call(at, now)
    }

    /// Sees to it that a rail that is up still carries.
    fn watch(&mut self, at: usize, now: Instant, link: &mut Link) -> bool {
        let heard = self.heard;
        // Of the last one, the link's patience decides: without it nobody could be told, and it could not be made anew.
        let is_last = !(0..self.tracks.len()).any(|other| other != at && self.tracks[other].is_up());
        let track = &mut self.tracks[at];
        let since = |then: Instant| now.saturating_duration_since(then);
        if track.pairs.as_ref().is_some_and(|pairs| pairs.frames.is_peer_gone()) {
            if since(*track.gone.get_or_insert(now)) >= LAST_WORDS {
                self.fail(at, "has lost the connection: its other end is gone", true, link);
                return true;
            }
        } else {
            track.gone = None;
        }
        if let Some(Call { since: first, .. }) = track.call {
            // A peer that says nothing at all may be stopped.
            if !is_last && since(first) >= SILENT && heard.saturating_duration_since(first) >= SILENT / 2 {
                self.fail(at, "does not answer", true, link);
                return true;
            }
            return self.call(at, now);
        }
        if track.landing.is_empty() || since(track.progress) < STALL {
            // The shortest time of several is that of the rail.
            let measures = track.latency.is_none() || self.stripes.only == Some(at);
            return measures && self.call(at, now);
        }
        match track.answered.filter(|answered| *answered >= track.progress) {
            // Over a device that keeps everything, its sender is slow.
            Some(answered) if track.is_unreliable() && since(answered) >= STALL => {
                self.fail(at, "does not bring chunks of a message", true, link);
                true
            }
            Some(_) => false,
            None => self.call(at, now),
        }
    }

    /// Has a rail show that it carries.
    pub(super) fn suspect(&mut self, at: usize) {
        self.call(at, Instant::now());
    }

    /// Calls over a rail, again after a while.
    fn call(&mut self, at: usize, now: Instant) -> bool {
        let track = &mut self.tracks[at];
        let since = match track.call {
            Some(call) if now.saturating_duration_since(call.at) < AGAIN => return false,
            Some(call) => call.since,
            None => now,
        };
        self.calls = self.calls.wrapping_add(1);
        track.call = Some(Call { number: self.calls, at: now, since });
        let ping = Ping { answer: false, number: self.calls };
        self.send(at, ping);
        true
    }

    fn send(&mut self, at: usize, ping: Ping) {
        let track = &mut self.tracks[at];
        let Some(pairs) = &track.pairs else { return };
        // Without a place it goes the next time.
        if let Err(cause) = track.frames.send_few(&*pairs.frames, &ping.to_bytes(self.generation)) {
            track.broken = Some(format!("cannot send frames: {cause}"));
        }
    }

    /// A call has come, or the answer to one.
    pub(super) fn pinged(&mut self, at: usize, ping: Ping, now: Instant) {
        if !ping.answer {
            self.send(at, Ping { answer: true, ..ping });
            if let State::Proving { calls, .. } = &mut self.tracks[at].state {
                *calls = true;
            }
            return;
        }
        let track = &mut self.tracks[at];
        let Some(call) = track.call.filter(|call| call.number == ping.number) else { return };
        let half = now.saturating_duration_since(call.at) / 2;
        track.latency = Some(track.latency.map_or(half, |before| before.min(half)));
        (track.call, track.answered) = (None, Some(now));
        if matches!(track.state, State::Proving { .. }) {
            track.state = State::Up;
            let (rail, device) = (track.berth.rail, &*track.info.here.device);
            tracing::info!(rank = self.peer, rail, device, latency = ?half, "a rail of a link is up");
            self.life.note("rail", self.peer, &format!("{device} to rank {}: rail {rail} is up", self.peer));
            self.choose_primary();
        }
    }
}
