//! Operations of sockets.

use std::net::{Ipv6Addr, SocketAddr, SocketAddrV6};
use std::num::NonZeroU64;

use fulmen_abi::{
    AbiError, Endpoint, ErrorCode, Field, NetworkAction, NetworkOperation, NetworkOutcome, NetworkRequest,
    NetworkState, NetworkStatus, Protocol, RdmaBuffer, Rights, Writer,
};
use proptest::prelude::*;

use crate::samples::{any_address, any_network, buffer, connect, named, network};

const HANDLE: NonZeroU64 = NonZeroU64::MAX;

fn field(name: &'static str) -> Field {
    Field { of: "NetworkRequest", name }
}

fn not_zero(name: &'static str) -> AbiError {
    AbiError::NotZero { field: field(name) }
}

fn missing(name: &'static str) -> AbiError {
    AbiError::Missing { field: field(name) }
}

fn refused(action: NetworkAction<'_>, change: impl FnOnce(&mut NetworkRequest)) -> AbiError {
    let mut record = NetworkRequest::encode(&network(action)).unwrap();
    change(&mut record);
    record.decode().expect_err("it is wrong")
}

fn address(text: &str) -> SocketAddr {
    text.parse().expect("an address")
}

#[test]
fn words_of_the_record_are_checked() {
    let unknown = |name, value| AbiError::Unknown { field: field(name), value };
    let close = NetworkAction::Close { handle: HANDLE };
    let connect = connect().action;
    assert_eq!(refused(close, |bad| bad.magic = 1), AbiError::Magic { record: "NetworkRequest", found: 1 });
    assert_eq!(refused(close, |bad| bad.version = 9), AbiError::Version { record: "NetworkRequest", found: 9 });
    assert_eq!(refused(close, |bad| bad.state = 4), unknown("state", 4));
    assert_eq!(refused(close, |bad| bad.operation = 0), unknown("operation", 0));
    assert_eq!(refused(close, |bad| bad.operation = 8), unknown("operation", 8));
    assert_eq!(refused(close, |bad| bad.reserved[4] = 1), not_zero("reserved"));
    assert_eq!(refused(close, |bad| bad.lease_deadline_ns = 1), missing("lease_id"));
    assert_eq!(refused(connect, |bad| bad.protocol = 0), unknown("protocol", 0));
    assert_eq!(refused(connect, |bad| bad.protocol = 3), unknown("protocol", 3));
    assert_eq!(refused(connect, |bad| bad.family = 5), unknown("family", 5));
    assert_eq!(refused(connect, |bad| bad.family = 0), not_zero("host_len"));
    assert_eq!(refused(connect, |bad| bad.port = 0), missing("port"));
    let port = AbiError::TooLarge { field: field("port"), value: 65536, max: 65535 };
    assert_eq!(refused(connect, |bad| bad.port = 65536), port);
    assert_eq!(refused(connect, |bad| bad.address[15] = 1), not_zero("address"));
    assert_eq!(refused(connect, |bad| bad.scope_id = 1), not_zero("scope_id"));
    let len = AbiError::TooLarge { field: field("host_len"), value: 254, max: 253 };
    assert_eq!(refused(connect, |bad| bad.host_len = 254), len);
}

