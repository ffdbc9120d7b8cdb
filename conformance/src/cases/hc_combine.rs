//! Cases of `hc_combine`.

use gemel_core::TensorDesc;
use gemel_core::ops::hc_combine::HcCombine;

use super::hc_mix::{SHAPES, streams};
use super::{Builder, Case, Tag, thin};
use crate::fill::{Class, Fill};

/// The weights of the streams as an operand: alone, or the last columns of a stacked projection.
pub(super) fn inject(n_tokens: usize, n_streams: usize, stacked: bool) -> TensorDesc {
    if stacked {
        TensorDesc::f32([n_tokens, n_streams + 5])
            .narrow(1, 5, n_streams)
            .expect("the columns exist")
    } else {
        TensorDesc::f32([n_tokens, n_streams])
    }
}

/// The table.
pub(super) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for shape in SHAPES {
        let [n_tokens, n_streams, d_model] = shape;
        for (view, r) in streams(shape) {
            for (stacked, class, weights) in [
                (false, Class::N, Class::N),
                (true, Class::H, Class::L),
                (true, Class::X, Class::Z),
                (false, Class::V, Class::S),
                (false, Class::Z, Class::H),
            ] {
                cases.push(
                    Builder::new(HcCombine::NAME)
                        .param("n_tokens", n_tokens)
                        .param("n_streams", n_streams)
                        .param("d_model", d_model)
                        .param("r", view)
                        .param("class", format!("{class}{weights}"))
                        .input("r", r.clone(), Fill::Floats(class))
                        .input(
                            "x",
                            TensorDesc::f32([n_tokens, d_model]),
                            Fill::Floats(class),
                        )
                        .input(
                            "inject",
                            inject(n_tokens, n_streams, stacked),
                            Fill::Floats(weights),
                        )
                        .build(HcCombine {
                            scale: 1.0 / n_streams as f32,
                        }),
                );
            }
        }
    }
    let mut cases = thin(cases, 6, 20);
    for n_tokens in [1, 512] {
        cases.push(
            Builder::new(HcCombine::NAME)
                .param("bench", format!("{n_tokens}x4x2560"))
                .input(
                    "r",
                    TensorDesc::f32([n_tokens, 4, 2560]),
                    Fill::Floats(Class::N),
                )
                .input(
                    "x",
                    TensorDesc::f32([n_tokens, 2560]),
                    Fill::Floats(Class::N),
                )
                .input("inject", inject(n_tokens, 4, false), Fill::Floats(Class::N))
                .tag(Tag::Bench)
                .build(HcCombine { scale: 0.25 }),
        );
    }
    cases
}
