//! Objects that are unloaded while calls are redirected. The test needs its own process: no other thread may map memory
//! where an object was.

mod support;

use support::names::{names, ours};

/// Memory of an unloaded object may belong to another owner later, even if it looks like a redirected slot.
#[test]
fn unloaded_objects_are_not_touched() {
    let names = names!(c"unloaded", c"punloaded");
    let objects = names.objects();
    let library = objects.library();
    let redirection = names.redirection(&library);
    let caller = objects.caller("caller", &["-Wl,-z,now"], &library).load(libc::RTLD_NOW);
    let data = caller.address("in_data");
    redirection.begin().expect("redirected");
    caller.unload();

    const PAGE: usize = 4096;
    let page = data.map_addr(|address| address & !(PAGE - 1)).cast_mut();
    let (rights, kind) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: new memory, at an address where none is.
    let words = unsafe {
        let mapped = libc::mmap(page, PAGE, rights, kind | libc::MAP_FIXED_NOREPLACE, -1, 0);
        assert_eq!(mapped, page, "the object is still there");
        std::slice::from_raw_parts_mut(mapped.cast::<usize>(), PAGE / size_of::<usize>())
    };
    words.fill(ours as *const () as usize);
    redirection.end().expect("restored");
    assert!(words.iter().all(|&word| word == ours as *const () as usize));
    // SAFETY: mapped above.
    unsafe { libc::munmap(page, PAGE) };
}
