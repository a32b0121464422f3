//! A target that computes and polls nothing.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use fulmen_soft::Profile;
use fulmen_testbed::Parent;
use fulmen_verbs::{CompletionOpcode, CompletionStatus, SendOp, SendRequest};

use super::endpoint::{Endpoint, Kept, Name};
use super::until;

const BYTES: usize = 8 << 20;
/// Lengths of messages in the ring, and of such that are copied by the receiver.
const LENGTHS: [usize; 7] = [1, 100, 4096, 4097, 40_000, 200_000, 3 << 20];

/// The child's memory: RECVs from here on, words for atomics and WRITEs before.
const RECVS: usize = BYTES / 4;

fn done(side: &Endpoint, opcode: CompletionOpcode) {
    let completion = until("a completion from a target that computes", || side.poll());
    assert_eq!((completion.status, completion.opcode), (CompletionStatus::Success, opcode));
}

/// All of it completes before the target, which never polls, is told to stop computing.
#[test]
fn an_idle_target_answers() {
    Kept::ALL.into_iter().for_each(answers);
}

fn answers(kept: Kept) {
    let mut child = kept.start_child("idle");
    let side = Endpoint::keeping(Profile::Infiniband, kept, BYTES);
    let peer = Name::from_line(&child.hear());
    child.tell(&side.name().to_line());
    side.connect(&peer);
    assert_eq!(child.hear(), "computing");
    let remote = |at: usize| fulmen_verbs::RemoteAddr { addr: peer.memory.addr + at as u64, ..peer.memory };
    side.memory.fill(0..BYTES, 0x5a);
    for round in 0..20 {
        let write = SendOp::Write { remote: remote(4096), imm: None };
        side.qp.post_send(&[SendRequest::new(1, write, [side.piece(0, 100_000)])]).expect("posted");
        done(&side, CompletionOpcode::Write);
        let read = SendOp::Read { remote: remote(4096) };
        side.memory.fill(BYTES / 2..BYTES, 0);
        side.qp.post_send(&[SendRequest::new(2, read, [side.piece(BYTES / 2, 100_000)])]).expect("posted");
        done(&side, CompletionOpcode::Read);
        let mut seen = vec![0; 100_000];
        side.memory.read(BYTES / 2, &mut seen);
        assert!(seen.iter().all(|byte| *byte == 0x5a), "what was written is read");
        let add = SendOp::FetchAdd { remote: remote(0), add: 3 };
        side.qp.post_send(&[SendRequest::new(3, add, [side.piece(BYTES - 8, 8)])]).expect("posted");
        done(&side, CompletionOpcode::FetchAdd);
        let old = side.memory.atomic_u64(BYTES - 8).load(Ordering::SeqCst);
        assert_eq!(old, 3 * round, "the old value of the word");
    }
    for len in LENGTHS {
        side.qp.post_send(&[SendRequest::send(4, [side.piece(0, len)])]).expect("posted");
        done(&side, CompletionOpcode::Send);
    }
    child.tell("stop");
    assert_eq!(child.hear(), "received");
    child.tell("end");
    child.finish();
}

pub fn child(words: &[&str]) {
    let side = Endpoint::keeping(Profile::Infiniband, Kept::from_word(words[1]), BYTES);
    Parent.tell(&side.name().to_line());
    side.connect(&Name::from_line(&Parent.hear()));
    let mut at = RECVS;
    for (number, len) in LENGTHS.into_iter().enumerate() {
        side.recv(number as u64, at, len);
        at += len;
    }
    let stop = Arc::new(AtomicBool::new(false));
    let told = stop.clone();
    let listener = std::thread::spawn(move || {
        assert_eq!(Parent.hear(), "stop");
        told.store(true, Ordering::SeqCst);
    });
    Parent.tell("computing");
    while !stop.load(Ordering::SeqCst) {
        std::hint::spin_loop();
    }
    listener.join().expect("the listener");
    let mut at = RECVS;
    for (number, len) in LENGTHS.into_iter().enumerate() {
        let completion = side.poll().expect("it has arrived");
        assert_eq!((completion.wr_id, completion.byte_len), (number as u64, len as u32));
        let mut seen = vec![0; len];
        side.memory.read(at, &mut seen);
        assert!(seen.iter().all(|byte| *byte == 0x5a), "message {number}");
        at += len;
    }
    Parent.tell("received");
    assert_eq!(Parent.hear(), "end");
}
