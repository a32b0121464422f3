//! Ports and their GID tables, as devices show them on good and bad days.

use fulmen_system::Transport;
use fulmen_verbs::{Device, Gid, GidError, LinkLayer, Mtu, PortState, VerbsError, select_gid};

use super::{Fake, says};

fn gid(text: &str) -> Gid {
    let address: std::net::Ipv6Addr = text.parse().expect("an address");
    Gid(address.octets())
}

#[test]
fn ports_are_what_they_say() {
    let config = "device=mlx5_0\nlike=roce\nport=2\nstate=down\nlink_layer=infiniband\nmtu=4096\ngid_table=4\n\
                  port=3\nstate=init\nport=4\nstate=armed\n";
    let Some(fake) = Fake::new(config) else { return };
    let device = fake.open("mlx5_0");
    let port = |number| device.port(number).expect("it is there");
    assert_eq!((port(1).state, port(1).link_layer), (PortState::Active, LinkLayer::Ethernet));
    assert_eq!((port(1).active_mtu, port(1).number), (Mtu::B1024, 1));
    assert_eq!((port(2).state, port(2).link_layer), (PortState::Down, LinkLayer::Infiniband));
    assert_eq!((port(2).active_mtu, port(2).gid_entries), (Mtu::B4096, 4));
    assert_eq!((port(3).state, port(4).state), (PortState::Initializing, PortState::Armed));
    assert_eq!(device.port_speed(1).expect("it is there").gigabits(), Some(200.0));
    for number in [0, 5, 255] {
        let error = device.port(number).expect_err("there is none");
        assert!(matches!(error, VerbsError::Invalid { .. }), "{error:?}");
        assert!(device.gid_table(number).is_err());
    }
}

#[test]
fn a_thunderbolt_port_is_one() {
    // By the device's transport, or by the port's link layer: one of them is enough, for the device's limits, too.
    for config in ["link_layer=ethernet", "transport=ib", "transport=unknown"] {
        let Some(fake) = Fake::new(&format!("device=rdma_en5\nlike=thunderbolt\n{config}\n")) else { return };
        let device = fake.open("rdma_en5");
        assert_eq!(device.port(1).expect("it is there").link_layer, LinkLayer::Thunderbolt, "{config}");
        assert_eq!(device.attributes().transport, Transport::Thunderbolt, "{config}");
        let info = device.info();
        assert_eq!((info.limits.frame, info.limits.pieces, info.limits.inline_bytes), (Some(4096), 1, 0), "{config}");
        assert!(info.capabilities.holds_sends && !info.capabilities.write, "{config}: {info:?}");
    }
}

#[test]
fn a_port_that_comes_up_late_is_seen() {
    // The device asks once when it is opened, and may ask more often.
    let Some(fake) = Fake::new("device=mlx5_0\nlike=roce\nstate=active after 4\n") else { return };
    let device = fake.open("mlx5_0");
    let states: Vec<PortState> = (0..8).map(|_| device.port(1).expect("it is there").state).collect();
    assert_eq!(states.first(), Some(&PortState::Down));
    assert_eq!(states.last(), Some(&PortState::Active));
}

#[test]
fn a_port_that_does_not_answer_says_why() {
    let Some(fake) = Fake::new("device=mlx5_0\nlike=roce\non.query_port=fail 19\n") else { return };
    let error = fake.open("mlx5_0").port(1).expect_err("it is gone");
    says(&error, &["mlx5_0", "ibv_query_port", "gone", "cable", "(error 19)"]);
}

