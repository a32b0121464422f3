//! Doors for fuzz targets.

use crate::wire::{Answer, Ask, Call, Header, LONGEST_MESSAGE, Refusal, Told, hear};

/// Reads what comes over a trunk, in so many bytes.
pub fn read_header(bytes: &[u8; Header::SIZE], came: usize) {
    if let Some(header) = Header::from_bytes(bytes, came) {
        assert!(header.len as usize <= LONGEST_MESSAGE && Header::ROOM + header.len as usize <= came);
        assert_eq!(Header::from_bytes(&header.to_bytes(), came), Some(header));
    }
}

/// Reads what programs and owners say.
pub fn read_words(bytes: &[u8]) {
    let _ = hear::<Ask>(bytes);
    if let Ok(Told::Port { port, gids }) = hear::<Told>(bytes) {
        let _ = (port.read(1), gids.iter().filter_map(crate::wire::Entry::read).count());
    }
    let _ = postcard::from_bytes::<Call>(bytes);
    let _ = postcard::from_bytes::<Result<Answer, Refusal>>(bytes);
}
