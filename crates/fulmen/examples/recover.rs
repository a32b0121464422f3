//! Adds up vectors again and again, and goes on when a process is killed.
//!
//! ```text
//! fulmen run -n 3 --restart 1 -- cargo run --example recover rejoin 2000
//! ```
//!
//! Kill one of the processes meanwhile: the others wait for the new one, and all go on where they were. With `shrink` instead
//! of `rejoin`, they go on without it.

use std::env;
use std::thread;
use std::time::Duration;

use fulmen::prelude::*;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let how = env::args().nth(1).unwrap_or_else(|| "rejoin".into());
    let steps = env::args().nth(2).map_or(Ok(100), |steps| steps.parse())?;

    // A process that was started again comes in here, while the others are in `rejoin`.
    let mut group = fulmen::init()?;
    let mut step = 0;
    while let Err(error) = work(&group, &mut step, steps) {
        println!("rank {} of {}: step {step}: {error}", group.rank(), group.size());
        group = if how == "shrink" { group.shrink()? } else { group.rejoin()? };
    }
    println!("rank {} of {}: {steps} steps are done", group.rank(), group.size());
    Ok(())
}

/// The steps that are left. All ranks call it, those that are new and those that failed somewhere.
fn work(group: &Group, step: &mut u64, steps: u64) -> Result<(), CollectiveError> {
    // Some have done a step that others have not, and some are new. A program with state would send it to these.
    let mut newest = [*step];
    group.all_reduce(&mut newest, ReduceOp::Max)?;
    *step = newest[0];
    println!("rank {} of {}: at step {step}", group.rank(), group.size());

    let mut data = group.alloc::<f32>(100_000)?;
    while *step < steps {
        data.fill(1.0 + group.rank() as f32);
        group.all_reduce(&mut data, ReduceOp::Sum)?;
        let size = group.size() as f32;
        assert!(data.iter().all(|sum| *sum == size * (size + 1.0) / 2.0));
        *step += 1;
        thread::sleep(Duration::from_millis(2));
    }
    group.barrier()
}
