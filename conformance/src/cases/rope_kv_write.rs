//! Cases of `rope_kv_write`: every cache type with head sizes, rotations and views as models have them.

use gemel_core::dtype::CACHE_TYPES;
use gemel_core::ops::rope::{FINE, RopeMode};
use gemel_core::ops::rope_kv_write::RopeKvWrite;
use gemel_core::{DType, PAGE, TensorDesc};

use super::scatter_rows::slots;
use super::{Builder, Case, Tag, rope, thin};
use crate::fill::{Class, Fill, Rng};

/// The table.
pub(super) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for (d, &dtype) in CACHE_TYPES.iter().enumerate() {
        // Heads of keys and of values, rotated channels.
        for (i, (k_dim, v_dim, n_rot)) in [
            (64, 64, 64),
            (128, 128, 128),
            (80, 80, 20),
            (40, 96, 40),
            (256, 256, 64),
            (192, 128, 64),
            (96, 64, 96),
        ]
        .into_iter()
        .enumerate()
        {
            for (j, n_tokens) in [1, 2, 3, 7, 16, 33].into_iter().enumerate() {
                let turn = i + 2 * j + d;
                let (n_heads, n_kv_heads) = [(4, 2), (1, 1), (6, 3), (5, 1), (8, 2)][turn % 5];
                let mode = [
                    RopeMode::Neox,
                    RopeMode::Norm,
                    RopeMode::Imrope([2, 1, 1, 0]),
                    RopeMode::Neox,
                    RopeMode::Mrope([3, 2, 2, 1]),
                ][(turn / 2) % 5];
                let class = [Class::N, Class::H, Class::X, Class::Z, Class::C][(i + j) % 5];
                let limit = [200, 3000, 131_072][turn % 3];
                let n_coarse = usize::div_ceil(limit, FINE);
                let key = format!("rope_kv {dtype} {i} {j}");
                let mut rng = Rng::new(&key, 0, 98);
                let first = rng.below(limit - n_tokens);
                let positions: Vec<i32> = (0..n_tokens)
                    .map(|t| match t {
                        2 => -1,
                        4 => (n_coarse * FINE) as i32,
                        _ => (first + t) as i32,
                    })
                    .collect();
                let n_pages = 1 + (n_tokens + 40).div_ceil(PAGE);
                let holes = [0, 2, 1][turn % 3];
                let slots = slots(&key, n_tokens, n_pages * PAGE, holes);
                let live: Vec<bool> = (0..n_pages * PAGE).map(|_| rng.below(2) == 0).collect();
                // Queries, keys and values lie side by side, or each of their own.
                let heads = n_heads + n_kv_heads;
                let is_view = turn % 2 == 1;
                let extra = if is_view { n_kv_heads } else { 0 };
                let x = TensorDesc::f32([n_tokens, heads + extra, k_dim])
                    .narrow(1, 0, heads)
                    .expect("the heads exist");
                let v = TensorDesc::f32([n_tokens, n_kv_heads + extra, v_dim])
                    .narrow(1, extra, n_kv_heads)
                    .expect("the heads exist");
                cases.push(
                    Builder::new(RopeKvWrite::NAME)
                        .param("type", dtype)
                        .param("mode", mode.name())
                        .param("n_tokens", n_tokens)
                        .param("heads", format!("{n_heads}:{n_kv_heads}"))
                        .param("k_dim", k_dim)
                        .param("v_dim", v_dim)
                        .param("n_rot", n_rot)
                        .param("view", u8::from(is_view))
                        .param("holes", holes)
                        .param("class", class)
                        .variant(dtype.name())
                        .input("x", x, Fill::Floats(class))
                        .input("v", v, Fill::Floats(class))
                        .input(
                            "pos",
                            TensorDesc::i32([n_tokens]),
                            Fill::Ints(positions.into()),
                        )
                        .input(
                            "table",
                            TensorDesc::f32([FINE + n_coarse, n_rot / 2, 2]),
                            Fill::Table(rope::table),
                        )
                        .input(
                            "slots",
                            TensorDesc::i32([n_tokens]),
                            Fill::Ints(slots.into()),
                        )
                        .inout(
                            "k_cache",
                            TensorDesc::pages(dtype, n_pages, n_kv_heads, k_dim),
                            Fill::Pages(Class::N, live.clone().into()),
                        )
                        .inout(
                            "v_cache",
                            TensorDesc::pages(dtype, n_pages, n_kv_heads, v_dim),
                            Fill::Pages(Class::N, live.into()),
                        )
                        .tag_if(i < 3 && (j == 1 || j == 4), Tag::Reduced)
                        .tag_if(i == 2 && j == 4, Tag::Quick)
                        .build(RopeKvWrite {
                            mode,
                            n_rot,
                            n_heads,
                        }),
                );
            }
        }
    }
    let mut cases = thin(cases, 8, 100);
    for n_tokens in [1, 512] {
        cases.push(
            Builder::new(RopeKvWrite::NAME)
                .param("bench", format!("{n_tokens}x32:8x128"))
                .variant("f16")
                .input(
                    "x",
                    TensorDesc::f32([n_tokens, 40, 128]),
                    Fill::Floats(Class::N),
                )
                .input(
                    "v",
                    TensorDesc::f32([n_tokens, 8, 128]),
                    Fill::Floats(Class::N),
                )
                .input("pos", TensorDesc::i32([n_tokens]), Fill::Range(0, 4000))
                .input(
                    "table",
                    TensorDesc::f32([FINE + 16, 64, 2]),
                    Fill::Table(rope::table),
                )
                .input(
                    "slots",
                    TensorDesc::i32([n_tokens]),
                    Fill::Ints((0..n_tokens as i32).collect()),
                )
                .inout(
                    "k_cache",
                    TensorDesc::pages(DType::F16, 8, 8, 128),
                    Fill::Floats(Class::N),
                )
                .inout(
                    "v_cache",
                    TensorDesc::pages(DType::F16, 8, 8, 128),
                    Fill::Floats(Class::N),
                )
                .tag(Tag::Bench)
                .build(RopeKvWrite {
                    mode: RopeMode::Neox,
                    n_rot: 128,
                    n_heads: 32,
                }),
        );
    }
    cases
}
