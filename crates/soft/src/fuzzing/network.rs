//! What devices of other hosts say.

use crate::network::hello::{Answer, Preamble, Request};

/// What the bytes were taken for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Said {
    /// A preamble, a request or an answer that a device says.
    Right,
    /// Nothing that one says.
    Nothing,
}

/// Reads `bytes` as a preamble, a request and an answer.
///
/// # Panics
/// If something is taken that its own side would have said otherwise.
#[must_use]
pub fn hear(bytes: &[u8]) -> [Said; 3] {
    let said = |right: bool| if right { Said::Right } else { Said::Nothing };
    let preamble = start(bytes).and_then(|bytes| Some((bytes, Preamble::from_bytes(&bytes)?)));
    if let Some((bytes, preamble)) = preamble {
        assert!(Preamble::starts(&bytes));
        assert_eq!(preamble.to_bytes()[..6], bytes[..6]);
    }
    let request = start(bytes).and_then(|bytes| Some((bytes, Request::from_bytes(&bytes)?)));
    if let Some((bytes, request)) = request {
        assert_eq!(request.to_bytes(), bytes);
    }
    let answer = start(bytes).and_then(|bytes| Some((bytes, Answer::from_bytes(&bytes)?)));
    if let Some((bytes, answer)) = answer {
        assert_eq!(answer.to_bytes(), bytes);
    }
    [said(preamble.is_some()), said(request.is_some()), said(answer.is_some())]
}

/// The first bytes, if there are so many.
fn start<const N: usize>(bytes: &[u8]) -> Option<[u8; N]> {
    bytes.first_chunk().copied()
}

/// What correct devices say: for a corpus.
#[must_use]
pub fn sayings() -> Vec<(&'static str, Vec<u8>)> {
    use std::net::SocketAddr;

    use fulmen_verbs::QueuePairKind;

    use crate::network::hello::{End, VERSION, Verdict, Wish};

    let device = SocketAddr::from(([10, 0, 0, 1], 4791));
    let from = End { device, number: 77, incarnation: 0x0123_4567_89ab_cdef, kind: QueuePairKind::Rc };
    let request = |wish| Request { profile: 1, host: [7; 16], device, wish }.to_bytes().to_vec();
    let answer = |verdict, node| Answer { verdict, host: [8; 16], device, node }.to_bytes().to_vec();
    let node = fulmen_reach::NodeAddress::numbered(7).ok();
    vec![
        ("preamble", Preamble { version: VERSION, sealed: true }.to_bytes().to_vec()),
        ("place", request(Wish::Place)),
        ("ask", request(Wish::Ask { from, number: 78 })),
        ("data", request(Wish::Data { from: End { kind: QueuePairKind::Uc, ..from }, number: 79 })),
        ("here", answer(Verdict::Welcome { incarnation: 0 }, node)),
        ("welcome", answer(Verdict::Welcome { incarnation: 9 }, None)),
        ("taken", answer(Verdict::Taken, None)),
    ]
}
