use fulmen_kernels::ReduceOp;

use super::*;
use crate::plan::Order;

fn links() -> Links {
    let text = r#"{"name": "x", "source": "y", "shape": "host", "latency_us": 0, "message_us": 0, "copy_ns": 0, "reduce_ns": 0,
        "mapped": {"ranks": 2, "dtype": "f32", "calls": {"reduce": [[64, 1.0], [256, 1.0], [1024, 4.0], [4096, 64.0]]}}}"#;
    Links::parse("x", text).unwrap()
}

fn reduce(bytes: usize) -> Question {
    let (dtype, op, order) = (DType::F32, ReduceOp::Sum, Order::Ranks);
    Question { operation: Operation::Reduce, ranks: 2, bytes, dtype, op, order }
}

#[test]
fn times_are_those_that_were_measured_and_lie_between_them() {
    let links = links();
    let time = |bytes| predict_mapped(&reduce(bytes), &links).unwrap();
    for (bytes, wanted) in [
        (4, 1.0),
        (64, 1.0),
        (128, 1.0),
        (256, 1.0),
        (512, 2.0),
        (1024, 4.0),
        (2048, 16.0),
        (4096, 64.0),
        (8192, 128.0),
    ] {
        assert!((time(bytes) / wanted - 1.0).abs() < 1e-9, "{bytes} bytes take {}", time(bytes));
    }
    assert!((4..10_000).step_by(4).is_sorted_by_key(time));
}

#[test]
fn nothing_is_said_of_what_was_not_measured() {
    let links = links();
    let good = reduce(64);
    let others = [
        Question { operation: Operation::Scan, ..good },
        Question { ranks: 3, ..good },
        Question { dtype: DType::F16, ..good },
    ];
    assert!(others.iter().all(|other| predict_mapped(other, &links).is_none()));
    assert!(predict_mapped(&good, &Links { mapped: None, ..links }).is_none());
}

#[test]
fn figures_that_make_no_sense_are_refused() {
    let good = links();
    assert_eq!(Links::parse("x", &serde_json::to_string(&good).unwrap()).unwrap(), good);
    for (field, value, words) in [
        ("ranks", serde_json::json!(1), "ranks is 1"),
        ("dtype", serde_json::json!("f33"), "f33"),
        ("calls", serde_json::json!({"reduce": []}), "of reduce: give pairs"),
        ("calls", serde_json::json!({"reduce": [[0, 1]]}), "of reduce: give pairs"),
        ("calls", serde_json::json!({"reduce": [[8, 0]]}), "of reduce: give pairs"),
        ("calls", serde_json::json!({"scan": [[8, 1]], "reduce": [[16, 1], [8, 2]]}), "of reduce: give pairs"),
        ("calls", serde_json::json!({"reduce": [[8, 1], [8, 2]]}), "of reduce: give pairs"),
        ("calls", serde_json::json!({"barrier": [[8, 1]]}), "barrier"),
        ("call_us", serde_json::json!(1), "call_us"),
    ] {
        let mut bad = serde_json::to_value(&good).unwrap();
        bad["mapped"][field] = value;
        let error = Links::parse("a file", &bad.to_string()).unwrap_err().to_string();
        assert!(error.contains(words) && error.contains("a file"), "{error}");
    }
}
