//! Cases of `rms_norm`.

use gemel_core::TensorDesc;
use gemel_core::ops::rms_norm::RmsNorm;

use super::{Builder, Case, Tag, thin};
use crate::fill::{Class, Fill};

/// Row lengths around powers of two, primes, and those of models.
const SIZES: [usize; 16] = [
    1, 2, 7, 31, 32, 33, 64, 100, 127, 256, 257, 576, 640, 1024, 1757, 4096,
];

/// The table.
pub(super) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for (i, &n) in SIZES.iter().enumerate() {
        for (j, class) in [
            Class::N,
            Class::H,
            Class::Z,
            Class::S,
            Class::V,
            Class::D,
            Class::C,
        ]
        .into_iter()
        .enumerate()
        {
            let n_tokens = [1, 3, 8, 65][(i + j) % 4];
            cases.push(
                Builder::new(RmsNorm::NAME)
                    .param("n_tokens", n_tokens)
                    .param("d_model", n)
                    .param("class", class)
                    .input("x", TensorDesc::f32([n_tokens, n]), Fill::Floats(class))
                    .input("w", TensorDesc::f32([n]), Fill::Floats(Class::N))
                    .build(RmsNorm {
                        eps: if class == Class::V { 0.0 } else { 1e-6 },
                    }),
            );
        }
    }
    for (n_heads, kept, head_dim) in [(6, 3, 64), (4, 1, 33), (8, 8, 128), (5, 2, 256)] {
        for n_tokens in [1, 4, 17] {
            // Some heads of each token of a wider tensor, as q and k inside qkv.
            let whole = TensorDesc::f32([n_tokens, n_heads, head_dim]);
            let x = whole
                .narrow(1, n_heads - kept, kept)
                .expect("the heads exist");
            cases.push(
                Builder::new(RmsNorm::NAME)
                    .param("n_tokens", n_tokens)
                    .param("heads", format!("{kept}of{n_heads}"))
                    .param("head_dim", head_dim)
                    .input("x", x, Fill::Floats(Class::H))
                    .input("w", TensorDesc::f32([head_dim]), Fill::Floats(Class::N))
                    .tag_if(n_tokens == 4, Tag::Quick)
                    .build(RmsNorm { eps: 1e-5 }),
            );
        }
    }
    for (n_tokens, n) in [(70_000, 3), (2, 65_536), (2, 65_537)] {
        cases.push(
            Builder::new(RmsNorm::NAME)
                .param("n_tokens", n_tokens)
                .param("d_model", n)
                .param("class", "U")
                .input("x", TensorDesc::f32([n_tokens, n]), Fill::Floats(Class::U))
                .input("w", TensorDesc::f32([n]), Fill::Floats(Class::U))
                .build(RmsNorm { eps: 1e-6 }),
        );
    }
    for (n_tokens, n_groups, n) in [
        (1, 4, 64),
        (3, 2, 33),
        (5, 4, 2560),
        (2, 7, 1),
        (65, 3, 100),
    ] {
        // A weight for each stream of a hyper-connected residual, which may be one tensor seen many times.
        let repeated = TensorDesc::f32([n_tokens, n]).repeat(1, n_groups);
        for (view, x) in [
            ("whole", TensorDesc::f32([n_tokens, n_groups, n])),
            ("repeated", repeated.expect("a middle axis")),
        ] {
            cases.push(
                Builder::new(RmsNorm::NAME)
                    .param("n_tokens", n_tokens)
                    .param("groups", n_groups)
                    .param("d_model", n)
                    .param("x", view)
                    .input("x", x, Fill::Floats(Class::H))
                    .input("w", TensorDesc::f32([n_groups, n]), Fill::Floats(Class::N))
                    .tag_if(n_tokens == 3, Tag::Quick)
                    .build(RmsNorm { eps: 1e-6 }),
            );
        }
    }
    let mut cases = thin(cases, 4, 12);
    for (n_tokens, n) in [(1, 2048), (512, 2048)] {
        cases.push(
            Builder::new(RmsNorm::NAME)
                .param("bench", format!("{n_tokens}x{n}"))
                .input("x", TensorDesc::f32([n_tokens, n]), Fill::Floats(Class::N))
                .input("w", TensorDesc::f32([n]), Fill::Floats(Class::N))
                .tag(Tag::Bench)
                .build(RmsNorm { eps: 1e-6 }),
        );
    }
    cases
}
