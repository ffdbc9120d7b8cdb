//! `rope` of queries and keys, `kv_write` of the keys and `kv_write` of the values in one node.

use std::sync::Arc;

use crate::graph::{Graph, Node, Source, ValueId};
use crate::ops::kv_write::KvWrite;
use crate::ops::rope::Rope;
use crate::ops::rope_kv_write::RopeKvWrite;
use crate::tensor::TensorDesc;

/// What runs together with a rotation.
pub(super) struct CacheWrite {
    /// The node that writes keys.
    pub(super) k_write: usize,
    /// The node that writes values, whose place the fused one takes.
    v_write: usize,
    op: RopeKvWrite,
    /// The rotated queries, which the fused node makes alone.
    queries: TensorDesc,
}

/// The writes that can run with node `rope`.
pub(super) fn find(graph: &Graph, rope: usize, removed: &[bool]) -> Option<CacheWrite> {
    let &Rope { mode, n_rot } = graph.nodes[rope].op.as_any().downcast_ref()?;
    let y = graph.nodes[rope].outputs[0];
    let live = || (rope + 1..graph.nodes.len()).filter(|&index| !removed[index]);
    let writes = |index: &usize| graph.nodes[*index].op.as_any().is::<KvWrite>();
    let k_write = live()
        .filter(writes)
        .find(|&index| graph.root(graph.nodes[index].inputs[0]) == y)?;
    let v_write = live().filter(writes).find(|&index| index > k_write)?;
    let [keys, v] = [k_write, v_write].map(|index| &graph.nodes[index]);
    let [k_cache, v_cache] = [keys, v].map(|node| graph.desc(node.inouts[0]));
    let pair_up = keys.inputs[1] == v.inputs[1]
        && graph.root(v.inputs[0]) != y
        && graph.root(keys.inouts[0]) != graph.root(v.inouts[0])
        && k_cache.dtype == v_cache.dtype
        && k_cache.shape[..3] == v_cache.shape[..3];

    // Queries come first, then keys, and nobody sees more of them than one or the other.
    let all = graph.desc(y);
    let n_kv_heads = k_cache.shape[1];
    let n_heads = all.shape[1].checked_sub(n_kv_heads).filter(|&n| n > 0)?;
    let queries = all.narrow(1, 0, n_heads)?;
    let splits = *graph.desc(keys.inputs[0]) == all.narrow(1, n_heads, n_kv_heads)?
        && (0..graph.values.len()).map(ValueId).all(|value| {
            value == y
                || graph.root(value) != y
                || [&queries, graph.desc(keys.inputs[0])].contains(&graph.desc(value))
        });
    let reads = |index: usize| {
        let node = &graph.nodes[index];
        let mut operands = node.inputs.iter().chain(&node.inouts);
        operands.any(|&value| graph.root(value) == y)
    };
    let others_read_queries = live()
        .filter(|&index| index != k_write && reads(index))
        .all(|index| {
            let node = &graph.nodes[index];
            let mut rotated = node.inputs.iter().filter(|&&value| graph.root(value) == y);
            index > v_write
                && rotated.all(|&value| *graph.desc(value) == queries)
                && node.inouts.iter().all(|&value| graph.root(value) != y)
        });
    let is_output = graph.outputs.iter().any(|&value| graph.root(value) == y);

    // The rotation and the writing of keys move to where values are written.
    let moved: Vec<ValueId> = [
        &graph.nodes[rope].inputs[..],
        &keys.inputs[1..],
        &keys.inouts,
    ]
    .concat()
    .into_iter()
    .map(|value| graph.root(value))
    .collect();
    let in_the_way = live()
        .filter(|&index| index < v_write && index != k_write)
        .any(|index| {
            let node = &graph.nodes[index];
            let touches = |value: &ValueId| graph.root(*value) == graph.root(keys.inouts[0]);
            node.inouts
                .iter()
                .any(|&value| moved.contains(&graph.root(value)))
                || index > k_write && node.inputs.iter().any(touches)
        });
    if !pair_up || !splits || !others_read_queries || is_output || in_the_way {
        return None;
    }
    Some(CacheWrite {
        k_write,
        v_write,
        op: RopeKvWrite {
            mode,
            n_rot,
            n_heads,
        },
        queries: TensorDesc::f32(queries.shape),
    })
}

