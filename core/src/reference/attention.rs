//! `attention` in f64, cell by cell.

use std::collections::BTreeMap;

use super::{RefArgs, RefTensor};
use crate::PAGE;
use crate::op::Tolerance;
use crate::ops::attention::{Attention, tau_units};

/// What is left of the range of f16 for a query or a weight that is the sum of two.
const FLOOR: f64 = 1.0 / (1_u64 << 39) as f64;

/// `o = sum_j p_j v_j` over the visible cells of each token's sequence.
///
/// The tolerance's factor covers the roundings that depend on shapes. What depends on the data is part of the
/// magnitude: with `delta = max_j (sqrt(dk) + 4) 2u |scale| sum |q k_j|`, the error of a score, each `p_j` is off by a
/// factor of at most `1 + 2 delta`, and by `4u |s_j - max|` more where `exp` is as exact as WGSL asks (3 + 2|x| ulp).
/// The magnitude is `sum_j p_j |v_j| (1 + error of p_j / tau)`. `FLOOR` is what queries and weights may lose by
/// themselves, as a share of the largest.
pub fn attention(op: &Attention, args: &mut RefArgs<'_>) {
    let [q, k] = [args.inputs[0], args.inputs[1]];
    let (v, at) = match op.shared_kv {
        Some(_) => (k, 2),
        None => (args.inputs[2], 3),
    };
    let max_pages = args.inputs[at].desc.last();
    let page_table = args.inputs[at].to_i32();
    let seq_rows = args.inputs[at + 1].to_i32();
    let positions = args.inputs[at + 2].to_i32();
    let n_seq_rows = args.inputs[at].desc.shape[0];
    let out = &mut args.outputs[0];
    let [n_heads, dv] = [q.desc.shape[1], out.desc.last()];
    let [n_pages, n_kv_heads] = [k.desc.shape[0], k.desc.shape[1]];
    let group = n_heads / n_kv_heads;
    let tau = tau_units(match op.window {
        0 => op.max_len,
        window => op.max_len.min(window),
    }) * Tolerance::U;

    for kv_head in 0..n_kv_heads {
        let mut keys = Decoded::new(k);
        let mut values = Decoded::new(v);
        for (t, (&seq, &position)) in seq_rows.iter().zip(&positions).enumerate() {
            // Rows of this head in the caches.
            let cells: Vec<usize> = match (usize::try_from(seq), usize::try_from(position)) {
                (Ok(seq), Ok(position)) if seq < n_seq_rows => {
                    let first = match op.window {
                        0 => 0,
                        window => (position + 1).saturating_sub(window),
                    };
                    (first..(position + 1).min(max_pages * PAGE))
                        .filter_map(|j| {
                            let page =
                                usize::try_from(page_table[seq * max_pages + j / PAGE]).ok()?;
                            (page < n_pages)
                                .then_some((page * n_kv_heads + kv_head) * PAGE + j % PAGE)
                        })
                        .collect()
                }
                _ => Vec::new(),
            };
            for head in kv_head * group..(kv_head + 1) * group {
                let row = q.row_vec(t * n_heads + head);
                let sums = attend(
                    &row,
                    &cells,
                    (op.scale, op.softcap, tau),
                    &mut keys,
                    &mut values,
                    dv,
                );
                let at = (t * n_heads + head) * dv;
                for (i, [value, magnitude, squares]) in sums.into_iter().enumerate() {
                    out.put_sum(at + i, value, magnitude, squares.sqrt());
                }
            }
        }
    }
}

/// The softmax over these cells of one query: value, magnitude and sum of squares of each of the first `dv` channels.
/// `tau` is the tolerance's factor, which the magnitude is relative to.
pub(super) fn attend(
    query: &[f32],
    cells: &[usize],
    (scale, softcap, tau): (f32, f32, f64),
    keys: &mut Decoded<'_>,
    values: &mut Decoded<'_>,
    dv: usize,
) -> Vec<[f64; 3]> {
    let score_rounding = ((query.len() as f64).sqrt() + 4.0) * 2.0 * Tolerance::U;
    let (scale, cap) = (f64::from(scale), f64::from(softcap));
    let most = query.iter().fold(0.0_f64, |m, q| m.max(f64::from(q.abs())));
    let mut delta = 0.0_f64;
    let scores: Vec<f64> = cells
        .iter()
        .map(|&cell| {
            let products = query
                .iter()
                .zip(keys.row(cell))
                .map(|(&q, &k)| f64::from(q) * f64::from(k));
            let (sum, magnitude) = products.fold((0.0, 0.0), |(s, m), p| (s + p, m + p.abs()));
            let key: f64 = keys.row(cell).iter().map(|k| f64::from(k.abs())).sum();
            let rounding = scale.abs() * (score_rounding * magnitude + FLOOR * most * key);
            if softcap > 0.0 {
                // The slope of the cap is at most 1; its own roundings are relative to the cap.
                delta = delta.max(rounding + 8.0 * cap * Tolerance::U);
                cap * (scale * sum / cap).tanh()
            } else {
                delta = delta.max(rounding);
                scale * sum
            }
        })
        .collect();
    let top = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let exps: Vec<f64> = scores.iter().map(|s| (s - top).exp()).collect();
    let total: f64 = exps.iter().sum();
    let exp_error = |s: f64| 4.0 * Tolerance::U * (top - s);
    let mean_error: f64 = exps
        .iter()
        .zip(&scores)
        .map(|(e, &s)| e / total * exp_error(s))
        .sum();

    let mut sums = vec![[0.0_f64; 3]; dv];
    for ((&cell, e), &s) in cells.iter().zip(&exps).zip(&scores) {
        let p = e / total;
        let error = 2.0 * delta + exp_error(s) + mean_error;
        for (sum, &v) in sums.iter_mut().zip(values.row(cell)) {
            let term = p * f64::from(v);
            sum[0] += term;
            sum[1] += term.abs() * (1.0 + error / tau) + FLOOR * f64::from(v.abs()) / tau;
            sum[2] += term * term;
        }
    }
    sums
}

