//! Cases of `quantize_q8`.

use gemel_core::TensorDesc;
use gemel_core::ops::quantize_q8::QuantizeQ8;

use super::{Builder, Case, Tag, thin};
use crate::fill::{Class, Fill};

/// The table.
pub(super) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for (i, d_in) in [32, 64, 96, 256, 288, 576, 640, 2048]
        .into_iter()
        .enumerate()
    {
        for (j, class) in [Class::N, Class::H, Class::Z, Class::C, Class::L, Class::S]
            .into_iter()
            .enumerate()
        {
            let n_tokens = [1, 2, 5, 17][(i + j) % 4];
            let wide = if (i + j) % 3 == 1 { d_in + 20 } else { d_in };
            let x = TensorDesc::f32([n_tokens, wide])
                .narrow(1, wide - d_in, d_in)
                .expect("the columns exist");
            cases.push(
                Builder::new(QuantizeQ8::NAME)
                    .param("n_tokens", n_tokens)
                    .param("d_in", format!("{d_in}of{wide}"))
                    .param("class", class)
                    .input("x", x, Fill::Floats(class))
                    .tag_if(d_in == 96 && class == Class::H, Tag::Quick)
                    .build(QuantizeQ8),
            );
        }
    }
    thin(cases, 3, 10)
}
