//! What ranks say to a coordinator: its decoder, and its knowledge of the world.
//!
//! The world may refuse and take ranks for lost; it must not panic, and what it has to say must not grow without bound.
#![no_main]

use std::collections::BTreeMap;

use fulmen_fabric::bootstrap::LossCause;
use fulmen_fabric::bootstrap::ToCoordinator;
use fulmen_fabric::bootstrap::fuzzing::{FromRank, from_coordinator};
use fulmen_fabric::bootstrap::world::World;
use fulmen_fuzz::Input;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let mut input = Input::new(data);
    let size = 1 + u32::from(input.byte().unwrap_or(0) % 4);
    if size == 4 {
        // The other direction.
        let cut = input.byte().unwrap_or(0);
        from_coordinator(input.bytes(usize::MAX), cut.into());
        return;
    }
    let mut world = World::new(size, [7; 32]);
    let mut open: BTreeMap<u64, (FromRank, bool)> = BTreeMap::new();
    while let Some(action) = input.byte() {
        let id = u64::from(action & 7);
        match action >> 3 & 7 {
            0 => {
                open.remove(&id);
                world.lose(id, LossCause::Closed);
            }
            1 => {
                let keep = world.lose(id, LossCause::Silent(1000));
                if !keep {
                    open.remove(&id);
                }
            }
            2 => world.fate(id, action >> 6 & 1 == 1),
            _ => {
                let (from, _) = open.entry(id).or_default();
                from.push(input.piece());
                speak(&mut world, &mut open, id, size);
            }
        }
        assert!(world.outbox.len() < 4096 && world.events.len() < 4096, "one call has said too much");
        for output in world.outbox.drain(..) {
            assert!(output.to.len() <= 16, "a message to {} connections", output.to.len());
        }
        world.events.clear();
    }
});

/// Hands the world what has come over a connection, as the coordinator does.
fn speak(world: &mut World, open: &mut BTreeMap<u64, (FromRank, bool)>, id: u64, size: u32) {
    loop {
        let Some((from, seated)) = open.get_mut(&id) else { return };
        let heard = match from.next() {
            Ok(None) => return,
            Ok(Some((ToCoordinator::Join { rank, size: theirs, pid, .. }, _))) if !*seated => {
                let joined = world.join(id, rank, theirs, pid, 1000);
                assert!(joined.is_err() || (rank < size && theirs == size));
                if joined.is_ok() {
                    *seated = true;
                    from.seat();
                }
                joined.is_ok()
            }
            Ok(Some(_)) if !*seated => false,
            Ok(Some((ToCoordinator::Goodbye, body))) => {
                let _ = world.hear(id, ToCoordinator::Goodbye, body);
                open.remove(&id);
                return;
            }
            Ok(Some((message, body))) => world.hear(id, message, body).is_ok(),
            Err(_) => false,
        };
        if !heard {
            let seated = open.remove(&id).is_some_and(|(_, seated)| seated);
            if seated {
                world.lose(id, LossCause::Violation("fuzzing".into()));
            }
            return;
        }
    }
}
