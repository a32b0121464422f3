use fulmen_testbed::reserve_port;

use super::*;

#[test]
fn devices_of_one_host_are_told_where_the_node_is() {
    let options = NetworkOptions::new(SocketAddr::new(V4, 0));
    let [one, other] = [(); 2].map(|()| Host::open(&options, Profile::Infiniband));
    let (place, own) =
        (one.network.place(other.network.address(), soon()), one.network.place(one.network.address(), soon()));
    assert_eq!(place.unwrap(), Place::Here(other.network.node));
    assert_eq!(own.unwrap(), Place::Here(one.network.node));
}

#[test]
fn devices_of_other_hosts_are_told_nothing_of_the_node() {
    for ip in loopbacks() {
        for sealed in [false, true] {
            let [one, other] = hosts(ip, sealed);
            assert_eq!(one.network.place(other.network.address(), soon()).unwrap(), Place::There);
        }
    }
}

#[test]
fn a_place_is_remembered_until_it_turns_out_wrong() {
    let [one, other] = hosts(V4, false);
    let address = other.network.address();
    assert_eq!(one.network.place(address, soon()).unwrap(), Place::There);
    drop(other);
    // A thread that answered for it may still be about to let go of its address.
    let mut held = None;
    until("nobody listens any more", || {
        held = reserve_port(address).ok();
        held.is_some()
    });
    assert_eq!(one.network.place(address, soon()).unwrap(), Place::There, "it was not asked again");
    let failed = one.network.meet(&one.end(1), &PeerEnd { device: address, number: 2 }, soon()).map(|_| ());
    assert!(matches!(failed, Err(Failure::Unreached(Unreached::Refused(peer))) if peer == address), "{failed:?}");
    let refused = one.network.place(address, soon());
    assert!(matches!(refused, Err(Unreached::Refused(_))), "{refused:?}");
}

#[test]
fn queue_pairs_meet_whoever_is_first() {
    for ip in loopbacks() {
        for sealed in [false, true] {
            let hosts = hosts(ip, sealed);
            for number in [5, 6] {
                let [mut one, mut other] = connect(&hosts, number);
                assert_eq!((one.is_sealed(), other.is_sealed()), (sealed, sealed));
                assert_eq!((one.peer(), other.peer()), (hosts[1].network.address(), hosts[0].network.address()));
                streams::exchange(&mut one, &mut other, &[b"one thing", b"and another"]);
            }
        }
    }
}

#[test]
fn each_reason_for_not_meeting_has_its_name() {
    let [one, other] = hosts(V4, false);
    let address = other.network.address();
    other.book.set(3, Verdict::OtherKind);
    other.book.set(4, Verdict::Busy);
    other.book.set(5, Verdict::InError);
    other.book.set(6, Verdict::Taken);
    let meet = |number, until| {
        let peer = PeerEnd { device: address, number };
        one.network.meet(&one.open_end(2), &peer, until).map(|_| ()).unwrap_err()
    };
    let no_pair = meet(99, soon());
    assert!(matches!(no_pair, Failure::Unreached(Unreached::NoSuchPair { number: 99, .. })), "{no_pair:?}");
    let kind = meet(3, soon());
    assert!(matches!(kind, Failure::Unreached(Unreached::OtherKind { number: 3, .. })), "{kind:?}");
    // These may pass, and are waited for until the deadline; a short one may pass before the first answer.
    let shortly = |number| {
        let waits = [100, 1000, 10_000, 60_000].map(Duration::from_millis);
        let early = |failure: &Failure| {
            matches!(failure, Failure::Unreached(Unreached::Silent { .. } | Unreached::TimedOut { .. }))
        };
        let mut met = waits.into_iter().map(|wait| meet(number, Instant::now() + wait));
        met.find(|failure| !early(failure)).expect("an answer comes")
    };
    let busy = shortly(4);
    assert!(matches!(busy, Failure::Unreached(Unreached::Busy(_))), "{busy:?}");
    assert!(matches!(shortly(5), Failure::Stale(problem) if problem.contains("error")));
    assert!(matches!(shortly(6), Failure::Stale(problem) if problem.contains("connected to another")));
    let thunderbolt = NetworkOptions { host: Some([9; 16]), ..NetworkOptions::new(SocketAddr::new(V4, 0)) };
    let thunderbolt = Host::open(&thunderbolt, Profile::Thunderbolt);
    let profile = thunderbolt.network.place(address, soon());
    assert!(matches!(profile, Err(Unreached::OtherProfile(_))), "{profile:?}");
    let none = one.network.peer_at(Gid::default(), 7);
    assert!(matches!(none, Err(Unreached::Address { .. })), "{none:?}");
    assert_eq!(one.network.peer_at(other.network.gid(), other.network.lid()).unwrap(), address);
}

#[test]
fn a_queue_pair_that_is_about_to_be_reset_is_waited_for() {
    let hosts = hosts(V4, true);
    for own in [0, 1] {
        // Once from the side that dials, once from the one that asks.
        let (one, other) = (&hosts[own], &hosts[1 - own]);
        other.book.set(8, Verdict::InError);
        thread::scope(|scope| {
            let met = scope.spawn(|| {
                let peer = PeerEnd { device: other.network.address(), number: 8 };
                one.network.meet(&one.open_end(8), &peer, soon()).map(|met| met.peer).unwrap()
            });
            other.book.set(8, Verdict::Taken);
            let end = other.open_end(8);
            assert_eq!(met.join().unwrap(), end);
        });
    }
}

