//! `index_score` in f64, key by key.

use std::collections::BTreeMap;

use super::RefArgs;
use crate::PAGE;
use crate::ops::index_score::IndexScore;

/// `s = scale * sum_h w_h max(0, q_h . k_e)` for the complete blocks that a token sees, -inf for all others.
///
/// The magnitude is `scale * sum_h |w_h| sum_i |q_h,i k_e,i|`: a head that the rectifier shuts counts too, since it may
/// be open by a rounding.
pub fn index_score(op: &IndexScore, args: &mut RefArgs<'_>) {
    let (q, keys) = (args.inputs[0], args.inputs[1]);
    let (n_seq_rows, max_pages) = (args.inputs[2].desc.shape[0], args.inputs[2].desc.last());
    let page_table = args.inputs[2].to_i32();
    let (seq_rows, positions) = (args.inputs[3].to_i32(), args.inputs[4].to_i32());
    let weights = args.inputs.get(5).copied();
    let out = &mut args.outputs[0];
    let (n_heads, n_blocks) = (q.desc.shape[1], out.desc.last());
    let (n_pages, page_blocks) = (keys.desc.shape[0], PAGE / op.ratio);
    let scale = f64::from(op.scale);
    let mut decoded: BTreeMap<usize, Vec<f32>> = BTreeMap::new();
    for (t, (&seq, &position)) in seq_rows.iter().zip(&positions).enumerate() {
        let queries: Vec<Vec<f32>> = (0..n_heads).map(|h| q.row_vec(t * n_heads + h)).collect();
        let w = weights.map_or_else(|| vec![1.0; n_heads], |w| w.row_vec(t));
        for e in 0..n_blocks {
            let row = (|| {
                let (seq, position) = (usize::try_from(seq).ok()?, usize::try_from(position).ok()?);
                let page = e / page_blocks;
                if seq >= n_seq_rows || e >= (position + 1) / op.ratio || page >= max_pages {
                    return None;
                }
                let page = usize::try_from(page_table[seq * max_pages + page]).ok()?;
                (page < n_pages).then_some(page * page_blocks + e % page_blocks)
            })();
            let at = t * n_blocks + e;
            let Some(row) = row else {
                out.put(at, f64::NEG_INFINITY);
                continue;
            };
            let key = decoded.entry(row).or_insert_with(|| keys.row_vec(row));
            let (mut sum, mut magnitude, mut squares) = (0.0, 0.0, 0.0);
            for (query, &w) in queries.iter().zip(&w) {
                let (dot, dot_magnitude) = query
                    .iter()
                    .zip(&*key)
                    .map(|(&q, &k)| f64::from(q) * f64::from(k))
                    .fold((0.0_f64, 0.0_f64), |(s, m), p| (s + p, m + p.abs()));
                let factor = scale * f64::from(w);
                sum += factor * dot.max(0.0);
                magnitude += factor.abs() * dot_magnitude;
                squares += (factor * dot_magnitude).powi(2);
            }
            out.put_sum(at, sum, magnitude, squares.sqrt());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dtype::DType;
    use crate::reference::RefTensorMut;
    use crate::reference::testing::{f32s, i32s, run};
    use crate::tensor::TensorDesc;

    #[test]
    fn complete_blocks_of_the_own_sequence_by_hand() {
        // Blocks of 32 tokens, two a page. Sequence 0 in pages 2 and 0, sequence 1 in page 1.
        let desc = TensorDesc::block_pages(DType::F32, 3, 1, 32, 2);
        let mut bytes = vec![0xFF; desc.n_bytes()];
        let rows = [
            (4, [1.0, 0.0]),
            (5, [0.0, 2.0]),
            (0, [-1.0, -1.0]),
            (2, [3.0, 3.0]),
            (3, [0.0, 0.0]),
        ];
        for (row, key) in rows {
            let mut keys = RefTensorMut::new(&desc, &mut bytes);
            keys.set_cell(row, &key);
        }
        let op = IndexScore {
            scale: 0.5,
            ratio: 32,
            max_len: 128,
        };
        let queries = [1.0, 2.0, -1.0, 4.0].repeat(4);
        let shared = [
            (TensorDesc::f32([4, 2, 2]), f32s(&queries)),
            (desc, bytes),
            (TensorDesc::i32([2, 2]), i32s(&[2, 0, 1, 9])),
            (TensorDesc::i32([4]), i32s(&[0, 0, 1, -1])),
            (TensorDesc::i32([4]), i32s(&[95, 94, 127, 31])),
        ];
        let mut inputs: Vec<(TensorDesc, &Vec<u8>)> = shared
            .iter()
            .map(|(desc, bytes)| (desc.clone(), bytes))
            .collect();
        let no = f64::NEG_INFINITY;
        let out = run(&op, &inputs);
        assert_eq!(
            out[0].values,
            [
                // (1 + 0) / 2, (4 + 8) / 2, the heads give -3 and -3: an honest zero.
                0.5, 6.0, 0.0, no, //
                0.5, 6.0, no, no, // the third block lacks its last token
                9.0, 0.0, no, no, // (9 + 9) / 2; its second page lies outside
                no, no, no, no,
            ],
            "scores"
        );
        let weights = f32s(&[1.0, 1.0, 1.0, -1.0, 2.0, 0.0, 1.0, 1.0]);
        inputs.push((TensorDesc::f32([4, 2]), &weights));
        let out = run(&op, &inputs);
        assert_eq!(out[0].values[4..6], [0.5, -2.0], "(4 - 8) / 2");
    }
}