#[test]
fn what_an_operation_does_not_use_is_zero() {
    let data = buffer(1, Rights::READ | Rights::WRITE);
    let actions = [
        connect().action,
        NetworkAction::Listen { protocol: Protocol::Tcp, at: address("0.0.0.0:0"), backlog: 5 },
        NetworkAction::Accept { handle: HANDLE },
        NetworkAction::Send { handle: HANDLE, data, to: None },
        NetworkAction::Receive { handle: HANDLE, into: data },
        NetworkAction::Shutdown { handle: HANDLE },
        NetworkAction::Close { handle: HANDLE },
    ];
    for action in actions {
        use NetworkOperation::{Connect, Listen, Receive, Send};
        let operation = action.operation();
        assert!(NetworkRequest::encode(&network(action)).is_ok(), "{operation:?}");
        if matches!(operation, Connect | Listen) {
            assert_eq!(refused(action, |bad| bad.handle = 1), not_zero("handle"));
        } else {
            assert_eq!(refused(action, |bad| bad.handle = 0), missing("handle"));
            assert_eq!(refused(action, |bad| bad.protocol = 1), not_zero("protocol"));
        }
        if operation != Listen {
            assert_eq!(refused(action, |bad| bad.backlog = 1), not_zero("backlog"));
        }
        if operation != Connect {
            assert_eq!(refused(action, |bad| bad.host_len = 1), not_zero("host_len"));
        }
        if matches!(operation, Send | Receive) {
            assert_eq!(refused(action, |bad| bad.data_buffer = RdmaBuffer::ZERO), missing("data_buffer"));
        } else {
            assert_eq!(refused(action, |bad| bad.data_buffer.reserved = 1), not_zero("data_buffer"));
        }
        if !matches!(operation, Connect | Listen | Send) {
            assert_eq!(refused(action, |bad| bad.family = 4), not_zero("family"));
            assert_eq!(refused(action, |bad| bad.port = 1), not_zero("port"));
            assert_eq!(refused(action, |bad| bad.address[3] = 1), not_zero("address"));
        }
    }
    let listen = NetworkAction::Listen { protocol: Protocol::Udp, at: address("[::1]:53"), backlog: 0 };
    assert_eq!(refused(listen, |bad| bad.backlog = 1), not_zero("backlog"));
    assert_eq!(
        refused(listen, |bad| bad.family = 1),
        AbiError::Malformed { field: field("family"), why: "an address is needed here, not a name" }
    );
    let four = NetworkAction::Send { handle: HANDLE, data, to: Some(address("127.0.0.1:9")) };
    assert_eq!(refused(four, |bad| bad.address[4] = 1), not_zero("address"));
    assert_eq!(refused(four, |bad| bad.scope_id = 1), not_zero("scope_id"));
    assert_eq!(refused(four, |bad| bad.port = 0), missing("port"));
    assert!(matches!(refused(four, |bad| bad.data_buffer.rights = 2), AbiError::Rights { .. }));
    let receive = NetworkAction::Receive { handle: HANDLE, into: data };
    assert!(matches!(refused(receive, |bad| bad.data_buffer.rights = 1), AbiError::Rights { .. }));
    assert!(matches!(refused(receive, |bad| bad.data_buffer.generation = 1), AbiError::Stale { .. }));
}

#[test]
fn names_of_hosts_are_plain() {
    let encoded = |name: &str| {
        let to = Endpoint::Host { name, port: 1 };
        NetworkRequest::encode(&network(NetworkAction::Connect { protocol: Protocol::Tcp, to }))
    };
    let (label, longest) = ("x".repeat(63), "x.".repeat(126) + "x");
    for good in ["a", "a.b.", "_srv.x-y.example", "127.0.0.1", &label, &longest] {
        assert!(encoded(good).is_ok(), "{good}");
    }
    let (label, longer) = (format!("{label}x"), format!("{longest}y"));
    for bad in
        ["", ".", "a..b", ".a", "-a", "a-", "a b", "a\n", "a\0", "b\u{fc}cher", "a/b", "a:1", "[::1]", &label, &longer]
    {
        let error = encoded(bad).expect_err(bad);
        assert!(matches!(error, AbiError::Malformed { .. } | AbiError::TooLarge { .. }), "{bad}: {error}");
    }
    let error = refused(connect().action, |bad| bad.host[2] = 0xff);
    assert_eq!(error, AbiError::NotUtf8 { field: field("host"), at: 2 });
    let flow = SocketAddr::V6(SocketAddrV6::new(Ipv6Addr::LOCALHOST, 1, 7, 0));
    let action = NetworkAction::Connect { protocol: Protocol::Udp, to: Endpoint::Address(flow) };
    assert!(matches!(NetworkRequest::encode(&network(action)), Err(AbiError::Malformed { .. })));
}

