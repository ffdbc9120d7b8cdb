//! Cases of `add_rms_norm`.

use gemel_core::TensorDesc;
use gemel_core::ops::add_rms_norm::AddRmsNorm;

use super::{Builder, Case, Tag, thin};
use crate::fill::{Class, Fill};

/// The table.
pub(super) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for (i, n) in [1, 3, 31, 32, 64, 100, 255, 576, 640, 1757, 4096]
        .into_iter()
        .enumerate()
    {
        for (j, class) in [Class::N, Class::H, Class::Z, Class::S]
            .into_iter()
            .enumerate()
        {
            let n_tokens = [1, 2, 7, 33][(i + j) % 4];
            let x = TensorDesc::f32([n_tokens, n]);
            cases.push(
                Builder::new(AddRmsNorm::NAME)
                    .param("n_tokens", n_tokens)
                    .param("d_model", n)
                    .param("class", class)
                    .input("a", x.clone(), Fill::Floats(class))
                    .input("b", x, Fill::Floats(class))
                    .input("w", TensorDesc::f32([n]), Fill::Floats(Class::N))
                    .build(AddRmsNorm { eps: 1e-6 }),
            );
        }
    }
    for (n_tokens, n, wide) in [(3, 64, 80), (5, 33, 66), (1, 128, 256)] {
        let part = |start: usize| {
            TensorDesc::f32([n_tokens, wide])
                .narrow(1, start, n)
                .expect("the columns exist")
        };
        cases.push(
            Builder::new(AddRmsNorm::NAME)
                .param("n_tokens", n_tokens)
                .param("d_model", format!("{n}of{wide}"))
                .input("a", part(wide - n), Fill::Floats(Class::N))
                .input("b", part(0), Fill::Floats(Class::H))
                .input("w", TensorDesc::f32([n]), Fill::Floats(Class::N))
                .tag(Tag::Quick)
                .build(AddRmsNorm { eps: 1e-5 }),
        );
    }
    thin(cases, 3, 10)
}
