//! Modules and launches: `cuModule*`, `cuLaunchKernel`.
//!
//! A module is text that names its entries. A kernel of Cableway is identified by its name, and its text is not executed:
//! its Rust version does what the kernel of that name in `common-cuda/kernels/` does, thread block by thread block, in
//! the order of the stream. `spin` does what the kernel of `cableway pingpong --stream` does. The text of any other kernel
//! is executed (`ptx_run`), and can be captured. A kernel may access only memory that a kernel of its context can access.
//! Otherwise the process ends with a line that names the address, since a real context would be lost.
//!
//! With `SIM_CUDA_KERNEL_DELAY_US`, some of a launch's blocks, from none to all, begin this much later than the others,
//! as if other kernels filled the device.

use std::ffi::{c_uint, c_void};
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};
use std::time::Instant;

use parking_lot::Mutex;

use crate::abi::{Out, Text, driver_api};
use crate::capture;
use crate::context::current;
use crate::driver::{AfterInit, Handles, fresh_id};
use crate::error::{Error, Outcome};
use crate::kernel_copies::{BlockMoves, Copies, Moves, Strided};
use crate::kernel_memory::{Job, Memory, THREADS};
use crate::one_shot;
use crate::packed::Packed;
use crate::ptx;
use crate::ptx_run;
use crate::reduce::{Class, Reduction};
use crate::resident::{self, Resident};
use crate::schedule::Work;
use crate::settings::Settings;
use crate::signalled;
use crate::spin;
use crate::stream::{self, Stream};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kernel {
    Pieces,
    Strided,
    Resident,
    Packed,
    Reduce(Class),
    Signalled,
    Moves,
    BlockMoves,
    Spin,
}

const KERNELS: &[(&str, Kernel)] = &[
    ("cableway_copy_pieces", Kernel::Pieces),
    ("cableway_copy_strided", Kernel::Strided),
    ("cableway_copy_resident", Kernel::Resident),
    ("cableway_copy_packed", Kernel::Packed),
    ("cableway_copy_signalled", Kernel::Signalled),
    ("cableway_reduce_bits", Kernel::Reduce(Class::Bits)),
    ("cableway_reduce_integers", Kernel::Reduce(Class::Integers)),
    ("cableway_reduce_floats", Kernel::Reduce(Class::Floats)),
    ("cableway_reduce_pairs", Kernel::Reduce(Class::Pairs)),
    ("cableway_one_shot", Kernel::Reduce(Class::OneShot)),
    ("cableway_moves", Kernel::Moves),
    ("cableway_block_moves", Kernel::BlockMoves),
    // That of the benchmarks, `src/cli/pingpong/stream/spin.ptx`.
    ("cableway_spin", Kernel::Spin),
];

/// A kernel in a module.
#[derive(Clone)]
pub(crate) enum Code {
    Ours(Kernel),
    /// A program's.
    Text(Arc<ptx::Entry>),
}

/// A loaded module.
struct Module {
    context: u64,
    entries: Vec<(String, Code)>,
}

/// A kernel of a module.
pub(crate) struct Function {
    pub(crate) code: Code,
    pub(crate) context: u64,
}

/// The indices of a job's words that say it is revoked, has started, has ended, waited in vain for other ranks.
const REVOKED: u64 = 0;
const STARTED: u64 = 16;
const ENDED: u64 = 32;
const LATE: u64 = 48;

static MODULES: AfterInit<Mutex<Handles<Module>>> = AfterInit::new(|| Mutex::new(Handles::new(0x5400_0000_0000)));
pub(crate) static FUNCTIONS: AfterInit<Mutex<Handles<Function>>> =
    AfterInit::new(|| Mutex::new(Handles::new(0x5500_0000_0000)));

#[derive(Clone)]
pub(crate) enum Arguments {
    Pieces(Box<Copies>),
    Moves(Box<Moves>),
    BlockMoves(Box<BlockMoves>),
    Strided(Strided),
    Packed(Packed),
    Reduce(Class, Box<Reduction>),
}

impl Arguments {
    /// Reads the argument of a job's kernel. Returns `None` if the kernel is no job's.
    ///
    /// # Safety
    /// The kernel declares this argument.
    pub(crate) unsafe fn read(kernel: Kernel, argument: *const c_void) -> Option<Arguments> {
        // SAFETY: the caller's promise.
        unsafe {
            Some(match kernel {
                Kernel::Pieces => Arguments::Pieces(Box::new(argument.cast::<Copies>().read_unaligned())),
                Kernel::Moves => Arguments::Moves(Box::new(argument.cast::<Moves>().read_unaligned())),
                Kernel::BlockMoves => Arguments::BlockMoves(Box::new(argument.cast::<BlockMoves>().read_unaligned())),
                Kernel::Strided => Arguments::Strided(argument.cast::<Strided>().read_unaligned()),
                Kernel::Packed => Arguments::Packed(argument.cast::<Packed>().read_unaligned()),
                Kernel::Reduce(class) => {
                    Arguments::Reduce(class, Box::new(argument.cast::<Reduction>().read_unaligned()))
                }
                Kernel::Resident | Kernel::Signalled | Kernel::Spin => return None,
            })
        }
    }

