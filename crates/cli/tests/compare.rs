//! The comparison benchmark's own arithmetic: reading records, sizes, medians of ratios, the table.

#[path = "../benches/compare/case.rs"]
mod case;
#[path = "../benches/compare/record.rs"]
mod record;
#[path = "../benches/compare/table.rs"]
mod table;

use case::{Memory, Op, format_size, parse_size};
use table::{Measured, Spread};

const LINE: &str = r#"{"op":"all-reduce","bytes":65536,"ranks":2,"dtype":"f32","memory":"registered","samples":900,"min_us":1.2,"p50_us":1.5,"p99_us":9,"algbw_GBps":43.7,"busbw_GBps":43.7,"wrong":0}"#;

#[test]
fn records_are_read_and_remarks_are_not() {
    let records = record::parse(&format!("a launcher's remark\n{LINE}\n\n  {LINE}\n")).expect("two records");
    assert_eq!(records.len(), 2);
    let record = &records[0];
    assert_eq!((record.op.as_str(), record.bytes, record.ranks, record.samples), ("all-reduce", 65536, 2, 900));
    assert_eq!((record.dtype.as_str(), record.memory.as_str(), record.wrong), ("f32", "registered", 0));
    assert_eq!((record.min_us, record.p50_us, record.p99_us), (1.2, 1.5, 9.0));
    assert_eq!((record.algbw_gbps, record.busbw_gbps), (43.7, 43.7));
    let written = serde_json::to_string(record).expect("serializable");
    assert_eq!(record::parse(&written).expect("own output"), records[..1]);
}

#[test]
fn a_record_may_tell_more_than_is_asked() {
    let more = LINE.replace("\"ranks\"", "\"profile\":\"infiniband\",\"ranks\"");
    assert_eq!(record::parse(&more).expect("readable"), record::parse(LINE).expect("readable"));
}

#[test]
fn what_cannot_be_compared_is_an_error() {
    for (broken, why) in [
        (LINE.replace("\"wrong\":0", "\"wrong\":3"), "3 wrong elements"),
        (LINE.replace("\"p50_us\":1.5", "\"p50_us\":0"), "no usable median"),
        (LINE.replace("\"p50_us\":1.5,", ""), "unreadable record"),
        (LINE.replace("65536", "\"64K\""), "unreadable record"),
    ] {
        let error = record::parse(&broken).expect_err("refused");
        assert!(error.contains(why), "{error}");
    }
}

#[test]
fn sizes_are_read_and_written() {
    assert_eq!(
        ["8", "4K", "64k", "16M", "1G"].map(|text| parse_size(text).expect("a size")),
        [8, 4096, 65536, 16 << 20, 1 << 30]
    );
    for text in ["", "K", "-1", "1T", "99999999999G", "2G", "1.5K"] {
        assert!(parse_size(text).expect_err("no size").contains(text));
    }
    assert_eq!([0, 8, 65536, 3 << 20].map(format_size), ["–", "8 B", "64 KiB", "3 MiB"]);
}

#[test]
fn each_operation_has_the_sizes_that_divide() {
    let asked = [4, 6, 8, 24, 64];
    assert_eq!(Op::P2p.sizes(&asked, 2), [4, 8, 24, 64]);
    assert_eq!(Op::AllReduce.sizes(&[0, 8], 3), [8]);
    assert_eq!(Op::AllGather.sizes(&asked, 2), [8, 24, 64]);
    assert_eq!(Op::ReduceScatter.sizes(&asked, 3), [24]);
    assert_eq!(Op::Barrier.sizes(&asked, 2), [0]);
    assert_eq!(Op::Put.sizes(&asked, 2), [4, 8, 24, 64]);
    assert_eq!(Op::FetchAdd.sizes(&asked, 2), [8]);
}

#[test]
fn names_are_read_back() {
    for op in Op::ALL {
        assert_eq!(op.to_string().parse(), Ok(op));
    }
    assert_eq!(Op::ALL.into_iter().filter(|op| op.is_one_sided()).count(), 5);
    for memory in [Memory::Registered, Memory::Plain] {
        assert_eq!(memory.to_string().parse(), Ok(memory));
    }
    assert!("allreduce".parse::<Op>().expect_err("unknown").contains("all-reduce"));
    assert!("pinned".parse::<Memory>().expect_err("unknown").contains("registered"));
}

