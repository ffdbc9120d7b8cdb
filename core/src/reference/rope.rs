//! `rope` in f64, from the table as stored.

use super::RefArgs;
use crate::ops::rope::{FINE, Rope, RopeMode};

/// Rotates the pairs of each head.
pub fn rope(op: &Rope, args: &mut RefArgs<'_>) {
    let x = args.inputs[0];
    let positions = args.inputs[1].to_i32();
    let table = args.inputs[2];
    let y = &mut args.outputs[0];
    let (n_heads, n) = (x.desc.shape[1], x.desc.last());
    let n_pairs = op.n_rot / 2;
    let n_coarse = table.desc.shape[0] - FINE;
    let entry = |row: usize, pair: usize| {
        let [cos, sin] = table.row_vec(row * n_pairs + pair)[..] else {
            unreachable!("a pair of the table is cos and sin")
        };
        (f64::from(cos), f64::from(sin))
    };
    let n_tokens = x.desc.shape[0];
    for t in 0..n_tokens {
        // (cos, sin) and the sums of the magnitudes they were computed from.
        let angles: Vec<[f64; 4]> = (0..n_pairs)
            .map(|pair| {
                let axis = op.mode.axis(pair);
                let position = match positions.get(axis * n_tokens + t) {
                    Some(&position) => position,
                    // One position for all axes but the last, which text does not use.
                    None if axis == 3 => positions[t].min(0),
                    None => positions[t],
                };
                let Ok(position) = usize::try_from(position) else {
                    return [1.0, 0.0, 1.0, 0.0];
                };
                if position / FINE >= n_coarse {
                    return [0.0; 4];
                }
                let (fine_cos, fine_sin) = entry(position % FINE, pair);
                let (cos, sin) = entry(FINE + position / FINE, pair);
                [
                    cos * fine_cos - sin * fine_sin,
                    sin * fine_cos + cos * fine_sin,
                    (cos * fine_cos).abs() + (sin * fine_sin).abs(),
                    (sin * fine_cos).abs() + (cos * fine_sin).abs(),
                ]
            })
            .collect();
        for head in 0..n_heads {
            let row: Vec<f64> = x
                .row_vec(t * n_heads + head)
                .into_iter()
                .map(f64::from)
                .collect();
            let at = (t * n_heads + head) * n;
            for (j, [cos, sin, cos_m, sin_m]) in angles.iter().enumerate() {
                let (a, b) = match op.mode {
                    RopeMode::Norm => (2 * j, 2 * j + 1),
                    RopeMode::Neox | RopeMode::Mrope(_) | RopeMode::Imrope(_) => (j, j + n_pairs),
                };
                let (x0, x1) = (row[a], row[b]);
                let norm = (x0 * x0 + x1 * x1).sqrt();
                let m = |u: f64, v: f64| u.abs() * cos_m + v.abs() * sin_m;
                y.put_sum(at + a, x0 * cos - x1 * sin, m(x0, x1), norm);
                y.put_sum(at + b, x0 * sin + x1 * cos, m(x1, x0), norm);
            }
            for (i, &value) in row.iter().enumerate().skip(op.n_rot) {
                y.put(at + i, value);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{RefOutput, RefTensor};
    use super::*;
    use crate::op::Op;
    use crate::tensor::TensorDesc;

    /// A table with these angles per position, `n_coarse` coarse rows.
    fn table(freqs: &[f64], n_coarse: usize) -> (TensorDesc, Vec<u8>) {
        let rows = (0..FINE).chain((0..n_coarse).map(|c| c * FINE));
        let bytes = rows
            .flat_map(|p| freqs.iter().map(move |f| p as f64 * f))
            .flat_map(|a| [a.cos() as f32, a.sin() as f32])
            .flat_map(f32::to_le_bytes)
            .collect();
        (TensorDesc::f32([FINE + n_coarse, freqs.len(), 2]), bytes)
    }

    fn run(op: &Rope, x: &TensorDesc, values: &[f32], pos: &[i32], freqs: &[f64]) -> Vec<f64> {
        let pos_desc = TensorDesc::i32([pos.len()]);
        let (table_desc, table_bytes) = table(freqs, 2);
        let outputs = op.outputs(&[x, &pos_desc, &table_desc], &[]).unwrap();
        let x_bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        let pos_bytes: Vec<u8> = pos.iter().flat_map(|v| v.to_le_bytes()).collect();
        let mut args = RefArgs {
            inputs: vec![
                RefTensor {
                    desc: x,
                    bytes: &x_bytes,
                },
                RefTensor {
                    desc: &pos_desc,
                    bytes: &pos_bytes,
                },
                RefTensor {
                    desc: &table_desc,
                    bytes: &table_bytes,
                },
            ],
            inouts: Vec::new(),
            outputs: vec![RefOutput::new(&outputs[0])],
        };
        rope(op, &mut args);
        args.outputs[0].values.clone()
    }

    fn assert_close(found: &[f64], expected: &[f64], what: &str) {
        assert_eq!(found.len(), expected.len(), "{what}");
        for (f, e) in found.iter().zip(expected) {
            assert!((f - e).abs() < 1e-6, "{what}: {found:?} != {expected:?}");
        }
    }

    #[test]
    fn quarter_turns_by_hand() {
        // Pair 0 turns by 90 degrees a position, pair 1 by 180.
        let freqs = [std::f64::consts::FRAC_PI_2, std::f64::consts::PI];
        let x = TensorDesc::f32([1, 1, 5]);
        let values = [1.0, 2.0, 3.0, 4.0, 5.0];
        let norm = Rope {
            mode: RopeMode::Norm,
            n_rot: 4,
        };
        assert_close(
            &run(&norm, &x, &values, &[1], &freqs),
            &[-2.0, 1.0, -3.0, -4.0, 5.0],
            "pairs (0, 1) and (2, 3), the last channel copied",
        );
        let neox = Rope {
            mode: RopeMode::Neox,
            n_rot: 4,
        };
        assert_close(
            &run(&neox, &x, &values, &[1], &freqs),
            &[-3.0, -2.0, 1.0, -4.0, 5.0],
            "pairs (0, 2) and (1, 3)",
        );
    }

    #[test]
    fn large_positions_join_a_coarse_and_a_fine_row() {
        let op = Rope {
            mode: RopeMode::Norm,
            n_rot: 2,
        };
        let x = TensorDesc::f32([1, 1, 2]);
        let angle: f64 = 0.01 * 300.0;
        assert_close(
            &run(&op, &x, &[1.0, 0.0], &[300], &[0.01]),
            &[angle.cos(), angle.sin()],
            "300 = 256 + 44",
        );
    }

    #[test]
    fn padding_is_copied_and_positions_beyond_the_table_give_zeros() {
        let op = Rope {
            mode: RopeMode::Norm,
            n_rot: 2,
        };
        // Head 1 of two of each of three tokens.
        let x = TensorDesc::f32([3, 2, 3]).narrow(1, 1, 1).unwrap();
        let values: Vec<f32> = (0..18).map(|v| v as f32).collect();
        assert_close(
            &run(&op, &x, &values, &[-1, 512, 0], &[1.0]),
            &[3.0, 4.0, 5.0, 0.0, 0.0, 11.0, 15.0, 16.0, 17.0],
            "negative, beyond, zero",
        );
    }
}
