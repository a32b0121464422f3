//! Completion queues: those of the software device, whose queue pairs go by other numbers.

use std::any::Any;
use std::sync::{Arc, PoisonError, RwLock};

use fulmen_verbs::{Completion, CompletionQueue, VerbsError};

use super::Core;

/// What queue pairs of the software device are called outside.
#[derive(Default)]
pub(crate) struct Names(RwLock<Vec<(u32, u32)>>);

impl Names {
    pub(super) fn of(&self, soft: u32) -> Option<u32> {
        let names = self.0.read().unwrap_or_else(PoisonError::into_inner);
        names.iter().find(|(known, _)| *known == soft).map(|(_, name)| *name)
    }

    pub(super) fn add(&self, soft: u32, name: u32) {
        self.0.write().unwrap_or_else(PoisonError::into_inner).push((soft, name));
    }

    pub(super) fn remove(&self, soft: u32) {
        self.0.write().unwrap_or_else(PoisonError::into_inner).retain(|(known, _)| *known != soft);
    }
}

pub(super) struct AttachedQueue {
    pub(super) inner: Arc<dyn CompletionQueue>,
    pub(super) core: Arc<Core>,
}

impl CompletionQueue for AttachedQueue {
    fn poll(&self, into: &mut [Completion]) -> Result<usize, VerbsError> {
        let count = self.inner.poll(into)?;
        for completion in &mut into[..count] {
            // One of a queue pair that is gone keeps a number that nobody knows.
            completion.qp_num = self.core.names.of(completion.qp_num).unwrap_or(0);
            // It is for the owner alone.
            completion.imm = None;
        }
        Ok(count)
    }

    fn request_notify(&self, solicited_only: bool) -> Result<(), VerbsError> {
        self.inner.request_notify(solicited_only)
    }

    fn entries(&self) -> u32 {
        self.inner.entries()
    }

    fn set_notifier(&self, notifier: Arc<dyn Fn() + Send + Sync>) -> Result<(), VerbsError> {
        self.inner.set_notifier(notifier)
    }

    fn resize(&self, entries: u32) -> Result<(), VerbsError> {
        self.inner.resize(entries)
    }

    fn number(&self) -> u32 {
        self.inner.number()
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
