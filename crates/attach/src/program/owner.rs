//! The connection to the owner: one question at a time.

use std::io;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use super::AttachError;
use crate::wire::{Ask, Told, hear, say};

/// How long the owner may take. It may have to ask another one, on another host.
const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) struct OwnerLink {
    socket: PathBuf,
    /// None after a question whose answer did not come: the next one would be taken for it.
    stream: Mutex<Option<UnixStream>>,
}

impl OwnerLink {
    pub(super) fn connect(socket: &Path) -> Result<OwnerLink, AttachError> {
        let failed = |cause| AttachError::NoOwner { socket: socket.to_owned(), cause };
        let stream = UnixStream::connect(socket).map_err(failed)?;
        for set in [UnixStream::set_read_timeout, UnixStream::set_write_timeout] {
            set(&stream, Some(PATIENCE)).map_err(failed)?;
        }
        Ok(OwnerLink { socket: socket.to_owned(), stream: Mutex::new(Some(stream)) })
    }

    pub(super) fn ask(&self, ask: &Ask) -> io::Result<Told> {
        let mut held = self.stream.lock().unwrap_or_else(PoisonError::into_inner);
        let stream = held.take().ok_or_else(|| io::Error::other("it has not answered before"))?;
        say(&stream, ask)?;
        let told = hear(&stream)?;
        *held = Some(stream);
        Ok(told)
    }

    /// Asks while there is no device yet.
    pub(super) fn ask_first(&self, device: &str, ask: &Ask) -> Result<Told, AttachError> {
        match self.ask(ask) {
            Ok(Told::Refused(reason)) => Err(self.refused(device, &reason)),
            Ok(told) => Ok(told),
            Err(cause) => Err(AttachError::Gone { socket: self.socket.clone(), cause }),
        }
    }

    pub(super) fn refused(&self, device: &str, reason: &impl ToString) -> AttachError {
        let (socket, device) = (self.socket.clone(), device.to_owned());
        AttachError::Refused { socket, device, reason: reason.to_string() }
    }

    pub(super) fn garbled(&self) -> AttachError {
        let cause = io::Error::other("it says something else");
        AttachError::Gone { socket: self.socket.clone(), cause }
    }
}
