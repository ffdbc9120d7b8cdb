//! Cases of `matmul`, and the shapes that `matmul_q8` shares.

use gemel_core::dtype::WEIGHT_TYPES;
use gemel_core::ops::matmul::{Factors, Matmul};
use gemel_core::{DType, TensorDesc};

use super::{Builder, Case, Tag, thin};
use crate::fill::{Class, Fill};

/// Numbers of tokens: every small one, and one below and above each tile.
pub(super) const TOKENS: [usize; 17] =
    [1, 2, 3, 4, 5, 6, 7, 8, 9, 16, 17, 32, 33, 64, 65, 128, 129];

/// A product: tokens, outputs, blocks of the shared length, and what is special about it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shape {
    pub(super) n_tokens: usize,
    pub(super) d_out: usize,
    pub(super) blocks: usize,
    pub(super) bias: bool,
    pub(super) windows: bool,
    pub(super) scale: f32,
}

/// Three products for each number of tokens: one, two and seven blocks long, odd widths, with and without bias,
/// windows and a scale. `turn` shifts which goes with which, so that types differ.
pub(super) fn shapes(turn: usize) -> Vec<Shape> {
    let mut shapes = Vec::new();
    for (i, n_tokens) in TOKENS.into_iter().enumerate() {
        for j in 0..3 {
            let k = i + 5 * j + turn;
            // Many tokens meet few outputs, so that a case stays cheap.
            let d_out = if n_tokens > 17 {
                [9, 13, 33][k % 3]
            } else {
                [1, 7, 8, 33, 67, 40, 129][k % 7]
            };
            shapes.push(Shape {
                n_tokens,
                d_out,
                blocks: if n_tokens > 64 {
                    [1, 2, 2][j]
                } else {
                    [1, 2, 7][j]
                },
                bias: k % 2 == 1,
                windows: d_out > 16 && k.is_multiple_of(3),
                scale: if k % 5 == 4 { 0.37 } else { 1.0 },
            });
        }
    }
    shapes
}

impl Shape {
    /// The weight matrix, in windows of 16 rows where the shape has them.
    pub(super) fn weight(self, dtype: DType, d_in: usize) -> TensorDesc {
        let mut w = TensorDesc::new(dtype, [self.d_out, d_in]);
        w.window_rows = if self.windows { 16 } else { 0 };
        w
    }

    /// Names the parameters that are set.
    pub(super) fn params(self, builder: Builder) -> Builder {
        let mut builder = builder
            .param("n_tokens", self.n_tokens)
            .param("d_out", self.d_out);
        if self.bias {
            builder = builder.param("bias", 1);
        }
        if self.windows {
            builder = builder.param("windows", 16);
        }
        if self.scale.to_bits() != 1.0_f32.to_bits() {
            builder = builder.param("scale", self.scale);
        }
        builder
    }
}

/// Products as models have them: (name, `d_out`, `d_in`).
pub(super) const MODEL_SHAPES: [(&str, usize, usize); 2] =
    [("ffn_up", 2048, 2048), ("attn_q", 1024, 640)];

/// Types that benchmarks run with.
pub(super) const BENCH_TYPES: [DType; 6] = [
    DType::Q8_0,
    DType::Q4_0,
    DType::Q4_K,
    DType::Q6_K,
    DType::IQ4_XS,
    DType::F16,
];

/// Products whose factors may be bf16: every type, around the tiles of tokens, sums in parts, with and without bias.
fn rounded() -> Vec<Case> {
    let mut cases = Vec::new();
    for (turn, &dtype) in WEIGHT_TYPES.iter().enumerate() {
        for (i, n_tokens) in [17, 64, 65, 129, 16].into_iter().enumerate() {
            let k = turn + i;
            let block = dtype.block_elems();
            let shape = Shape {
                n_tokens,
                d_out: [33, 129, 8, 67][k % 4],
                blocks: 0,
                bias: k % 2 == 1,
                windows: k % 4 == 1,
                scale: if k % 3 == 2 { 0.37 } else { 1.0 },
            };
            // A long sum is divided between blocks.
            let d_in = match (block, k % 3) {
                (_, 0) => 1024,
                (1, 1) => 77,
                _ => 2 * block,
            };
            let class = [Class::N, Class::U, Class::H, Class::Z, Class::S][k % 5];
            let builder = Builder::new(Matmul::NAME)
                .param("factors", "bf16")
                .param("type", dtype);
            let mut builder = shape
                .params(builder)
                .param("d_in", d_in)
                .param("class", class)
                .variant(dtype.name())
                .input("x", TensorDesc::f32([n_tokens, d_in]), Fill::Floats(class))
                .weight("w", shape.weight(dtype, d_in), Class::N);
            if shape.bias {
                builder = builder.input(
                    "bias",
                    TensorDesc::f32([shape.d_out]),
                    Fill::Floats(Class::N),
                );
            }
            cases.push(
                builder
                    .tag_if(k % 5 == 0, Tag::Reduced)
                    .tag_if(
                        n_tokens == 65 && matches!(dtype, DType::Q4_K | DType::F16),
                        Tag::Quick,
                    )
                    .build(Matmul {
                        scale: shape.scale,
                        factors: Factors::Bf16,
                    }),
            );
        }
    }
    cases
}

