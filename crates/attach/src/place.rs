//! Where programs find the owner of this host's devices: its agent's state.

use std::path::{Path, PathBuf};

/// The variable that names the directory of an agent's state.
pub const STATE: &str = "FULMEN_STATE";

/// The directory of the agent's state, if nobody names another: `$XDG_STATE_HOME/fulmen`, or `~/.local/state/fulmen`. None
/// without a home.
#[must_use]
pub fn default_state() -> Option<PathBuf> {
    let named = std::env::var_os("XDG_STATE_HOME").map(PathBuf::from).filter(|path| path.is_absolute());
    let place = named.or_else(|| std::env::home_dir().map(|home| home.join(".local/state")));
    place.map(|place| place.join("fulmen"))
}

/// The socket at which the agent with this state offers its devices.
#[must_use]
pub fn socket(state: &Path) -> PathBuf {
    state.join("devices.sock")
}

/// The socket at which this process would find devices: of the agent that [`STATE`] names, or of the user's. An agent that owns none
/// has no such socket.
#[must_use]
pub fn here() -> Option<PathBuf> {
    let named = std::env::var_os(STATE).filter(|state| !state.is_empty()).map(PathBuf::from);
    named.or_else(default_state).map(|state| socket(&state)).filter(|socket| socket.exists())
}
