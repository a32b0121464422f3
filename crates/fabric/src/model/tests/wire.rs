use fulmen_verbs::{Capabilities, DeviceLimits};
use proptest::prelude::*;

use super::*;
use crate::Flow;

/// A device like the narrowest, of these numbers.
fn info(unit: Option<u32>, depth: u32, message: u64) -> DeviceInfo {
    let limits = DeviceLimits {
        queue_pairs: 10,
        completion_queues: 20,
        completion_entries: 4095,
        memory_regions: 100,
        protection_domains: 20,
        queue_depth: depth,
        pieces: 1,
        inline_bytes: 0,
        message_bytes: message,
        frame: unit,
        registration: fulmen_memory::ChunkRule::NONE,
        reads_in_flight: 0,
    };
    let capabilities = Capabilities {
        rc: false,
        uc: true,
        ud: false,
        srq: false,
        write: false,
        read: false,
        atomics: false,
        atomics_with_cpu: false,
        immediate: false,
        holds_sends: true,
        acknowledges: false,
        reports_dead_peers: false,
        dma_buf: false,
    };
    DeviceInfo { name: "a".into(), provider: "test", ports: 1, limits, capabilities }
}

pub(in crate::model) fn narrow() -> Wire {
    Wire::new(&FabricOptions::default(), &info(Some(4096), 4095, 4095 * 4096)).unwrap()
}

fn one(wire: &Wire, operation: Operation, bytes: u64) -> (Load, Load) {
    let steps = wire.steps(operation, bytes);
    (steps.load(Toward::There, wire), steps.load(Toward::Here, wire))
}

#[test]
fn a_link_over_the_narrow_device() {
    let wire = narrow();
    assert_eq!((wire.frame, wire.guard, wire.chunk, wire.chunks, wire.unit), (4096, 16, 512 << 10, 8, Some(4096)));
    let short = one(&wire, Operation::Message, 64);
    assert_eq!(short, (Load { sends: 1, bytes: 96, units: 1, spare: 0 }, Load::default()));
    // With their headers, 4 KiB are more than one of the device's frames.
    let page = one(&wire, Operation::Message, 4096).0;
    assert_eq!((page.sends, page.units), (2, 2));
    let (there, back) = one(&wire, Operation::Message, 1 << 20);
    assert_eq!((there.sends, there.units, back.sends), (3, 257, 2));
    assert!(there.bytes - (1 << 20) < 100 && back.bytes < 100);
}

#[test]
fn grants_that_are_told_one_by_one_are_spare() {
    let wire = narrow();
    let grants = |bytes| {
        let back = one(&wire, Operation::Message, bytes).1;
        (back.sends - 1, back.spare)
    };
    assert_eq!([grants(4 << 20), grants((4 << 20) + 1), grants(16 << 20)], [(1, 0), (2, 0), (4, 21)]);
}

#[test]
fn devices_of_no_use_are_refused() {
    let mut none = info(Some(4096), 4095, 1 << 20);
    none.capabilities.uc = false;
    assert!(matches!(Wire::new(&FabricOptions::default(), &none), Err(DeviceError::Kinds { .. })));
    let shallow = info(Some(4096), 16, 1 << 20);
    assert!(matches!(Wire::new(&FabricOptions::default(), &shallow), Err(DeviceError::Depth { .. })));
}

fn wires() -> impl Strategy<Value = Wire> {
    let unit = prop::option::of(prop::sample::select(vec![512u32, 4096, 16384]));
    let numbers = (unit, 300u32..20_000, 4096u64..1 << 31, 256u32..=65_536, 16u16..=256, 0u64..1 << 20, any::<bool>());
    numbers.prop_filter_map("no link", |(unit, depth, message, frame, credits, rendezvous, verify_data)| {
        let flow = Flow { frame, credits, rendezvous, ..Flow::default() };
        Wire::new(&FabricOptions { flow, verify_data, ..FabricOptions::default() }, &info(unit, depth, message)).ok()
    })
}

/// Whether an operation of so many bytes has a leg of chunks.
fn chunked(wire: &Wire, operation: Operation, bytes: u64) -> bool {
    wire.steps(operation, bytes).legs.iter().any(|leg| leg.chunks)
}

proptest! {
    #[test]
    fn every_byte_goes_once_and_no_send_is_too_long(
        wire in wires(),
        operation in prop::sample::select(Operation::ALL.to_vec()),
        bytes in prop_oneof![0u64..20_000, 0u64..1 << 26],
    ) {
        let steps = wire.steps(operation, bytes);
        prop_assert!((1..=steps.legs.len()).contains(&steps.delivered));
        for leg in &steps.legs {
            let most = if leg.chunks { wire.chunk } else { wire.frame };
            prop_assert!(leg.sends > 0 && leg.longest <= most);
            prop_assert!(leg.bytes <= leg.sends * leg.longest && leg.bytes > (leg.sends - 1) * leg.longest);
        }
        let all: u64 = steps.legs.iter().map(|leg| leg.bytes).sum();
        let sends: u64 = steps.legs.iter().map(|leg| leg.sends).sum();
        let payload = if matches!(operation, Operation::FetchAdd | Operation::CompareSwap) { 0 } else { bytes };
        // Besides the payload: at most the longest header and the guard for each SEND.
        prop_assert!(all >= payload && all <= payload + sends * (wire.guard + 98 + 16));
    }

    #[test]
    fn what_goes_there_and_what_comes_back_is_all(wire in wires(), bytes in 0u64..1 << 26) {
        for operation in Operation::ALL {
            let steps = wire.steps(operation, bytes);
            let (there, back) = one(&wire, operation, bytes);
            prop_assert_eq!(there.bytes + back.bytes, steps.legs.iter().map(|leg| leg.bytes).sum::<u64>());
            prop_assert_eq!(there.sends + back.sends, steps.legs.iter().map(|leg| leg.sends).sum::<u64>());
            prop_assert!(there.units >= there.sends && back.units >= back.sends);
        }
    }

    #[test]
    fn more_bytes_are_no_less_on_the_wire(wire in wires(), bytes in 0u64..1 << 22, more in 1u64..1 << 16) {
        for operation in Operation::ALL {
            // Where chunks begin to be used, the headers of frames are saved.
            if chunked(&wire, operation, bytes) != chunked(&wire, operation, bytes + more) {
                continue;
            }
            let ((there, back), (there_more, back_more)) =
                (one(&wire, operation, bytes), one(&wire, operation, bytes + more));
            prop_assert!(there_more.bytes >= there.bytes && back_more.bytes >= back.bytes);
            prop_assert!(there_more.units >= there.units && back_more.units >= back.units);
        }
    }
}
