//! Redirected calls of objects that are linked in every way, loaded before and after, or unloaded, with profiling tools
//! and with other threads.
//!
//! The objects are C files that the tests build with `cc`. Every test has its own function names, because the objects
//! of all tests may be in one process.

mod support;

use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicBool, Ordering};

use cableway_ompi_intercept::patch::Redirection;
use support::names::{Names, OURS, THEIRS, names, ours};
use support::{Loaded, rights};

/// Every way in which a caller stores a function's address.
const CALLS: [&str; 4] = ["call", "call_other_name", "call_by_data", "call_by_constant"];

#[test]
fn callers_linked_in_every_way_are_redirected_and_restored() {
    let names = names!(c"linked", c"plinked");
    let objects = names.objects();
    let library = objects.library();
    let kinds: [(&str, &[&str]); 5] = [
        ("lazy", &["-Wl,-z,lazy", "-Wl,-z,norelro"]),
        ("lazy_relro", &["-Wl,-z,lazy", "-Wl,-z,relro"]),
        ("full_relro", &["-Wl,-z,now", "-Wl,-z,relro"]),
        ("without_plt", &["-fno-plt", "-Wl,-z,now", "-Wl,-z,relro"]),
        ("older_hash", &["-Wl,--hash-style=sysv"]),
    ];
    let redirection = names.redirection(&library);
    for (kind, flags) in kinds {
        let built = objects.caller(kind, flags, &library);
        // Bound by a first call, or not bound yet.
        for bound in [false, true] {
            let caller = built.load(libc::RTLD_LAZY);
            let answers = || CALLS.map(|call| caller.call(call));
            if bound {
                assert_eq!(answers(), [THEIRS; 4], "{kind}");
            }
            let before = [rights(&library.path), rights(&built.path)];
            assert!(!before.iter().any(Vec::is_empty));

            let changed = redirection.begin().expect("redirected");
            assert!(changed.failure.is_none() && changed.symbols == 2, "{kind}: {changed:?}");
            assert_eq!(answers(), [OURS; 4], "{kind}");
            assert_eq!(before, [rights(&library.path), rights(&built.path)], "{kind}");

            let changed = redirection.end().expect("restored");
            assert!(changed.failure.is_none() && changed.symbols == 2 && changed.slots >= 4, "{kind}: {changed:?}");
            assert_eq!(answers(), [THEIRS; 4], "{kind}");
            assert_eq!(before, [rights(&library.path), rights(&built.path)], "{kind}");
        }
    }
}

#[test]
fn a_library_with_the_older_hash_table_is_supported() {
    let names = names!(c"older", c"polder");
    let objects = names.objects();
    let library = objects.library_with(&["-Wl,--hash-style=sysv"]);
    let caller = objects.caller("caller", &[], &library).load(libc::RTLD_NOW);
    let redirection = names.redirection(&library);
    redirection.begin().expect("redirected");
    assert_eq!(caller.call("call"), OURS);
    redirection.end().expect("restored");
    assert_eq!(caller.call("call"), THEIRS);
}

#[test]
fn replacements_receive_the_original_function() {
    let names = names!(c"told", c"ptold");
    let objects = names.objects();
    let library = objects.library();
    let redirection = names.redirection(&library);
    redirection.begin().expect("redirected");
    for call in &names.calls {
        // SAFETY: the function that the library was built with.
        let next: extern "C" fn() -> c_int = unsafe { std::mem::transmute(call.next.address()) };
        assert_eq!(next(), THEIRS);
    }
    redirection.end().expect("restored");
}

/// An object loads another by a bare name, which only its own RUNPATH finds.
#[test]
fn objects_loaded_later_are_redirected_and_found_by_runpath() {
    let names = names!(c"later", c"plater");
    let objects = names.objects();
    let library = objects.library();
    let redirection = names.redirection(&library);
    let loader = objects.loader("plugins").load(libc::RTLD_NOW);
    for (plugin, flags) in [("lazy", ["-Wl,-z,lazy"]), ("now", ["-Wl,-z,now"])] {
        let built = objects.caller_in("plugins", plugin, &flags, &library);
        redirection.begin().expect("redirected");
        let caller = Loaded::by(&loader, built.path.file_name().expect("a file"));
        assert_eq!(CALLS.map(|call| caller.call(call)), [OURS; 4], "{plugin}");
        let changed = redirection.end().expect("restored");
        assert!(changed.slots >= 4, "{plugin}: {changed:?}");
        assert_eq!(CALLS.map(|call| caller.call(call)), [THEIRS; 4], "{plugin}");
    }
}

#[test]
fn looked_up_functions_are_the_replacements() {
    let names = names!(c"looked_up", c"plooked_up");
    let objects = names.objects();
    let library = objects.library();
    let redirection = names.redirection(&library);
    let loaded = library.load(libc::RTLD_LAZY);
    let theirs = loaded.address("looked_up");
    redirection.begin().expect("redirected");
    assert_eq!(loaded.address("looked_up").addr(), ours as *const () as usize);
    redirection.end().expect("restored");
    assert_eq!(loaded.address("looked_up"), theirs);
}

