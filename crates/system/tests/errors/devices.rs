//! Devices that cannot be opened, and those that can do less than others.

use fulmen_system::{OpenError, Transport};
use fulmen_verbs::{Access, Device, QueuePairInit, QueuePairKind, QueuePairLimits, VerbsError};

use super::{Fake, LOG, says};

#[test]
fn permission_is_asked_for() {
    for errno in [13, 1] {
        let config = format!("device=mlx5_0\nlike=roce\non.open_device=fail {errno}\n");
        let Some(fake) = Fake::new(&config) else { return };
        let error = fake.refusal("mlx5_0");
        assert!(matches!(error, OpenError::Permission { .. }), "{error:?}");
        says(&error, &["mlx5_0", "/dev/infiniband", "udev"]);
        assert_eq!(fake.library.devices().expect("listing needs no permission").len(), 1);
    }
}

#[test]
fn an_unknown_device_is_told_those_that_there_are() {
    let Some(fake) = Fake::new("device=mlx5_0\nlike=roce\ndevice=rdma_en5\nlike=thunderbolt\n") else { return };
    let error = fake.refusal("mlx5_1");
    let known = vec!["mlx5_0".to_owned(), "rdma_en5".to_owned()];
    assert_eq!(error, OpenError::UnknownDevice { name: "mlx5_1".to_owned(), known });
    says(&error, &["\"mlx5_1\"", "mlx5_0, rdma_en5"]);
}

#[test]
fn iwarp_is_refused() {
    for config in ["like=iwarp", "transport=iwarp", "node_type=rnic"] {
        let Some(fake) = Fake::new(&format!("{LOG}device=siw0\n{config}\n")) else { return };
        let error = fake.refusal("siw0");
        assert_eq!(error, OpenError::Iwarp { name: "siw0".to_owned() });
        says(&error, &["siw0", "iWARP", "RoCE"]);
        assert!(!fake.log().contains("open_device"), "nothing was opened: {}", fake.log());
        assert_eq!(fake.library.devices().expect("it is listed")[0].transport, Transport::Iwarp);
    }
}

#[test]
fn a_device_that_does_not_open_says_why() {
    for (errno, word) in [(16, "another program"), (19, "cable"), (12, "ulimit -l"), (24, "ulimit -n")] {
        let Some(fake) = Fake::new(&format!("device=mlx5_0\nlike=roce\non.open_device=fail {errno}\n")) else { return };
        let error = fake.refusal("mlx5_0");
        assert!(matches!(error, OpenError::Call { call: "ibv_open_device", errno: found, .. } if found == errno));
        says(&error, &["mlx5_0", "ibv_open_device", word, &format!("(error {errno})")]);
    }
}

#[test]
fn a_device_that_does_not_answer_is_closed_again() {
    for call in ["query_device", "alloc_pd", "create_cq"] {
        let Some(fake) = Fake::new(&format!("{LOG}device=mlx5_0\nlike=roce\non.{call}=fail 5\n")) else { return };
        let error = fake.refusal("mlx5_0");
        says(&error, &["mlx5_0", &format!("ibv_{call}"), "the device is gone", "(error 5)"]);
        let log = fake.log();
        assert_eq!(log.matches(" open_device").count(), 1, "{log}");
        assert_eq!(log.matches(" close_device").count(), 1, "{log}");
        assert_eq!(log.matches(" alloc_pd\n").count(), log.matches(" dealloc_pd\n").count(), "{log}");
    }
}

#[test]
fn where_rc_is_refused_there_is_uc() {
    let Some(fake) = Fake::new("device=rdma_en5\nlike=thunderbolt\n") else { return };
    let device = fake.open("rdma_en5");
    let info = device.info();
    assert!(!info.capabilities.rc && info.capabilities.uc, "{info:?}");
    assert!(!info.capabilities.acknowledges && info.capabilities.holds_sends, "{info:?}");
    let pd = device.alloc_pd().expect("a domain");
    let queue = device.create_cq(8, None).expect("a queue");
    let limits = QueuePairLimits { send_depth: 4, recv_depth: 4, send_pieces: 1, recv_pieces: 1, inline_bytes: 0 };
    let init = |kind| QueuePairInit {
        kind,
        send_cq: queue.clone(),
        recv_cq: queue.clone(),
        limits,
        signal_all: false,
        srq: None,
    };
    let Err(error) = pd.create_qp(&init(QueuePairKind::Rc)) else { panic!("there is no RC") };
    assert_eq!(error, VerbsError::NoSuchKind { device: "rdma_en5".to_owned(), kind: QueuePairKind::Rc });
    says(&error, &["rdma_en5", "RC", "another kind"]);
    pd.create_qp(&init(QueuePairKind::Uc)).expect("there is UC");
}

