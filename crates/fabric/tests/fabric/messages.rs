//! Messages over everything that carries them, with ranks as threads.

use std::sync::Barrier;
use std::time::Duration;

use crate::world::{self, LONG, options, released};
use fulmen_fabric::{Fabric, FabricError, FabricOptions, Flow};
use fulmen_memory::{Exposed, Region};

/// Bytes that tell where they come from.
fn pattern(len: usize, salt: u64) -> Vec<u8> {
    (0..len as u64).map(|at| (at.wrapping_mul(0x9e37_79b9) >> 3).wrapping_add(salt * 17) as u8).collect()
}

fn bytes_of(memory: &Exposed) -> Vec<u8> {
    let mut bytes = vec![0; memory.len()];
    memory.read(0, &mut bytes);
    bytes
}

/// Memory of every kind: registered, private.
fn memories(fabric: &Fabric, len: usize) -> [Exposed; 2] {
    let pool = fabric.alloc(len).unwrap().into_exposed();
    let private = Region::alloc(len.max(1)).unwrap().expose().unwrap().slice(0..len);
    [pool, private]
}

const SIZES: [usize; 14] = [0, 1, 8, 40, 41, 255, 257, 4096, 8168, 8169, 16_383, 16_384, 100_000, 3_000_000];

#[test]
fn every_size_out_of_and_into_every_memory() {
    world::run_over_each(2, |fabric| {
        for (salt, len) in (0..).zip(SIZES) {
            for tag in 0..6 {
                let message = pattern(len, salt + tag);
                if fabric.rank() == 0 {
                    let [pool, private] = memories(fabric, len);
                    match tag % 3 {
                        0 => fabric.send_bytes(1, tag, &message, LONG).unwrap(),
                        1 => {
                            pool.write(0, &message);
                            fabric.send(1, tag, &pool, LONG).unwrap();
                        }
                        _ => {
                            private.write(0, &message);
                            fabric.send(1, tag, &private, LONG).unwrap();
                        }
                    }
                } else {
                    let [pool, private] = memories(fabric, len);
                    match (tag + tag / 3) % 3 {
                        0 => {
                            let mut bytes = vec![0; len + 3];
                            assert_eq!(fabric.recv_bytes(0, tag, &mut bytes, LONG).unwrap(), len);
                            assert_eq!(bytes[..len], message[..]);
                            assert_eq!(bytes[len..], [0; 3]);
                        }
                        1 => {
                            assert_eq!(fabric.recv(0, tag, &pool, LONG).unwrap(), len);
                            assert!(bytes_of(&pool) == message, "{len} bytes with tag {tag}");
                        }
                        _ => {
                            assert_eq!(fabric.recv(0, tag, &private, LONG).unwrap(), len);
                            assert!(bytes_of(&private) == message, "{len} bytes with tag {tag}");
                        }
                    }
                }
            }
        }
    });
}

/// It is written past the caches.
#[test]
fn a_message_with_no_room_in_caches_arrives_whole() {
    let len = fulmen_memory::cache_room() / 2 + 3;
    assert!(fulmen_memory::copies_past_caches(len));
    world::run(2, |fabric| {
        let message = pattern(len, 1);
        if fabric.rank() == 0 {
            return fabric.send_bytes(1, 0, &message, LONG).unwrap();
        }
        let mut bytes = vec![0; len + 6];
        assert_eq!(fabric.recv_bytes(0, 0, &mut bytes[3..], LONG).unwrap(), len);
        assert!(bytes[3..len + 3] == message[..]);
        assert!(bytes[..3] == [0; 3] && bytes[len + 3..] == [0; 3]);
    });
}

