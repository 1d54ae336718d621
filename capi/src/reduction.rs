//! Collective operations that reduce elements.

use std::ffi::{c_int, c_void};

use cableway::{
    Communicator, Complex, Element, Elements, ElementsMut, Located, Rank, RawBuffer, ReduceOperation, Reducible, f16,
};

use crate::arguments::{array, rank};
use crate::code::Failure;
use crate::collective::{Finish, perform, start};
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
enum Kind<'a> {
    Allreduce,
    Reduce { root: Rank },
    ReduceScatter { outputs: usize, counts: Option<&'a [usize]> },
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
    /// Prepares the reduction, and performs or starts it.
    ///
    /// # Safety
    /// The C program's promises: it keeps the memory until the operation has ended.
    unsafe fn call<R>(self, on: &Communicator, kind: Kind<'_>, finish: impl Finish<R>) -> Result<R, Failure> {
        // SAFETY: the caller's promise.
        let (element, operands) = unsafe { self.operands(on, kind)? };
        // SAFETY: as above.
        Ok(with_type!(element, T => unsafe { operands.call::<T, R>(on, kind, finish) })?)
    }

    /// Prepares a reduction of which each rank gets `count` elements, and performs or starts it.
    ///
    /// # Safety
    /// As [`call`](Self::call).
    unsafe fn scatter_block<R>(self, on: Handled, finish: impl Finish<R>) -> Result<R, Failure> {
        let outputs = self.count;
        // SAFETY: the caller's promise.
        unsafe {
            let on = named(on)?;
            let count = outputs.checked_mul(on.size() as usize);
            let count = count.ok_or_else(|| Failure::argument(format!("{outputs} elements for each rank")))?;
            Arguments { count, ..self }.call(on, Kind::ReduceScatter { outputs, counts: None }, finish)
        }
    }

    /// Prepares a reduction of which each rank gets as many elements as its entry of `counts` says, and performs or starts
    /// it.
    ///
    /// # Safety
    /// As [`call`](Self::call), and the array has an entry for each rank.
    unsafe fn scatter<R>(self, on: Handled, counts: *const usize, finish: impl Finish<R>) -> Result<R, Failure> {
        // SAFETY: the caller's promise.
        unsafe {
            let on = named(on)?;
            let counts = array(counts, on.size() as usize, "the array of counts")?;
            let count = counts.iter().try_fold(0_usize, |sum, &count| sum.checked_add(count));
            let count =
                count.ok_or_else(|| Failure::argument("the parts of the ranks are more than memory can hold"))?;
            let kind = Kind::ReduceScatter { outputs: counts[on.rank() as usize], counts: Some(counts) };
            Arguments { count, ..self }.call(on, kind, finish)
        }
    }

    /// Returns the type of the elements, and the memory.
    ///
    /// # Safety
    /// The program keeps the memory for as long as the operands are used.
    unsafe fn operands(self, on: &Communicator, kind: Kind<'_>) -> Result<(Element, Operands), Failure> {
        let (element, operation) = (element(self.element)?, operation(self.operation)?);
        let in_place = is_in_place(self.send);
        let outputs = match kind {
            Kind::Reduce { root } if root != on.rank() => None,
            Kind::ReduceScatter { outputs, .. } if !in_place => Some(outputs),
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
    /// # Safety
    /// As [`Arguments::call`].
    unsafe fn call<T: Reducible, R>(
        mut self,
        on: &Communicator,
        kind: Kind<'_>,
        finish: impl Finish<R>,
    ) -> Result<R, cableway::Error> {
        let operation = self.operation;
        let input = self.input.as_ref().map(Elements::<T>::new).transpose()?;
        let (input, mut output) = (input.as_ref(), self.output.as_mut().map(ElementsMut::<T>::new).transpose()?);
        // SAFETY: the caller's promise.
        let call = unsafe {
            match (kind, output.as_mut()) {
                (Kind::Reduce { root }, output) if input.is_some() || output.is_some() => {
                    on.reduce_raw(input, output, operation, root)
                }
                // Every other reduction has memory for its result.
                (_, None) | (Kind::Reduce { .. }, _) => Err(no_contribution()),
                (Kind::Allreduce, Some(output)) => on.allreduce_raw(input, output, operation),
                (Kind::ReduceScatter { counts, .. }, Some(output)) => {
                    on.reduce_scatter_raw(input, output, counts, operation)
                }
                (Kind::Scan, Some(output)) => on.scan_raw(input, output, operation),
                (Kind::ExclusiveScan, Some(output)) => on.exclusive_scan_raw(input, output, operation),
            }
        };
        finish(call?)
    }
}

#[cold]
fn no_contribution() -> cableway::Error {
    let text = "CABLEWAY_IN_PLACE is for the root of a reduce only: pass what this process contributes";
    cableway::ErrorKind::BadBuffer(text.to_owned()).into()
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
    guard(|| unsafe { arguments.call(named(communicator)?, Kind::Allreduce, perform) })
}

/// Starts to reduce, with the result at all.
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
    unsafe { Request::start(request, || arguments.call(named(communicator)?, Kind::Allreduce, start)) }
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
    guard(|| unsafe { arguments.call(named(communicator)?, Kind::Reduce { root: rank(root)? }, perform) })
}

/// Starts to reduce, with the result at the root.
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
        Request::start(request, || arguments.call(named(communicator)?, Kind::Reduce { root: rank(root)? }, start))
    }
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
    let arguments = Arguments { send, receive, count: receive_count, element, operation };
    // SAFETY: the C program's promises.
    guard(|| unsafe { arguments.scatter_block(communicator, perform) })
}

