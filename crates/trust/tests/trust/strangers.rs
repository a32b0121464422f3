//! Ends that do not belong together, and those who stand between two that do.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use fulmen_trust::{Protocol, TrustError};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::WebPkiSupportedAlgorithms;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::{DigitallySignedStruct, SignatureScheme};

use crate::common::{LONG, PROTOCOL, end, identity, meet, plain, read_exact, write_all};

/// What comes of accepting an end that does what `other` does, and what that end was told.
fn accept(other: impl FnOnce(&mut TcpStream) + Send) -> (TrustError, Vec<u8>) {
    let (mut stream, accepted) = plain();
    thread::scope(|scope| {
        let told = scope.spawn(move || {
            other(&mut stream);
            let mut told = Vec::new();
            // A reset is an end as well.
            let _ = stream.read_to_end(&mut told);
            told
        });
        let error = identity(1, "server").accept(accepted, PROTOCOL, end()).unwrap_err();
        (error, told.join().unwrap())
    })
}

/// What comes of connecting to such an end.
fn connect(other: impl FnOnce(&mut TcpStream) + Send) -> TrustError {
    let (stream, mut accepted) = plain();
    thread::scope(|scope| {
        scope.spawn(move || {
            other(&mut accepted);
            let _ = accepted.read_to_end(&mut Vec::new());
        });
        identity(1, "client").connect(stream, PROTOCOL, end()).unwrap_err()
    })
}

/// A TLS record.
fn record(kind: u8, content: &[u8]) -> Vec<u8> {
    [&[kind, 3, 3][..], &(content.len() as u16).to_be_bytes(), content].concat()
}

/// The first message of a client that knows TLS 1.2 and its extensions only.
fn older_hello() -> Vec<u8> {
    let suites = [0xc0, 0x2f, 0xc0, 0x2b];
    let groups = [0, 10, 0, 4, 0, 2, 0, 29];
    let schemes = [0, 13, 0, 6, 0, 4, 8, 7, 4, 3];
    let extensions = [&groups[..], &schemes].concat();
    let body = [
        &[3, 3][..],
        &[7; 32],
        &[0],
        &(suites.len() as u16).to_be_bytes(),
        &suites,
        &[1, 0],
        &(extensions.len() as u16).to_be_bytes(),
        &extensions,
    ]
    .concat();
    let len = (body.len() as u32).to_be_bytes();
    record(22, &[&[1, len[1], len[2], len[3]], &body[..]].concat())
}

#[test]
fn another_authority_is_refused_at_both_ends() {
    let (client, server) = meet((&identity(1, "one"), PROTOCOL), (&identity(2, "other"), PROTOCOL));
    let error = client.unwrap_err();
    assert!(matches!(error, TrustError::WrongAuthority { .. }) && error.is_stranger(), "{error}");
    let error = server.unwrap_err();
    assert!(matches!(error, TrustError::NotTrusted { .. }) && error.is_stranger(), "{error}");
    assert!(error.to_string().contains("FULMEN_SECRET_FILE"));
}

/// Takes any server for the right one, as a stranger would.
#[derive(Debug)]
struct Anybody(WebPkiSupportedAlgorithms);

impl ServerCertVerifier for Anybody {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Err(rustls::Error::General("TLS 1.2".into()))
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.supported_schemes()
    }
}