#[test]
fn all_talk_to_all_with_few_credits() {
    let small = |_| FabricOptions {
        flow: Flow { frame: 256, credits: 16, rendezvous: 3000, rendezvous_tcp: 3000, unexpected: 1000 },
        ..options()
    };
    let rounds = 60;
    world::start_over_each(4, small, |rank, fabric| {
        let fabric = fabric.unwrap();
        let others: Vec<u32> = (0..4).filter(|other| *other != rank).collect();
        for round in 0..rounds {
            let len = (round * 131) % 5000;
            let mut operations = Vec::new();
            let mut receives = Vec::new();
            for other in &others {
                let data = fabric.alloc(len).unwrap().into_exposed();
                data.write(0, &pattern(len, u64::from(rank * 4 + other)));
                operations.push(fabric.start_send(*other, round as u64, &data).unwrap());
                let into = fabric.alloc(len).unwrap().into_exposed();
                receives.push((*other, into.clone(), fabric.start_recv(*other, round as u64, &into).unwrap()));
            }
            for (other, into, operation) in receives {
                assert_eq!(operation.wait(LONG).unwrap(), len as u64);
                assert!(bytes_of(&into) == pattern(len, u64::from(other * 4 + rank)));
            }
            for operation in operations {
                assert_eq!(operation.wait(LONG).unwrap(), len as u64);
            }
        }
    });
}

#[test]
fn tags_are_kept_apart_and_each_in_its_order() {
    world::run_over_each(2, |fabric| {
        if fabric.rank() == 0 {
            for value in 0..100u64 {
                fabric.send_bytes(1, value % 3, &value.to_le_bytes(), LONG).unwrap();
            }
        } else {
            for tag in [2, 0, 1] {
                for value in (0..100u64).filter(|value| value % 3 == tag) {
                    let mut bytes = [0; 8];
                    fabric.recv_bytes(0, tag, &mut bytes, LONG).unwrap();
                    assert_eq!(u64::from_le_bytes(bytes), value);
                }
            }
        }
    });
}

#[test]
fn a_message_that_does_not_fit_is_an_error_and_writes_nothing() {
    world::run_over_each(2, |fabric| {
        for (tag, len) in [(0, 100), (1, 20_000), (2, 50_000)] {
            if fabric.rank() == 0 {
                let [pool, _] = memories(fabric, len);
                let sent = match tag {
                    1 => fabric.send_bytes(1, tag, &pattern(len, 1), LONG),
                    _ => fabric.send(1, tag, &pool, LONG),
                };
                match tag {
                    0 => sent.unwrap(),
                    2 => assert!(matches!(sent, Err(FabricError::Refused { rank: 1, len: 50_000, .. })), "{sent:?}"),
                    // It may have gone out before the receiver said anything.
                    _ => assert!(matches!(sent, Ok(()) | Err(FabricError::Refused { .. })), "{sent:?}"),
                }
            } else {
                let mut bytes = [7; 99];
                let error = fabric.recv_bytes(0, tag, &mut bytes, LONG).unwrap_err();
                let text = error.to_string();
                assert!(matches!(error, FabricError::Truncated { rank: 0, room: 99, .. }), "{text}");
                assert!(
                    text.contains(&len.to_string())
                        && text.contains("99")
                        && text.contains(&fabric.link_kind().to_string()),
                    "{text}"
                );
                assert_eq!(bytes, [7; 99]);
            }
        }
        // The link goes on.
        let other = 1 - fabric.rank();
        fabric.send_bytes(other, 9, b"on", LONG).unwrap();
        assert_eq!(fabric.recv_bytes(other, 9, &mut [0; 2], LONG).unwrap(), 2);
    });
}

#[test]
fn a_receive_that_timed_out_gives_its_memory_back_and_never_writes() {
    let turn = Barrier::new(2);
    world::run_over_each(2, |fabric| {
        if fabric.rank() == 1 {
            let memory = fabric.alloc(1000).unwrap().into_exposed();
            memory.fill(0..1000, 5);
            let error = fabric.recv(0, 3, &memory, Duration::from_millis(100)).unwrap_err();
            let text = error.to_string();
            assert!(matches!(&error, FabricError::TimedOut { op: "recv", missing, .. } if *missing == [0]), "{text}");
            let block = memory.into_block().expect("nobody else has it");
            turn.wait();
            // The message is there by now, and goes to the next receive.
            let mut bytes = [0; 1000];
            assert_eq!(fabric.recv_bytes(0, 3, &mut bytes, LONG).unwrap(), 1000);
            assert_eq!(bytes, [6; 1000]);
            assert!(block.as_slice::<u8>().iter().all(|byte| *byte == 5));
        } else {
            turn.wait();
            fabric.send_bytes(1, 3, &[6; 1000], LONG).unwrap();
        }
    });
}

