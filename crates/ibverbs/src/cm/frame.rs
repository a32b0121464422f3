//! What two processes tell each other about a connection: frames of one length, one a packet.
//!
//! They carry what the messages of InfiniBand's communication manager carry, and no more private data than those have
//! room for, so that a program that fits here fits there. A frame that comes in is checked before anything of it is used.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use thiserror::Error;

/// The length of each frame.
pub(super) const FRAME: usize = 296;

const MAGIC: [u8; 4] = *b"FCMA";
const VERSION: u8 = 1;
/// Where private data starts. It goes to the end.
const PRIVATE: usize = 100;
/// Numbers of queue pairs and packets have 24 bits.
pub(super) const MASK_24: u32 = 0xff_ffff;

/// What a frame says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Kind {
    /// REQ: let us connect.
    Request = 1,
    /// REP: accepted.
    Reply = 2,
    /// RTU: the queue pair of who asked is ready.
    Ready = 3,
    /// REJ: no.
    Reject = 4,
    /// DREQ: let us end.
    Disconnect = 5,
    /// DREP: ended.
    Disconnected = 6,
    /// SIDR REQ: which queue pair takes datagrams of this service?
    DatagramRequest = 7,
    /// SIDR REP: this one, or none.
    DatagramReply = 8,
}

impl Kind {
    const ALL: [Kind; 8] = [
        Kind::Request,
        Kind::Reply,
        Kind::Ready,
        Kind::Reject,
        Kind::Disconnect,
        Kind::Disconnected,
        Kind::DatagramRequest,
        Kind::DatagramReply,
    ];

    /// Bytes of private data that fit, which is also what an event reports, padded with zeros: InfiniBand's sizes less
    /// the 36 bytes that say which addresses talk.
    pub(super) fn private_len(self) -> usize {
        match self {
            Kind::Request => 56,
            Kind::Reply => 196,
            Kind::Reject => 148,
            Kind::DatagramRequest => 180,
            Kind::DatagramReply => 136,
            Kind::Ready | Kind::Disconnect | Kind::Disconnected => 0,
        }
    }
}

/// A frame, taken apart. What a kind does not need is zero.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Frame {
    pub(super) kind: Kind,
    /// The kind of queue pair, as `ibv_qp_type` numbers it.
    pub(super) qp_type: u8,
    pub(super) srq: bool,
    pub(super) flow_control: bool,
    pub(super) qp_num: u32,
    /// The first packet's number that the sender of the frame will use.
    pub(super) psn: u32,
    pub(super) qkey: u32,
    /// Why not: a reason of REJ, or a status of SIDR REP.
    pub(super) reason: u32,
    /// Vendor and options of enhanced connection establishment.
    pub(super) ece: (u32, u32),
    pub(super) lid: u16,
    pub(super) mtu: u8,
    pub(super) gid: [u8; 16],
    pub(super) responder_resources: u8,
    pub(super) initiator_depth: u8,
    pub(super) retry_count: u8,
    pub(super) rnr_retry_count: u8,
    /// Who sent the frame, and to whom. Of REQ and SIDR REQ only.
    pub(super) source: SocketAddr,
    pub(super) destination: SocketAddr,
    /// At most [`Kind::private_len`] bytes.
    pub(super) private: Vec<u8>,
}

/// What is wrong with a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub(super) enum FrameError {
    #[error("{0} bytes instead of {FRAME}")]
    Length(usize),
    #[error("no frame of this protocol")]
    Magic,
    #[error("version {0} of the protocol, and not {VERSION}: the two programs use different builds of the library")]
    Version(u8),
    #[error("field `{0}` is out of range")]
    Field(&'static str),
}

