//! Pass `memory`: where every intermediate lies.
//!
//! Values of a plan live in an arena of one or more segments, each no larger than a buffer of the device. A value
//! takes the first gap that fits between its producer and its last reader; values that the host reads get places
//! of their own in the output buffer. The reference gets one segment per value.

use std::collections::BTreeMap;

use crate::error::GraphError;
use crate::graph::{Graph, Source, ValueId};
use crate::op::{Caps, DeviceClass};

/// Where a value produced by a node lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// In a segment of the arena.
    Arena {
        /// Index of the segment.
        segment: usize,
        /// Offset in bytes.
        offset: u64,
    },
    /// In the output buffer.
    Output {
        /// Offset in bytes.
        offset: usize,
    },
}

/// A scratch area of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Area {
    /// Index of the arena segment.
    pub segment: usize,
    /// Offset in bytes.
    pub offset: u64,
    /// Length in bytes.
    pub n_bytes: u64,
}

/// The result of the pass.
#[derive(Clone, Debug)]
pub struct MemoryPlan {
    /// Size of each arena segment.
    pub segment_bytes: Vec<u64>,
    /// Place of every produced value, by root.
    pub places: BTreeMap<ValueId, Place>,
    /// Scratch areas per step, in execution order.
    pub scratch: Vec<Vec<Area>>,
    /// Offset of each graph output in the read-back.
    pub output_offsets: Vec<usize>,
    /// Size of the read-back.
    pub output_bytes: usize,
}

/// Occupied ranges of one segment, by offset.
#[derive(Debug, Default)]
struct Segment {
    taken: BTreeMap<u64, u64>,
    size: u64,
}

impl Segment {
    /// First gap of `n_bytes` that ends at or below `limit`.
    fn fit(&self, n_bytes: u64, limit: u64) -> Option<u64> {
        let mut at = 0;
        for (&offset, &len) in &self.taken {
            if offset - at >= n_bytes {
                return Some(at);
            }
            at = offset + len;
        }
        (at + n_bytes <= limit).then_some(at)
    }
}

struct Allocator<'a> {
    segments: Vec<Segment>,
    caps: &'a Caps,
}

impl Allocator<'_> {
    fn take(&mut self, label: &str, n_bytes: u64) -> Result<(usize, u64), GraphError> {
        let align = self.caps.binding_alignment.max(16);
        let n_bytes = n_bytes.max(4).next_multiple_of(align);
        let limit = self.caps.max_buffer_bytes;
        if n_bytes > limit {
            return Err(GraphError::TooLarge {
                label: label.to_owned(),
                needed: n_bytes,
                limit,
            });
        }
        // The reference keeps every value apart, so that no reuse can hide a mistake.
        let reuse = self.caps.class != DeviceClass::Reference;
        let found = if reuse {
            self.segments
                .iter()
                .enumerate()
                .find_map(|(index, segment)| Some((index, segment.fit(n_bytes, limit)?)))
        } else {
            None
        };
        let (index, offset) = found.unwrap_or_else(|| {
            self.segments.push(Segment::default());
            (self.segments.len() - 1, 0)
        });
        let segment = &mut self.segments[index];
        segment.taken.insert(offset, n_bytes);
        segment.size = segment.size.max(offset + n_bytes);
        Ok((index, offset))
    }

    fn free(&mut self, segment: usize, offset: u64) {
        if self.caps.class != DeviceClass::Reference {
            self.segments[segment].taken.remove(&offset);
        }
    }
}

/// Places every value produced by the nodes of `order`, and the scratch of every step.
///
/// # Errors
/// A value larger than a buffer of the device.
pub fn plan(
    graph: &Graph,
    order: &[usize],
    scratch: &[&[usize]],
    caps: &Caps,
) -> Result<MemoryPlan, GraphError> {
    let mut places = BTreeMap::new();
    let mut output_bytes = 0;
    let mut output_offsets = Vec::new();
    for &value in &graph.outputs {
        let root = graph.root(value);
        let base = if let Some(Place::Output { offset }) = places.get(&root) {
            *offset
        } else {
            let offset = output_bytes;
            if matches!(graph.values[root.index()].source, Source::Node { .. }) {
                places.insert(root, Place::Output { offset });
                let size = graph.desc(root).n_bytes().max(4);
                output_bytes = (offset + size).next_multiple_of(256);
            }
            offset
        };
        let desc = graph.desc(value);
        output_offsets
            .push(base + desc.offset / desc.dtype.block_elems() * desc.dtype.block_bytes());
    }

    let mut last_use: BTreeMap<ValueId, usize> = BTreeMap::new();
    for (time, &index) in order.iter().enumerate() {
        let node = &graph.nodes[index];
        for &value in node.inputs.iter().chain(&node.inouts).chain(&node.outputs) {
            last_use.insert(graph.root(value), time);
        }
    }
    let mut dying: Vec<Vec<ValueId>> = vec![Vec::new(); order.len()];
    for (&value, &time) in &last_use {
        dying[time].push(value);
    }

    let mut allocator = Allocator {
        segments: Vec::new(),
        caps,
    };
    let mut areas = Vec::with_capacity(order.len());
    for (time, &index) in order.iter().enumerate() {
        let node = &graph.nodes[index];
        for &value in &node.outputs {
            if places.contains_key(&value) {
                continue;
            }
            let (segment, offset) =
                allocator.take(&node.label, graph.desc(value).n_bytes() as u64)?;
            places.insert(value, Place::Arena { segment, offset });
        }
        let mut step_areas = Vec::new();
        for &n_bytes in scratch[time] {
            let (segment, offset) = allocator.take(&node.label, n_bytes as u64)?;
            step_areas.push(Area {
                segment,
                offset,
                n_bytes: (n_bytes.max(4) as u64).next_multiple_of(4),
            });
        }
        for area in &step_areas {
            allocator.free(area.segment, area.offset);
        }
        areas.push(step_areas);
        for value in &dying[time] {
            if let Some(&Place::Arena { segment, offset }) = places.get(value) {
                allocator.free(segment, offset);
            }
        }
    }
    Ok(MemoryPlan {
        segment_bytes: allocator
            .segments
            .iter()
            .map(|segment| segment.size)
            .collect(),
        places,
        scratch: areas,
        output_offsets,
        output_bytes,
    })
}
