//! Reductions by functions of the program.

use crate::error::Error;
use crate::function::{FunctionElement, FunctionOperands, Reduced};
use crate::plan::pieces::{Elements, Ends, Pieces};
use crate::plan::shares::{Results, Shares};
use crate::plan::{Kind, Me, Place, Plan};

/// Adds the steps, in pieces of at most `segment` bytes. They work in host memory, whatever the operands are in. The root
/// and the counts are valid.
pub(crate) fn by_function(
    plan: &mut Plan,
    (me, segment): (Me, u64),
    call: &FunctionOperands<'_>,
    reduced: &Reduced,
) -> Result<(), Error> {
    let elements = elements(plan, call)?;
    if elements.size == 0 || call.count == 0 {
        return Ok(());
    }
    plan.function = Some(call.function);
    let count = call.count;
    let has_output = match reduced {
        Reduced::AtRoot(root) => *root == me.rank,
        Reduced::ExclusiveScan => me.rank > 0,
        _ => true,
    };
    let output = Place::User(call.output as usize);
    let input = call.input.map_or(output, |input| Place::User(input as usize));
    let ends = Ends { input, output: has_output.then_some(output) };
    let pieces = Pieces { me, elements, ends, segment };
    match reduced {
        Reduced::Everywhere if me.size > 1 => {
            pieces.exchange(plan, &Shares::even(count, me.size), Results::Everywhere);
        }
        Reduced::AtRoot(root) if me.size > 1 => {
            pieces.exchange(plan, &Shares::even(count, me.size), Results::AtRoot(*root));
        }
        Reduced::Scattered(counts) if me.size > 1 => {
            pieces.exchange(plan, &Shares::of(counts.iter().copied()), Results::Scattered);
        }
        Reduced::ExclusiveScan | Reduced::Scan if me.size > 1 => {
            pieces.scan(plan, count, matches!(reduced, Reduced::ExclusiveScan));
        }
        Reduced::ExclusiveScan => {}
        Reduced::Locally => pieces.local(plan, count),
        // A single rank.
        _ if input == output => {}
        _ => drop(plan.copy(elements.block(input, count), elements.block(output, count), &[])),
    }
    Ok(())
}

/// Describes the elements, and checks that memory can hold them.
fn elements(plan: &mut Plan, call: &FunctionOperands<'_>) -> Result<Elements, Error> {
    let (elements, span) = match call.element {
        FunctionElement::Dense { size, offset } => {
            let signed = i64::try_from(size).ok();
            let elements = Elements {
                kind: Kind::Bytes,
                size,
                extent: signed.unwrap_or(0),
                bounds: (offset, offset.saturating_add(signed.unwrap_or(0))),
            };
            (elements, signed.and(size.checked_mul(call.count)))
        }
        FunctionElement::Layout(layout) => {
            let bounds = (layout.true_lb(), layout.true_lb().saturating_add_unsigned(layout.true_extent()));
            let kind = plan.kind(layout);
            let elements = Elements { kind, size: layout.size(), extent: layout.extent(), bounds };
            let empty = call.count == 0 || layout.size() == 0;
            let data = layout.packed_size(call.count).ok();
            (elements, if empty { Some(0) } else { data.and(layout.span(call.count)).map(|span| span.1) })
        }
    };
    let fits = span.is_some_and(|span| i64::try_from(span).is_ok());
    if fits { Ok(elements) } else { Err(Error::TooMuchData { count: call.count, size: elements.size }) }
}
