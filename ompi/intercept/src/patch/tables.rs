//! The tables that say to which symbols an object refers, and which it defines.

use std::ffi::CStr;
use std::sync::atomic::AtomicUsize;

use super::object::{Object, Plain};

/// An entry of the dynamic section: `Elf64_Dyn`
#[repr(C)]
struct Dynamic {
    tag: i64,
    value: u64,
}

/// A relocation: `Elf64_Rela`
#[repr(C)]
struct Relocation {
    offset: u64,
    info: u64,
    addend: i64,
}

/// An entry of the symbol table: `Elf64_Sym`
#[repr(C)]
pub(super) struct Symbol {
    name: u32,
    info: u8,
    other: u8,
    section: u16,
    /// Relative to the object.
    pub(super) value: AtomicUsize,
    size: u64,
}

// SAFETY: numbers, of which the one that is changed is atomic.
unsafe impl Plain for Dynamic {}
// SAFETY: as above.
unsafe impl Plain for Relocation {}
// SAFETY: as above.
unsafe impl Plain for Symbol {}

const DT_NULL: i64 = 0;
const DT_PLTRELSZ: i64 = 2;
const DT_HASH: i64 = 4;
const DT_STRTAB: i64 = 5;
const DT_SYMTAB: i64 = 6;
const DT_RELA: i64 = 7;
const DT_RELASZ: i64 = 8;
const DT_STRSZ: i64 = 10;
const DT_JMPREL: i64 = 23;
const DT_GNU_HASH: i64 = 0x6fff_fef5;
const DT_RELACOUNT: i64 = 0x6fff_fff9;

const STT_FUNC: u8 = 2;
const SHN_UNDEF: u16 = 0;

/// The relocations by which the loader writes a symbol's address into a word: JUMP_SLOT for calls, GLOB_DAT for other
/// uses in code, 64 or ABS64 in data.
#[cfg(target_arch = "x86_64")]
const ADDRESSES: [u32; 3] = [7, 6, 1];
#[cfg(target_arch = "aarch64")]
const ADDRESSES: [u32; 3] = [1026, 1025, 257];
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
const ADDRESSES: [u32; 0] = [];

/// An object's tables.
pub(super) struct Tables<'o> {
    object: &'o Object,
    symbols: usize,
    strings: &'o [u8],
    /// The hash tables' addresses. They tell the number of symbols.
    hash: Option<usize>,
    gnu_hash: Option<usize>,
    /// Of data, and of calls.
    relocations: [&'o [Relocation]; 2],
}

/// A word that holds the address of a symbol.
pub(super) struct Reference {
    pub(super) slot: usize,
    pub(super) symbol: usize,
}

impl<'o> Tables<'o> {
    /// Finds the tables. None if they are missing or cannot be read.
    pub(super) fn of(object: &'o Object) -> Option<Self> {
        let dynamic = object.dynamic();
        let entries: &[Dynamic] = object.table(dynamic.start, dynamic.len() / size_of::<Dynamic>())?;
        let number = |tag: i64| {
            let mut entries = entries.iter().take_while(|entry| entry.tag != DT_NULL);
            entries.find(|entry| entry.tag == tag).map(|entry| entry.value as usize)
        };
        // glibc makes these absolute in memory. Other loaders do not, nor does the kernel for its own object.
        let address = |tag: i64| {
            let value = number(tag)?;
            let moved = object.base().wrapping_add(value);
            [value, moved].into_iter().find(|&address| object.holds(address))
        };
        let relocations = |start: i64, bytes: i64, skipped: usize| -> &'o [Relocation] {
            let count = number(bytes).unwrap_or(0) / size_of::<Relocation>();
            let table = address(start).and_then(|start| object.table(start, count)).unwrap_or(&[]);
            table.get(skipped..).unwrap_or(&[])
        };
        Some(Tables {
            object,
            symbols: address(DT_SYMTAB)?,
            strings: object.table(address(DT_STRTAB)?, number(DT_STRSZ)?)?,
            hash: address(DT_HASH),
            gnu_hash: address(DT_GNU_HASH),
            relocations: [
                // The first DT_RELACOUNT entries refer to no symbol. They are most of a large library's.
                relocations(DT_RELA, DT_RELASZ, number(DT_RELACOUNT).unwrap_or(0)),
                relocations(DT_JMPREL, DT_PLTRELSZ, 0),
            ],
        })
    }

    /// Returns every word that holds, or will hold, the address of a symbol.
    pub(super) fn references(&self) -> impl Iterator<Item = Reference> {
        let base = self.object.base();
        let relocations = self.relocations.into_iter().flatten();
        let addresses =
            relocations.filter(|relocation| relocation.addend == 0 && ADDRESSES.contains(&(relocation.info as u32)));
        addresses.map(move |relocation| Reference {
            slot: base.wrapping_add(relocation.offset as usize),
            symbol: (relocation.info >> 32) as usize,
        })
    }

    /// Returns the symbol of this index.
    pub(super) fn symbol(&self, index: usize) -> Option<&'o Symbol> {
        self.object.value(self.symbols.checked_add(index.checked_mul(size_of::<Symbol>())?)?)
    }

    /// Answers whether this is a symbol's name.
    pub(super) fn is_named(&self, symbol: &Symbol, name: &CStr) -> bool {
        let name = name.to_bytes_with_nul();
        self.strings.get(symbol.name as usize..).is_some_and(|strings| strings.starts_with(name))
    }

    /// Returns the functions that the object defines, with their indices. None without a readable hash table.
    pub(super) fn functions(&self) -> Option<impl Iterator<Item = (usize, &'o Symbol)>> {
        let count = self.count_by_hash().or_else(|| self.count_by_gnu_hash())?;
        let symbols: &[Symbol] = self.object.table(self.symbols, count)?;
        let defined = |symbol: &Symbol| symbol.info & 0xf == STT_FUNC && symbol.section != SHN_UNDEF;
        Some(symbols.iter().enumerate().filter(move |(_, symbol)| defined(symbol)))
    }

    /// Reads the number of symbols from a hash table of the older kind.
    fn count_by_hash(&self) -> Option<usize> {
        let header: &[u32] = self.object.table(self.hash?, 2)?;
        Some(header[1] as usize)
    }

    /// Finds the number of symbols in a hash table of the newer kind, by the end of its last chain.
    fn count_by_gnu_hash(&self) -> Option<usize> {
        const HEADER: usize = 4;
        let words: &[u32] = self.object.rest(self.gnu_hash?)?;
        let &[buckets, first, bloom, _] = words.first_chunk::<HEADER>()?;
        let (buckets, first) = (buckets as usize, first as usize);
        // Words of the filter are as wide as addresses.
        let chains = words.get(HEADER.checked_add((bloom as usize).checked_mul(2)?)?..)?;
        let last = *chains.get(..buckets)?.iter().max()? as usize;
        let chain = chains.get(buckets..)?.get(last.checked_sub(first)?..)?;
        // The lowest bit marks the end of a chain.
        let further = chain.iter().position(|hash| hash & 1 != 0)?;
        Some(last + further + 1)
    }
}

