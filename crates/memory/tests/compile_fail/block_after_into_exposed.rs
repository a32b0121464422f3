//! Memory that others may write is no block.
fn main() {
    let region = fulmen_memory::Region::alloc(4096).unwrap();
    let pool = fulmen_memory::Pool::new(&region).unwrap();
    let block = pool.take(64).unwrap();
    let exposed = block.into_exposed();
    println!("{:?} {:?}", block.as_slice::<u8>(), exposed);
}
