use proptest::prelude::*;

use super::*;

fn addresses() -> impl Strategy<Value = SocketAddr> {
    let ip = prop_oneof![
        any::<[u8; 4]>().prop_map(std::net::IpAddr::from),
        any::<[u8; 16]>().prop_map(|bytes| std::net::IpAddr::from(bytes).to_canonical()),
    ];
    let usable = ip.prop_filter("a device's address", |ip| address::is_usable(*ip));
    (usable, 1..u16::MAX).prop_map(SocketAddr::from)
}

fn ends() -> impl Strategy<Value = (End, u32)> {
    let kind = prop_oneof![Just(QueuePairKind::Rc), Just(QueuePairKind::Uc)];
    (addresses(), 0..NUMBERS, any::<u64>(), kind, 0..NUMBERS)
        .prop_map(|(device, number, incarnation, kind, other)| (End { device, number, incarnation, kind }, other))
}

fn requests() -> impl Strategy<Value = Request> {
    (0..3, ends(), any::<u8>(), any::<[u8; 16]>()).prop_map(|(what, (from, number), profile, host)| {
        let wish = match what {
            0 => Wish::Place,
            1 => Wish::Ask { from, number },
            _ => Wish::Data { from, number },
        };
        Request { profile, host, device: from.device, wish }
    })
}

fn answers() -> impl Strategy<Value = Answer> {
    let node = prop::option::of(Just(()));
    (1..8_u8, any::<u64>(), any::<[u8; 16]>(), addresses(), node).prop_map(|(code, incarnation, host, device, node)| {
        let incarnation = if code == 1 { incarnation } else { 0 };
        let verdict = Verdict::of(code, incarnation).unwrap();
        let node = node.map(|()| NodeAddress::numbered(7).unwrap());
        Answer { verdict, host, device, node }
    })
}

/// Bytes that are nearly right are where parsers go wrong.
fn damaged<const N: usize>(right: [u8; N]) -> impl Strategy<Value = [u8; N]> {
    prop::collection::vec((0..N, any::<u8>()), 0..4).prop_map(move |changes| {
        let mut bytes = right;
        changes.into_iter().for_each(|(at, byte)| bytes[at] = byte);
        bytes
    })
}

proptest! {
    #[test]
    fn what_is_said_is_heard(request in requests(), answer in answers(), version in any::<u16>(), sealed in any::<bool>()) {
        prop_assert_eq!(Request::from_bytes(&request.to_bytes()), Some(request));
        prop_assert_eq!(Answer::from_bytes(&answer.to_bytes()), Some(answer));
        let preamble = Preamble { version, sealed };
        prop_assert_eq!(Preamble::from_bytes(&preamble.to_bytes()), Some(preamble));
        prop_assert!((0..=Preamble::SIZE).all(|len| Preamble::starts(&preamble.to_bytes()[..len])));
    }

    /// Whatever is taken is what its own side would have said: nothing has two forms, and nothing is left unread.
    #[test]
    fn damage_is_refused_or_means_what_it_says(
        request in requests().prop_flat_map(|request| damaged(request.to_bytes())),
        answer in answers().prop_flat_map(|answer| damaged(answer.to_bytes())),
        preamble in damaged(Preamble { version: VERSION, sealed: true }.to_bytes()),
    ) {
        if let Some(heard) = Request::from_bytes(&request) {
            prop_assert_eq!(heard.to_bytes(), request);
        }
        if let Some(heard) = Answer::from_bytes(&answer) {
            prop_assert_eq!(heard.to_bytes(), answer);
        }
        if let Some(heard) = Preamble::from_bytes(&preamble) {
            prop_assert_eq!(&heard.to_bytes()[..6], &preamble[..6]);
            prop_assert!(heard.version != VERSION || heard.to_bytes() == preamble);
        }
    }

    #[test]
    fn exactly_one_of_two_ends_dials((one, _) in ends(), (other, _) in ends()) {
        let (one, other) = (one.named(), other.named());
        prop_assert!(one == other || one.dials(&other) != other.dials(&one));
        prop_assert!(!one.dials(&one));
    }
}

#[test]
fn nobody_goes_by_an_address_that_is_none() {
    let mut request =
        Request { profile: 1, host: [3; 16], device: SocketAddr::from(([10, 0, 0, 1], 7)), wish: Wish::Place };
    for device in ["0.0.0.0:7", "[::]:7", "224.0.0.1:7", "255.255.255.255:7", "10.0.0.1:0"] {
        request.device = device.parse().unwrap();
        assert_eq!(Request::from_bytes(&request.to_bytes()), None, "{device}");
    }
    // IPv4 has one form.
    request.device = "[::ffff:10.0.0.1]:7".parse().unwrap();
    let heard = Request::from_bytes(&request.to_bytes()).unwrap();
    assert_eq!(heard.device, "10.0.0.1:7".parse().unwrap());
}
