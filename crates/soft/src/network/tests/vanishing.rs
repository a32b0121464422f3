use fulmen_testbed::{Bed, Link};

use super::*;

/// Whether it has something to send or not. (It takes ten seconds.)
#[test]
fn a_host_that_vanishes_is_noticed() {
    if !fulmen_testbed::is_full() {
        return;
    }
    let Some(bed) = Bed::or_skip("a peer's host that vanishes") else { return };
    let beds = [bed.host("one"), bed.host("other")];
    let cable = bed.cable(&beds[0], &beds[1], Link::new());
    let hosts = beds.each_ref().map(|bed| bed.run(|| Host::new(cable.address(bed), None)));
    let ends = |number| hosts.each_ref().map(|host| host.open_end(number));
    let mut streams: Vec<Stream> = Vec::new();
    let mut kept = Vec::new();
    for number in [1, 2] {
        let ends = ends(number);
        let mut met = [0, 1].map(|at: usize| {
            let peer = ends[1 - at].named();
            beds[at].run(|| hosts[at].network.meet(&ends[at], &peer, soon())).unwrap().stream
        });
        let late = usize::from(met[0].is_some());
        met[late] = Some(hosts[late].collect(&ends[late], &ends[1 - late].named()).1);
        let [one, other] = met.map(Option::unwrap);
        streams.push(one);
        kept.push(other);
    }
    // One has said something before, and the other one says something to nobody.
    streams::exchange(&mut streams[0], &mut kept[0], &[b"hello"]);
    cable.partition(&[&[&beds[0]], &[&beds[1]]]);
    let began = Instant::now();
    assert_eq!(streams[1].send(&[Out::Bytes(b"is anybody there?")]).unwrap(), 17);
    for stream in &mut streams {
        let ended = end_of(stream);
        assert!(ended.0.contains("off, or the network is"), "{ended}");
    }
    println!("noticed after {:?}", began.elapsed());
}
