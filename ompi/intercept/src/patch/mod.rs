//! Redirects the calls of a running process from a library's functions to replacements of the same names.
//!
//! Two places say where a call goes. An object that is bound to a function holds its address in a slot, which the
//! loader filled by a relocation. An object that is bound later, and a caller of `dlsym`, get the address from the
//! library's symbol table. Both places are changed, in this order:
//!
//! 1. The library's symbol table. From here on the loader itself gives out the replacements: to objects that are loaded
//!    later, to calls that are bound lazily, to `dlsym`. So `dlopen` needs no hook. A hook would have to imitate how
//!    `dlopen` finds files: it uses the address of its caller for RUNPATH and namespaces.
//! 2. The loader's lock is taken and released. Other threads that were loading an object have then finished.
//! 3. The slots of all objects that hold the address of one of the library's functions. Slots that hold another address
//!    stay as they are: they lead to a tool that has functions of the same names and calls the library's functions.
//!
//! To undo this, the same is done with the addresses exchanged. Nothing is remembered about objects: those that were
//! unmapped meanwhile are not touched, and those that were loaded meanwhile are found. `dl_iterate_phdr` holds a lock
//! under which no object is unmapped. The third step never writes to an object that another thread is loading: since
//! the first step, the loader gives out none of the addresses that the third one looks for.
//!
//! Words are written atomically, so that calls in other threads go to the function or to its replacement. One case is
//! not covered: a thread that is binding a lazy call at that very moment may store the address that was right before.
//!
//! The crates that parse ELF read byte slices that nobody writes to, in which addresses are offsets into a file. Here
//! the tables lie in memory that others write to, and few structures are needed. So `tables` declares these, and
//! `object` checks every address against the object's segments.

mod memory;
mod object;
mod tables;

use std::ffi::{CStr, c_void};
use std::io;
use std::sync::atomic::Ordering;

use crate::Call;
use memory::Memory;
use object::Object;
use tables::Tables;

/// Why calls cannot be redirected.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No loaded object has the library's code.
    #[error("no loaded object holds the address {0:#x}")]
    NoLibrary(usize),
    /// The library's dynamic section is not understood.
    #[error("the object at {0:#x} has no symbol table that can be read")]
    NoSymbols(usize),
    /// The protection of memory is not known.
    #[error("reading /proc/self/maps: {0}")]
    Maps(#[from] io::Error),
}

/// What a redirection has changed.
#[derive(Debug, Default)]
pub struct Changed {
    /// Entries of the library's symbol table.
    pub symbols: usize,
    /// Slots of objects.
    pub slots: usize,
    /// The first word that could not be changed, and why.
    pub failure: Option<(usize, io::Error)>,
}

impl Changed {
    /// Answers 1 if a word was changed, and keeps the reason if it could not be.
    fn count(&mut self, word: usize, changed: io::Result<bool>) -> usize {
        match changed {
            Ok(changed) => usize::from(changed),
            Err(error) => {
                self.failure.get_or_insert((word, error));
                0
            }
        }
    }
}

/// Functions of a library, and their replacements.
#[derive(Debug)]
pub struct Redirection {
    /// The library's address. The values in its symbol table are relative to it.
    base: usize,
    calls: Vec<Redirected>,
}

/// One function, by one name.
#[derive(Debug)]
struct Redirected {
    name: &'static CStr,
    /// Its place in the library's symbol table.
    symbol: usize,
    original: usize,
    replacement: usize,
}

/// What a word is changed from and to.
#[derive(Clone, Copy)]
struct Exchange {
    name: &'static CStr,
    symbol: usize,
    from: usize,
    to: usize,
}

