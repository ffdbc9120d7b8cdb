//! Byte trie: which keys start at a place in a text.

/// A set of byte strings with a value each.
#[derive(Debug, Clone)]
pub(super) struct Trie {
    nodes: Vec<Node>,
}

#[derive(Debug, Clone, Default)]
struct Node {
    /// Sorted by byte.
    edges: Vec<(u8, u32)>,
    value: Option<u32>,
}

impl Trie {
    /// An empty trie.
    pub(super) fn new() -> Self {
        Self {
            nodes: vec![Node::default()],
        }
    }

    /// Adds `key`; a later value replaces an earlier one. The empty key is ignored.
    pub(super) fn insert(&mut self, key: &[u8], value: u32) {
        let mut at = 0;
        for &byte in key {
            at = match self.nodes[at]
                .edges
                .binary_search_by_key(&byte, |edge| edge.0)
            {
                Ok(found) => self.nodes[at].edges[found].1 as usize,
                Err(place) => {
                    let next = self.nodes.len();
                    self.nodes[at].edges.insert(place, (byte, next as u32));
                    self.nodes.push(Node::default());
                    next
                }
            };
        }
        if at != 0 {
            self.nodes[at].value = Some(value);
        }
    }

    /// Length and value of every key that `text` starts with, shortest first.
    pub(super) fn prefixes<'a>(
        &'a self,
        text: &'a [u8],
    ) -> impl Iterator<Item = (usize, u32)> + 'a {
        let mut at = 0;
        text.iter()
            .enumerate()
            .map_while(move |(idx, byte)| {
                let edges = &self.nodes[at].edges;
                let found = edges.binary_search_by_key(byte, |edge| edge.0).ok()?;
                at = edges[found].1 as usize;
                Some((idx + 1, self.nodes[at].value))
            })
            .filter_map(|(len, value)| Some((len, value?)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_every_prefix() {
        let mut trie = Trie::new();
        for (value, key) in ["a", "abc", "", "b", "abcd"].iter().enumerate() {
            trie.insert(key.as_bytes(), value as u32);
        }
        assert_eq!(trie.prefixes(b"abce").collect::<Vec<_>>(), [(1, 0), (3, 1)]);
        assert_eq!(trie.prefixes(b"x").count(), 0);
        assert_eq!(trie.prefixes(b"").count(), 0);
    }
}
