//! Work for whoever claims it.

use fulmen_abi::{
    ARGUMENTS_ROOM, AbiError, Arguments, Buffer, Counter, ErrorCode, Field, Rights, Work, WorkClaim, WorkItem,
    WorkState, WorkStatus, WorkWord, Writer,
};
use proptest::prelude::*;

use crate::samples::{any_work, buffer, work};

fn field(name: &'static str) -> Field {
    Field { of: "WorkItem", name }
}

fn refused(change: impl FnOnce(&mut WorkItem)) -> AbiError {
    let mut record = WorkItem::encode(&work()).unwrap();
    change(&mut record);
    record.decode().expect_err("it is wrong")
}

#[test]
fn each_refusal_names_the_field() {
    assert_eq!(WorkItem::encode(&work()).unwrap().decode(), Ok(work()));
    let unknown = |name, value| AbiError::Unknown { field: field(name), value };
    assert_eq!(refused(|bad| bad.magic = 1), AbiError::Magic { record: "WorkItem", found: 1 });
    assert_eq!(refused(|bad| bad.version = 9), AbiError::Version { record: "WorkItem", found: 9 });
    assert_eq!(refused(|bad| bad.kind = 0), unknown("kind", 0));
    assert_eq!(refused(|bad| bad.kind = 3), unknown("kind", 3));
    assert_eq!(refused(|bad| bad.state = 4), unknown("state", 4));
    assert_eq!(refused(|bad| bad.source_node = u32::MAX), unknown("source_node", u32::MAX.into()));
    assert_eq!(refused(|bad| bad.target_node = 0xffff_fff0), unknown("target_node", 0xffff_fff0));
    let max = ARGUMENTS_ROOM as u64;
    let too_large = |value| AbiError::TooLarge { field: field("arguments_len"), value, max };
    assert_eq!(refused(|bad| bad.arguments_len = 193), too_large(193));
    let long = Work { arguments: Arguments::Inline(&[1; 193]), ..work() };
    assert_eq!(WorkItem::encode(&long), Err(too_large(193)));
    let buffered = Work { arguments: Arguments::Buffer(buffer(7, Rights::READ)), ..work() };
    let mut both = WorkItem::encode(&buffered).unwrap();
    both.arguments_len = 1;
    assert_eq!(both.decode(), Err(AbiError::NotZero { field: field("arguments_len") }));
    assert!(matches!(refused(|bad| bad.result_buffer.rights = 1), AbiError::Rights { .. }));
    assert!(matches!(refused(|bad| bad.counter_buffer.rights = 3), AbiError::Rights { .. }));
    assert!(matches!(refused(|bad| bad.result_buffer.generation = 1), AbiError::Stale { .. }));
}

#[test]
fn a_counter_is_one_whole_word() {
    let why = "a counter is 8 bytes at a multiple of 8";
    let malformed = AbiError::Malformed { field: field("counter_buffer"), why };
    assert_eq!(refused(|bad| bad.counter_buffer.len = 16), malformed);
    assert_eq!(refused(|bad| bad.counter_buffer.offset = 4), malformed);
    assert_eq!(refused(|bad| bad.counter_add = 0), AbiError::Missing { field: field("counter_add") });
    let none = fulmen_abi::RdmaBuffer::ZERO;
    assert_eq!(refused(|bad| bad.counter_buffer = none), AbiError::Missing { field: field("counter_buffer") });
    let Some(Counter { add, .. }) = work().counter else { panic!("it has one") };
    let wide = Some(Counter { word: buffer(2, Rights::ATOMIC), add });
    assert_eq!(WorkItem::encode(&Work { counter: wide, ..work() }), Err(malformed));
}

