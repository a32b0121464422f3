//! What only the inside can test: keys that are never used twice, numbers, names and limits.

use std::collections::HashSet;

use fulmen_memory::Region;
use fulmen_reach::Node;
use fulmen_verbs::{Access, Gid, Mtu, Path, QueuePairKind, RecvRequest, RnrTimer, SendRequest, Transition, VerbsError};

use crate::layout::directory;
use crate::sides::{Side, side_on};
use crate::{Addressing, Profile, SoftDevice, SoftOptions};

#[test]
fn keys_are_never_used_twice() {
    let node = Node::open().unwrap();
    let device = SoftDevice::open(&node, Profile::Thunderbolt).unwrap();
    let pd = device.alloc_pd().unwrap();
    let region = Region::alloc(4096).unwrap();
    let mut seen = HashSet::new();
    // More than there are slots, so that slots are used again.
    for _ in 0..directory::KEY_SLOTS * 2 + 100 {
        let mr = pd.register(&region, 0..4096, Access::LOCAL_WRITE).unwrap();
        assert!(mr.lkey() != 0 && seen.insert(mr.lkey()), "key {:#x} was given out before", mr.lkey());
    }
}

#[test]
fn numbered_devices_connect_by_lid_or_gid() {
    for (profile, kind) in [
        (Profile::Infiniband, QueuePairKind::Rc),
        (Profile::Infiniband, QueuePairKind::Uc),
        (Profile::Thunderbolt, QueuePairKind::Uc),
    ] {
        let [(one_number, one), (number, node)] = [(); 2].map(|()| crate::numbered::open());
        let one = side_on(crate::numbered::device(&one, one_number, profile), profile, kind);
        let first = crate::numbered::device(&node, number, profile);
        let other = side_on(crate::numbered::device(&node, number, profile), profile, kind);
        let port = other.device.port(1).unwrap();
        let to = |gid: Gid, lid| Path {
            remote_gid: gid,
            remote_lid: lid,
            local_gid_index: 0,
            remote_qp: other.qp.qp_num(),
            mtu: Mtu::B4096,
        };
        let rtr = |path| Transition::ReadyToReceive { path, recv_psn: 0, reads_served: 0, min_rnr_timer: RnrTimer(1) };
        // The first device of that node has no such queue pair, and nobody has these addresses.
        let wrong = [
            to(first.gid_table(1).unwrap()[0].gid, 0),
            to(Gid::default(), number << 3),
            to(Gid::default(), 0),
            to(Gid([0xfe; 16]), port.lid),
        ];
        for path in wrong {
            let refused = one.qp.modify(&rtr(path));
            // Thunderbolt has no other addresses than GIDs.
            let none = profile == Profile::Thunderbolt && path.remote_gid.is_zero();
            let right = match refused {
                Err(VerbsError::Invalid { what, .. }) => none && what == "GID",
                Err(VerbsError::Unreachable { .. }) => !none,
                _ => false,
            };
            assert!(right, "{path:?}: {refused:?}");
        }
        let no_such_index = Path { local_gid_index: 7, ..to(Gid::default(), port.lid) };
        assert!(matches!(one.qp.modify(&rtr(no_such_index)), Err(VerbsError::Invalid { .. })));
        match profile {
            Profile::Infiniband => one.qp.modify(&rtr(to(Gid::default(), port.lid))).unwrap(),
            Profile::Thunderbolt => one.qp.modify(&rtr(to(other.device.gid_table(1).unwrap()[0].gid, 0))).unwrap(),
        }
        other.connect(&one);
        one.qp.post_recv(&[RecvRequest::new(1, [one.piece(4096..8192)])]).unwrap();
        other.qp.post_send(&[SendRequest::send(2, [other.piece(4096..8192)])]).unwrap();
        let until = std::time::Instant::now() + std::time::Duration::from_secs(30);
        let taken = loop {
            if let Some(taken) = one.poll_one() {
                break taken;
            }
            assert!(std::time::Instant::now() < until, "a message");
        };
        assert!(taken.status.is_success(), "{taken:?}");
    }
}

#[test]
fn a_number_is_the_nodes_own() {
    let (number, _numbered) = crate::numbered::open();
    let options = SoftOptions { addressing: Addressing::Numbered(number), ..SoftOptions::new(Profile::Infiniband) };
    let refused = SoftDevice::open_as(&Node::open().unwrap(), options).map(|_| ());
    assert!(matches!(refused, Err(crate::OpenError::Number)), "{refused:?}");
}

#[test]
fn limits_can_be_lower() {
    let node = Node::open().unwrap();
    let profile = Profile::Thunderbolt;
    let few = fulmen_verbs::DeviceLimits { protection_domains: 2, ..profile.limits() };
    let device = SoftDevice::open_with(&node, profile, few).unwrap();
    let _domains = [device.alloc_pd().unwrap(), device.alloc_pd().unwrap()];
    let refused = device.alloc_pd().map(|_| ());
    assert!(matches!(refused, Err(VerbsError::Limit { limit: 2, .. })), "{refused:?}");
    let many = fulmen_verbs::DeviceLimits { queue_pairs: 1 << 20, ..profile.limits() };
    assert!(SoftDevice::open_with(&node, profile, many).is_err());
}

#[test]
fn devices_have_the_names_that_they_are_given() {
    let node = Node::open().unwrap();
    let named = |name: Option<&str>| {
        let options = SoftOptions { name: name.map(str::to_owned), ..SoftOptions::new(Profile::Infiniband) };
        SoftDevice::open_as(&node, options).unwrap().info().name.clone()
    };
    assert_eq!((named(Some("rdma_en2")), named(None)), ("rdma_en2".to_owned(), "soft0".to_owned()));
}

#[test]
fn profiles_have_names() {
    for profile in Profile::ALL {
        assert_eq!(profile.to_string().parse(), Ok(profile));
    }
    let error = "ethernet".parse::<Profile>().unwrap_err();
    assert!(error.to_string().contains("thunderbolt"), "{error}");
}

/// The index that a side gives on the way to RTR is that of the GID which it told the peer (users of Macs, who got 60).
#[test]
fn thunderbolt_wants_the_gids_that_were_told() {
    let (profile, kind) = (Profile::Thunderbolt, QueuePairKind::Uc);
    let open = || {
        let (number, node) = crate::numbered::open();
        side_on(crate::numbered::device(&node, number, profile), profile, kind)
    };
    // (what the first side was told, its own index), and the same of the second side; whether they agree.
    for (first, second, agree) in [
        ((0, 0), (0, 0), true),
        ((1, 1), (1, 1), true),
        ((1, 0), (0, 1), true),
        ((1, 0), (1, 1), false),
        ((1, 1), (1, 0), false),
    ] {
        let [one, other] = [(); 2].map(|()| open());
        let rtr = |own: &Side, peer: &Side, (told, local_gid_index): (usize, u8)| {
            let remote_gid = peer.device.gid_table(1).unwrap()[told].gid;
            let path =
                Path { remote_gid, remote_lid: 0, local_gid_index, remote_qp: peer.qp.qp_num(), mtu: Mtu::B1024 };
            let min_rnr_timer = RnrTimer(1);
            own.qp.modify(&Transition::ReadyToReceive { path, recv_psn: 0, reads_served: 0, min_rnr_timer })
        };
        rtr(&one, &other, first).unwrap();
        let connected = rtr(&other, &one, second);
        assert_eq!(connected.is_ok(), agree, "{first:?} {second:?}: {connected:?}");
        assert!(agree || matches!(connected, Err(VerbsError::Unreachable { .. })), "{connected:?}");
    }
}
