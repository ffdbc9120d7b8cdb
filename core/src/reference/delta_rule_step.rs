//! `delta_rule_step` in f64.

use super::RefArgs;
use crate::op::Tolerance;
use crate::ops::delta_rule_step::{DeltaRuleStep, HeadMap, Sizes};
use crate::ops::runs::{Run, live_runs};

/// Token by token: `S <- e^g S + u k^T` with `u = beta (v - e^g S k)`, `y = scale S q`.
pub fn delta_rule_step(op: &DeltaRuleStep, args: &mut RefArgs<'_>) {
    delta_rule(op, args, None);
}

/// The rule, for a device that sums runs of more rows than are recorded in chunks of so many tokens, if any.
pub(super) fn delta_rule(op: &DeltaRuleStep, args: &mut RefArgs<'_>, chunk: Option<usize>) {
    let input_descs: Vec<_> = args.inputs.iter().map(|input| input.desc).collect();
    let inout_descs: Vec<_> = args.inouts.iter().map(|inout| inout.desc).collect();
    let Ok(sizes) = op.sizes(DeltaRuleStep::NAME, &input_descs, &inout_descs) else {
        unreachable!("the shape rule accepted the operands");
    };
    for i in 0..sizes.n_tokens * sizes.n_v_heads * sizes.v_dim {
        args.outputs[0].put(i, 0.0);
    }
    let rows = |index: usize, n: usize| -> Vec<Vec<f32>> {
        let input = args.inputs[index];
        (0..n).map(|row| input.row_vec(row)).collect()
    };
    let tokens = [rows(0, sizes.n_tokens), rows(1, 2 * sizes.n_tokens)];
    let commits = args.inputs[3].to_i32();
    for run in live_runs(&args.inputs[2], sizes.n_slots, sizes.n_tokens) {
        if run.n_rows == 0 {
            continue;
        }
        let commit = [commits[2 * run.index], commits[2 * run.index + 1]];
        for head in 0..sizes.n_v_heads {
            run_head(op, args, &sizes, &tokens, run, commit, head, chunk);
        }
    }
}

/// One row of `S` with a bound on its error in units of the tolerance: the error of earlier tokens, which decays with
/// the row, and what each token adds.
struct Row {
    s: Vec<f64>,
    error: f64,
    sums: ChunkSums,
}

/// What bounds the rounding of sums over a chunk, for one row of `S`. Roundings of different terms are independent, so
/// their squares add up.
///
/// The chunk's `u = T r`, where `r_i = v_i - e^(G_i) S k_i`, solves the triangular system up to roundings of the size
/// `|1 + A| |T| |r|`: an element of `T` is at most `beta_i |k_i| |k_j| e^(D_ij)`, one of `A` too.
#[derive(Clone, Copy, Debug, Default)]
struct ChunkSums {
    /// `e^(G_i) |S|`, of the state before the chunk.
    start: f64,
    /// The terms of a row of `T r` without the row's own, and without its factor.
    solved: f64,
    /// The same of `A (T r)`.
    substituted: f64,
    /// All terms of the chunk, as large as they were at first.
    undecayed: f64,
}

/// What is lost of a term whose decay from one token to another is below e^-87, in units of the tolerance.
const LOST: f64 = 1.7e-38 / Tolerance::U;

/// A decay with its own error: an exponential is off by (3 + 2 |g|) units.
fn inexact(g: f64) -> f64 {
    g.exp() * (1.0 + g.abs().min(104.0) / 4.0)
}

