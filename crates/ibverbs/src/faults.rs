//! The clock of a device that fails on order.

use std::io;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use fulmen_verbs::Faulty;

/// How often what time alone moves is looked at.
const TICK: Duration = Duration::from_millis(1);

/// Moves on what time alone moves, as long as the device is there: from a thread of its own.
pub(crate) fn keep_time(faulty: &Arc<Faulty>) -> io::Result<()> {
    let faulty = Arc::downgrade(faulty);
    fulmen_reach::spawn_without_signals("fulmen-faults", move || {
        while let Some(faulty) = faulty.upgrade() {
            faulty.tick();
            drop(faulty);
            thread::sleep(TICK);
        }
    })?;
    Ok(())
}