#[test]
fn a_spread_is_the_median_between_its_ends() {
    assert_eq!(Spread::of([]), None);
    assert_eq!(Spread::of([3.0, 1.0, 9.0]), Some(Spread { median: 3.0, least: 1.0, greatest: 9.0 }));
    assert_eq!(Spread::of([4.0, 2.0]), Some(Spread { median: 3.0, least: 2.0, greatest: 4.0 }));
}

fn measured(placement: &'static str, bytes: usize, times: [Option<f64>; 3]) -> Measured {
    Measured { op: Op::AllReduce, memory: Memory::Registered, bytes, placement, times: times.to_vec() }
}

#[test]
fn ratios_are_of_rounds_and_not_of_medians() {
    let names = ["floor", "Fulmen", "OpenMPI"].map(String::from);
    // The far round is slower for everyone: the ratio of medians would say 2 / 4.
    let rounds = [
        measured("near", 8, [Some(1.0), Some(2.0), Some(4.0)]),
        measured("far", 8, [Some(4.0), Some(6.0), None]),
        measured("near", 8, [Some(1.0), Some(2.0), Some(8.0)]),
        measured("near", 4096, [Some(1.0), Some(2.0), None]),
    ];
    let rows = table::rows(&names, &rounds);
    assert_eq!(rows.len(), 2);
    let ratio = |cell: usize| rows[0].cells[cell].ratio;
    assert_eq!(ratio(0), Some(Spread { median: 2.0, least: 1.5, greatest: 2.0 }));
    assert_eq!(ratio(1), None);
    assert_eq!(ratio(2), Some(Spread { median: 0.375, least: 0.25, greatest: 0.5 }));
    assert_eq!(rows[1].cells[2].time, None);

    let text = table::markdown(&names, &rows);
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(
        lines[0],
        "| operation | memory | size | floor µs | Fulmen / floor | Fulmen µs | OpenMPI µs | Fulmen / OpenMPI | rounds |"
    );
    assert_eq!(
        lines[2],
        "| all-reduce | registered | 8 B | 1.000 | **2.00** (1.50–2.00) | 2.000 | 6.000 | **0.38** (0.25–0.50) | far 1, near 2 |"
    );
    assert!(lines[3].contains("| – | – | near 1 |"), "{}", lines[3]);
    let columns = |line: &str| line.matches('|').count();
    assert!(lines.iter().all(|line| columns(line) == columns(lines[0])), "{text}");

    let json: serde_json::Value = serde_json::from_str(&rows[0].json()).expect("JSON");
    assert_eq!(
        (&json["op"], &json["bytes"], &json["placements"]["near"]),
        (&"all-reduce".into(), &8.into(), &2.into())
    );
    assert_eq!(json["contenders"][2]["fulmen_ratio"]["median"], 0.375);
    assert!(json["contenders"][1]["fulmen_ratio"].is_null());
}

#[test]
fn without_fulmen_there_are_times_alone() {
    let names = ["floor", "OpenMPI", "MPICH"].map(String::from);
    let rows = table::rows(&names, &[measured("near", 8, [Some(12.34), Some(123.4), Some(0.05)])]);
    let text = table::markdown(&names, &rows);
    assert!(text.starts_with("| operation | memory | size | floor µs | OpenMPI µs | MPICH µs | rounds |\n"), "{text}");
    assert!(text.ends_with("| all-reduce | registered | 8 B | 12.3 | 123 | 0.050 | near 1 |\n"), "{text}");
}

#[test]
fn each_operation_has_its_peers() {
    // Either MPI libraries have it, or UCX; the floor is for some of the former.
    assert!(Op::ALL.iter().all(|op| !(op.has_floor() && op.is_one_sided())));
    assert_eq!(Op::ALL.iter().filter(|op| op.has_floor()).count(), 6);
}