#[cfg(test)]
mod tests {
    use std::ptr::null_mut;

    use proptest::prelude::*;

    use super::*;

    const BYTES: usize = 1 << 14;

    /// Memory that ends where nothing can be read, so that a read beyond it ends the test.
    struct Guarded(*mut u8);

    impl Guarded {
        fn new() -> Self {
            let (rights, kind) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
            // SAFETY: new memory, of which the second half becomes inaccessible.
            unsafe {
                let memory = libc::mmap(null_mut(), 2 * BYTES, rights, kind, -1, 0);
                assert_ne!(memory, libc::MAP_FAILED);
                assert_eq!(libc::mprotect(memory.byte_add(BYTES), BYTES, libc::PROT_NONE), 0);
                Guarded(memory.cast())
            }
        }

        /// Everything that is asked of an object, with the first words as its dynamic section.
        fn walk(&self, words: &[u64]) {
            let start = self.0.expose_provenance();
            // SAFETY: the memory is as large, and nobody else's.
            let object = unsafe {
                std::ptr::copy_nonoverlapping(words.as_ptr(), self.0.cast(), words.len().min(BYTES / 8));
                Object::of_one_segment(start..start + BYTES, start..start + DYNAMIC * 16)
            };
            let Some(tables) = Tables::of(&object) else { return };
            for reference in tables.references() {
                let _ = object.writable_word(reference.slot);
                let _ = tables.symbol(reference.symbol).map(|symbol| tables.is_named(symbol, c"name"));
            }
            if let Some(functions) = tables.functions() {
                functions.for_each(|(_, symbol)| assert!(!tables.is_named(symbol, c"no such name")));
            }
        }
    }

    impl Drop for Guarded {
        fn drop(&mut self) {
            // SAFETY: made in `new`.
            unsafe { libc::munmap(self.0.cast(), 2 * BYTES) };
        }
    }

    /// Entries of the dynamic section.
    const DYNAMIC: usize = 12;

    fn entry() -> impl Strategy<Value = [u64; 2]> {
        let tags = [
            DT_PLTRELSZ,
            DT_HASH,
            DT_STRTAB,
            DT_SYMTAB,
            DT_RELA,
            DT_RELASZ,
            DT_STRSZ,
            DT_JMPREL,
            DT_GNU_HASH,
            DT_RELACOUNT,
        ];
        let value = prop_oneof![6 => 0..BYTES as u64 + 64, 1 => any::<u64>(), 1 => Just(u64::MAX)];
        (prop::sample::select(tags.to_vec()), value).prop_map(|(tag, value)| [tag as u64, value])
    }

    fn word() -> impl Strategy<Value = u64> {
        prop_oneof![4 => 0..64_u64, 2 => any::<u32>().prop_map(u64::from), 1 => any::<u64>()]
    }

    proptest! {
        #[test]
        fn whatever_an_object_holds_nothing_beyond_it_is_read(
            dynamic in prop::collection::vec(entry(), DYNAMIC),
            rest in prop::collection::vec(word(), 0..BYTES / 8 - 2 * DYNAMIC),
        ) {
            let words: Vec<u64> = dynamic.into_iter().flatten().chain(rest).collect();
            Guarded::new().walk(&words);
        }
    }
}
