//! `moe_route` in f64.

use std::cmp::Ordering;

use super::RefArgs;
use crate::ops::moe_route::{DEAD, Gate, LEAST_SUM, MoeRoute};

/// The score of experts that nobody wants.
const LAST: f64 = -1e30;

/// The `k` best experts of each row and their weights.
pub fn moe_route(op: &MoeRoute, args: &mut RefArgs<'_>) {
    let logits = args.inputs[0];
    let bias = args.inputs.get(1).map(|bias| bias.row_vec(0));
    for t in 0..logits.desc.rows() {
        // NaN is not above anything.
        let row: Vec<f64> = (logits.row_vec(t).into_iter())
            .map(|l| {
                if l > DEAD {
                    f64::from(l)
                } else {
                    f64::NEG_INFINITY
                }
            })
            .collect();
        let max = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let p = probabilities(op.gate, &row, max);
        let scores: Vec<f64> = (0..row.len())
            .map(|e| {
                if row[e] == f64::NEG_INFINITY {
                    return LAST;
                }
                let gate = if op.gate == Gate::SoftmaxAfter {
                    row[e]
                } else {
                    p[e]
                };
                gate + bias.as_ref().map_or(0.0, |bias| f64::from(bias[e]))
            })
            .collect();
        let chosen = choose(op, &row, &scores, bias.is_some());
        let weights: Vec<f64> = match op.gate {
            Gate::SoftmaxAfter => {
                let max = chosen
                    .iter()
                    .map(|&e| row[e])
                    .fold(f64::NEG_INFINITY, f64::max);
                let exps: Vec<f64> = chosen.iter().map(|&e| exp_of(row[e], max)).collect();
                let sum: f64 = exps.iter().sum();
                exps.iter()
                    .map(|e| if sum > 0.0 { e / sum } else { 0.0 })
                    .collect()
            }
            Gate::Softmax | Gate::Sigmoid | Gate::SqrtSoftplus => {
                chosen.iter().map(|&e| p[e]).collect()
            }
        };
        let sum = if op.normalize {
            weights.iter().sum::<f64>().max(f64::from(LEAST_SUM))
        } else {
            1.0
        };
        for (place, (&e, weight)) in chosen.iter().zip(weights).enumerate() {
            let value = weight / sum * f64::from(op.scale);
            // An exponential of a device has a relative error that grows with its argument.
            let argument = match op.gate {
                Gate::Softmax | Gate::SoftmaxAfter => max - row[e],
                Gate::Sigmoid | Gate::SqrtSoftplus => row[e].abs(),
            };
            let magnitude = value.abs() * (1.0 + argument.min(200.0) / 16.0);
            args.outputs[0].put(t * op.k + place, e as f64);
            args.outputs[1].put_sum(t * op.k + place, value, magnitude, value.abs());
        }
    }
}

/// `exp(l - max)`, 0 for -inf even where everything is.
fn exp_of(l: f64, max: f64) -> f64 {
    if l == f64::NEG_INFINITY {
        0.0
    } else {
        (l - max).exp()
    }
}

/// Probabilities of all experts; of no use after a selection.
fn probabilities(gate: Gate, row: &[f64], max: f64) -> Vec<f64> {
    match gate {
        Gate::Softmax => {
            let exps: Vec<f64> = row.iter().map(|&l| exp_of(l, max)).collect();
            let sum: f64 = exps.iter().sum();
            exps.iter()
                .map(|e| if sum > 0.0 { e / sum } else { 0.0 })
                .collect()
        }
        Gate::Sigmoid => row.iter().map(|&l| 1.0 / (1.0 + (-l).exp())).collect(),
        Gate::SqrtSoftplus => row
            .iter()
            .map(|&l| (l.max(0.0) + (-l.abs()).exp().ln_1p()).sqrt())
            .collect(),
        Gate::SoftmaxAfter => vec![0.0; row.len()],
    }
}

/// Larger first; a stable sort keeps the order of equals.
fn descending(a: f64, b: f64) -> Ordering {
    b.total_cmp(&a)
}

