//! Rank 0 shares a board and a counter; the others take numbers from the counter and write them on the board, while rank 0
//! does nothing but wait.
//!
//! ```text
//! fulmen run -n 4 -- cargo run --example one_sided
//! ```

use fulmen::{RemoteKey, Rights};

/// Numbers that each rank takes.
const EACH: u64 = 1000;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let group = fulmen::init()?;
    let (fabric, rank, size) = (group.fabric(), group.rank(), u64::from(group.size()));
    let timeout = fabric.timeout();
    let total = EACH * (size - 1);

    // The first word counts what was taken, the second what was written; then come the numbers.
    let mut bytes = [0u8; 128];
    let mut shared = None;
    if rank == 0 {
        let memory = fabric.alloc(16 + 8 * total as usize)?.into_exposed();
        memory.fill(0..memory.len(), 0);
        let share = fabric.share(&memory, Rights::all())?;
        let key = share.key().to_bytes();
        bytes[0] = key.len() as u8;
        bytes[1..=key.len()].copy_from_slice(&key);
        shared = Some(share);
    }
    // Whoever has the key can work on the memory.
    group.broadcast(&mut bytes, 0)?;
    let key = RemoteKey::from_bytes(&bytes[1..=usize::from(bytes[0])])?;

    if let Some(share) = shared {
        let written = share.wait_counter(8, total, timeout)?;
        // Each number was taken once, whoever took it.
        for number in 0..total {
            let mut word = [0; 8];
            share.memory().read(16 + 8 * number as usize, &mut word);
            assert_eq!(u64::from_ne_bytes(word), number + 1);
        }
        println!("rank 0 of {size}: {written} numbers were written");
        share.close(timeout)?;
    } else {
        let board = fabric.remote(0, &key)?;
        let word = fabric.alloc(8)?.into_exposed();
        for _ in 0..EACH {
            let number = board.fetch_add(0, 1, timeout)?;
            word.write(0, &(number + 1).to_ne_bytes());
            board.put_counted(16 + 8 * number, &word, (&board, 8, 1), timeout)?;
        }
        println!("rank {rank} of {size}: wrote {EACH} numbers");
    }
    group.barrier()?;
    Ok(())
}
