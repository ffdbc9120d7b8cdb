//! The graph of a step: values and nodes, shapes checked as they are added.
//!
//! A model builds a graph once per bucket of shapes. Program order is the order of the nodes: a node that updates a
//! cache in place and a later node that reads the cache stay in this order through all passes.

use std::sync::Arc;

use crate::device::Buffer;
use crate::dtype::DType;
use crate::error::{GraphError, OpError};
use crate::op::Op;
use crate::tensor::TensorDesc;

/// A value of a graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ValueId(pub(crate) usize);

impl ValueId {
    /// Position in [`Graph::values`].
    pub fn index(self) -> usize {
        self.0
    }
}

/// A tensor in device memory: a weight, a cache, a table.
///
/// A weight larger than the device binds at once lies in several buffers, one a window of rows.
#[derive(Clone, Debug)]
pub struct Tensor {
    /// Type, shape, layout.
    pub desc: TensorDesc,
    /// One buffer, or one per window of `desc.window_rows` rows.
    pub buffers: Vec<Buffer>,
}

/// Where a value comes from.
#[derive(Clone, Debug)]
pub enum Source {
    /// Memory that exists before the step.
    Bound(Tensor),
    /// A region of the step buffer, at this offset in bytes.
    Step {
        /// Offset in the step buffer.
        offset: usize,
    },
    /// Output `output` of node `node`.
    Node {
        /// Index of the node.
        node: usize,
        /// Which of its outputs.
        output: usize,
    },
    /// Another description of the storage of a value.
    View {
        /// The viewed value.
        of: ValueId,
    },
}

/// A value: description and origin.
#[derive(Clone, Debug)]
pub struct Value {
    /// For messages and printed plans.
    pub label: String,
    /// Type, shape, strides.
    pub desc: TensorDesc,
    /// Origin.
    pub source: Source,
}

/// An op applied to values.
#[derive(Clone, Debug)]
pub struct Node {
    /// For messages and printed plans, e.g. `blk.3.attn_q`.
    pub label: String,
    /// The op with its attributes.
    pub op: Arc<dyn Op>,
    /// Values read.
    pub inputs: Vec<ValueId>,
    /// Values updated in place.
    pub inouts: Vec<ValueId>,
    /// Values written.
    pub outputs: Vec<ValueId>,
}

/// Values, nodes in program order, and what the step returns.
#[derive(Clone, Debug, Default)]
pub struct Graph {
    /// All values.
    pub values: Vec<Value>,
    /// All nodes, in program order.
    pub nodes: Vec<Node>,
    /// Values read back by the host, in read-back order.
    pub outputs: Vec<ValueId>,
    /// Size in bytes of the step buffer.
    pub step_bytes: usize,
}

impl Graph {
    /// An empty graph.
    pub fn new() -> Self {
        Self::default()
    }

    fn push(&mut self, label: String, desc: TensorDesc, source: Source) -> ValueId {
        self.values.push(Value {
            label,
            desc,
            source,
        });
        ValueId(self.values.len() - 1)
    }

    /// The description of a value.
    pub fn desc(&self, value: ValueId) -> &TensorDesc {
        &self.values[value.0].desc
    }

    /// A tensor that exists before the step. The same tensor given twice is the same value.
    pub fn bind(&mut self, label: impl Into<String>, tensor: &Tensor) -> ValueId {
        let known = self.values.iter().position(|value| match &value.source {
            Source::Bound(bound) => {
                bound.desc == tensor.desc
                    && bound.buffers.len() == tensor.buffers.len()
                    && bound
                        .buffers
                        .iter()
                        .zip(&tensor.buffers)
                        .all(|(a, b)| a.id() == b.id())
            }
            _ => false,
        });
        match known {
            Some(index) => ValueId(index),
            None => self.push(
                label.into(),
                tensor.desc.clone(),
                Source::Bound(tensor.clone()),
            ),
        }
    }

    /// A region of the step buffer: a small input that changes with every step.
    pub fn step_input(
        &mut self,
        label: impl Into<String>,
        dtype: DType,
        shape: impl Into<Vec<usize>>,
    ) -> ValueId {
        let desc = TensorDesc::new(dtype, shape);
        let offset = self.step_bytes;
        // Regions are bound on their own, so each starts at the strictest alignment of any adapter.
        self.step_bytes = (offset + desc.n_bytes().max(4)).next_multiple_of(256);
        self.push(label.into(), desc, Source::Step { offset })
    }

    /// Applies an op that has exactly one output.
    ///
    /// # Errors
    /// What the op's shape rule refuses.
    ///
    /// # Panics
    /// If the op has another number of outputs.
    pub fn apply(
        &mut self,
        label: impl Into<String>,
        op: impl Op + 'static,
        inputs: &[ValueId],
    ) -> Result<ValueId, GraphError> {
        let outputs = self.apply_multi(label, op, inputs, &[])?;
        assert_eq!(outputs.len(), 1, "apply is for ops with one output");
        Ok(outputs[0])
    }

