//! Devices that have less than they say, or less than one-sided operations need.

use std::sync::Arc;

use fulmen_fabric::{Fabric, Rights};
use fulmen_soft::Profile;
use fulmen_verbs::{Access, Device, QueuePairKind, Transition, VerbsError};

use crate::devices::{check, fill, traffic};
use crate::rails::{events_of, listen, used};
use crate::scripted::{Queue, Scripted};
use crate::world::{LONG, device, modest, start_devices};

const KEY: u64 = 1000;

/// Rank 0 works on memory of rank 1, by several operations at a time.
fn one_sided(fabric: &Fabric) {
    const LEN: usize = 100_000;
    if fabric.rank() == 1 {
        let memory = fabric.alloc(LEN).unwrap().into_exposed();
        memory.write(0, &[0; 8]);
        let shares = [(); 2].map(|()| fabric.share(&memory, Rights::all()).unwrap());
        fabric.send_bytes(0, KEY, &shares[0].key().to_bytes(), LONG).unwrap();
        fabric.recv_bytes(0, KEY, &mut [], LONG).unwrap();
        check(&memory.slice(8..LEN), 3, "a put");
        let mut word = [0; 8];
        memory.read(0, &mut word);
        assert_eq!(u64::from_ne_bytes(word), 100);
        return;
    }
    let mut key = [0; 256];
    let len = fabric.recv_bytes(1, KEY, &mut key, LONG).unwrap();
    let remote = fabric.remote(1, &fulmen_fabric::RemoteKey::from_bytes(&key[..len]).unwrap()).unwrap();
    let data = fabric.alloc(LEN - 8).unwrap().into_exposed();
    fill(&data, 3);
    remote.put(8, &data, LONG).unwrap();
    let adds: Vec<_> = (0..100).map(|_| remote.start_fetch_add(0, 1).unwrap()).collect();
    for add in adds {
        add.wait(LONG).unwrap();
    }
    fabric.fence(1).unwrap();
    fabric.send_bytes(1, KEY, &[], LONG).unwrap();
}

/// Messages of all lengths both ways, and one-sided operations, over queues with room for less than they report.
fn over_short(device: impl Fn() -> Arc<dyn Device> + Sync, room: fn(u32) -> u32, kind: QueuePairKind) {
    let devices = |_| Scripted::over(device()).room(move |_, asked| room(asked)).device();
    let rounds = |fabric: Fabric| {
        traffic(&fabric, 3);
        one_sided(&fabric);
        traffic(&fabric, 1);
        fabric.rail(1 - fabric.rank()).unwrap().kind
    };
    let kinds = start_devices(2, devices, |_, fabric| rounds(fabric.unwrap()));
    assert_eq!(kinds, [kind; 2]);
}

#[test]
fn queues_that_are_full_early_are_waited_for_over_rc() {
    for room in [|asked: u32| asked.div_ceil(4), |asked: u32| asked.min(3)] {
        over_short(|| device(Profile::Infiniband), room, QueuePairKind::Rc);
    }
}

#[test]
fn queues_that_are_full_early_are_waited_for_over_thunderbolt() {
    // Chunks of large messages find no room in the shorter ones at all: their bytes go in frames.
    for room in [|asked: u32| asked.div_ceil(4), |asked: u32| asked.min(3)] {
        over_short(|| device(Profile::Thunderbolt), room, QueuePairKind::Uc);
    }
}

#[test]
fn queues_that_are_full_early_are_waited_for_over_uc_that_loses_frames() {
    over_short(|| modest(Profile::Infiniband, |can| can.rc = false), |asked| asked.div_ceil(4), QueuePairKind::Uc);
}

#[test]
fn queues_that_are_always_full_are_named() {
    let devices = |rank: u32| {
        let scripted = Scripted::over(device(Profile::Infiniband)).info(|info| info.name = format!("hca{rank}"));
        let room = move |queue, asked| if (rank, queue) == (1, Queue::Receive) { 0 } else { asked };
        scripted.room(room).device()
    };
    start_devices(2, devices, |rank, fabric| {
        // The other one may find out by itself that there is no connection.
        let text = fabric.unwrap_err().to_string();
        assert!(rank == 0 || text.contains("hca1 says that the receive queue for rank 0 is full"), "{text}");
    });

    let devices = |rank: u32| {
        let room = move |queue, asked| if (rank, queue) == (1, Queue::Send) { 0 } else { asked };
        Scripted::over(device(Profile::Infiniband)).room(room).device()
    };
    start_devices(2, devices, |rank, fabric| {
        let fabric = fabric.unwrap();
        if rank == 1 {
            let sent = fabric.send_bytes(0, 1, &[1], LONG);
            let text = sent.and_then(|()| fabric.recv_bytes(0, 1, &mut [0], LONG)).unwrap_err().to_string();
            assert!(text.contains("cannot send frames with rank 0") && text.contains("is full"), "{text}");
        } else {
            fabric.recv_bytes(1, 1, &mut [0], LONG).unwrap_err();
        }
    });
}

#[test]
fn a_device_without_atomics_is_asked_for_no_access_to_them() {
    let devices = |_| {
        let step = |step: &Transition| match step {
            Transition::Init { access, .. } if access.contains(Access::REMOTE_ATOMIC) => {
                Err(VerbsError::Unsupported { device: "soft0".into(), what: "atomics" })
            }
            _ => Ok(()),
        };
        let without = modest(Profile::Infiniband, |can| (can.atomics, can.atomics_with_cpu) = (false, false));
        Scripted::over(without).step(step).device()
    };
    start_devices(2, devices, |_, fabric| {
        let fabric = fabric.unwrap();
        assert!(used(&fabric).one_sided);
        one_sided(&fabric);
    });
}

#[test]
fn want_of_room_for_one_sided_operations_is_said() {
    listen();
    let devices = |rank| {
        let change = |info: &mut fulmen_verbs::DeviceInfo| {
            (info.name, info.limits.queue_pairs) = (format!("crowded{rank}"), 3);
        };
        Scripted::over(device(Profile::Infiniband)).info(change).device()
    };
    start_devices(2, devices, |_, fabric| {
        let fabric = fabric.unwrap();
        assert!(!used(&fabric).one_sided);
        one_sided(&fabric);
    });
    let events = events_of("crowded0");
    let said = |event: &&String| {
        ["WARN", "too few queue pairs", "needed=4", "limit=3"].iter().all(|word| event.contains(word))
    };
    assert_eq!(events.iter().filter(said).count(), 1, "{events:?}");
}

#[test]
fn a_share_that_the_device_refuses_is_said_once() {
    listen();
    let devices = |rank| {
        let register = |access: Access| {
            let refused = access.intersects(Access::REMOTE_READ | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC);
            if refused { Err(VerbsError::Unsupported { device: "soft0".into(), what: "room" }) } else { Ok(()) }
        };
        let named = Scripted::over(device(Profile::Infiniband)).info(|info| info.name = format!("choosy{rank}"));
        named.register(register).device()
    };
    start_devices(2, devices, |_, fabric| one_sided(&fabric.unwrap()));
    let events = events_of("choosy1");
    let said = |event: &&String| event.starts_with("WARN") && event.contains("refuses to register");
    assert_eq!(events.iter().filter(said).count(), 1, "{events:?}");
}
