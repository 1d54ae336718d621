//! Calls that reduce elements.

use std::sync::atomic::AtomicU8;

use cableway_base::Rank;
use cableway_coll::{Call, Operands as Raw, ReduceOperation};

use super::{Member, Prepared};
use crate::Error;
use crate::elements::sealed::{Item, Read, Write};
use crate::elements::{RecvElements, SendElements};
use crate::error::Collective;

/// The operands of a reduction, as the program passes them.
pub(crate) struct Operands {
    raw: Raw,
    /// The number of elements of the output.
    outputs: Option<u64>,
}

impl Operands {
    /// The output, if this process gets one, is another buffer.
    pub(crate) fn apart<S, R>(send: &S, receive: Option<&mut R>, operation: ReduceOperation) -> Result<Operands, Error>
    where
        S: SendElements + ?Sized,
        R: RecvElements<Item = S::Item> + ?Sized,
    {
        let (input, count) = send.elements()?;
        let (output, outputs) = match receive.map(Write::elements_mut).transpose()? {
            None => (std::ptr::null_mut(), None),
            Some((output, count)) => (output, Some(count as u64)),
        };
        let element = <S as Read>::Item::ELEMENT;
        Ok(Operands { raw: Raw { operation, element, count: count as u64, input: Some(input), output }, outputs })
    }

    /// The output replaces the input.
    pub(crate) fn in_place<R: RecvElements + ?Sized>(
        buffer: &mut R,
        operation: ReduceOperation,
    ) -> Result<Operands, Error> {
        let (output, count) = buffer.elements_mut()?;
        let element = <R as Read>::Item::ELEMENT;
        let raw = Raw { operation, element, count: count as u64, input: None, output };
        Ok(Operands { raw, outputs: None })
    }

    fn describe(&self, name: &'static str, root: Option<Rank>) -> Collective {
        let bytes = self.raw.count.saturating_mul(self.raw.element.size() as u64);
        Collective { name, root, bytes: Some(bytes) }
    }

    /// Checks the operation, and that the output has so many elements.
    fn check(&self, outputs: u64, described: Collective) -> Result<(), Error> {
        let Raw { operation, element, .. } = self.raw;
        if !operation.applies_to(element) {
            return Err(described.failed(cableway_coll::Error::NotDefined { operation, element }));
        }
        match self.outputs {
            Some(given) if given != outputs => Err(described
                .refused(format!("the buffer for the result has {given} elements: pass one of {outputs} elements"))),
            _ => Ok(()),
        }
    }
}

pub(crate) fn allreduce(name: &'static str, operands: &Operands) -> Result<Prepared<'static>, Error> {
    let operation = operands.describe(name, None);
    operands.check(operands.raw.count, operation)?;
    Ok(Prepared { operation, call: Call::Allreduce(operands.raw) })
}

pub(crate) fn reduce(
    member: Member,
    (name, root): (&'static str, Rank),
    operands: &Operands,
) -> Result<Prepared<'static>, Error> {
    let operation = operands.describe(name, Some(root));
    member.check(operation)?;
    let mut raw = operands.raw;
    if member.rank == root {
        if raw.input.is_some() && operands.outputs.is_none() {
            return Err(operation.refused("the root needs a buffer for the result".to_owned()));
        }
        operands.check(raw.count, operation)?;
    } else {
        // Only the root has a result, so elsewhere the data is only read.
        raw.input = raw.input.or(Some(raw.output));
        operands.check(operands.outputs.unwrap_or(0), operation)?;
    }
    Ok(Prepared { operation, call: Call::Reduce { operands: raw, root } })
}

/// Without counts, each rank gets the same number of elements.
pub(crate) fn reduce_scatter(
    member: Member,
    name: &'static str,
    operands: &Operands,
    counts: Option<&[usize]>,
) -> Result<Prepared<'static>, Error> {
    let operation = operands.describe(name, None);
    let (count, size) = (operands.raw.count, u64::from(member.size));
    let counts: Vec<u64> = match counts {
        Some(counts) => counts.iter().map(|&count| count as u64).collect(),
        None if count.is_multiple_of(size) => vec![count / size; size as usize],
        None => {
            let reason = format!("{count} elements cannot be divided evenly among {size} ranks");
            return Err(operation.refused(reason));
        }
    };
    if counts.len() != size as usize {
        let (list, len, size) = ("counts", counts.len(), member.size);
        return Err(operation.failed(cableway_coll::Error::WrongLength { list, len, size }));
    }
    let sum = counts.iter().fold(0_u64, |sum, &count| sum.saturating_add(count));
    if sum != count {
        return Err(operation.failed(cableway_coll::Error::WrongSum { sum, count }));
    }
    operands.check(counts[member.rank as usize], operation)?;
    Ok(Prepared { operation, call: Call::ReduceScatter { operands: operands.raw, counts } })
}

pub(crate) fn scan(name: &'static str, operands: &Operands, exclusive: bool) -> Result<Prepared<'static>, Error> {
    let operation = operands.describe(name, None);
    operands.check(operands.raw.count, operation)?;
    let call = if exclusive { Call::ExclusiveScan(operands.raw) } else { Call::Scan(operands.raw) };
    Ok(Prepared { operation, call })
}

/// A reduction of one byte, whose result no member has before all have contributed.
pub(crate) fn barrier(token: &AtomicU8) -> Prepared<'static> {
    let operation = Collective { name: "barrier", root: None, bytes: None };
    let (element, output) = (<u8 as Item>::ELEMENT, token.as_ptr());
    let raw = Raw { operation: ReduceOperation::BitOr, element, count: 1, input: None, output };
    Prepared { operation, call: Call::Allreduce(raw) }
}