#[test]
fn a_send_that_timed_out_is_withdrawn() {
    world::run_over_each(2, |fabric| {
        if fabric.rank() == 0 {
            let memory = fabric.alloc(100_000).unwrap().into_exposed();
            let error = fabric.send(1, 3, &memory, Duration::from_millis(100)).unwrap_err();
            assert!(matches!(&error, FabricError::TimedOut { op: "send", missing, .. } if *missing == [1]), "{error}");
            fabric.send_bytes(1, 4, b"now", LONG).unwrap();
            // The peer has answered before it sends this.
            fabric.recv_bytes(1, 5, &mut [0; 1], LONG).unwrap();
            assert!(memory.into_block().is_ok(), "the withdrawn send has released its memory");
            fabric.send_bytes(1, 3, b"small", LONG).unwrap();
        } else {
            fabric.recv_bytes(0, 4, &mut [0; 3], LONG).unwrap();
            fabric.send_bytes(0, 5, &[1], LONG).unwrap();
            let mut bytes = [0; 100];
            assert_eq!(fabric.recv_bytes(0, 3, &mut bytes, LONG).unwrap(), 5);
        }
    });
}

#[test]
fn the_progress_thread_moves_messages_while_nobody_waits() {
    let turn = Barrier::new(2);
    world::run_over_each(2, |fabric| {
        let len = 2_000_000;
        if fabric.rank() == 0 {
            // Rendezvous and fragments: both need this rank's help, which it gives without another call.
            let [pool, private] = memories(fabric, len);
            private.write(0, &pattern(len, 4));
            pool.write(0, &pattern(len, 3));
            let offered = fabric.start_send(1, 1, &pool).unwrap();
            let framed = fabric.start_send(1, 2, &private).unwrap();
            turn.wait();
            // Blocked in something that the fabric knows nothing of.
            turn.wait();
            assert_eq!(offered.wait(LONG).unwrap(), len as u64);
            assert_eq!(framed.wait(LONG).unwrap(), len as u64);
        } else {
            turn.wait();
            for (tag, salt) in [(1, 3), (2, 4)] {
                let mut bytes = vec![0; len];
                assert_eq!(fabric.recv_bytes(0, tag, &mut bytes, LONG).unwrap(), len);
                assert!(bytes == pattern(len, salt));
            }
            turn.wait();
        }
    });
}

#[test]
fn receives_complete_while_their_rank_does_something_else() {
    let turn = Barrier::new(2);
    world::run_over_each(2, |fabric| {
        let len = 1_000_000;
        if fabric.rank() == 0 {
            let into = fabric.alloc(len).unwrap().into_exposed();
            let operation = fabric.start_recv(1, 1, &into).unwrap();
            turn.wait();
            turn.wait();
            // The sender could only get here because the message was received.
            assert_eq!(operation.wait(LONG).unwrap(), len as u64);
            assert!(bytes_of(&into) == pattern(len, 8));
        } else {
            let data = fabric.alloc(len).unwrap().into_exposed();
            data.write(0, &pattern(len, 8));
            turn.wait();
            fabric.send(0, 1, &data, LONG).unwrap();
            turn.wait();
        }
    });
}

