//! Opaque handles of a driver's objects.

/// Defines a handle with one owner. It cannot be copied, and its destruction consumes it.
macro_rules! owned {
    ($($(#[$meta:meta])* $name:ident;)+) => {$(
        $(#[$meta])*
        #[derive(Debug, PartialEq, Eq)]
        pub(crate) struct $name(usize);

        impl $name {
            /// Wraps what the vendor's library has handed out.
            pub(crate) const fn new(raw: usize) -> Self {
                $name(raw)
            }

            /// Returns the vendor library's own handle.
            #[inline]
            pub(crate) const fn raw(&self) -> usize {
                self.0
            }
        }
    )+};
}

owned! {
    /// A stream: copies and kernels in it run in their order.
    Stream;
    /// A point in a stream.
    Event;
    /// Loaded kernels.
    Module;
    /// A pool of stream-ordered allocations: made by us, or imported from another process.
    Pool;
}

/// A kernel of a module, valid while that is loaded.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Function(pub(crate) usize);

/// A context of the program's. Drivers use handles again; [`Contexts::context_id`](super::Contexts::context_id) tells
/// two contexts apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ContextHandle(pub(crate) usize);