    fn job(&self) -> Job {
        match self {
            Arguments::Pieces(pieces) => pieces.job,
            Arguments::Moves(moves) => moves.job,
            Arguments::BlockMoves(moves) => moves.job,
            Arguments::Strided(strided) => strided.job,
            Arguments::Packed(packed) => packed.job,
            Arguments::Reduce(_, reduction) => reduction.job,
        }
    }
}

/// A launch in progress.
struct Launch {
    arguments: Arguments,
    blocks: u64,
    next: u64,
    /// True if it was not revoked when its first block began.
    goes: bool,
    /// Blocks from this one on begin no earlier than this time.
    held: (u64, Instant),
    memory: Memory,
    /// Of an exchange before the first block's work.
    gathered: one_shot::Progress,
}

impl Launch {
    fn block(&mut self, block: u64) {
        let (job, blocks) = (self.arguments.job(), self.blocks);
        if block == 0 {
            self.memory.word(job, STARTED).store(job.number, Ordering::SeqCst);
            fence(Ordering::SeqCst);
            self.goes = self.memory.word(job, REVOKED).load(Ordering::SeqCst) != job.number;
        }
        if self.goes {
            match &self.arguments {
                Arguments::Pieces(pieces) => pieces.run(block, blocks, &mut self.memory),
                Arguments::Moves(moves) => moves.run(block, blocks, &mut self.memory),
                Arguments::BlockMoves(moves) => moves.run(block, blocks, &mut self.memory),
                Arguments::Strided(strided) => strided.run(block, blocks, &mut self.memory),
                Arguments::Packed(packed) => packed.run(block, &mut self.memory),
                Arguments::Reduce(class, reduction) => reduction.run(*class, block, blocks, &mut self.memory),
            }
        }
        if block + 1 == blocks {
            self.memory.word(job, ENDED).store(job.number, Ordering::SeqCst);
        }
    }
}

impl Work for Launch {
    fn is_ready(&self) -> bool {
        self.gathered.is_due() && (self.next < self.held.0 || Instant::now() >= self.held.1)
    }

    fn waits_outside(&self) -> bool {
        true
    }

    fn step(&mut self) -> bool {
        if let (Arguments::Reduce(_, reduction), 0) = (&self.arguments, self.next) {
            match reduction.shot.step(&mut self.gathered, &mut self.memory) {
                one_shot::Step::Waits => return false,
                one_shot::Step::Done => {}
                one_shot::Step::Late => {
                    let job = self.arguments.job();
                    for index in [LATE, ENDED] {
                        self.memory.word(job, index).store(job.number, Ordering::SeqCst);
                    }
                    return true;
                }
            }
        }
        self.block(self.next);
        self.next += 1;
        self.next == self.blocks
    }
}

/// Returns Cableway's kernel of this name.
fn ours(name: &str) -> Option<Kernel> {
    KERNELS.iter().find(|kernel| kernel.0 == name).map(|kernel| kernel.1)
}

fn load(text: &str) -> Outcome<usize> {
    let context = current()?;
    capture::unsafe_call()?;
    // As a real driver does, also for streams that wait for a word.
    stream::synchronize_context(&context)?;
    let names = text.split(".entry ").skip(1).map(|rest| rest.split('(').next().unwrap_or("").trim());
    let known = |name: &str| Some((name.to_owned(), Code::Ours(ours(name)?)));
    let entries: Option<Vec<_>> = names.map(known).collect();
    let entries = entries.map_or_else(|| read(text), Ok)?;
    if !text.contains(".version") || entries.is_empty() {
        return Err(Error::INVALID_PTX);
    }
    Ok(MODULES.get()?.lock().insert(Arc::new(Module { context: context.id, entries })))
}

/// Reads the kernels of a program.
fn read(text: &str) -> Outcome<Vec<(String, Code)>> {
    let entries = ptx::read(text).map_err(|what| {
        eprintln!("sim-cuda: a module was refused, because this driver does not know: {what}");
        Error::NOT_SUPPORTED
    })?;
    Ok(entries.into_iter().map(|entry| (entry.name.clone(), Code::Text(Arc::new(entry)))).collect())
}

/// Adds a module with entries of these names to the current context.
#[cfg(sim_hip)]
pub(crate) fn insert_module(names: Vec<String>) -> Outcome<usize> {
    let context = current()?;
    stream::synchronize_context(&context)?;
    capture::unsafe_call()?;
    let known = |name: String| ours(&name).map(|kernel| (name, Code::Ours(kernel))).ok_or(Error::NOT_SUPPORTED);
    let entries = names.into_iter().map(known).collect::<Outcome<_>>()?;
    Ok(MODULES.get()?.lock().insert(Arc::new(Module { context: context.id, entries })))
}

