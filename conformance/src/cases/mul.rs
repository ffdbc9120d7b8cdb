//! Cases of `mul`: the shapes of `add`.

use gemel_core::ops::mul::Mul;

use super::add::pairs;
use super::{Builder, Case, thin};
use crate::fill::Fill;

/// The table.
pub(super) fn cases() -> Vec<Case> {
    let cases = pairs()
        .into_iter()
        .map(|pair| {
            Builder::new(Mul::NAME)
                .param("shape", &pair.name)
                .param("class", pair.class)
                .input("a", pair.a, Fill::Floats(pair.class))
                .input("b", pair.b, Fill::Floats(pair.class))
                .build(Mul)
        })
        .collect();
    thin(cases, 4, 10)
}