/// The table.
pub(super) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for (turn, &dtype) in WEIGHT_TYPES.iter().enumerate() {
        for (i, shape) in shapes(turn).into_iter().enumerate() {
            let block = dtype.block_elems();
            let d_in = match (block, shape.blocks) {
                // Any length is a whole number of these; odd ones are cases of their own below.
                (1, blocks) => [4, 36, 64, 100, 256, 576][(i + blocks) % 6],
                (_, blocks) => blocks * block,
            };
            let class =
                [Class::N, Class::U, Class::H, Class::X, Class::Z, Class::S][(i + turn) % 6];
            // Every third x is a view of wider rows, at an offset, still in groups of four floats.
            let strided = (i + turn) % 3 == 2;
            let (wide, skip) = if strided { (d_in + 12, 8) } else { (d_in, 0) };
            let x = TensorDesc::f32([shape.n_tokens, wide])
                .narrow(1, skip, d_in)
                .expect("the columns exist");
            let builder = Builder::new(Matmul::NAME).param("type", dtype);
            let mut builder = shape
                .params(builder)
                .param("d_in", d_in)
                .param("class", class)
                .variant(dtype.name());
            if strided {
                builder = builder.param("x", "view");
            }
            builder = builder.input("x", x, Fill::Floats(class)).weight(
                "w",
                shape.weight(dtype, d_in),
                Class::N,
            );
            if shape.bias {
                builder = builder.input(
                    "bias",
                    TensorDesc::f32([shape.d_out]),
                    Fill::Floats(Class::N),
                );
            }
            let quick = matches!(
                dtype,
                DType::F32
                    | DType::F16
                    | DType::Q8_0
                    | DType::Q4_0
                    | DType::Q4_K
                    | DType::Q6_K
                    | DType::IQ3_S
                    | DType::MXFP4
            );
            cases.push(
                builder
                    .tag_if(i % 17 == 4, Tag::Reduced)
                    .tag_if(quick && i == 1, Tag::Quick)
                    .build(Matmul {
                        scale: shape.scale,
                        factors: Factors::Exact,
                    }),
            );
        }
    }
    // Lengths and strides that are no multiple of four floats.
    for dtype in [DType::F32, DType::F16, DType::BF16, DType::Q8_0] {
        for (i, (n_tokens, d_out, d_in)) in [
            (1, 5, 1),
            (2, 9, 3),
            (5, 17, 33),
            (1, 8, 127),
            (9, 3, 31),
            (33, 12, 65),
            (7, 70, 5),
        ]
        .into_iter()
        .enumerate()
        {
            let d_in = if dtype.is_block() {
                32 * (1 + d_in / 32)
            } else {
                d_in
            };
            let wide = d_in + [0, 1, 3][i % 3] + usize::from(dtype.is_block());
            let x = TensorDesc::f32([n_tokens, wide])
                .narrow(1, wide - d_in, d_in)
                .expect("the columns exist");
            cases.push(
                Builder::new(Matmul::NAME)
                    .param("type", dtype)
                    .param("n_tokens", n_tokens)
                    .param("d_out", d_out)
                    .param("d_in", format!("{d_in}of{wide}"))
                    .variant(dtype.name())
                    .input("x", x, Fill::Floats(Class::N))
                    .weight("w", TensorDesc::new(dtype, [d_out, d_in]), Class::N)
                    .tag_if(i == 2, Tag::Reduced)
                    .tag_if(i == 2 && dtype == DType::F16, Tag::Quick)
                    .build(Matmul {
                        scale: 1.0,
                        factors: Factors::Exact,
                    }),
            );
        }
    }
    // Heads as rows: a tensor of rank three whose outer axes do not collapse.
    for dtype in [DType::F32, DType::F16, DType::Q4_0] {
        let x = TensorDesc::f32([5, 6, 64])
            .narrow(1, 2, 3)
            .expect("the heads exist");
        cases.push(
            Builder::new(Matmul::NAME)
                .param("type", dtype)
                .param("x", "5x3of6x64")
                .param("d_out", 20)
                .variant(dtype.name())
                .input("x", x, Fill::Floats(Class::N))
                .weight("w", TensorDesc::new(dtype, [20, 64]), Class::N)
                .build(Matmul {
                    scale: 1.0,
                    factors: Factors::Exact,
                }),
        );
    }
    let mut cases = thin(cases, 16, 400);
    cases.extend(rounded());
    for dtype in BENCH_TYPES {
        for (name, d_out, d_in) in MODEL_SHAPES {
            for n_tokens in [1, 8, 64] {
                if d_in % dtype.block_elems() != 0 {
                    continue;
                }
                cases.push(
                    Builder::new(Matmul::NAME)
                        .param("bench", name)
                        .param("type", dtype)
                        .param("n_tokens", n_tokens)
                        .variant(dtype.name())
                        .input(
                            "x",
                            TensorDesc::f32([n_tokens, d_in]),
                            Fill::Floats(Class::N),
                        )
                        .weight("w", TensorDesc::new(dtype, [d_out, d_in]), Class::N)
                        .tag(Tag::Bench)
                        .build(Matmul {
                            scale: 1.0,
                            factors: Factors::Exact,
                        }),
                );
            }
        }
    }
    cases
}