impl Frame {
    /// A frame that says no more than its kind.
    pub(super) fn new(kind: Kind) -> Frame {
        let nowhere = SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0);
        Frame {
            kind,
            qp_type: 0,
            srq: false,
            flow_control: false,
            qp_num: 0,
            psn: 0,
            qkey: 0,
            reason: 0,
            ece: (0, 0),
            lid: 0,
            mtu: 0,
            gid: [0; 16],
            responder_resources: 0,
            initiator_depth: 0,
            retry_count: 0,
            rnr_retry_count: 0,
            source: nowhere,
            destination: nowhere,
            private: Vec::new(),
        }
    }

    /// The frame as bytes. `private` must fit its kind: callers check it, since it is the program's.
    pub(super) fn encode(&self) -> [u8; FRAME] {
        assert!(self.private.len() <= self.kind.private_len(), "private data was checked before");
        let mut bytes = [0; FRAME];
        bytes[..4].copy_from_slice(&MAGIC);
        bytes[4] = VERSION;
        bytes[5] = self.kind as u8;
        bytes[6] = self.qp_type;
        bytes[7] = u8::from(self.srq) | u8::from(self.flow_control) << 1;
        let words = [self.qp_num, self.psn, self.qkey, self.reason, self.ece.0, self.ece.1];
        for (place, word) in bytes[8..32].chunks_exact_mut(4).zip(words) {
            place.copy_from_slice(&word.to_be_bytes());
        }
        bytes[32..34].copy_from_slice(&self.lid.to_be_bytes());
        bytes[34] = self.mtu;
        bytes[36..52].copy_from_slice(&self.gid);
        bytes[52..56].copy_from_slice(&[
            self.responder_resources,
            self.initiator_depth,
            self.retry_count,
            self.rnr_retry_count,
        ]);
        put_address(&mut bytes[56..76], &self.source);
        put_address(&mut bytes[76..96], &self.destination);
        bytes[96] = u8::try_from(self.private.len()).expect("at most 196");
        bytes[PRIVATE..PRIVATE + self.private.len()].copy_from_slice(&self.private);
        bytes
    }

    /// Takes a packet apart, whoever sent it.
    pub(super) fn decode(packet: &[u8]) -> Result<Frame, FrameError> {
        let bytes: &[u8; FRAME] = packet.try_into().map_err(|_| FrameError::Length(packet.len()))?;
        if bytes[..4] != MAGIC {
            return Err(FrameError::Magic);
        }
        if bytes[4] != VERSION {
            return Err(FrameError::Version(bytes[4]));
        }
        let kind = *Kind::ALL.iter().find(|kind| **kind as u8 == bytes[5]).ok_or(FrameError::Field("kind"))?;
        // RC, UC and UD; 0 where no queue pair is spoken of.
        check(matches!(bytes[6], 0 | 2..=4), "qp_type")?;
        check(bytes[7] & !3 == 0, "flags")?;
        let word = |at: usize| u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        check(word(8) <= MASK_24, "qp_num")?;
        check(word(12) <= MASK_24, "psn")?;
        check(bytes[34] <= 5, "mtu")?;
        check(bytes[54] <= 7, "retry_count")?;
        check(bytes[55] <= 7, "rnr_retry_count")?;
        let len = usize::from(bytes[96]);
        check(len <= kind.private_len(), "private_data_len")?;
        let reserved = [&bytes[35..36], &bytes[97..PRIVATE], &bytes[PRIVATE + len..]];
        check(reserved.iter().all(|bytes| bytes.iter().all(|byte| *byte == 0)), "reserved")?;
        let mut gid = [0; 16];
        gid.copy_from_slice(&bytes[36..52]);
        Ok(Frame {
            kind,
            qp_type: bytes[6],
            srq: bytes[7] & 1 != 0,
            flow_control: bytes[7] & 2 != 0,
            qp_num: word(8),
            psn: word(12),
            qkey: word(16),
            reason: word(20),
            ece: (word(24), word(28)),
            lid: u16::from_be_bytes([bytes[32], bytes[33]]),
            mtu: bytes[34],
            gid,
            responder_resources: bytes[52],
            initiator_depth: bytes[53],
            retry_count: bytes[54],
            rnr_retry_count: bytes[55],
            source: take_address(&bytes[56..76]).ok_or(FrameError::Field("source"))?,
            destination: take_address(&bytes[76..96]).ok_or(FrameError::Field("destination"))?,
            private: bytes[PRIVATE..PRIVATE + len].to_vec(),
        })
    }
}

fn check(fine: bool, field: &'static str) -> Result<(), FrameError> {
    if fine { Ok(()) } else { Err(FrameError::Field(field)) }
}

/// Family (4 or 6), a zero, the port, and the address, padded with zeros.
fn put_address(place: &mut [u8], address: &SocketAddr) {
    place[2..4].copy_from_slice(&address.port().to_be_bytes());
    match address.ip() {
        IpAddr::V4(ip) => {
            place[0] = 4;
            place[4..8].copy_from_slice(&ip.octets());
        }
        IpAddr::V6(ip) => {
            place[0] = 6;
            place[4..20].copy_from_slice(&ip.octets());
        }
    }
}

