//! Both profiles keep the promises of the verbs.

mod plain;

use std::sync::Arc;
use std::time::Duration;

use fulmen_memory::{Pool, Region, RegionError};
use fulmen_reach::{Node, NodeAddress};
use fulmen_soft::{Addressing, Profile, SoftDevice, SoftOptions};
use fulmen_verbs::conformance::{Bench, run};
use fulmen_verbs::{Access, Device, VerbsError};

/// Two devices on two nodes: the same as two processes, but for the address space.
struct TwoNodes(Profile);

/// Two devices on one node, which share everything but their numbers.
struct OneNode(Profile);

fn node() -> Node {
    fulmen_testbed::raise_descriptors();
    Node::open().expect("a node opens")
}

fn open(node: &Node, profile: Profile) -> Arc<dyn Device> {
    SoftDevice::open(node, profile).expect("a device opens")
}

/// Two devices on two nodes that are found by LID, as programs of the drop-in library have them.
struct Numbered(Profile);

fn open_numbered(profile: Profile) -> Arc<dyn Device> {
    fulmen_testbed::raise_descriptors();
    let mut nodes = (1..=NodeAddress::MOST_NUMBERED).rev().filter_map(|number| {
        let node = Node::open_numbered(number).expect("a node opens, or its number is taken")?;
        Some((number, node))
    });
    let (number, node) = nodes.next().expect("not all numbers are taken");
    let mut options = SoftOptions::new(profile);
    options.addressing = Addressing::Numbered(number);
    options.recv_patience = Duration::from_secs(1);
    SoftDevice::open_as(&node, options).expect("a device opens")
}

impl Bench for Numbered {
    fn name(&self) -> String {
        format!("soft {} between numbered nodes", self.0)
    }

    fn pair(&self) -> Result<[Arc<dyn Device>; 2], VerbsError> {
        Ok([open_numbered(self.0), open_numbered(self.0)])
    }
}

impl Bench for TwoNodes {
    fn name(&self) -> String {
        format!("soft {} between nodes", self.0)
    }

    fn pair(&self) -> Result<[Arc<dyn Device>; 2], VerbsError> {
        let [one, other] = [(); 2].map(|()| node());
        Ok([open(&one, self.0), open(&other, self.0)])
    }
}

impl Bench for OneNode {
    fn name(&self) -> String {
        format!("soft {} on one node", self.0)
    }

    fn pair(&self) -> Result<[Arc<dyn Device>; 2], VerbsError> {
        let node = node();
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
fn infiniband_between_numbered_nodes() {
    run(&Numbered(Profile::Infiniband)).assert_passed();
}

#[test]
fn thunderbolt_between_numbered_nodes() {
    run(&Numbered(Profile::Thunderbolt)).assert_passed();
}

#[test]
fn infiniband_on_one_node() {
    run(&OneNode(Profile::Infiniband)).assert_passed();
}

#[test]
fn thunderbolt_on_one_node() {
    run(&OneNode(Profile::Thunderbolt)).assert_passed();
}

/// Memory as programs allocate it, which no peer can map: it is copied by the system, or through rings.
struct Plain {
    process_vm: bool,
}

impl Bench for Plain {
    fn name(&self) -> String {
        format!(
            "soft {} with plain memory, {}",
            Profile::Infiniband,
            if self.process_vm { "copied" } else { "in rings" }
        )
    }

    fn pair(&self) -> Result<[Arc<dyn Device>; 2], VerbsError> {
        let options = SoftOptions { process_vm: self.process_vm, ..SoftOptions::new(Profile::Infiniband) };
        let open = |()| {
            let node = node();
            SoftDevice::open_as(&node, options.clone()).expect("a device opens")
        };
        Ok([(); 2].map(open))
    }

    fn memory(&self, len: usize) -> Result<Region, RegionError> {
        plain::region(len)
    }
}

#[test]
fn plain_memory_copied_by_the_system() {
    run(&Plain { process_vm: true }).assert_passed();
}

#[test]
fn plain_memory_through_rings() {
    run(&Plain { process_vm: false }).assert_passed();
}

/// Blocks of a pool are exclusive, so that this process does not work on the whole of it for peers.
#[test]
fn plain_memory_of_pools_is_not_for_peers() {
    let device = open(&node(), Profile::Infiniband);
    let pd = device.alloc_pd().expect("a domain");
    let region = plain::region(1 << 20).expect("memory");
    let _pool = Pool::new(&region).expect("a pool");
    let refused = pd.register(&region, 0..4096, Access::all()).map(|_| ());
    assert!(matches!(refused, Err(VerbsError::Invalid { .. })), "{refused:?}");
    pd.register(&region, 0..4096, Access::LOCAL_WRITE).expect("it is for this process");
}
