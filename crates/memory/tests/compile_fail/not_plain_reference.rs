//! Bytes are no addresses.
fn main() {
    let region = fulmen_memory::Region::alloc(4096).unwrap();
    let block = fulmen_memory::Pool::new(&region).unwrap().take(64).unwrap();
    println!("{:?}", block.as_slice::<&'static u8>());
}