#[test]
fn a_device_without_uc_opens_with_rc() {
    let Some(fake) = Fake::new("device=mlx5_0\nlike=roce\non.create_qp=fail 95 type uc\n") else { return };
    let capabilities = fake.open("mlx5_0").info().capabilities;
    assert!(capabilities.rc && !capabilities.uc, "{capabilities:?}");
}

#[test]
fn a_device_whose_queue_pairs_are_all_in_use_opens() {
    let Some(fake) = Fake::new("device=rdma_en5\nlike=thunderbolt\non.create_qp=fail 16 type uc\n") else { return };
    let device = fake.open("rdma_en5");
    let pd = device.alloc_pd().expect("a domain");
    let queue = device.create_cq(8, None).expect("a queue");
    let limits = QueuePairLimits { send_depth: 4, recv_depth: 4, send_pieces: 1, recv_pieces: 1, inline_bytes: 0 };
    let kind = QueuePairKind::Uc;
    let init = QueuePairInit { kind, send_cq: queue.clone(), recv_cq: queue, limits, signal_all: false, srq: None };
    let Err(error) = pd.create_qp(&init) else { panic!("all are in use") };
    says(&error, &["rdma_en5", "ibv_create_qp", "in use", "end other programs", "(error 16)"]);
}

#[test]
fn a_busy_device_is_believed_to_have_rc_unless_it_is_thunderbolts() {
    for (like, rc) in [("thunderbolt\ntransport=ib", false), ("thunderbolt", false), ("roce", true)] {
        // The first rule that applies counts, so it stands before those of the likeness.
        let Some(fake) = Fake::new(&format!("device=one\non.create_qp=fail 16\nlike={like}\n")) else { return };
        let capabilities = fake.open("one").info().capabilities;
        assert_eq!((capabilities.rc, capabilities.uc), (rc, true), "{like}: {capabilities:?}");
        assert_eq!((capabilities.acknowledges, capabilities.reports_dead_peers), (rc, rc), "{like}");
    }
}

#[test]
fn limits_are_asked_of_the_device() {
    let config = "device=mlx5_0\nlike=roce\nmax_qp=3\nmax_cq=6\nmax_pd=6\nmax_mr=7\nmax_sge=2\nmax_qp_wr=99\n\
                  max_cqe=500\nmax_mr_size=1048576\nmax_inline=64\nmax_rd_atom=4\natomics=none\nfirmware=28.1.2\nport=2\n";
    let Some(fake) = Fake::new(config) else { return };
    let device = fake.open("mlx5_0");
    let info = device.info();
    let limits = info.limits;
    assert_eq!((limits.queue_pairs, limits.completion_queues, limits.protection_domains), (3, 6, 6));
    assert_eq!((limits.memory_regions, limits.pieces, limits.queue_depth), (7, 2, 99));
    assert_eq!((limits.completion_entries, limits.registration.max_len), (500, Some(1 << 20)));
    assert_eq!((limits.inline_bytes, limits.reads_in_flight), (64, 4));
    assert!(!info.capabilities.atomics, "{info:?}");
    assert_eq!((info.ports, info.provider), (2, "system"));
    let attributes = device.attributes();
    assert_eq!((attributes.firmware.as_str(), attributes.max_qp, attributes.ports), ("28.1.2", 3, 2));
}

