//! A pipe, and what waits for room in it.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::OwnedFd;

/// Bytes on their way into a pipe, whose reader may take its time.
pub struct Flow {
    /// `None` when it was closed, by either end.
    pub pipe: Option<File>,
    /// What it is to take.
    pub pending: Vec<u8>,
    /// How many bytes of that it has taken.
    sent: usize,
    /// Nothing more comes.
    pub ended: bool,
}

impl Flow {
    /// A pipe that never blocks.
    pub fn new(pipe: OwnedFd) -> Flow {
        Flow { pipe: Some(pipe.into()), pending: Vec::new(), sent: 0, ended: false }
    }

    /// Whether something waits for room.
    pub fn is_full(&self) -> bool {
        self.sent < self.pending.len()
    }

    /// Gives the pipe what it takes, and says how many bytes nobody has to keep any more; with a reader that is gone, that is
    /// all of them.
    pub fn flush(&mut self) -> usize {
        let before = self.sent;
        while let Some(pipe) = &mut self.pipe
            && self.sent < self.pending.len()
        {
            match pipe.write(&self.pending[self.sent..]) {
                Ok(count) => self.sent += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(_) => self.pipe = None,
            }
        }
        if self.pipe.is_none() {
            self.sent = self.pending.len();
        }
        let gone = self.sent - before;
        if !self.is_full() {
            self.pending = Vec::new();
            self.sent = 0;
            if self.ended {
                self.pipe = None;
            }
        }
        gone
    }
}
