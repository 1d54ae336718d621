//! Operands of the elements that a plan reduces.

use cableway_common_cuda::Element;
use cableway_datatype::{Datatype, Layout, Predefined};

use super::operands::Operands;
use super::{Kind, Place, Plan};

/// Describes operands at these places. In place, both are the same.
pub(crate) fn operands(plan: &mut Plan, element: Element, input: Place, output: Place) -> Operands {
    let kind = packed(element).map_or(Kind::Bytes, |layout| plan.kind(&layout));
    Operands::of(kind, element.size() as u64, input, output)
}

/// Returns the layout of an element that has a gap.
fn packed(element: Element) -> Option<Layout> {
    let parts = element.parts();
    if parts.iter().map(|part| part.1).sum::<usize>() == element.size() {
        return None;
    }
    let lengths: Vec<i64> = parts.iter().map(|part| part.1 as i64).collect();
    let offsets: Vec<i64> = parts.iter().map(|part| part.0 as i64).collect();
    let blocks = Datatype::hindexed(&lengths, &offsets, &Predefined::Byte.datatype());
    let element = blocks.and_then(|blocks| Datatype::resized(&blocks, 0, element.size() as i64));
    element.ok().map(|element| element.commit())
}
