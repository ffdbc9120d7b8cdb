//! A plan: a graph placed on one device, as a printable, replayable list of steps.
//!
//! `compile` runs the passes `fuse -> order -> memory` over plain data and asks each op for its launches.

pub mod fuse;
pub mod memory;
pub mod order;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use crate::device::{Access, Buffer, Device, Readback};
use crate::error::{DeviceError, GraphError};
use crate::graph::{Graph, Source, ValueId};
use crate::op::{Cost, DeviceClass, Launch, Op, Operands};
use crate::tensor::TensorDesc;

/// A range of one of the plan's buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// Index into [`Plan::buffers`].
    pub buffer: usize,
    /// Offset in bytes.
    pub offset: u64,
    /// Length in bytes.
    pub n_bytes: u64,
}

/// An operand with its storage: one span, or one per window of a weight.
#[derive(Clone, Debug)]
pub struct Placed {
    /// Type, shape, strides; the offset counts from the start of the span.
    pub desc: TensorDesc,
    /// Storage.
    pub spans: Vec<Span>,
}

/// One op on placed operands.
#[derive(Clone, Debug)]
pub struct Step {
    /// Label of the node.
    pub label: String,
    /// The op.
    pub op: Arc<dyn Op>,
    /// Operands read.
    pub inputs: Vec<Placed>,
    /// Operands updated in place.
    pub inouts: Vec<Placed>,
    /// Operands written.
    pub outputs: Vec<Placed>,
    /// Scratch areas.
    pub scratch: Vec<Span>,
    /// The launches; empty on the reference, which executes the definition.
    pub launches: Vec<Launch>,
    /// Unavoidable work.
    pub cost: Cost,
}

/// Where an output of the graph lies in the read-back.
#[derive(Clone, Debug)]
pub struct Output {
    /// Label of the value.
    pub label: String,
    /// Type and shape.
    pub desc: TensorDesc,
    /// Offset in bytes in the read-back.
    pub offset: usize,
}

/// A graph placed on a device.
#[derive(Clone, Debug)]
pub struct Plan {
    /// For messages.
    pub label: String,
    /// Every buffer the plan touches.
    pub buffers: Vec<Buffer>,
    /// The steps, in execution order.
    pub steps: Vec<Step>,
    /// The step buffer, if the graph has step inputs.
    pub step_buffer: Option<Buffer>,
    /// Offsets in bytes of the step inputs, by label.
    pub step_inputs: BTreeMap<String, (usize, TensorDesc)>,
    /// Outputs in read-back order.
    pub outputs: Vec<Output>,
    /// The range that the host reads after a step.
    pub readback: Option<Readback>,
}

/// Activation memory shared by the plans of one lane, which run one after the other.
///
/// Plans keep the segments they were compiled with alive; growing only replaces segments for later plans.
#[derive(Debug, Default)]
pub struct Arena {
    segments: Vec<Buffer>,
}

impl Arena {
    /// Bytes of all segments.
    pub fn n_bytes(&self) -> u64 {
        self.segments.iter().map(Buffer::n_bytes).sum()
    }

    /// Buffers of at least these sizes.
    fn ensure(&mut self, device: &dyn Device, sizes: &[u64]) -> Result<Vec<Buffer>, DeviceError> {
        for (index, &size) in sizes.iter().enumerate() {
            match self.segments.get_mut(index) {
                Some(segment) if segment.n_bytes() >= size => {}
                Some(segment) => *segment = device.alloc(size, "activations")?,
                None => self.segments.push(device.alloc(size, "activations")?),
            }
        }
        Ok(self.segments[..sizes.len()].to_vec())
    }
}

