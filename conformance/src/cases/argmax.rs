//! Cases of `argmax`.

use gemel_core::TensorDesc;
use gemel_core::ops::argmax::Argmax;

use super::softmax_stats::rows;
use super::{Builder, Case, Tag, thin};
use crate::fill::{Class, Fill};

/// The table. Class C has ties within rows and rows of one value.
pub(super) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for (name, x) in rows() {
        for class in [Class::N, Class::C, Class::Z, Class::V, Class::D] {
            cases.push(
                Builder::new(Argmax::NAME)
                    .param("shape", &name)
                    .param("class", class)
                    .input("x", x.clone(), Fill::Floats(class))
                    .tag_if(name == "4x100of160" && class == Class::C, Tag::Quick)
                    .build(Argmax),
            );
        }
    }
    let mut cases = thin(cases, 4, 20);
    cases.push(
        Builder::new(Argmax::NAME)
            .param("bench", "1x262144")
            .input("x", TensorDesc::f32([1, 262_144]), Fill::Floats(Class::N))
            .tag(Tag::Bench)
            .build(Argmax),
    );
    cases
}
