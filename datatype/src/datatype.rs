//! A datatype: its name, its bounds and its layout.

use std::borrow::Cow;
use std::fmt;
use std::sync::{Arc, OnceLock};

use crate::bounds::Bounds;
use crate::layout::Layout;
use crate::node::{Node, Placed};
use crate::normal::compress;

/// An MPI datatype. It is immutable, and clones share it. Other types may be built from it, and it may be dropped
/// before them.
///
/// Sizes, extents and bounds are in bytes, with the meaning of the MPI standard. The extent is rounded up to the
/// alignment of the basic types in it, unless [`Datatype::resized`] or an array constructor has set it. The *true*
/// bounds are those of the data alone.
#[derive(Clone)]
pub struct Datatype {
    inner: Arc<Inner>,
}

struct Inner {
    name: Cow<'static, str>,
    size: u64,
    bounds: Bounds,
    /// The layout of the type's bytes; `None` for a type without data.
    pattern: Option<Placed>,
    layout: OnceLock<Layout>,
}

impl Datatype {
    /// Returns the layout for communication. It is the same every time.
    pub fn commit(&self) -> Layout {
        let make = || Layout::new(self.inner.pattern.clone(), self.extent(), &self.inner.bounds);
        self.inner.layout.get_or_init(make).clone()
    }

    /// Returns the bytes of data in one element.
    pub fn size(&self) -> u64 {
        self.inner.size
    }

    /// Returns the distance between consecutive elements of a message.
    pub fn extent(&self) -> i64 {
        narrow(self.inner.bounds.upper() - self.inner.bounds.lower())
    }

    /// Returns the lower bound.
    pub fn lb(&self) -> i64 {
        narrow(self.inner.bounds.lower())
    }

    /// Returns the upper bound.
    pub fn ub(&self) -> i64 {
        narrow(self.inner.bounds.upper())
    }

    /// Returns the lowest offset of any byte of data; 0 for a type without data.
    pub fn true_lb(&self) -> i64 {
        narrow(self.inner.bounds.data.map_or(0, |(lower, _)| lower))
    }

    /// Returns the distance from the lowest byte to the end of the highest byte; 0 for a type without data.
    pub fn true_extent(&self) -> i64 {
        narrow(self.inner.bounds.data.map_or(0, |(lower, upper)| upper - lower))
    }

    /// Returns the name: MPI's for a predefined type, otherwise the constructor's, unless [`named`](Self::named) has
    /// set it.
    pub fn name(&self) -> &str {
        &self.inner.name
    }

    /// Returns the same type with another name.
    pub fn named(&self, name: impl Into<String>) -> Datatype {
        self.derive(Cow::Owned(name.into()), self.inner.bounds)
    }

    /// Creates a predefined type from its fields' offsets and sizes, and its alignment.
    pub(crate) fn basic(name: &'static str, fields: &[(u64, u64)], alignment: u64) -> Datatype {
        let placed = |&(offset, size): &(u64, u64)| Placed { offset: offset as i64, node: Node::Block(size) };
        let size = fields.iter().map(|field| field.1).sum();
        let end = fields.iter().map(|&(offset, size)| i128::from(offset + size)).max().unwrap_or(0);
        let bounds = Bounds { data: Some((0, end)), markers: None, alignment };
        Self::new(Cow::Borrowed(name), size, bounds, compress(fields.iter().map(placed).collect()))
    }

    /// `bounds` fit and are those of `pattern`, and `size` is its size.
    pub(crate) fn new(name: Cow<'static, str>, size: u64, bounds: Bounds, pattern: Option<Placed>) -> Datatype {
        Datatype { inner: Arc::new(Inner { name, size, bounds, pattern, layout: OnceLock::new() }) }
    }

    /// Returns the same data with other bounds, which fit.
    pub(crate) fn derive(&self, name: Cow<'static, str>, bounds: Bounds) -> Datatype {
        Self::new(name, self.inner.size, bounds, self.inner.pattern.clone())
    }

    pub(crate) fn bounds(&self) -> &Bounds {
        &self.inner.bounds
    }

    pub(crate) fn pattern(&self) -> Option<&Placed> {
        self.inner.pattern.as_ref()
    }
}

/// Constructors reject bounds that do not fit.
fn narrow(bound: i128) -> i64 {
    bound as i64
}

impl fmt::Debug for Datatype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Datatype")
            .field("name", &self.name())
            .field("size", &self.size())
            .field("lb", &self.lb())
            .field("extent", &self.extent())
            .finish_non_exhaustive()
    }
}