#[test]
fn nobody_there_is_an_error_at_once_or_at_the_deadline() {
    let one = Host::new(V4, None);
    let (_held, free) = reserve_port(SocketAddr::new(V4, 0)).unwrap();
    let refused = one.network.place(free, soon()).unwrap_err();
    assert!(matches!(refused, Unreached::Refused(peer) if peer == free), "{refused:?}");
    // An address of documentation (RFC 5737), to which there is no way from loopback.
    let no_route = one.network.place("192.0.2.1:9".parse().unwrap(), soon()).unwrap_err();
    assert!(matches!(no_route, Unreached::NoRoute { .. }), "{no_route:?}");
    // It takes connections and never says a word.
    let silent = std::net::TcpListener::bind((V4, 0)).unwrap();
    let waited =
        one.network.place(silent.local_addr().unwrap(), Instant::now() + Duration::from_millis(50)).unwrap_err();
    assert!(matches!(waited, Unreached::Silent { .. }), "{waited:?}");
    for error in [refused, no_route, waited] {
        assert!(error.to_string().contains(':'), "it names the address: {error}");
    }
}

#[test]
fn ends_that_do_not_agree_on_sealing_both_say_so() {
    let (plain, sealed) = (Host::new(V4, None), Host::new(V4, Some(identity(7))));
    let here = plain.network.place(sealed.network.address(), soon());
    assert!(matches!(here, Err(Unreached::SealedThere(_))), "{here:?}");
    let there = sealed.network.place(plain.network.address(), soon());
    assert!(matches!(there, Err(Unreached::PlainThere(_))), "{there:?}");
}

#[test]
fn another_authority_is_no_peer() {
    let [one, other] = [7, 8].map(|secret| Host::new(V4, Some(identity(secret))));
    for (one, other) in [(&one, &other), (&other, &one)] {
        let refused = one.network.place(other.network.address(), soon());
        assert!(matches!(refused, Err(Unreached::Trust { .. })), "{refused:?}");
    }
    assert_eq!(one.network.arrivals(), 0);
}

#[test]
fn what_waits_for_a_queue_pair_is_bounded_and_goes_with_it() {
    let [one, other] = hosts(V4, false);
    // The smaller end dials: these numbers make `dialer` that one whatever the ports are.
    let (dialer, waiter) = match one.network.address() < other.network.address() {
        true => (&one, &other),
        false => (&other, &one),
    };
    let own = waiter.open_end(1);
    // Each is answered by a thread of its own: who comes when is certain only one after another.
    let mut came = 0;
    let mut dial = |number| {
        let stream = dialer.network.meet(&dialer.open_end(number), &own.named(), soon()).unwrap().stream.unwrap();
        came += 1;
        until("it arrives", || waiter.network.arrivals() == came);
        stream
    };
    let mut streams: Vec<Stream> = (10..10 + MOST_WAITING as u32 + 2).map(&mut dial).collect();
    assert_eq!(lock(&waiter.network.waiting).len(), MOST_WAITING);
    streams.iter_mut().take(2).for_each(|driven_out| drop(end_of(driven_out)));
    // The same peer again: it has given its earlier connection up.
    let mut again = dial(13);
    assert_eq!(lock(&waiter.network.waiting).len(), MOST_WAITING);
    end_of(&mut streams[3]);
    // One is wanted, and the others end.
    let (_, mut wanted) = waiter.network.collect(&own, &dialer.end(13).named()).unwrap().unwrap();
    streams::exchange(&mut again, &mut wanted, &[b"hello"]);
    streams.iter_mut().for_each(|stream| drop(end_of(stream)));
    // What came for an earlier self of a queue pair is not for this one.
    let mut late = dial(14);
    let reset = End { incarnation: own.incarnation + 1, ..own };
    assert!(waiter.network.collect(&reset, &dialer.end(14).named()).is_none());
    end_of(&mut late);
    let mut parted = dial(15);
    waiter.network.part(1);
    end_of(&mut parted);
}

#[test]
fn an_address_that_is_nobodys_or_taken_is_named() {
    let node = Node::open().unwrap();
    let words = Region::alloc(at::SIZE).unwrap().expose().unwrap();
    let progress = Arc::new(Progress::new(Directory::new(words.clone()), &words));
    let open = |listen: SocketAddr| {
        Network::open(&node, Profile::Infiniband, &NetworkOptions::new(listen), &progress).map(|_| ()).unwrap_err()
    };
    for none in ["0.0.0.0:0", "[::]:0", "224.0.0.1:0"] {
        assert!(matches!(open(none.parse().unwrap()), OpenError::Unspecified { .. }), "{none}");
    }
    let listener = std::net::TcpListener::bind((V4, 0)).unwrap();
    let taken = listener.local_addr().unwrap();
    let refused = open(taken);
    assert!(matches!(&refused, OpenError::Listen { address, .. } if *address == taken), "{refused}");
    drop(listener);
    assert!(matches!(open("192.0.2.1:0".parse().unwrap()), OpenError::Listen { .. }));
}

/// The thread that lets a connection in may be overtaken by the one that lets the next one of the same peers in.
#[test]
fn a_connection_that_is_let_in_late_ends_no_later_one() {
    let hosts = hosts(V4, false);
    let [[_one, early], [_other, late]] = [(); 2].map(|()| connect(&hosts, 5));
    let (from, before) = (hosts[0].end(5), hosts[1].end(5));
    let own = End { incarnation: before.incarnation + 1, ..before };
    let network = &hosts[1].network;
    network.admit(from, own.number, own.incarnation, late);
    network.admit(from, own.number, before.incarnation, early);
    let (found, _stream) = network.collect(&own, &from.named()).expect("the later one waits").unwrap();
    assert_eq!(found, from);
}
