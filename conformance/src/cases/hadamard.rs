//! Cases of `hadamard`.

use gemel_core::TensorDesc;
use gemel_core::ops::hadamard::Hadamard;

use super::{Builder, Case, Tag, thin};
use crate::fill::{Class, Fill};

/// The table.
pub(super) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for (i, block) in [2, 4, 8, 16, 32, 64, 128, 256, 512, 1024]
        .into_iter()
        .enumerate()
    {
        for (j, class) in [Class::N, Class::H, Class::Z, Class::S, Class::X, Class::V]
            .into_iter()
            .enumerate()
        {
            for l in 0..2 {
                let n_tokens = [1, 3, 8, 17][(i + j + 2 * l) % 4];
                let n_runs = [1, 2, 3, 5][(i + j + l) % 4];
                // Some heads of each token of a wider tensor, every second time.
                let (heads, kept) = [(1, 1), (5, 2)][l];
                let x = TensorDesc::f32([n_tokens, heads, n_runs * block])
                    .narrow(1, heads - kept, kept)
                    .expect("the heads exist");
                cases.push(
                    Builder::new(Hadamard::NAME)
                        .param("block", block)
                        .param("n_tokens", n_tokens)
                        .param("heads", format!("{kept}of{heads}"))
                        .param("n_runs", n_runs)
                        .param("class", class)
                        .input("x", x, Fill::Floats(class))
                        .tag_if(block == 128 && j == 1, Tag::Quick)
                        .build(Hadamard { block }),
                );
            }
        }
    }
    cases.push(
        Builder::new(Hadamard::NAME)
            .param("block", 2)
            .param("n_tokens", 70_000)
            .input("x", TensorDesc::f32([70_000, 2]), Fill::Floats(Class::U))
            .build(Hadamard { block: 2 }),
    );
    let mut cases = thin(cases, 4, 30);
    cases.push(
        Builder::new(Hadamard::NAME)
            .param("bench", "512x64x128")
            .input("x", TensorDesc::f32([512, 64, 128]), Fill::Floats(Class::N))
            .tag(Tag::Bench)
            .build(Hadamard { block: 128 }),
    );
    cases
}
