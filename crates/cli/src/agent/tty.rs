//! The terminal of this command, while the program has one of its own.

use std::io;
use std::sync::Arc;

use fulmen_cluster::agent::Client;
use fulmen_cluster::agent::api::Size;
use rustix::process::{Signal, getpid, kill_process};
use rustix::stdio::{stderr, stdin, stdout};
use rustix::termios::{OptionalActions, Termios, isatty, tcgetattr, tcgetwinsize, tcsetattr};
use tokio::signal::unix::{SignalKind, signal};

/// Where there is no terminal to ask.
const SIZE: Size = Size { rows: 24, cols: 80 };

/// The size of the terminal here.
pub(super) fn size() -> Size {
    let streams = [stdin(), stdout(), stderr()];
    let size = streams.into_iter().find_map(|stream| tcgetwinsize(stream).ok());
    let known = size.filter(|size| size.ws_row > 0 && size.ws_col > 0);
    known.map_or(SIZE, |size| Size { rows: size.ws_row, cols: size.ws_col })
}

/// Whether what is typed comes from a terminal.
pub(super) fn is_typed() -> bool {
    isatty(stdin())
}

/// The terminal gives every byte as it is typed, so that it is the program's own terminal that makes something of it. It is as it was
/// when this is dropped.
pub(super) struct Raw(Arc<Termios>);

impl Raw {
    /// Nothing if there is no terminal. To be called in a runtime.
    pub(super) fn enter() -> io::Result<Option<Raw>> {
        if !is_typed() {
            return Ok(None);
        }
        let raw = Raw(Arc::new(tcgetattr(stdin())?));
        let kinds = [Signal::TSTP, Signal::CONT].map(|kind| signal(SignalKind::from_raw(kind.as_raw())));
        let [stops, goes_on] = kinds;
        let (mut stops, mut goes_on) = (stops?, goes_on?);
        set_raw(&raw.0)?;
        // Who stops this command from elsewhere gets the terminal back meanwhile. Another may have changed it when it goes on.
        tokio::spawn({
            let before = raw.0.clone();
            async move {
                loop {
                    let result = tokio::select! {
                        _ = stops.recv() => set(&before).and_then(|()| Ok(kill_process(getpid(), Signal::STOP)?)),
                        _ = goes_on.recv() => set_raw(&before),
                    };
                    if let Err(error) = result {
                        tracing::info!(%error, "the terminal was not set");
                    }
                }
            }
        });
        Ok(Some(raw))
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        if let Err(error) = set(&self.0) {
            tracing::warn!(%error, "the terminal is not as it was: `stty sane` helps");
        }
    }
}

fn set(to: &Termios) -> io::Result<()> {
    Ok(tcsetattr(stdin(), OptionalActions::Now, to)?)
}

fn set_raw(before: &Termios) -> io::Result<()> {
    let mut raw = before.clone();
    raw.make_raw();
    set(&raw)
}

/// Hears of the terminal's size from now on, and tells the agent.
pub(super) fn follow_size(client: Client, id: u64, mut told: Size) -> io::Result<()> {
    let mut changes = signal(SignalKind::window_change())?;
    tokio::spawn(async move {
        loop {
            let now = size();
            if now != told
                && let Err(error) = client.resize(id, now).await
            {
                tracing::info!(%error, "the terminal's size was not passed on");
            }
            told = now;
            if changes.recv().await.is_none() {
                return;
            }
        }
    });
    Ok(())
}
