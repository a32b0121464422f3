use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};

use proptest::prelude::*;

use super::super::hello::{Answer, Preamble, Request, VERSION, Wish};
use super::super::listen::MOST_UNPROVEN;
use super::*;

/// Somebody who speaks by hand.
struct Raw(TcpStream);

impl Raw {
    fn call(host: &Host) -> Raw {
        let tcp = TcpStream::connect(host.network.address()).unwrap();
        tcp.set_read_timeout(Some(LONG)).unwrap();
        Raw(tcp)
    }

    fn say(&mut self, bytes: &[u8]) {
        // Who is listened to no more may be told so.
        let _ = self.0.write_all(bytes);
    }

    fn hear<const N: usize>(&mut self) -> [u8; N] {
        let mut bytes = [0; N];
        self.0.read_exact(&mut bytes).unwrap();
        bytes
    }

    /// Whether the other side ended it, after having said whatever it said.
    fn is_over(&mut self) -> bool {
        let mut bytes = [0; 4096];
        loop {
            match self.0.read(&mut bytes) {
                Ok(0) => return true,
                Ok(_) => {}
                Err(error) => return error.kind() == io::ErrorKind::ConnectionReset,
            }
        }
    }

    fn greet(host: &Host) -> Raw {
        let mut raw = Raw::call(host);
        let sealed = host.network.is_sealed();
        raw.say(&Preamble { version: VERSION, sealed }.to_bytes());
        assert_eq!(Preamble::from_bytes(&raw.hear()), Some(Preamble { version: VERSION, sealed }));
        raw
    }

    fn ask(&mut self, request: Request) -> Verdict {
        self.say(&request.to_bytes());
        Answer::from_bytes(&self.hear()).unwrap().verdict
    }
}

fn request(from: &Host, wish: Wish) -> Request {
    Request { profile: 1, host: [1; 16], device: from.network.address(), wish }
}

/// It still does what it is there for.
fn assert_answers(host: &Host) {
    let peer = Host::new(host.network.address().ip(), host.network.seal.clone());
    assert_eq!(peer.network.place(host.network.address(), soon()).unwrap(), Place::There);
}

#[test]
fn garbage_is_hung_up_on() {
    for sealed in [false, true] {
        let host = Host::new(V4, sealed.then(|| identity(7)));
        let preamble = Preamble { version: VERSION, sealed }.to_bytes();
        let garbage: [&[u8]; 6] = [
            b"GET / HTTP/1.1\r\nHost: nobody\r\n\r\n",
            b"\0",
            b"FLM",
            b"FULM\x04\0\0\0",
            &[&preamble[..], &[0xff; 200]].concat(),
            &[&preamble[..], &[0; 64]].concat(),
        ];
        for bytes in garbage {
            let mut raw = Raw::call(&host);
            raw.say(bytes);
            // It may be the beginning of something until no more comes.
            let _ = raw.0.shutdown(std::net::Shutdown::Write);
            assert!(raw.is_over(), "{bytes:?}");
        }
        assert_answers(&host);
        assert_eq!(host.network.arrivals(), 0);
    }
}

#[test]
fn other_versions_hear_which_one_this_is() {
    let host = Host::new(V4, None);
    let mut raw = Raw::call(&host);
    raw.say(&Preamble { version: VERSION + 1, sealed: true }.to_bytes());
    let heard = Preamble::from_bytes(&raw.hear()).unwrap();
    assert_eq!(heard, Preamble { version: VERSION, sealed: false });
    assert!(raw.is_over());
    let mut raw = Raw::call(&host);
    raw.say(&Preamble { version: VERSION, sealed: true }.to_bytes());
    assert!(!Preamble::from_bytes(&raw.hear()).unwrap().sealed);
    assert!(raw.is_over());
}

#[test]
fn strangers_that_say_nothing_do_not_keep_peers_out() {
    let host = Host::new(V4, Some(identity(7)));
    let flood: Vec<Raw> = (0..MOST_UNPROVEN + 30).map(|_| Raw::call(&host)).collect();
    assert_answers(&host);
    let mut first = flood;
    let rest = first.split_off(20);
    assert!(first.iter_mut().all(Raw::is_over), "the oldest had to go");
    until("they are not counted any more", || host.network.crowd.len() <= MOST_UNPROVEN);
    drop(rest);
    until("nothing stays of those that went", || host.network.crowd.len() == 0);
}

#[test]
fn lies_about_who_dials_are_refused() {
    let [one, other] = hosts(V4, false);
    let (small, large) = if one.network.address() < other.network.address() { (&one, &other) } else { (&other, &one) };
    let own = small.open_end(1);
    let mut raw = Raw::greet(small);
    let (from, number) = (large.end(2), own.number);
    assert_eq!(raw.ask(request(large, Wish::Data { from, number })), Verdict::NoSuchPair, "the small one dials");
    assert_eq!(raw.ask(request(large, Wish::Ask { from, number })), Verdict::Welcome { incarnation: own.incarnation });
    let mut odd = request(large, Wish::Ask { from, number });
    odd.profile = 77;
    assert_eq!(raw.ask(odd), Verdict::OtherProfile);
    assert_eq!(small.network.arrivals(), 0);
}

