//! Windows, waits and what ends them, with ranks as threads.

use std::sync::atomic::Ordering;
use std::sync::{Barrier, mpsc};
use std::task::Poll;
use std::time::Duration;

use crate::world::{self, LONG, options};
use fulmen_fabric::{Fabric, FabricError, FabricOptions, Loss, On, Providers, RegionRef, Session, StartError, Window};

/// Waits until a rank's word in `window` has reached `value`.
fn await_word(fabric: &Fabric, window: &Window, rank: u32, at: usize, value: u64) -> Result<(), FabricError> {
    let word = window.peer(rank).slice(at..at + 8);
    fabric.wait("await_word", &[rank], LONG, || {
        if word.atomic_u64(0).load(Ordering::Acquire) >= value { Poll::Ready(()) } else { Poll::Pending }
    })
}

#[test]
fn a_window_is_each_ranks_memory_mapped_by_all() {
    world::run(4, |fabric| {
        assert!(fabric.has_windows());
        for len in [1, 4096, 100_000] {
            let window = fabric.window(len, LONG).unwrap();
            assert_eq!(window.len(), len);
            let mut first = vec![1; len];
            window.local().read(0, &mut first);
            assert!(first.iter().all(|byte| *byte == 0), "a window starts zeroed");
            // Nobody writes before all have looked.
            let words = fabric.window(64, LONG).unwrap();
            window.local().write(len - 1, &[fabric.rank() as u8 + 1]);
            words.local().atomic_u64(0).store(1, Ordering::Release);
            (0..4).filter(|rank| *rank != fabric.rank()).for_each(|rank| words.ring(rank));
            for rank in 0..4 {
                await_word(fabric, &words, rank, 0, 1).unwrap();
                let mut last = [0];
                window.peer(rank).read(len - 1, &mut last);
                assert_eq!(last, [rank as u8 + 1]);
            }
        }
    });
}

#[test]
fn words_go_round_while_ranks_park() {
    // More ranks than processors: they park, and a lost wake-up would cost 50 ms each.
    world::run(6, |fabric| {
        let window = fabric.window(4096, LONG).unwrap();
        let (rank, size) = (fabric.rank(), fabric.size());
        let before = (rank + size - 1) % size;
        for round in 1..=200 {
            if rank != 0 || round > 1 {
                await_word(fabric, &window, before, 0, if rank == 0 { round - 1 } else { round }).unwrap();
            }
            window.local().atomic_u64(0).store(round, Ordering::Release);
            window.ring((rank + 1) % size);
        }
        // Nobody leaves while somebody may wait.
        for other in 0..size {
            await_word(fabric, &window, other, 0, 200).unwrap();
        }
        window.local().atomic_u64(8).store(1, Ordering::Release);
        (0..size).for_each(|other| window.ring(other));
        for other in 0..size {
            await_word(fabric, &window, other, 8, 1).unwrap();
        }
    });
}

#[test]
fn windows_of_different_lengths_are_refused_on_all_ranks() {
    let errors = world::run(3, |fabric| fabric.window(4096 + fabric.rank() as usize / 2, LONG).unwrap_err());
    for error in &errors[..2] {
        let text = error.to_string();
        assert!(matches!(error, FabricError::Mismatch { rank: 2, .. }), "{text}");
        assert!(text.contains("4096") && text.contains("4097"), "{text}");
    }
    assert!(matches!(errors[2], FabricError::Mismatch { rank: 0, .. }), "{}", errors[2]);
}

#[test]
fn a_window_that_one_rank_cannot_make_fails_everywhere_and_the_next_one_works() {
    world::run(2, |fabric| {
        let error = fabric.window(0, LONG).unwrap_err();
        assert!(matches!(error, FabricError::Memory { op: "window", .. }), "{error}");
        fabric.window(4096, LONG).unwrap();
    });
}

#[test]
fn references_to_the_pool_reach_the_same_bytes() {
    world::run(2, |fabric| {
        let window = fabric.window(4096, LONG).unwrap();
        let other = 1 - fabric.rank();
        let block = fabric.alloc(1000).unwrap().into_exposed();
        block.fill(0..1000, fabric.rank() as u8 + 5);
        let at = fabric.region_ref(&block.slice(10..1000)).unwrap();
        for (place, value) in [at.key, at.offset, at.len].into_iter().enumerate() {
            window.local().atomic_u64(8 + 8 * place).store(value, Ordering::Relaxed);
        }
        window.local().atomic_u64(0).store(1, Ordering::Release);
        window.ring(other);
        await_word(fabric, &window, other, 0, 1).unwrap();
        let field = |place: usize| window.peer(other).atomic_u64(8 + 8 * place).load(Ordering::Relaxed);
        let theirs = RegionRef { key: field(0), offset: field(1), len: field(2) };
        for _ in 0..3 {
            let mapped = fabric.map(other, theirs).unwrap();
            assert_eq!(mapped.len(), 990);
            let mut bytes = vec![0; 990];
            mapped.read(0, &mut bytes);
            assert!(bytes.iter().all(|byte| *byte == other as u8 + 5));
        }
        // A reference is not trusted.
        for (offset, len) in [(16 << 20, 1), (u64::MAX, 2), (0, u64::MAX), ((16 << 20) - 5, 6)] {
            let error = fabric.map(other, RegionRef { key: theirs.key, offset, len }).unwrap_err();
            assert!(matches!(error, FabricError::OutOfBounds { rank, .. } if rank == other), "{error}");
        }
        let error = fabric.map(other, RegionRef { key: theirs.key ^ 1, ..theirs }).unwrap_err();
        assert!(matches!(error, FabricError::Reach { rank, .. } if rank == other), "{error}");
        let error = fabric.map(fabric.rank(), theirs).unwrap_err();
        assert!(matches!(error, FabricError::NoSuchRank { .. }), "{error}");
        // The other side still reads its block through the mapping.
        window.local().atomic_u64(0).store(2, Ordering::Release);
        window.ring(other);
        await_word(fabric, &window, other, 0, 2).unwrap();
    });
}