#[test]
fn everything_is_given_back() {
    let Some(fake) = Fake::new(&format!("{LOG}device=mlx5_0\nlike=roce\n")) else { return };
    let device = fake.open("mlx5_0");
    let pd = device.alloc_pd().expect("a domain");
    let channel = device.create_channel().expect("a channel");
    let queue = device.create_cq(8, Some(&channel)).expect("a queue");
    let region = fulmen_memory::Region::alloc(4096).expect("memory");
    let registration = pd.register(&region, 0..region.len(), Access::LOCAL_WRITE).expect("registered");
    let limits = QueuePairLimits { send_depth: 4, recv_depth: 4, send_pieces: 1, recv_pieces: 1, inline_bytes: 0 };
    let kind = QueuePairKind::Rc;
    let init =
        QueuePairInit { kind, send_cq: queue.clone(), recv_cq: queue.clone(), limits, signal_all: false, srq: None };
    let pair = pd.create_qp(&init).expect("a queue pair");
    drop(init);
    // In the order that makes most trouble: what others need goes first.
    drop((device, pd, channel, queue, registration, pair));
    let log = fake.log();
    assert!(!log.contains("while in use"), "{log}");
    let pairs = [
        ("open_device", "close_device"),
        ("alloc_pd", "dealloc_pd"),
        ("reg_mr", "dereg_mr"),
        ("create_comp_channel", "destroy_comp_channel"),
        ("create_cq", "destroy_cq"),
        ("create_qp", "destroy_qp"),
    ];
    for (made, ended) in pairs {
        let count = |name: &str| log.lines().filter(|line| line.split(' ').nth(1) == Some(name)).count();
        assert!(count(made) > 0 && count(made) == count(ended), "{made} and {ended}: {log}");
    }
}

#[test]
fn a_device_that_goes_away_says_so() {
    let Some(fake) = Fake::new("device=mlx5_0\nlike=roce\non.query_port=gone after 1\n") else { return };
    let device = fake.open("mlx5_0");
    let pd = device.alloc_pd().expect("a domain");
    let queue = device.create_cq(8, None).expect("a queue");
    says(&device.port(1).expect_err("it is gone"), &["mlx5_0", "gone", "open it again"]);
    // The system is asked now and then only, since asking is a system call.
    let mut nothing = [];
    let told = (0..1 << 20).find_map(|_| queue.poll(&mut nothing).err()).expect("a thread that polls is told");
    says(&told, &["mlx5_0", "gone", "cable", "open it again"]);
    drop((queue, pd, device));
}

#[test]
fn a_channel_that_cannot_be_waited_on_is_none() {
    // None, a standard stream, and one that nobody has opened.
    for fd in ["-1", "0", "2", "1000000"] {
        let Some(fake) = Fake::new(&format!("{LOG}device=rdma_en5\nlike=thunderbolt\nchannel_fd={fd}\n")) else {
            return;
        };
        let device = fake.open("rdma_en5");
        let Err(error) = device.create_channel() else { panic!("{fd} is no channel") };
        assert!(matches!(error, VerbsError::Unsupported { what: "completion channels", .. }), "{fd}: {error:?}");
        says(&error, &["rdma_en5", "completion channels"]);
        assert!(fake.log().contains(" destroy_comp_channel\n"), "it is given back: {}", fake.log());
    }
}

#[test]
fn dma_bufs_are_registered_where_the_device_can() {
    use std::os::fd::AsFd;
    let file = tempfile::tempfile().expect("a file in the place of a dma-buf");
    file.set_len(1 << 18).expect("it has a length");
    let Some(fake) = Fake::new("device=mlx5_0\nlike=roce\ndevice=old\nlike=roce\ndmabuf=no\n") else { return };
    let device = fake.open("mlx5_0");
    assert!(device.info().capabilities.dma_buf);
    let pd = device.alloc_pd().expect("a domain");
    let page = fulmen_memory::page_size();
    let registered = pd.register_dma_buf(file.as_fd(), page as u64, 8192, Access::LOCAL_WRITE).expect("it registers");
    assert_ne!(registered.lkey(), registered.rkey());
    let Err(error) = pd.register_dma_buf(file.as_fd(), 64, 4096, Access::LOCAL_WRITE) else { panic!("no page") };
    assert!(matches!(error, VerbsError::Invalid { .. }), "{error:?}");
    says(&error, &["dma-buf", "offset 64", "page"]);

    let old = fake.open("old");
    assert!(!old.info().capabilities.dma_buf);
    let pd = old.alloc_pd().expect("a domain");
    let Err(error) = pd.register_dma_buf(file.as_fd(), 0, 4096, Access::LOCAL_WRITE) else { panic!("it cannot") };
    assert!(matches!(error, VerbsError::Unsupported { .. }), "{error:?}");
    says(&error, &["old", "dma-buf"]);
}