/// A client of TLS 1.3 that accepts any server, until it is told something. `key` makes its certificate, if it has one.
fn stranger(stream: &mut TcpStream, key: Option<&rcgen::KeyPair>, protocols: &[&[u8]]) -> rustls::Error {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let anybody = Arc::new(Anybody(provider.signature_verification_algorithms));
    let builder = rustls::ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .unwrap()
        .dangerous()
        .with_custom_certificate_verifier(anybody);
    let mut config = match key {
        None => builder.with_no_client_auth(),
        Some(key) => {
            // The same names as a member's, signed by itself.
            let params = rcgen::CertificateParams::new(vec!["fulmen".to_owned()]).unwrap();
            let certificate = params.self_signed(key).unwrap().der().clone();
            let key = PrivateKeyDer::Pkcs8(key.serialize_der().into());
            builder.with_client_auth_cert(vec![certificate], key).unwrap()
        }
    };
    config.alpn_protocols = protocols.iter().map(|protocol| protocol.to_vec()).collect();
    let name = ServerName::try_from("fulmen").unwrap();
    let mut tls = rustls::ClientConnection::new(Arc::new(config), name).unwrap();
    loop {
        match tls.complete_io(stream) {
            Ok(_) => {}
            Err(error) => match error.downcast::<rustls::Error>() {
                Ok(error) => return error,
                Err(error) => return rustls::Error::General(error.to_string()),
            },
        }
    }
}

#[test]
fn a_stranger_is_refused_with_whatever_certificate() {
    let told = Mutex::new(None);
    let attempt = |key: Option<&rcgen::KeyPair>, protocols: &[&[u8]]| {
        let (error, _) = accept(|stream| *told.lock().unwrap() = Some(stranger(stream, key, protocols)));
        (error, told.lock().unwrap().take().unwrap())
    };
    let (error, told) = attempt(None, &[PROTOCOL.0]);
    assert!(matches!(error, TrustError::Stranger) && error.is_stranger(), "{error}");
    assert_eq!(told, rustls::Error::AlertReceived(rustls::AlertDescription::CertificateRequired));

    for algorithm in [&rcgen::PKCS_ED25519, &rcgen::PKCS_ECDSA_P256_SHA256] {
        let key = rcgen::KeyPair::generate_for(algorithm).unwrap();
        let (error, told) = attempt(Some(&key), &[PROTOCOL.0]);
        assert!(matches!(error, TrustError::WrongAuthority { .. }), "{error}");
        assert!(matches!(told, rustls::Error::AlertReceived(_)), "{told}");
    }

    // Before the certificate, the protocol is looked at, and one must be named.
    let (error, _) = attempt(None, &[b"http/1.1", b"h2"]);
    assert!(matches!(error, TrustError::OtherProtocol { .. }), "{error}");
}

#[test]
fn another_version_of_the_protocol_is_refused_at_both_ends() {
    let newer = Protocol(b"fulmen-test/2");
    let (client, server) = meet((&identity(1, "one"), newer), (&identity(1, "other"), PROTOCOL));
    for (error, ours) in [(client.unwrap_err(), "fulmen-test/2"), (server.unwrap_err(), "fulmen-test/1")] {
        assert!(matches!(&error, TrustError::OtherProtocol { ours: named } if named == ours), "{error}");
        assert!(!error.is_stranger() && !error.is_broken());
    }
}

#[test]
fn an_older_tls_is_refused_at_both_ends() {
    let (error, told) = accept(|stream| stream.write_all(&older_hello()).unwrap());
    assert!(matches!(error, TrustError::OlderTls), "{error}");
    // An alert, fatal: the version.
    assert_eq!(told, record(21, &[2, 70]));

    // A server that settles for TLS 1.2.
    let error = connect(|stream| {
        stream.read_exact(&mut [0; 64]).unwrap();
        let body = [&[3, 3][..], &[7; 32], &[0], &[0xc0, 0x2f], &[0], &[0, 0]].concat();
        let len = (body.len() as u32).to_be_bytes();
        stream.write_all(&record(22, &[&[2, len[1], len[2], len[3]], &body[..]].concat())).unwrap();
    });
    assert!(matches!(error, TrustError::OlderTls), "{error}");
    // One that says so.
    let error = connect(|stream| stream.write_all(&record(21, &[2, 70])).unwrap());
    assert!(matches!(error, TrustError::OlderTls), "{error}");
}