impl Redirection {
    /// Finds the functions of these names in the library that has the code at an address, and tells each call its next
    /// function. A function that the library does not have is left out. Redirects nothing yet.
    ///
    /// # Safety
    /// The library is never unmapped. Its functions take what the calls' entries of the same names take.
    pub unsafe fn new(code: *const c_void, calls: impl IntoIterator<Item = &'static Call>) -> Result<Self, Error> {
        let calls: Vec<&Call> = calls.into_iter().collect();
        let mut found = Err(Error::NoLibrary(code.addr()));
        object::each(&mut |object| {
            if object.holds(code.addr()) {
                let redirected = Self::of_library(object, &calls);
                found = redirected.ok_or(Error::NoSymbols(object.base()));
            }
        });
        let found = found?;
        for call in calls {
            if let Some(redirected) = found.calls.iter().find(|redirected| redirected.name == call.next.name()) {
                // SAFETY: the caller's promise about the library.
                unsafe { call.next.set(redirected.original) };
            }
        }
        Ok(found)
    }

    fn of_library(object: &Object, calls: &[&Call]) -> Option<Self> {
        let tables = Tables::of(object)?;
        let mut redirected = Vec::new();
        for (index, symbol) in tables.functions()? {
            let named = calls.iter().find(|call| tables.is_named(symbol, call.next.name()));
            redirected.extend(named.map(|call| Redirected {
                name: call.next.name(),
                symbol: index,
                original: object.base().wrapping_add(symbol.value.load(Ordering::Relaxed)),
                replacement: (call.entry)(),
            }));
        }
        Some(Redirection { base: object.base(), calls: redirected })
    }

    /// Sends calls to the replacements.
    pub fn begin(&self) -> Result<Changed, Error> {
        self.exchange(|call| (call.original, call.replacement))
    }

    /// Sends calls to the library's functions again.
    pub fn end(&self) -> Result<Changed, Error> {
        self.exchange(|call| (call.replacement, call.original))
    }

    fn exchange(&self, from_and_to: impl Fn(&Redirected) -> (usize, usize)) -> Result<Changed, Error> {
        let mut changed = Changed::default();
        let mut exchanges: Vec<Exchange> = self
            .calls
            .iter()
            .map(|call| {
                let (from, to) = from_and_to(call);
                Exchange { name: call.name, symbol: call.symbol, from, to }
            })
            .collect();
        exchanges.sort_unstable_by_key(|exchange| exchange.from);
        let memory = Memory::read()?;
        object::each(&mut |object| {
            if object.base() == self.base {
                exchange_symbols(object, &memory, &exchanges, &mut changed);
            }
        });
        object::wait_for_loading();
        // Read again: the objects that may have to be changed are all mapped now.
        let memory = Memory::read()?;
        object::each(&mut |object| exchange_slots(object, &memory, &exchanges, &mut changed));
        Ok(changed)
    }
}

/// Changes addresses in the library's symbol table.
fn exchange_symbols(library: &Object, memory: &Memory, exchanges: &[Exchange], changed: &mut Changed) {
    let Some(tables) = Tables::of(library) else { return };
    for exchange in exchanges {
        let Some(symbol) = tables.symbol(exchange.symbol) else { continue };
        let relative = |address: usize| address.wrapping_sub(library.base());
        let written = memory.exchange(&symbol.value, relative(exchange.from), relative(exchange.to));
        changed.symbols += changed.count(exchange.from, written);
    }
}

/// Changes addresses in an object's slots. The exchanges are sorted by `from`.
fn exchange_slots(object: &Object, memory: &Memory, exchanges: &[Exchange], changed: &mut Changed) {
    let (Some(tables), Some(first), Some(last)) = (Tables::of(object), exchanges.first(), exchanges.last()) else {
        return;
    };
    for reference in tables.references() {
        let Some(slot) = object.writable_word(reference.slot) else { continue };
        let value = slot.load(Ordering::Relaxed);
        // Nearly every slot ends here.
        if value < first.from || value > last.from {
            continue;
        }
        // A function may have several names, each of which is redirected to a function of its own.
        let candidates = &exchanges[exchanges.partition_point(|exchange| exchange.from < value)..];
        let mut candidates = candidates.iter().take_while(|exchange| exchange.from == value);
        let Some(symbol) = tables.symbol(reference.symbol) else { continue };
        if let Some(exchange) = candidates.find(|exchange| tables.is_named(symbol, exchange.name)) {
            changed.slots += changed.count(reference.slot, memory.exchange(slot, value, exchange.to));
        }
    }
}
