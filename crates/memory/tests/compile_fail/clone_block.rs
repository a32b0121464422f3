//! A block is exclusive.
fn main() {
    let region = fulmen_memory::Region::alloc(4096).unwrap();
    let pool = fulmen_memory::Pool::new(&region).unwrap();
    let block = pool.take(64).unwrap();
    let _second: fulmen_memory::Block = block.clone();
}
