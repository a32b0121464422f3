//! A thread that waits on a device's completion channel for all threads of the rank.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::Duration;

use fulmen_reach::Doorbell;
use fulmen_verbs::CompletionChannel;

/// How long it waits at a time, and so how long it may take to end.
const NAP: Duration = Duration::from_millis(50);

/// Rings the rank's bell for each event on a channel, until it is stopped or dropped.
pub(super) struct Watch {
    stop: Arc<AtomicBool>,
}

impl Watch {
    /// `failed` is set, and the bell rung, if the channel fails.
    ///
    /// # Errors
    /// The system gives no thread.
    pub(super) fn start(
        channel: Arc<dyn CompletionChannel>,
        bell: Doorbell,
        failed: Arc<OnceLock<String>>,
    ) -> std::io::Result<Watch> {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let run = move || {
            while !stopped.load(Ordering::Acquire) {
                match channel.wait(NAP) {
                    Ok(true) => bell.notify(),
                    Ok(false) => {}
                    Err(cause) => {
                        // The first cause stays.
                        let _ = failed.set(cause.to_string());
                        bell.notify();
                        return;
                    }
                }
            }
        };
        thread::Builder::new().name("fulmen-channel".into()).spawn(run)?;
        Ok(Watch { stop })
    }

    /// It ends soon, and lets go of its channel then.
    pub(super) fn stop(&self) {
        self.stop.store(true, Ordering::Release);
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.stop();
    }
}
