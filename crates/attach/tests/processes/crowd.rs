//! Programs with as many queue pairs as one may have, all of which have messages on their way that nobody takes yet.

use std::path::Path;

use fulmen_attach::{LONGEST_MESSAGE, WINDOW};
use fulmen_testbed::{Child, Parent};
use fulmen_verbs::CompletionOpcode;

use super::side::{Name, Side};
use super::support::{House, strict};
use super::talk::{introduce, nothing_is_left};
use super::until;

const PAIRS: usize = 64;
/// Messages of a program that are on their way at most.
const ALL: usize = PAIRS * WINDOW as usize;

/// One that sends as many as go out, one that takes as many, or one that does both.
pub fn child(words: &[&str]) {
    let (sends, takes) = (words[2] != "takes", words[2] != "sends");
    let mut side = Side::with(Path::new(words[1]), PAIRS, 1);
    side.create().expect_err("a program has no more queue pairs");
    Parent.tell(&side.name().to_line());
    side.connect(&Name::from_line(&Parent.hear())).expect("connected");
    let each = |step: &dyn Fn(usize, u64)| {
        (0..PAIRS).for_each(|pair| (0..u64::from(WINDOW)).for_each(|number| step(pair, number)));
    };
    if sends {
        each(&|pair, number| side.send(pair, number, 0, LONGEST_MESSAGE));
        // The owner takes them, although the peer takes none.
        (0..ALL).for_each(|_| assert_eq!(side.next().opcode, CompletionOpcode::Send));
    }
    Parent.tell("sent");
    assert_eq!(Parent.hear(), "take");
    if takes {
        each(&|pair, number| side.recv(pair, number, 0));
        for _ in 0..ALL {
            let completion = side.next();
            assert_eq!((completion.opcode, completion.byte_len as usize), (CompletionOpcode::Recv, LONGEST_MESSAGE));
        }
    }
    Parent.tell("taken");
    assert_eq!(Parent.hear(), "end");
}

fn start(sockets: [&Path; 2], kinds: [&str; 2]) -> [Child; 2] {
    let child = |at: usize| Child::start(&format!("crowd {} {}", sockets[at].display(), kinds[at]));
    let mut children = [child(0), child(1)];
    introduce(&mut children);
    children
}

/// Lets all say one thing, and tells them another.
fn next(children: &mut [Child], said: &str, told: &str) {
    children.iter_mut().for_each(|child| assert_eq!(child.hear(), said));
    children.iter_mut().for_each(|child| child.tell(told));
}

/// Lets two such programs talk.
pub fn gather(sockets: [&Path; 2]) {
    let mut children = start(sockets, ["both"; 2]);
    next(&mut children, "sent", "take");
    next(&mut children, "taken", "end");
    children.into_iter().for_each(Child::finish);
}

/// As many queue pairs as an owner has for all programs, while there is a message at each place that there is for one.
#[test]
fn there_is_memory_for_all_that_may_be_on_its_way() {
    fulmen_testbed::raise_descriptors();
    let houses = House::street([strict(), strict()]);
    let sockets = [&*houses[0].socket, &*houses[1].socket];
    let mut children: Vec<Child> = (0..4).flat_map(|_| start(sockets, ["sends", "takes"])).collect();
    let owner = houses[1].owner.as_ref().expect("open");
    until("all messages at the other owner", || {
        (owner.status()[0].received_bytes == (4 * ALL * LONGEST_MESSAGE) as u64).then_some(())
    });
    next(&mut children, "sent", "take");
    next(&mut children, "taken", "end");
    children.into_iter().for_each(Child::finish);
    nothing_is_left(&houses);
}