#[test]
fn tables_have_no_empty_entries() {
    let config = "device=mlx5_0\nlike=roce\nno_gids=1\ngid=0 ::\ngid=2 fe80::1 roce2\ngid=5 ::ffff:192.0.2.9 roce2\n\
                  gid_table=9\n";
    let Some(fake) = Fake::new(config) else { return };
    let device = fake.open("mlx5_0");
    let table = device.gid_table(1).expect("a table");
    let entries: Vec<(u8, Gid)> = table.iter().map(|entry| (entry.index, entry.gid)).collect();
    assert_eq!(entries, [(2, gid("fe80::1")), (5, gid("::ffff:192.0.2.9"))]);
    let chosen = select_gid(device.port(1).expect("a port").link_layer, &table).expect("one can be used");
    assert_eq!(chosen.index, 5, "the index is the library's");
}

#[test]
fn addresses_are_chosen_as_the_link_layer_wants() {
    for (like, gids, index) in [
        // An IPv4 address, wherever it is.
        ("roce", "gid=0 fe80::1\ngid=1 fe80::2\ngid=7 ::ffff:192.0.2.1\n", 7),
        ("thunderbolt", "gid=0 fe80::1\ngid=2 ::ffff:192.0.2.1\n", 2),
        // Without one, index 1 before others.
        ("thunderbolt", "gid=0 fe80::1\ngid=1 fe80::2\n", 1),
        ("thunderbolt", "gid=0 fe80::1\n", 0),
        ("infiniband", "gid=0 fe80::1\ngid=1 ::ffff:192.0.2.1\n", 0),
    ] {
        let Some(fake) = Fake::new(&format!("device=one\nlike={like}\nno_gids=1\n{gids}")) else { return };
        let device = fake.open("one");
        let table = device.gid_table(1).expect("a table");
        let chosen = select_gid(device.port(1).expect("a port").link_layer, &table).expect("one can be used");
        assert_eq!(chosen.index, index, "{like} {gids}");
    }
}

#[test]
fn tables_without_an_address_are_refused() {
    for gids in ["", "gid=0 ::\ngid=1 ::\n", "gid_table=0\n"] {
        let Some(fake) = Fake::new(&format!("device=rdma_en5\nlike=thunderbolt\nno_gids=1\n{gids}")) else { return };
        let table = fake.open("rdma_en5").gid_table(1).expect("an empty table is no error");
        let error = select_gid(LinkLayer::Thunderbolt, &table).expect_err("there is none");
        assert_eq!(error, GidError::Empty);
        says(&error, &["no GID", "cable", "bridges"]);
    }
}

#[test]
fn an_address_that_comes_late_is_seen() {
    let config = "device=rdma_en5\nlike=thunderbolt\ngid=1 ::ffff:192.0.2.1 after 2\n";
    let Some(fake) = Fake::new(config) else { return };
    let device = fake.open("rdma_en5");
    let lengths: Vec<usize> = (0..4).map(|_| device.gid_table(1).expect("a table").len()).collect();
    assert_eq!(lengths, [1, 1, 2, 2]);

    let config = "device=rdma_en5\nlike=thunderbolt\ngid=1 ::ffff:192.0.2.1 until 2\n";
    let Some(fake) = Fake::new(config) else { return };
    let device = fake.open("rdma_en5");
    let lengths: Vec<usize> = (0..4).map(|_| device.gid_table(1).expect("a table").len()).collect();
    assert_eq!(lengths, [2, 2, 1, 1], "an address can go away");
}

#[test]
fn entries_that_cannot_be_read_are_left_out() {
    // Where the whole table cannot be read at once. The first call is for index 0.
    let one_by_one = "device=mlx5_0\nlike=roce\non.query_gid_table=fail 95\n";
    let Some(fake) = Fake::new(&format!("{one_by_one}on.query_gid=fail 61 times 1\n")) else { return };
    let table = fake.open("mlx5_0").gid_table(1).expect("the others are there");
    assert!(!table.is_empty() && table.iter().all(|entry| entry.index != 0), "{table:?}");

    let Some(fake) = Fake::new(&format!("{one_by_one}on.query_gid=fail 61\n")) else { return };
    let table = fake.open("mlx5_0").gid_table(1).expect("a table without entries");
    assert!(table.is_empty(), "{table:?}");
}
