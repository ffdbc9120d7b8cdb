//! `sparse_attention` in f64, cell by cell.

use super::attention::{Decoded, attend};
use super::{RefArgs, RefTensor};
use crate::PAGE;
use crate::op::Tolerance;
use crate::ops::attention::tau_units;
use crate::ops::sparse_attention::SparseAttention;

/// `o = sum_j p_j v_j` over what each token's entries name and its tail. Magnitudes are those of `attention`.
pub fn sparse_attention(op: &SparseAttention, args: &mut RefArgs<'_>) {
    let (q, k) = (args.inputs[0], args.inputs[1]);
    let v = args.inputs[if op.shared_kv.is_some() { 1 } else { 2 }];
    let [page_table, seq_rows, positions, selection] = last_four(&args.inputs);
    let max_pages = page_table.desc.last();
    let n_seq_rows = page_table.desc.shape[0];
    let (table, seq_rows, positions) = (page_table.to_i32(), seq_rows.to_i32(), positions.to_i32());
    let [n_groups, n_entries] = [selection.desc.shape[1], selection.desc.last()];
    let entries = selection.to_i32();
    let out = &mut args.outputs[0];
    let (n_heads, dv) = (q.desc.shape[1], out.desc.last());
    let [n_pages, n_kv_heads] = [k.desc.shape[0], k.desc.shape[1]];
    let group = n_heads / n_kv_heads;
    let tau = tau_units(op.n_listed(n_entries)) * Tolerance::U;

    for kv_head in 0..n_kv_heads {
        let mut keys = Decoded::new(k);
        let mut values = Decoded::new(v);
        for (t, (&seq, &position)) in seq_rows.iter().zip(&positions).enumerate() {
            let mut cells = Vec::new();
            if let (Ok(seq), Ok(position)) = (usize::try_from(seq), usize::try_from(position))
                && seq < n_seq_rows
            {
                let len = position + 1;
                let whole = len / op.ratio;
                let list = (t * n_groups + kv_head % n_groups) * n_entries;
                let mut blocks: Vec<usize> = entries[list..list + n_entries]
                    .iter()
                    .filter_map(|&e| usize::try_from(e).ok())
                    // The tail has the incomplete block already.
                    .filter(|&e| !op.tail || e < whole)
                    .collect();
                if op.tail {
                    blocks.push(whole);
                }
                for j in blocks
                    .into_iter()
                    .flat_map(|block| (0..op.ratio).map(move |i| block * op.ratio + i))
                    .filter(|&j| j < len.min(max_pages * PAGE))
                {
                    let page = usize::try_from(table[seq * max_pages + j / PAGE]);
                    if let Some(page) = page.ok().filter(|&page| page < n_pages) {
                        cells.push((page * n_kv_heads + kv_head) * PAGE + j % PAGE);
                    }
                }
            }
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
                for (i, [value, magnitude, squares]) in sums.into_iter().enumerate() {
                    out.put_sum(
                        (t * n_heads + head) * dv + i,
                        value,
                        magnitude,
                        squares.sqrt(),
                    );
                }
            }
        }
    }
}

/// The operands behind the caches.
fn last_four<'a>(inputs: &[RefTensor<'a>]) -> [RefTensor<'a>; 4] {
    let first = inputs.len() - 4;
    [0, 1, 2, 3].map(|i| inputs[first + i])
}

#[cfg(test)]
mod tests {
    use super::super::RefTensorMut;
    use super::super::testing::{close, f32s, i32s, run};
    use super::*;
    use crate::dtype::DType;
    use crate::ops::attention::Attention;
    use crate::tensor::TensorDesc;

    /// One head of two pages; cell `j` has key 0 and value `2^j`, the rest is NaN. Page 0 of the sequence is page 1.
    fn cells(n: usize) -> [(TensorDesc, Vec<u8>); 2] {
        [0.0, 1.0].map(|factor| {
            let desc = TensorDesc::pages(DType::F32, 2, 1, 1);
            let mut bytes = vec![0xFF; desc.n_bytes()];
            for j in 0..n {
                let mut cache = RefTensorMut::new(&desc, &mut bytes);
                cache.set_cell(PAGE + j, &[factor * (j as f32).exp2()]);
            }
            (desc, bytes)
        })
    }

    fn attend_to(op: &SparseAttention, positions: &[i32], entries: &[i32]) -> Vec<f64> {
        let [(k, k_bytes), (v, v_bytes)] = cells(8);
        let n = positions.len();
        let output = run(
            op,
            &[
                (TensorDesc::f32([n, 1, 1]), &f32s(&vec![1.0; n])),
                (k, &k_bytes),
                (v, &v_bytes),
                (TensorDesc::i32([1, 1]), &i32s(&[1])),
                (TensorDesc::i32([n]), &i32s(&vec![0; n])),
                (TensorDesc::i32([n]), &i32s(positions)),
                (TensorDesc::i32([n, 1, entries.len() / n]), &i32s(entries)),
            ],
        );
        output[0].values.clone()
    }

