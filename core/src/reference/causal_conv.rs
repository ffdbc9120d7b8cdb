//! `causal_conv` in f64.

use super::RefArgs;
use crate::ops::causal_conv::CausalConv;
use crate::ops::runs::live_runs;

/// `y[t, c] = act(sum_k w[c, k] * z[p - (n_taps - 1 - k) * dilation, c])`, run by run; then the ring keeps the inputs.
pub fn causal_conv(op: &CausalConv, args: &mut RefArgs<'_>) {
    let (x, w) = (args.inputs[0], args.inputs[1]);
    let (n_tokens, n_channels, n_taps) = (x.desc.shape[0], x.desc.last(), w.desc.last());
    let ring = &mut args.inouts[0];
    let y = &mut args.outputs[0];
    for i in 0..n_tokens * n_channels {
        y.put(i, 0.0);
    }
    let rows: Vec<Vec<f32>> = (0..n_tokens).map(|t| x.row_vec(t)).collect();
    let taps: Vec<Vec<f32>> = (0..n_channels).map(|c| w.row_vec(c)).collect();
    let (n_slots, depth) = (ring.desc.shape[0], ring.desc.shape[1]);
    for run in live_runs(&args.inputs[2], n_slots, n_tokens) {
        let kept =
            |position: usize, c: usize| (run.slot * depth + position % depth) * n_channels + c;
        for t in 0..run.n_rows {
            for (c, taps) in taps.iter().enumerate() {
                let (mut sum, mut magnitude, mut squares) = (0.0, 0.0, 0.0);
                for (k, &tap) in taps.iter().enumerate() {
                    let back = (n_taps - 1 - k) * op.dilation;
                    let z = if back <= t {
                        rows[run.first + t - back][c]
                    } else if back <= run.position + t {
                        ring.f32(kept(run.position + t - back, c))
                    } else {
                        continue;
                    };
                    let term = f64::from(tap) * f64::from(z);
                    sum += term;
                    magnitude += term.abs();
                    squares += term * term;
                }
                let index = (run.first + t) * n_channels + c;
                let norm = f64::sqrt(squares);
                if op.silu {
                    // The slope of silu is at most 1.1; an exponential is off by (3 + 2 |x|) units.
                    let value = sum / (1.0 + (-sum).exp());
                    let growth = 1.0 + sum.abs().min(104.0) / 2.0;
                    y.put_sum(
                        index,
                        value,
                        1.1 * magnitude + value.abs() * growth + sum.abs() * 1e-30,
                        norm,
                    );
                } else {
                    y.put_sum(index, sum, magnitude, norm);
                }
            }
        }
        for t in run.n_rows.saturating_sub(depth)..run.n_rows {
            for (c, &value) in rows[run.first + t].iter().enumerate() {
                ring.put(kept(run.position + t, c), value);
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

    fn conv(op: &CausalConv, x: &[f32], w: &[f32], runs: &[i32], ring: &mut [f32]) -> Vec<f64> {
        let descs = [
            TensorDesc::f32([x.len(), 1]),
            TensorDesc::f32([1, w.len()]),
            TensorDesc::i32([runs.len() / 4, 4]),
        ];
        // Two slots.
        let ring_desc = TensorDesc::f32([2, ring.len() / 2, 1]);
        let outputs = op
            .outputs(&descs.iter().collect::<Vec<_>>(), &[&ring_desc])
            .unwrap();
        let bytes = [f32s(x), f32s(w), i32s(runs)];
        let mut ring_bytes = f32s(ring);
        let mut args = RefArgs {
            inputs: descs
                .iter()
                .zip(&bytes)
                .map(|(desc, bytes)| RefTensor { desc, bytes })
                .collect(),
            inouts: vec![RefTensorMut::new(&ring_desc, &mut ring_bytes)],
            outputs: vec![RefOutput::new(&outputs[0])],
        };
        causal_conv(op, &mut args);
        for (i, value) in ring.iter_mut().enumerate() {
            *value = args.inouts[0].f32(i);
        }
        args.outputs[0].values.clone()
    }

    #[test]
    fn a_sequence_in_pieces_and_back_again_by_hand() {
        let op = CausalConv {
            dilation: 1,
            silu: false,
        };
        let w = [100.0, 10.0, 1.0];
        // Depth 4: two rows of history and two to go back.
        let mut ring = [f32::NAN; 8];
        let y = conv(&op, &[1.0, 2.0, 9.0], &w, &[1, 0, 2, 0], &mut ring);
        close(&y, &[1.0, 12.0, 0.0], 1e-12);
        let y = conv(&op, &[3.0], &w, &[1, 0, 1, 2], &mut ring);
        close(&y, &[123.0], 1e-12);
        let y = conv(&op, &[4.0, 5.0, 6.0], &w, &[1, 0, 3, 3], &mut ring);
        close(&y, &[234.0, 345.0, 456.0], 1e-12);
        assert_eq!(
            ring[4..],
            [5.0, 6.0, 3.0, 4.0],
            "the last four, by position"
        );
        // Two tokens back: position 4 follows 3 and 4.
        let y = conv(&op, &[7.0], &w, &[1, 0, 1, 4], &mut ring);
        close(&y, &[347.0], 1e-12);
        assert!(ring[..4].iter().all(|v| v.is_nan()), "the other slot");
    }

    #[test]
    fn dilation_skips_tokens_and_silu_follows() {
        let op = CausalConv {
            dilation: 2,
            silu: true,
        };
        let mut ring = [0.0; 4];
        let y = conv(
            &op,
            &[1.0, 5.0, 3.0],
            &[1.0, 2.0],
            &[0, 0, 3, 0, -1, -1, -1, -1],
            &mut ring,
        );
        let silu = |x: f64| x / (1.0 + (-x).exp());
        close(&y, &[silu(2.0), silu(10.0), silu(7.0)], 1e-12);
        assert_eq!(ring[..2], [3.0, 5.0], "positions 2 and 1");
    }

    #[test]
    fn a_ring_without_room_for_the_history_is_refused() {
        let op = CausalConv {
            dilation: 3,
            silu: true,
        };
        let (x, w) = (TensorDesc::f32([1, 4]), TensorDesc::f32([4, 3]));
        let (runs, ring) = (TensorDesc::i32([1, 4]), TensorDesc::f32([1, 5, 4]));
        let error = op.outputs(&[&x, &w, &runs], &[&ring]).unwrap_err();
        assert!(error.to_string().contains("6 or more"), "{error}");
    }
}
