//! The queue of unexpected messages.

use std::sync::Arc;

use slab::Slab;

use super::index::{CLASSES, Index, Linked, NIL, Pattern, Slot};
use super::lengths::Lengths;

/// A node's links in one of its lists.
#[derive(Clone, Copy)]
struct Link {
    /// [`NIL`] if the node is not in a list of this class.
    list: Slot,
    before: u32,
    after: u32,
}

const UNLINKED: Link = Link { list: NIL, before: NIL, after: NIL };

struct Node<U> {
    message: U,
    source: u32,
    tag: i32,
    /// Number of the message in the order of arrival.
    number: u64,
    links: [Link; CLASSES],
}

/// Unexpected messages. Most programs use one or two classes of patterns. So the lists of a class are created when a
/// receive first uses it; then the waiting messages are added to them once.
pub(crate) struct Unexpected<U> {
    nodes: Slab<Node<U>>,
    index: Index<Linked>,
    /// Whether each class has lists.
    listed: [bool; CLASSES],
    /// Its field `unexpected` is the number of nodes.
    lengths: Arc<Lengths>,
    last_number: u64,
}

impl<U> Unexpected<U> {
    pub(crate) fn new(lengths: Arc<Lengths>) -> Self {
        Unexpected { nodes: Slab::new(), index: Index::default(), listed: [false; CLASSES], lengths, last_number: 0 }
    }

    pub(crate) fn push(&mut self, source: u32, tag: i32, message: U) {
        self.last_number += 1;
        let number = self.last_number;
        let node = self.nodes.insert(Node { message, source, tag, number, links: [UNLINKED; CLASSES] }) as u32;
        self.lengths.unexpected.raise();
        for class in 0..CLASSES {
            if self.listed[class]
                && let Some(pattern) = Pattern::of_message(source, tag)[class]
            {
                self.append(node, pattern, class);
            }
        }
    }

    #[inline]
    fn append(&mut self, node: u32, pattern: Pattern, class: usize) {
        let list = self.index.find_or_insert(pattern);
        let before = self.index.push(list, node);
        self.nodes[node as usize].links[class] = Link { list, before, after: NIL };
        if before != NIL {
            self.nodes[before as usize].links[class].after = node;
        }
    }

    #[cold]
    fn list_class(&mut self, class: usize) {
        self.listed[class] = true;
        let mut nodes: Vec<(u64, u32)> = self.nodes.iter().map(|(at, node)| (node.number, at as u32)).collect();
        nodes.sort_unstable();
        for (_, node) in nodes {
            let Node { source, tag, .. } = self.nodes[node as usize];
            if let Some(pattern) = Pattern::of_message(source, tag)[class] {
                self.append(node, pattern, class);
            }
        }
    }

    #[inline(always)]
    pub(crate) fn take(&mut self, pattern: Pattern) -> Option<(u32, i32, U)> {
        if self.nodes.is_empty() { None } else { self.take_waiting(pattern) }
    }

    #[inline(never)]
    fn take_waiting(&mut self, pattern: Pattern) -> Option<(u32, i32, U)> {
        let node = self.find(pattern)?;
        Some(self.remove(node))
    }

    /// Takes all messages for which a condition holds by their tags, and their sources.
    pub(crate) fn take_if(&mut self, which: impl Fn(i32, &U) -> bool) -> Vec<(u32, U)> {
        let taken = self.nodes.iter().filter(|(_, node)| which(node.tag, &node.message));
        let nodes: Vec<u32> = taken.map(|(at, _)| at as u32).collect();
        let removed = nodes.into_iter().map(|node| self.remove(node));
        removed.map(|(source, _, message)| (source, message)).collect()
    }

    #[inline]
    fn remove(&mut self, node: u32) -> (u32, i32, U) {
        let Node { message, source, tag, links, .. } = self.nodes.remove(node as usize);
        self.lengths.unexpected.lower(1);
        for (class, Link { list, before, after }) in links.into_iter().enumerate() {
            if list == NIL {
                continue;
            }
            self.index.unlink(list, before, after);
            if before != NIL {
                self.nodes[before as usize].links[class].after = after;
            }
            if after != NIL {
                self.nodes[after as usize].links[class].before = before;
            }
        }
        (source, tag, message)
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
        let class = pattern.class();
        if !self.listed[class] {
            self.list_class(class);
        }
        let list = self.index.find(pattern)?;
        Some(self.index.head(list)).filter(|&head| head != NIL)
    }

    pub(crate) fn drain(&mut self) -> Vec<(u32, U)> {
        self.index.clear();
        self.lengths.unexpected.lower(self.nodes.len());
        self.nodes.drain().map(|node| (node.source, node.message)).collect()
    }

    #[cfg(test)]
    pub(crate) fn check(&self) {
        assert_eq!(self.nodes.len(), self.lengths.unexpected.get());
    }

    #[cfg(test)]
    pub(crate) fn steps(&self) -> u64 {
        self.index.steps.get()
    }
}