    const PLAIN: SparseAttention = SparseAttention {
        scale: 1.0,
        softcap: 0.0,
        ratio: 2,
        tail: true,
        shared_kv: None,
    };

    #[test]
    fn entries_and_the_tail_by_hand() {
        // All keys are 0: the mean of the values 2^j.
        let values = attend_to(
            &PLAIN,
            &[4, 4, 5, 5, 2, 0],
            &[
                0, -1, // ordinals 0, 1 and the tail 4
                -1, -1, // the tail 4 alone
                1, 0, // no tail: 2, 3, 0, 1; it does not see itself
                2, 2, // twice 4, 5
                1,
                9, // the tail 2, which entry 1 does not add again; entry 9 is not there yet
                -5, 0, // the tail 0
            ],
        );
        close(
            &values,
            &[19.0 / 3.0, 16.0, 15.0 / 4.0, 24.0, 4.0, 1.0],
            1e-12,
        );
    }

    #[test]
    fn without_the_tail_an_entry_may_name_an_incomplete_block() {
        let op = SparseAttention {
            tail: false,
            ..PLAIN
        };
        close(
            &attend_to(&op, &[4, 4, 4], &[2, -1, -1, -1, 0, 0]),
            // What the block has so far; nothing; a multiset.
            &[16.0, 0.0, 1.5],
            1e-12,
        );
        let tokens = SparseAttention { ratio: 1, ..PLAIN };
        close(&attend_to(&tokens, &[4], &[1, 3, 7, -1]), &[5.0], 1e-12);
    }

    #[test]
    fn selecting_everything_is_dense_attention() {
        let (dk, n_tokens) = (8, 3);
        let fill = |desc: &TensorDesc, salt: u32| {
            let mut bytes = vec![0; desc.n_bytes()];
            let mut cache = RefTensorMut::new(desc, &mut bytes);
            for row in 0..desc.rows() {
                let values: Vec<f32> = (0..dk)
                    .map(|i| ((row * dk + i) as u32 * 37 + salt) as f32 % 11.0 / 5.0 - 1.0)
                    .collect();
                cache.set_cell(row, &values);
            }
            bytes
        };
        let cache = TensorDesc::pages(DType::F32, 2, 2, dk);
        let (k, v) = (fill(&cache, 3), fill(&cache, 8));
        let q: Vec<f32> = (0..n_tokens * 4 * dk)
            .map(|i| (i * 29 % 13) as f32 / 6.0 - 1.0)
            .collect();
        let positions = [70, 69, 4];
        let entries: Vec<i32> = (0..n_tokens).flat_map(|_| 0..40).collect();
        let shared = [
            (TensorDesc::f32([n_tokens, 4, dk]), f32s(&q)),
            (cache.clone(), k),
            (cache, v),
            (TensorDesc::i32([1, 2]), i32s(&[1, 0])),
            (TensorDesc::i32([n_tokens]), i32s(&[0, 0, 0])),
            (TensorDesc::i32([n_tokens]), i32s(&positions)),
        ];
        let mut inputs: Vec<(TensorDesc, &Vec<u8>)> =
            shared.iter().map(|(d, b)| (d.clone(), b)).collect();
        let dense = Attention {
            scale: 0.7,
            softcap: 2.0,
            window: 0,
            max_len: 128,
            shared_kv: None,
        };
        let expected = run(&dense, &inputs);
        let selection = i32s(&entries);
        inputs.push((TensorDesc::i32([n_tokens, 1, 40]), &selection));
        let sparse = SparseAttention {
            scale: 0.7,
            softcap: 2.0,
            ..PLAIN
        };
        let found = run(&sparse, &inputs);
        close(&found[0].values, &expected[0].values, 1e-12);
        // The values are the keys' first channels.
        let first = SparseAttention {
            shared_kv: Some(4),
            ..sparse
        };
        let mut latent = inputs.clone();
        latent.remove(2);
        let found = run(&first, &latent);
        latent.insert(2, inputs[1].clone());
        latent.pop();
        let expected = run(&dense, &latent);
        latent.remove(2);
        let dense = Attention {
            shared_kv: Some(4),
            ..dense
        };
        close(&run(&dense, &latent)[0].values, &found[0].values, 1e-12);
        let firsts: Vec<f64> = expected[0]
            .values
            .chunks(dk)
            .flat_map(|row| row[..4].to_vec())
            .collect();
        close(&found[0].values, &firsts, 1e-12);
    }
}
