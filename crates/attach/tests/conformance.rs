//! An attached device keeps the promises of the verbs: between programs of two owners, which a narrow device joins, and between programs
//! of one.

mod support;

use std::sync::Arc;

use fulmen_soft::Profile;
use fulmen_verbs::conformance::{Bench, run};
use fulmen_verbs::{Device, VerbsError};
use support::{House, strict, wide};

struct Between {
    houses: [House; 2],
    name: &'static str,
}

impl Bench for Between {
    fn name(&self) -> String {
        self.name.to_owned()
    }

    fn pair(&self) -> Result<[Arc<dyn Device>; 2], VerbsError> {
        Ok([self.houses[0].attach(), self.houses[1].attach()])
    }
}

struct Within(House);

impl Bench for Within {
    fn name(&self) -> String {
        "attached, one owner".to_owned()
    }

    fn pair(&self) -> Result<[Arc<dyn Device>; 2], VerbsError> {
        Ok([self.0.attach(), self.0.attach()])
    }
}

#[test]
fn between_owners_of_a_narrow_device() {
    let houses = House::street([strict(), strict()]);
    run(&Between { houses, name: "attached, strict thunderbolt" }).assert_passed();
}

#[test]
fn between_owners_of_a_device_that_tells_channels_alone() {
    let houses = House::street([strict(), strict()]).map(House::by_channels);
    run(&Between { houses, name: "attached, strict thunderbolt by channels" }).assert_passed();
}

#[test]
fn between_owners_of_a_device_without_frames() {
    let houses = House::street([wide(), wide()]);
    run(&Between { houses, name: "attached, infiniband" }).assert_passed();
}

#[test]
fn between_programs_of_one_owner() {
    let [house] = House::street([strict()]);
    run(&Within(house)).assert_passed();
}

#[test]
fn the_device_below_is_what_it_is_said_to_be() {
    let limits = strict().1;
    assert_eq!((limits.queue_pairs, limits.protection_domains), (3, 6));
    assert_eq!(strict().0, Profile::Thunderbolt);
}
