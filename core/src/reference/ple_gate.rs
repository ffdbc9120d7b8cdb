//! `ple_gate` in f64.

use super::RefArgs;
use super::hc_mix::sigmoid;
use crate::op::Tolerance;
use crate::ops::ple_gate::PleGate;

/// `sigmoid(sign(s) sqrt(max(|s|, 1e-6)))`.
fn gate(s: f64) -> f64 {
    let sign = if s == 0.0 { 0.0 } else { s.signum() };
    sigmoid(sign * s.abs().max(1e-6).sqrt())
}

/// See the definition. The magnitude of an element is what makes its bound the range of the gate when `s` moves by the
/// rounding error of its sums.
pub fn ple_gate(op: &PleGate, args: &mut RefArgs<'_>) {
    let [key, value, r, w_key, w_query] = &args.inputs[..] else {
        unreachable!("the shape rule takes five operands");
    };
    let (n, n_streams) = (r.desc.last(), r.desc.shape[1]);
    let tau = norm_tau(n);
    let rms = |row: &[f32]| {
        let squares: f64 = row.iter().map(|&v| f64::from(v).powi(2)).sum();
        (squares / n as f64 + f64::from(op.eps)).sqrt()
    };
    for row in 0..r.desc.rows() {
        let (k, h) = (key.row_vec(row), r.row_vec(row));
        let (wk, wq) = (
            w_key.row_vec(row % n_streams),
            w_query.row_vec(row % n_streams),
        );
        let scale = rms(&k) * rms(&h) * (n as f64).sqrt();
        let (mut s, mut magnitude) = (0.0, 0.0);
        for i in 0..n {
            let term = f64::from(k[i]) * f64::from(wk[i]) * f64::from(h[i]) * f64::from(wq[i]);
            s += term;
            magnitude += term.abs();
        }
        // A row of zeros has no direction: s is 0.
        let (s, error) = if scale == 0.0 {
            (0.0, 0.0)
        } else {
            (s / scale, 4.0 * tau * magnitude / scale)
        };
        let a = gate(s);
        let range = (gate(s + error) - a).max(a - gate(s - error));
        for (i, v) in value.row_vec(row / n_streams).into_iter().enumerate() {
            let v = f64::from(v);
            let bound = v.abs() * (2.0 * a + range / tau);
            args.outputs[0].put_sum(row * n + i, a * v, bound, bound);
        }
    }
}

fn norm_tau(n: usize) -> f64 {
    let tolerance: Tolerance = crate::ops::rms_norm::norm_tolerance(n);
    tolerance.tau
}

#[cfg(test)]
mod tests {
    use super::PleGate;
    use crate::reference::testing::{close, f32s, run};
    use crate::tensor::TensorDesc;

    #[test]
    fn agreement_opens_and_disagreement_closes_the_gate() {
        let streams = TensorDesc::f32([1, 3, 2]);
        let key = (streams.clone(), &f32s(&[1.0, 1.0, 1.0, 1.0, 1.0, -1.0]));
        let value = (TensorDesc::f32([1, 2]), &f32s(&[2.0, -4.0]));
        let r = (streams, &f32s(&[3.0, 3.0, -3.0, -3.0, 5.0, 5.0]));
        let ones = (TensorDesc::f32([3, 2]), &f32s(&[1.0; 6]));
        let out = run(&PleGate { eps: 0.0 }, &[key, value, r, ones.clone(), ones]);
        // s = +-sqrt(2), sigmoid(2^(1/4)) = 0.76661...; the third stream is orthogonal.
        let a = 1.0 / (1.0 + (-(2.0_f64.powf(0.25))).exp());
        let expected = [
            2.0 * a,
            -4.0 * a,
            2.0 * (1.0 - a),
            -4.0 * (1.0 - a),
            1.0,
            -2.0,
        ];
        close(&out[0].values, &expected, 1e-12);
    }
}
