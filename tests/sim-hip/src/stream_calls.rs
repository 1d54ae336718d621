//! Streams, events, captures and kernels.

use std::ffi::{c_int, c_uint, c_void};

use crate::abi::{Address, In, InOut, Out, Text};
use crate::capture::{self, cuStreamIsCapturing, cuThreadExchangeStreamCaptureMode};
use crate::code;
use crate::entry::{hip_api, through};
use crate::error::Error;
use crate::event::{cuEventCreate, cuEventDestroy_v2, cuEventQuery, cuEventRecord, cuStreamWaitEvent};
use crate::graph_calls;
use crate::kernels::{self, cuLaunchKernel, cuModuleGetFunction, cuModuleUnload};
use crate::memops::{cuStreamWaitValue32_v2, cuStreamWaitValue64_v2, cuStreamWriteValue32_v2, cuStreamWriteValue64_v2};
use crate::stream::{self, cuStreamDestroy_v2, cuStreamQuery, cuStreamSynchronize};

hip_api! {
    fn hipStreamCreateWithFlags(stream: Out<usize>, flags: c_uint) {
        through!(stream::cuStreamCreate, stream, flags)
    }

    fn hipStreamCreateWithPriority(stream: Out<usize>, flags: c_uint, priority: c_int) {
        through!(stream::cuStreamCreateWithPriority, stream, flags, priority)
    }

    fn hipDeviceGetStreamPriorityRange(least: Out<c_int>, greatest: Out<c_int>) {
        through!(crate::context_calls::cuCtxGetStreamPriorityRange, least, greatest)
    }

    fn hipStreamDestroy(stream: usize) {
        through!(cuStreamDestroy_v2, stream)
    }

    fn hipStreamQuery(stream: usize) {
        through!(cuStreamQuery, stream)
    }

    fn hipStreamSynchronize(stream: usize) {
        through!(cuStreamSynchronize, stream)
    }

    fn hipStreamWaitEvent(stream: usize, event: usize, flags: c_uint) {
        through!(cuStreamWaitEvent, stream, event, flags)
    }

    fn hipStreamWriteValue32(stream: usize, address: Address, value: u32, flags: c_uint) {
        through!(cuStreamWriteValue32_v2, stream, address, value, flags)
    }

    fn hipStreamWriteValue64(stream: usize, address: Address, value: u64, flags: c_uint) {
        through!(cuStreamWriteValue64_v2, stream, address, value, flags)
    }

    fn hipStreamWaitValue32(stream: usize, address: Address, value: u32, flags: c_uint, mask: u32) {
        if mask != u32::MAX {
            return Err(Error::NOT_SUPPORTED);
        }
        through!(cuStreamWaitValue32_v2, stream, address, value, flags)
    }

    fn hipStreamWaitValue64(stream: usize, address: Address, value: u64, flags: c_uint, mask: u64) {
        if mask != u64::MAX {
            return Err(Error::NOT_SUPPORTED);
        }
        through!(cuStreamWaitValue64_v2, stream, address, value, flags)
    }

    fn hipStreamGetDevice(stream: usize, device: Out<c_int>) {
        through!(stream::cuStreamGetDevice, stream, device)
    }

    fn hipStreamIsCapturing(stream: usize, capturing: Out<c_uint>) {
        through!(cuStreamIsCapturing, stream, capturing)
    }

    fn hipStreamBeginCapture(stream: usize, mode: c_int) {
        through!(capture::cuStreamBeginCapture_v2, stream, mode)
    }

    fn hipStreamEndCapture(stream: usize, graph: Out<usize>) {
        through!(capture::cuStreamEndCapture, stream, graph)
    }

    fn hipGraphDestroy(graph: usize) {
        through!(graph_calls::cuGraphDestroy, graph)
    }

    fn hipThreadExchangeStreamCaptureMode(mode: InOut<c_int>) {
        through!(cuThreadExchangeStreamCaptureMode, mode)
    }

    fn hipEventCreateWithFlags(event: Out<usize>, flags: c_uint) {
        through!(cuEventCreate, event, flags)
    }

    fn hipEventDestroy(event: usize) {
        through!(cuEventDestroy_v2, event)
    }

    fn hipEventRecord(event: usize, stream: usize) {
        through!(cuEventRecord, event, stream)
    }

    fn hipEventQuery(event: usize) {
        through!(cuEventQuery, event)
    }

    fn hipModuleLoadData(module: Out<usize>, image: In<u8>) {
        crate::current::enter()?;
        module.set(kernels::insert_module(code::entries(&image)?)?)
    }

    fn hipModuleUnload(module: usize) {
        through!(cuModuleUnload, module)
    }

    fn hipModuleGetFunction(function: Out<usize>, module: usize, name: Text) {
        through!(cuModuleGetFunction, function, module, name)
    }

    fn hipModuleLaunchKernel(function: usize, x: c_uint, y: c_uint, z: c_uint, threads_x: c_uint, threads_y: c_uint, threads_z: c_uint, shared: c_uint, stream: usize, arguments: *mut *mut c_void, extra: *mut *mut c_void) {
        through!(cuLaunchKernel, function, x, y, z, threads_x, threads_y, threads_z, shared, stream, arguments, extra)
    }
}
