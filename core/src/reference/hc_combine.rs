//! `hc_combine` in f64.

use super::hc_mix::sigmoid;
use super::{RefArgs, RefTensor};
use crate::ops::hc_combine::HcCombine;

/// An element of a stream before the sum.
pub(super) struct Terms {
    /// The residual.
    pub(super) r: f64,
    /// What is added: `2 sigmoid(scale * inject) x`.
    pub(super) x: f64,
    /// Its magnitude: the sigmoid's error grows with its argument as that of `glu`, and its tail may come out as 0.
    pub(super) magnitude: f64,
}

/// The terms of row `row` of the streams.
pub(super) fn terms(
    [r, x, inject]: [&RefTensor<'_>; 3],
    scale: f32,
    row: usize,
) -> impl Iterator<Item = Terms> {
    let n_streams = r.desc.shape[1];
    let (token, stream) = (row / n_streams, row % n_streams);
    let argument = f64::from(inject.row_vec(token)[stream]) * f64::from(scale);
    let weight = 2.0 * sigmoid(argument);
    let growth = 1.0 + argument.abs().min(104.0) / 2.0;
    r.row_vec(row)
        .into_iter()
        .zip(x.row_vec(token))
        .map(move |(r, x)| {
            let (r, x) = (f64::from(r), f64::from(x));
            Terms {
                r,
                x: weight * x,
                magnitude: x.abs() * (weight * growth + 1e-30),
            }
        })
}

/// `y = r + 2 sigmoid(scale * inject) x`.
pub fn hc_combine(op: &HcCombine, args: &mut RefArgs<'_>) {
    let [r, x, inject] = &args.inputs[..] else {
        unreachable!("the shape rule takes three operands");
    };
    let n = r.desc.last();
    for row in 0..r.desc.rows() {
        for (i, term) in terms([r, x, inject], op.scale, row).enumerate() {
            args.outputs[0].put_sum(
                row * n + i,
                term.r + term.x,
                term.r.abs() + term.magnitude,
                term.r.hypot(term.x),
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::HcCombine;
    use crate::reference::testing::{close, f32s, run};
    use crate::tensor::TensorDesc;

    #[test]
    fn adds_to_every_stream_by_its_weight() {
        // The residual is one tensor seen as two streams; a weight of 0 adds plainly, a large one twice.
        let r = (
            TensorDesc::f32([1, 2]).repeat(1, 2).unwrap(),
            &f32s(&[1.0, -1.0]),
        );
        let x = (TensorDesc::f32([1, 2]), &f32s(&[10.0, 20.0]));
        let inject = (TensorDesc::f32([1, 2]), &f32s(&[0.0, 400.0]));
        let out = run(&HcCombine { scale: 0.5 }, &[r, x, inject]);
        close(&out[0].values, &[11.0, 19.0, 21.0, 39.0], 1e-13);
    }
}
