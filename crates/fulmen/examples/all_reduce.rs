//! Adds up a vector over all ranks.
//!
//! ```text
//! fulmen run -n 4 -- cargo run --example all_reduce
//! ```

use fulmen::prelude::*;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    // Who we are comes from the launcher; without one, this is a group of one.
    let group = fulmen::init()?;

    // Registered memory: the others read and write it in place.
    let mut gradients = group.alloc::<f32>(1_000_000)?;
    gradients.fill(1.0 + group.rank() as f32);

    group.all_reduce(&mut gradients, ReduceOp::Sum)?;

    // The same bits on every rank: 1 + 2 + … + size.
    let size = group.size() as f32;
    assert!(gradients.iter().all(|sum| *sum == size * (size + 1.0) / 2.0));
    println!("rank {} of {}: every sum is {}", group.rank(), group.size(), gradients[0]);
    Ok(())
}
