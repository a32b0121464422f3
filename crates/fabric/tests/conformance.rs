//! Every carrier keeps the promises of the fabric.

use std::sync::Arc;

use fulmen_fabric::conformance::{Bench, run};
use fulmen_fabric::{FabricOptions, Providers};
use fulmen_reach::Node;
use fulmen_soft::{Profile, SoftDevice};
use fulmen_verbs::Device;

/// Ranks map one another's memory.
struct Reach;

impl Bench for Reach {
    fn name(&self) -> String {
        "reach".into()
    }

    fn providers(&self, _rank: u32) -> Result<Providers, String> {
        Ok(Providers { node: Some(node()?), devices: Vec::new() })
    }

    fn options(&self, options: FabricOptions) -> FabricOptions {
        FabricOptions { windows: true, ..options }
    }
}

fn node() -> Result<Node, String> {
    Node::open().map_err(|error| error.to_string())
}

/// The software device in one of its profiles.
struct Soft(Profile);

fn soft(profile: Profile) -> Result<Arc<dyn Device>, String> {
    let device = SoftDevice::open(&node()?, profile).map_err(|error| error.to_string())?;
    Ok(device)
}

impl Bench for Soft {
    fn name(&self) -> String {
        format!("soft {}", self.0)
    }

    fn providers(&self, _rank: u32) -> Result<Providers, String> {
        Ok(Providers { node: None, devices: vec![soft(self.0)?] })
    }

    fn options(&self, options: FabricOptions) -> FabricOptions {
        FabricOptions { windows: false, ..options }
    }
}

#[test]
fn reach() {
    run(&Reach).assert_passed();
}

#[test]
fn soft_infiniband() {
    run(&Soft(Profile::Infiniband)).assert_passed();
}

#[test]
fn soft_thunderbolt() {
    run(&Soft(Profile::Thunderbolt)).assert_passed();
}
