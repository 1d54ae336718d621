//! Messages that wait for a receive.

use slab::Slab;

use super::index::{CLASSES, Index, NIL, Pattern, Slot};

/// A node's place in one of its lists; none in the lists that it does not belong to.
#[derive(Clone, Copy)]
struct Link {
    list: Slot,
    before: u32,
    after: u32,
}

struct Node<U> {
    message: U,
    source: u32,
    tag: i32,
    links: [Option<Link>; CLASSES],
}

pub(crate) struct Unexpected<U> {
    nodes: Slab<Node<U>>,
    index: Index,
}

impl<U> Default for Unexpected<U> {
    fn default() -> Self {
        Unexpected { nodes: Slab::new(), index: Index::default() }
    }
}

impl<U> Unexpected<U> {
    pub(crate) fn push(&mut self, source: u32, tag: i32, message: U) {
        let node = self.nodes.insert(Node { message, source, tag, links: [None; CLASSES] }) as u32;
        for (class, pattern) in Pattern::of_message(source, tag).into_iter().enumerate() {
            let Some(pattern) = pattern else { continue };
            let list = self.index.find_or_insert(pattern);
            let before = self.index.push(list, node);
            self.nodes[node as usize].links[class] = Some(Link { list, before, after: NIL });
            if before != NIL {
                self.link(before, class).after = node;
            }
        }
    }

    #[inline]
    pub(crate) fn take(&mut self, pattern: Pattern) -> Option<(u32, i32, U)> {
        let node = self.find(pattern)?;
        let Node { message, source, tag, links } = self.nodes.remove(node as usize);
        for (class, link) in links.into_iter().enumerate() {
            let Some(Link { list, before, after }) = link else { continue };
            self.index.unlink(list, before, after);
            if before != NIL {
                self.link(before, class).after = after;
            }
            if after != NIL {
                self.link(after, class).before = before;
            }
        }
        Some((source, tag, message))
    }

    pub(crate) fn peek(&mut self, pattern: Pattern) -> Option<(u32, i32, &U)> {
        let node = self.find(pattern)?;
        let node = &self.nodes[node as usize];
        Some((node.source, node.tag, &node.message))
    }

    #[inline]
    fn find(&mut self, pattern: Pattern) -> Option<u32> {
        if self.nodes.is_empty() {
            return None;
        }
        let list = self.index.find(pattern)?;
        Some(self.index.head(list)).filter(|&head| head != NIL)
    }

    /// The link of a node that is known to be in a list of this class, being a neighbour there.
    fn link(&mut self, node: u32, class: usize) -> &mut Link {
        self.nodes[node as usize].links[class].get_or_insert(Link { list: NIL, before: NIL, after: NIL })
    }

    pub(crate) fn drain(&mut self) -> Vec<(u32, U)> {
        self.index.clear();
        self.nodes.drain().map(|node| (node.source, node.message)).collect()
    }

    #[cfg(test)]
    pub(crate) fn steps(&self) -> u64 {
        self.index.steps.get()
    }
}
