//! Layouts of datatypes that a program makes again and again.

use std::collections::VecDeque;

use crate::layout::Layout;

/// The number of layouts that are kept.
const MOST: usize = 64;

/// The layouts that were used last, by descriptions of their types.
///
/// Programs that transpose arrays make their types for each call. To derive a layout takes time for each of its blocks, which
/// are thousands. A description is whatever determines the layout, in a form of the caller's choice. At most 64 layouts are
/// kept.
#[derive(Default)]
pub struct KeptLayouts {
    /// The one that was used last comes first.
    latest: VecDeque<Kept>,
}

struct Kept {
    description: Box<[i64]>,
    layout: Layout,
}

impl KeptLayouts {
    /// Keeps no layout yet.
    pub const fn new() -> KeptLayouts {
        KeptLayouts { latest: VecDeque::new() }
    }

    /// Returns the layout of the type with this description, if it is kept.
    pub fn find(&mut self, description: &[i64]) -> Option<Layout> {
        let place = self.latest.iter().position(|kept| *kept.description == *description)?;
        let kept = self.latest.remove(place)?;
        let layout = kept.layout.clone();
        self.latest.push_front(kept);
        Some(layout)
    }

    /// Keeps a layout if its data are blocks at regular distances: others may be as large as the data that they describe.
    /// Returns a layout that is not kept any more.
    pub fn keep(&mut self, description: &[i64], layout: &Layout) -> Option<Layout> {
        layout.strided(1)?;
        let oldest = if self.latest.len() < MOST { None } else { self.latest.pop_back() };
        self.latest.push_front(Kept { description: description.into(), layout: layout.clone() });
        oldest.map(|kept| kept.layout)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Predefined;

    #[test]
    fn the_layouts_used_last_are_kept() {
        let mut layouts = KeptLayouts::new();
        let bytes = Predefined::Byte.datatype().commit();
        let ints = Predefined::Int.datatype().commit();
        assert!(layouts.keep(&[1, 2], &ints).is_none());
        assert!(layouts.find(&[1]).is_none() && layouts.find(&[2, 1]).is_none());
        for number in 0..2 * MOST as i64 {
            let forgotten = layouts.keep(&[number], &bytes);
            assert_eq!(forgotten.is_some(), number >= MOST as i64 - 1);
            assert!(layouts.find(&[1, 2]).is_some_and(|layout| layout == ints), "it is in use");
        }
        assert_eq!(layouts.latest.len(), MOST);
        assert!(layouts.find(&[0]).is_none());
        assert!(layouts.find(&[2 * MOST as i64 - 1]).is_some_and(|layout| layout == bytes));
    }

    #[test]
    fn layouts_with_a_list_of_blocks_are_not_kept() {
        let mut layouts = KeptLayouts::new();
        let irregular = crate::Datatype::indexed(&[1, 3, 2], &[0, 4, 9], &Predefined::Int.datatype()).unwrap();
        assert!(layouts.keep(&[1], &irregular.commit()).is_none());
        assert!(layouts.find(&[1]).is_none());
    }
}
