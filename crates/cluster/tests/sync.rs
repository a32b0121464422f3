//! Locks, guarded values and barriers, over each carrier; with processes that are really killed and stopped.

mod sync {
    mod exclusion;
    mod late;
    mod ranks;
}