#[test]
fn only_shared_memory_has_a_reference() {
    world::run(2, |fabric| {
        let private = fulmen_memory::Region::alloc(4096).unwrap().expose().unwrap();
        assert_eq!(fabric.region_ref(&private), None);
        let window = fabric.window(4096, LONG).unwrap();
        assert_eq!(fabric.region_ref(&window.local().slice(8..16)).map(|at| (at.offset, at.len)), Some((8, 8)));
    });
}

#[test]
fn a_deadline_names_operation_link_and_ranks() {
    world::run(2, |fabric| {
        let other = 1 - fabric.rank();
        let wait = || fabric.wait("rest", &[other], Duration::from_millis(150), || Poll::<()>::Pending);
        let error = wait().unwrap_err();
        let text = error.to_string();
        assert!(matches!(&error, FabricError::TimedOut { op: "rest", missing, .. } if *missing == [other]), "{text}");
        assert!(
            text.contains("rest") && text.contains("shared memory") && text.contains(&format!("rank {other}")),
            "{text}"
        );
        // The other rank's deadline runs, too.
        let _window = fabric.window(64, LONG).unwrap();
    });
}

#[test]
fn a_rank_that_leaves_ends_the_waits_on_it_and_no_others() {
    let (here, gone) = (Barrier::new(3), Barrier::new(2));
    world::start(
        3,
        |_| options(),
        |rank, fabric| {
            let fabric = fabric.unwrap();
            if rank == 2 {
                here.wait();
                return;
            }
            here.wait();
            let error = fabric.wait("watch", &[2], LONG, || Poll::<()>::Pending).unwrap_err();
            assert!(matches!(error, FabricError::PeerLost { rank: 2, op: "watch", .. }), "{error}");
            assert!(fabric.loss(2).is_some());
            let error = fabric.wait("all", On::All, LONG, || Poll::<()>::Pending).unwrap_err();
            assert!(matches!(error, FabricError::PeerLost { rank: 2, op: "all", .. }), "{error}");
            // A wait on somebody else is not concerned.
            let other = 1 - rank;
            let wait = fabric.wait("other", &[other], Duration::from_millis(100), || Poll::<()>::Pending);
            assert!(matches!(wait, Err(FabricError::TimedOut { .. })), "{wait:?}");
            gone.wait();
        },
    );
}

#[test]
fn what_is_there_already_counts_although_its_writer_is_gone() {
    let (sender, receiver) = mpsc::channel();
    let receiver = std::sync::Mutex::new(receiver);
    world::start(
        2,
        |_| options(),
        |rank, fabric| {
            let fabric = fabric.unwrap();
            let window = fabric.window(64, LONG).unwrap();
            if rank == 1 {
                window.local().atomic_u64(0).store(9, Ordering::Release);
                drop(window);
                drop(fabric);
                sender.send(()).unwrap();
            } else {
                receiver.lock().unwrap().recv().unwrap();
                let end = fabric.wait("end", &[1], LONG, || Poll::<()>::Pending);
                assert!(matches!(end, Err(FabricError::PeerLost { .. })), "{end:?}");
                await_word(&fabric, &window, 1, 0, 9).unwrap();
                assert!(matches!(await_word(&fabric, &window, 1, 0, 10), Err(FabricError::PeerLost { .. })));
            }
        },
    );
}

#[test]
fn options_that_differ_are_an_error_on_all_ranks() {
    let differ = |rank| FabricOptions { windows: rank != 1, ..options() };
    world::start(2, differ, |_, fabric| {
        let error = fabric.unwrap_err();
        assert!(matches!(error, StartError::Disagree { what: "windows", rank: 1, .. }), "{error}");
    });
}

#[test]
fn without_windows_there_are_none() {
    world::start(
        2,
        |_| FabricOptions { windows: false, ..options() },
        |_, fabric| {
            let fabric = fabric.unwrap();
            assert!(!fabric.has_windows());
            assert!(matches!(fabric.window(64, LONG), Err(FabricError::NoWindows { .. })));
        },
    );
}

#[test]
fn a_world_of_one_waits_for_nobody() {
    let providers = Providers { node: Some(fulmen_reach::Node::open().unwrap()), ..Providers::default() };
    let fabric = Fabric::start(Session::alone(), options(), providers).unwrap();
    let window = fabric.window(64, LONG).unwrap();
    window.local().write(0, &[1]);
    assert_eq!((fabric.rank(), fabric.size(), fabric.loss(0)), (0, 1, None::<Loss>));
    assert!(matches!(
        fabric.wait("nothing", On::All, Duration::ZERO, || Poll::<()>::Pending),
        Err(FabricError::TimedOut { .. })
    ));
}
