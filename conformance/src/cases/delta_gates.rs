//! Cases of `delta_gates`.

use gemel_core::TensorDesc;
use gemel_core::ops::delta_gates::DeltaGates;

use super::{Builder, Case, Tag, thin};
use crate::fill::{Class, Fill, Rng};

/// The table.
pub(super) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for (i, (groups, heads)) in [(1, 1), (1, 6), (2, 3), (16, 1), (3, 5), (16, 3), (1, 64)]
        .into_iter()
        .enumerate()
    {
        for (j, class) in [
            Class::N,
            Class::H,
            Class::Z,
            Class::S,
            Class::L,
            Class::X,
            Class::C,
        ]
        .into_iter()
        .enumerate()
        {
            for n_tokens in [1, 2, 17, 65] {
                let n = groups * heads;
                // All heads in a row, or in groups of strengths and decays.
                let (alpha, beta) = if (i + j) % 2 == 0 {
                    let whole = TensorDesc::f32([n_tokens, 2 * n]);
                    (whole.narrow(1, n, n), whole.narrow(1, 0, n))
                } else {
                    let whole = TensorDesc::f32([n_tokens, groups, 2 * heads]);
                    (whole.narrow(2, heads, heads), whole.narrow(2, 0, heads))
                };
                let mut rng = Rng::new(&format!("a {i} {j} {n_tokens}"), 0, 91);
                let a: Vec<f32> = (0..n).map(|_| -2.0 * rng.unit() as f32).collect();
                cases.push(
                    Builder::new(DeltaGates::NAME)
                        .param("n_tokens", n_tokens)
                        .param("heads", format!("{groups}x{heads}"))
                        .param("rank", 2 + (i + j) % 2)
                        .param("class", class)
                        .input(
                            "alpha",
                            alpha.expect("the half exists"),
                            Fill::Floats(class),
                        )
                        .input("beta", beta.expect("the half exists"), Fill::Floats(class))
                        .input("a", TensorDesc::f32([n]), Fill::Values(a.into()))
                        .input("dt", TensorDesc::f32([n]), Fill::Floats(Class::N))
                        .tag_if(n_tokens == 2 && n == 6, Tag::Quick)
                        .build(DeltaGates),
                );
            }
        }
    }
    let mut cases = thin(cases, 4, 16);
    for n_tokens in [1, 512] {
        let desc = TensorDesc::f32([n_tokens, 48]);
        let vector = TensorDesc::f32([48]);
        cases.push(
            Builder::new(DeltaGates::NAME)
                .param("bench", format!("{n_tokens}x48"))
                .input("alpha", desc.clone(), Fill::Floats(Class::N))
                .input("beta", desc, Fill::Floats(Class::N))
                .input("a", vector.clone(), Fill::Floats(Class::C))
                .input("dt", vector, Fill::Floats(Class::N))
                .tag(Tag::Bench)
                .build(DeltaGates),
        );
    }
    cases
}
