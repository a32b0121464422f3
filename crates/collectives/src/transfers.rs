//! Messages that go on while the program does other things.

use std::time::Instant;

use fulmen_fabric::{FabricError, OpName, Operation};
use fulmen_kernels::Stores;
use fulmen_memory::Exposed;

use crate::handle::Message;
use crate::p2p::{copy_of, received_from};
use crate::request::Output;
use crate::{CollectiveError, Data, Element, Group, Handle};

/// What a message is sent from, or received into.
enum Memory {
    /// The buffer's own.
    Own(Exposed),
    /// Other memory of the pool.
    Other(Exposed),
}

impl Memory {
    fn exposed(&self) -> &Exposed {
        let (Memory::Own(exposed) | Memory::Other(exposed)) = self;
        exposed
    }

    /// The data has its own memory again; if it is other memory, that is given back.
    fn give_back<D: Data>(self, data: &mut D) -> Option<Exposed> {
        match self {
            Memory::Other(exposed) => Some(exposed),
            Memory::Own(exposed) => {
                let Output::Buffer(own) = data.output() else { unreachable!("only a buffer gave its own memory") };
                own.restore(exposed);
                None
            }
        }
    }
}

impl Group {
    /// Starts to [send](Group::send) data that is given away meanwhile, and returns at once. No thread makes it: any number can be under
    /// way, messages of one tag arrive in the order in which they were started, and no receive needs to wait for it.
    ///
    /// ```no_run
    /// # use fulmen_collectives::{Buffer, CollectiveError, Group};
    /// # fn exchange(group: &Group, edge: Buffer<f32>, halo: Buffer<f32>, next: u32, before: u32) -> Result<(), CollectiveError> {
    /// let came = group.start_recv(halo, before, 1);
    /// let sent = group.start_send(edge, next, 1);
    /// // … compute something else …
    /// let (edge, outcome) = sent.wait();
    /// outcome?;
    /// let (halo, outcome) = came.wait();
    /// let count = outcome?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// A [`Buffer`](crate::Buffer) goes straight out of its memory, into that of one that receives; other data is copied first. The
    /// group's [deadline](Group::deadline) counts from now. The handle tells how it ended, as [`Group::send`] does, and of a pool that has
    /// no room for the copy.
    pub fn start_send<D>(&self, data: D, to: u32, tag: u64) -> Handle<D>
    where
        D: Data + Send + 'static,
    {
        let begin = |data: &mut D| {
            let (peer, typed) = self.named::<D>("send", to, tag)?;
            let memory = self.memory_of(data, |bytes| copy_of(self.fabric(), bytes))?;
            let operation = self.fabric().start_send(peer, typed, memory.exposed());
            Ok((memory, operation))
        };
        let end = |_: &mut D, _: Option<Exposed>, sent: Result<u64, FabricError>| Ok(sent.map(drop)?);
        self.message(data, begin, end)
    }

    /// Starts to [receive](Group::recv) into data that is given away meanwhile, and returns at once; the handle says how many elements came,
    /// and what [`Group::recv`] fails with. Of several receives of one tag from one rank, the one that was started first gets the oldest
    /// message. Otherwise as [`Group::start_send`].
    pub fn start_recv<D>(&self, data: D, from: u32, tag: u64) -> Handle<D, usize>
    where
        D: Data + Send + 'static,
    {
        let begin = |data: &mut D| {
            let (peer, typed) = self.named::<D>("recv", from, tag)?;
            let memory = self.memory_of(data, |bytes| Ok(self.fabric().alloc(bytes.len())?.into_exposed()))?;
            let operation = self.fabric().start_recv(peer, typed, memory.exposed());
            Ok((memory, operation))
        };
        let end = move |data: &mut D, other: Option<Exposed>, received: Result<u64, FabricError>| {
            if let (Ok(len), Some(other)) = (&received, other) {
                data.output().values().part(0..*len as usize).copy_out(&other, 0, Stores::Cached);
            }
            received_from::<D::Element>(received, from, tag)
        };
        self.message(data, begin, end)
    }

    /// Starts a message.
    fn message<D, R>(
        &self,
        mut data: D,
        begin: impl FnOnce(&mut D) -> Result<(Memory, Result<Operation, FabricError>), CollectiveError>,
        end: impl FnOnce(&mut D, Option<Exposed>, Result<u64, FabricError>) -> Result<R, CollectiveError> + Send + 'static,
    ) -> Handle<D, R>
    where
        D: Data + Send + 'static,
    {
        let (memory, operation) = match begin(&mut data) {
            Ok((memory, Ok(operation))) => (memory, operation),
            Ok((memory, Err(error))) => {
                memory.give_back(&mut data);
                return Handle::failed(data, error.into());
            }
            Err(error) => return Handle::failed(data, error),
        };
        let end = move |outcome| {
            let other = memory.give_back(&mut data);
            let ended = end(&mut data, other, outcome);
            (data, ended)
        };
        let until = Instant::now().checked_add(self.deadline());
        Handle::of_message(Message { operation, until, end: Box::new(end) })
    }

    /// A rank and a tag, as the fabric knows them.
    fn named<D: Data>(&self, op: OpName, rank: u32, tag: u64) -> Result<(u32, u64), CollectiveError> {
        Ok((self.peer(op, rank)?, self.typed(op, tag, D::Element::DTYPE)?))
    }

    /// Memory for a message: a buffer's own, or other memory that is made for these bytes.
    fn memory_of<D: Data>(
        &self,
        data: &mut D,
        other: impl FnOnce(&[u8]) -> Result<Exposed, FabricError>,
    ) -> Result<Memory, FabricError> {
        let mut output = data.output();
        // An empty one has none.
        let own = if let Output::Buffer(memory) = &mut output { memory.take() } else { None };
        own.map_or_else(|| other(output.bytes()).map(Memory::Other), |own| Ok(Memory::Own(own)))
    }
}
