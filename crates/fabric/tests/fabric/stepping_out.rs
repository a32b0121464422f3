//! Ranks that go on without one whose device fails them: it lives, and has to step out.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use fulmen_fabric::{FabricError, RecoveryError, Regroup, RegroupError};
use fulmen_soft::Profile;
use fulmen_verbs::{Device, FaultPlan, Faulty, Kill, KillMode, Odds, VerbsError};

use crate::recovery::{exchange, try_exchange};
use crate::scripted::Scripted;
use crate::world::{self, LONG};

/// A rank whose device dies is cut off from all others, though its process lives.
#[test]
fn ranks_go_on_without_one_whose_device_died() {
    for profile in Profile::ALL {
        println!("over {profile}");
        let plan = FaultPlan {
            kill: Some(Kill { when: Odds::at(301), mode: KillMode::FailsEverything }),
            ..FaultPlan::quiet(1)
        };
        let device = |rank| {
            let device = world::device(profile);
            if rank == 1 { Faulty::new(device, plan.clone()) as Arc<dyn Device> } else { device }
        };
        let ends = world::start_devices(3, device, |rank, fabric| {
            let fabric = fabric.unwrap();
            let error = loop {
                if let Err(error) = try_exchange(&fabric, None) {
                    break error;
                }
            };
            assert!(matches!(error, FabricError::PeerLost { .. }), "{error}");
            let next = fabric.regroup(Regroup::Survivors, LONG);
            match next {
                Ok(next) => {
                    assert_eq!(next.members(), [0, 2]);
                    exchange(&next, None);
                    true
                }
                Err(RecoveryError::Regroup(RegroupError::Partitioned { with, without })) => {
                    assert_eq!((rank, with, without), (1, vec![1], vec![0, 2]));
                    false
                }
                Err(other) => panic!("rank {rank}: {other}"),
            }
        });
        assert_eq!(ends, [true, false, true]);
    }
}

/// A rank that cannot take part in the new generation steps out, and the others form another one.
#[test]
fn ranks_go_on_without_one_that_cannot_start() {
    for profile in Profile::ALL {
        println!("over {profile}");
        let is_full = Arc::new(AtomicBool::new(false));
        let device = |rank| {
            let device = world::device(profile);
            let is_full = is_full.clone();
            let domain = move || match is_full.load(Ordering::SeqCst) {
                true => {
                    Err(VerbsError::System { device: "soft0".into(), call: "alloc_pd", cause: "it is full".into() })
                }
                false => Ok(()),
            };
            if rank == 1 { Scripted::over(device).domain(domain).device() } else { device }
        };
        let ends = world::start_devices(3, device, |_, fabric| {
            let fabric = fabric.unwrap();
            exchange(&fabric, None);
            fabric.agree("ready", Ok::<(), FabricError>(()), LONG).unwrap();
            is_full.store(true, Ordering::SeqCst);
            match fabric.regroup(Regroup::Survivors, LONG) {
                Ok(next) => {
                    exchange(&next, None);
                    Ok(next.members().to_vec())
                }
                Err(error) => Err((error.to_string(), fabric.regroup(Regroup::Survivors, LONG).unwrap_err())),
            }
        });
        let [Ok(zero), Err((error, again)), Ok(two)] = &ends[..] else { panic!("{ends:?}") };
        assert_eq!((&zero[..], &two[..]), (&[0, 2][..], &[0, 2][..]));
        assert!(error.contains("it is full"), "{error}");
        assert!(matches!(again, RecoveryError::Regroup(RegroupError::Superseded)), "{again}");
    }
}