/// A tool defines the function under its first name and calls the library under the second, as in MPI's profiling
/// interface.
fn a_tool_still_sees_its_calls(names: &'static Names, binding: &str) {
    let objects = names.objects();
    let library = objects.library();
    let tool = objects.tool("tool", &[binding], &library).load(libc::RTLD_LAZY | libc::RTLD_GLOBAL);
    let before = objects.caller("before", &[binding], &library).load(libc::RTLD_LAZY);
    let later = objects.caller("later", &[binding], &library);
    let redirection = names.redirection(&library);
    redirection.begin().expect("redirected");
    let later = later.load(libc::RTLD_LAZY);
    assert_eq!([before.call("call"), later.call("call")], [OURS; 2]);
    assert_eq!(tool.call("seen"), 2);
    redirection.end().expect("restored");
    assert_eq!([before.call("call"), later.call("call")], [THEIRS; 2]);
    assert_eq!(tool.call("seen"), 4);
}

#[test]
fn a_tool_that_is_bound_lazily_still_sees_its_calls() {
    a_tool_still_sees_its_calls(names!(c"profiled_lazily", c"pprofiled_lazily"), "-Wl,-z,lazy");
}

#[test]
fn a_tool_that_is_bound_at_once_still_sees_its_calls() {
    a_tool_still_sees_its_calls(names!(c"profiled_now", c"pprofiled_now"), "-Wl,-z,now");
}

/// Another tool has made pages writable and may write to them again, so they must stay writable.
#[test]
fn writable_pages_stay_writable() {
    let names = names!(c"opened", c"popened");
    let objects = names.objects();
    let library = objects.library();
    let redirection = names.redirection(&library);
    let built = objects.caller("caller", &["-Wl,-z,now", "-Wl,-z,relro"], &library);
    let caller = built.load(libc::RTLD_NOW);
    let constant = caller.address("constant");
    const PAGE: usize = 4096;
    let page = constant.map_addr(|address| address & !(PAGE - 1)).cast_mut();
    // SAFETY: a page of the object's.
    assert_eq!(unsafe { libc::mprotect(page, PAGE, libc::PROT_READ | libc::PROT_WRITE) }, 0);
    let before = rights(&built.path);
    redirection.begin().expect("redirected");
    assert_eq!(caller.call("call_by_constant"), OURS);
    assert_eq!(rights(&built.path), before);
    redirection.end().expect("restored");
    assert_eq!(rights(&built.path), before);
}

#[test]
fn other_namespaces_are_left_alone() {
    let names = names!(c"namespace", c"pnamespace");
    let objects = names.objects();
    let library = objects.library();
    let redirection = names.redirection(&library);
    let built = objects.caller("caller", &["-Wl,-z,now"], &library);
    let here = built.load(libc::RTLD_NOW);
    let elsewhere = built.load_into_new_namespace();
    redirection.begin().expect("redirected");
    assert_eq!((here.call("call"), elsewhere.call("call")), (OURS, THEIRS));
    redirection.end().expect("restored");
    assert_eq!((here.call("call"), elsewhere.call("call")), (THEIRS, THEIRS));
}

#[test]
fn other_threads_may_call_and_load_objects_meanwhile() {
    let names = names!(c"threads", c"pthreads");
    let objects = names.objects();
    let library = objects.library();
    let redirection = names.redirection(&library);
    let caller = objects.caller("caller", &["-Wl,-z,now"], &library).load(libc::RTLD_NOW);
    let coming_and_going = objects.caller("coming_and_going", &["-Wl,-z,now", "-Wl,-z,relro"], &library);
    let done = AtomicBool::new(false);
    struct Done<'a>(&'a AtomicBool);
    impl Drop for Done<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }
    let both = |answer: c_int| assert!(answer == OURS || answer == THEIRS, "{answer}");
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                CALLS.iter().for_each(|call| both(caller.call(call)));
            }
        });
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                let loaded = coming_and_going.load(libc::RTLD_NOW);
                CALLS.iter().for_each(|call| both(loaded.call(call)));
                loaded.unload();
            }
        });
        // Stop the threads even if a check fails; otherwise they would run forever.
        let _done = Done(&done);
        for _ in 0..200 {
            redirection.begin().expect("redirected");
            assert_eq!(caller.call("call"), OURS);
            let loaded = coming_and_going.load(libc::RTLD_NOW);
            assert_eq!(CALLS.map(|call| loaded.call(call)), [OURS; 4]);
            redirection.end().expect("restored");
            assert_eq!(CALLS.map(|call| loaded.call(call)), [THEIRS; 4]);
            loaded.unload();
        }
    });
}

#[test]
fn an_address_outside_all_objects_is_refused() {
    let names = names!(c"nowhere", c"pnowhere");
    let nowhere: *const c_void = std::ptr::without_provenance(16);
    // SAFETY: there is no such library.
    let error = unsafe { Redirection::new(nowhere, &names.calls) }.unwrap_err();
    assert_eq!(error.to_string(), "no loaded object holds the address 0x10");
}
