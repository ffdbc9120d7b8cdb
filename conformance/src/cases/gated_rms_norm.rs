//! Cases of `gated_rms_norm`.

use gemel_core::TensorDesc;
use gemel_core::ops::gated_rms_norm::{GateKind, GatedRmsNorm};

use super::{Builder, Case, Tag, thin};
use crate::fill::{Class, Fill};

/// The table.
pub(super) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for gate in [GateKind::Silu, GateKind::Sigmoid] {
        for (i, n) in [1, 2, 7, 16, 31, 33, 64, 100, 128, 256, 257, 640]
            .into_iter()
            .enumerate()
        {
            for (j, (class, gate_class)) in [
                (Class::N, Class::N),
                (Class::H, Class::H),
                (Class::Z, Class::U),
                (Class::S, Class::Z),
                (Class::V, Class::N),
                (Class::N, Class::L),
                (Class::C, Class::S),
            ]
            .into_iter()
            .enumerate()
            {
                let n_tokens = [1, 3, 8, 33][(i + j) % 4];
                let (n_heads, kept) = [(1, 1), (6, 3), (4, 1), (5, 2)][(i + 2 * j) % 4];
                let view = |wide: usize| {
                    TensorDesc::f32([n_tokens, wide, n])
                        .narrow(1, wide - kept, kept)
                        .expect("the heads exist")
                };
                let eps = if class == Class::V { 0.0 } else { 1e-6 };
                cases.push(
                    Builder::new(GatedRmsNorm::NAME)
                        .param("gate", gate.name())
                        .param("n_tokens", n_tokens)
                        .param("heads", format!("{kept}of{n_heads}"))
                        .param("n", n)
                        .param("class", format!("{class}{gate_class}"))
                        .variant(gate.name())
                        .input("x", view(kept), Fill::Floats(class))
                        .input("z", view(n_heads), Fill::Floats(gate_class))
                        .input("w", TensorDesc::f32([n]), Fill::Floats(Class::N))
                        .tag_if(n == 33 && n_tokens == 3, Tag::Quick)
                        .build(GatedRmsNorm { eps, gate }),
                );
            }
        }
    }
    let mut cases = thin(cases, 4, 12);
    for n_tokens in [1, 512] {
        let desc = TensorDesc::f32([n_tokens, 48, 128]);
        cases.push(
            Builder::new(GatedRmsNorm::NAME)
                .param("bench", format!("{n_tokens}x48x128"))
                .variant(GateKind::Silu.name())
                .input("x", desc.clone(), Fill::Floats(Class::N))
                .input("z", desc, Fill::Floats(Class::N))
                .input("w", TensorDesc::f32([128]), Fill::Floats(Class::N))
                .tag(Tag::Bench)
                .build(GatedRmsNorm {
                    eps: 1e-6,
                    gate: GateKind::Silu,
                }),
        );
    }
    cases
}
