//! A run.

use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::faults::Faults;
use crate::network::{Carrier, MICRO, MILLI, Time};
use crate::report::{Broken, Run};
use crate::schedule::Keep;
use crate::world::{Checked, Draw, World};

/// The most nodes.
pub const MAX_NODES: usize = 32;

/// What is to be run. Equal options give equal runs.
#[derive(Clone, Debug)]
pub struct Options {
    /// Decides everything.
    pub seed: u64,
    /// How many nodes: 2 to [`MAX_NODES`].
    pub nodes: usize,
    /// How many steps. Each starts at most one operation; what was chosen at one step does not depend on how many follow.
    pub steps: u64,
    /// What goes wrong.
    pub faults: Faults,
    /// How all frames travel; `None`: chosen by the seed for each pair of nodes.
    pub carrier: Option<Carrier>,
    /// Leave all choices out but these.
    pub keep: Option<Keep>,
    /// Tell every choice that had an effect.
    pub story: bool,
    /// A mistake on purpose.
    #[cfg(feature = "planted-bugs")]
    pub planted: Option<fulmen_fabric::engine::Planted>,
}

/// Options that make no run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OptionsError {
    /// Too few or too many.
    #[error("{nodes} nodes: from 2 to {MAX_NODES} can be simulated")]
    Nodes {
        /// How many were asked for.
        nodes: usize,
    },
}

impl Options {
    /// A run of this seed with the default faults.
    #[must_use]
    pub fn new(seed: u64, nodes: usize, steps: u64) -> Options {
        Options {
            seed,
            nodes,
            steps,
            faults: Faults::default(),
            carrier: None,
            keep: None,
            story: false,
            #[cfg(feature = "planted-bugs")]
            planted: None,
        }
    }
}

/// Runs a schedule, to its end or to the first promise that is broken.
///
/// # Errors
/// [`OptionsError`] if there is no such run.
pub fn run(options: &Options) -> Result<Run, OptionsError> {
    if !(2..=MAX_NODES).contains(&options.nodes) {
        return Err(OptionsError::Nodes { nodes: options.nodes });
    }
    let mut world = World::new(options);
    // The engine's own assertions are promises as well.
    let outcome = catch_unwind(AssertUnwindSafe(|| play(&mut world)));
    let failure = match outcome {
        Ok(checked) => checked.err(),
        Err(cause) => {
            let text = cause.downcast_ref::<String>().cloned();
            let text = text.or_else(|| cause.downcast_ref::<&str>().map(|text| (*text).to_owned()));
            Some(world.failure(Broken::Panic, text.unwrap_or_else(|| "without a word".into())))
        }
    };
    world.counts.steps = world.step;
    Ok(Run {
        counts: std::mem::take(&mut world.counts),
        time: world.virtual_time(),
        digest: world.digest.value(),
        failure,
        story: std::mem::take(&mut world.story),
    })
}

fn play(world: &mut World<'_>) -> Checked {
    for step in 0..world.options.steps {
        world.step = step;
        world.sent.fill(0);
        world.strike()?;
        world.operate()?;
        let until = world.clock.now + gap(world);
        world.advance(until)?;
        world.clock.now = until;
        world.inspect_all((step % world.nodes.len() as u64) as usize)?;
    }
    world.step = world.options.steps;
    world.sent.fill(0);
    world.drain()
}

/// How long until the next step: mostly so short that operations meet one another, sometimes long enough for timers, and
/// once in a while so long that a link which waits for something that never comes is given up.
fn gap(world: &World<'_>) -> Time {
    let mut dice = world.dice(Draw::Gap, &[world.step]);
    match dice.below(256) {
        0 => 80 * MILLI + dice.below(80 * MILLI),
        1..=4 => dice.below(12 * MILLI),
        5..=36 => dice.below(100 * MICRO),
        _ => dice.below(10 * MICRO),
    }
}
