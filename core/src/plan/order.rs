//! Pass `order`: which nodes run, in which order.
//!
//! Program order is kept; nodes that neither reach an output nor update anything in place are dropped.

use crate::graph::{Graph, Source};

/// Indices of the nodes to execute, in order.
pub fn order(graph: &Graph) -> Vec<usize> {
    let mut needed = vec![false; graph.nodes.len()];
    let mut stack: Vec<usize> = Vec::new();
    for (index, node) in graph.nodes.iter().enumerate() {
        if !node.inouts.is_empty() {
            stack.push(index);
        }
    }
    let producer = |value| match graph.values[graph.root(value).index()].source {
        Source::Node { node, .. } => Some(node),
        _ => None,
    };
    stack.extend(graph.outputs.iter().filter_map(|&value| producer(value)));
    while let Some(index) = stack.pop() {
        if std::mem::replace(&mut needed[index], true) {
            continue;
        }
        let node = &graph.nodes[index];
        stack.extend(
            node.inputs
                .iter()
                .chain(&node.inouts)
                .filter_map(|&value| producer(value)),
        );
    }
    (0..graph.nodes.len())
        .filter(|&index| needed[index])
        .collect()
}
