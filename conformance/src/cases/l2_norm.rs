//! Cases of `l2_norm`.

use gemel_core::TensorDesc;
use gemel_core::ops::l2_norm::{L2Kind, L2Norm};

use super::{Builder, Case, Tag, thin};
use crate::fill::{Class, Fill};

/// The table.
pub(super) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for kind in [L2Kind::Clamp, L2Kind::Add] {
        for (i, n) in [1, 2, 7, 16, 31, 33, 64, 100, 128, 256, 257, 640, 1757]
            .into_iter()
            .enumerate()
        {
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
                // Some heads of each token of a wider tensor, as q and k inside qkv.
                let n_tokens = [1, 3, 8, 33][(i + j) % 4];
                let (n_heads, kept) = [(1, 1), (6, 3), (4, 1), (5, 2)][(i + 2 * j) % 4];
                let x = TensorDesc::f32([n_tokens, n_heads, n])
                    .narrow(1, n_heads - kept, kept)
                    .expect("the heads exist");
                let eps = if class == Class::V { 0.0 } else { 1e-6 };
                cases.push(
                    Builder::new(L2Norm::NAME)
                        .param("kind", kind.name())
                        .param("n_tokens", n_tokens)
                        .param("heads", format!("{kept}of{n_heads}"))
                        .param("n", n)
                        .param("class", class)
                        .variant(kind.name())
                        .input("x", x, Fill::Floats(class))
                        .tag_if(n == 33 && n_tokens == 3, Tag::Quick)
                        .build(L2Norm { kind, eps }),
                );
            }
        }
    }
    let mut cases = thin(cases, 4, 12);
    for n_tokens in [1, 512] {
        cases.push(
            Builder::new(L2Norm::NAME)
                .param("bench", format!("{n_tokens}x32x128"))
                .variant(L2Kind::Add.name())
                .input(
                    "x",
                    TensorDesc::f32([n_tokens, 32, 128]),
                    Fill::Floats(Class::N),
                )
                .tag(Tag::Bench)
                .build(L2Norm {
                    kind: L2Kind::Add,
                    eps: 1e-6,
                }),
        );
    }
    cases
}
