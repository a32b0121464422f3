//! Ranks on several hosts, by TCP, and what they are told of it.

use crate::world::{self, LONG, networked, options};
use fulmen_fabric::{Fabric, FabricOptions, LinkKind, Providers, StartError, Tcp};
use fulmen_soft::Profile;
use fulmen_trust::{Authority, Identity};
use fulmen_verbs::Carrier;

fn identity(secret: u8, rank: u32) -> Identity {
    Authority::from_secret(&[secret; 32]).unwrap().identity(&format!("rank {rank}")).unwrap()
}

fn apart(providers: Providers) -> (Providers, FabricOptions) {
    (providers, FabricOptions { windows: false, ..options() })
}

/// Each says a word to all.
fn talk(fabric: &Fabric) {
    let rank = fabric.rank();
    let others = || (0..fabric.size()).filter(|other| *other != rank);
    others().for_each(|other| fabric.send_bytes(other, 1, &rank.to_le_bytes(), LONG).unwrap());
    for other in others() {
        let mut word = [0; 4];
        fabric.recv_bytes(other, 1, &mut word, LONG).unwrap();
        assert_eq!(u32::from_le_bytes(word), other);
    }
}

#[test]
fn ranks_of_one_host_share_memory_and_others_talk_by_tcp() {
    for sealed in [false, true] {
        for profile in Profile::ALL {
            // Ranks 0 and 1 are on one host, and rank 2 on another.
            let given = |rank: u32| {
                let seal = sealed.then(|| identity(1, rank));
                apart(networked(profile, [1 + rank as u8 / 2; 16], seal))
            };
            world::start_with(3, given, |rank, fabric| {
                let fabric = fabric.unwrap();
                for other in (0..3).filter(|other| *other != rank) {
                    let rail = fabric.rail(other).unwrap();
                    let near = other / 2 == rank / 2;
                    let carrier = if near { Carrier::SharedMemory } else { Carrier::Tcp { sealed } };
                    assert_eq!(rail.carrier, carrier, "{rank} and {other}: {rail}");
                    assert!(rail.to_string().contains(&carrier.to_string()), "{rail}");
                }
                assert_eq!(fabric.link_kind(), LinkKind::Tcp);
                assert_eq!(fabric.fallback(), None);
                talk(&fabric);
            });
        }
    }
}

#[test]
fn ranks_that_disagree_on_sealing_are_told_before_they_connect() {
    let given =
        |rank: u32| apart(networked(Profile::Infiniband, [rank as u8; 16], (rank != 1).then(|| identity(1, rank))));
    world::start_with(3, given, |_, fabric| {
        let error = fabric.unwrap_err();
        let text = error.to_string();
        assert!(matches!(error, StartError::Disagree { rank: 1, .. }), "{text}");
        assert!(text.contains("TCP between hosts") && text.contains("FULMEN_TRUSTED_RAIL"), "{text}");
    });
}

#[test]
fn a_rank_of_another_authority_is_refused() {
    let given = |rank: u32| apart(networked(Profile::Infiniband, [rank as u8; 16], Some(identity(rank as u8, rank))));
    world::start_with(2, given, |rank, fabric| {
        let text = fabric.unwrap_err().to_string();
        assert!(text.contains(&format!("rank {}", 1 - rank)), "{text}");
    });
}

#[test]
fn a_fallback_is_told_and_stays_one_in_the_next_generation() {
    const WHY: &str = "rank 0 has no RDMA device that works: its cable is not there";
    let given = |rank: u32| {
        let mut providers = networked(Profile::Infiniband, [rank as u8; 16], None);
        providers.tcp = Some(Tcp { sealed: false, instead: Some(WHY.into()) });
        apart(providers)
    };
    world::start_with(2, given, |_, fabric| {
        let fabric = fabric.unwrap();
        let next = fabric.regroup(fulmen_fabric::Regroup::Survivors, LONG).unwrap();
        for fabric in [&fabric, &next] {
            assert_eq!(fabric.fallback(), Some(WHY));
            let directory = tempfile::tempdir().unwrap();
            let file = fabric.recorder().write(directory.path()).unwrap().unwrap();
            let record = std::fs::read_to_string(file).unwrap();
            assert!(record.contains("\"fallback\"") && record.contains(WHY), "{record}");
        }
        talk(&next);
    });
}
