//! What a child does.

use fulmen_testbed::Parent;

/// Where children start. Without a role it is no test.
#[test]
fn in_a_role() {
    let Some(role) = Parent::role() else { return };
    let words: Vec<&str> = role.iter().map(String::as_str).collect();
    match words[0] {
        "datagrams" => super::datagrams::child(&words),
        "exchange" => super::exchange::child(&words),
        "victim" => super::kill::child(&words),
        "idle" => super::idle::child(&words),
        "fork" => super::fork::child(&words),
        "core" => super::one_core::child(&words),
        "shared" => super::shared::child(&words),
        "signals" => super::signals::child(),
        "long" => super::long::child(&words),
        "leaks" => super::leaks::child(&words),
        role => panic!("there is no role {role}"),
    }
}
