//! Collective operations that reduce elements.

use std::ffi::{c_int, c_void};

use cableway::{
    Communicator, Complex, Element, Elements, ElementsMut, Located, Rank, RawBuffer, RawRequest, ReduceOperation,
    Reducible, f16,
};

use crate::arguments::rank;
use crate::code::Failure;
use crate::communicator::{Handled, named};
use crate::handle::Handle;
use crate::memory::{Memory, is_in_place};
use crate::outcome::guard;
use crate::request::Request;

/// Returns the type of elements that the program numbers so: the first one of the library's table has 1.
fn element(number: c_int) -> Result<Element, Failure> {
    let found = usize::try_from(number).ok().and_then(|number| Element::ALL.get(number.checked_sub(1)?).copied());
    found.ok_or_else(|| Failure::argument(format!("there is no type of elements {number}: use a cableway_element")))
}

/// Returns the operation that the program numbers so, in the same way.
fn operation(number: c_int) -> Result<ReduceOperation, Failure> {
    let found =
        usize::try_from(number).ok().and_then(|number| ReduceOperation::ALL.get(number.checked_sub(1)?).copied());
    found.ok_or_else(|| Failure::argument(format!("there is no operation {number}: use a cableway_operation")))
}

/// A reduction, as a function's arguments describe it.
#[derive(Clone, Copy)]
struct Arguments {
    send: *const c_void,
    receive: *mut c_void,
    /// The number of elements of the input.
    count: usize,
    element: c_int,
    operation: c_int,
}

/// Which reduction it is.
#[derive(Clone, Copy)]
enum Kind {
    Allreduce,
    Reduce { root: Rank },
    ReduceScatterBlock { outputs: usize },
    Scan,
    ExclusiveScan,
}

/// The memory of a reduction.
struct Operands {
    /// `None`: in place.
    input: Option<RawBuffer<'static>>,
    /// `None`: this process gets no result.
    output: Option<RawBuffer<'static>>,
    operation: ReduceOperation,
}

/// Evaluates an expression with the type of elements that an [`Element`] describes.
macro_rules! with_type {
    ($element:expr, $type:ident => $call:expr) => {
        with_type!($element, $type => $call;
            I8 = i8, I16 = i16, I32 = i32, I64 = i64, U8 = u8, U16 = u16, U32 = u32, U64 = u64,
            F16 = f16, F32 = f32, F64 = f64, Complex32 = Complex<f32>, Complex64 = Complex<f64>,
            FloatInt = Located<f32, i32>, DoubleInt = Located<f64, i32>, LongInt = Located<i64, i32>,
            TwoInt = Located<i32, i32>, ShortInt = Located<i16, i32>, TwoFloat = Located<f32, f32>,
            TwoDouble = Located<f64, f64>)
    };
    ($element:expr, $type:ident => $call:expr; $($name:ident = $rust:ty),+) => {
        match $element {
            $(Element::$name => {
                type $type = $rust;
                $call
            })+
        }
    };
}

impl Arguments {
    /// # Safety
    /// The program keeps the memory during the call.
    unsafe fn perform(self, on: &Communicator, kind: Kind) -> Result<(), Failure> {
        // SAFETY: the caller's promise.
        let (element, operands) = unsafe { self.operands(on, kind)? };
        Ok(with_type!(element, T => operands.perform::<T>(on, kind))?)
    }

    /// # Safety
    /// The program keeps the memory until the request has ended.
    unsafe fn start(self, on: &Communicator, kind: Kind) -> Result<RawRequest, Failure> {
        // SAFETY: the caller's promise.
        let (element, operands) = unsafe { self.operands(on, kind)? };
        // SAFETY: as above.
        Ok(with_type!(element, T => unsafe { operands.start::<T>(on, kind) })?)
    }

    /// Returns the type of the elements, and the memory.
    ///
    /// # Safety
    /// The program keeps the memory for as long as the operands are used.
    unsafe fn operands(self, on: &Communicator, kind: Kind) -> Result<(Element, Operands), Failure> {
        let (element, operation) = (element(self.element)?, operation(self.operation)?);
        let in_place = is_in_place(self.send);
        let outputs = match kind {
            Kind::Reduce { root } if root != on.rank() => None,
            Kind::ReduceScatterBlock { outputs } if !in_place => Some(outputs),
            _ => Some(self.count),
        };
        let memory = |address: *const c_void, count: usize| -> Result<RawBuffer<'static>, Failure> {
            let bytes = count.checked_mul(element.size());
            let bytes =
                bytes.ok_or_else(|| Failure::argument(format!("{count} elements of {} bytes", element.size())))?;
            // SAFETY: the caller's promise.
            unsafe { Memory { address, count: bytes, datatype: std::ptr::null() }.buffer() }
        };
        let input = if in_place { None } else { Some(memory(self.send, self.count)?) };
        let output = outputs.map(|count| memory(self.receive, count)).transpose()?;
        Ok((element, Operands { input, output, operation }))
    }
}

impl Operands {
    /// Starts an allreduce, or a reduce to a root.
    ///
    /// # Safety
    /// The program keeps the memory until the request has ended.
    unsafe fn start<T: Reducible>(mut self, on: &Communicator, kind: Kind) -> Result<RawRequest, cableway::Error> {
        let operation = self.operation;
        let input = self.input.as_ref().map(Elements::<T>::new).transpose()?;
        let mut output = self.output.as_mut().map(ElementsMut::<T>::new).transpose()?;
        // SAFETY: the caller's promise.
        unsafe {
            match (kind, output.as_mut()) {
                (Kind::Reduce { root }, output) => on.reduce_raw(input.as_ref(), output, operation, root),
                (_, Some(output)) => on.allreduce_raw(input.as_ref(), output, operation),
                (_, None) => Err(no_contribution()),
            }
        }
    }

