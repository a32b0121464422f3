//! One writer at a time.
fn main() {
    let region = fulmen_memory::Region::alloc(4096).unwrap();
    let pool = fulmen_memory::Pool::new(&region).unwrap();
    let mut block = pool.take(64).unwrap();
    let first: &mut [u8] = block.as_mut_slice();
    let second: &mut [u8] = block.as_mut_slice();
    first[0] = second[0];
}
