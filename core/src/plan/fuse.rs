//! Pass `fuse`: replaces sequences of nodes by the fused ops of the catalogue.
//!
//! - `add` whose sum is normalised becomes `add_rms_norm`, which writes both the sum and its norm;
//! - `hc_combine` whose streams are normalised becomes `hc_combine_norm` likewise;
//! - `rope` of queries and keys, and the writes of those keys and their values, become `rope_kv_write`.

mod cache_write;

use std::sync::Arc;

use crate::graph::{Graph, Node, Source};
use crate::op::{Op, Params};
use crate::ops::add::Add;
use crate::ops::add_rms_norm::AddRmsNorm;
use crate::ops::hc_combine::HcCombine;
use crate::ops::hc_combine_norm::HcCombineNorm;
use crate::ops::rms_norm::RmsNorm;

/// A node that adds to a residual, and the norm of its sum that runs with it.
struct SumAndNorm {
    norm: usize,
    fused: Arc<dyn Op>,
}

/// The graph with every known sequence replaced. Values keep their ids.
pub fn fuse(mut graph: Graph) -> Graph {
    let mut removed = vec![false; graph.nodes.len()];
    for add in 0..graph.nodes.len() {
        if let Some(SumAndNorm { norm, fused }) = norm_of_sum(&graph, add) {
            removed[norm] = true;
            let fused = both(&graph.nodes[add], &graph.nodes[norm], fused);
            graph.values[fused.outputs[1].index()].source = Source::Node {
                node: add,
                output: 1,
            };
            graph.nodes[add] = fused;
        }
    }
    for rope in 0..graph.nodes.len() {
        if let Some(write) = cache_write::find(&graph, rope, &removed) {
            cache_write::replace(&mut graph, rope, &write);
            removed[rope] = true;
            removed[write.k_write] = true;
        }
    }
    without(graph, &removed)
}

/// The first node that normalises the sum of node `add`, if it may run where the add is.
fn norm_of_sum(graph: &Graph, add: usize) -> Option<SumAndNorm> {
    let node = &graph.nodes[add];
    let streams = node.op.as_any().downcast_ref::<HcCombine>();
    let adds = node.op.as_any().is::<Add>() && adds_rows(graph, node);
    if streams.is_none() && !adds {
        return None;
    }
    let sum = node.outputs[0];
    let norm = (add + 1..graph.nodes.len()).find(|&index| {
        let node = &graph.nodes[index];
        node.inputs.first() == Some(&sum) && node.op.as_any().is::<RmsNorm>()
    })?;
    // Streams have a weight each, other rows one together.
    let weight = graph.nodes[norm].inputs[1];
    if graph.desc(weight).rank() != if streams.is_some() { 2 } else { 1 } {
        return None;
    }
    let weight = graph.root(weight);
    let is_ready = match graph.values[weight.index()].source {
        Source::Node { node, .. } => node < add,
        Source::Bound(_) | Source::Step { .. } => true,
        Source::View { .. } => unreachable!("a root is never a view"),
    };
    let sum = graph.root(sum);
    let is_updated = graph.nodes[add + 1..norm]
        .iter()
        .flat_map(|node| &node.inouts)
        .any(|&value| [weight, sum].contains(&graph.root(value)));
    if !is_ready || is_updated {
        return None;
    }
    let eps = graph.nodes[norm].op.as_any().downcast_ref::<RmsNorm>()?.eps;
    let fused: Arc<dyn Op> = match streams {
        Some(&HcCombine { scale }) => Arc::new(HcCombineNorm { scale, eps }),
        None => Arc::new(AddRmsNorm { eps }),
    };
    Some(SumAndNorm { norm, fused })
}

/// Whether an add is of two tensors of one shape whose rows the fused op can walk.
fn adds_rows(graph: &Graph, add: &Node) -> bool {
    let (a, b) = (graph.desc(add.inputs[0]), graph.desc(add.inputs[1]));
    let walks = |desc| Params::new().rows(AddRmsNorm::NAME, "a", desc).is_ok();
    a.shape == b.shape && walks(a) && walks(b)
}

/// The node that does what both do: the operands of the sum, then the weight; the sum, then its norm.
fn both(add: &Node, norm: &Node, fused: Arc<dyn Op>) -> Node {
    Node {
        label: format!("{} + {}", add.label, norm.label),
        op: fused,
        inputs: [&add.inputs[..], &norm.inputs[1..]].concat(),
        inouts: Vec::new(),
        outputs: vec![add.outputs[0], norm.outputs[0]],
    }
}

