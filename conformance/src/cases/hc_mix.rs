//! Cases of `hc_mix`.

use gemel_core::TensorDesc;
use gemel_core::ops::hc_mix::HcMix;

use super::{Builder, Case, Tag, thin};
use crate::fill::{Class, Fill};

/// Tokens, streams and channels of a hyper-connected residual: small, odd, around a block, those of models.
pub(super) const SHAPES: [[usize; 3]; 14] = [
    [1, 1, 1],
    [1, 4, 3],
    [3, 2, 31],
    [2, 4, 32],
    [5, 3, 33],
    [1, 4, 64],
    [17, 4, 64],
    [2, 5, 255],
    [1, 4, 513],
    [4, 4, 640],
    [1, 4, 2560],
    [7, 4, 2560],
    [2, 7, 1031],
    [1100, 3, 30],
];

/// The residual as an operand: contiguous, repeated over the streams, or some channels of wider streams.
pub(super) fn streams(shape: [usize; 3]) -> Vec<(&'static str, TensorDesc)> {
    let [n_tokens, n_streams, d_model] = shape;
    let repeated = TensorDesc::f32([n_tokens, d_model]).repeat(1, n_streams);
    let part = TensorDesc::f32([n_tokens, n_streams, d_model + 3]).narrow(2, 2, d_model);
    vec![
        ("whole", TensorDesc::f32(shape)),
        ("repeated", repeated.expect("a middle axis")),
        ("part", part.expect("the channels exist")),
    ]
}

/// The table.
pub(super) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for shape in SHAPES {
        let [n_tokens, n_streams, d_model] = shape;
        for (view, x) in streams(shape) {
            for (class, gate) in [
                (Class::N, Class::N),
                (Class::H, Class::L),
                (Class::Z, Class::Z),
                (Class::V, Class::H),
                (Class::X, Class::S),
            ] {
                cases.push(
                    Builder::new(HcMix::NAME)
                        .param("n_tokens", n_tokens)
                        .param("n_streams", n_streams)
                        .param("d_model", d_model)
                        .param("x", view)
                        .param("class", format!("{class}{gate}"))
                        .input("x", x.clone(), Fill::Floats(class))
                        .input("gate", TensorDesc::f32(shape), Fill::Floats(gate))
                        .build(HcMix),
                );
            }
        }
    }
    let mut cases = thin(cases, 6, 20);
    for n_tokens in [1, 512] {
        let shape = [n_tokens, 4, 2560];
        cases.push(
            Builder::new(HcMix::NAME)
                .param("bench", format!("{n_tokens}x4x2560"))
                .input("x", TensorDesc::f32(shape), Fill::Floats(Class::N))
                .input("gate", TensorDesc::f32(shape), Fill::Floats(Class::N))
                .tag(Tag::Bench)
                .build(HcMix),
        );
    }
    cases
}
