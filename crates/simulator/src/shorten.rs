//! Shortening a schedule that breaks a promise.

use crate::report::{Failure, Run, Told};
use crate::run::{Options, run};
use crate::schedule::{Choice, Keep};

/// The shortest schedule that was found.
#[derive(Clone, Debug)]
pub struct Shortest {
    /// What it is run with: the choices that are kept, and the steps after which it fails.
    pub options: Options,
    /// How it fails.
    pub failure: Failure,
    /// Its choices, and what each is.
    pub story: Vec<Told>,
    /// How many runs that took.
    pub runs: u64,
}

/// Looks for a short schedule that breaks the same promise as `options` do: leaves out ever smaller parts of it for as
/// long as it still fails. It ends after about `steps` operations of all trials together, which is no time, so that equal
/// options give equal answers.
///
/// `None` if `options` break no promise.
#[must_use]
pub fn shorten(options: &Options, steps: u64) -> Option<Shortest> {
    let mut search = Search { options: Options { story: true, ..options.clone() }, left: steps, runs: 0 };
    let first = search.play(&search.options.clone())?;
    let failure = first.failure.clone()?;
    search.options.steps = search.options.steps.min(failure.step + 1);
    let mut best = Found { kept: choices(&first), run: first, failure };
    // Whole kinds first: many failures need no lost frames, and none of what went on between other ranks.
    search.try_parts(&mut best);
    let mut parts = 2;
    while !best.kept.is_empty() && search.left > 0 {
        let size = best.kept.len().div_ceil(parts);
        let mut at = 0;
        let mut shorter = false;
        while at < best.kept.len() && search.left > 0 {
            let end = best.kept.len().min(at + size);
            let mut kept = best.kept.clone();
            kept.drain(at..end);
            match search.try_with(kept, &best.failure) {
                // What comes next has moved to this place.
                Some(found) => (best, shorter) = (found, true),
                None => at = end,
            }
        }
        if size == 1 && !shorter {
            break;
        }
        if !shorter || size > 1 {
            parts = (parts * 2).min(best.kept.len().max(1));
        }
    }
    let keep = Some(Keep::new(best.kept));
    let options = Options { keep, story: options.story, ..search.options };
    Some(Shortest { options, failure: best.failure, story: best.run.story, runs: search.runs })
}

struct Found {
    kept: Vec<Choice>,
    run: Run,
    failure: Failure,
}

struct Search {
    options: Options,
    left: u64,
    runs: u64,
}

impl Search {
    fn play(&mut self, options: &Options) -> Option<Run> {
        self.runs += 1;
        let run = run(options).ok()?;
        // What was left out costs little, and each run costs something.
        let counts = &run.counts;
        self.left = self.left.saturating_sub(counts.operations + counts.frames / 4 + counts.steps / 20 + 50);
        Some(run)
    }

    /// Leaves out the fates of frames, and what has not to do with two ranks alone.
    fn try_parts(&mut self, best: &mut Found) {
        let frame = |told: &Told| matches!(told.choice, Choice::Frame { .. });
        let within = |ranks: u64| move |told: &Told| told.ranks == 0 || told.ranks & !ranks == 0;
        let pairs = (0..self.options.nodes).flat_map(|higher| (0..higher).map(move |lower| 1 << higher | 1 << lower));
        for ranks in pairs {
            if self.try_those(best, within(ranks)) {
                break;
            }
        }
        self.try_those(best, |told| !frame(told));
    }

    fn try_those(&mut self, best: &mut Found, kept: impl Fn(&Told) -> bool) -> bool {
        let story = best.run.story.iter().filter(|told| kept(told)).map(|told| told.choice);
        let kept = story.chain(last(&best.failure)).collect();
        match self.try_with(kept, &best.failure) {
            Some(found) => {
                *best = found;
                true
            }
            None => false,
        }
    }

    /// Runs with these choices: whether the same promise is broken.
    fn try_with(&mut self, kept: Vec<Choice>, as_before: &Failure) -> Option<Found> {
        let options = Options { keep: Some(Keep::new(kept)), ..self.options.clone() };
        let run = self.play(&options)?;
        let failure = run.failure.clone().filter(|failure| failure.broken == as_before.broken)?;
        self.options.steps = self.options.steps.min(failure.step + 1);
        // Only what still has an effect.
        Some(Found { kept: choices(&run), run, failure })
    }
}

/// The choices that had an effect, and those that were made when the promise broke.
fn choices(run: &Run) -> Vec<Choice> {
    let told = run.story.iter().map(|told| told.choice);
    Keep::new(told.chain(run.failure.iter().flat_map(last)).collect()).choices().to_vec()
}

/// The choices of the step at which a promise broke: perhaps it was too late to tell of them.
fn last(failure: &Failure) -> [Choice; 2] {
    [Choice::Strike { step: failure.step }, Choice::Operation { step: failure.step }]
}
