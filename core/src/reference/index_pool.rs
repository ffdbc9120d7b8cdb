//! `index_pool` in f64, block by block.

use super::RefArgs;
use crate::PAGE;
use crate::ops::index_pool::IndexPool;
use crate::ops::rope::{FINE, RopeMode};

/// Mean of the stored keys, norm, rotation at the first member, store.
///
/// The magnitude of a channel counts the members of the mean, which may cancel, with their absolute values, and what
/// their roundings do to the norm.
pub fn index_pool(op: &IndexPool, args: &mut RefArgs<'_>) {
    let raw = args.inputs[0];
    let w = args.inputs[1].row_vec(0);
    let table = args.inputs[2];
    let (n_seq_rows, max_pages) = (args.inputs[3].desc.shape[0], args.inputs[3].desc.last());
    let page_table = args.inputs[3].to_i32();
    let (seq_rows, positions) = (args.inputs[4].to_i32(), args.inputs[5].to_i32());
    let pooled = &mut args.inouts[0];
    let (n_pages, dim) = (raw.desc.shape[0], raw.desc.last());
    let n_pairs = op.n_rot / 2;
    let n_coarse = table.desc.shape[0] - FINE;
    let entry = |row: usize, pair: usize| {
        let [cos, sin] = table.row_vec(row * n_pairs + pair)[..] else {
            unreachable!("a pair of the table is cos and sin")
        };
        (f64::from(cos), f64::from(sin))
    };
    for (&seq, &position) in seq_rows.iter().zip(&positions) {
        let (Ok(seq), Ok(position)) = (usize::try_from(seq), usize::try_from(position)) else {
            continue;
        };
        let completes = (position + 1).is_multiple_of(op.ratio);
        if !completes || seq >= n_seq_rows || position / PAGE >= max_pages {
            continue;
        }
        let page = usize::try_from(page_table[seq * max_pages + position / PAGE]);
        let Some(page) = page.ok().filter(|&page| page < n_pages) else {
            continue;
        };
        let first = position + 1 - op.ratio;
        let mut key = vec![0.0_f64; dim];
        let mut terms = vec![0.0_f64; dim];
        for i in 0..op.ratio {
            let member = raw.row_vec(page * PAGE + first % PAGE + i);
            for ((sum, terms), v) in key.iter_mut().zip(&mut terms).zip(member) {
                *sum += f64::from(v) / op.ratio as f64;
                *terms += f64::from(v).abs() / op.ratio as f64;
            }
        }
        let mean = key.iter().map(|v| v * v).sum::<f64>() / dim as f64;
        let rms = (mean + f64::from(op.eps)).sqrt();
        let norm = |v: &[f64]| v.iter().map(|v| v * v).sum::<f64>().sqrt();
        let spread = norm(&terms) / norm(&key).max(f64::MIN_POSITIVE);
        for ((v, terms), &w) in key.iter_mut().zip(&mut terms).zip(&w) {
            let scale = if rms > 0.0 { f64::from(w) / rms } else { 0.0 };
            *terms = (*terms + v.abs() * spread) * scale.abs();
            *v *= scale;
        }
        for pair in 0..n_pairs {
            let (a, b) = match op.mode {
                RopeMode::Norm => (2 * pair, 2 * pair + 1),
                RopeMode::Neox | RopeMode::Mrope(_) | RopeMode::Imrope(_) => (pair, pair + n_pairs),
            };
            // Beyond the table the rotated channels are zeros, as in `rope`.
            let (cos, sin) = if first / FINE < n_coarse {
                let (fine_cos, fine_sin) = entry(first % FINE, pair);
                let (cos, sin) = entry(FINE + first / FINE, pair);
                (
                    cos * fine_cos - sin * fine_sin,
                    sin * fine_cos + cos * fine_sin,
                )
            } else {
                (0.0, 0.0)
            };
            (key[a], key[b]) = (key[a] * cos - key[b] * sin, key[a] * sin + key[b] * cos);
            // A cosine or sine may itself be a difference.
            (terms[a], terms[b]) = (terms[a] + terms[b], terms[a] + terms[b]);
        }
        let values: Vec<f32> = key.iter().map(|&v| v as f32).collect();
        let page_blocks = PAGE / op.ratio;
        let row = page * page_blocks + position / op.ratio % page_blocks;
        pooled.set_cell(row, &values);
        if let Some(magnitudes) = &mut pooled.magnitudes {
            magnitudes.resize(pooled.desc.n_elems(), -1.0);
            magnitudes[row * dim..(row + 1) * dim].copy_from_slice(&terms);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dtype::DType;
    use crate::op::Op;
    use crate::reference::testing::{f32s, i32s};
    use crate::reference::{RefTensor, RefTensorMut};
    use crate::tensor::TensorDesc;

    #[test]
    fn a_completed_block_by_hand() {
        // Page 1 holds the sequence; its tokens 2 and 3 have keys (3, 0, 0, 8) and (3, 8, 0, 0): mean (3, 4, 0, 4).
        let raw = TensorDesc::pages(DType::F32, 2, 1, 4);
        let mut raw_bytes = vec![0xFF; raw.n_bytes()];
        for (cell, key) in [(66, [3.0, 0.0, 0.0, 8.0]), (67, [3.0, 8.0, 0.0, 0.0])] {
            let mut cache = RefTensorMut::new(&raw, &mut raw_bytes);
            cache.set_cell(cell, &key);
        }
        let op = IndexPool {
            ratio: 2,
            eps: 0.0,
            mode: RopeMode::Neox,
            n_rot: 2,
        };
        // A quarter turn a position; position 2 is half a turn.
        let table: Vec<f32> = (0..=FINE)
            .flat_map(|row| {
                let angle = (row % FINE) as f64 * std::f64::consts::FRAC_PI_2;
                [angle.cos() as f32, angle.sin() as f32]
            })
            .collect();
        let pooled = TensorDesc::block_pages(DType::F32, 2, 1, 2, 4);
        let descs = [
            raw,
            TensorDesc::f32([4]),
            TensorDesc::f32([FINE + 1, 1, 2]),
            TensorDesc::i32([1, 1]),
            TensorDesc::i32([3]),
            TensorDesc::i32([3]),
        ];
        let bytes = [
            raw_bytes,
            f32s(&[1.0, 1.0, 1.0, 2.0]),
            f32s(&table),
            i32s(&[1]),
            i32s(&[0, 0, -1]),
            i32s(&[2, 3, 1]),
        ];
        let refs: Vec<&TensorDesc> = descs.iter().collect();
        assert!(
            op.outputs(&refs, &[&pooled]).unwrap().is_empty(),
            "in place"
        );
        let mut stored = vec![0; pooled.n_bytes()];
        let mut args = RefArgs {
            inputs: descs
                .iter()
                .zip(&bytes)
                .map(|(desc, bytes)| RefTensor { desc, bytes })
                .collect(),
            inouts: vec![RefTensorMut::new(&pooled, &mut stored)],
            outputs: Vec::new(),
        };
        index_pool(&op, &mut args);
        let cache = RefTensor {
            desc: &pooled,
            bytes: &stored,
        };
        let rms = (41.0_f32 / 4.0).sqrt();
        let found = cache.row_vec(33);
        for (found, expected) in found.iter().zip([-3.0, -4.0, 0.0, 8.0]) {
            assert!((found - expected / rms).abs() < 1e-6, "{found}");
        }
        let others = (0..64).filter(|&row| row != 33);
        assert!(
            others.flat_map(|row| cache.row_vec(row)).all(|v| v == 0.0),
            "no other block"
        );
    }
}
