//! An atomic keeps the memory in which it lies.
fn main() {
    let exposed = fulmen_memory::Region::alloc(4096).unwrap().expose().unwrap();
    let word = exposed.atomic_u64(0);
    drop(exposed);
    println!("{word:?}");
}
