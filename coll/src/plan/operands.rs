//! The operands of a reduction: where a rank's input and output are while the algorithm runs.

use super::block::{Block, Kind, Place};

/// A rank's input and output. Both hold elements without gaps between them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Operands {
    input: Place,
    output: Place,
    size: u64,
    kind: Kind,
}

impl Operands {
    /// Describes operands whose elements have this kind and size.
    pub(crate) fn of(kind: Kind, size: u64, input: Place, output: Place) -> Operands {
        Operands { input, output, size, kind }
    }

    /// Returns the same operands with another output.
    pub(crate) fn with_output(self, output: Place) -> Operands {
        Operands { output, ..self }
    }

    /// Returns the operands from this element on.
    pub(crate) fn from(self, element: u64) -> Operands {
        Operands { input: self.input(element), output: self.output(element), ..self }
    }

    /// Returns the same operands in place, with the input where the output is.
    pub(crate) fn in_its_output(self) -> Operands {
        Operands { input: self.output, ..self }
    }

    /// Returns the bytes of memory of some elements.
    pub(crate) fn bytes(&self, elements: u64) -> u64 {
        elements * self.size
    }

    pub(crate) fn input(&self, element: u64) -> Place {
        self.input.plus(self.bytes(element))
    }

    pub(crate) fn output(&self, element: u64) -> Place {
        self.output.plus(self.bytes(element))
    }

    pub(crate) fn in_place(&self) -> bool {
        self.input == self.output
    }

    /// Describes a message of some elements. It leaves out gaps within them, which belong to the program.
    pub(crate) fn block(&self, place: Place, elements: u64) -> Block {
        match self.kind {
            Kind::Bytes => Block::bytes(place, self.bytes(elements)),
            typed => Block { place, count: elements, kind: typed },
        }
    }
}
