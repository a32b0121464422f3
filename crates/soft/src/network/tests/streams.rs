use fulmen_memory::Exposed;
use proptest::prelude::*;

use super::*;

/// Sends all of `parts` from one to the other, and back.
pub(super) fn exchange(one: &mut Stream, other: &mut Stream, parts: &[&[u8]]) {
    let whole = parts.concat();
    for _ in 0..2 {
        let (from, to) = (&mut *one, &mut *other);
        let mut sent = 0;
        let mut came = vec![0; whole.len() + 1];
        let mut filled = 0;
        until("it arrives", || {
            if sent < whole.len() {
                sent += from.send(&[Out::Bytes(&whole[sent..])]).unwrap();
            }
            from.flush().unwrap();
            filled += to.receive(&mut [Room::Bytes(&mut came[filled..])]).unwrap();
            filled == whole.len()
        });
        assert_eq!(came[..filled], whole);
        std::mem::swap(one, other);
    }
}

fn pattern(at: usize) -> u8 {
    (at as u32).wrapping_mul(2_654_435_761).to_be_bytes()[0]
}

fn memory(len: usize) -> Exposed {
    let memory = Region::alloc(len).unwrap().expose().unwrap();
    let bytes: Vec<u8> = (0..len).map(pattern).collect();
    memory.write(0, &bytes);
    memory
}

/// Cuts `total` into the lengths that `cuts` say, again and again.
fn lengths(cuts: &[usize], total: usize) -> impl Iterator<Item = usize> {
    let mut left = total;
    cuts.iter().copied().cycle().map_while(move |cut| {
        let len = cut.min(left);
        left -= len;
        (len > 0).then_some(len)
    })
}

/// Moves `total` bytes in pieces of all sizes, each side with its own, out of and into memory and bytes.
fn carry(from: &mut Stream, to: &mut Stream, total: usize, out: &[usize], into: &[usize]) {
    let (source, target) = (memory(total), Region::alloc(total).unwrap().expose().unwrap());
    let bytes: Vec<u8> = (0..total).map(pattern).collect();
    let mut heard = vec![0; total];
    let (mut sent, mut came) = (0, 0);
    until("all of it arrives", || {
        let mut at = sent;
        let pieces: Vec<Out<'_>> = lengths(out, total - sent)
            .take(80)
            .enumerate()
            .map(|(index, len)| {
                at += len;
                match index % 2 {
                    0 => Out::Bytes(&bytes[at - len..at]),
                    _ => Out::Memory { memory: &source, at: at - len, len },
                }
            })
            .collect();
        sent += from.send(&pieces).unwrap();
        from.flush().unwrap();
        let (mut at, mut rest) = (came, &mut heard[came..]);
        let mut rooms: Vec<Room<'_>> = Vec::new();
        for (index, len) in lengths(into, total - came).take(80).enumerate() {
            let (room, left) = rest.split_at_mut(len);
            rest = left;
            rooms.push(match index % 2 {
                0 => Room::Bytes(room),
                _ => Room::Memory { memory: &target, at, len },
            });
            at += len;
        }
        let got = if to.is_readable() { to.receive(&mut rooms).unwrap() } else { 0 };
        // What came to memory joins what came to bytes.
        let in_memory: Vec<(usize, usize)> = {
            let mut at = came;
            let room = |(index, room): (usize, &Room<'_>)| {
                at += room.len();
                (index % 2 == 1).then_some((at - room.len(), at))
            };
            rooms.iter().enumerate().filter_map(room).collect()
        };
        for (start, end) in in_memory {
            let end = end.min(came + got);
            if start < end {
                target.read(start, &mut heard[start..end]);
            }
        }
        came += got;
        came == total
    });
    assert!(heard == bytes, "what came is what was sent");
}

/// With few connections and with many, which go other ways.
fn each_way(run: impl Fn(&mut Stream, &mut Stream)) {
    for ip in loopbacks() {
        for sealed in [false, true] {
            for others in [0, 3] {
                let hosts = hosts(ip, sealed);
                let _others: Vec<[Stream; 2]> = (0..others).map(|number| connect(&hosts, 100 + number)).collect();
                let sweeps = Sweeping::start(&hosts);
                let [mut one, mut other] = connect(&hosts, 1);
                run(&mut one, &mut other);
                drop(sweeps);
            }
        }
    }
}

/// Sweeps as programs do that poll.
struct Sweeping {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Sweeping {
    fn start(hosts: &[Host; 2]) -> Sweeping {
        let (networks, stop) = (hosts.each_ref().map(|host| host.network.clone()), Arc::new(AtomicBool::new(false)));
        let stopped = stop.clone();
        let thread = thread::spawn(move || {
            while !stopped.load(Ordering::Relaxed) {
                networks.iter().for_each(|network| network.sweep());
                thread::yield_now();
            }
        });
        Sweeping { stop, thread: Some(thread) }
    }
}

impl Drop for Sweeping {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.take().unwrap().join().unwrap();
    }
}