/// The experts, best first.
fn choose(op: &MoeRoute, row: &[f64], scores: &[f64], has_bias: bool) -> Vec<usize> {
    let size = row.len() / op.groups;
    let mut groups: Vec<(usize, f64)> = scores
        .chunks(size)
        .map(|group| {
            let mut group = group.to_vec();
            group.sort_by(|&a, &b| descending(a, b));
            group.iter().take(2).sum()
        })
        .enumerate()
        .collect();
    groups.sort_by(|a, b| descending(a.1, b.1));
    let used: Vec<usize> = groups[..op.groups_used]
        .iter()
        .map(|group| group.0)
        .collect();
    let mut experts: Vec<usize> = (0..row.len())
        .filter(|e| used.contains(&(e / size)))
        .collect();
    let rank = |e: usize| match row[e] {
        f64::NEG_INFINITY => f64::NEG_INFINITY,
        // Adding 0 makes -0 equal to 0.
        _ if has_bias => scores[e] + 0.0,
        logit => logit + 0.0,
    };
    experts.sort_by(|&a, &b| descending(rank(a), rank(b)));
    experts.truncate(op.k);
    experts
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::op::Op;
    use crate::reference::testing::{close, f32s, run};
    use crate::tensor::TensorDesc;

    const OP: MoeRoute = MoeRoute {
        k: 2,
        gate: Gate::Softmax,
        groups: 1,
        groups_used: 1,
        normalize: false,
        scale: 1.0,
    };

    /// `ln 2, ln 1, ln 4, ln 1`: probabilities 1/4, 1/8, 1/2, 1/8.
    fn logits() -> (TensorDesc, Vec<u8>) {
        let row = [2.0_f32, 1.0, 4.0, 1.0].map(f32::ln);
        (TensorDesc::f32([1, 4]), f32s(&row))
    }

    fn route(op: &MoeRoute, bias: Option<[f32; 4]>) -> (Vec<f64>, Vec<f64>) {
        let (desc, row) = logits();
        let bias = bias.map(|bias| f32s(&bias));
        let mut inputs = vec![(desc, &row)];
        if let Some(bias) = &bias {
            inputs.push((TensorDesc::f32([4]), bias));
        }
        let out = run(op, &inputs);
        (out[0].values.clone(), out[1].values.clone())
    }

    #[test]
    fn probabilities_of_all_or_of_the_chosen() {
        let (ids, weights) = route(&OP, None);
        assert_eq!(ids, [2.0, 0.0], "largest first");
        close(&weights, &[0.5, 0.25], 1e-7);
        let normalized = MoeRoute {
            normalize: true,
            scale: 3.0,
            ..OP
        };
        close(&route(&normalized, None).1, &[2.0, 1.0], 1e-7);
        let after = MoeRoute {
            gate: Gate::SoftmaxAfter,
            ..OP
        };
        close(&route(&after, None).1, &[2.0 / 3.0, 1.0 / 3.0], 1e-7);
        let sigmoid = MoeRoute {
            gate: Gate::Sigmoid,
            ..OP
        };
        close(&route(&sigmoid, None).1, &[4.0 / 5.0, 2.0 / 3.0], 1e-7);
        let softplus = MoeRoute {
            gate: Gate::SqrtSoftplus,
            ..OP
        };
        let expected = [5.0_f64.ln().sqrt(), 3.0_f64.ln().sqrt()];
        close(&route(&softplus, None).1, &expected, 1e-7);
    }

    #[test]
    fn a_bias_chooses_but_does_not_weigh() {
        let (ids, weights) = route(&OP, Some([0.0, 0.0, 0.0, 1.0]));
        assert_eq!(ids, [3.0, 2.0], "1/8 + 1 before 1/2");
        close(&weights, &[0.125, 0.5], 1e-7);
    }

    #[test]
    fn groups_outside_are_excluded_even_where_scores_are_negative() {
        let op = MoeRoute {
            groups: 2,
            groups_used: 1,
            ..OP
        };
        // Scores -0.75, -0.875 | -2.5, 1.125: the second group sums to more only without its bias.
        let (ids, _) = route(&op, Some([-1.0, -1.0, -3.0, 0.8]));
        // -0.75 - 0.875 against -2.5 + 0.925.
        assert_eq!(ids, [3.0, 2.0], "the better group, both of it");
        let (ids, _) = route(&op, Some([-1.0, -1.0, -4.0, 0.8]));
        assert_eq!(ids, [0.0, 1.0], "although expert 3 has the largest score");
    }

    #[test]
    fn ties_and_experts_that_nobody_wants() {
        let nan = f32::NAN;
        let inf = f32::NEG_INFINITY;
        let rows = f32s(&[1.0, 1.0, 1.0, nan, inf, nan, 0.0, -0.0]);
        let op = MoeRoute {
            normalize: true,
            ..OP
        };
        let out = run(&op, &[(TensorDesc::f32([2, 4]), &rows)]);
        assert_eq!(out[0].values, [0.0, 1.0, 2.0, 3.0], "lower index first");
        assert_eq!(out[1].values, [0.5; 4], "halves");
        let none = f32s(&[inf, nan, nan, inf]);
        let out = run(&op, &[(TensorDesc::f32([1, 4]), &none)]);
        assert_eq!(out[0].values, [0.0, 1.0], "the first");
        assert_eq!(out[1].values, [0.0, 0.0], "of no weight");
    }

    #[test]
    fn the_sum_has_a_floor() {
        let row = f32s(&[-20.0, -20.0]);
        let op = MoeRoute {
            gate: Gate::Sigmoid,
            normalize: true,
            ..OP
        };
        let out = run(&op, &[(TensorDesc::f32([1, 2]), &row)]);
        let p = 1.0 / (1.0 + 20.0_f64.exp());
        close(&out[1].values, &[p * 16_384.0; 2], 1e-12);
    }

    #[test]
    fn numbers_that_do_not_fit_are_refused() {
        let (desc, _) = logits();
        let refused = |op: MoeRoute| op.outputs(&[&desc], &[]).unwrap_err().to_string();
        let k = refused(MoeRoute { k: 5, ..OP });
        assert!(k.contains("k of moe_route") && k.contains('4'), "{k}");
        let groups = refused(MoeRoute { groups: 3, ..OP });
        assert!(groups.contains("3 groups"), "{groups}");
        let used = refused(MoeRoute {
            groups: 2,
            groups_used: 3,
            ..OP
        });
        assert!(used.contains("used groups"), "{used}");
        let few = refused(MoeRoute {
            k: 3,
            groups: 2,
            ..OP
        });
        assert!(few.contains("k of moe_route"), "{few}");
    }
}
