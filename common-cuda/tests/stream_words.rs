//! Operations of the program's streams on words.

mod common;

use cableway_common_cuda::{
    BufferKind, CopySlot, DeviceBuffer, DeviceError, DeviceIndex, Devices, Element, Holder, ProgramStream,
    ReduceOperation, StreamStep, StreamWords, Vendor, WaitCondition, WordAccess, WordOperation,
};
use common::app::{BLOCKING_STREAM, CAPTURE_THREAD_LOCAL, Handle, LEGACY_STREAM, NON_BLOCKING_STREAM};
use common::{App, app, devices, devices_with, isolated, isolated_each, on_simulated_driver, wait_for_kernels};

fn vendor() -> Vendor {
    match sim_cuda::Vendor::tested() {
        sim_cuda::Vendor::Nvidia => Vendor::Nvidia,
        sim_cuda::Vendor::Amd => Vendor::Amd,
    }
}

/// The test keeps the stream until the end of its process.
fn described(devices: &Devices, stream: Handle) -> Result<ProgramStream, DeviceError> {
    // SAFETY: no test destroys a stream that it still uses.
    unsafe { devices.program_stream(vendor(), stream) }
}

fn started() -> (App, Devices, ProgramStream, StreamWords) {
    let app = app();
    app.use_device(0);
    let devices = devices();
    let stream = described(&devices, app.stream(NON_BLOCKING_STREAM)).unwrap();
    let words = stream.words(4).unwrap();
    (app, devices, stream, words)
}

fn operate(stream: &ProgramStream, operations: &[WordOperation]) {
    // SAFETY: every test waits for its last operation before the words are dropped.
    unsafe { stream.operate(operations) }.unwrap();
}

fn wait_for(words: &StreamWords, index: usize, value: u64) {
    while words.load(index) != value {
        std::hint::spin_loop();
    }
}

/// A value to wait with, a word's content that does not satisfy the condition, and one that does.
const CASES: [(WaitCondition, [u64; 3]); 7] = [
    (WaitCondition::GreaterOrEqual, [7, 6, 7]),
    (WaitCondition::GreaterOrEqual, [7, 6, 9]),
    (WaitCondition::GreaterOrEqual, [2, u64::MAX, 2]),
    (WaitCondition::Equal, [5, 6, 5]),
    (WaitCondition::And, [6, 9, 4]),
    (WaitCondition::Nor, [!6, 6, 2]),
    (WaitCondition::GreaterOrEqual, [u64::MAX, u64::MAX - 1, 3]),
];

#[test]
fn a_stream_waits_for_every_condition() {
    isolated("a_stream_waits_for_every_condition", &[], || {
        let (app, devices, stream, words) = started();
        let other = described(&devices, app.stream(NON_BLOCKING_STREAM)).unwrap();
        for wide in [true, false] {
            for (round, (condition, [value, before, after])) in CASES.into_iter().enumerate() {
                let narrow = |value: u64| if wide { value } else { u64::from(value as u32) };
                words.store(0, narrow(before));
                words.store(1, 0);
                let wait = WordOperation {
                    address: words.device_address(0),
                    value,
                    wide,
                    access: WordAccess::Wait(condition),
                };
                operate(&stream, &[wait]);
                operate(&stream, &[WordOperation::write(words.device_address(1), 1)]);
                // Another stream shows that the device works meanwhile.
                operate(&other, &[WordOperation::write(words.device_address(2), round as u64 + 1)]);
                wait_for(&words, 2, round as u64 + 1);
                assert_eq!(words.load(1), 0, "{condition:?} {wide} passed with {before:#x}");
                words.store(0, narrow(after));
                wait_for(&words, 1, 1);
            }
            words.store(2, 0);
        }
    });
}

#[test]
fn operations_of_one_call_are_made_in_their_order() {
    isolated("operations_of_one_call_are_made_in_their_order", &[], || {
        let (_app, _devices, stream, words) = started();
        let (mine, theirs) = (words.device_address(0), words.device_address(1));
        // More than the driver takes at once: the stream asks, and the CPU answers.
        let turns = 1..=300_u64;
        let turn = |n| [WordOperation::write(theirs, n), WordOperation::wait(mine, n, WaitCondition::Equal)];
        let all: Vec<WordOperation> = turns.clone().flat_map(turn).collect();
        operate(&stream, &all);
        for n in turns {
            wait_for(&words, 1, n);
            words.store(0, n);
        }
        operate(&stream, &[WordOperation::write(theirs, 0)]);
        wait_for(&words, 1, 0);
    });
}