fn length(v: &[f64]) -> f64 {
    v.iter().map(|x| x * x).sum::<f64>().sqrt()
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

impl Row {
    /// `S <- e^g S + u k^T`. `around` is the size of the terms that made `u`.
    fn update(&mut self, g: f64, k: &[f64], u: f64, around: f64) {
        let carried = inexact(g) * length(&self.s);
        self.add(g, k, u);
        self.error = g.exp() * self.error + carried + (around + u.abs()) * length(k);
    }

    fn add(&mut self, g: f64, k: &[f64], u: f64) {
        let decay = g.exp();
        for (s, k) in self.s.iter_mut().zip(k) {
            *s = decay * *s + u * k;
        }
    }

    /// A chunk begins.
    fn begin_chunk(&mut self) {
        self.sums = ChunkSums {
            start: length(&self.s),
            undecayed: length(&self.s),
            ..ChunkSums::default()
        };
    }

    /// The same as [`update`](Self::update) within a chunk. Returns the size of the terms that made `u`.
    fn update_in_chunk(&mut self, [g, beta]: [f64; 2], k: &[f64], u: f64, v: f64) -> f64 {
        let (beta, k_len) = (beta.abs(), length(k));
        // What an error before the token is after it: the update takes `beta |k|^2` of its part along the key away.
        let kept = (1.0 - beta * k_len * k_len).abs().max(1.0);
        let carried = inexact(g) * length(&self.s).max(self.sums.start);
        let before = self.sums;
        let start = inexact(g) * before.start;
        let right_side = beta * (v.abs() + start * k_len);
        let solved = inexact(g) * kept * before.solved;
        let row = right_side.hypot(beta * k_len * solved);
        let substituted = inexact(g) * kept * before.substituted;
        let lost = LOST * before.undecayed;
        let size = row.hypot(beta * k_len * substituted) + beta * k_len * lost;
        self.sums = ChunkSums {
            start,
            solved: solved.hypot(k_len * right_side),
            substituted: substituted.hypot(k_len * row),
            undecayed: before.undecayed + k_len * right_side.max(u.abs()),
        };
        let of_state = g.exp() * self.error;
        self.add(g, k, u);
        self.error = (kept * of_state)
            .hypot(carried)
            .hypot((size + u.abs()) * k_len)
            .hypot(lost);
        size + beta * k_len * of_state
    }
}

/// A head of q or k, divided by its length where the op asks for it.
fn normed(values: &[f32], l2_eps: Option<f32>) -> Vec<f64> {
    let values: Vec<f64> = values.iter().copied().map(f64::from).collect();
    let Some(eps) = l2_eps else { return values };
    let divisor = (dot(&values, &values) + f64::from(eps)).sqrt();
    if divisor == 0.0 {
        return values;
    }
    values.iter().map(|v| v / divisor).collect()
}

#[allow(
    clippy::too_many_arguments,
    reason = "one call, from the loop over runs and heads"
)]
fn run_head(
    op: &DeltaRuleStep,
    args: &mut RefArgs<'_>,
    sizes: &Sizes,
    [qkv, gates]: &[Vec<Vec<f32>>; 2],
    run: Run,
    [n_commit, half]: [i32; 2],
    head: usize,
    chunk: Option<usize>,
) {
    let (k_dim, v_dim) = (sizes.k_dim, sizes.v_dim);
    let key_head = sizes.key_head(op.map, head);
    let m = sizes.n_recorded;
    let half = usize::from(half & 1 == 1);
    let fresh = run.position == 0;
    let n_commit = if fresh {
        0
    } else {
        usize::try_from(n_commit).unwrap_or(0).min(m)
    };
    let state_at = |j: usize| ((run.slot * sizes.n_v_heads + head) * v_dim + j) * k_dim;
    let record_at = |half: usize, j: usize| ((run.slot * 2 + half) * m + j) * sizes.record_len();
    let u_at = |j: usize| sizes.n_k_heads * k_dim + head * v_dim + j;
    let g_at = sizes.n_k_heads * k_dim + sizes.n_v_heads * v_dim + head;

    let mut rows: Vec<Row> = (0..v_dim)
        .map(|j| Row {
            s: (0..k_dim)
                .map(|i| {
                    if fresh {
                        0.0
                    } else {
                        f64::from(args.inouts[0].f32(state_at(j) + i))
                    }
                })
                .collect(),
            error: 0.0,
            sums: ChunkSums::default(),
        })
        .collect();
    for t in 0..n_commit {
        let at = record_at(half, t);
        let record = |i: usize| f64::from(args.inouts[1].f32(at + i));
        let k: Vec<f64> = (0..k_dim).map(|i| record(key_head * k_dim + i)).collect();
        for (j, row) in rows.iter_mut().enumerate() {
            row.update(record(g_at), &k, record(u_at(j)), 0.0);
        }
    }
    let n_recorded = run.n_rows.min(m);
    let chunk = chunk.filter(|_| run.n_rows > m);
    let writes_key = match op.map {
        HeadMap::Tiled => head < sizes.n_k_heads,
        HeadMap::Grouped => head.is_multiple_of(sizes.n_v_heads / sizes.n_k_heads),
    };
    for t in 0..=run.n_rows {
        if t + n_recorded == run.n_rows && (fresh || n_commit > 0 || t > 0) {
            for (j, row) in rows.iter().enumerate() {
                for (i, &s) in row.s.iter().enumerate() {
                    args.inouts[0].put_sum(state_at(j) + i, s, row.error);
                }
            }
        }
        if t == run.n_rows {
            break;
        }
        let token = run.first + t;
        let qkv = &qkv[token];
        let q = normed(&qkv[key_head * k_dim..][..k_dim], op.l2_eps);
        let k_raw = &qkv[(sizes.n_k_heads + key_head) * k_dim..][..k_dim];
        let k = normed(k_raw, op.l2_eps);
        let v = &qkv[2 * sizes.n_k_heads * k_dim + head * v_dim..][..v_dim];
        let gate = |i: usize| f64::from(gates[2 * token + i][head]);
        let (g, beta) = (gate(0), gate(1));
        let recorded = (t + n_recorded >= run.n_rows)
            .then(|| record_at(1 - half, t + n_recorded - run.n_rows));
        if let Some(at) = recorded {
            args.inouts[1].put(at + g_at, g as f32);
            for (i, &k) in k.iter().enumerate().filter(|_| writes_key) {
                args.inouts[1].put_sum(at + key_head * k_dim + i, k, k.abs());
            }
        }
        // A chunk begins with the run and with its recorded part.
        let stored_at = run.n_rows - n_recorded;
        let begins = |chunk: usize| {
            let from = if t < stored_at { 0 } else { stored_at };
            (t - from).is_multiple_of(chunk)
        };
        for (j, row) in rows.iter_mut().enumerate() {
            let v = f64::from(v[j]);
            let u = beta * (v - g.exp() * dot(&row.s, &k));
            let size = if let Some(chunk) = chunk {
                if begins(chunk) {
                    row.begin_chunk();
                }
                row.update_in_chunk([g, beta], &k, u, v)
            } else {
                let size = beta.abs() * (v.abs() + (length(&row.s) + row.error) * length(&k));
                row.update(g, &k, u, size);
                size
            };
            let y = f64::from(op.scale) * dot(&row.s, &q);
            let reach = f64::from(op.scale).abs() * length(&q);
            args.outputs[0].put_sum(
                (token * sizes.n_v_heads + head) * v_dim + j,
                y,
                reach * (row.error + length(&row.s).max(row.sums.start)),
                reach * length(&row.s),
            );
            if let Some(at) = recorded {
                args.inouts[1].put_sum(at + u_at(j), u, size);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{RefOutput, RefTensor, RefTensorMut};
    use super::*;
    use crate::op::Op;
    use crate::reference::testing::{close, f32s, i32s};
    use crate::tensor::TensorDesc;

    /// A layer with its memory: one slot, records of two tokens.
    struct Layer {
        op: DeltaRuleStep,
        n_v_heads: usize,
        k_dim: usize,
        v_dim: usize,
        state: Vec<u8>,
        record: Vec<u8>,
    }

    impl Layer {
        fn new(op: DeltaRuleStep, n_v_heads: usize, k_dim: usize, v_dim: usize) -> Self {
            let record = op.n_k_heads * k_dim + n_v_heads * v_dim + n_v_heads;
            let poison = |n: usize| f32s(&vec![f32::NAN; n]);
            Self {
                state: poison(n_v_heads * v_dim * k_dim),
                record: poison(4 * record),
                op,
                n_v_heads,
                k_dim,
                v_dim,
            }
        }

        /// Tokens at a position after a commit.
        fn run(
            &mut self,
            qkv: &[&[f32]],
            gates: &[f32],
            position: i32,
            commit: [i32; 2],
        ) -> Vec<f64> {
            let n = qkv.len();
            let descs = [
                TensorDesc::f32([n, qkv[0].len()]),
                TensorDesc::f32([n, 2, self.n_v_heads]),
                TensorDesc::i32([1, 4]),
                TensorDesc::i32([1, 2]),
            ];
            let record_len =
                self.op.n_k_heads * self.k_dim + self.n_v_heads * self.v_dim + self.n_v_heads;
            let state = TensorDesc::f32([1, self.n_v_heads, self.v_dim, self.k_dim]);
            let record = TensorDesc::f32([1, 2, 2, record_len]);
            let outputs = self
                .op
                .outputs(&descs.iter().collect::<Vec<_>>(), &[&state, &record])
                .unwrap();
            let bytes = [
                f32s(&qkv.concat()),
                f32s(gates),
                i32s(&[0, 0, n as i32, position]),
                i32s(&commit),
            ];
            let mut args = RefArgs {
                inputs: descs
                    .iter()
                    .zip(&bytes)
                    .map(|(desc, bytes)| RefTensor { desc, bytes })
                    .collect(),
                inouts: vec![
                    RefTensorMut::new(&state, &mut self.state),
                    RefTensorMut::new(&record, &mut self.record),
                ],
                outputs: vec![RefOutput::new(&outputs[0])],
            };
            delta_rule_step(&self.op, &mut args);
            args.outputs[0].values.clone()
        }

        fn state(&self) -> Vec<f64> {
            let words = self.state.chunks_exact(4);
            words
                .map(|w| f64::from(f32::from_le_bytes([w[0], w[1], w[2], w[3]])))
                .collect()
        }
    }

    fn op(n_k_heads: usize, map: HeadMap, l2_eps: Option<f32>) -> DeltaRuleStep {
        DeltaRuleStep {
            n_k_heads,
            map,
            scale: 2.0,
            l2_eps,
        }
    }

    #[test]
    fn two_tokens_by_hand() {
        let mut layer = Layer::new(op(1, HeadMap::Tiled, None), 1, 2, 1);
        // S = 3 (1, 0); y = 2 * 3. Then S = e^g 3 (1, 0); u = 0.5 (4 - 0) = 2; S = (3 e^g, 2).
        let g = -0.5_f32;
        let y = layer.run(
            &[&[1.0, 0.0, 1.0, 0.0, 3.0], &[1.0, 1.0, 0.0, 1.0, 4.0]],
            &[-1.0, 1.0, g, 0.5],
            0,
            [7, 0],
        );
        let e = f64::from(g).exp();
        close(&y, &[6.0, 2.0 * (3.0 * e + 2.0)], 1e-6);
        assert_eq!(layer.state(), [0.0, 0.0], "both tokens are only recorded");
        // Both accepted, then a token that writes nothing.
        let y = layer.run(&[&[0.0, 1.0, 1.0, 1.0, 9.0]], &[0.0, 0.0], 2, [2, 1]);
        close(&y, &[4.0], 1e-6);
        close(&layer.state(), &[3.0 * e, 2.0], 1e-6);
    }

    #[test]
    fn a_rejected_token_leaves_no_trace() {
        let map = HeadMap::Tiled;
        let tokens: [&[f32]; 4] = [
            &[1.0, 0.5, 0.3, 0.7, 3.0],
            &[0.2, 1.0, 0.9, -0.4, 4.0],
            &[5.0, 5.0, 5.0, 5.0, 5.0],
            &[0.7, -0.3, 0.1, 0.6, 1.0],
        ];
        let gates = [-0.1, 0.9];
        let mut plain = Layer::new(op(1, map, Some(1e-6)), 1, 2, 1);
        plain.run(&tokens[..1], &gates, 0, [0, 0]);
        plain.run(&tokens[1..2], &gates, 1, [1, 1]);
        let expected = plain.run(&tokens[3..], &gates, 2, [1, 0]);
        let mut draft = Layer::new(op(1, map, Some(1e-6)), 1, 2, 1);
        draft.run(&tokens[..1], &gates, 0, [0, 0]);
        draft.run(&tokens[1..3], &gates.repeat(2), 1, [1, 1]);
        let found = draft.run(&tokens[3..], &gates, 2, [1, 0]);
        close(&found, &expected, 1e-6);
        close(&draft.state(), &plain.state(), 1e-6);
    }

    #[test]
    fn a_long_run_stores_all_but_its_last_tokens() {
        let tokens: [&[f32]; 3] = [&[0.0, 1.0, 2.0], &[0.0, 1.0, 3.0], &[0.0, 1.0, 5.0]];
        let mut layer = Layer::new(op(1, HeadMap::Tiled, None), 1, 1, 1);
        layer.run(&tokens, &[0.0, 1.0].repeat(3), 0, [0, 0]);
        assert_eq!(layer.state(), [2.0], "as of the first of three");
        layer.run(&tokens[..1], &[0.0, 0.0], 2, [1, 1]);
        assert_eq!(layer.state(), [3.0], "back by one of the two recorded");
    }

    #[test]
    fn maps_of_heads_differ() {
        // Two key heads with keys 1 and 2, four value heads with value 1: u k = k, y = 2 q k k.
        let token: &[f32] = &[1.0, 1.0, 1.0, 2.0, 1.0, 1.0, 1.0, 1.0];
        let gates = [0.0, 0.0, 0.0, 0.0, 1.0, 1.0, 1.0, 1.0];
        let y = |map| Layer::new(op(2, map, None), 4, 1, 1).run(&[token], &gates, 0, [0, 0]);
        assert_eq!(y(HeadMap::Tiled), [2.0, 4.0, 2.0, 4.0], "h mod 2");
        assert_eq!(y(HeadMap::Grouped), [2.0, 2.0, 4.0, 4.0], "h / 2");
    }
}
