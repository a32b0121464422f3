//! Rank 0 decides on settings and everybody gets them; then all start at the same time.
//!
//! ```text
//! fulmen run -n 4 -- cargo run --example broadcast
//! ```

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let group = fulmen::init()?;

    // Any slice will do: plain memory is copied through shared windows.
    let mut settings = [0u64; 3];
    if group.rank() == 0 {
        settings = [42, 1_000, 7];
    }
    group.broadcast(&mut settings, 0)?;
    assert_eq!(settings, [42, 1_000, 7]);

    // Nobody passes before all have come.
    group.barrier()?;
    println!("rank {} of {}: starts with {settings:?}", group.rank(), group.size());
    Ok(())
}
