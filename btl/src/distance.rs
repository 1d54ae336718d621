//! The distance of two processes of one node, by what their processors share.

/// The nearest thing that the processors of two processes share. Times of messages hold for one distance.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Distance {
    /// A second-level cache.
    SharedL2,
    /// A third-level cache.
    SharedL3,
    /// The package, and no cache.
    Package,
    /// Only the node.
    Node,
    /// Not known: one of the processes may run on processors of several third-level caches.
    Unbound,
}

impl Distance {
    /// All distances, the nearest first.
    pub const ALL: [Distance; 5] =
        [Distance::SharedL2, Distance::SharedL3, Distance::Package, Distance::Node, Distance::Unbound];

    /// Returns the distance's name in files and tables.
    pub fn name(self) -> &'static str {
        match self {
            Distance::SharedL2 => "l2",
            Distance::SharedL3 => "l3",
            Distance::Package => "package",
            Distance::Node => "node",
            Distance::Unbound => "unbound",
        }
    }
}
