//! A device that notes what is sent over it.

use std::collections::HashSet;
use std::ops::Range;
use std::sync::{Arc, Mutex};

use fulmen_fabric::engine::{PREFIX, Reliable, checksum};
use fulmen_memory::Region;
use fulmen_verbs::{
    Access, CompletionChannel, CompletionQueue, Device, DeviceInfo, GidEntry, MemoryRegion, PortInfo, PostError,
    ProtectionDomain, QueuePair, QueuePairInit, QueuePairLimits, QueuePairState, RecvRequest, SendRequest, Transition,
    VerbsError,
};

/// The kind of frames that do nothing but give credits back.
const CREDIT: u8 = 6;

/// SENDs that were posted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Posted {
    pub sends: u64,
    pub bytes: u64,
    /// Frames of 4 KiB that they take.
    pub units: u64,
}

/// What was posted, by what moments decide about: all but the first is a matter of which rank was faster.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sorted {
    /// What operations consist of: each frame once, and chunks.
    pub operations: Posted,
    /// Frames that give credits back, when half of them are owed and no other frame goes.
    pub credits: Posted,
    /// Acknowledgements that go alone, when no frame goes for a while.
    pub alone: Posted,
    /// Frames that go again for want of an acknowledgement.
    pub again: Posted,
}

/// What was posted over the devices of a rank.
#[derive(Default)]
pub struct Count {
    sorted: Mutex<(Sorted, HashSet<(u32, u32)>)>,
}

impl Posted {
    fn add(&mut self, bytes: u64) {
        self.sends += 1;
        self.bytes += bytes;
        self.units += bytes.div_ceil(4096).max(1);
    }

    pub fn since(self, before: Posted) -> Posted {
        Posted { sends: self.sends - before.sends, bytes: self.bytes - before.bytes, units: self.units - before.units }
    }
}

impl Count {
    pub fn now(&self) -> Sorted {
        self.sorted.lock().unwrap().0
    }

    /// All SENDs and their bytes.
    pub fn all(&self) -> (u64, u64) {
        let Sorted { operations, credits, alone, again } = self.now();
        let all = [operations, credits, alone, again];
        (all.iter().map(|posted| posted.sends).sum(), all.iter().map(|posted| posted.bytes).sum())
    }

    fn note(&self, request: &SendRequest) {
        const SEAL: usize = Reliable::OVERHEAD;
        let memory = &request.pieces[0].memory;
        let bytes = request.bytes();
        let mut head = [0; SEAL + PREFIX];
        let known = memory.len().min(head.len());
        memory.read(0, &mut head[..known]);
        let word = |at: usize| u32::from_le_bytes(head[at..at + 4].try_into().unwrap());
        let mut guard = self.sorted.lock().unwrap();
        let (sorted, seen) = &mut *guard;
        // Frames have a seal; a chunk is the message's bytes and nothing else.
        if memory.len() < SEAL || checksum::append(0, memory, 4) != word(0) {
            sorted.operations.add(bytes);
        } else if memory.len() == SEAL {
            sorted.alone.add(bytes);
        } else if !seen.insert((peer(request), word(8))) {
            sorted.again.add(bytes);
        } else if head[SEAL] == CREDIT {
            sorted.credits.add(bytes);
        } else {
            sorted.operations.add(bytes);
        }
    }
}

/// Numbers of frames are those of a link. Its peer stands in the numbers of its requests.
fn peer(request: &SendRequest) -> u32 {
    (request.wr_id >> 32) as u32
}

pub struct Counted<T: ?Sized> {
    inner: Arc<T>,
    count: Arc<Count>,
}

impl Counted<dyn Device> {
    pub fn over(inner: Arc<dyn Device>, count: &Arc<Count>) -> Arc<dyn Device> {
        Arc::new(Counted { inner, count: count.clone() })
    }
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
        for request in requests {
            self.count.note(request);
        }
        self.inner.post_send(requests)
    }

    fn post_recv(&self, requests: &[RecvRequest]) -> Result<(), PostError> {
        self.inner.post_recv(requests)
    }
}
