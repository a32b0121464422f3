//! The budget under every interleaving: `RUSTFLAGS="--cfg loom" cargo test -p fulmen-verbs --test loom_budget`.
#![cfg(loom)]

use fulmen_verbs::Budget;

#[test]
fn never_more_than_allowed() {
    loom::model(|| {
        let budget = Budget::new("model", "queue pairs", 1);
        let other = budget.clone();
        let thread = loom::thread::spawn(move || other.take().is_ok_and(|_claim| other.used() == 1));
        let held = budget.take();
        assert!(budget.used() <= 1);
        let won = held.is_ok();
        drop(held);
        let other_won = thread.join().expect("it does not panic");
        assert!(won || other_won, "one of them gets it");
        assert_eq!(budget.used(), 0);
    });
}
