//! Cases of `ple_gate`.

use gemel_core::TensorDesc;
use gemel_core::ops::ple_gate::PleGate;

use super::hc_mix::{SHAPES, streams};
use super::{Builder, Case, Tag, thin};
use crate::fill::{Class, Fill};

/// Operands around the residual.
fn with_operands(builder: Builder, r: TensorDesc, class: Class) -> Builder {
    let [n_tokens, n_streams, d_model] = r.shape[..] else {
        unreachable!("streams have three axes");
    };
    let weights = TensorDesc::f32([n_streams, d_model]);
    builder
        .input(
            "key",
            TensorDesc::f32([n_tokens, n_streams, d_model]),
            Fill::Floats(class),
        )
        .input(
            "value",
            TensorDesc::f32([n_tokens, d_model]),
            Fill::Floats(class),
        )
        .input("r", r, Fill::Floats(class))
        .input("w_key", weights.clone(), Fill::Floats(Class::N))
        .input("w_query", weights, Fill::Floats(Class::N))
}

/// The table.
pub(super) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for shape in SHAPES {
        let [n_tokens, n_streams, d_model] = shape;
        for (view, r) in streams(shape) {
            for class in [Class::N, Class::H, Class::Z, Class::S] {
                let builder = Builder::new(PleGate::NAME)
                    .param("n_tokens", n_tokens)
                    .param("n_streams", n_streams)
                    .param("d_model", d_model)
                    .param("r", view)
                    .param("class", class);
                cases.push(with_operands(builder, r.clone(), class).build(PleGate { eps: 1e-6 }));
            }
        }
    }
    let mut cases = thin(cases, 6, 20);
    for n_tokens in [1, 512] {
        let builder = Builder::new(PleGate::NAME)
            .param("bench", format!("{n_tokens}x4x2560"))
            .tag(Tag::Bench);
        let r = TensorDesc::f32([n_tokens, 4, 2560]);
        cases.push(with_operands(builder, r, Class::N).build(PleGate { eps: 1e-6 }));
    }
    cases
}
