//! A ring whose other side writes what it likes, while this side reads and writes.
#![no_main]

use fulmen_fuzz::{Guarded, Input, with_memory};
use fulmen_reach::ring::{Consumer, Layout, Producer, RingError};
use libfuzzer_sys::fuzz_target;

const LAYOUT: Layout = Layout::new(1024).with_cell(300).with_gap(100);

fuzz_target!(|data: &[u8]| {
    with_memory!(&[LAYOUT.size(), LAYOUT.size(), LAYOUT.max_frame()], |memory| run(data, memory))
});

fn run(data: &[u8], memory: &Guarded) {
    let layout = LAYOUT;
    let (incoming, outgoing) = (memory.piece(0), memory.piece(1));
    let (Ok(mut consumer), Ok(mut producer)) =
        (Consumer::new(incoming.clone(), LAYOUT), Producer::new(outgoing.clone(), LAYOUT))
    else {
        panic!("two rings in zeroed memory")
    };
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
            2 if reads => match consumer.peek() {
                Ok(Some(frame)) => {
                    assert!(frame.len() <= layout.max_frame());
                    assert_eq!(frame.to_vec().len(), frame.len());
                    frame.copy_to(0, &memory.piece(2), 0, frame.len());
                    frame.release();
                }
                Ok(None) => {}
                Err(_) => reads = false,
            },
            3 if writes => {
                let len = usize::from(action >> 2) * 9;
                let room = if len % 4 == 0 { producer.reserve_cell(len) } else { producer.reserve(len) };
                match room {
                    Ok(Some(mut room)) => {
                        room.write(&vec![action; len]);
                        assert_eq!(room.left(), 0);
                        if len % 2 == 1 {
                            room.leave_gap();
                        }
                        room.publish();
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
