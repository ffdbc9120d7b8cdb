//! `hadamard` in f64, by its definition.

use super::RefArgs;
use crate::ops::hadamard::Hadamard;

/// `y_i = 1 / sqrt(block) * sum_j (-1)^popcount(i & j) x_j`, run by run.
pub fn hadamard(op: &Hadamard, args: &mut RefArgs<'_>) {
    let x = args.inputs[0];
    let y = &mut args.outputs[0];
    let n = x.desc.last();
    let scale = 1.0 / (op.block as f64).sqrt();
    for t in 0..x.desc.rows() {
        for (b, run) in x.row_vec(t).chunks(op.block).enumerate() {
            let magnitude: f64 = run.iter().map(|&v| f64::from(v).abs()).sum();
            let squares: f64 = run.iter().map(|&v| f64::from(v).powi(2)).sum();
            for i in 0..op.block {
                let sum: f64 = run
                    .iter()
                    .enumerate()
                    .map(|(j, &v)| {
                        if (i & j).count_ones().is_multiple_of(2) {
                            f64::from(v)
                        } else {
                            -f64::from(v)
                        }
                    })
                    .sum();
                y.put_sum(
                    t * n + b * op.block + i,
                    scale * sum,
                    scale * magnitude,
                    scale * squares.sqrt(),
                );
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Hadamard;
    use crate::reference::testing::{close, f32s, run};
    use crate::tensor::TensorDesc;

    #[test]
    fn two_runs_of_four_by_hand() {
        let x = f32s(&[1.0, 2.0, 3.0, 4.0, 0.0, 0.0, 8.0, 0.0]);
        let out = run(&Hadamard { block: 4 }, &[(TensorDesc::f32([1, 8]), &x)]);
        close(
            &out[0].values,
            &[5.0, -1.0, -2.0, 0.0, 4.0, 4.0, -4.0, -4.0],
            1e-12,
        );
    }

    #[test]
    fn it_is_its_own_inverse() {
        let x: Vec<f32> = (0..64).map(|i| (i * 29 % 17) as f32 - 8.0).collect();
        let desc = TensorDesc::f32([1, 64]);
        let once = run(&Hadamard { block: 64 }, &[(desc.clone(), &f32s(&x))]);
        let once: Vec<f32> = once[0].values.iter().map(|&v| v as f32).collect();
        let twice = run(&Hadamard { block: 64 }, &[(desc, &f32s(&once))]);
        let x: Vec<f64> = x.iter().map(|&v| f64::from(v)).collect();
        close(&twice[0].values, &x, 1e-6);
    }
}
