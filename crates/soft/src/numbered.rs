//! Numbered nodes for tests.

use std::sync::Arc;

use fulmen_reach::{Node, NodeAddress};
use fulmen_verbs::Device;

use crate::{Addressing, Profile, SoftDevice, SoftOptions};

/// A node with a number that nobody has; programs take low ones.
pub(crate) fn open() -> (u16, Node) {
    let numbers = (1..=NodeAddress::MOST_NUMBERED).rev();
    let mut opened = numbers.filter_map(|number| Some((number, Node::open_numbered(number).unwrap()?)));
    opened.next().expect("not all numbers are taken")
}

/// A device on such a node.
pub(crate) fn device(node: &Node, number: u16, profile: Profile) -> Arc<dyn Device> {
    let options = SoftOptions { addressing: Addressing::Numbered(number), ..SoftOptions::new(profile) };
    SoftDevice::open_as(node, options).unwrap()
}
