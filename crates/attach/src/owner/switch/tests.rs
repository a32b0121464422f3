use std::any::Any;
use std::sync::mpsc::{self, Sender};

use fulmen_memory::Region;
use fulmen_reach::Node;
use fulmen_soft::{Profile, SoftDevice};
use fulmen_verbs::{Device, ProtectionDomain};

use super::super::trunk::{Class, Course};
use super::*;
use crate::wire::Place;

/// A completion queue where something is told between what came before and the next look at it.
struct Told {
    queue: Arc<dyn CompletionQueue>,
    commands: Sender<Command>,
    number: u32,
}

impl CompletionQueue for Told {
    fn poll(&self, into: &mut [Completion]) -> Result<usize, VerbsError> {
        let count = self.queue.poll(into)?;
        if count > 0 {
            self.commands.send(Command::Create(self.number)).unwrap();
        }
        Ok(count)
    }

    fn request_notify(&self, solicited_only: bool) -> Result<(), VerbsError> {
        self.queue.request_notify(solicited_only)
    }

    fn entries(&self) -> u32 {
        self.queue.entries()
    }

    fn as_any(&self) -> &dyn Any {
        self.queue.as_any()
    }
}

/// A device's part of a trunk.
struct Side {
    device: Arc<dyn Device>,
    domain: Arc<dyn ProtectionDomain>,
    queue: Arc<dyn CompletionQueue>,
    trunk: Trunk,
}

impl Side {
    fn new(device: Arc<dyn Device>) -> Side {
        let domain = device.alloc_pd().unwrap();
        let queue = device.create_cq(1024, None).unwrap();
        let trunk = Trunk::new(device.info(), &*domain, &queue, &Class::all(device.info())).unwrap();
        Side { device, domain, queue, trunk }
    }

    fn place(&self) -> Place {
        Place { gid: self.device.gid_table(1).unwrap()[0].gid.0, lid: self.device.port(1).unwrap().lid }
    }

    fn slots(&self) -> Slots {
        let classes = Class::all(self.device.info());
        let sizes = classes.iter().map(|class| class.size).collect();
        let rule = self.device.info().limits.registration;
        Slots::new([self.domain.clone(), self.domain.clone()], rule, sizes)
    }
}

/// A program connects to a queue pair as soon as it has heard of it. The owner of that has been told of it before, but this thread may not
/// have looked at that when the other end's word comes.
#[test]
fn whoever_knows_a_new_queue_pair_is_not_told_that_it_is_gone() {
    const NUMBER: u32 = 7;
    let device = || SoftDevice::open(&Node::open().unwrap(), Profile::Infiniband).unwrap();
    let [here, mut there] = [device(), device()].map(Side::new);
    let ends = [&here, &there].map(|side| side.trunk.ends().unwrap());
    let mtu = here.device.port(1).unwrap().active_mtu;
    let course = |there| Course { local_gid_index: 0, there, port: 1, mtu };
    here.trunk.connect(&course(there.place()), &ends[0], &ends[1]).unwrap();
    there.trunk.connect(&course(here.place()), &ends[1], &ends[0]).unwrap();

    let (commands, orders) = mpsc::channel();
    let outside = Arc::new(Told { queue: here.queue.clone(), commands: commands.clone(), number: NUMBER });
    let queues = Queues { outside, inside: here.device.create_cq(16, None).unwrap() };
    let bell = Doorbell::at(&Region::alloc(Doorbell::SIZE).unwrap().expose().unwrap(), 0);
    let mut switch = Switch::new(queues, here.slots(), orders, bell, Arc::default());
    let alive = Arc::new(AtomicBool::new(true));
    commands.send(Command::Add { trunk: 1, queue_pairs: here.trunk, alive: alive.clone() }).unwrap();
    switch.work().unwrap();

    let mut slots = there.slots();
    let slot = slots.take(0).unwrap();
    let hello = Header { kind: Kind::Taken, to: NUMBER, from: 3, session: 5, ..BLANK };
    slot.memory().write(0, &hello.to_bytes());
    there.trunk.ways[0].push(Out { slot, len: Header::ROOM });
    there.trunk.ways[0].send(1).unwrap();
    let start = Instant::now();
    while !switch.pairs.contains_key(&NUMBER) {
        assert!(start.elapsed() < Duration::from_secs(30), "the message never came");
        there.queue.poll(&mut [Completion::BLANK]).unwrap();
        switch.work().unwrap();
    }
    let known = switch.pairs.get_mut(&NUMBER).unwrap().take_hello(1, 3);
    assert_eq!(known.map(|hello| hello.session), Some(5), "it was taken for one that is gone");
    assert!(alive.load(Ordering::Acquire));
}
