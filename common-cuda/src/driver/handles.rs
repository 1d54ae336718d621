//! Opaque handles of a driver's objects.

/// Defines a handle with one owner. It cannot be copied, and destruction consumes it.
macro_rules! owned {
    ($($(#[$meta:meta])* $name:ident;)+) => {$(
        $(#[$meta])*
        #[derive(Debug, PartialEq, Eq)]
        pub(crate) struct $name(usize);

        impl $name {
            /// Wraps a handle of the vendor's library.
            pub(crate) const fn new(raw: usize) -> Self {
                $name(raw)
            }

            /// Returns the vendor library's handle.
            #[inline]
            pub(crate) const fn raw(&self) -> usize {
                self.0
            }
        }
    )+};
}

owned! {
    /// A stream. Its copies and kernels run in order.
    Stream;
    /// A point in a stream.
    Event;
    /// Loaded kernels.
    Module;
    /// A pool of stream-ordered allocations, created here or imported from another process.
    Pool;
}

/// A kernel of a module, valid while the module is loaded.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Function(pub(crate) usize);

/// A context of the program. Drivers reuse handles; [`Contexts::context_id`](super::Contexts::context_id) distinguishes
/// two contexts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ContextHandle(pub(crate) usize);
