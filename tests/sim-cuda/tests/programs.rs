//! Kernels of programs, whose text the driver executes.

#[macro_use]
mod common;

use std::ffi::{CString, c_void};

use common::{Session, in_child};

/// `step` adds 1 to each word, no earlier than `nanoseconds` after its start. `opened` waits until a word is not 0, and copies
/// it to the next one. `fault` ends all contexts of its process.
const TEXT: &str = r"
.version 6.3
.target sm_52
.address_size 64
.visible .entry step(
    .param .u64 words, // their address
    .param .u32 count,
    .param .u64 nanoseconds
)
{
    .reg .pred %p<4>;
    .reg .b32 %r<8>;
    .reg .b64 %rd<10>;
    ld.param.u64 %rd1, [words];
    ld.param.u32 %r1, [count];
    ld.param.u64 %rd2, [nanoseconds];
    cvta.to.global.u64 %rd1, %rd1;
    mov.u64 %rd3, %globaltimer;
$again:
    mov.u64 %rd4, %globaltimer;
    sub.s64 %rd4, %rd4, %rd3;
    setp.lt.u64 %p1, %rd4, %rd2;
    @%p1 bra $again;
    mov.u32 %r2, %ctaid.x;
    mov.u32 %r3, %ntid.x;
    mov.u32 %r4, %tid.x;
    mad.lo.s32 %r5, %r2, %r3, %r4;
    setp.ge.u32 %p2, %r5, %r1;
    @%p2 ret;
    mul.wide.u32 %rd5, %r5, 4;
    add.s64 %rd6, %rd1, %rd5;
    ld.global.u32 %r6, [%rd6];
    add.s32 %r6, %r6, 1;
    st.global.u32 [%rd6], %r6;
    ret;
}
.visible .entry opened(.param .u64 words)
{
    .reg .pred %p<2>;
    .reg .b32 %r<2>;
    .reg .b64 %rd<2>;
    ld.param.u64 %rd1, [words];
$closed:
    ld.volatile.global.u32 %r1, [%rd1];
    setp.eq.s32 %p1, %r1, 0;
    @%p1 bra $closed;
    st.global.u32 [%rd1+4], %r1;
    ret;
}
.visible .entry fault()
{
    trap;
    ret;
}
";

const NON_BLOCKING: u32 = 1;

fn module(text: &str) -> (i32, usize) {
    let mut module = 0_usize;
    let text = CString::new(text).expect("no zero");
    (cu!(cuModuleLoadData(&raw mut module, text.as_ptr())), module)
}

fn function(module: usize, name: &str) -> usize {
    let mut function = 0_usize;
    let name = CString::new(name).expect("no zero");
    ok!(cuModuleGetFunction(&raw mut function, module, name.as_ptr()));
    function
}

fn launch(function: usize, blocks: u32, threads: u32, stream: usize, arguments: &mut [*mut c_void]) {
    let none = std::ptr::null_mut::<c_void>();
    let arguments = arguments.as_mut_ptr();
    ok!(cuLaunchKernel(function, blocks, 1_u32, 1_u32, threads, 1_u32, 1_u32, 0_u32, stream, arguments, none));
}

fn words(memory: u64, count: usize) -> Vec<u32> {
    let mut words = vec![0_u32; count];
    ok!(cuMemcpyDtoH_v2(words.as_mut_ptr(), memory, 4 * count));
    words
}

#[test]
fn a_programs_kernel_runs_in_the_order_of_its_stream() {
    let session = Session::begin();
    let (stream, memory) = (session.stream(NON_BLOCKING), session.alloc(4 * 1000));
    let (code, module) = module(TEXT);
    assert_eq!(code, 0);
    let step = function(module, "step");
    ok!(cuMemsetD32Async(memory, 7_u32, 1000_usize, stream));
    let (mut at, mut count, mut nanoseconds) = (memory, 999_u32, 1000_u64);
    for _ in 0..3 {
        let mut arguments = [(&raw mut at).cast::<c_void>(), (&raw mut count).cast(), (&raw mut nanoseconds).cast()];
        launch(step, 8, 128, stream, &mut arguments);
    }
    ok!(cuStreamSynchronize(stream));
    let mut expected = vec![10; 999];
    expected.push(7);
    assert_eq!(words(memory, 1000), expected);
    ok!(cuModuleUnload(module));
    ok!(cuStreamDestroy_v2(stream));
    ok!(cuMemFree_v2(memory));
}