    fn perform<T: Reducible>(mut self, on: &Communicator, kind: Kind) -> Result<(), cableway::Error> {
        let operation = self.operation;
        let input = self.input.as_ref().map(Elements::<T>::new).transpose()?;
        let mut output = self.output.as_mut().map(ElementsMut::<T>::new).transpose()?;
        match (kind, input.as_ref(), output.as_mut()) {
            (Kind::Allreduce, Some(input), Some(output)) => on.allreduce(input, output, operation),
            (Kind::Allreduce, None, Some(output)) => on.allreduce_in_place(output, operation),
            (Kind::Reduce { root }, Some(input), output) => on.reduce(input, operation, root, output),
            (Kind::Reduce { root }, None, Some(output)) => on.reduce_in_place(output, operation, root),
            (Kind::ReduceScatterBlock { .. }, Some(input), Some(output)) => {
                on.reduce_scatter_block(input, output, operation)
            }
            (Kind::ReduceScatterBlock { .. }, None, Some(output)) => {
                on.reduce_scatter_block_in_place(output, operation)
            }
            (Kind::Scan, Some(input), Some(output)) => on.scan(input, output, operation),
            (Kind::Scan, None, Some(output)) => on.scan_in_place(output, operation),
            (Kind::ExclusiveScan, Some(input), Some(output)) => on.exclusive_scan(input, output, operation),
            (Kind::ExclusiveScan, None, Some(output)) => on.exclusive_scan_in_place(output, operation),
            (_, _, None) => Err(no_contribution()),
        }
    }
}

#[cold]
fn no_contribution() -> cableway::Error {
    let text = "CABLEWAY_IN_PLACE is for the root of a reduce only: pass what this process contributes";
    cableway::ErrorKind::BadBuffer(text.to_owned()).into()
}

/// Starts an allreduce.
#[unsafe(no_mangle)]
unsafe extern "C" fn cableway_iallreduce(
    send: *const c_void,
    receive: *mut c_void,
    count: usize,
    element: c_int,
    operation: c_int,
    communicator: Handled,
    request: *mut *mut Handle<Request>,
) -> c_int {
    let arguments = Arguments { send, receive, count, element, operation };
    // SAFETY: the C program's promises.
    unsafe { Request::start(request, || arguments.start(named(communicator)?, Kind::Allreduce)) }
}

/// Starts a reduce.
#[unsafe(no_mangle)]
unsafe extern "C" fn cableway_ireduce(
    send: *const c_void,
    receive: *mut c_void,
    count: usize,
    element: c_int,
    operation: c_int,
    root: c_int,
    communicator: Handled,
    request: *mut *mut Handle<Request>,
) -> c_int {
    let arguments = Arguments { send, receive, count, element, operation };
    // SAFETY: the C program's promises.
    unsafe {
        Request::start(request, || {
            let kind = Kind::Reduce { root: rank(root)? };
            arguments.start(named(communicator)?, kind)
        })
    }
}

/// Reduces, with the result at all.
#[unsafe(no_mangle)]
unsafe extern "C" fn cableway_allreduce(
    send: *const c_void,
    receive: *mut c_void,
    count: usize,
    element: c_int,
    operation: c_int,
    communicator: Handled,
) -> c_int {
    let arguments = Arguments { send, receive, count, element, operation };
    // SAFETY: the C program's promises.
    guard(|| unsafe { arguments.perform(named(communicator)?, Kind::Allreduce) })
}

/// Reduces, with the result at the root.
#[unsafe(no_mangle)]
unsafe extern "C" fn cableway_reduce(
    send: *const c_void,
    receive: *mut c_void,
    count: usize,
    element: c_int,
    operation: c_int,
    root: c_int,
    communicator: Handled,
) -> c_int {
    let arguments = Arguments { send, receive, count, element, operation };
    // SAFETY: the C program's promises.
    guard(|| unsafe { arguments.perform(named(communicator)?, Kind::Reduce { root: rank(root)? }) })
}

/// Reduces, with a part of the result of one length at each.
#[unsafe(no_mangle)]
unsafe extern "C" fn cableway_reduce_scatter_block(
    send: *const c_void,
    receive: *mut c_void,
    receive_count: usize,
    element: c_int,
    operation: c_int,
    communicator: Handled,
) -> c_int {
    // SAFETY: the C program's promises.
    guard(|| unsafe {
        let on = named(communicator)?;
        let count = receive_count.checked_mul(on.size() as usize);
        let count = count.ok_or_else(|| Failure::argument(format!("{receive_count} elements for each rank")))?;
        let arguments = Arguments { send, receive, count, element, operation };
        arguments.perform(on, Kind::ReduceScatterBlock { outputs: receive_count })
    })
}

/// Reduces what the ranks up to this one contribute.
#[unsafe(no_mangle)]
unsafe extern "C" fn cableway_scan(
    send: *const c_void,
    receive: *mut c_void,
    count: usize,
    element: c_int,
    operation: c_int,
    communicator: Handled,
) -> c_int {
    let arguments = Arguments { send, receive, count, element, operation };
    // SAFETY: the C program's promises.
    guard(|| unsafe { arguments.perform(named(communicator)?, Kind::Scan) })
}

/// Reduces what the ranks before this one contribute.
#[unsafe(no_mangle)]
unsafe extern "C" fn cableway_exscan(
    send: *const c_void,
    receive: *mut c_void,
    count: usize,
    element: c_int,
    operation: c_int,
    communicator: Handled,
) -> c_int {
    let arguments = Arguments { send, receive, count, element, operation };
    // SAFETY: the C program's promises.
    guard(|| unsafe { arguments.perform(named(communicator)?, Kind::ExclusiveScan) })
}
