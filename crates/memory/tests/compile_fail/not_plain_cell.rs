//! A shared slice must not be written, also not by cells.
fn main() {
    let region = fulmen_memory::Region::alloc(4096).unwrap();
    let block = fulmen_memory::Pool::new(&region).unwrap().take(64).unwrap();
    block.as_slice::<std::cell::Cell<u8>>()[0].set(1);
}
