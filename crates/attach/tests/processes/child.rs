//! What a child does.

use fulmen_testbed::Parent;

/// Where children start. Without a role it is no test.
#[test]
fn in_a_role() {
    let Some(role) = Parent::role() else { return };
    let words: Vec<&str> = role.iter().map(String::as_str).collect();
    match words[0] {
        "talk" => super::talk::child(&words),
        "idle" => super::idle::child(&words),
        "crowd" => super::crowd::child(&words),
        "victim" => super::kill::victim(&words),
        "town" => super::kill::town(),
        role => panic!("there is no role {role}"),
    }
}
