//! `matmul_by_id` in f64.

use rayon::prelude::*;

use super::glu::{activation, growth, tail};
use super::matmul::dot;
use super::{RefArgs, RefTensor};
use crate::op::{Op, Operands};
use crate::ops::glu::GluKind;
use crate::ops::matmul_by_id::MatmulById;

/// A sum with the magnitude and the root sum of squares of its terms.
#[derive(Clone, Copy, Debug, Default)]
struct Sum {
    value: f64,
    magnitude: f64,
    norm: f64,
}

/// Products of items with their experts' matrices, each expert's rows decoded once.
///
/// # Panics
/// If there are more or fewer operands than the op says, which the graph refuses.
pub fn matmul_by_id(op: &MatmulById, args: &mut RefArgs<'_>) {
    let parts = op
        .operands(&args.inputs)
        .expect("the graph checks the number of operands");
    let w = parts.w;
    let [n_experts, d_out] = [w.desc.shape[0], w.desc.shape[1]];
    let ids = match parts.ids {
        Some(ids) => ids.to_i32(),
        // Each token's rows meet the matrices in order.
        None => (0..n_experts as i32)
            .collect::<Vec<_>>()
            .repeat(parts.x.desc.shape[0]),
    };
    let per_token = match parts.ids {
        Some(ids) if parts.x.desc.rank() == 2 => ids.desc.shape[1],
        _ => 1,
    };
    let mut items_of: Vec<Vec<usize>> = vec![Vec::new(); n_experts];
    for (item, &id) in ids.iter().enumerate() {
        if let Ok(id) = usize::try_from(id)
            && id < n_experts
        {
            items_of[id].push(item);
        }
    }
    let rows: Vec<Vec<f64>> = (0..parts.x.desc.rows())
        .map(|row| parts.x.row_vec(row).into_iter().map(f64::from).collect())
        .collect();
    let row_of = |item: usize| &rows[item / per_token];
    // One row, or one for each half of an expert's rows.
    let scales: Option<Vec<Vec<f32>>> = parts.scale.map(|scale| {
        (0..scale.desc.rows())
            .map(|row| scale.row_vec(row))
            .collect()
    });
    let jobs: Vec<(usize, usize)> = (0..n_experts)
        .filter(|&e| !items_of[e].is_empty())
        .flat_map(|e| (0..d_out).map(move |o| (e, o)))
        .collect();
    let columns: Vec<Vec<Sum>> = jobs
        .par_iter()
        .map(|&(e, o)| {
            let scale = scales
                .as_ref()
                .map_or(1.0, |rows| f64::from(rows[rows.len() * o / d_out][e]));
            let bias = parts.bias.map_or(0.0, |bias| f64::from(bias.row_vec(e)[o]));
            let row: Vec<f64> = (w.row_vec(e * d_out + o).into_iter())
                .map(f64::from)
                .collect();
            (items_of[e].iter())
                .map(|&item| product(&row, row_of(item), scale, bias))
                .collect()
        })
        .collect();

    // By item, then by row.
    let mut z = vec![Sum::default(); ids.len() * d_out];
    for (&(e, o), column) in jobs.iter().zip(columns) {
        for (&item, sum) in items_of[e].iter().zip(column) {
            z[item * d_out + o] = sum;
        }
    }
    let Some(kind) = op.glu else {
        for (i, sum) in z.into_iter().enumerate() {
            args.outputs[0].put_sum(i, sum.value, sum.magnitude, sum.norm);
        }
        return;
    };
    let tau = tau_of(op, &args.inputs);
    let width = d_out / 2;
    for (item, z) in z.chunks(d_out.max(1)).enumerate() {
        for o in 0..width {
            let y = gated(kind, z[o], z[width + o], tau);
            args.outputs[0].put_sum(item * width + o, y.value, y.magnitude, y.norm);
        }
    }
}

