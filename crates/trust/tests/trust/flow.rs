//! What goes through a sealed connection, and how it ends.

use std::io::ErrorKind;
use std::net::{Shutdown, TcpStream};
use std::thread;
use std::time::Duration;

use fulmen_trust::{Progress, Sealed};
use proptest::prelude::*;

use crate::common::{LONG, PROTOCOL, end, identity, plain, read_exact, sealed, write_all};

/// Bytes that differ by place.
fn pattern(len: usize, salt: u64) -> Vec<u8> {
    (0..len as u64).map(|at| ((at ^ salt).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8).collect()
}

#[test]
fn both_ends_know_each_other_by_name() {
    let (one, other) = sealed();
    assert_eq!((one.peer(), other.peer()), ("other", "one"));
    assert_eq!(one.tcp().local_addr().unwrap(), other.tcp().peer_addr().unwrap());
}

#[test]
fn one_end_reads_and_writes_at_once_while_the_other_is_slow() {
    const LEN: usize = 8 << 20;
    let (one, other) = sealed();
    let (to, from) = (pattern(LEN, 1), pattern(LEN, 2));
    thread::scope(|scope| {
        // More than all buffers hold, to an end that begins to read only when it has been sent everything it waits for.
        scope.spawn(|| write_all(&one, &to));
        scope.spawn(|| write_all(&other, &from));
        let mut back = vec![0; LEN];
        read_exact(&one, &mut back);
        assert!(back == from);
        let mut there = vec![0; LEN];
        for piece in there.chunks_mut(333) {
            read_exact(&other, piece);
        }
        assert!(there == to);
    });
}

#[test]
fn an_end_that_takes_nothing_is_told_from_one_that_is_slow() {
    let (one, other) = sealed();
    let piece = pattern(64 << 10, 3);
    let mut taken = 0;
    let full = loop {
        // The same bytes again and again, wherever the last call ended.
        match one.try_write(&piece[taken % piece.len()..]) {
            Ok(count) => taken += count,
            Err(error) => break error,
        }
        assert!(taken < 1 << 30, "it never fills");
    };
    assert_eq!(full.kind(), ErrorKind::WouldBlock);
    assert!(!one.try_flush().unwrap());
    let sent = one.sent();
    assert!(sent > 0);
    assert_eq!(one.write(b"x", Duration::from_millis(20)).unwrap_err().kind(), ErrorKind::TimedOut);
    // Nothing came meanwhile from the other one either, and that is another time-out.
    assert_eq!(one.read(&mut [0], Duration::from_millis(1)).unwrap_err().kind(), ErrorKind::TimedOut);
    assert_eq!(one.try_read(&mut [0]).unwrap_err().kind(), ErrorKind::WouldBlock);
    let mut whole = vec![0; taken];
    thread::scope(|scope| {
        scope.spawn(|| read_exact(&other, &mut whole));
        while !one.try_flush().unwrap() {
            thread::yield_now();
        }
    });
    assert!(one.sent() > sent);
    for chunk in whole.chunks(piece.len()) {
        assert!(*chunk == piece[..chunk.len()]);
    }
}

#[test]
fn what_is_left_of_a_record_is_told_of() {
    let (one, other) = sealed();
    write_all(&one, b"0123456789");
    let mut half = [0; 5];
    read_exact(&other, &mut half);
    assert!(other.has_plaintext(), "the socket is quiet");
    assert_eq!(other.try_read(&mut half).unwrap(), 5);
    assert_eq!(&half, b"56789");
    assert_eq!(other.try_read(&mut half).unwrap_err().kind(), ErrorKind::WouldBlock);
    assert!(!other.has_plaintext());
}

#[test]
fn an_end_that_has_finished_still_reads() {
    let (one, other) = sealed();
    one.try_write(b"last words").unwrap();
    one.finish();
    let mut words = [0; 10];
    read_exact(&other, &mut words);
    assert_eq!(&words, b"last words");
    for _ in 0..2 {
        assert_eq!(other.read(&mut words, LONG).unwrap(), 0, "the end in order, as often as it is asked for");
    }
    write_all(&other, b"and theirs");
    other.finish();
    read_exact(&one, &mut words);
    assert_eq!(&words, b"and theirs");
    assert_eq!(one.read(&mut words, LONG).unwrap(), 0);
}

#[test]
fn an_end_without_a_word_is_no_end_in_order() {
    // As the system closes the connection of a process that is killed; and as somebody between the ends could cut it off.
    let (one, other) = sealed();
    write_all(&one, b"half a mess");
    one.tcp().shutdown(Shutdown::Write).unwrap();
    let mut words = [0; 64];
    assert_eq!(other.read(&mut words, LONG).unwrap(), 11);
    for _ in 0..2 {
        assert_eq!(other.read(&mut words, LONG).unwrap_err().kind(), ErrorKind::UnexpectedEof);
    }
}

#[test]
fn whoever_waits_is_woken_by_the_end() {
    let (one, _other) = sealed();
    thread::scope(|scope| {
        let reader = scope.spawn(|| one.read(&mut [0], LONG));
        // Whichever comes first, the wait or the end.
        thread::yield_now();
        one.shut_down();
        match reader.join().unwrap() {
            Ok(count) => assert_eq!(count, 0),
            Err(error) => assert_ne!(error.kind(), ErrorKind::TimedOut, "{error}"),
        }
    });
    assert!(one.write(b"x", LONG).is_err());
}

#[test]
fn bytes_that_come_with_the_handshake_are_read_without_the_socket() {
    let (one, other) = plain();
    let client = thread::spawn(move || {
        let sealed = identity(1, "one").connect(one, PROTOCOL, end()).unwrap();
        write_all(&sealed, b"at once");
        sealed
    });
    let mut opening = identity(1, "other").begin_accept(other, PROTOCOL);
    let until = end();
    let sealed = loop {
        match opening.advance() {
            Progress::Open(sealed) => break sealed,
            Progress::Waits(waits) => {
                assert!(std::time::Instant::now() < until);
                // A server that has nothing to say waits for the other end.
                assert!(!waits.wants_to_write());
                opening = waits;
                thread::yield_now();
            }
            Progress::Failed(error, _) => panic!("{error}"),
        }
    };
    let mut words = [0; 7];
    read_exact(&sealed, &mut words);
    assert_eq!(&words, b"at once");
    client.join().unwrap();
}

#[test]
fn many_ends_meet_at_once() {
    const ENDS: usize = 32;
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::scope(|scope| {
        for at in 0..ENDS {
            scope.spawn(move || {
                let name = format!("end {at}");
                let sealed = identity(1, &name).connect(TcpStream::connect(address).unwrap(), PROTOCOL, end()).unwrap();
                write_all(&sealed, name.as_bytes());
                sealed.finish();
                assert_eq!(sealed.read(&mut [0], LONG).unwrap(), 0);
            });
        }
        let zero = identity(1, "zero");
        let accepted: Vec<_> = (0..ENDS)
            .map(|_| {
                let (stream, _) = listener.accept().unwrap();
                let zero = zero.clone();
                scope.spawn(move || -> String {
                    let sealed: Sealed = zero.accept(stream, PROTOCOL, end()).unwrap();
                    let mut name = vec![0; sealed.peer().len()];
                    read_exact(&sealed, &mut name);
                    assert_eq!(name, sealed.peer().as_bytes());
                    sealed.finish();
                    sealed.peer().to_owned()
                })
            })
            .collect();
        let mut names: Vec<_> = accepted.into_iter().map(|end| end.join().unwrap()).collect();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), ENDS);
    });
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(16))]

    #[test]
    fn a_stream_arrives_whole_however_it_is_cut(
        pieces in prop::collection::vec(0usize..40_000, 1..12),
        cut in 1usize..40_000,
    ) {
        let (one, other) = sealed();
        let len = pieces.iter().sum();
        let bytes = pattern(len, cut as u64);
        thread::scope(|scope| {
            scope.spawn(|| {
                let mut rest = &bytes[..];
                for len in &pieces {
                    let (piece, after) = rest.split_at(*len);
                    write_all(&one, piece);
                    rest = after;
                }
                one.finish();
            });
            let mut all = Vec::new();
            let mut into = vec![0; cut];
            loop {
                match other.read(&mut into, LONG).unwrap() {
                    0 => break,
                    count => all.extend_from_slice(&into[..count]),
                }
            }
            assert!(all == bytes);
        });
    }
}
