//! Redirects the calls of a running process from a library's functions to others of the same names.
//!
//! Two places say where a call goes. An object that is bound to a function holds its address in a slot, which the loader
//! filled by a relocation. Whoever is bound later, or asks `dlsym`, gets the address from the library's symbol table. So
//! both are changed, and in this order:
//!
//! 1. The library's symbol table. From here on the loader itself hands out our functions: to objects that are loaded
//!    later, to calls that are bound lazily, to `dlsym`. Nothing has to be called when an object is loaded, so `dlopen`
//!    is left alone, which needs its caller's address for RUNPATH and namespaces.
//! 2. One turn of the loader's lock, so that whoever was loading an object meanwhile has done so.
//! 3. The slots of all objects that hold the address of one of the library's functions. Slots that hold another address
//!    stay: they belong to a tool with functions of the same names, which calls the library's in its turn.
//!
//! Undoing is the same with the addresses exchanged. Nothing is kept about objects, so those that were unmapped
//! meanwhile do not matter, and those that were loaded meanwhile are found. `dl_iterate_phdr` holds a lock under which no
//! object is unmapped. An object that is being loaded in another thread is not written to, because by the second step
//! the loader gives it only addresses that the third step does not look for.
//!
//! Words are written atomically, so that calls in other threads go to one function or the other. Only a thread that is
//! in the midst of its very first call of a function may bind it to the function that was right before.
//!
//! The tables are read in place, in memory that others may write to, and few of their structures are needed. The crates
//! that parse ELF read byte slices that nobody writes, with all addresses relative to a file; so `tables` declares what
//! it needs, and `object` checks every address against the object's segments.

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
    pub refused: Option<(usize, io::Error)>,
}

impl Changed {
    /// Counts a word that was to be changed: 1 if it was.
    fn count(&mut self, word: usize, changed: io::Result<bool>) -> usize {
        match changed {
            Ok(changed) => usize::from(changed),
            Err(error) => {
                self.refused.get_or_insert((word, error));
                0
            }
        }
    }
}

/// Functions of a library, and those that stand before them.
#[derive(Debug)]
pub struct Redirection {
    /// Where the library begins, to which the values in its symbol table are relative.
    base: usize,
    calls: Vec<Redirected>,
}

/// One function, by one name.
#[derive(Debug)]
struct Redirected {
    name: &'static CStr,
    /// Its place in the library's symbol table.
    symbol: usize,
    /// The library's function.
    theirs: usize,
    /// The function that stands before it.
    ours: usize,
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
                unsafe { call.next.set(redirected.theirs) };
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
                theirs: object.base().wrapping_add(symbol.value.load(Ordering::Relaxed)),
                ours: (call.entry)(),
            }));
        }
        Some(Redirection { base: object.base(), calls: redirected })
    }

    /// Sends calls to our functions.
    pub fn begin(&self) -> Result<Changed, Error> {
        self.exchange(|call| (call.theirs, call.ours))
    }

    /// Sends calls to the library's functions again.
    pub fn end(&self) -> Result<Changed, Error> {
        self.exchange(|call| (call.ours, call.theirs))
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
        // Anew: every object that may have to be changed is there by now.
        let memory = Memory::read()?;
        object::each(&mut |object| exchange_slots(object, &memory, &exchanges, &mut changed));
        Ok(changed)
    }
}

/// Has the library's symbol table name other addresses.
fn exchange_symbols(library: &Object, memory: &Memory, exchanges: &[Exchange], changed: &mut Changed) {
    let Some(tables) = Tables::of(library) else { return };
    for exchange in exchanges {
        let Some(symbol) = tables.symbol(exchange.symbol) else { continue };
        let relative = |address: usize| address.wrapping_sub(library.base());
        let written = memory.exchange(&symbol.value, relative(exchange.from), relative(exchange.to));
        changed.symbols += changed.count(exchange.from, written);
    }
}

/// Has an object's slots hold other addresses. The exchanges are in the order of the addresses that they look for.
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
