//! Cases of `softmax_stats`, and the rows that `argmax` shares.

use gemel_core::TensorDesc;
use gemel_core::ops::softmax_stats::SoftmaxStats;

use super::{Builder, Case, Tag, thin};
use crate::fill::{Class, Fill};

/// Rows of logits: around slices, odd, of real vocabularies, strided.
pub(super) fn rows() -> Vec<(String, TensorDesc)> {
    let mut out: Vec<(String, TensorDesc)> = [
        (1, 1),
        (3, 2),
        (5, 31),
        (2, 32),
        (4, 33),
        (1, 1000),
        (2, 4095),
        (2, 4096),
        (2, 4097),
        (3, 8191),
        (2, 8193),
        (1, 49_152),
        (1, 65_537),
        (1, 151_936),
    ]
    .into_iter()
    .map(|(rows, n)| (format!("{rows}x{n}"), TensorDesc::f32([rows, n])))
    .collect();
    for (rows, n, wide) in [(4, 100, 160), (3, 5000, 5003), (2, 7, 9)] {
        let x = TensorDesc::f32([rows, wide])
            .narrow(1, wide - n, n)
            .expect("the columns exist");
        out.push((format!("{rows}x{n}of{wide}"), x));
    }
    out
}

/// The table.
pub(super) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for (name, x) in rows() {
        for class in [Class::N, Class::H, Class::C, Class::L, Class::Z] {
            cases.push(
                Builder::new(SoftmaxStats::NAME)
                    .param("shape", &name)
                    .param("class", class)
                    .input("x", x.clone(), Fill::Floats(class))
                    .tag_if(name == "2x8193" && class == Class::H, Tag::Quick)
                    .build(SoftmaxStats),
            );
        }
    }
    thin(cases, 4, 20)
}
