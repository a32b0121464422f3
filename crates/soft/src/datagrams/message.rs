//! Frames of a datagram wire, and the routing header that receivers see.

use fulmen_verbs::Gid;

/// Bytes of a frame's header; the message follows.
pub(super) const HEADER: usize = 40;

/// The longest message: one transmission unit.
pub(crate) const LONGEST: usize = 4096;

/// Bytes before the message in a RECV: room for a global routing header.
pub(crate) const GRH: usize = 40;

const IMM: u8 = 1;
const SOLICITED: u8 = 2;
const GLOBAL: u8 = 4;

/// The header of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) to: u32,
    pub(super) from: u32,
    pub(super) qkey: u32,
    pub(super) solicited: bool,
    pub(super) imm: Option<u32>,
    pub(super) global: Option<Global>,
}

/// What a message says of its route if its address had a GID.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Global {
    /// The index of the sender's GID in its table.
    pub(super) index: u8,
    /// The address that the sender used.
    pub(super) gid: Gid,
}

impl Header {
    pub(super) fn to_bytes(self) -> [u8; HEADER] {
        let mut bytes = [0; HEADER];
        let flag = |set: bool, flag| if set { flag } else { 0 };
        bytes[0] = flag(self.imm.is_some(), IMM) | flag(self.solicited, SOLICITED);
        if let Some(global) = self.global {
            bytes[0] |= GLOBAL;
            bytes[1] = global.index;
            bytes[24..40].copy_from_slice(&global.gid.0);
        }
        let words = [self.to, self.from, self.qkey, self.imm.unwrap_or(0)];
        for (at, word) in (4..).step_by(4).zip(words) {
            bytes[at..at + 4].copy_from_slice(&word.to_ne_bytes());
        }
        bytes
    }

    /// The header of a frame of `len` bytes, if it can be one.
    pub(super) fn from_bytes(bytes: [u8; HEADER], len: usize) -> Option<Header> {
        let body = len.checked_sub(HEADER)?;
        if body > LONGEST || bytes[0] & !(IMM | SOLICITED | GLOBAL) != 0 {
            return None;
        }
        let word = |at: usize| u32::from_ne_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let mut gid = Gid::default();
        gid.0.copy_from_slice(&bytes[24..40]);
        Some(Header {
            to: word(4),
            from: word(8),
            qkey: word(12),
            solicited: bytes[0] & SOLICITED != 0,
            imm: (bytes[0] & IMM != 0).then(|| word(16)),
            global: (bytes[0] & GLOBAL != 0).then_some(Global { index: bytes[1], gid }),
        })
    }

    /// The routing header of a message of `len` bytes from a port of these GIDs; `None` if the message has none.
    ///
    /// InfiniBand Architecture Specification, volume 1, 8.3: version 6, the bytes that follow, next header 0x1B, both
    /// addresses, all of it big-endian.
    pub(super) fn grh(&self, len: usize, sender: &[Gid]) -> Option<[u8; GRH]> {
        const VERSION: u8 = 6 << 4;
        const NEXT_HEADER: u8 = 0x1B;
        const HOPS: u8 = 64;
        // The base and the datagram header, and the invariant checksum at the end.
        const AROUND: usize = 12 + 8 + 4;
        let global = self.global?;
        let source = sender.get(usize::from(global.index))?;
        let imm = if self.imm.is_some() { 4 } else { 0 };
        let following = AROUND + imm + len.next_multiple_of(4);
        let mut bytes = [0; GRH];
        bytes[0] = VERSION;
        // A message is short.
        bytes[4..6].copy_from_slice(&(following as u16).to_be_bytes());
        bytes[6] = NEXT_HEADER;
        bytes[7] = HOPS;
        bytes[8..24].copy_from_slice(&source.0);
        bytes[24..40].copy_from_slice(&global.gid.0);
        Some(bytes)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn headers() -> impl Strategy<Value = Header> {
        let global = prop::option::of((any::<u8>(), prop::array::uniform16(any::<u8>())));
        (any::<[u32; 3]>(), any::<bool>(), any::<Option<u32>>(), global).prop_map(|(words, solicited, imm, global)| {
            let global = global.map(|(index, gid)| Global { index, gid: Gid(gid) });
            Header { to: words[0], from: words[1], qkey: words[2], solicited, imm, global }
        })
    }

    proptest! {
        #[test]
        fn headers_come_back(header in headers(), len in 0..LONGEST + 1) {
            prop_assert_eq!(Header::from_bytes(header.to_bytes(), HEADER + len), Some(header));
        }

        #[test]
        fn any_bytes_are_a_header_or_none(bytes in prop::collection::vec(any::<u8>(), HEADER), len in 0_usize..8192) {
            let bytes = *bytes.first_chunk::<HEADER>().unwrap();
            let read = Header::from_bytes(bytes, len);
            let fits = (HEADER..HEADER + LONGEST + 1).contains(&len);
            prop_assert_eq!(read.is_some(), fits && bytes[0] < 8);
            if let Some(header) = read {
                // An index outside of the sender's table is no route, and no panic.
                let grh = header.grh(len - HEADER, &[Gid([7; 16])]);
                prop_assert_eq!(grh.is_some(), header.global.is_some_and(|global| global.index == 0));
            }
        }
    }

    #[test]
    fn a_routing_header_is_as_the_field_reads_it() {
        let global = Some(Global { index: 1, gid: Gid([0xaa; 16]) });
        let header = Header { to: 1, from: 2, qkey: 3, solicited: false, imm: Some(1), global };
        let grh = header.grh(5, &[Gid([1; 16]), Gid([2; 16])]).unwrap();
        assert_eq!(grh[..8], [0x60, 0, 0, 0, 0, 12 + 8 + 4 + 8 + 4, 0x1B, 64]);
        assert_eq!((grh[8], grh[23], grh[24], grh[39]), (2, 2, 0xaa, 0xaa));
    }
}
