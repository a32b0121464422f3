//! What goes over the wire, counted.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use fulmen_fabric::{Fabric, FabricOptions, Providers, RemoteKey, Rights};
use fulmen_memory::Region;
use fulmen_soft::Profile;
use fulmen_verbs::{
    Access, CompletionChannel, CompletionQueue, Device, DeviceInfo, GidEntry, MemoryRegion, PortInfo, PostError,
    ProtectionDomain, QueuePair, QueuePairInit, QueuePairLimits, QueuePairState, RecvRequest, SendRequest, Transition,
    VerbsError,
};

use crate::devices::{check, fill};
use crate::world::{self, LONG, device, options};

/// SENDs that were posted, and their bytes.
#[derive(Default)]
struct Count {
    sends: AtomicU64,
    bytes: AtomicU64,
}

impl Count {
    fn now(&self) -> (u64, u64) {
        (self.sends.load(Ordering::SeqCst), self.bytes.load(Ordering::SeqCst))
    }
}

struct Counted<T: ?Sized> {
    inner: Arc<T>,
    count: Arc<Count>,
}

impl Device for Counted<dyn Device> {
    fn info(&self) -> &DeviceInfo {
        self.inner.info()
    }

    fn port(&self, number: u8) -> Result<PortInfo, VerbsError> {
        self.inner.port(number)
    }

    fn gid_table(&self, port: u8) -> Result<Vec<GidEntry>, VerbsError> {
        self.inner.gid_table(port)
    }

    fn alloc_pd(&self) -> Result<Arc<dyn ProtectionDomain>, VerbsError> {
        Ok(Arc::new(Counted { inner: self.inner.alloc_pd()?, count: self.count.clone() }))
    }

    fn create_cq(
        &self,
        entries: u32,
        channel: Option<&Arc<dyn CompletionChannel>>,
    ) -> Result<Arc<dyn CompletionQueue>, VerbsError> {
        self.inner.create_cq(entries, channel)
    }

    fn create_channel(&self) -> Result<Arc<dyn CompletionChannel>, VerbsError> {
        self.inner.create_channel()
    }
}

impl ProtectionDomain for Counted<dyn ProtectionDomain> {
    fn register(
        &self,
        region: &Region,
        range: Range<usize>,
        access: Access,
    ) -> Result<Arc<dyn MemoryRegion>, VerbsError> {
        self.inner.register(region, range, access)
    }

    fn create_qp(&self, init: &QueuePairInit) -> Result<Arc<dyn QueuePair>, VerbsError> {
        Ok(Arc::new(Counted { inner: self.inner.create_qp(init)?, count: self.count.clone() }))
    }
}

impl QueuePair for Counted<dyn QueuePair> {
    fn qp_num(&self) -> u32 {
        self.inner.qp_num()
    }

    fn state(&self) -> QueuePairState {
        self.inner.state()
    }

    fn limits(&self) -> QueuePairLimits {
        self.inner.limits()
    }

    fn modify(&self, transition: &Transition) -> Result<(), VerbsError> {
        self.inner.modify(transition)
    }

    fn post_send(&self, requests: &[SendRequest]) -> Result<(), PostError> {
        self.count.sends.fetch_add(requests.len() as u64, Ordering::SeqCst);
        self.count.bytes.fetch_add(requests.iter().map(SendRequest::bytes).sum(), Ordering::SeqCst);
        self.inner.post_send(requests)
    }

    fn post_recv(&self, requests: &[RecvRequest]) -> Result<(), PostError> {
        self.inner.post_recv(requests)
    }
}

const KEY: u64 = 1;
const DONE: u64 = 2;

/// Starts two ranks over Thunderbolt; rank 0 reaches memory of rank 1 while that does nothing but wait.
fn between_two(
    len: usize,
    body: impl Fn(&Fabric, &RemoteKey, &[Arc<Count>; 2]) + Sync,
    other: impl Fn(&Fabric) + Sync,
) {
    let counts = [0, 1].map(|_| Arc::new(Count::default()));
    let given = |rank: u32| {
        let count = counts[rank as usize].clone();
        let device: Arc<dyn Device> = Arc::new(Counted { inner: device(Profile::Thunderbolt), count });
        (Providers { devices: vec![device], ..Providers::default() }, FabricOptions { windows: false, ..options() })
    };
    world::start_with(2, given, |rank, fabric| {
        let fabric = fabric.unwrap();
        if rank == 0 {
            let mut key = [0; 256];
            let key_len = fabric.recv_bytes(1, KEY, &mut key, LONG).unwrap();
            let key = RemoteKey::from_bytes(&key[..key_len]).unwrap();
            body(&fabric, &key, &counts);
            fabric.send_bytes(1, DONE, &[], LONG).unwrap();
        } else {
            let memory = fabric.alloc(len).unwrap().into_exposed();
            let shared = fabric.share(&memory, Rights::all()).unwrap();
            fabric.send_bytes(0, KEY, &shared.key().to_bytes(), LONG).unwrap();
            other(&fabric);
            fabric.recv_bytes(0, DONE, &mut [], LONG).unwrap();
            shared.close(LONG).unwrap();
        }
    });
}

const MIB: usize = 1 << 20;
const MESSAGE: u64 = 3;

#[test]
fn a_mebibyte_takes_little_more_than_its_bytes() {
    let body = |fabric: &Fabric, key: &RemoteKey, counts: &[Arc<Count>; 2]| {
        let data = fabric.alloc(MIB).unwrap().into_exposed();
        fill(&data, 9);
        let remote = fabric.remote(1, key).unwrap();
        let all = || counts.iter().map(|count| count.now().1).sum::<u64>();
        let (start, most) = (all(), MIB as u64 * 103 / 100);
        fabric.send(1, MESSAGE, &data, LONG).unwrap();
        let message = all() - start;
        remote.put(0, &data, LONG).unwrap();
        let put = all() - start - message;
        println!("a message of 1 MiB took {message} bytes, a put {put}");
        assert!(message <= most && put <= most, "{message} and {put} bytes");
        let into = fabric.alloc(MIB).unwrap().into_exposed();
        remote.get(0, &into, LONG).unwrap();
        check(&into, 9, "a put");
    };
    let other = |fabric: &Fabric| {
        let into = fabric.alloc(MIB).unwrap().into_exposed();
        fabric.recv(0, MESSAGE, &into, LONG).unwrap();
        check(&into, 9, "a message");
    };
    between_two(MIB, body, other);
}

#[test]
fn a_short_put_takes_one_round_trip() {
    let body = |fabric: &Fabric, key: &RemoteKey, counts: &[Arc<Count>; 2]| {
        let data = fabric.alloc(4096).unwrap().into_exposed();
        let remote = fabric.remote(1, key).unwrap();
        // A busy machine may make some wait so long that acknowledgements go alone, or frames go again.
        let sends = |_| {
            let before = [0, 1].map(|rank: usize| counts[rank].now());
            remote.put(0, &data, LONG).unwrap();
            [0, 1].map(|rank: usize| counts[rank].now().0 - before[rank].0)
        };
        let fewest = (0..50).map(sends).min_by_key(|[out, back]| out + back).unwrap();
        // With their headers, 4 KiB are more than one of the device's frames.
        assert!(fewest[0] <= 2 && fewest[1] <= 1, "{fewest:?}");
    };
    between_two(4096, body, |_| ());
}