#[test]
fn dropped_handles_do_their_work_and_release_their_memory() {
    world::run_over_each(2, |fabric| {
        let len = 100_000;
        if fabric.rank() == 0 {
            let data = fabric.alloc(len).unwrap().into_exposed();
            data.write(0, &pattern(len, 2));
            drop(fabric.start_send(1, 1, &data).unwrap());
            assert_eq!(fabric.recv_bytes(1, 2, &mut [0; 1], LONG).unwrap(), 1);
            // Soon: that it has arrived is not told in the same order as messages.
            released("the end of the send", data);
        } else {
            let into = fabric.alloc(len).unwrap().into_exposed();
            assert_eq!(fabric.recv(0, 1, &into, LONG).unwrap(), len);
            assert!(bytes_of(&into) == pattern(len, 2));
            fabric.send_bytes(0, 2, &[1], LONG).unwrap();
        }
    });
}

#[test]
fn a_dropped_send_arrives_although_its_rank_leaves() {
    world::start_over_each(
        2,
        |_| options(),
        |rank, fabric| {
            let fabric = fabric.unwrap();
            if rank == 0 {
                let data = fabric.alloc(100_000).unwrap().into_exposed();
                data.write(0, &pattern(100_000, 2));
                drop(fabric.start_send(1, 1, &data).unwrap());
            } else {
                let mut bytes = vec![0; 100_000];
                assert_eq!(fabric.recv_bytes(0, 1, &mut bytes, LONG).unwrap(), 100_000);
                assert!(bytes == pattern(100_000, 2));
            }
        },
    );
}

#[test]
fn what_was_sent_before_leaving_is_received_and_then_the_loss_is_told() {
    world::start_over_each(
        2,
        |_| options(),
        |rank, fabric| {
            let fabric = fabric.unwrap();
            if rank == 0 {
                for value in 0..20 {
                    fabric.send_bytes(1, 1, &[value], LONG).unwrap();
                }
            } else {
                let error = fabric.recv_bytes(0, 2, &mut [0; 1], LONG).unwrap_err();
                assert!(matches!(error, FabricError::PeerLost { rank: 0, op: "recv", .. }), "{error}");
                for value in 0..20 {
                    let mut byte = [0; 1];
                    fabric.recv_bytes(0, 1, &mut byte, LONG).unwrap();
                    assert_eq!(byte, [value]);
                }
                for error in [
                    fabric.recv_bytes(0, 1, &mut [0; 1], LONG).unwrap_err(),
                    fabric.send_bytes(0, 1, &[0; 1], LONG).unwrap_err(),
                    fabric.start_send(0, 1, &fabric.alloc(8).unwrap().into_exposed()).unwrap_err(),
                ] {
                    assert!(matches!(error, FabricError::PeerLost { rank: 0, .. }), "{error}");
                }
            }
        },
    );
}

#[test]
fn threads_of_one_rank_share_its_links() {
    world::run_over_each(2, |fabric| {
        let other = 1 - fabric.rank();
        std::thread::scope(|scope| {
            for tag in 0..4u64 {
                scope.spawn(move || {
                    for round in 0..50 {
                        let len = [8, 300, 9000, 30_000][(round % 4) as usize];
                        let message = pattern(len, tag + round);
                        let mut bytes = vec![0; len];
                        if fabric.rank() == 0 {
                            fabric.send_bytes(other, tag, &message, LONG).unwrap();
                            fabric.recv_bytes(other, tag, &mut bytes, LONG).unwrap();
                        } else {
                            fabric.recv_bytes(other, tag, &mut bytes, LONG).unwrap();
                            fabric.send_bytes(other, tag, &message, LONG).unwrap();
                        }
                        assert!(bytes == message);
                    }
                });
            }
        });
    });
}

#[test]
fn nobody_sends_to_nobody() {
    world::run_over_each(2, |fabric| {
        for rank in [2, u32::MAX] {
            let error = fabric.send_bytes(rank, 0, &[1], LONG).unwrap_err();
            assert!(matches!(error, FabricError::NoSuchRank { op: "send", size: 2, .. }), "{error}");
            let error = fabric.recv_bytes(rank, 0, &mut [1], LONG).unwrap_err();
            assert!(matches!(error, FabricError::NoSuchRank { op: "recv", size: 2, .. }), "{error}");
        }
    });
}