/// The graph without the removed nodes; values follow the nodes that remain.
fn without(mut graph: Graph, removed: &[bool]) -> Graph {
    let mut kept = 0;
    let places: Vec<usize> = removed
        .iter()
        .map(|&removed| {
            let place = kept;
            kept += usize::from(!removed);
            place
        })
        .collect();
    for value in &mut graph.values {
        if let Source::Node { node, .. } = &mut value.source {
            *node = places[*node];
        }
    }
    let mut removed = removed.iter();
    graph
        .nodes
        .retain(|_| !removed.next().copied().unwrap_or(false));
    graph
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::{Device, submit};
    use crate::dtype::DType;
    use crate::graph::Tensor;
    use crate::ops::mul::Mul;
    use crate::ops::scale::Scale;
    use crate::plan::{Arena, compile};
    use crate::reference::ReferenceDevice;
    use crate::tensor::TensorDesc;

    const N: usize = 5;

    /// A device, and tensors `[3, N]` and `[N]` with different numbers on it.
    struct Bench {
        device: ReferenceDevice,
        n_made: usize,
    }

    impl Bench {
        fn new() -> Self {
            Self {
                device: ReferenceDevice::new(),
                n_made: 0,
            }
        }

        fn tensor(&mut self, shape: &[usize]) -> Tensor {
            let desc = TensorDesc::f32(shape);
            self.n_made += 1;
            let bytes: Vec<u8> = (0..desc.n_elems())
                .map(|i| ((i * 7 + self.n_made * 13) % 11) as f32 - 4.5)
                .flat_map(f32::to_le_bytes)
                .collect();
            let buffer = self.device.alloc(bytes.len() as u64, "test").unwrap();
            self.device.write(&buffer, 0, &bytes).unwrap();
            Tensor {
                desc,
                buffers: vec![buffer],
            }
        }

        /// Names of the ops that run, and the outputs.
        fn run(&self, graph: Graph) -> (Vec<&'static str>, Vec<f32>) {
            let plan = compile("test", graph, &self.device, &mut Arena::default()).unwrap();
            let plan = Arc::new(plan);
            let ops = plan.steps.iter().map(|step| step.op.name()).collect();
            let recording = self.device.record(&plan).unwrap();
            let pending = submit(&self.device, &recording, &[], plan.readback.as_ref()).unwrap();
            let bytes = self.device.finish(pending).unwrap();
            let values = plan
                .outputs
                .iter()
                .flat_map(|output| {
                    bytes[output.offset..output.offset + output.desc.n_bytes()].chunks_exact(4)
                })
                .map(|word| f32::from_le_bytes(word.try_into().unwrap()))
                .collect();
            (ops, values)
        }
    }

    /// A residual block: `h = a + b`, twice normalised, scaled, added again and normalised. With `views`, norms read
    /// their operand through a view, which keeps the pass away.
    fn residual(bench: &mut Bench, views: bool) -> Graph {
        bench.n_made = 0;
        let mut graph = Graph::new();
        let mut bound = |graph: &mut Graph, shape: &[usize]| {
            let tensor = bench.tensor(shape);
            graph.bind("bound", &tensor)
        };
        let a = bound(&mut graph, &[3, N]);
        let b = bound(&mut graph, &[3, N]);
        let w1 = bound(&mut graph, &[N]);
        let w2 = bound(&mut graph, &[N]);
        let seen = |graph: &mut Graph, value| {
            if views {
                graph.reshape(value, [3, N]).unwrap()
            } else {
                value
            }
        };
        let h = graph.apply("h", Add, &[a, b]).unwrap();
        let doubled = graph
            .apply(
                "doubled",
                Scale {
                    scale: 2.0,
                    bias: 0.5,
                },
                &[h],
            )
            .unwrap();
        let x = seen(&mut graph, h);
        let n1 = graph.apply("n1", RmsNorm { eps: 1e-5 }, &[x, w1]).unwrap();
        let n2 = graph.apply("n2", RmsNorm { eps: 1e-3 }, &[x, w2]).unwrap();
        let product = graph.apply("product", Mul, &[n1, n2]).unwrap();
        let last = graph.apply("last", Add, &[product, doubled]).unwrap();
        let x = seen(&mut graph, last);
        let n3 = graph.apply("n3", RmsNorm { eps: 1e-5 }, &[x, w2]).unwrap();
        for value in [h, n1, n2, last, n3] {
            graph.output(value);
        }
        graph
    }

    #[test]
    fn a_sum_and_its_norm_become_one_node_with_the_same_results() {
        let mut bench = Bench::new();
        let graph = residual(&mut bench, false);
        let (ops, fused) = bench.run(graph);
        assert_eq!(
            ops,
            ["add_rms_norm", "scale", "rms_norm", "mul", "add_rms_norm"],
            "the first norm of each sum is fused, the second still reads the sum"
        );
        let graph = residual(&mut bench, true);
        let (ops, unfused) = bench.run(graph);
        assert_eq!(ops.len(), 7, "not fused: {ops:?}");
        assert_eq!(fused.len(), 5 * 3 * N, "all outputs");
        for (i, (fused, unfused)) in fused.iter().zip(&unfused).enumerate() {
            assert!(
                (fused - unfused).abs() <= 1e-6 * unfused.abs().max(1.0),
                "element {i}: {fused} fused, {unfused} unfused"
            );
        }
    }

    #[test]
    fn streams_and_their_norms_become_one_node_with_the_same_results() {
        let mut bench = Bench::new();
        let mut build = |views: bool| {
            bench.n_made = 0;
            let mut graph = Graph::new();
            let mut bound = |graph: &mut Graph, shape: &[usize]| {
                let tensor = bench.tensor(shape);
                graph.bind("bound", &tensor)
            };
            let embedded = bound(&mut graph, &[3, N]);
            let streams = graph.repeat(embedded, 1, 2).unwrap();
            let x = bound(&mut graph, &[3, N]);
            let inject = bound(&mut graph, &[3, 2]);
            let w = bound(&mut graph, &[2 * N]);
            let w = graph.reshape(w, [2, N]).unwrap();
            let operands = [streams, x, inject];
            let sum = graph
                .apply("sum", HcCombine { scale: 0.5 }, &operands)
                .unwrap();
            let seen = if views {
                graph.reshape(sum, [3, 2, N]).unwrap()
            } else {
                sum
            };
            let norm = RmsNorm { eps: 1e-5 };
            let norm = graph.apply("norm", norm, &[seen, w]).unwrap();
            graph.output(sum);
            graph.output(norm);
            graph
        };
        let graphs = [build(false), build(true)];
        let [fused, unfused] = graphs.map(|graph| bench.run(graph));
        assert_eq!(fused.0, ["hc_combine_norm"], "fused");
        assert_eq!(unfused.0, ["hc_combine", "rms_norm"], "kept apart");
        for (i, (fused, unfused)) in fused.1.iter().zip(&unfused.1).enumerate() {
            assert!(
                (fused - unfused).abs() <= 1e-6 * unfused.abs().max(1.0),
                "element {i}: {fused} fused, {unfused} unfused"
            );
        }
    }

    #[test]
    fn values_keep_their_ids_and_point_at_their_nodes() {
        let mut bench = Bench::new();
        let before = residual(&mut bench, false);
        let after = fuse(before.clone());
        assert_eq!(before.values.len(), after.values.len(), "values");
        assert_eq!(before.outputs, after.outputs, "outputs");
        for (index, node) in after.nodes.iter().enumerate() {
            for (place, value) in node.outputs.iter().enumerate() {
                let found = match after.values[value.index()].source {
                    Source::Node { node, output } => (node, output),
                    ref other => panic!("{other:?}"),
                };
                assert_eq!(found, (index, place), "source of an output");
            }
        }
    }

    /// Builds a graph that must stay as it is.
    fn unchanged(why: &str, build: impl FnOnce(&mut Bench, &mut Graph)) {
        let mut bench = Bench::new();
        let mut graph = Graph::new();
        build(&mut bench, &mut graph);
        let names = |graph: &Graph| -> Vec<&'static str> {
            graph.nodes.iter().map(|node| node.op.name()).collect()
        };
        assert_eq!(names(&fuse(graph.clone())), names(&graph), "{why}");
    }

    #[test]
    fn what_must_not_be_fused() {
        unchanged("the second operand repeats", |bench, graph| {
            let a = graph.bind("a", &bench.tensor(&[3, N]));
            let b = graph.bind("b", &bench.tensor(&[N]));
            let sum = graph.apply("sum", Add, &[a, b]).unwrap();
            graph
                .apply("norm", RmsNorm { eps: 0.0 }, &[sum, b])
                .unwrap();
        });
        unchanged("the weight is made after the sum", |bench, graph| {
            let a = graph.bind("a", &bench.tensor(&[3, N]));
            let w = graph.bind("w", &bench.tensor(&[N]));
            let sum = graph.apply("sum", Add, &[a, a]).unwrap();
            let w = graph.apply("late", Mul, &[w, w]).unwrap();
            graph
                .apply("norm", RmsNorm { eps: 0.0 }, &[sum, w])
                .unwrap();
        });
        unchanged("the sum is the weight, not the operand", |bench, graph| {
            let a = graph.bind("a", &bench.tensor(&[N]));
            let x = graph.bind("x", &bench.tensor(&[3, N]));
            let sum = graph.apply("sum", Add, &[a, a]).unwrap();
            graph
                .apply("norm", RmsNorm { eps: 0.0 }, &[x, sum])
                .unwrap();
        });
        unchanged("the sum is updated in between", |bench, graph| {
            let a = graph.bind("a", &bench.tensor(&[3, N]));
            let w = graph.bind("w", &bench.tensor(&[N]));
            let rows = graph.step_input("rows", DType::I32, [3]);
            let sum = graph.apply("sum", Add, &[a, a]).unwrap();
            graph
                .apply_multi(
                    "update",
                    crate::ops::scatter_rows::ScatterRows,
                    &[a, rows],
                    &[sum],
                )
                .unwrap();
            graph
                .apply("norm", RmsNorm { eps: 0.0 }, &[sum, w])
                .unwrap();
        });
    }
}