/// Puts the fused node where values were written; the other two are left to be removed.
pub(super) fn replace(graph: &mut Graph, rope: usize, write: &CacheWrite) {
    let [rotation, keys, values] =
        [rope, write.k_write, write.v_write].map(|index| &graph.nodes[index]);
    let [x, pos, table] = rotation.inputs[..] else {
        unreachable!("a rotation has three inputs")
    };
    let y = rotation.outputs[0];
    let fused = Node {
        label: format!("{} + {} + {}", rotation.label, keys.label, values.label),
        op: Arc::new(write.op.clone()),
        inputs: vec![x, values.inputs[0], pos, table, values.inputs[1]],
        inouts: vec![keys.inouts[0], values.inouts[0]],
        outputs: vec![y],
    };
    // Views of the keys have no readers left.
    let rotated: Vec<usize> = (0..graph.values.len())
        .filter(|&index| graph.root(ValueId(index)) == y)
        .collect();
    for index in rotated {
        graph.values[index].desc = write.queries.clone();
    }
    graph.values[y.index()].source = Source::Node {
        node: write.v_write,
        output: 0,
    };
    graph.nodes[write.v_write] = fused;
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::device::{Device, submit};
    use crate::dtype::DType;
    use crate::graph::Tensor;
    use crate::ops::rope::{FINE, RopeMode};
    use crate::ops::scale::Scale;
    use crate::plan::{Arena, compile};
    use crate::reference::ReferenceDevice;

    const DIM: usize = 4;

    fn tensor(device: &ReferenceDevice, desc: TensorDesc, bytes: &[u8]) -> Tensor {
        let buffer = device.alloc(desc.n_bytes() as u64, "test").unwrap();
        device.write(&buffer, 0, bytes).unwrap();
        Tensor {
            desc,
            buffers: vec![buffer],
        }
    }

    /// Three tokens of two queries, a key and a value side by side. Returns the ops that run, the doubled queries and
    /// what the caches hold. `change` is applied before the values are written.
    fn run(change: impl Fn(&mut Graph, ValueId, ValueId)) -> (Vec<&'static str>, Vec<u8>) {
        let device = ReferenceDevice::new();
        let floats = |n: usize| -> Vec<u8> {
            (0..n)
                .flat_map(|i| ((i * 7 % 11) as f32 - 4.5).to_le_bytes())
                .collect()
        };
        let ints = |values: [i32; 3]| values.map(i32::to_le_bytes).concat();
        let all = TensorDesc::f32([3, 4, DIM]);
        let table = TensorDesc::f32([FINE + 1, DIM / 2, 2]);
        let pages = TensorDesc::pages(DType::F16, 1, 1, DIM);
        let all = tensor(&device, all, &floats(48));
        let table = tensor(&device, table.clone(), &floats(table.n_elems()));
        let pos = tensor(&device, TensorDesc::i32([3]), &ints([5, 6, 7]));
        let slots = tensor(&device, TensorDesc::i32([3]), &ints([9, -1, 3]));
        let caches = [(); 2].map(|()| tensor(&device, pages.clone(), &vec![0; pages.n_bytes()]));

        let mut graph = Graph::new();
        let all = graph.bind("all", &all);
        let [pos, table, slots] =
            [("pos", pos), ("table", table), ("slots", slots)].map(|(l, t)| graph.bind(l, &t));
        let [k_cache, v_cache] = caches.each_ref().map(|cache| graph.bind("cache", cache));
        let qk = graph.narrow(all, 1, 0, 3).unwrap();
        let v = graph.narrow(all, 1, 3, 1).unwrap();
        let rope = Rope {
            mode: RopeMode::Neox,
            n_rot: DIM,
        };
        let y = graph.apply("qk_rope", rope, &[qk, pos, table]).unwrap();
        let q = graph.narrow(y, 1, 0, 2).unwrap();
        let k = graph.narrow(y, 1, 2, 1).unwrap();
        graph
            .apply_multi("k_write", KvWrite, &[k, slots], &[k_cache])
            .unwrap();
        change(&mut graph, y, q);
        graph
            .apply_multi("v_write", KvWrite, &[v, slots], &[v_cache])
            .unwrap();
        let twice = Scale {
            scale: 2.0,
            bias: 0.0,
        };
        let doubled = graph.apply("doubled", twice, &[q]).unwrap();
        graph.output(doubled);

        let plan = Arc::new(compile("test", graph, &device, &mut Arena::default()).unwrap());
        let ops = plan.steps.iter().map(|step| step.op.name()).collect();
        let recording = device.record(&plan).unwrap();
        let pending = submit(&device, &recording, &[], plan.readback.as_ref()).unwrap();
        let bytes = device.finish(pending).unwrap();
        let output = plan.outputs.last().unwrap();
        let mut found = bytes[output.offset..output.offset + output.desc.n_bytes()].to_vec();
        for cache in &caches {
            let mut bytes = vec![0; cache.desc.n_bytes()];
            device.read(&cache.buffers[0], 0, &mut bytes).unwrap();
            found.extend(bytes);
        }
        (ops, found)
    }

    #[test]
    fn a_rotation_and_its_writes_become_one_node_with_the_same_results() {
        let fused = run(|_, _, _| {});
        assert_eq!(fused.0, ["rope_kv_write", "scale"], "fused");
        let apart = run(|graph, y, _| {
            graph.output(y);
        });
        assert_eq!(apart.0, ["rope", "kv_write", "kv_write", "scale"], "kept");
        assert!(fused.1 == apart.1, "queries and caches");
        assert!(fused.1.iter().any(|&byte| byte != 0), "not only zeros");
    }

    #[test]
    fn queries_that_are_read_before_the_writes_keep_them_apart() {
        let (ops, _) = run(|graph, _, q| {
            let one = Scale {
                scale: 1.0,
                bias: 1.0,
            };
            let early = graph.apply("early", one, &[q]).unwrap();
            graph.output(early);
        });
        assert_eq!(ops.len(), 5, "{ops:?}");
    }
}