#[test]
fn outcomes_come_back_and_have_one_form() {
    let data = buffer(1, Rights::WRITE);
    let mut record = NetworkRequest::encode(&network(NetworkAction::Receive { handle: HANDLE, into: data })).unwrap();
    let good = NetworkOutcome {
        error: None,
        os_error: 0,
        handle: Some(HANDLE),
        len: 8192,
        address: Some(address("[fe80::1%7]:65535")),
    };
    let bad =
        NetworkOutcome { error: Some(ErrorCode::ConnectionReset), os_error: 104, handle: None, len: 3, address: None };
    let done = |outcome| NetworkStatus { state: NetworkState::Done, serving_node: 8, outcome };
    for outcome in [good, bad] {
        record.set_status(&done(Some(outcome))).unwrap();
        assert_eq!(record.status(), Ok(done(Some(outcome))));
    }
    let before = record;
    for wrong in [
        NetworkOutcome { os_error: 1, ..good },
        NetworkOutcome { len: 8193, ..good },
        NetworkOutcome { handle: Some(HANDLE), ..bad },
    ] {
        assert!(record.set_status(&done(Some(wrong))).is_err(), "{wrong:?}");
    }
    assert!(record.set_status(&done(None)).is_err());
    let accepted = NetworkStatus { state: NetworkState::Accepted, ..done(Some(good)) };
    assert!(record.set_status(&accepted).is_err());
    assert!(record == before);
    let changed = |change: &dyn Fn(&mut NetworkRequest)| {
        let mut record = before;
        change(&mut record);
        record.status().expect_err("it is wrong")
    };
    assert_eq!(changed(&|bad| bad.error = 99), AbiError::Unknown { field: field("error"), value: 99 });
    assert_eq!(
        changed(&|bad| bad.serving_node = u32::MAX),
        AbiError::Unknown { field: field("serving_node"), value: u32::MAX.into() }
    );
    assert_eq!(changed(&|bad| bad.result_port = 1), not_zero("result_port"));
    assert!(matches!(changed(&|bad| bad.result_family = 1), AbiError::Malformed { .. }));
}

#[test]
fn each_state_has_its_writer() {
    use NetworkState::{Accepted, Done, Free, Written};
    let allowed: Vec<_> = NetworkState::ALL
        .iter()
        .flat_map(|from| NetworkState::ALL.iter().filter_map(|to| Some((*from, *to, from.writer(*to)?))))
        .collect();
    let expected = [
        (Free, Written, Writer::Requester),
        (Written, Free, Writer::Requester),
        (Written, Accepted, Writer::Server),
        (Accepted, Done, Writer::Server),
        (Done, Free, Writer::Requester),
    ];
    assert_eq!(allowed, expected);
}

proptest! {
    #[test]
    fn bytes_give_the_operation_back((asked, name) in any_network()) {
        let asked = named(&asked, name.as_deref());
        let record = NetworkRequest::encode(&asked).unwrap();
        let copy = NetworkRequest::from_bytes(record.as_bytes()).unwrap();
        prop_assert_eq!(copy.decode(), Ok(asked));
    }

    #[test]
    fn addresses_come_back(address in any_address(0), len in 0_u64..8192) {
        let into = buffer(1, Rights::WRITE);
        let mut record = NetworkRequest::encode(&network(NetworkAction::Receive { handle: HANDLE, into })).unwrap();
        let outcome = NetworkOutcome { error: None, os_error: 0, handle: None, len, address: Some(address) };
        let status = NetworkStatus { state: NetworkState::Done, serving_node: 1, outcome: Some(outcome) };
        record.set_status(&status).unwrap();
        prop_assert_eq!(record.status(), Ok(status));
    }
}