#[test]
fn what_is_no_tls_is_named_by_what_it_says() {
    for (said, named) in
        [("GET / HTTP/1.1\r\n\r\n", "GET / HTTP/1.1\\r\\n"), ("SSH-2.0-x\r\n", "SSH-2.0-x\\r\\n"), ("\x16", "")]
    {
        let (error, _) = accept(|stream| {
            stream.write_all(said.as_bytes()).unwrap();
            stream.shutdown(Shutdown::Write).unwrap();
        });
        match (&error, named) {
            (TrustError::Closed, "") => {}
            (TrustError::NotTls { first }, _) => assert!(named.starts_with(first) && first.len() > 4, "{first}"),
            _ => panic!("{error}"),
        }
        let error = connect(|stream| {
            stream.write_all(said.as_bytes()).unwrap();
            stream.shutdown(Shutdown::Write).unwrap();
        });
        assert!(matches!(error, TrustError::NotTls { .. } | TrustError::Closed), "{error}");
    }
}

#[test]
fn garbage_is_an_error_and_nothing_else() {
    let mut noise = blake3::Hasher::new().update(b"noise").finalize_xof();
    for round in 0..60 {
        let mut bytes = vec![0; 1 + round * 37];
        noise.fill(&mut bytes);
        match round % 3 {
            0 => {}
            // As records of a handshake, whole or cut off.
            1 => bytes = record(22, &bytes),
            _ => {
                bytes.truncate(bytes.len() / 2);
                bytes.splice(..0, [22, 3, 3, 0x20, 0]);
            }
        }
        let send = |stream: &mut TcpStream| {
            // It may be refused before all of it is taken.
            let _ = stream.write_all(&bytes);
            let _ = stream.shutdown(Shutdown::Write);
        };
        let (error, _) = accept(send);
        assert!(!error.is_stranger(), "{error}");
        let error = connect(send);
        assert!(!error.is_stranger(), "{error}");
    }
}

#[test]
fn an_end_that_stops_in_the_handshake_is_waited_for_until_the_end_only() {
    for said in [&[][..], &record(22, &[1, 0, 1, 0])[..7]] {
        let (mut stream, accepted) = plain();
        stream.write_all(said).unwrap();
        let begin = Instant::now();
        let wait = Duration::from_millis(50);
        let error = identity(1, "server").accept(accepted, PROTOCOL, begin + wait).unwrap_err();
        assert!(matches!(error, TrustError::TimedOut) && error.is_broken(), "{error}");
        assert!(begin.elapsed() >= wait && begin.elapsed() < LONG);
    }
}

/// Stands between two ends. What goes each way is written down, and `change` may change it: by direction (true: from the
/// end that opened) and the place of its first byte.
fn between(client: TcpStream, server: TcpStream, change: impl Fn(bool, usize, &mut Vec<u8>) + Sync) -> [Vec<u8>; 2] {
    let all = [Mutex::new(Vec::new()), Mutex::new(Vec::new())];
    thread::scope(|scope| {
        for (from, to, opened) in [(&client, &server, true), (&server, &client, false)] {
            let (all, change) = (&all, &change);
            scope.spawn(move || {
                let (mut from, mut to) = (from, to);
                let mut bytes = vec![0; 64 << 10];
                loop {
                    let count = from.read(&mut bytes).unwrap_or(0);
                    let mut heard = all[usize::from(!opened)].lock().unwrap();
                    let mut piece = bytes[..count].to_vec();
                    change(opened, heard.len(), &mut piece);
                    heard.extend_from_slice(&bytes[..count]);
                    drop(heard);
                    if count == 0 || to.write_all(&piece).is_err() {
                        let _ = to.shutdown(Shutdown::Write);
                        return;
                    }
                }
            });
        }
    });
    all.map(|all| all.into_inner().unwrap())
}

/// What an end heard, or why not.
type Outcome = Result<Vec<u8>, String>;

