//! `moe_combine` in f64.

use super::RefArgs;
use crate::ops::moe_combine::MoeCombine;

/// `y = sum weights x + g shared + residual`.
pub fn moe_combine(op: &MoeCombine, args: &mut RefArgs<'_>) {
    let optional = op.optional();
    let (x, weights) = (args.inputs[0], args.inputs[1]);
    let (k, d_model) = (x.desc.shape[1], x.desc.shape[2]);
    for t in 0..x.desc.shape[0] {
        let mut terms: Vec<(f64, f64, Vec<f32>)> = weights
            .row_vec(t)
            .into_iter()
            .enumerate()
            .map(|(j, w)| (f64::from(w), 1.0, x.row_vec(t * k + j)))
            .collect();
        if let Some(shared) = optional.shared {
            let (factor, growth) = optional.gate.map_or((1.0, 1.0), |gate| {
                let l = f64::from(args.inputs[gate].row_vec(t)[0]);
                // An exponential of a device has an error of (3 + 2 |l|) units.
                (1.0 / (1.0 + (-l).exp()), 1.0 + l.abs().min(104.0) / 4.0)
            });
            terms.push((factor, growth, args.inputs[shared].row_vec(t)));
        }
        if let Some(residual) = optional.residual {
            terms.push((1.0, 1.0, args.inputs[residual].row_vec(t)));
        }
        for i in 0..d_model {
            let (mut sum, mut magnitude, mut squares) = (0.0, 0.0, 0.0);
            for (factor, growth, row) in &terms {
                let term = factor * f64::from(row[i]);
                sum += term;
                magnitude += term.abs() * growth;
                squares += term * term;
            }
            args.outputs[0].put_sum(t * d_model + i, sum, magnitude, f64::sqrt(squares));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::moe_combine::SharedExpert;
    use crate::reference::testing::{close, f32s, run};
    use crate::tensor::TensorDesc;

    #[test]
    fn every_term_enters_once() {
        let x = f32s(&[1.0, 2.0, 10.0, 20.0]);
        let weights = f32s(&[0.5, 0.25]);
        let shared = f32s(&[100.0, -200.0]);
        let gate = f32s(&[3.0_f32.ln()]);
        let residual = f32s(&[0.125, -0.125]);
        let (x, weights) = (
            (TensorDesc::f32([1, 2, 2]), &x),
            (TensorDesc::f32([1, 2]), &weights),
        );
        let row = TensorDesc::f32([1, 2]);
        let none = MoeCombine {
            shared: SharedExpert::None,
            residual: false,
        };
        let out = run(&none, &[x.clone(), weights.clone()]);
        assert_eq!(out[0].values, [3.0, 6.0], "0.5 + 2.5, 1 + 5");
        let plain = MoeCombine {
            shared: SharedExpert::Plain,
            residual: false,
        };
        let out = run(
            &plain,
            &[x.clone(), weights.clone(), (row.clone(), &shared)],
        );
        assert_eq!(out[0].values, [103.0, -194.0], "and the shared expert");
        let all = MoeCombine {
            shared: SharedExpert::Gated,
            residual: true,
        };
        let inputs = [
            x,
            weights,
            (row.clone(), &shared),
            (TensorDesc::f32([1, 1]), &gate),
            (row, &residual),
        ];
        let out = run(&all, &inputs);
        close(&out[0].values, &[78.125, -144.125], 1e-6);
    }
}