#[test]
fn nobody_without_the_authority_gets_past_the_handshake() {
    let host = Host::new(V4, Some(identity(7)));
    host.open_end(1);
    // As if there were no seal.
    let mut raw = Raw::greet(&host);
    let from = End { device: "127.0.0.1:1".parse().unwrap(), ..host.end(2) };
    raw.say(
        &Request { profile: 1, host: [1; 16], device: from.device, wish: Wish::Data { from, number: 1 } }.to_bytes(),
    );
    assert!(raw.is_over());
    let raw = Raw::greet(&host);
    let sealed = identity(8).connect(raw.0, super::super::line::PROTOCOL, soon());
    let refused = sealed.and_then(|sealed| Ok(sealed.read(&mut [0], LONG)?));
    assert!(refused.is_err(), "{refused:?}");
    // The right authority, and another protocol of it.
    let raw = Raw::greet(&host);
    let sealed = identity(7).connect(raw.0, fulmen_trust::Protocol(b"fulmen-control/5"), soon());
    let refused = sealed.and_then(|sealed| Ok(sealed.read(&mut [0], LONG)?));
    assert!(refused.is_err(), "{refused:?}");
    assert_eq!(host.network.arrivals(), 0);
    assert_answers(&host);
}

#[test]
fn a_reset_is_told_from_an_end_in_order() {
    let [one, other] = hosts(V4, false);
    let (small, large) = if one.network.address() < other.network.address() { (&one, &other) } else { (&other, &one) };
    let own = large.open_end(1);
    for reset in [false, true] {
        let mut raw = Raw::greet(large);
        let wish = Wish::Data { from: small.end(2), number: 1 };
        assert_eq!(raw.ask(request(small, wish)), Verdict::Welcome { incarnation: own.incarnation });
        raw.say(b"some bytes");
        let (_, mut stream) = large.collect(&own, &small.end(2).named());
        let mut bytes = [0; 100];
        let mut came = 0;
        until("what was said before comes", || {
            came += stream.receive(&mut [Room::Bytes(&mut bytes[came..])]).unwrap();
            came == 10
        });
        if reset {
            rustix::net::sockopt::set_socket_linger(&raw.0, Some(Duration::ZERO)).unwrap();
        }
        drop(raw);
        let ended = end_of(&mut stream);
        assert_eq!(ended.0.contains("in the middle"), reset, "{ended}");
    }
}

/// What a device hears that is none.
fn call_a_liar(say: impl FnOnce(&mut TcpStream) + Send + 'static) -> Unreached {
    let listener = TcpListener::bind((V4, 0)).unwrap();
    let address = listener.local_addr().unwrap();
    let liar = thread::spawn(move || {
        let (mut tcp, _) = listener.accept().unwrap();
        say(&mut tcp);
        // Until the other side has had enough.
        let _ = tcp.shutdown(std::net::Shutdown::Write);
        let _ = io::copy(&mut tcp, &mut io::sink());
    });
    let error = Host::new(V4, None).network.place(address, soon()).unwrap_err();
    liar.join().unwrap();
    error
}

#[test]
fn what_is_no_device_is_called_so() {
    let ssh = call_a_liar(|tcp| tcp.write_all(b"SSH-2.0-OpenSSH_9.2\r\n").unwrap());
    assert!(matches!(&ssh, Unreached::NotFulmen { said, .. } if said.starts_with("SSH-2.0")), "{ssh}");
    let short = call_a_liar(|tcp| tcp.write_all(b"-").unwrap());
    assert!(matches!(&short, Unreached::NotFulmen { said, .. } if said == "-"), "{short}");
    let later = call_a_liar(|tcp| tcp.write_all(&Preamble { version: 700, sealed: true }.to_bytes()).unwrap());
    assert!(matches!(later, Unreached::Version { theirs: 700, .. }), "{later}");
    let preamble = Preamble { version: VERSION, sealed: false }.to_bytes();
    let garbled = call_a_liar(move |tcp| {
        tcp.write_all(&preamble).unwrap();
        tcp.write_all(&[0xee; Answer::SIZE]).unwrap();
    });
    assert!(matches!(garbled, Unreached::Garbled(_)), "{garbled}");
    let named = "127.0.0.1:9".parse().unwrap();
    let answer = Answer { verdict: Verdict::Welcome { incarnation: 0 }, host: [1; 16], device: named, node: None };
    let alias = call_a_liar(move |tcp| {
        tcp.write_all(&preamble).unwrap();
        tcp.write_all(&answer.to_bytes()).unwrap();
    });
    assert!(matches!(alias, Unreached::Alias { named: said, .. } if said == named), "{alias}");
    let cut = call_a_liar(move |tcp| {
        tcp.write_all(&preamble).unwrap();
        tcp.write_all(&answer.to_bytes()[..50]).unwrap();
    });
    assert!(matches!(cut, Unreached::Closed { .. }), "{cut}");
}

#[test]
fn who_hangs_up_at_once_is_tried_again_and_named() {
    let listener = TcpListener::bind((V4, 0)).unwrap();
    let address = listener.local_addr().unwrap();
    let shut = thread::spawn(move || listener.incoming().take(3).for_each(drop));
    let closed = Host::new(V4, None).network.place(address, soon()).unwrap_err();
    assert!(matches!(closed, Unreached::Closed { peer, .. } if peer == address), "{closed}");
    shut.join().unwrap();
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]
    #[test]
    fn no_request_harms(bytes in prop::collection::vec(any::<u8>(), 0..400), what in 0..4_u8) {
        let host = Host::new(V4, None);
        host.open_end(1);
        let mut raw = Raw::greet(&host);
        let mut bytes = bytes;
        // Often near to what is right.
        if let (Some(first), true) = (bytes.first_mut(), what > 0) {
            *first = what;
        }
        raw.say(&bytes);
        let _ = raw.0.shutdown(std::net::Shutdown::Write);
        prop_assert!(raw.is_over());
        prop_assert_eq!(host.network.arrivals(), 0);
        assert_answers(&host);
    }
}
