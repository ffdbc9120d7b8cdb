//! Cases of `rope`.

use gemel_core::TensorDesc;
use gemel_core::ops::rope::{FINE, Rope, RopeMode};

use super::{Builder, Case, Tag, thin};
use crate::fill::{Class, Fill, Rng};

/// Cosines and sines of the positions of the table's rows, base 10,000.
pub(super) fn table(desc: &TensorDesc) -> Vec<f32> {
    let [rows, pairs, _] = desc.shape[..] else {
        panic!("a table has three axes, but this is {desc}");
    };
    (0..rows)
        .map(|row| if row < FINE { row } else { (row - FINE) * FINE })
        .flat_map(|position| {
            (0..pairs).map(move |j| position as f64 * 1e4_f64.powf(-(j as f64) / pairs as f64))
        })
        .flat_map(|angle| [angle.cos() as f32, angle.sin() as f32])
        .collect()
}

fn sections(mode: RopeMode) -> String {
    let sections = mode.sections().unwrap_or_default();
    sections.map(|n| n.to_string()).join(":")
}

/// The table.
pub(super) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    // Sections: those of models, with pairs on the last axis, wrapping, one only.
    let modes = [
        RopeMode::Norm,
        RopeMode::Neox,
        RopeMode::Mrope([3, 2, 2, 1]),
        RopeMode::Imrope([11, 11, 10, 0]),
        RopeMode::Imrope([1, 1, 1, 1]),
        RopeMode::Mrope([0, 4, 0, 3]),
        RopeMode::Imrope([2, 1, 1, 0]),
    ];
    for (m, mode) in modes.into_iter().enumerate() {
        for (i, (head_dim, n_rot)) in [
            (2, 2),
            (8, 4),
            (33, 32),
            (40, 40),
            (64, 64),
            (64, 16),
            (80, 80),
            (96, 64),
            (100, 50),
            (128, 128),
            (128, 64),
            (192, 64),
            (256, 256),
            (256, 64),
            (5, 0),
        ]
        .into_iter()
        .enumerate()
        {
            for (j, n_tokens) in [1, 2, 3, 5, 8, 16, 17, 33].into_iter().enumerate() {
                for k in 0..2 {
                    if m >= 2 && (i + j + k + m) % 3 != 0 {
                        continue;
                    }
                    let (n_heads, kept) =
                        [(1, 1), (4, 4), (6, 3), (5, 1), (8, 2)][(i + j + 2 * k) % 5];
                    let class = [Class::N, Class::H, Class::X, Class::Z][(i + j + k) % 4];
                    // Within the fine rows, across coarse ones, far out; padding; beyond the table.
                    let limit = [200, 3000, 131_072][(i + j + k) % 3];
                    let n_coarse = usize::div_ceil(limit, FINE);
                    let axes = if m >= 2 && (i + k) % 2 == 0 { 4 } else { 1 };
                    let key = format!("rope {i} {j} {k}");
                    let mut rng = Rng::new(&key, 0, 97);
                    let first = rng.below(limit - n_tokens.min(100));
                    let positions: Vec<i32> = (0..axes * n_tokens)
                        .map(|at| match (at % n_tokens, at / n_tokens) {
                            (2, _) => -1,
                            (4, _) => (n_coarse * FINE) as i32,
                            // Gaps and equal positions.
                            (t, 0) => (first + t - t % 3) as i32,
                            _ => rng.below(limit) as i32,
                        })
                        .collect();
                    let shape = if axes == 4 {
                        vec![4, n_tokens]
                    } else {
                        vec![n_tokens]
                    };
                    let x = TensorDesc::f32([n_tokens, n_heads, head_dim])
                        .narrow(1, n_heads - kept, kept)
                        .expect("the heads exist");
                    cases.push(
                        Builder::new(Rope::NAME)
                            .param("mode", mode.name())
                            .param("sections", sections(mode))
                            .param("axes", axes)
                            .param("n_tokens", n_tokens)
                            .param("heads", format!("{kept}of{n_heads}"))
                            .param("head_dim", head_dim)
                            .param("n_rot", n_rot)
                            .param("limit", limit)
                            .param("class", class)
                            .variant(mode.name())
                            .input("x", x, Fill::Floats(class))
                            .input("pos", TensorDesc::i32(shape), Fill::Ints(positions.into()))
                            .input(
                                "table",
                                TensorDesc::f32([FINE + n_coarse, n_rot / 2, 2]),
                                Fill::Table(table),
                            )
                            .tag_if(n_tokens == 5 && n_rot == 64 && k == 1, Tag::Quick)
                            .build(Rope { mode, n_rot }),
                    );
                }
            }
        }
        // Positions up to 2^20.
        let positions = [0, 255, 256, 65_535, 65_536, 524_287, 1_048_575];
        cases.push(
            Builder::new(Rope::NAME)
                .param("mode", mode.name())
                .param("sections", sections(mode))
                .param("positions", "up to 2^20")
                .variant(mode.name())
                .input("x", TensorDesc::f32([7, 2, 16]), Fill::Floats(Class::N))
                .input("pos", TensorDesc::i32([7]), Fill::Ints(positions.into()))
                .input(
                    "table",
                    TensorDesc::f32([FINE + 4096, 8, 2]),
                    Fill::Table(table),
                )
                .build(Rope { mode, n_rot: 16 }),
        );
    }
    let mut cases = thin(cases, 8, 40);
    for n_tokens in [1, 512] {
        cases.push(
            Builder::new(Rope::NAME)
                .param("bench", format!("{n_tokens}x32x128"))
                .variant("neox")
                .input(
                    "x",
                    TensorDesc::f32([n_tokens, 32, 128]),
                    Fill::Floats(Class::N),
                )
                .input("pos", TensorDesc::i32([n_tokens]), Fill::Range(0, 4000))
                .input(
                    "table",
                    TensorDesc::f32([FINE + 16, 64, 2]),
                    Fill::Table(table),
                )
                .tag(Tag::Bench)
                .build(Rope {
                    mode: RopeMode::Neox,
                    n_rot: 128,
                }),
        );
    }
    cases
}
