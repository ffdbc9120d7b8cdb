//! `top_k_logits`, exact.

use std::cmp::Ordering;

use super::RefArgs;
use crate::ops::top_k_logits::TopKLogits;

/// The `k` largest elements of each row, largest first, then lower index first.
pub fn top_k_logits(op: &TopKLogits, args: &mut RefArgs<'_>) {
    let x = args.inputs[0];
    for r in 0..x.desc.rows() {
        let row = x.row_vec(r);
        let mut ids: Vec<usize> = (0..row.len()).collect();
        // Stable: equals keep the order of their indices.
        ids.sort_by(|&i, &j| descending(row[i], row[j]));
        for (place, &id) in ids[..op.k].iter().enumerate() {
            args.outputs[0].put(r * op.k + place, id as f64);
            args.outputs[1].put(r * op.k + place, f64::from(row[id]));
        }
    }
}

/// Larger first, -0 equal to +0, NaN last.
fn descending(a: f32, b: f32) -> Ordering {
    b.partial_cmp(&a)
        .unwrap_or_else(|| a.is_nan().cmp(&b.is_nan()))
}

#[cfg(test)]
mod tests {
    use super::TopKLogits;
    use crate::op::Op;
    use crate::reference::testing::{f32s, run};
    use crate::tensor::TensorDesc;

    #[test]
    fn larger_first_then_lower_index() {
        const INF: f32 = f32::INFINITY;
        let x = f32s(&[
            1.0,
            5.0,
            -2.0,
            5.0,
            3.0, // a tie
            f32::NAN,
            -INF,
            0.0,
            -0.0,
            f32::NAN, // zeros are equal, NaN below -inf
        ]);
        let out = run(&TopKLogits { k: 4 }, &[(TensorDesc::f32([2, 5]), &x)]);
        assert_eq!(
            out[0].values,
            [1.0, 3.0, 4.0, 0.0, 2.0, 3.0, 1.0, 0.0],
            "indices"
        );
        assert_eq!(
            out[1].values[..7],
            [5.0, 5.0, 3.0, 1.0, 0.0, 0.0, f64::NEG_INFINITY],
            "values"
        );
        assert!(out[1].values[7].is_nan(), "only NaN is left");
    }

    #[test]
    fn k_has_limits() {
        let x = TensorDesc::f32([2, 5]);
        let refused = |k| {
            TopKLogits { k }
                .outputs(&[&x], &[])
                .unwrap_err()
                .to_string()
        };
        assert!(refused(6).contains("at least 6"), "{}", refused(6));
        assert!(refused(0).contains("at least 1"), "{}", refused(0));
        assert!(refused(1025).contains("1024"), "{}", refused(1025));
    }
}
