//! Hands a token around: each rank receives it from the one before, counts, and sends it to the next.
//!
//! ```text
//! fulmen run -n 4 -- cargo run --example ring
//! ```

/// Messages are told apart by a tag that both sides choose.
const TOKEN: u64 = 1;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let group = fulmen::init()?;
    let (rank, size) = (group.rank(), group.size());
    if size == 1 {
        println!("rank 0 of 1: nobody to hand the token to");
        return Ok(());
    }

    let next = (rank + 1) % size;
    let before = (rank + size - 1) % size;
    let mut token = [0u32];
    if rank == 0 {
        group.send(&[1u32], next, TOKEN)?;
        group.recv(&mut token, before, TOKEN)?;
        assert_eq!(token[0], size);
    } else {
        group.recv(&mut token, before, TOKEN)?;
        group.send(&[token[0] + 1], next, TOKEN)?;
    }
    println!("rank {rank} of {size}: the token says {}", token[0]);
    Ok(())
}
