//! Locks, guarded values and barriers, over each carrier; with processes that are really killed and stopped.

mod sync {
    #[path = "../../../fulmen/tests/carriers/mod.rs"]
    mod carriers;
    mod exclusion;
    mod late;
    mod ranks;
}
