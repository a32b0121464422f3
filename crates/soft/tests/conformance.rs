//! Both profiles keep the promises of the verbs.

use std::sync::Arc;

use fulmen_reach::Node;
use fulmen_soft::{Profile, SoftDevice};
use fulmen_verbs::conformance::{Bench, run};
use fulmen_verbs::{Device, VerbsError};

/// Two devices on two nodes: the same as two processes, but for the address space.
struct TwoNodes(Profile);

/// Two devices on one node, which share everything but their numbers.
struct OneNode(Profile);

fn open(node: &Node, profile: Profile) -> Arc<dyn Device> {
    SoftDevice::open(node, profile).expect("a device opens")
}

impl Bench for TwoNodes {
    fn name(&self) -> String {
        format!("soft {} between nodes", self.0)
    }

    fn pair(&self) -> Result<[Arc<dyn Device>; 2], VerbsError> {
        let [one, other] = [(); 2].map(|()| Node::open().expect("a node opens"));
        Ok([open(&one, self.0), open(&other, self.0)])
    }
}

impl Bench for OneNode {
    fn name(&self) -> String {
        format!("soft {} on one node", self.0)
    }

    fn pair(&self) -> Result<[Arc<dyn Device>; 2], VerbsError> {
        let node = Node::open().expect("a node opens");
        Ok([open(&node, self.0), open(&node, self.0)])
    }
}

#[test]
fn infiniband_between_nodes() {
    run(&TwoNodes(Profile::Infiniband)).assert_passed();
}

#[test]
fn thunderbolt_between_nodes() {
    run(&TwoNodes(Profile::Thunderbolt)).assert_passed();
}

#[test]
fn infiniband_on_one_node() {
    run(&OneNode(Profile::Infiniband)).assert_passed();
}

#[test]
fn thunderbolt_on_one_node() {
    run(&OneNode(Profile::Thunderbolt)).assert_passed();
}
