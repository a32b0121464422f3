//! A device that tells of completions by channels alone, as the machine's own do.

use std::any::Any;
use std::ops::Range;
use std::sync::Arc;

use fulmen_memory::Region;
use fulmen_verbs::{
    Access, Completion, CompletionChannel, CompletionQueue, Device, DeviceInfo, GidEntry, MemoryRegion, PortInfo,
    ProtectionDomain, QueuePair, QueuePairInit, VerbsError,
};

pub struct ByChannels(pub Arc<dyn Device>);

struct Queue(Arc<dyn CompletionQueue>);

struct Domain(Arc<dyn ProtectionDomain>);

impl Device for ByChannels {
    fn info(&self) -> &DeviceInfo {
        self.0.info()
    }

    fn port(&self, number: u8) -> Result<PortInfo, VerbsError> {
        self.0.port(number)
    }

    fn gid_table(&self, port: u8) -> Result<Vec<GidEntry>, VerbsError> {
        self.0.gid_table(port)
    }

    fn alloc_pd(&self) -> Result<Arc<dyn ProtectionDomain>, VerbsError> {
        Ok(Arc::new(Domain(self.0.alloc_pd()?)))
    }

    fn create_cq(
        &self,
        entries: u32,
        channel: Option<&Arc<dyn CompletionChannel>>,
    ) -> Result<Arc<dyn CompletionQueue>, VerbsError> {
        Ok(Arc::new(Queue(self.0.create_cq(entries, channel)?)))
    }

    fn create_channel(&self) -> Result<Arc<dyn CompletionChannel>, VerbsError> {
        self.0.create_channel()
    }
}

impl CompletionQueue for Queue {
    fn poll(&self, into: &mut [Completion]) -> Result<usize, VerbsError> {
        self.0.poll(into)
    }

    fn request_notify(&self, solicited_only: bool) -> Result<(), VerbsError> {
        self.0.request_notify(solicited_only)
    }

    fn entries(&self) -> u32 {
        self.0.entries()
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl ProtectionDomain for Domain {
    fn register(
        &self,
        region: &Region,
        range: Range<usize>,
        access: Access,
    ) -> Result<Arc<dyn MemoryRegion>, VerbsError> {
        self.0.register(region, range, access)
    }

    fn create_qp(&self, init: &QueuePairInit) -> Result<Arc<dyn QueuePair>, VerbsError> {
        let below =
            |queue: &Arc<dyn CompletionQueue>| queue.as_any().downcast_ref::<Queue>().expect("its own").0.clone();
        let init = QueuePairInit { send_cq: below(&init.send_cq), recv_cq: below(&init.recv_cq), ..init.clone() };
        self.0.create_qp(&init)
    }
}