/// A plan could not be made.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PlanError {
    /// The graph does not fit the device's limits.
    #[error(transparent)]
    Graph(#[from] GraphError),
    /// The device failed.
    #[error(transparent)]
    Device(#[from] DeviceError),
}

/// Places a graph on a device.
///
/// # Errors
/// A value that exceeds the device's limits, or no memory for the activations.
pub fn compile(
    label: &str,
    graph: Graph,
    device: &dyn Device,
    arena: &mut Arena,
) -> Result<Plan, PlanError> {
    let caps = device.caps();
    let graph = fuse::fuse(graph);
    let order = order::order(&graph);
    let is_reference = caps.class == DeviceClass::Reference;

    // Launches first: their scratch takes part in the memory plan.
    let mut launches = Vec::with_capacity(order.len());
    for &index in &order {
        let node = &graph.nodes[index];
        let descs = |ids: &[ValueId]| ids.iter().map(|id| graph.desc(*id)).collect::<Vec<_>>();
        let (inputs, inouts, outputs) = (
            descs(&node.inputs),
            descs(&node.inouts),
            descs(&node.outputs),
        );
        let operands = Operands {
            inputs: &inputs,
            inouts: &inouts,
            outputs: &outputs,
        };
        let made = if is_reference {
            crate::op::Launches::default()
        } else {
            node.op
                .launches(operands, caps)
                .map_err(|source| GraphError::Op {
                    label: node.label.clone(),
                    source,
                })?
        };
        launches.push((made, node.op.cost(operands)));
    }

    let scratch: Vec<&[usize]> = launches
        .iter()
        .map(|(made, _)| made.scratch.as_slice())
        .collect();
    let memory = memory::plan(&graph, &order, &scratch, caps)?;
    let segments = arena.ensure(device, &memory.segment_bytes)?;

    let mut buffers: Vec<Buffer> = segments;
    let step_buffer = if graph.step_bytes > 0 {
        Some(device.alloc(graph.step_bytes as u64, "step inputs")?)
    } else {
        None
    };
    let step_index = buffers.len();
    buffers.extend(step_buffer.clone());
    let output_buffer = if memory.output_bytes > 0 {
        Some(device.alloc(memory.output_bytes as u64, "outputs")?)
    } else {
        None
    };
    let output_index = buffers.len();
    buffers.extend(output_buffer.clone());

    let mut bound: BTreeMap<u64, usize> = BTreeMap::new();
    let mut place = |value: ValueId| -> Result<Placed, GraphError> {
        let root = graph.root(value);
        let root_value = &graph.values[root.index()];
        let desc = graph.desc(value).clone();
        let spans = match &root_value.source {
            Source::Bound(tensor) => {
                if tensor.buffers.is_empty() {
                    return Err(GraphError::Unbound {
                        label: root_value.label.clone(),
                    });
                }
                tensor
                    .buffers
                    .iter()
                    .map(|buffer| Span {
                        buffer: *bound.entry(buffer.id()).or_insert_with(|| {
                            buffers.push(buffer.clone());
                            buffers.len() - 1
                        }),
                        offset: 0,
                        n_bytes: buffer.n_bytes(),
                    })
                    .collect()
            }
            Source::Step { offset } => vec![Span {
                buffer: step_index,
                offset: *offset as u64,
                n_bytes: root_value.desc.n_bytes().max(4) as u64,
            }],
            Source::Node { .. } => {
                let n_bytes = (root_value.desc.n_bytes().max(4) as u64).next_multiple_of(4);
                vec![match memory.places[&root] {
                    memory::Place::Arena { segment, offset } => Span {
                        buffer: segment,
                        offset,
                        n_bytes,
                    },
                    memory::Place::Output { offset } => Span {
                        buffer: output_index,
                        offset: offset as u64,
                        n_bytes,
                    },
                }]
            }
            Source::View { .. } => unreachable!("a root is never a view"),
        };
        if let Some(span) = spans
            .iter()
            .find(|span| span.n_bytes > caps.max_binding_bytes)
        {
            return Err(GraphError::TooLarge {
                label: root_value.label.clone(),
                needed: span.n_bytes,
                limit: caps.max_binding_bytes,
            });
        }
        Ok(Placed { desc, spans })
    };

    let mut steps = Vec::with_capacity(order.len());
    for ((&index, (made, cost)), scratch) in order.iter().zip(launches.iter()).zip(&memory.scratch)
    {
        let node = &graph.nodes[index];
        let mut placed = |ids: &[ValueId]| {
            ids.iter()
                .map(|id| place(*id))
                .collect::<Result<Vec<_>, _>>()
        };
        steps.push(Step {
            label: node.label.clone(),
            op: node.op.clone(),
            inputs: placed(&node.inputs)?,
            inouts: placed(&node.inouts)?,
            outputs: placed(&node.outputs)?,
            scratch: scratch
                .iter()
                .map(|area| Span {
                    buffer: area.segment,
                    offset: area.offset,
                    n_bytes: area.n_bytes,
                })
                .collect(),
            launches: made.list.clone(),
            cost: *cost,
        });
    }

    let step_inputs = graph
        .values
        .iter()
        .filter_map(|value| match value.source {
            Source::Step { offset } => Some((value.label.clone(), (offset, value.desc.clone()))),
            _ => None,
        })
        .collect();
    let outputs = graph
        .outputs
        .iter()
        .zip(&memory.output_offsets)
        .map(|(&value, &offset)| Output {
            label: graph.values[value.index()].label.clone(),
            desc: graph.desc(value).clone(),
            offset,
        })
        .collect();
    Ok(Plan {
        label: label.to_owned(),
        readback: output_buffer.map(|buffer| Readback {
            buffer,
            offset: 0,
            n_bytes: memory.output_bytes as u64,
        }),
        buffers,
        steps,
        step_buffer,
        step_inputs,
        outputs,
    })
}

impl Plan {
    /// Every buffer and whether a replay may write it.
    pub fn touches(&self) -> Vec<(Buffer, Access)> {
        let mut access = vec![Access::Read; self.buffers.len()];
        for step in &self.steps {
            let written = step
                .inouts
                .iter()
                .chain(&step.outputs)
                .flat_map(|placed| &placed.spans);
            for span in written.chain(&step.scratch) {
                access[span.buffer] = Access::Write;
            }
        }
        self.buffers.iter().cloned().zip(access).collect()
    }

    /// Sum of the costs of all steps.
    pub fn cost(&self) -> Cost {
        self.steps
            .iter()
            .fold(Cost::default(), |sum, step| sum + step.cost)
    }

    /// Number of kernel launches of a replay.
    pub fn n_launches(&self) -> usize {
        self.steps.iter().map(|step| step.launches.len()).sum()
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "plan {}: {} steps, {} launches, {} buffers",
            self.label,
            self.steps.len(),
            self.n_launches(),
            self.buffers.len()
        )?;
        let operand = |placed: &Placed| {
            let span = placed.spans[0];
            let windows = match placed.spans.len() {
                1 => String::new(),
                n => format!(" in {n} windows"),
            };
            format!("{}@{}+{}{windows}", placed.desc, span.buffer, span.offset)
        };
        for (index, step) in self.steps.iter().enumerate() {
            let list =
                |placed: &[Placed]| placed.iter().map(operand).collect::<Vec<_>>().join(", ");
            write!(
                f,
                "{index:4} {:<24} {} ({})",
                step.label,
                step.op,
                list(&step.inputs)
            )?;
            if !step.inouts.is_empty() {
                write!(f, " updates ({})", list(&step.inouts))?;
            }
            writeln!(f, " -> ({})", list(&step.outputs))?;
        }
        Ok(())
    }
}
