use super::*;

/// Sleeps as the device's thread does, until something can be received.
fn park_for(host: &Host, stream: &mut Stream) -> u8 {
    let (bell, watch) = (host.progress.doorbell(), &host.network.watch);
    loop {
        let (seen, swept) = (bell.sequence(), watch.swept());
        let mut byte = [0];
        if stream.is_readable() && stream.receive(&mut [Room::Bytes(&mut byte)]).unwrap() == 1 {
            return byte[0];
        }
        if watch.arm(swept) {
            assert!(bell.wait(seen, LONG), "a change was missed");
            watch.disarm();
        }
    }
}

fn send_byte(stream: &mut Stream, byte: u8) {
    until("there is room for a byte", || stream.send(&[Out::Bytes(&[byte])]).unwrap() == 1);
    until("it is sent", || stream.flush().unwrap());
}

/// Two sides that sleep until the other one has sent, and others that take the system's word away in between.
fn ping_pong(sealed: bool, others: u32, sweepers: usize, rounds: u32) {
    let hosts = hosts(V4, sealed);
    let _others: Vec<[Stream; 2]> = (0..others).map(|number| connect(&hosts, 100 + number)).collect();
    let [mut one, mut other] = connect(&hosts, 1);
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        for _ in 0..sweepers {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    for host in &hosts {
                        host.network.watch.sweep();
                    }
                    thread::yield_now();
                }
            });
        }
        let answers = scope.spawn(|| {
            for round in 0..rounds {
                assert_eq!(park_for(&hosts[1], &mut other), round as u8);
                send_byte(&mut other, !round as u8);
            }
        });
        for round in 0..rounds {
            send_byte(&mut one, round as u8);
            assert_eq!(park_for(&hosts[0], &mut one), !round as u8);
        }
        answers.join().unwrap();
        stop.store(true, Ordering::Relaxed);
    });
}

#[test]
fn who_sleeps_is_woken_for_each_message() {
    for others in [0, 3] {
        ping_pong(false, others, 0, 1500);
        ping_pong(false, others, 1, 1500);
        ping_pong(true, others, 1, 500);
    }
}

#[test]
fn who_polls_wakes_nobody() {
    let hosts = hosts(V4, false);
    let before = hosts[1].progress.doorbell().sequence();
    let [mut one, mut other] = connect(&hosts, 1);
    if hosts[0].network.address() < hosts[1].network.address() {
        // The connection came to this host, whose thread rings for it, perhaps after it was collected.
        until("it was announced", || hosts[1].progress.doorbell().sequence() != before);
    }
    let watch = &hosts[1].network.watch;
    // It has slept before, and was woken some other way.
    until("nothing is new", || watch.arm(watch.swept()));
    watch.disarm();
    let bell = hosts[1].progress.doorbell().sequence();
    for round in 0..2000_u32 {
        send_byte(&mut one, round as u8);
        let mut byte = [0];
        until("it arrives", || other.receive(&mut [Room::Bytes(&mut byte)]).unwrap() == 1);
        assert_eq!(byte[0], round as u8);
    }
    assert!(watch.alarms() <= 1, "{} alarms", watch.alarms());
    assert_eq!(hosts[1].progress.doorbell().sequence(), bell, "the device's thread is left alone");
}

#[test]
fn who_could_not_send_is_woken_when_it_goes_on() {
    for others in [0, 3] {
        let hosts = hosts(V4, false);
        let _others: Vec<[Stream; 2]> = (0..others).map(|number| connect(&hosts, 100 + number)).collect();
        let [mut one, mut other] = connect(&hosts, 1);
        let bytes = vec![7; 1 << 20];
        let total = 64 << 20;
        thread::scope(|scope| {
            let host = &hosts[0];
            scope.spawn(move || {
                let (bell, watch) = (host.progress.doorbell(), &host.network.watch);
                let mut sent = 0;
                while sent < total {
                    let (seen, swept) = (bell.sequence(), watch.swept());
                    let now = one.send(&[Out::Bytes(&bytes[..bytes.len().min(total - sent)])]).unwrap();
                    sent += now;
                    if now == 0 && watch.arm(swept) {
                        assert!(bell.wait(seen, LONG), "room was missed");
                        watch.disarm();
                    }
                }
            });
            let (mut came, mut room) = (0, vec![0; 300_000]);
            until("all of it arrives", || {
                hosts[1].network.sweep();
                came += other.receive(&mut [Room::Bytes(&mut room)]).unwrap();
                came == total
            });
        });
    }
}

#[test]
fn a_connection_that_comes_wakes_too() {
    let hosts = hosts(V4, false);
    // Collecting sleeps on the doorbell alone.
    drop(connect(&hosts, 1));
}

#[test]
fn nothing_is_armed_without_connections() {
    let host = Host::new(V4, None);
    let watch = &host.network.watch;
    assert!(watch.arm(watch.swept()));
    assert!(!watch.is_armed());
}