/// Small copies become kernels with the writes beside them, unless kernels may not reach the memory. Copy engines make the
/// copies if the driver refuses to launch a kernel.
#[test]
fn a_small_copy_and_its_words_are_one_launch() {
    const REFUSED: &[(&str, &str)] = &[("SIM_CUDA_FAIL", "cuLaunchKernel:1:20+")];
    isolated_each("a_small_copy_and_its_words_are_one_launch", &[&[], &[], REFUSED], |case| {
        let app = app();
        app.use_device(0);
        let wanted = case == 0 && vendor() == Vendor::Nvidia;
        let devices = devices_with(if case == 1 { &["device_kernels=no"] } else { &[] });
        let stream = described(&devices, app.stream(NON_BLOCKING_STREAM)).unwrap();
        let words = stream.words(5).unwrap();
        let at = |index| words.device_address(index);
        const LEN: usize = 64 << 10;
        for (len, by_kernel) in [
            (1, true),
            (4099, true),
            (LEN, true),
            (LEN + 1, true),
            (LEN * 16, true),
            (LEN * 16 + 1, true),
            (100, false),
        ] {
            let (from, to) = (app.malloc(len), app.malloc(len));
            let data: Vec<u8> = (0..len).map(|i| (i * 7 + i / 251) as u8).collect();
            app.upload(from, &data);
            // The stream does not wait for the default stream.
            app.cuStreamSynchronize(0).unwrap();
            (0..5).for_each(|index| words.store(index, if index == 0 { 1 } else { 9 }));
            let slot = stream.copy_slot();
            assert_eq!(slot.is_some(), vendor() == Vendor::Nvidia);
            let copy = StreamStep::Copy {
                dst: std::ptr::with_exposed_provenance_mut(to as usize),
                src: std::ptr::with_exposed_provenance(from as usize),
                len,
                by_kernel: slot.as_ref().map(CopySlot::number).filter(|_| by_kernel),
            };
            let steps = [
                StreamStep::Word(WordOperation::wait(at(0), 1, WaitCondition::Equal)),
                StreamStep::Clear(at(0)),
                copy,
                StreamStep::Word(WordOperation::write(at(1), 1)),
                StreamStep::Word(WordOperation::write(at(2), 2)),
                StreamStep::Word(WordOperation::write(at(3), 3)),
                // The last copy has no words behind it.
                copy,
            ];
            let launches = || app.calls(c"cuLaunchKernel");
            let before = launches();
            // SAFETY: the words and buffers outlive the stream's work.
            unsafe { stream.enqueue(&steps) }.unwrap();
            wait_for(&words, 3, 3);
            assert_eq!((words.load(0), words.load(1), words.load(2), words.load(4)), (0, 1, 2, 9));
            app.cuStreamSynchronize(stream.handle() as Handle).unwrap();
            assert!(app.download(to, len) == data, "{len} bytes");
            if let (0 | 1, Some(before), Some(after)) = (case, before, launches()) {
                let expected = i64::from(wanted && by_kernel && len <= LEN * 16);
                assert_eq!(after - before, expected, "{len} bytes, {by_kernel}");
            }
        }
    });
}

#[test]
fn streams_of_every_kind_and_context_are_accepted() {
    isolated("streams_of_every_kind_and_context_are_accepted", &[], || {
        let app = app();
        app.use_device(0);
        let devices = devices();
        let mut streams = vec![LEGACY_STREAM, app.stream(BLOCKING_STREAM), app.stream(NON_BLOCKING_STREAM)];
        if vendor() == Vendor::Amd {
            // The default stream's handle there.
            streams[0] = 0;
        } else {
            let primary = app.current();
            app.create_context(0);
            streams.push(app.stream(NON_BLOCKING_STREAM));
            // The last stream's context is not current from here on.
            app.cuCtxSetCurrent(primary).unwrap();
        }
        for handle in streams {
            let stream = described(&devices, handle).unwrap();
            assert_eq!(stream.handle(), handle);
            assert!(stream.goes_on() && stream.check().is_ok());
            let words = stream.words(1).unwrap();
            operate(&stream, &[WordOperation::write(words.device_address(0), 9)]);
            wait_for(&words, 0, 9);
        }
    });
}

#[test]
fn a_driver_without_the_operations_is_an_error_that_says_what_to_do() {
    let test = "a_driver_without_the_operations_is_an_error_that_says_what_to_do";
    if !on_simulated_driver(test) || vendor() == Vendor::Amd {
        return;
    }
    const CASES: [&[(&str, &str)]; 2] =
        [&[("SIM_CUDA_MISSING", "cuStreamBatchMemOp")], &[("SIM_CUDA_VERSION", "11060")]];
    isolated_each(test, &CASES, |_| {
        let app = app();
        app.use_device(0);
        let devices = devices();
        let error = described(&devices, app.stream(NON_BLOCKING_STREAM)).err().unwrap().to_string();
        assert!(error.contains("NVreg_EnableStreamMemOPs=1"), "{error}");
        let facts = devices.facts().unwrap();
        let reason = facts.devices[0].stream_operations.clone().unwrap_err();
        assert!(error.contains(&reason), "{reason}");
    });
}

#[test]
fn a_driver_with_the_operations_says_so() {
    let devices = devices();
    assert_eq!(devices.facts().unwrap().devices[0].stream_operations, Ok(()));
}

