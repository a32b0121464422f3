//! `mr-limit` and `queue-pairs`: objects are made until the device refuses one.

use std::sync::Arc;

use fulmen::parts::memory::{Region, page_size};
use fulmen::parts::verbs::{Device, ProtectionDomain, QueuePairInit, QueuePairKind, QueuePairLimits, VerbsError};

use super::answer::{Answer, Limit, Refusal};
use super::ends::all_access;
use super::worker::{Done, Voice};

/// Unless another bound is given.
const MOST_REGISTRATIONS: u64 = 1 << 16;
const MOST_OTHERS: u64 = 4096;
/// Pages that registrations take turns on.
const PAGES: u64 = 4096;

/// How many registrations there are.
pub fn registrations(voice: &Voice, device: &Arc<dyn Device>, most: Option<u64>) -> anyhow::Result<Done> {
    let most = most.unwrap_or(MOST_REGISTRATIONS);
    let (page, pages) = (page_size(), most.min(PAGES) as usize);
    let region = Region::alloc(pages * page)?;
    let access = all_access(device.info());
    let pd = device.alloc_pd()?;
    let stated = device.info().limits.memory_regions;
    let limit = find(voice, "registrations", stated, most, |index| {
        let at = index as usize % pages * page;
        pd.register(&region, at..at + page, access)
    });
    Ok(done(vec![limit]))
}

/// How many queue pairs of each kind, completion queues and protection domains there are.
pub fn queue_pairs(voice: &Voice, device: &Arc<dyn Device>, most: Option<u64>) -> anyhow::Result<Done> {
    let most = most.unwrap_or(MOST_OTHERS);
    let limits = &device.info().limits;
    let mut found = Vec::new();
    for kind in [QueuePairKind::Rc, QueuePairKind::Uc] {
        if device.info().capabilities.has(kind) {
            let pd = device.alloc_pd()?;
            let cq = device.create_cq(16.min(limits.completion_entries), None)?;
            let init = QueuePairInit {
                kind,
                send_cq: cq.clone(),
                recv_cq: cq,
                limits: QueuePairLimits {
                    send_depth: 1,
                    recv_depth: 1,
                    send_pieces: 1,
                    recv_pieces: 1,
                    inline_bytes: 0,
                },
                signal_all: false,
                srq: None,
            };
            let what = format!("{kind} queue pairs");
            found.push(find(voice, &what, limits.queue_pairs, most, |_| pd.create_qp(&init)));
        }
    }
    found.push(find(voice, "completion queues", limits.completion_queues, most, |_| device.create_cq(1, None)));
    found.push(find(voice, "protection domains", limits.protection_domains, most, |_| {
        device.alloc_pd() as Result<Arc<dyn ProtectionDomain>, VerbsError>
    }));
    Ok(done(found))
}

fn done(limits: Vec<Limit>) -> Done {
    let wrong = limits.iter().filter_map(|limit| limit.problem.clone()).collect();
    Done { answer: Some(Answer::Limits(limits)), wrong }
}

/// Makes objects until one is refused or there are `most`, lets them go, and makes as many again.
fn find<T>(voice: &Voice, what: &str, stated: u32, most: u64, make: impl Fn(u64) -> Result<T, VerbsError>) -> Limit {
    let round = |verb: &str, most: u64| {
        let mut made = Vec::new();
        let mut refusal = None;
        while refusal.is_none() && (made.len() as u64) < most {
            let number = made.len() as u64 + 1;
            voice.at(&format!("{verb} number {number} of the {what}"));
            match make(number - 1) {
                Ok(object) => made.push(object),
                Err(error) => refusal = Some(Refusal::from(&error)),
            }
        }
        (made, refusal)
    };
    let (made, refusal) = round("making", most);
    let count = made.len() as u64;
    voice.at(&format!("giving {count} {what} back"));
    drop(made);
    let (again, refused) = round("making again", count);
    let count_again = again.len() as u64;
    voice.at(&format!("giving {count_again} {what} back again"));
    drop(again);
    let problem = match (&refusal, refused) {
        (Some(refusal), _) if count == 0 => Some(format!("not one of the {what} could be made: {}", refusal.words)),
        (_, Some(refused)) => Some(format!(
            "{count} {what} were made and given back, and then there were {count_again} only: {}",
            refused.words
        )),
        _ => None,
    };
    Limit { what: what.to_string(), stated: stated.into(), made: count, refusal, made_again: count_again, problem }
}