#[test]
fn a_kernel_that_waits_for_memory_gives_way_to_other_streams() {
    let session = Session::begin();
    let (stream, other, memory) = (session.stream(NON_BLOCKING), session.stream(NON_BLOCKING), session.alloc(8));
    let (code, module) = module(TEXT);
    assert_eq!(code, 0);
    ok!(cuMemsetD8_v2(memory, 0_u8, 8_usize));
    ok!(cuStreamSynchronize(0_usize));
    let opened = function(module, "opened");
    let mut at = memory;
    launch(opened, 1, 1, stream, &mut [(&raw mut at).cast()]);
    ok!(cuMemsetD32Async(memory, 5_u32, 1_usize, other));
    ok!(cuStreamSynchronize(stream));
    assert_eq!(words(memory, 2), [5, 5]);
    ok!(cuModuleUnload(module));
    ok!(cuStreamDestroy_v2(stream));
    ok!(cuStreamDestroy_v2(other));
    ok!(cuMemFree_v2(memory));
}

#[test]
fn a_captured_kernel_runs_at_each_launch_of_its_graph() {
    const RELAXED: u32 = 2;
    let session = Session::begin();
    let (stream, memory) = (session.stream(NON_BLOCKING), session.alloc(4));
    let (code, module) = module(TEXT);
    assert_eq!(code, 0);
    ok!(cuMemsetD32Async(memory, 0_u32, 1_usize, stream));
    let (mut graph, mut executable) = (0_usize, 0_usize);
    ok!(cuStreamBeginCapture_v2(stream, RELAXED));
    {
        // The arguments are copied by the call.
        let (mut at, mut count, mut nanoseconds) = (memory, 1_u32, 0_u64);
        let mut arguments = [(&raw mut at).cast::<c_void>(), (&raw mut count).cast(), (&raw mut nanoseconds).cast()];
        launch(function(module, "step"), 1, 1, stream, &mut arguments);
    }
    ok!(cuStreamEndCapture(stream, &raw mut graph));
    ok!(cuGraphInstantiateWithFlags(&raw mut executable, graph, 0_u64));
    for _ in 0..5 {
        ok!(cuGraphLaunch(executable, stream));
    }
    ok!(cuStreamSynchronize(stream));
    assert_eq!(words(memory, 1), [5]);
    ok!(cuGraphExecDestroy(executable));
    ok!(cuGraphDestroy(graph));
    ok!(cuModuleUnload(module));
    ok!(cuStreamDestroy_v2(stream));
    ok!(cuMemFree_v2(memory));
}

#[test]
fn text_that_makes_no_sense_is_refused() {
    let _session = Session::begin();
    for text in ["", "nothing", ".version 6.3\n.visible .entry broken(.param .u64 a) { ld.nonsense.u64 %x, [a]; ret; }"]
    {
        assert_ne!(module(text).0, 0, "{text}");
    }
}

#[test]
fn a_kernel_that_faults_ends_all_contexts_of_the_process() {
    const LAUNCH_FAILED: i32 = 719;
    in_child("a_kernel_that_faults_ends_all_contexts_of_the_process", &[], || {
        let session = Session::begin();
        let (word, mut own) = (session.alloc(4), 0_usize);
        ok!(cuCtxCreate_v2(&raw mut own, 0_u32, 0_i32));
        let (stream, other) = (session.stream(NON_BLOCKING), session.stream(NON_BLOCKING));
        let (code, module) = module(TEXT);
        assert_eq!(code, 0);
        let (mut memory, mut third) = (0_u64, 0_usize);
        launch(function(module, "fault"), 1, 1, stream, &mut []);
        assert_eq!(cu!(cuStreamSynchronize(stream)), LAUNCH_FAILED);
        assert_eq!(cu!(cuStreamQuery(stream)), LAUNCH_FAILED);
        assert_eq!(cu!(cuStreamQuery(other)), LAUNCH_FAILED);
        assert_eq!(cu!(cuMemsetD32Async(word, 2_u32, 1_usize, other)), LAUNCH_FAILED);
        assert_eq!(cu!(cuMemAlloc_v2(&raw mut memory, 64_usize)), LAUNCH_FAILED);
        assert_eq!(cu!(cuCtxSynchronize()), LAUNCH_FAILED);
        // The primary context is current again.
        assert_eq!(cu!(cuCtxPopCurrent_v2(&raw mut own)), 0);
        assert_eq!(cu!(cuStreamCreate(&raw mut third, NON_BLOCKING)), LAUNCH_FAILED);
    });
}
