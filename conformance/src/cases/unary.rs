//! Cases of `unary`.

use gemel_core::ops::unary::{Unary, UnaryKind};

use super::scale::operands;
use super::{Builder, Case, thin};
use crate::fill::{Class, Fill};

/// The table.
pub(super) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for kind in UnaryKind::ALL {
        for (name, x) in operands() {
            for class in [
                Class::N,
                Class::H,
                Class::L,
                Class::V,
                Class::S,
                Class::Z,
                Class::D,
            ] {
                cases.push(
                    Builder::new(Unary::NAME)
                        .param("kind", kind.name())
                        .param("shape", &name)
                        .param("class", class)
                        .variant(kind.name())
                        .input("x", x.clone(), Fill::Floats(class))
                        .build(Unary { kind }),
                );
            }
        }
    }
    thin(cases, 6, 20)
}