#[test]
fn bytes_arrive_as_they_were_sent() {
    each_way(|one, other| {
        carry(one, other, 3 << 20, &[1 << 20], &[1 << 20]);
        carry(other, one, 300_001, &[64, 4096, 1, 70_000], &[48, 1 << 16]);
        carry(one, other, 5000, &[1], &[7, 3]);
    });
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]
    #[test]
    fn any_cuts_give_the_same_bytes(
        out in prop::collection::vec(prop_oneof![1..100_usize, 1..200_000_usize], 1..6),
        into in prop::collection::vec(prop_oneof![1..100_usize, 1..200_000_usize], 1..6),
        total in 1..400_000_usize,
        sealed in any::<bool>(),
    ) {
        // Tiny pieces only for few bytes.
        let total = total.min(out.iter().chain(&into).sum::<usize>() * 200);
        let hosts = hosts(V4, sealed);
        let _sweeps = Sweeping::start(&hosts);
        let [mut one, mut other] = connect(&hosts, 1);
        carry(&mut one, &mut other, total, &out, &into);
    }
}

#[test]
fn nothing_is_sent_or_received_without_room() {
    each_way(|one, other| {
        let mut none = [Room::Bytes(&mut [])];
        assert_eq!(one.receive(&mut none).unwrap(), 0);
        assert_eq!(one.receive(&mut []).unwrap(), 0);
        assert_eq!(one.send(&[]).unwrap(), 0);
        let mut byte = [0];
        assert_eq!(one.receive(&mut [Room::Bytes(&mut byte)]).unwrap(), 0, "nothing was sent");
        // A peer that reads nothing stops the sender, which goes on when it reads.
        let memory = memory(1 << 20);
        let piece = || [Out::Memory { memory: &memory, at: 0, len: 1 << 20 }];
        let mut sent = 0;
        let mut stops = 0;
        while stops < 50 {
            let now = one.send(&piece()).unwrap();
            sent += now;
            stops = if now == 0 { stops + 1 } else { 0 };
            thread::yield_now();
        }
        let mut came = 0;
        let mut room = vec![0; 1 << 20];
        until("all of it arrives", || {
            one.flush().unwrap();
            came += other.receive(&mut [Room::Bytes(&mut room)]).unwrap();
            came == sent
        });
        until("there is room again", || one.send(&piece()).unwrap() > 0);
    });
}

#[test]
fn a_peer_that_goes_is_told_of() {
    each_way(|one, other| {
        let hosts = hosts(one.peer().ip(), one.is_sealed());
        let [mut stays, goes] = connect(&hosts, 2);
        drop(goes);
        let ended = end_of(&mut stays);
        assert!(ended.0.contains("closed"), "{ended}");
        assert_eq!(end_of(&mut stays), ended, "it stays over");
        until("sending ends, too", || stays.send(&[Out::Bytes(b"hello")]).is_err() || stays.flush().is_err());
        exchange(one, other, &[b"others go on"]);
    });
}

#[test]
fn what_was_sent_last_arrives_after_its_queue_pair_is_gone() {
    for sealed in [false, true] {
        let hosts = hosts(V4, sealed);
        let [mut one, mut other] = connect(&hosts, 1);
        // Something unread lies at the side that goes.
        until("it is sent", || other.send(&[Out::Bytes(b"unread")]).unwrap() > 0);
        let memory = memory(1 << 20);
        let mut sent = 0;
        loop {
            let now = one.send(&[Out::Memory { memory: &memory, at: sent, len: memory.len() - sent }]).unwrap();
            sent += now;
            if now == 0 || sent == memory.len() {
                break;
            }
        }
        hosts[0].network.let_go(one, b"goodbye");
        let mut heard = Vec::new();
        let ended = loop {
            let mut room = [0; 4096];
            match other.receive(&mut [Room::Bytes(&mut room)]) {
                Ok(count) => heard.extend_from_slice(&room[..count]),
                Err(ended) => break ended,
            }
        };
        assert_eq!(heard.len(), sent + 7);
        assert!(heard.ends_with(b"goodbye"));
        assert!(ended.0.contains("closed"), "{ended}");
        drop(other);
        until("nothing of it stays", || {
            hosts[0].network.watch.wake();
            lock(&hosts[0].network.leaving).is_empty()
        });
    }
}

#[test]
fn a_connection_that_is_given_up_says_why() {
    let hosts = hosts(V4, false);
    let [one, mut other] = connect(&hosts, 1);
    let mut one = one;
    one.core().give_up("enough of it".to_owned());
    assert_eq!(end_of(&mut one), Ended("enough of it".to_owned()));
    end_of(&mut other);
}

/// Slow readers are no dead hosts.
#[test]
fn a_peer_that_reads_nothing_for_long_is_waited_for() {
    if !fulmen_testbed::is_full() {
        return;
    }
    let hosts = hosts(V4, false);
    let _sweeps = Sweeping::start(&hosts);
    let [mut one, mut other] = connect(&hosts, 1);
    let memory = memory(1 << 20);
    let mut sent = 0;
    let began = Instant::now();
    while began.elapsed() < Duration::from_secs(25) {
        sent += one.send(&[Out::Memory { memory: &memory, at: 0, len: 1 << 20 }]).unwrap();
        thread::sleep(Duration::from_millis(20));
    }
    let mut came = 0;
    let mut room = vec![0; 1 << 20];
    until("all of it arrives", || {
        came += other.receive(&mut [Room::Bytes(&mut room)]).unwrap();
        came == sent
    });
}