/// Adds a program's kernel to a stream, or to its capture.
fn launch_text(arguments: ptx_run::Arguments, stream: usize) -> Outcome {
    let stream = stream::get(stream)?;
    let again = arguments.clone();
    if stream.captures_call(move |on| launch_text(again.clone(), on))? {
        return Ok(());
    }
    let memory = Memory::of(stream.context.clone());
    stream.submit(Box::new(ptx_run::Launch::new(arguments, memory)))
}

fn launch(
    function: usize,
    grid: [c_uint; 3],
    block: [c_uint; 3],
    stream: usize,
    arguments: *mut *mut c_void,
) -> Outcome {
    let context = current()?;
    let function = FUNCTIONS.get()?.lock().get(function).ok_or(Error::INVALID_HANDLE)?;
    let handle = stream;
    let stream = stream::get(handle)?;
    if function.context != context.id || stream.context.id != context.id {
        return Err(Error::INVALID_HANDLE);
    }
    let kernel = match &function.code {
        Code::Ours(kernel) => *kernel,
        Code::Text(entry) => {
            let launched = [grid, block].as_flattened().iter().all(|&count| count != 0);
            if !launched || arguments.is_null() && !entry.parameters.is_empty() {
                return Err(Error::INVALID_VALUE);
            }
            // SAFETY: the caller of the driver passes an address for each of the kernel's parameters.
            return launch_text(unsafe { ptx_run::Arguments::of(entry, grid, block, arguments) }, handle);
        }
    };
    if grid[0] == 0 || grid[1..] != [1, 1] || block != [THREADS, 1, 1] || arguments.is_null() {
        return Err(Error::INVALID_VALUE);
    }
    // SAFETY: the caller of the driver passes an address for each of the kernel's parameters, and each has one.
    unsafe {
        let argument = arguments.read();
        match kernel {
            Kernel::Resident => {
                let delayed = Instant::now() + Settings::get().kernel_delay;
                let (argument, memory) =
                    (argument.cast::<resident::Argument>().read_unaligned(), Memory::of(stream.context.clone()));
                stream.submit(Box::new(Resident::new(argument, memory, delayed)))
            }
            Kernel::Signalled => signalled::launch(argument.cast::<signalled::Argument>().read_unaligned(), handle),
            Kernel::Spin => spin::launch(argument.cast::<u64>().read_unaligned(), &stream),
            _ => match Arguments::read(kernel, argument) {
                Some(arguments) => submit(arguments, u64::from(grid[0]), &stream),
                None => Err(Error::INVALID_HANDLE),
            },
        }
    }
}

/// Adds a job to a stream.
pub(crate) fn submit(arguments: Arguments, blocks: u64, stream: &Stream) -> Outcome {
    let delay = Settings::get().kernel_delay;
    let held = if delay.is_zero() { blocks } else { fresh_id() % (blocks + 1) };
    stream.submit(Box::new(Launch {
        arguments,
        blocks,
        next: 0,
        goes: false,
        held: (held, Instant::now() + delay),
        memory: Memory::of(stream.context.clone()),
        gathered: one_shot::Progress::default(),
    }))
}

driver_api! {
    2000 cuModuleLoadData: fn cuModuleLoadData(module: Out<usize>, image: Text) {
        module.set(load(&image.get()?)?)
    }

    2000 cuModuleLoad: fn cuModuleLoad(module: Out<usize>, path: Text) {
        let text = std::fs::read_to_string(path.get()?).map_err(|_| Error::FILE_NOT_FOUND)?;
        module.set(load(&text)?)
    }

    2000 cuModuleUnload: fn cuModuleUnload(module: usize) {
        MODULES.get()?.lock().remove(module).map(drop).ok_or(Error::INVALID_HANDLE)
    }

    2000 cuModuleGetFunction: fn cuModuleGetFunction(function: Out<usize>, module: usize, name: Text) {
        let module = MODULES.get()?.lock().get(module).ok_or(Error::INVALID_HANDLE)?;
        let name = name.get()?;
        let code = module.entries.iter().find(|entry| entry.0 == name).ok_or(Error::NOT_FOUND)?.1.clone();
        function.set(FUNCTIONS.get()?.lock().insert(Arc::new(Function { code, context: module.context })))
    }

    4000 cuLaunchKernel: fn cuLaunchKernel(function: usize, x: c_uint, y: c_uint, z: c_uint, threads_x: c_uint, threads_y: c_uint, threads_z: c_uint, shared: c_uint, stream: usize, arguments: *mut *mut c_void, extra: *mut *mut c_void) {
        if shared != 0 || !extra.is_null() {
            return Err(Error::INVALID_VALUE);
        }
        launch(function, [x, y, z], [threads_x, threads_y, threads_z], stream, arguments)
    }
}
