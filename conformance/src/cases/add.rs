//! Cases of `add`, and the shapes that `mul` shares.

use gemel_core::TensorDesc;
use gemel_core::ops::add::Add;

use super::{Builder, Case, Tag, thin};
use crate::fill::{Class, Fill};

/// Two operands, the second repeated into the first.
#[derive(Clone, Debug)]
pub(super) struct Pair {
    pub(super) name: String,
    pub(super) a: TensorDesc,
    pub(super) b: TensorDesc,
    pub(super) class: Class,
}

fn join(shape: &[usize]) -> String {
    shape
        .iter()
        .map(ToString::to_string)
        .collect::<Vec<_>>()
        .join("x")
}

/// Broadcast on every axis, strided views, odd sizes.
pub(super) fn pairs() -> Vec<Pair> {
    let shapes: [(&[usize], &[usize]); 36] = [
        (&[1], &[1]),
        (&[7], &[7]),
        (&[1000], &[1000]),
        (&[4097], &[4097]),
        (&[3, 5], &[3, 5]),
        (&[3, 5], &[5]),
        (&[3, 5], &[1]),
        (&[3, 5], &[3, 1]),
        (&[3, 5], &[1, 5]),
        (&[4, 6], &[2, 6]),
        (&[4, 6], &[4, 2]),
        (&[4, 6], &[2, 3]),
        (&[8, 64], &[64]),
        (&[8, 65], &[65]),
        (&[9, 127], &[9, 1]),
        (&[16, 640], &[640]),
        (&[17, 640], &[17, 640]),
        (&[33, 576], &[1, 576]),
        (&[2, 3, 4], &[2, 3, 4]),
        (&[2, 3, 4], &[3, 4]),
        (&[2, 3, 4], &[4]),
        (&[2, 3, 4], &[2, 1, 4]),
        (&[2, 3, 4], &[2, 1, 1]),
        (&[2, 3, 4], &[1, 3, 1]),
        (&[2, 3, 4], &[2, 3, 1]),
        (&[4, 6, 8], &[2, 3, 4]),
        (&[4, 6, 8], &[2, 6, 8]),
        (&[4, 6, 8], &[4, 3, 8]),
        (&[4, 6, 8], &[4, 6, 2]),
        (&[5, 4, 33], &[33]),
        (&[5, 4, 33], &[4, 33]),
        (&[5, 4, 128], &[5, 1, 128]),
        (&[7, 3, 64], &[1, 3, 64]),
        (&[2, 2, 3, 8], &[2, 2, 3, 8]),
        (&[2, 2, 3, 8], &[8]),
        (&[65_537, 2], &[2]),
    ];
    let mut pairs = Vec::new();
    for (i, (a, b)) in shapes.into_iter().enumerate() {
        for j in 0..2 {
            let class = [Class::N, Class::H, Class::X, Class::Z, Class::V][(i + 2 * j) % 5];
            pairs.push(Pair {
                name: format!("{}+{}", join(a), join(b)),
                a: TensorDesc::f32(a),
                b: TensorDesc::f32(b),
                class,
            });
        }
    }
    for (tokens, heads, kept, n) in [(3, 4, 2, 8), (5, 6, 1, 33), (2, 3, 2, 64), (4, 9, 3, 5)] {
        let view = |first: usize| {
            TensorDesc::f32([tokens, heads, n])
                .narrow(1, first, kept)
                .expect("the heads exist")
        };
        for (name, b) in [
            ("view", view(0)),
            ("whole", TensorDesc::f32([tokens, kept, n])),
            ("row", TensorDesc::f32([n])),
            ("token", TensorDesc::f32([tokens, 1, n])),
            ("scalar", TensorDesc::f32([1])),
            ("column", TensorDesc::f32([tokens, kept, 1])),
        ] {
            pairs.push(Pair {
                name: format!("{tokens}x{kept}of{heads}x{n}+{name}"),
                a: view(heads - kept),
                b,
                class: Class::N,
            });
        }
    }
    pairs
}

/// The table.
pub(super) fn cases() -> Vec<Case> {
    let cases = pairs()
        .into_iter()
        .map(|pair| {
            Builder::new(Add::NAME)
                .param("shape", &pair.name)
                .param("class", pair.class)
                .input("a", pair.a, Fill::Floats(pair.class))
                .input("b", pair.b, Fill::Floats(pair.class))
                .build(Add)
        })
        .collect();
    let mut cases = thin(cases, 4, 10);
    for n_tokens in [1, 512] {
        cases.push(
            Builder::new(Add::NAME)
                .param("bench", format!("{n_tokens}x4096"))
                .input(
                    "a",
                    TensorDesc::f32([n_tokens, 4096]),
                    Fill::Floats(Class::N),
                )
                .input(
                    "b",
                    TensorDesc::f32([n_tokens, 4096]),
                    Fill::Floats(Class::N),
                )
                .tag(Tag::Bench)
                .build(Add),
        );
    }
    cases
}
