//! Layouts of datatypes that a program makes again and again.
//!
//! Programs that transpose arrays make their types for each call. To derive a layout takes time for each of its blocks, which
//! are thousands. So the layouts that were used last are kept, by Open MPI's descriptions of their types.

use std::collections::VecDeque;

use cableway_datatype::Layout;
use parking_lot::Mutex;

/// The number of layouts that are kept.
const MOST: usize = 64;

/// The layouts of this process.
pub(crate) static LAYOUTS: Layouts = Layouts { latest: Mutex::new(VecDeque::new()) };

/// Layouts, and the descriptions of their types.
pub(crate) struct Layouts {
    /// The one that was used last comes first.
    latest: Mutex<VecDeque<Known>>,
}

struct Known {
    description: Box<[i64]>,
    layout: Layout,
}

impl Layouts {
    /// Returns the layout of the type with this description, if it is kept.
    pub(crate) fn find(&self, description: &[i64]) -> Option<Layout> {
        let mut latest = self.latest.lock();
        let place = latest.iter().position(|known| *known.description == *description)?;
        let known = latest.remove(place)?;
        let layout = known.layout.clone();
        latest.push_front(known);
        Some(layout)
    }

    /// Keeps a layout. Types with equal descriptions have equal layouts.
    pub(crate) fn keep(&self, description: &[i64], layout: &Layout) {
        let mut latest = self.latest.lock();
        latest.truncate(MOST - 1);
        latest.push_front(Known { description: description.into(), layout: layout.clone() });
    }
}

#[cfg(test)]
mod tests {
    use cableway_datatype::Predefined;

    use super::*;

    #[test]
    fn the_layouts_used_last_are_kept() {
        let layouts = Layouts { latest: Mutex::default() };
        let bytes = Predefined::Byte.datatype().commit();
        let ints = Predefined::Int.datatype().commit();
        layouts.keep(&[1, 2], &ints);
        assert!(layouts.find(&[1]).is_none() && layouts.find(&[2, 1]).is_none());
        for number in 0..2 * MOST as i64 {
            layouts.keep(&[number], &bytes);
            assert!(layouts.find(&[1, 2]).is_some_and(|layout| layout == ints), "it is in use");
        }
        assert_eq!(layouts.latest.lock().len(), MOST);
        assert!(layouts.find(&[0]).is_none());
        assert!(layouts.find(&[2 * MOST as i64 - 1]).is_some_and(|layout| layout == bytes));
    }
}