#[test]
fn the_lease_of_an_earlier_claim_means_nothing() {
    let mut record = WorkItem::encode(&Work { claims_before: 7, ..work() }).unwrap();
    let free = WorkWord { state: WorkState::Free, claims: 7, error: None };
    assert_eq!(record.status(), Ok(WorkStatus { word: free, claim: None }));
    let word = WorkWord { state: WorkState::Claimed, claims: 9, error: None };
    let claimed = WorkStatus { word, claim: Some(WorkClaim { node: 5, deadline_ns: 1000 }) };
    record.set_status(&claimed).unwrap();
    assert_eq!(record.status(), Ok(claimed));
    assert_eq!(record.attempts(&word), Ok(2));
    assert_eq!(record.decode().unwrap().claims_before, 7);
    // The next one has claimed it, and has not yet written its lease.
    let word = WorkWord { claims: 10, ..word };
    record.state = word.word();
    assert_eq!(record.status(), Ok(WorkStatus { word, claim: None }));
    record.lease_id = WorkClaim { node: u32::MAX, deadline_ns: 0 }.lease_id(10);
    assert_eq!(record.status(), Err(AbiError::Unknown { field: field("lease_id"), value: u32::MAX.into() }));
    let before = record;
    let none = WorkWord { claims: 7, ..word };
    let missing = AbiError::Missing { field: field("state (its claims)") };
    assert_eq!(record.set_status(&WorkStatus { word: none, claim: None }), Err(missing));
    let not_zero = AbiError::NotZero { field: field("lease_id") };
    assert_eq!(record.set_status(&WorkStatus { word: none, ..claimed }), Err(not_zero));
    assert!(record == before);
    record.reserved[4] = 1;
    assert_eq!(record.status(), Err(AbiError::NotZero { field: field("reserved") }));
    // There are never fewer claims than there were.
    let mut fewer = WorkItem::encode(&Work { claims_before: 7, ..work() }).unwrap();
    fewer.state = WorkWord { claims: 0, ..word }.word();
    assert_eq!(fewer.status(), Err(AbiError::TooLarge { field: field("claims_before"), value: 7, max: 0 }));
}

#[test]
fn a_state_word_says_all() {
    let failed = WorkWord { state: WorkState::Done, claims: 2, error: Some(ErrorCode::Failed) };
    assert_eq!(failed.word(), 0x0000_0002_0000_1503);
    assert_eq!(WorkWord::from_word(failed.word()), Ok(failed));
    let free = WorkWord { state: WorkState::Free, claims: 0, error: None };
    assert_eq!((free.word(), WorkWord::from_word(0)), (0, Ok(free)));
    // A put with a counter takes it from free to written.
    let written = WorkWord { state: WorkState::Written, ..free };
    assert_eq!(written.word(), free.word() + 1);
    let unknown = |name, value| Err(AbiError::Unknown { field: field(name), value });
    assert_eq!(WorkWord::from_word(4), unknown("state", 4));
    assert_eq!(WorkWord::from_word(0xffff_ff03), unknown("error", 0xff_ffff));
    assert_eq!(WorkWord::from_word(0x102), Err(AbiError::NotZero { field: field("error") }));
}

#[test]
fn each_state_has_its_writer() {
    use WorkState::{Claimed, Done, Free, Written};
    let allowed: Vec<_> = WorkState::ALL
        .iter()
        .flat_map(|from| WorkState::ALL.iter().filter_map(|to| Some((*from, *to, from.writer(*to)?))))
        .collect();
    let expected = [
        (Free, Written, Writer::Requester),
        (Written, Free, Writer::Requester),
        (Written, Claimed, Writer::Server),
        (Written, Done, Writer::Server),
        (Claimed, Written, Writer::Anybody),
        (Claimed, Done, Writer::Server),
        (Done, Free, Writer::Requester),
    ];
    assert_eq!(allowed, expected);
}

proptest! {
    #[test]
    fn bytes_give_the_work_back((mut work, inline) in any_work()) {
        if let Some(bytes) = &inline {
            work.arguments = Arguments::Inline(bytes);
        }
        let record = WorkItem::encode(&work).unwrap();
        let copy = WorkItem::from_bytes(record.as_bytes()).unwrap();
        prop_assert_eq!(copy.decode(), Ok(work));
    }

    #[test]
    fn words_of_the_counter_are_aligned(offset in any::<u64>(), len in 0_u64..20) {
        let word = Buffer { offset, len, region_len: u64::MAX, ..buffer(2, Rights::ATOMIC) };
        let Some(Counter { add, .. }) = work().counter else { panic!("it has one") };
        let encoded = WorkItem::encode(&Work { counter: Some(Counter { word, add }), ..work() });
        prop_assert_eq!(encoded.is_ok(), len == 8 && offset % 8 == 0 && offset <= u64::MAX - 8);
    }
}
