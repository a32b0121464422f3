//! No reader beside a writer.
fn main() {
    let region = fulmen_memory::Region::alloc(4096).unwrap();
    let pool = fulmen_memory::Pool::new(&region).unwrap();
    let mut block = pool.take(64).unwrap();
    let reader: &[u8] = block.as_slice();
    let writer: &mut [u8] = block.as_mut_slice();
    writer[0] = reader[1];
}
