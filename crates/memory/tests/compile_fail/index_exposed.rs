//! Exposed memory has no references to its bytes.
fn main() {
    let exposed = fulmen_memory::Region::alloc(4096).unwrap().expose().unwrap();
    let byte: &u8 = &exposed[0];
    println!("{byte}");
}
