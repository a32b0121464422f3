//! Whoever adopts memory answers for it.
fn main() {
    let start = std::ptr::NonNull::dangling();
    let _region = fulmen_memory::Region::adopt(start, 4096, Box::new(()));
}
