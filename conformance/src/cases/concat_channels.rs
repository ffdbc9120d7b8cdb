//! Cases of `concat_channels`: parts of heads side by side, and rows that all heads share.

use gemel_core::TensorDesc;
use gemel_core::ops::concat_channels::ConcatChannels;

use super::{Builder, Case, Tag, thin};
use crate::fill::{Class, Fill};

/// How an operand lies in its storage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum View {
    /// Contiguous.
    Plain,
    /// The last columns of wider rows.
    Columns,
    /// The last heads of more, and their last columns.
    Heads,
    /// One row a token for all heads.
    Shared,
}

impl View {
    const ALL: [Self; 4] = [Self::Plain, Self::Columns, Self::Heads, Self::Shared];

    fn desc(self, [n_tokens, n_heads, n]: [usize; 3]) -> TensorDesc {
        let view = match self {
            Self::Plain => Some(TensorDesc::f32([n_tokens, n_heads, n])),
            Self::Columns => TensorDesc::f32([n_tokens, n_heads, n + 5]).narrow(2, 5, n),
            Self::Heads => TensorDesc::f32([n_tokens, n_heads + 2, n + 3])
                .narrow(1, 2, n_heads)
                .and_then(|x| x.narrow(2, 3, n)),
            Self::Shared => TensorDesc::f32([n_tokens, n]).repeat(1, n_heads),
        };
        view.expect("the columns exist")
    }
}

/// The table.
pub(super) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    let widths = [
        (1, 1),
        (1, 7),
        (5, 1),
        (32, 32),
        (33, 31),
        (64, 64),
        (127, 2),
        (3, 129),
        (512, 64),
        (0, 4),
        (4, 0),
    ];
    for (i, (n_a, n_b)) in widths.into_iter().enumerate() {
        for (j, (n_tokens, n_heads)) in [(1, 1), (1, 4), (3, 1), (5, 3), (17, 8), (2, 128)]
            .into_iter()
            .enumerate()
        {
            let at = i + 3 * j;
            let (a, b) = (View::ALL[at % 4], View::ALL[(at / 4 + i) % 4]);
            let class = [Class::N, Class::S, Class::V, Class::D][at % 4];
            let builder = Builder::new(ConcatChannels::NAME)
                .param("n_tokens", n_tokens)
                .param("n_heads", n_heads)
                .param("n_a", n_a)
                .param("n_b", n_b)
                .param("a", format!("{a:?}").to_lowercase())
                .param("b", format!("{b:?}").to_lowercase())
                .param("class", class)
                .input("a", a.desc([n_tokens, n_heads, n_a]), Fill::Floats(class))
                .input("b", b.desc([n_tokens, n_heads, n_b]), Fill::Floats(class))
                .tag_if(at % 9 == 4, Tag::Quick);
            cases.push(builder.build(ConcatChannels));
        }
    }
    let mut cases = thin(cases, 4, 20);
    for n_tokens in [1, 512] {
        cases.push(
            Builder::new(ConcatChannels::NAME)
                .param("bench", format!("{n_tokens}x128x576"))
                .input(
                    "a",
                    TensorDesc::f32([n_tokens, 128, 512]),
                    Fill::Floats(Class::N),
                )
                .input(
                    "b",
                    TensorDesc::f32([n_tokens, 128, 64]),
                    Fill::Floats(Class::N),
                )
                .tag(Tag::Bench)
                .build(ConcatChannels),
        );
    }
    cases
}
