//! Cases of `layer_norm`.

use gemel_core::TensorDesc;
use gemel_core::ops::layer_norm::LayerNorm;

use super::{Builder, Case, Tag, thin};
use crate::fill::{Class, Fill};

/// Row lengths around powers of two, primes, and those of models.
const SIZES: [usize; 14] = [1, 2, 7, 31, 32, 33, 64, 100, 127, 128, 257, 768, 1757, 4096];

/// The table.
pub(super) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for (i, &n) in SIZES.iter().enumerate() {
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
            let n_tokens = [1, 3, 8, 65][(i + j) % 4];
            // Views of the last columns, every third time.
            let wide = n + [0, 0, 5][(i + j) % 3];
            let x = TensorDesc::f32([n_tokens, wide])
                .narrow(1, wide - n, n)
                .expect("the columns exist");
            cases.push(
                Builder::new(LayerNorm::NAME)
                    .param("n_tokens", n_tokens)
                    .param("d_model", n)
                    .param("class", class)
                    .input("x", x, Fill::Floats(class))
                    .input("w", TensorDesc::f32([n]), Fill::Floats(Class::N))
                    .input("b", TensorDesc::f32([n]), Fill::Floats(Class::U))
                    .tag_if(n == 128 && j < 2, Tag::Quick)
                    .build(LayerNorm { eps: 1e-6 }),
            );
        }
    }
    let mut cases = thin(cases, 4, 30);
    // The quick set also runs with a grid that is too small for so many rows.
    for (n_tokens, n) in [(70_000, 3), (2, 65_537)] {
        cases.push(
            Builder::new(LayerNorm::NAME)
                .param("n_tokens", n_tokens)
                .param("d_model", n)
                .param("class", "U")
                .input("x", TensorDesc::f32([n_tokens, n]), Fill::Floats(Class::U))
                .input("w", TensorDesc::f32([n]), Fill::Floats(Class::U))
                .input("b", TensorDesc::f32([n]), Fill::Floats(Class::U))
                .tag(Tag::Reduced)
                .build(LayerNorm { eps: 1e-6 }),
        );
    }
    cases
}
