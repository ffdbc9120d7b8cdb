//! `delta_rule_chunk` in f64: the recurrence itself.

use super::RefArgs;
use super::delta_rule_step::delta_rule;
use crate::ops::delta_rule_chunk::{CHUNK, DeltaRuleChunk};

/// The rule token by token; only the magnitudes are those of sums over chunks.
pub fn delta_rule_chunk(op: &DeltaRuleChunk, args: &mut RefArgs<'_>) {
    delta_rule(&op.rule, args, Some(CHUNK));
}

#[cfg(test)]
mod tests {
    use super::super::{RefArgs, RefOutput, RefTensor, RefTensorMut};
    use super::*;
    use crate::op::Op;
    use crate::ops::delta_rule_step::{DeltaRuleStep, HeadMap};
    use crate::reference::testing::{close, f32s, i32s};
    use crate::tensor::TensorDesc;

    const K_DIM: usize = 3;

    /// A token of a layer with one head and one output channel.
    #[derive(Clone, Copy)]
    struct Token {
        q: [f32; K_DIM],
        k: [f32; K_DIM],
        v: f32,
        g: f32,
        beta: f32,
    }

    fn dot(a: &[f64; K_DIM], b: &[f64; K_DIM]) -> f64 {
        a.iter().zip(b).map(|(a, b)| a * b).sum()
    }

    /// The formulas of the definition, a chunk at a time. Returns the outputs; updates the state.
    fn in_chunks(tokens: &[Token], scale: f64, s: &mut [f64; K_DIM]) -> Vec<f64> {
        let mut y = Vec::new();
        for chunk in tokens.chunks(CHUNK) {
            let n = chunk.len();
            let q = |i: usize| chunk[i].q.map(f64::from);
            let k = |i: usize| chunk[i].k.map(f64::from);
            let beta = |i: usize| f64::from(chunk[i].beta);
            // e^(g_from + .. + g_(to - 1))
            let decay = |from: usize, to: usize| {
                let sum: f64 = chunk[from..to].iter().map(|t| f64::from(t.g)).sum();
                sum.exp()
            };
            let mut inverse: Vec<Vec<f64>> = Vec::new();
            for i in 0..n {
                let mut row = vec![0.0; n];
                row[i] = 1.0;
                for (l, above) in inverse.iter().enumerate() {
                    let a = beta(i) * dot(&k(i), &k(l)) * decay(l + 1, i + 1);
                    for (x, above) in row.iter_mut().zip(above) {
                        *x -= a * above;
                    }
                }
                inverse.push(row);
            }
            let right_side: Vec<f64> = (0..n)
                .map(|j| f64::from(chunk[j].v) - decay(0, j + 1) * dot(s, &k(j)))
                .collect();
            let u: Vec<f64> = (0..n)
                .map(|i| {
                    (0..=i)
                        .map(|j| inverse[i][j] * beta(j) * right_side[j])
                        .sum()
                })
                .collect();
            for i in 0..n {
                let new: f64 = (0..=i)
                    .map(|j| decay(j + 1, i + 1) * dot(&q(i), &k(j)) * u[j])
                    .sum();
                y.push(scale * (decay(0, i + 1) * dot(s, &q(i)) + new));
            }
            *s = std::array::from_fn(|c| {
                let new: f64 = (0..n).map(|j| decay(j + 1, n) * u[j] * k(j)[c]).sum();
                decay(0, n) * s[c] + new
            });
        }
        y
    }

    #[test]
    fn chunks_give_what_the_recurrence_gives() {
        let wave = |i: usize, by: f32| ((i + 1) as f32 * by).sin();
        let tokens: Vec<Token> = (0..2 * CHUNK + 9)
            .map(|i| Token {
                q: [wave(i, 0.7), wave(i, 1.3), wave(i, 2.9)],
                k: [0.6 * wave(i, 1.7), 0.5 * wave(i, 0.3), 0.4 * wave(i, 2.3)],
                v: wave(i, 0.9),
                g: if i == 40 {
                    -30.0
                } else {
                    -0.1 * wave(i, 0.2).abs()
                },
                beta: wave(i, 0.37).abs(),
            })
            .collect();
        let n = tokens.len();
        let op = DeltaRuleChunk {
            rule: DeltaRuleStep {
                n_k_heads: 1,
                map: HeadMap::Tiled,
                scale: 0.5,
                l2_eps: None,
            },
        };
        let inputs = [
            TensorDesc::f32([n, 2 * K_DIM + 1]),
            TensorDesc::f32([n, 2, 1]),
            TensorDesc::i32([1, 4]),
            TensorDesc::i32([1, 2]),
        ];
        let inouts = [
            TensorDesc::f32([1, 1, 1, K_DIM]),
            TensorDesc::f32([1, 2, 1, K_DIM + 2]),
        ];
        let qkv: Vec<f32> = tokens
            .iter()
            .flat_map(|t| [&t.q[..], &t.k, &[t.v]].concat())
            .collect();
        let gates: Vec<f32> = tokens.iter().flat_map(|t| [t.g, t.beta]).collect();
        let before = [0.3_f32, -0.8, 0.5];
        let bytes = [
            f32s(&qkv),
            f32s(&gates),
            i32s(&[0, 0, n as i32, 5]),
            i32s(&[0, 0]),
        ];
        let mut memory = [f32s(&before), f32s(&[f32::NAN; 2 * (K_DIM + 2)])];
        let [state, record] = &mut memory;
        let descs: Vec<&TensorDesc> = inputs.iter().collect();
        let outputs = op.outputs(&descs, &[&inouts[0], &inouts[1]]).unwrap();
        let mut args = RefArgs {
            inputs: inputs
                .iter()
                .zip(&bytes)
                .map(|(desc, bytes)| RefTensor { desc, bytes })
                .collect(),
            inouts: vec![
                RefTensorMut::new(&inouts[0], state),
                RefTensorMut::new(&inouts[1], record),
            ],
            outputs: vec![RefOutput::new(&outputs[0])],
        };
        op.reference(&mut args);
        let y = args.outputs[0].values.clone();
        let mut s = before.map(f64::from);
        // All but the recorded last token.
        let mut expected = in_chunks(&tokens[..n - 1], 0.5, &mut s);
        let stored = s;
        expected.extend(in_chunks(&tokens[n - 1..], 0.5, &mut s));
        close(&y, &expected, 1e-12);
        let found: Vec<f64> = memory[0]
            .chunks_exact(4)
            .map(|w| f64::from(f32::from_le_bytes([w[0], w[1], w[2], w[3]])))
            .collect();
        close(&found, &stored, 1e-7);
    }
}
