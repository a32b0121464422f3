//! A block that is being read cannot be exposed.
fn main() {
    let region = fulmen_memory::Region::alloc(4096).unwrap();
    let pool = fulmen_memory::Pool::new(&region).unwrap();
    let block = pool.take(64).unwrap();
    let slice: &[u8] = block.as_slice();
    let exposed = block.into_exposed();
    println!("{slice:?} {exposed:?}");
}
