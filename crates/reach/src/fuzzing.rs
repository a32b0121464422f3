//! Doors for fuzz targets.

use crate::wire::{FRAME, Frame};

/// Reads a frame of a node's socket. What is read would be written the same.
pub fn read_frame(bytes: &[u8; FRAME]) {
    if let Ok(frame) = Frame::from_bytes(bytes) {
        assert_eq!(frame.to_bytes(), *bytes, "{frame:?} has two forms");
    }
}
