//! Exposed memory has no references to its bytes.
fn main() {
    let exposed = fulmen_memory::Region::alloc(4096).unwrap().expose().unwrap();
    let bytes: &[u8] = &exposed;
    println!("{bytes:?}");
}