fn take_address(place: &[u8]) -> Option<SocketAddr> {
    let port = u16::from_be_bytes([place[2], place[3]]);
    let octets: [u8; 16] = place[4..20].try_into().ok()?;
    let ip = match place[0] {
        4 if octets[4..] == [0; 12] => IpAddr::V4(Ipv4Addr::new(octets[0], octets[1], octets[2], octets[3])),
        6 => IpAddr::V6(Ipv6Addr::from(octets)),
        _ => return None,
    };
    (place[1] == 0).then(|| SocketAddr::new(ip, port))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn any_address() -> impl Strategy<Value = SocketAddr> {
        (any::<IpAddr>(), any::<u16>()).prop_map(|(ip, port)| SocketAddr::new(ip, port))
    }

    fn any_frame() -> impl Strategy<Value = Frame> {
        let kind = proptest::sample::select(Kind::ALL.to_vec());
        let bytes = (0..=4u8, 0..=7u8, 0..=7u8, 0..=5u8, any::<[u8; 2]>(), any::<[bool; 2]>());
        let words = (0..=MASK_24, 0..=MASK_24, any::<[u32; 4]>(), any::<u16>(), any::<[u8; 16]>());
        let ends = (any_address(), any_address(), proptest::collection::vec(any::<u8>(), 0..=196));
        (kind, bytes, words, ends).prop_map(|(kind, bytes, words, (source, destination, mut private))| {
            private.truncate(kind.private_len());
            Frame {
                kind,
                qp_type: if bytes.0 < 2 { 0 } else { bytes.0 },
                srq: bytes.5[0],
                flow_control: bytes.5[1],
                qp_num: words.0,
                psn: words.1,
                qkey: words.2[0],
                reason: words.2[1],
                ece: (words.2[2], words.2[3]),
                lid: words.3,
                mtu: bytes.3,
                gid: words.4,
                responder_resources: bytes.4[0],
                initiator_depth: bytes.4[1],
                retry_count: bytes.1,
                rnr_retry_count: bytes.2,
                source,
                destination,
                private,
            }
        })
    }

    proptest! {
        #[test]
        fn a_frame_comes_back_as_it_was(frame in any_frame()) {
            prop_assert_eq!(Frame::decode(&frame.encode()), Ok(frame));
        }

        // What is taken must be what the same frame is written as: nothing hides between the fields.
        #[test]
        fn any_packet_is_refused_or_taken_whole(
            frame in any_frame(),
            damage in proptest::collection::vec((0..FRAME, any::<u8>()), 0..8),
        ) {
            let mut bytes = frame.encode();
            for (at, value) in damage {
                bytes[at] = value;
            }
            if let Ok(taken) = Frame::decode(&bytes) {
                prop_assert_eq!(taken.encode(), bytes);
            }
        }

        #[test]
        fn noise_is_refused(bytes in proptest::collection::vec(any::<u8>(), 0..2 * FRAME)) {
            prop_assume!(!bytes.starts_with(&MAGIC));
            prop_assert!(Frame::decode(&bytes).is_err());
        }
    }

    #[test]
    fn each_field_is_checked() {
        let good = Frame::new(Kind::Reply).encode();
        for (at, value, wrong) in [
            (0, 0, FrameError::Magic),
            (4, 2, FrameError::Version(2)),
            (5, 0, FrameError::Field("kind")),
            (5, 9, FrameError::Field("kind")),
            (6, 1, FrameError::Field("qp_type")),
            (7, 4, FrameError::Field("flags")),
            (8, 1, FrameError::Field("qp_num")),
            (12, 1, FrameError::Field("psn")),
            (34, 6, FrameError::Field("mtu")),
            (35, 1, FrameError::Field("reserved")),
            (54, 8, FrameError::Field("retry_count")),
            (55, 8, FrameError::Field("rnr_retry_count")),
            (56, 5, FrameError::Field("source")),
            (57, 1, FrameError::Field("source")),
            (64, 1, FrameError::Field("source")),
            (76, 5, FrameError::Field("destination")),
            (96, 197, FrameError::Field("private_data_len")),
            (PRIVATE, 1, FrameError::Field("reserved")),
        ] {
            let mut bytes = good;
            bytes[at] = value;
            assert_eq!(Frame::decode(&bytes), Err(wrong), "byte {at} = {value}");
        }
        assert_eq!(Frame::decode(&good[1..]), Err(FrameError::Length(FRAME - 1)));
    }
}
