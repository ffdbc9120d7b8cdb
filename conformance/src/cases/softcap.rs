//! Cases of `softcap`.

use gemel_core::ops::softcap::Softcap;

use super::scale::operands;
use super::{Builder, Case, thin};
use crate::fill::{Class, Fill};

/// The table.
pub(super) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for (name, x) in operands() {
        for (cap, class) in [
            (30.0, Class::N),
            (30.0, Class::L),
            (0.5, Class::H),
            (50.0, Class::V),
            (1.0, Class::S),
            (30.0, Class::Z),
        ] {
            cases.push(
                Builder::new(Softcap::NAME)
                    .param("shape", &name)
                    .param("cap", cap)
                    .param("class", class)
                    .input("x", x.clone(), Fill::Floats(class))
                    .build(Softcap { cap }),
            );
        }
    }
    thin(cases, 3, 10)
}