#[test]
fn a_stream_that_captures_is_refused_and_its_capture_goes_on() {
    isolated("a_stream_that_captures_is_refused_and_its_capture_goes_on", &[], || {
        let (app, devices, _, words) = started();
        let handle = app.stream(NON_BLOCKING_STREAM);
        let stream = described(&devices, handle).unwrap();
        app.cuStreamBeginCapture(handle, CAPTURE_THREAD_LOCAL).unwrap();
        // SAFETY: nothing is added to the stream.
        let refused = unsafe { stream.operate(&[WordOperation::write(words.device_address(0), 1)]) };
        let error = refused.err().unwrap().to_string();
        assert!(error.contains("captures a graph"), "{error}");
        let mut graph = 0;
        app.cuStreamEndCapture(handle, &raw mut graph).unwrap();
        app.cuGraphDestroy(graph).unwrap();
        operate(&stream, &[WordOperation::write(words.device_address(0), 2)]);
        wait_for(&words, 0, 2);
    });
}

/// A driver loads kernels only after it has waited for the streams of the context. So nothing is loaded while a stream may
/// wait for this process.
#[test]
fn no_kernels_are_loaded_while_a_stream_waits() {
    isolated("no_kernels_are_loaded_while_a_stream_waits", &[], || {
        let (app, devices, stream, words) = started();
        let buffer = DeviceBuffer::new(&devices, DeviceIndex(0), BufferKind::Device, 64).unwrap();
        let at = buffer.location();
        let held = devices.hold_mappings(Holder::of(&devices));
        let access = WordAccess::Wait(WaitCondition::GreaterOrEqual);
        operate(&stream, &[WordOperation { address: words.device_address(0), value: 1, wide: true, access }]);
        assert!(!devices.can_reduce(&at, ReduceOperation::Sum, Element::I32), "loading is held off");
        stream.load_collectives();
        words.store(0, 1);
        // The default stream has the event that stands for the calls on the new buffer.
        for stream in [stream.handle() as Handle, LEGACY_STREAM] {
            app.cuStreamSynchronize(stream).unwrap();
        }
        assert!(!devices.can_reduce(&at, ReduceOperation::Sum, Element::I32), "loading is held off");
        let allowed = devices.allow_mappings(Holder::of(&devices));
        stream.load_collectives();
        drop(allowed);
        // Each class has kernels of its own.
        for operation in [ReduceOperation::Sum, ReduceOperation::BitOr] {
            assert!(devices.can_reduce(&at, operation, Element::I32));
        }
        drop(held);
    });
}

/// A kernel copies as many bytes as have arrived when the stream gets there, and at most the room.
#[test]
fn what_has_arrived_is_copied() {
    isolated("what_has_arrived_is_copied", &[], || {
        let (app, devices, stream, _) = started();
        const ROOM: usize = 8 << 10;
        const BEHIND: usize = 32;
        // The word that the stream waits for, the number of bytes, the word behind the copy, and the data.
        let words = stream.words(BEHIND + ROOM / 8).unwrap();
        if vendor() != Vendor::Nvidia {
            return assert!(!stream.copies_by_kernel());
        }
        let room = app.malloc(ROOM + 16);
        wait_for_kernels(|| devices.kernels(&devices.classify(std::ptr::without_provenance(room as usize), 1)));
        assert!(stream.copies_by_kernel());
        let slot = stream.copy_slot().unwrap();
        for (turn, arrived) in [0, 1, 8, 511, 4097, ROOM - 1, ROOM, ROOM + 1].into_iter().enumerate() {
            let number = turn as u64 + 1;
            app.upload(room, &[0xCC; ROOM + 16]);
            let steps = [
                StreamStep::Word(WordOperation::wait(words.device_address(0), number, WaitCondition::GreaterOrEqual)),
                StreamStep::CopyArrived {
                    dst: std::ptr::without_provenance_mut((room as usize) + turn),
                    src: std::ptr::without_provenance(words.device_address(BEHIND) as usize),
                    most: ROOM,
                    arrived: words.device_address(1),
                    slot: slot.number(),
                },
                StreamStep::Word(WordOperation::write(words.device_address(2), number)),
            ];
            // SAFETY: the words, the room and the slot live until the stream has passed the steps.
            unsafe { stream.enqueue(&steps) }.unwrap();
            let data: Vec<u8> = (0..ROOM).map(|i| (i * 13 + turn) as u8).collect();
            for (word, bytes) in data.chunks(8).enumerate() {
                words.store(BEHIND + word, u64::from_ne_bytes(bytes.try_into().unwrap()));
            }
            words.store(1, arrived as u64);
            words.store(0, number);
            wait_for(&words, 2, number);
            assert_eq!(words.load(1), 0);
            let mut expected = vec![0xCC; ROOM + 16];
            let copied = arrived.min(ROOM);
            expected[turn..turn + copied].copy_from_slice(&data[..copied]);
            assert!(app.download(room, ROOM + 16) == expected, "{arrived} bytes have arrived");
        }
    });
}
