//! `l2_norm` in f64.

use super::RefArgs;
use crate::ops::l2_norm::{L2Kind, L2Norm};

/// `y = x / d`, row by row.
pub fn l2_norm(op: &L2Norm, args: &mut RefArgs<'_>) {
    let x = args.inputs[0];
    let y = &mut args.outputs[0];
    let n = x.desc.last();
    for t in 0..x.desc.rows() {
        let row = x.row_vec(t);
        let sum: f64 = row.iter().map(|&v| f64::from(v) * f64::from(v)).sum();
        let divisor = match op.kind {
            L2Kind::Clamp => sum.sqrt().max(f64::from(op.eps)),
            L2Kind::Add => (sum + f64::from(op.eps)).sqrt(),
        };
        for (i, &v) in row.iter().enumerate() {
            let value = if divisor == 0.0 {
                0.0
            } else {
                f64::from(v) / divisor
            };
            y.put(t * n + i, value);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{L2Kind, L2Norm};
    use crate::reference::testing::{close, f32s, run};
    use crate::tensor::TensorDesc;

    #[test]
    fn both_kinds_by_hand() {
        let x = TensorDesc::f32([3, 3]).narrow(1, 0, 2).unwrap();
        let values = f32s(&[3.0, 4.0, 99.0, 0.0, 0.0, 99.0, 0.3, -0.4, 99.0]);
        let norm = |kind, eps| {
            run(&L2Norm { kind, eps }, &[(x.clone(), &values)])
                .remove(0)
                .values
        };
        let small = 0.3125_f64.sqrt();
        close(
            &norm(L2Kind::Add, 0.0625),
            &[
                3.0 / 25.0625_f64.sqrt(),
                4.0 / 25.0625_f64.sqrt(),
                0.0,
                0.0,
                0.3 / small,
                -0.4 / small,
            ],
            1e-7,
        );
        close(
            &norm(L2Kind::Clamp, 2.0),
            &[0.6, 0.8, 0.0, 0.0, 0.15, -0.2],
            1e-7,
        );
        assert_eq!(norm(L2Kind::Add, 0.0)[2..4], [0.0, 0.0], "zeros stay");
        assert_eq!(norm(L2Kind::Clamp, 0.0)[2..4], [0.0, 0.0], "zeros stay");
    }
}