/// Starts to reduce, with a part of the result of one length at each.
#[unsafe(no_mangle)]
unsafe extern "C" fn cableway_ireduce_scatter_block(
    send: *const c_void,
    receive: *mut c_void,
    receive_count: usize,
    element: c_int,
    operation: c_int,
    communicator: Handled,
    request: *mut *mut Handle<Request>,
) -> c_int {
    let arguments = Arguments { send, receive, count: receive_count, element, operation };
    // SAFETY: the C program's promises.
    unsafe { Request::start(request, || arguments.scatter_block(communicator, start)) }
}

/// Reduces, with a part of the result of any length at each.
#[unsafe(no_mangle)]
unsafe extern "C" fn cableway_reduce_scatter(
    send: *const c_void,
    receive: *mut c_void,
    receive_counts: *const usize,
    element: c_int,
    operation: c_int,
    communicator: Handled,
) -> c_int {
    let arguments = Arguments { send, receive, count: 0, element, operation };
    // SAFETY: the C program's promises.
    guard(|| unsafe { arguments.scatter(communicator, receive_counts, perform) })
}

/// Starts to reduce, with a part of the result of any length at each.
#[unsafe(no_mangle)]
unsafe extern "C" fn cableway_ireduce_scatter(
    send: *const c_void,
    receive: *mut c_void,
    receive_counts: *const usize,
    element: c_int,
    operation: c_int,
    communicator: Handled,
    request: *mut *mut Handle<Request>,
) -> c_int {
    let arguments = Arguments { send, receive, count: 0, element, operation };
    // SAFETY: the C program's promises.
    unsafe { Request::start(request, || arguments.scatter(communicator, receive_counts, start)) }
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
    guard(|| unsafe { arguments.call(named(communicator)?, Kind::Scan, perform) })
}

/// Starts to reduce what the ranks up to this one contribute.
#[unsafe(no_mangle)]
unsafe extern "C" fn cableway_iscan(
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
    unsafe { Request::start(request, || arguments.call(named(communicator)?, Kind::Scan, start)) }
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
    guard(|| unsafe { arguments.call(named(communicator)?, Kind::ExclusiveScan, perform) })
}

/// Starts to reduce what the ranks before this one contribute.
#[unsafe(no_mangle)]
unsafe extern "C" fn cableway_iexscan(
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
    unsafe { Request::start(request, || arguments.call(named(communicator)?, Kind::ExclusiveScan, start)) }
}
