//! Cases of `hc_combine_norm`.

use gemel_core::TensorDesc;
use gemel_core::ops::hc_combine_norm::HcCombineNorm;

use super::hc_combine::inject;
use super::hc_mix::{SHAPES, streams};
use super::{Builder, Case, Tag, thin};
use crate::fill::{Class, Fill};

/// The table.
pub(super) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    let case = |n_tokens: usize, n_streams: usize, d_model: usize| {
        move |builder: Builder, r: TensorDesc, stacked: bool, class: Class, weights: Class| {
            builder
                .input("r", r, Fill::Floats(class))
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
                .input(
                    "w",
                    TensorDesc::f32([n_streams, d_model]),
                    Fill::Floats(Class::N),
                )
                .build(HcCombineNorm {
                    scale: 1.0 / n_streams as f32,
                    eps: 1e-6,
                })
        }
    };
    for shape in SHAPES {
        let [n_tokens, n_streams, d_model] = shape;
        let case = case(n_tokens, n_streams, d_model);
        for (view, r) in streams(shape) {
            for (stacked, class, weights) in [
                (false, Class::N, Class::N),
                (true, Class::H, Class::L),
                (true, Class::Z, Class::Z),
                (false, Class::S, Class::H),
            ] {
                let builder = Builder::new(HcCombineNorm::NAME)
                    .param("n_tokens", n_tokens)
                    .param("n_streams", n_streams)
                    .param("d_model", d_model)
                    .param("r", view)
                    .param("class", format!("{class}{weights}"));
                cases.push(case(builder, r.clone(), stacked, class, weights));
            }
        }
    }
    let mut cases = thin(cases, 6, 20);
    for n_tokens in [1, 512] {
        let builder = Builder::new(HcCombineNorm::NAME)
            .param("bench", format!("{n_tokens}x4x2560"))
            .tag(Tag::Bench);
        let r = TensorDesc::f32([n_tokens, 4, 2560]);
        cases.push(case(n_tokens, 4, 2560)(
            builder,
            r,
            false,
            Class::N,
            Class::N,
        ));
    }
    cases
}
