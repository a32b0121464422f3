//! Programs that take nothing, and what others notice of that.

use std::path::Path;

use fulmen_attach::{LONGEST_MESSAGE, WINDOW};
use fulmen_testbed::{Child, Parent};
use fulmen_verbs::{Access, CompletionOpcode, Transition};

use super::side::{DEPTH, Name, Side};
use super::support::{House, strict};
use super::talk::{Talk, nothing_is_left};

/// Takes nothing before it is told to.
pub fn child(words: &[&str]) {
    let side = Side::with(Path::new(words[1]), 1, 1);
    Parent.tell(&side.name().to_line());
    side.connect(&Name::from_line(&Parent.hear())).expect("connected");
    Parent.tell("connected");
    assert_eq!(Parent.hear(), "take");
    for number in 0..u64::from(DEPTH) {
        side.recv(0, number, 0);
        let completion = side.next();
        assert_eq!((completion.wr_id, completion.byte_len as usize), (number, LONGEST_MESSAGE));
        assert_eq!(byte(&side), number as u8);
    }
    Parent.tell("taken");
    assert_eq!(Parent.hear(), "end");
}

fn byte(side: &Side) -> u8 {
    let mut byte = [0];
    side.piece(0, LONGEST_MESSAGE).memory.read(LONGEST_MESSAGE - 1, &mut byte);
    byte[0]
}

#[test]
fn who_takes_nothing_holds_up_nobody_else() {
    let houses = House::street([strict(), strict()]);
    let mut child = Child::start(&format!("idle {}", houses[1].socket.display()));
    let side = Side::with(&houses[0].socket, 1, DEPTH as usize);
    let peer = Name::from_line(&child.hear());
    child.tell(&side.name().to_line());
    side.connect(&peer).expect("connected");
    assert_eq!(child.hear(), "connected");
    for number in 0..DEPTH {
        side.piece(number as usize, LONGEST_MESSAGE).memory.write(LONGEST_MESSAGE - 1, &[number as u8]);
        side.send(0, number.into(), number as usize, LONGEST_MESSAGE);
    }
    for number in 0..u64::from(WINDOW) {
        let completion = side.next();
        assert_eq!((completion.opcode, completion.wr_id), (CompletionOpcode::Send, number));
    }
    // The others on the same trunk go on, in both directions.
    Talk::start([&houses[0].socket, &houses[1].socket], 21, 1000).finish(|| {});
    assert_eq!(side.poll(), None, "no more than {WINDOW} messages are on their way");
    child.tell("take");
    for number in u64::from(WINDOW)..u64::from(DEPTH) {
        assert_eq!(side.next().wr_id, number);
    }
    assert_eq!(child.hear(), "taken");
    child.tell("end");
    child.finish();
    drop(side);
    nothing_is_left(&houses);
}

/// A peer's first messages wait until its queue pair is connected to, whoever else would send there.
#[test]
fn strangers_displace_nobodys_messages() {
    let houses = House::street([strict(), strict()]);
    let taker = Side::with(&houses[0].socket, 1, 1);
    let senders = [0, 1, 1, 1].map(|house: usize| Side::with(&houses[house].socket, 1, 1));
    for (at, sender) in senders.iter().enumerate() {
        sender.connect(&taker.name()).expect("connected");
        (0..u64::from(WINDOW)).for_each(|number| sender.send(0, number, 0, 100 * at + number as usize));
        assert_eq!(sender.poll(), None, "a SEND is held until its peer is connected");
    }
    for (at, sender) in senders.iter().enumerate() {
        taker.pairs[0].modify(&Transition::Reset).expect("RESET");
        taker.pairs[0].modify(&Transition::Init { port: 1, access: Access::LOCAL_WRITE }).expect("INIT");
        taker.connect(&sender.name()).expect("connected");
        for number in 0..u64::from(WINDOW) {
            taker.recv(0, number, 0);
            assert_eq!(taker.next().byte_len as usize, 100 * at + number as usize);
            assert_eq!(sender.next().opcode, CompletionOpcode::Send);
        }
    }
    drop((taker, senders));
    nothing_is_left(&houses);
}
