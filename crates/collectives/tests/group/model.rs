//! What calls post to their devices, beside what the planner says of it.

use std::sync::{Arc, Barrier, Mutex};

use fulmen_collectives::plan::{self, Operation as Called, Question};
use fulmen_collectives::{Algorithm, DType, Group, Order, ReduceOp};
use fulmen_fabric::model::{Operation, Toward, Wire};
use fulmen_fabric::{FabricOptions, Providers};
use fulmen_reach::Node;
use fulmen_soft::{Profile, SoftDevice};
use fulmen_verbs::DeviceInfo;

use crate::counting::{Count, Counted, Posted};
use crate::ranks::{options, start_each};

const MIB: usize = 1 << 20;

/// In bytes of f32: within the header's message and beyond, with shares of all kinds of messages, and in several pieces.
const SIZES: [usize; 8] = [4, 4096, 4100, 8192, 20_000, 70_000, MIB, 5 * MIB / 2];

/// What all ranks of these hosts post for a call, if the algorithm can do it.
fn said(wire: &Wire, operation: Called, bytes: usize, hosts: &[u32], algorithm: Algorithm) -> Option<Posted> {
    let ranks = hosts.len();
    let question = Question { operation, ranks, bytes, dtype: DType::F32, op: ReduceOp::Max, order: Order::Ranks };
    let mut posted = Posted::default();
    for rank in 0..ranks {
        for message in plan::messages(&question, algorithm, hosts, rank)? {
            let steps = wire.steps(Operation::Message, message as u64);
            for toward in [Toward::There, Toward::Here] {
                let load = steps.load(toward, wire);
                assert_eq!(load.spare, 0);
                posted.sends += load.sends;
                posted.bytes += load.bytes;
                posted.units += load.units;
            }
        }
    }
    Some(posted)
}

#[test]
fn the_planner_says_what_calls_post() {
    let cables = [&[0; 2][..], &[0; 3], &[0; 4], &[0, 0, 1, 1], &[0, 1, 1, 1, 2, 2]];
    let cables = cables.map(|hosts| (Profile::Thunderbolt, hosts, &SIZES[..]));
    for (profile, hosts, sizes) in cables.into_iter().chain([(Profile::Infiniband, &[0; 18][..], &SIZES[..3])]) {
        let ranks = hosts.len();
        let several = hosts.contains(&1);
        let (limits, capabilities) = (profile.limits(), profile.capabilities());
        let info = DeviceInfo { name: "a".into(), provider: "soft", ports: 1, limits, capabilities };
        let wire = Wire::new(&FabricOptions::default(), &info).unwrap();
        let counts = Mutex::new(Vec::new());
        let providers = |_, node: Node| {
            let count = Arc::new(Count::default());
            let device = Counted::over(SoftDevice::open(&node, profile).unwrap(), &count);
            counts.lock().unwrap().push(count);
            Providers { node: Some(node), devices: vec![device], ..Providers::default() }
        };
        let options =
            |rank: u32| FabricOptions { host: several.then(|| [hosts[rank as usize] as u8; 16]), ..options(several) };
        let meet = Barrier::new(ranks);
        // All ranks stand still meanwhile.
        let look = || {
            meet.wait();
            let sum = counts.lock().unwrap().iter().fold(Posted::default(), |sum, count| {
                let Posted { sends, bytes, units } = count.now().operations;
                Posted { sends: sum.sends + sends, bytes: sum.bytes + bytes, units: sum.units + units }
            });
            meet.wait();
            sum
        };
        let compared = Mutex::new(0);
        start_each(ranks as u32, options, providers, |fabric| {
            let group = Group::new(fabric).unwrap();
            let most = SIZES[SIZES.len() - 1] / 4 + ranks;
            let mut buffer = group.alloc::<f32>(most).unwrap();
            let cases = sizes.iter().flat_map(|bytes| Algorithm::ALL.map(|algorithm| (*bytes, algorithm)));
            // What is sent between ranks of one host goes over no device.
            let cases = cases.filter(|(_, algorithm)| !several || *algorithm == Algorithm::Hosts);
            for (operation, (bytes, algorithm)) in
                Called::ALL.iter().flat_map(|called| cases.clone().map(move |case| (*called, case)))
            {
                // Parts of an all-gather are whole elements.
                let bytes = if operation == Called::AllGather { bytes.next_multiple_of(4 * ranks) } else { bytes };
                let Some(mut said) = said(&wire, operation, bytes, hosts, algorithm) else { continue };
                let group = group.with_algorithm(Some(algorithm));
                let before = look();
                let data = &mut buffer[..bytes / 4];
                match operation {
                    Called::AllReduce => group.all_reduce(data, ReduceOp::Max),
                    Called::Reduce => group.reduce(data, ReduceOp::Max, 0),
                    Called::Broadcast => group.broadcast(data, 0),
                    Called::Scan => group.scan(data, ReduceOp::Max),
                    Called::AllGather => group.all_gather_in_place(data),
                }
                .unwrap();
                let posted = look().since(before);
                if profile != Profile::Thunderbolt {
                    // What a wire carries at a time is known of the cables alone.
                    said.units = posted.units;
                }
                assert_eq!(posted, said, "{operation:?} of {bytes} bytes among {ranks} ranks by {algorithm}");
                *compared.lock().unwrap() += 1;
            }
        });
        let all: u64 = counts.lock().unwrap().iter().map(|count| count.all().0).sum();
        let compared = *compared.lock().unwrap() / ranks;
        assert!(compared >= if several { sizes.len() + 4 } else { sizes.len() * 17 }, "{compared}");
        println!("{compared} calls of {ranks} ranks posted {all} SENDs, credits and acknowledgements among them");
    }
}
