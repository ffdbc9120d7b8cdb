//! Cases of `scale`.

use gemel_core::TensorDesc;
use gemel_core::ops::scale::Scale;

use super::{Builder, Case, thin};
use crate::fill::{Class, Fill};

/// Operands of one-operand elementwise ops: contiguous, strided, long.
pub(super) fn operands() -> Vec<(String, TensorDesc)> {
    let mut out: Vec<(String, TensorDesc)> = [1, 7, 33, 256, 1000, 4097]
        .into_iter()
        .map(|n| (n.to_string(), TensorDesc::f32([n])))
        .collect();
    for (rows, n, wide) in [
        (3, 5, 5),
        (3, 5, 9),
        (17, 64, 100),
        (2, 1, 3),
        (40_000, 2, 2),
    ] {
        let x = TensorDesc::f32([rows, wide])
            .narrow(1, wide - n, n)
            .expect("the columns exist");
        out.push((format!("{rows}x{n}of{wide}"), x));
    }
    for (tokens, heads, kept, n) in [(3, 4, 2, 33), (5, 2, 2, 64)] {
        let x = TensorDesc::f32([tokens, heads, n])
            .narrow(1, heads - kept, kept)
            .expect("the heads exist");
        out.push((format!("{tokens}x{kept}of{heads}x{n}"), x));
    }
    out
}

/// The table.
pub(super) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for (name, x) in operands() {
        for (scale, bias, class) in [
            (0.125, 0.0, Class::N),
            (-3.7, 1.5, Class::H),
            (0.0, 2.0, Class::V),
            (1e-3, -0.5, Class::X),
        ] {
            cases.push(
                Builder::new(Scale::NAME)
                    .param("shape", &name)
                    .param("scale", scale)
                    .param("bias", bias)
                    .param("class", class)
                    .input("x", x.clone(), Fill::Floats(class))
                    .build(Scale { scale, bias }),
            );
        }
    }
    thin(cases, 3, 4)
}