    /// Applies an op with any number of outputs and in-place operands.
    ///
    /// # Errors
    /// What the op's shape rule refuses.
    pub fn apply_multi(
        &mut self,
        label: impl Into<String>,
        op: impl Op + 'static,
        inputs: &[ValueId],
        inouts: &[ValueId],
    ) -> Result<Vec<ValueId>, GraphError> {
        let label = label.into();
        let descs = |ids: &[ValueId]| {
            ids.iter()
                .map(|id| self.desc(*id).clone())
                .collect::<Vec<_>>()
        };
        let (input_descs, inout_descs) = (descs(inputs), descs(inouts));
        let result = op
            .outputs(
                &input_descs.iter().collect::<Vec<_>>(),
                &inout_descs.iter().collect::<Vec<_>>(),
            )
            .map_err(|source: OpError| GraphError::Op {
                label: label.clone(),
                source,
            })?;
        let node = self.nodes.len();
        let outputs: Vec<ValueId> = result
            .into_iter()
            .enumerate()
            .map(|(output, desc)| self.push(label.clone(), desc, Source::Node { node, output }))
            .collect();
        self.nodes.push(Node {
            label,
            op: Arc::new(op),
            inputs: inputs.to_vec(),
            inouts: inouts.to_vec(),
            outputs: outputs.clone(),
        });
        Ok(outputs)
    }

    fn view(
        &mut self,
        of: ValueId,
        desc: Option<TensorDesc>,
        wanted: String,
    ) -> Result<ValueId, GraphError> {
        let value = &self.values[of.0];
        let label = value.label.clone();
        match desc {
            Some(desc) => Ok(self.push(label, desc, Source::View { of })),
            None => Err(GraphError::View {
                label,
                wanted,
                found: value.desc.to_string(),
            }),
        }
    }

    /// The same storage under another shape.
    ///
    /// # Errors
    /// If that would need a copy.
    pub fn reshape(
        &mut self,
        value: ValueId,
        shape: impl Into<Vec<usize>>,
    ) -> Result<ValueId, GraphError> {
        let shape = shape.into();
        let wanted = format!("{shape:?}");
        let desc = self.desc(value).reshape(shape);
        self.view(value, desc, wanted)
    }

    /// Elements `start .. start + len` of an axis.
    ///
    /// # Errors
    /// If they do not exist.
    pub fn narrow(
        &mut self,
        value: ValueId,
        axis: usize,
        start: usize,
        len: usize,
    ) -> Result<ValueId, GraphError> {
        let wanted = format!("{start}..{} of axis {axis}", start + len);
        let desc = self.desc(value).narrow(axis, start, len);
        self.view(value, desc, wanted)
    }

    /// The value repeated `n` times along a new axis in front of `axis`, without a copy; for operands that are read.
    ///
    /// # Errors
    /// If there is no such axis.
    pub fn repeat(&mut self, value: ValueId, axis: usize, n: usize) -> Result<ValueId, GraphError> {
        let wanted = format!("{n} times along a new axis {axis}");
        let desc = self.desc(value).repeat(axis, n);
        self.view(value, desc, wanted)
    }

    /// One view over two views of the same storage that lie one after the other along an axis.
    pub fn join(&mut self, a: ValueId, b: ValueId, axis: usize) -> Option<ValueId> {
        let root = self.root(a);
        let (first, second) = (self.desc(a), self.desc(b));
        let mut joined = first.clone();
        *joined.shape.get_mut(axis)? += second.shape.get(axis)?;
        let expected = TensorDesc {
            offset: first.offset + first.shape[axis] * first.strides[axis],
            shape: {
                let mut shape = first.shape.clone();
                shape[axis] = second.shape[axis];
                shape
            },
            ..first.clone()
        };
        if self.root(b) != root || *second != expected {
            return None;
        }
        let label = self.values[a.0].label.clone();
        Some(self.push(label, joined, Source::View { of: root }))
    }

    /// Marks a value for read-back and returns its place in the order of outputs.
    pub fn output(&mut self, value: ValueId) -> usize {
        self.outputs.push(value);
        self.outputs.len() - 1
    }

    /// The value whose storage this one describes.
    pub fn root(&self, value: ValueId) -> ValueId {
        let mut root = value;
        while let Source::View { of } = self.values[root.0].source {
            root = of;
        }
        root
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn views_join_only_when_they_are_neighbours() {
        let mut graph = Graph::new();
        let all = graph.step_input("all", DType::F32, [5, 12, 4]);
        let q = graph.narrow(all, 1, 0, 6).unwrap();
        let k = graph.narrow(all, 1, 6, 3).unwrap();
        let v = graph.narrow(all, 1, 9, 3).unwrap();
        let qk = graph.join(q, k, 1).unwrap();
        assert_eq!(
            *graph.desc(qk),
            graph.desc(all).narrow(1, 0, 9).unwrap(),
            "heads of both"
        );
        assert!(graph.join(q, v, 1).is_none(), "k lies between");
        assert!(graph.join(k, q, 1).is_none(), "the other way round");
        let other = graph.step_input("other", DType::F32, [5, 3, 4]);
        assert!(graph.join(q, other, 1).is_none(), "other storage");
    }
}
