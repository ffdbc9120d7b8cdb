//! Cases of `glu`.

use gemel_core::TensorDesc;
use gemel_core::ops::glu::{Glu, GluKind};

use super::{Builder, Case, Tag, thin};
use crate::fill::{Class, Fill};

/// The table.
pub(super) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for kind in GluKind::ALL {
        let base = |shape: String, class: Class| {
            Builder::new(Glu::NAME)
                .param("kind", kind.name())
                .param("shape", shape)
                .param("class", class)
                .variant(kind.name())
        };
        for (i, n) in [1, 5, 32, 33, 128, 257, 640, 1536, 4097]
            .into_iter()
            .enumerate()
        {
            for (j, class) in [Class::N, Class::H, Class::L, Class::V, Class::Z, Class::X]
                .into_iter()
                .enumerate()
            {
                let rows = [1, 3, 8, 17][(i + j) % 4];
                let gate = TensorDesc::f32([rows, n]);
                // A huge gate times a huge factor would leave f32.
                let up = if class == Class::V { Class::N } else { class };
                cases.push(
                    base(format!("{rows}x{n}"), class)
                        .input("gate", gate.clone(), Fill::Floats(class))
                        .input("up", gate, Fill::Floats(up))
                        .build(Glu { kind }),
                );
            }
        }
        for (i, (rows, n)) in [(1, 64), (5, 33), (9, 256)].into_iter().enumerate() {
            // Halves of one tensor, in both orders.
            let both = TensorDesc::f32([rows, 2 * n]);
            let (first, second) = if i == 1 { (n, 0) } else { (0, n) };
            let half = |start: usize| both.narrow(1, start, n).expect("two halves");
            cases.push(
                base(format!("{rows}x{n}of{}", 2 * n), Class::H)
                    .input("gate", half(first), Fill::Floats(Class::H))
                    .input("up", half(second), Fill::Floats(Class::N))
                    .tag_if(i == 1, Tag::Quick)
                    .build(Glu { kind }),
            );
        }
    }
    let mut cases = thin(cases, 6, 20);
    for n_tokens in [1, 512] {
        cases.push(
            Builder::new(Glu::NAME)
                .param("bench", format!("{n_tokens}x8192"))
                .variant("swiglu")
                .input(
                    "gate",
                    TensorDesc::f32([n_tokens, 8192]),
                    Fill::Floats(Class::N),
                )
                .input(
                    "up",
                    TensorDesc::f32([n_tokens, 8192]),
                    Fill::Floats(Class::N),
                )
                .tag(Tag::Bench)
                .build(Glu {
                    kind: GluKind::Swiglu,
                }),
        );
    }
    cases
}
