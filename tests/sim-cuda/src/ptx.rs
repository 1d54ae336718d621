//! Reads PTX: the kernels of programs, which have no version in Rust here.
//!
//! It knows what compilers make of plain kernels: arithmetic, comparisons, branches, loads and stores. Text with anything
//! else (barriers, shared or local memory, functions, atomic operations) is refused with a line that says what it is.

use std::collections::HashMap;

use crate::ptx_math::{Comparison, Half, Kind, Operation, Type};

/// A kernel.
pub(crate) struct Entry {
    pub(crate) name: String,
    /// Where each parameter lies, and its bytes.
    pub(crate) parameters: Vec<(usize, usize)>,
    pub(crate) registers: usize,
    pub(crate) code: Vec<Instruction>,
}

impl Entry {
    /// Returns the bytes of all parameters.
    pub(crate) fn parameter_bytes(&self) -> usize {
        self.parameters.last().map_or(0, |(at, bytes)| at + bytes)
    }
}

pub(crate) struct Instruction {
    /// The register that decides whether it runs, and the value that it must have.
    pub(crate) guard: Option<(usize, bool)>,
    pub(crate) action: Action,
    pub(crate) kind: Type,
    /// The results, then the sources.
    pub(crate) operands: Vec<Operand>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Action {
    /// Loads as many elements as there are results.
    Load,
    LoadParameter,
    Store,
    Move,
    Convert(Type),
    Operate(Operation),
    Multiply(Half),
    MultiplyAdd(Half),
    Fuse,
    Compare(Comparison),
    Select,
    Branch,
    Return,
    Fence,
    /// Ends the kernel, and its context with it.
    Trap,
    Nothing,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Operand {
    Register(usize),
    /// A number, or the place of an instruction.
    Value(u64),
    Special(Special),
    /// The address that a register or a parameter's place has, and a distance from it.
    Address(usize, i64),
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Special {
    Thread(usize),
    Threads(usize),
    Block(usize),
    Blocks(usize),
    Nanoseconds,
}

/// Reads all kernels of a text.
pub(crate) fn read(text: &str) -> Result<Vec<Entry>, String> {
    let text = without_comments(text);
    text.split(".entry ").skip(1).map(entry).collect()
}

fn without_comments(text: &str) -> String {
    let mut clean = String::new();
    for line in text.lines() {
        clean.push_str(line.split("//").next().unwrap_or_default());
        clean.push('\n');
    }
    let mut parts = clean.split("/*");
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |text, part| text + " " + part.split_once("*/").map_or("", |(_, rest)| rest))
}

fn entry(text: &str) -> Result<Entry, String> {
    let broken = || "the text of a kernel breaks off".to_owned();
    let (name, rest) = text.split_once('(').ok_or_else(broken)?;
    let (parameters, rest) = rest.split_once(')').ok_or_else(broken)?;
    let (_, body) = rest.split_once('{').ok_or_else(broken)?;
    let mut reader = Reader::default();
    for parameter in parameters.split(',').map(str::trim).filter(|parameter| !parameter.is_empty()) {
        reader.parameter(parameter)?;
    }
    let mut depth = 1_usize;
    let mut statement = String::new();
    for letter in body.chars() {
        match letter {
            '{' => depth += 1,
            '}' if depth == 1 => break,
            '}' => depth -= 1,
            _ => {}
        }
        match letter {
            ';' => reader.statement(std::mem::take(&mut statement).trim())?,
            ':' => {
                let label = std::mem::take(&mut statement).trim().to_owned();
                reader.labels.insert(label, reader.code.len() as u64);
            }
            _ => statement.push(letter),
        }
    }
    for (at, label) in &reader.branches {
        let place = reader.labels.get(label).ok_or_else(|| format!("there is no label {label}"))?;
        reader.code[*at].operands = vec![Operand::Value(*place)];
    }
    let Reader { places, code, registers, .. } = reader;
    Ok(Entry { name: name.trim().to_owned(), parameters: places, registers: registers.len(), code })
}

/// What was read of a kernel so far.
#[derive(Default)]
struct Reader {
    parameters: HashMap<String, usize>,
    places: Vec<(usize, usize)>,
    registers: HashMap<String, usize>,
    labels: HashMap<String, u64>,
    /// The branches whose labels are not resolved.
    branches: Vec<(usize, String)>,
    code: Vec<Instruction>,
}

impl Reader {
    /// Reads `.param .u64 NAME`, or `.param .align 8 .b8 NAME[24]`.
    fn parameter(&mut self, text: &str) -> Result<(), String> {
        let unknown = || format!("the parameter {text}");
        let mut words = text.split_whitespace().filter(|word| *word != ".param");
        let (mut align, mut kind, mut name) = (None, None, "");
        while let Some(word) = words.next() {
            match word {
                ".align" => align = words.next().and_then(|number| number.parse().ok()),
                word => match word.strip_prefix('.') {
                    Some(word) => kind = Type::named(word),
                    None => name = word,
                },
            }
        }
        let kind = kind.ok_or_else(unknown)?;
        let (name, count) = match name.split_once('[') {
            Some((name, count)) => (name, count.trim_end_matches(']').parse().map_err(|_| unknown())?),
            None => (name, 1),
        };
        let bytes = kind.bytes() * count;
        let end = self.places.last().map_or(0, |(at, bytes)| at + bytes);
        let at = end.next_multiple_of(align.unwrap_or_else(|| kind.bytes()));
        self.places.push((at, bytes));
        self.parameters.insert(name.to_owned(), at);
        Ok(())
    }

    fn statement(&mut self, text: &str) -> Result<(), String> {
        if let Some(list) = text.strip_prefix(".reg") {
            return self.declare(list.trim());
        }
        if text.starts_with('.') {
            return match text.split_whitespace().next() {
                Some(".loc" | ".pragma") => Ok(()),
                _ => Err(text.to_owned()),
            };
        }
        let (guard, text) = match text.strip_prefix('@') {
            Some(rest) => {
                let (name, rest) = rest.split_once(char::is_whitespace).ok_or_else(|| text.to_owned())?;
                let plain = name.trim_start_matches('!');
                (Some((self.register(plain)?, plain.len() == name.len())), rest.trim())
            }
            None => (None, text),
        };
        let (name, rest) = text.split_once(char::is_whitespace).unwrap_or((text, ""));
        let (action, kind) = decode(name).ok_or_else(|| text.to_owned())?;
        let operands = if action == Action::Branch {
            self.branches.push((self.code.len(), rest.trim().to_owned()));
            Vec::new()
        } else {
            // The elements of vectors follow one another.
            let rest = rest.replace(['{', '}'], "");
            let words = rest.split(',').map(str::trim).filter(|word| !word.is_empty());
            words.map(|word| self.operand(word)).collect::<Result<_, _>>()?
        };
        self.code.push(Instruction { guard, action, kind, operands });
        Ok(())
    }

    /// Reads `.b32 %r<14>`, or `.b32 %one, %other`.
    fn declare(&mut self, list: &str) -> Result<(), String> {
        let (_, names) = list.split_once(char::is_whitespace).ok_or_else(|| list.to_owned())?;
        for name in names.split(',').map(str::trim) {
            match name.split_once('<') {
                Some((stem, count)) => {
                    let count: usize = count.trim_end_matches('>').parse().map_err(|_| list.to_owned())?;
                    (0..count).for_each(|number| self.add_register(format!("{stem}{number}")));
                }
                None => self.add_register(name.to_owned()),
            }
        }
        Ok(())
    }

    fn add_register(&mut self, name: String) {
        let number = self.registers.len();
        self.registers.insert(name, number);
    }

    fn register(&self, name: &str) -> Result<usize, String> {
        self.registers.get(name).copied().ok_or_else(|| format!("there is no register {name}"))
    }

    fn operand(&self, word: &str) -> Result<Operand, String> {
        if let Some(inner) = word.strip_prefix('[') {
            let inner = inner.trim_end_matches(']');
            let (base, offset) = match inner.split_once('+') {
                Some((base, offset)) => (base.trim(), offset.trim().parse().map_err(|_| word.to_owned())?),
                None => (inner, 0),
            };
            let base = match self.parameters.get(base) {
                Some(place) => *place,
                None => self.register(base)?,
            };
            return Ok(Operand::Address(base, offset));
        }
        // A program may give a register the name of a special one.
        if let Ok(register) = self.register(word) {
            return Ok(Operand::Register(register));
        }
        special(word).map(Operand::Special).or_else(|| number(word).map(Operand::Value)).ok_or_else(|| word.to_owned())
    }
}

fn special(word: &str) -> Option<Special> {
    let (name, axis) = word.split_once('.').unwrap_or((word, "x"));
    let axis = ["x", "y", "z"].iter().position(|known| *known == axis)?;
    Some(match name {
        "%tid" => Special::Thread(axis),
        "%ntid" => Special::Threads(axis),
        "%ctaid" => Special::Block(axis),
        "%nctaid" => Special::Blocks(axis),
        "%globaltimer" | "%clock64" => Special::Nanoseconds,
        _ => return None,
    })
}

fn number(word: &str) -> Option<u64> {
    let hexadecimal = ["0x", "0d", "0D", "0f", "0F"].iter().find_map(|prefix| word.strip_prefix(prefix));
    match hexadecimal {
        Some(digits) => u64::from_str_radix(digits.trim_end_matches('U'), 16).ok(),
        None => word.trim_end_matches('U').parse::<i128>().ok().map(|number| number as u64),
    }
}

/// Returns what an instruction of this name does, and the type of its operands.
fn decode(name: &str) -> Option<(Action, Type)> {
    let mut parts = name.split('.');
    let stem = parts.next()?;
    let parts: Vec<&str> = parts.collect();
    let kinds: Vec<Type> = parts.iter().filter_map(|part| Type::named(part)).collect();
    let has = |part| parts.contains(&part);
    let half = || Half::named(&parts);
    let action = match stem {
        "ret" | "exit" => return Some((Action::Return, Type::WORD)),
        "bra" => return Some((Action::Branch, Type::WORD)),
        "trap" => return Some((Action::Trap, Type::WORD)),
        "membar" | "fence" => return Some((Action::Fence, Type::WORD)),
        "nanosleep" => return Some((Action::Nothing, Type::WORD)),
        "ld" if has("param") => Action::LoadParameter,
        "ld" | "st" if has("shared") || has("local") || has("const") => return None,
        "ld" => Action::Load,
        "st" => Action::Store,
        "mov" | "cvta" => Action::Move,
        "cvt" if kinds.len() == 2 => Action::Convert(kinds[1]),
        "setp" => Action::Compare(parts.iter().find_map(|part| Comparison::named(part))?),
        "selp" => Action::Select,
        "fma" => Action::Fuse,
        "mad" => Action::MultiplyAdd(half()?),
        "mul" if kinds.last()?.kind != Kind::Float => Action::Multiply(half()?),
        _ => Action::Operate(Operation::named(stem, kinds.last()?.kind)?),
    };
    let kind = if matches!(action, Action::Convert(_)) { kinds.first() } else { kinds.last() };
    Some((action, *kind?))
}
