//! Cases of `kv_write`.

use std::sync::Arc;

use gemel_core::dtype::CACHE_TYPES;
use gemel_core::ops::kv_write::KvWrite;
use gemel_core::{DType, PAGE, TensorDesc};

use super::scatter_rows::slots;
use super::{Builder, Case, Tag, thin};
use crate::fill::{Class, Fill, Rng};

/// The table.
pub(super) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for &dtype in CACHE_TYPES {
        for (i, head_dim) in [40, 64, 80, 96, 112, 128, 192, 256, 512, 576]
            .into_iter()
            .enumerate()
        {
            for j in 0..9 {
                let n_tokens: usize = [1, 2, 3, 5, 8, 17, 33, 64, 7][j];
                let n_heads: usize =
                    [1, 2, 3, 8][(i + j) % 4].min(1 + 2000 / (head_dim * n_tokens));
                let n_pages = 1 + (n_tokens + 40).div_ceil(PAGE);
                let class = [
                    Class::N,
                    Class::U,
                    Class::H,
                    Class::Z,
                    Class::C,
                    Class::L,
                    Class::S,
                ][(i + j) % 7];
                let holes = [0, 3, 5][(i + 2 * j) % 3];
                let key = format!("kv {dtype} {head_dim} {j}");
                let slots = slots(&key, n_tokens, n_pages * PAGE, holes);
                // Some cells hold values already, the others poison; none but the listed ones may change.
                let mut rng = Rng::new(&key, 0, 96);
                let live: Arc<[bool]> = (0..n_pages * PAGE).map(|_| rng.below(2) == 0).collect();
                let strided = (i + j) % 2 == 1;
                let heads = if strided { n_heads + 2 } else { n_heads };
                let x = TensorDesc::f32([n_tokens, heads, head_dim])
                    .narrow(1, heads - n_heads, n_heads)
                    .expect("the heads exist");
                cases.push(
                    Builder::new(KvWrite::NAME)
                        .param("type", dtype)
                        .param("n_tokens", n_tokens)
                        .param("heads", format!("{n_heads}of{heads}"))
                        .param("head_dim", head_dim)
                        .param("holes", holes)
                        .param("class", class)
                        .variant(dtype.name())
                        .input("x", x, Fill::Floats(class))
                        .input(
                            "slots",
                            TensorDesc::i32([n_tokens]),
                            Fill::Ints(slots.into()),
                        )
                        .inout(
                            "cache",
                            TensorDesc::pages(dtype, n_pages, n_heads, head_dim),
                            Fill::Pages(Class::N, live),
                        )
                        .tag_if(head_dim == 64 && (j == 1 || j == 4), Tag::Reduced)
                        .tag_if(head_dim == 80 && j == 4, Tag::Quick)
                        .build(KvWrite),
                );
            }
        }
    }
    let mut cases = thin(cases, 8, 100);
    for dtype in [DType::F16, DType::Q8_0] {
        let n_tokens = 512;
        cases.push(
            Builder::new(KvWrite::NAME)
                .param("bench", format!("{n_tokens}x8x128"))
                .param("type", dtype)
                .variant(dtype.name())
                .input(
                    "x",
                    TensorDesc::f32([n_tokens, 8, 128]),
                    Fill::Floats(Class::N),
                )
                .input(
                    "slots",
                    TensorDesc::i32([n_tokens]),
                    Fill::Ints((0..n_tokens as i32).collect()),
                )
                .inout(
                    "cache",
                    TensorDesc::pages(dtype, 8, 8, 128),
                    Fill::Floats(Class::N),
                )
                .tag(Tag::Bench)
                .build(KvWrite),
        );
    }
    cases
}
