//! Receives that wait for a message.

use slab::Slab;

use super::index::{CLASSES, Index, NIL, Pattern, Slot};

/// Names a posted receive, also after it is posted no more: its number is never used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PostKey {
    pub(crate) node: u32,
    /// Counts receives from 1 in the order in which they were posted.
    pub(crate) number: u64,
}

struct Node<P> {
    receive: P,
    number: u64,
    pattern: Pattern,
    list: Slot,
    before: u32,
    after: u32,
}

pub(crate) struct Posted<P> {
    nodes: Slab<Node<P>>,
    index: Index,
    /// How many are posted per class: a class without any is not looked up.
    counts: [usize; CLASSES],
    last_number: u64,
}

impl<P> Default for Posted<P> {
    fn default() -> Self {
        Posted { nodes: Slab::new(), index: Index::default(), counts: [0; CLASSES], last_number: 0 }
    }
}

impl<P> Posted<P> {
    #[inline]
    pub(crate) fn push(&mut self, pattern: Pattern, receive: P) -> PostKey {
        self.last_number += 1;
        let number = self.last_number;
        let list = self.index.find_or_insert(pattern);
        let node = self.nodes.insert(Node { receive, number, pattern, list, before: NIL, after: NIL }) as u32;
        let before = self.index.push(list, node);
        self.nodes[node as usize].before = before;
        if before != NIL {
            self.nodes[before as usize].after = node;
        }
        self.counts[pattern.class()] += 1;
        PostKey { node, number }
    }

    /// Takes the receive that was posted first among those that the message fits.
    #[inline]
    pub(crate) fn take(&mut self, source: u32, tag: i32) -> Option<P> {
        if self.counts[1..] == [0; CLASSES - 1] {
            let list = self.index.find(Pattern { source: source as i32, tag })?;
            let head = self.index.head(list);
            return (head != NIL).then(|| self.unlink(head));
        }
        self.take_among_wildcards(source, tag)
    }

    fn take_among_wildcards(&mut self, source: u32, tag: i32) -> Option<P> {
        let mut first: Option<(u64, u32)> = None;
        for (class, pattern) in Pattern::of_message(source, tag).into_iter().enumerate() {
            let Some(pattern) = pattern.filter(|_| self.counts[class] != 0) else { continue };
            let Some(list) = self.index.find(pattern) else { continue };
            let head = self.index.head(list);
            if head != NIL {
                let number = self.nodes[head as usize].number;
                if first.is_none_or(|(least, _)| number < least) {
                    first = Some((number, head));
                }
            }
        }
        first.map(|(_, node)| self.unlink(node))
    }

    pub(crate) fn remove(&mut self, key: PostKey, is: impl FnOnce(&P) -> bool) -> Option<P> {
        let node = self.nodes.get(key.node as usize);
        let posted = node.is_some_and(|node| node.number == key.number && is(&node.receive));
        posted.then(|| self.unlink(key.node))
    }

    #[inline]
    fn unlink(&mut self, node: u32) -> P {
        let Node { receive, pattern, list, before, after, .. } = self.nodes.remove(node as usize);
        self.index.unlink(list, before, after);
        if before != NIL {
            self.nodes[before as usize].after = after;
        }
        if after != NIL {
            self.nodes[after as usize].before = before;
        }
        self.counts[pattern.class()] -= 1;
        receive
    }

    /// The sources that receives name, each once.
    pub(crate) fn sources(&self) -> Vec<i32> {
        let mut sources: Vec<i32> = self.nodes.iter().map(|(_, node)| node.pattern.source).collect();
        sources.sort_unstable();
        sources.dedup();
        sources
    }

    /// Takes every receive from a source for which `which` answers true.
    pub(crate) fn remove_from(&mut self, which: impl Fn(i32) -> bool) -> Vec<P> {
        let mut found: Vec<(u64, u32)> = self
            .nodes
            .iter()
            .filter(|(_, node)| which(node.pattern.source))
            .map(|(index, node)| (node.number, index as u32))
            .collect();
        found.sort_unstable();
        found.into_iter().map(|(_, node)| self.unlink(node)).collect()
    }

    pub(crate) fn drain(&mut self) -> Vec<P> {
        self.index.clear();
        self.counts = [0; CLASSES];
        let mut nodes: Vec<Node<P>> = self.nodes.drain().collect();
        nodes.sort_unstable_by_key(|node| node.number);
        nodes.into_iter().map(|node| node.receive).collect()
    }

    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.index.check();
        self.nodes.len()
    }

    #[cfg(test)]
    pub(crate) fn lists(&self) -> usize {
        self.index.len()
    }

    #[cfg(test)]
    pub(crate) fn steps(&self) -> u64 {
        self.index.steps.get()
    }
}