/// Rows of a cache, decoded when first needed.
pub(super) struct Decoded<'a> {
    cache: RefTensor<'a>,
    rows: BTreeMap<usize, Vec<f32>>,
}

impl<'a> Decoded<'a> {
    pub(super) fn new(cache: RefTensor<'a>) -> Self {
        Self {
            cache,
            rows: BTreeMap::new(),
        }
    }

    fn row(&mut self, row: usize) -> &[f32] {
        self.rows
            .entry(row)
            .or_insert_with(|| self.cache.row_vec(row))
    }
}

#[cfg(test)]
mod tests {
    use super::super::{RefOutput, RefTensorMut};
    use super::*;
    use crate::dtype::DType;
    use crate::op::Op;
    use crate::tensor::TensorDesc;

    /// A cache of NaN cells with these rows set: (page, head, cell, values).
    fn cache(
        dtype: DType,
        n_heads: usize,
        dim: usize,
        cells: &[(usize, usize, usize, &[f32])],
    ) -> (TensorDesc, Vec<u8>) {
        let desc = TensorDesc::pages(dtype, 4, n_heads, dim);
        let mut bytes = vec![0xFF; desc.n_bytes()];
        for &(page, head, cell, values) in cells {
            let mut cache = RefTensorMut::new(&desc, &mut bytes);
            cache.set_cell((page * n_heads + head) * PAGE + cell, values);
        }
        (desc, bytes)
    }

