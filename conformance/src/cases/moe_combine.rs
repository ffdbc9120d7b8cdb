//! Cases of `moe_combine`.

use gemel_core::TensorDesc;
use gemel_core::ops::moe_combine::{MoeCombine, SharedExpert};

use super::{Builder, Case, Tag, thin};
use crate::fill::{Class, Fill};

/// The table.
pub(super) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for (s, shared) in SharedExpert::ALL.into_iter().enumerate() {
        for residual in [false, true] {
            let op = MoeCombine { shared, residual };
            for (i, d_model) in [1, 5, 31, 32, 64, 511, 513, 2048].into_iter().enumerate() {
                for (j, k) in [1, 2, 3, 8, 10, 32].into_iter().enumerate() {
                    let turn = i + j + s + usize::from(residual);
                    let n_tokens = [1, 2, 5, 17][turn % 4].min(1 + 20_000 / (k * d_model));
                    let class = [Class::N, Class::X, Class::H, Class::Z, Class::S][turn % 5];
                    cases.push(
                        case(&op, n_tokens, k, d_model, class, turn % 3 == 1)
                            .tag_if(d_model == 513 && k == 3, Tag::Quick)
                            .build(op.clone()),
                    );
                }
            }
        }
    }
    let mut cases = thin(cases, 6, 40);
    for n_tokens in [1, 512] {
        let op = MoeCombine {
            shared: SharedExpert::Gated,
            residual: true,
        };
        cases.push(
            case(&op, n_tokens, 8, 2048, Class::N, false)
                .param("bench", n_tokens)
                .tag(Tag::Bench)
                .build(op),
        );
    }
    cases
}

/// The operands; as `views`, those that may be are columns of wider rows.
fn case(
    op: &MoeCombine,
    n_tokens: usize,
    k: usize,
    d_model: usize,
    class: Class,
    views: bool,
) -> Builder {
    let row = |n: usize| {
        let wide = n + if views { 7 } else { 0 };
        TensorDesc::f32([n_tokens, wide])
            .narrow(1, wide - n, n)
            .expect("the columns exist")
    };
    let mut builder = Builder::new(MoeCombine::NAME)
        .param("n_tokens", n_tokens)
        .param("k", k)
        .param("d_model", d_model)
        .param("shared", op.shared.name())
        .param("residual", u8::from(op.residual))
        .param("class", class)
        .param("views", u8::from(views))
        .variant(format!("shared {}", op.shared.name()))
        .input(
            "x",
            TensorDesc::f32([n_tokens, k, d_model]),
            Fill::Floats(class),
        )
        .input(
            "weights",
            TensorDesc::f32([n_tokens, k]),
            Fill::Floats(Class::U),
        );
    if op.shared != SharedExpert::None {
        builder = builder.input("shared", row(d_model), Fill::Floats(class));
    }
    if op.shared == SharedExpert::Gated {
        // From one end of the logistic function to the other.
        builder = builder.input("gate", row(1), Fill::Floats(Class::H));
    }
    if op.residual {
        builder = builder.input("residual", row(d_model), Fill::Floats(class));
    }
    builder
}