/// The tolerance's factor, in which magnitudes are counted.
fn tau_of(op: &MatmulById, inputs: &[RefTensor<'_>]) -> f64 {
    let descs: Vec<_> = inputs.iter().map(|input| input.desc).collect();
    let operands = Operands {
        inputs: &descs,
        inouts: &[],
        outputs: &[],
    };
    op.tolerance(operands).tau
}

fn product(w: &[f64], x: &[f64], scale: f64, bias: f64) -> Sum {
    let terms = w.iter().zip(x).map(|(w, x)| (w * x).abs());
    let (sum, squares) = terms.fold((0.0, 0.0), |(s, q), term| (s + term, q + term * term));
    Sum {
        value: dot(w, x) * scale + bias,
        magnitude: sum * scale.abs() + bias.abs(),
        norm: (squares * scale * scale + bias * bias).sqrt(),
    }
}

/// Largest slope of the activations.
const SLOPE: f64 = 1.13;

/// `act(gate) * up`; the magnitude carries the errors of both, of the activation itself, and the product of errors.
fn gated(kind: GluKind, gate: Sum, up: Sum, tau: f64) -> Sum {
    let act = activation(kind, gate.value);
    let value = act * up.value;
    let whole = (gate.value * up.value).abs();
    let own = match kind {
        GluKind::Reglu => value.abs(),
        GluKind::Swiglu => value.abs() * growth(gate.value) + whole * 1e-30,
        GluKind::GegluQuick => value.abs() * growth(1.702 * gate.value) + whole * 1e-30,
        GluKind::Sigmoid => value.abs() * growth(gate.value) + up.value.abs() * 1e-30,
        GluKind::Geglu | GluKind::GegluErf => value.abs() + whole / 2.0 * tail(kind, gate.value),
    };
    let slope = if kind == GluKind::GegluQuick {
        1.1
    } else {
        SLOPE
    };
    Sum {
        value,
        magnitude: slope * gate.magnitude * (up.value.abs() + tau * up.magnitude)
            + act.abs() * up.magnitude
            + own,
        norm: [slope * gate.norm * up.value, act * up.norm, value]
            .iter()
            .map(|part| part * part)
            .sum::<f64>()
            .sqrt(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dtype::DType;
    use crate::reference::testing::{close, f32s, i32s, run};
    use crate::tensor::TensorDesc;

    /// Two experts of two rows: `[1 2] [3 4]` and `[10 0] [0 -1]`.
    fn stack() -> (TensorDesc, Vec<u8>) {
        let w = [1.0, 2.0, 3.0, 4.0, 10.0, 0.0, 0.0, -1.0];
        (TensorDesc::new(DType::F32, [2, 2, 2]), f32s(&w))
    }

    #[test]
    fn each_pair_meets_its_expert() {
        let (w_desc, w) = stack();
        let x = f32s(&[1.0, 1.0, 2.0, -1.0]);
        // Twice the same expert; an id that is none on either side.
        let ids = i32s(&[1, 1, 0, 1, -1, 2]);
        let x_desc = TensorDesc::f32([2, 2]);
        let inputs = [(x_desc, &x), (w_desc, &w), (TensorDesc::i32([2, 3]), &ids)];
        let out = run(&MatmulById::PLAIN, &inputs);
        assert_eq!(out[0].desc.shape, [2, 3, 2], "a row for each pair");
        assert_eq!(
            out[0].values,
            [
                10.0, -1.0, 10.0, -1.0, 3.0, 7.0, 20.0, 1.0, 0.0, 0.0, 0.0, 0.0
            ],
            "products, and zeros without an expert"
        );
    }

    #[test]
    fn pairs_may_have_rows_of_their_own_scales_and_biases() {
        let (w_desc, w) = stack();
        let x = f32s(&[1.0, 1.0, 2.0, -1.0]);
        let ids = i32s(&[0, 1]);
        let scale = f32s(&[2.0, 0.5, 1.0, 4.0]);
        let bias = f32s(&[0.25, 0.0, 0.0, 100.0]);
        let op = MatmulById {
            glu: None,
            scaled: true,
            biased: true,
            batched: false,
        };
        let inputs = [
            (TensorDesc::f32([1, 2, 2]), &x),
            (w_desc, &w),
            (TensorDesc::i32([1, 2]), &ids),
            (TensorDesc::f32([2, 2]), &scale),
            (TensorDesc::f32([2, 2]), &bias),
        ];
        let out = run(&op, &inputs);
        assert_eq!(
            out[0].values,
            [6.25, 7.0, 10.0, 104.0],
            "2 * 3 + 0.25, 7, 0.5 * 20, 4 * 1 + 100"
        );
        assert_eq!(out[0].magnitudes[3..], [104.0], "4 * 1 + 100");
    }

    #[test]
    fn batched_rows_meet_their_matrices_in_order() {
        let (w_desc, w) = stack();
        let x = f32s(&[1.0, 1.0, 2.0, -1.0, 0.0, 1.0, 1.0, 0.0]);
        let op = MatmulById {
            batched: true,
            ..MatmulById::PLAIN
        };
        let inputs = [(TensorDesc::f32([2, 2, 2]), &x), (w_desc.clone(), &w)];
        let found = run(&op, &inputs);
        let ids = i32s(&[0, 1, 0, 1]);
        let routed = [
            (TensorDesc::f32([2, 2, 2]), &x),
            (w_desc, &w),
            (TensorDesc::i32([2, 2]), &ids),
        ];
        let expected = run(&MatmulById::PLAIN, &routed);
        assert_eq!(found[0].values, expected[0].values, "as with ids 0, 1");
        assert_ne!(found[0].values[..2], found[0].values[2..4], "two matrices");
    }

    #[test]
    fn the_first_half_gates_the_second() {
        let (w_desc, w) = stack();
        let x = f32s(&[1.0, 1.0]);
        let ids = i32s(&[0, -1]);
        let op = MatmulById {
            glu: Some(GluKind::Swiglu),
            ..MatmulById::PLAIN
        };
        let inputs = [
            (TensorDesc::f32([1, 2]), &x),
            (w_desc, &w),
            (TensorDesc::i32([1, 2]), &ids),
        ];
        let out = run(&op, &inputs);
        close(
            &out[0].values,
            &[3.0 / (1.0 + (-3.0_f64).exp()) * 7.0, 0.0],
            1e-15,
        );
    }
}