/// A talk between two ends that belong together, with somebody between them. They wait for each other so long.
fn talk(wait: Duration, change: impl Fn(bool, usize, &mut Vec<u8>) + Sync) -> ([Vec<u8>; 2], [Outcome; 2]) {
    let (one, middle) = plain();
    let (other_middle, other) = plain();
    thread::scope(|scope| {
        let accepting = scope.spawn(move || {
            let sealed = identity(1, "server")
                .accept(other, PROTOCOL, Instant::now() + wait)
                .map_err(|error| error.to_string())?;
            let mut words = [0; 64];
            let count = sealed.read(&mut words, wait).map_err(|error| error.to_string())?;
            sealed.write(b"the answer", wait).map_err(|error| error.to_string())?;
            sealed.finish();
            Ok(words[..count].to_vec())
        });
        let connecting = scope.spawn(move || {
            let sealed = identity(1, "client")
                .connect(one, PROTOCOL, Instant::now() + wait)
                .map_err(|error| error.to_string())?;
            sealed.write(b"the question", wait).map_err(|error| error.to_string())?;
            let mut words = Vec::new();
            loop {
                let mut piece = [0; 64];
                match sealed.read(&mut piece, wait).map_err(|error| error.to_string())? {
                    0 => return Ok(words),
                    count => words.extend_from_slice(&piece[..count]),
                }
            }
        });
        let heard = between(middle, other_middle, change);
        (heard, [connecting.join().unwrap(), accepting.join().unwrap()])
    })
}

#[test]
fn somebody_between_the_ends_reads_nothing_and_plays_nothing_back() {
    let (heard, said) = talk(LONG, |_, _, _| {});
    assert_eq!(said, [Ok(b"the answer".to_vec()), Ok(b"the question".to_vec())]);
    for bytes in &heard {
        for word in [&b"the answer"[..], b"the question", b"client"] {
            assert!(
                !bytes.windows(word.len()).any(|window| window == word),
                "{:?} can be read",
                word.escape_ascii().to_string()
            );
        }
    }
    // All that the client has said comes once more, to the same identity or to another one.
    let (error, _) = accept(|stream| {
        let _ = stream.write_all(&heard[0]);
        let _ = stream.shutdown(Shutdown::Write);
    });
    assert!(!error.is_stranger(), "{error}");
    let error = connect(|stream| {
        let _ = stream.write_all(&heard[1]);
        let _ = stream.shutdown(Shutdown::Write);
    });
    assert!(!error.is_stranger(), "{error}");
}

/// A record that was made longer is waited for, which is no success either.
const PATIENCE: Duration = Duration::from_millis(500);

#[test]
fn a_changed_byte_ends_the_connection_wherever_it_is() {
    let (heard, _) = talk(LONG, |_, _, _| {});
    for (opened, len) in [(true, heard[0].len()), (false, heard[1].len())] {
        for at in (0..len - 8).step_by(len / 13) {
            let (_, said) = talk(PATIENCE, |of, begin, piece| {
                // Three, since the outer version of a record is two, and means nothing in TLS 1.3.
                for at in at..at + 3 {
                    if of == opened
                        && let Some(byte) = at.checked_sub(begin).and_then(|at| piece.get_mut(at))
                    {
                        *byte ^= 0x40;
                    }
                }
            });
            assert!(said.iter().any(Result::is_err), "byte {at} of {opened} was changed, and nobody noticed: {said:?}");
        }
    }
}

#[test]
fn bytes_of_another_connection_are_no_part_of_this_one() {
    let (client, server) = meet((&identity(1, "one"), PROTOCOL), (&identity(1, "other"), PROTOCOL));
    let (client, server) = (client.unwrap(), server.unwrap());
    write_all(&client, b"fine");
    let mut words = [0; 4];
    read_exact(&server, &mut words);
    // A record as it could have been sealed, but was not.
    (&mut client.tcp()).write_all(&record(23, &[9; 40])).unwrap();
    for _ in 0..2 {
        let error = server.read(&mut words, LONG).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidData);
        assert!(matches!(TrustError::behind(&error), Some(TrustError::Violation { .. })), "{error}");
    }
    // And the end that it came from is told.
    let error = client.read(&mut words, LONG).unwrap_err();
    assert!(TrustError::behind(&error).is_some(), "{error}");
}
