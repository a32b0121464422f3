//! A program with as many queue pairs as one may have, all of which have messages on their way that nobody takes yet.

use std::path::Path;

use fulmen_attach::{LONGEST_MESSAGE, WINDOW};
use fulmen_verbs::CompletionOpcode;

use super::child::{Child, Parent};
use super::side::{Name, Side};
use super::talk::introduce;

const PAIRS: usize = 64;

pub fn child(words: &[&str]) {
    let mut side = Side::with(Path::new(words[1]), PAIRS, 1);
    side.create().expect_err("a program has no more queue pairs");
    Parent.tell(&side.name().to_line());
    side.connect(&Name::from_line(&Parent.hear())).expect("connected");
    let each = u64::from(WINDOW);
    for pair in 0..PAIRS {
        (0..each).for_each(|number| side.send(pair, number, 0, LONGEST_MESSAGE));
    }
    // The owner takes all that may be on its way, although the peer takes none.
    let all = PAIRS as u64 * each;
    (0..all).for_each(|_| assert_eq!(side.next().opcode, CompletionOpcode::Send));
    Parent.tell("sent");
    assert_eq!(Parent.hear(), "take");
    for pair in 0..PAIRS {
        (0..each).for_each(|number| side.recv(pair, number, 0));
    }
    for _ in 0..all {
        let completion = side.next();
        assert_eq!((completion.opcode, completion.byte_len as usize), (CompletionOpcode::Recv, LONGEST_MESSAGE));
    }
    Parent.tell("taken");
    assert_eq!(Parent.hear(), "end");
}

/// Lets two such programs talk.
pub fn gather(sockets: [&Path; 2]) {
    let mut children = sockets.map(|socket| Child::start(&format!("crowd {}", socket.display())));
    introduce(&mut children);
    for (said, told) in [("sent", "take"), ("taken", "end")] {
        children.iter_mut().for_each(|child| assert_eq!(child.hear(), said));
        children.iter_mut().for_each(|child| child.tell(told));
    }
    children.into_iter().for_each(Child::finish);
}