    struct Step<'a> {
        q: &'a [f32],
        n_heads: usize,
        pages: &'a [i32],
        seq_rows: &'a [i32],
        positions: &'a [i32],
    }

    fn run(
        op: &Attention,
        k: &(TensorDesc, Vec<u8>),
        v: &(TensorDesc, Vec<u8>),
        step: &Step<'_>,
    ) -> Vec<f64> {
        let n_tokens = step.seq_rows.len();
        let f32_bytes = |v: &[f32]| v.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<u8>>();
        let i32_bytes = |v: &[i32]| v.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<u8>>();
        let descs = [
            TensorDesc::f32([n_tokens, step.n_heads, k.0.last()]),
            k.0.clone(),
            v.0.clone(),
            TensorDesc::i32([step.pages.len() / 2, 2]),
            TensorDesc::i32([n_tokens]),
            TensorDesc::i32([n_tokens]),
        ];
        let bytes = [
            f32_bytes(step.q),
            k.1.clone(),
            v.1.clone(),
            i32_bytes(step.pages),
            i32_bytes(step.seq_rows),
            i32_bytes(step.positions),
        ];
        let refs: Vec<&TensorDesc> = descs.iter().collect();
        let outputs = op.outputs(&refs, &[]).unwrap();
        let mut args = RefArgs {
            inputs: descs
                .iter()
                .zip(&bytes)
                .map(|(desc, bytes)| RefTensor { desc, bytes })
                .collect(),
            inouts: Vec::new(),
            outputs: vec![RefOutput::new(&outputs[0])],
        };
        attention(op, &mut args);
        args.outputs[0].values.clone()
    }

    fn assert_close(found: &[f64], expected: &[f64], what: &str) {
        assert_eq!(found.len(), expected.len(), "{what}");
        for (f, e) in found.iter().zip(expected) {
            assert!((f - e).abs() < 1e-6, "{what}: {found:?} != {expected:?}");
        }
    }

    const PLAIN: Attention = Attention {
        scale: 1.0,
        softcap: 0.0,
        window: 0,
        max_len: 128,
        shared_kv: None,
    };

    /// ln 3: a score that makes a cell weigh three times one with score 0.
    const LN_3: f32 = 1.098_612_3;

    #[test]
    fn two_cells_by_hand() {
        // Sequence 0 lies in page 2. Scores 0 and ln 3: weights 1/4 and 3/4.
        let k = cache(
            DType::F32,
            1,
            2,
            &[(2, 0, 0, &[0.0, 5.0]), (2, 0, 1, &[LN_3, 0.0])],
        );
        let v = cache(
            DType::F32,
            1,
            2,
            &[(2, 0, 0, &[8.0, 0.0]), (2, 0, 1, &[0.0, 4.0])],
        );
        let step = Step {
            q: &[1.0, 0.0],
            n_heads: 1,
            pages: &[2, -1],
            seq_rows: &[0],
            positions: &[1],
        };
        assert_close(
            &run(&PLAIN, &k, &v, &step),
            &[2.0, 3.0],
            "1/4 v_0 + 3/4 v_1",
        );
        let half = Attention {
            scale: 0.5,
            ..PLAIN
        };
        let w = 3.0_f64.sqrt() / (1.0 + 3.0_f64.sqrt());
        assert_close(
            &run(&half, &k, &v, &step),
            &[8.0 * (1.0 - w), 4.0 * w],
            "scale",
        );
        let capped = Attention {
            softcap: 0.5,
            ..PLAIN
        };
        let e = (0.5 * (2.0 * f64::from(LN_3)).tanh()).exp();
        assert_close(
            &run(&capped, &k, &v, &step),
            &[8.0 / (1.0 + e), 4.0 * e / (1.0 + e)],
            "softcap",
        );
    }

    #[test]
    fn positions_windows_and_padding_decide_what_is_seen() {
        // Two sequences: 0 in pages (1, 3), 1 in page 0. Everything else is NaN.
        let cells: &[(usize, usize, usize, &[f32])] = &[
            (1, 0, 0, &[1.0]),
            (1, 0, 1, &[2.0]),
            (1, 0, 63, &[3.0]),
            (3, 0, 0, &[4.0]),
            (0, 0, 0, &[7.0]),
        ];
        let k = cache(DType::F32, 1, 1, cells);
        let v = cache(DType::F32, 1, 1, cells);
        let run_with = |op: &Attention, seq_rows: &[i32], positions: &[i32]| {
            let step = Step {
                q: &vec![0.0; seq_rows.len()],
                n_heads: 1,
                pages: &[1, 3, 0, 99],
                seq_rows,
                positions,
            };
            run(op, &k, &v, &step)
        };
        assert_close(
            &run_with(&PLAIN, &[0, 0, 1, -1, 2, 0], &[0, 1, 0, 5, 0, -1]),
            &[1.0, 1.5, 7.0, 0.0, 0.0, 0.0],
            "causal, other sequence, padding, unknown row, before the start",
        );
        let window = Attention { window: 2, ..PLAIN };
        assert_close(
            &run_with(&window, &[0], &[64]),
            &[3.5],
            "the last two cells, across a page border",
        );
        let one = Attention { window: 1, ..PLAIN };
        assert_close(&run_with(&one, &[0], &[1]), &[2.0], "itself");
        assert_close(
            &run_with(&one, &[1], &[70]),
            &[0.0],
            "a page outside the cache",
        );
    }

    #[test]
    fn query_heads_share_the_head_of_their_group() {
        // Four query heads, two KV heads with constant values 1 and 2.
        let k = cache(DType::F32, 2, 1, &[(0, 0, 0, &[1.0]), (0, 1, 0, &[1.0])]);
        let v = cache(
            DType::F32,
            2,
            2,
            &[(0, 0, 0, &[1.0, 10.0]), (0, 1, 0, &[2.0, 20.0])],
        );
        let step = Step {
            q: &[1.0, -1.0, 100.0, 0.0],
            n_heads: 4,
            pages: &[0, 0],
            seq_rows: &[0],
            positions: &[0],
        };
        assert_close(
            &run(&PLAIN, &k, &v, &step),
            &[1.0, 10.0, 1.0, 10.0, 2.0, 20.0, 2.0, 20.0],
            "heads 0 and 1 read KV head 0; one cell weighs 1 whatever its score",
        );
    }

    #[test]
    fn quantised_caches_are_decoded() {
        let mut key = [0.0; 32];
        key[0] = LN_3;
        let mut value = [0.0; 32];
        value[3] = -8.0; // q4_0: d = 1
        let k = cache(DType::F32, 1, 32, &[(0, 0, 0, &[0.0; 32]), (0, 0, 1, &key)]);
        let v = cache(
            DType::Q4_0,
            1,
            32,
            &[(0, 0, 0, &[0.0; 32]), (0, 0, 1, &value)],
        );
        let mut q = [0.0; 32];
        q[0] = 1.0;
        let step = Step {
            q: &q,
            n_heads: 1,
            pages: &[0, -1],
            seq_rows: &[0],
            positions: &[1],
        };
        let mut expected = [0.0; 32];
        expected[3] = -6.0;
        assert_close(&run(&PLAIN, &k, &v, &step), &expected, "3/4 of -8");
    }
}
