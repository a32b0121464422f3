//! A ring whose other side writes what it likes, while this side reads and writes.
#![no_main]

use fulmen_fuzz::{Guarded, Input, with_memory};
use fulmen_reach::ring::{Cells, Consumer, Layout, Producer, RingError};
use libfuzzer_sys::fuzz_target;

/// Two cells each.
const LAYOUT: Layout = Layout::new(1024).with_cells(10_000, 2 * (10_048 + 1024));

/// Bytes of either side's.
const CELLS: usize = LAYOUT.cells_size();

/// Bytes of the longest frame: a line's and a cell's.
const LONGEST: usize = 56 + 10_048;

fuzz_target!(|data: &[u8]| {
    with_memory!(&[LAYOUT.size(), LAYOUT.size(), CELLS, CELLS, LONGEST], |memory| run(data, memory))
});

fn run(data: &[u8], memory: &Guarded) {
    let (incoming, outgoing) = (memory.piece(0), memory.piece(1));
    let both = [memory.piece(2), memory.piece(3)];
    let (Ok(mut consumer), Ok(mut producer)) = (
        Consumer::with_cells(incoming.clone(), both.clone(), LAYOUT),
        Producer::with_cells(outgoing.clone(), both, LAYOUT),
    ) else {
        panic!("two rings in zeroed memory")
    };
    let mut cells = Cells::new(LAYOUT, false);
    let mut input = Input::new(data);
    let (mut reads, mut writes) = (true, true);
    while let Some(action) = input.byte() {
        match action & 3 {
            // The other side writes anywhere in one of the rings.
            0 | 1 => {
                let ring = if action & 1 == 0 { &incoming } else { &outgoing };
                let at = usize::from(input.byte().unwrap_or(0)) * 8 % ring.len();
                let bytes = input.bytes(usize::from(action >> 2));
                ring.write(at, &bytes[..bytes.len().min(ring.len() - at)]);
            }
            2 if reads => match consumer.peek_open() {
                Ok(Some(frame)) if frame.is_aside() => reads = cells.take_back(frame).is_ok(),
                Ok(Some(frame)) => {
                    assert!(frame.len() <= LONGEST && frame.come(0) <= frame.len());
                    assert_eq!(frame.to_vec().len(), frame.len());
                    frame.copy_to(0, &memory.piece(4), 0, frame.len());
                    reads = cells.release(frame).is_ok();
                }
                Ok(None) => {}
                Err(_) => reads = false,
            },
            3 if writes && cells.has_too_many() => writes = cells.give_back(&mut producer).is_ok(),
            3 if writes => {
                let (len, header) = (usize::from(action >> 2) * 160, usize::from(action >> 2) % 57);
                let spot = if len % 320 == 0 { cells.next(len) } else { None };
                let room = match spot {
                    Some(spot) => producer.reserve_in(spot, header + len, header),
                    None => producer.reserve(len / 16),
                };
                match room {
                    Ok(Some(mut room)) => {
                        if spot.is_some() {
                            room.write(&vec![action; header]);
                            room.may_open(true);
                            room.open();
                        }
                        room.write(&vec![action; room.left()]);
                        room.publish();
                        if let Some(spot) = spot {
                            cells.gone(spot, len);
                        }
                    }
                    Ok(None) => {}
                    Err(error) => writes = matches!(error, RingError::TooLong { .. }),
                }
            }
            _ => {}
        }
    }
    memory.check();
}
