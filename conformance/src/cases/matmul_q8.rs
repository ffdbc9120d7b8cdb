//! Cases of `matmul_q8`: the shapes of `matmul`, with activations in blocks of signed bytes.

use std::sync::Arc;

use gemel_core::ops::matmul_q8::{MatmulQ8, TYPES};
use gemel_core::{DType, TensorDesc};

use super::matmul::{BENCH_TYPES, MODEL_SHAPES, shapes};
use super::{Builder, Case, Finish, Tag, thin};
use crate::fill::{Class, Fill};

/// Makes random words and scales what `quantize_q8` could have written: bytes in -127 ..= 127, `s = (d, d sum q)`.
fn finish() -> Finish {
    Arc::new(|storages: &mut [Vec<u8>]| {
        let [q, s, ..] = storages else {
            unreachable!("q and s come first");
        };
        for byte in q.iter_mut() {
            *byte = if *byte == 0x80 { 0x81 } else { *byte };
        }
        for (block, pair) in q.chunks_exact(32).zip(s.chunks_exact_mut(8)) {
            let sum: i32 = block
                .iter()
                .map(|&byte| i32::from(byte.cast_signed()))
                .sum();
            let d = f32::from_le_bytes([pair[0], pair[1], pair[2], pair[3]]).abs() / 64.0;
            pair[..4].copy_from_slice(&d.to_le_bytes());
            pair[4..].copy_from_slice(&(d * sum as f32).to_le_bytes());
        }
    })
}

fn case(
    builder: Builder,
    n_tokens: usize,
    w: TensorDesc,
    class: Class,
    scale: f32,
    bias: bool,
) -> Case {
    let (d_out, d_in) = (w.shape[0], w.last());
    let mut builder = builder
        .variant(w.dtype.name())
        .input(
            "q",
            TensorDesc::new(DType::U32, [n_tokens, d_in / 4]),
            Fill::Bits,
        )
        .input(
            "s",
            TensorDesc::f32([n_tokens, d_in / 32, 2]),
            Fill::Floats(class),
        )
        .weight("w", w, Class::N);
    if bias {
        builder = builder.input("bias", TensorDesc::f32([d_out]), Fill::Floats(Class::N));
    }
    Case {
        finish: Some(finish()),
        ..builder.build(MatmulQ8 { scale })
    }
}

/// The table.
pub(super) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for (turn, &dtype) in TYPES.iter().enumerate() {
        for (i, shape) in shapes(turn + 1).into_iter().enumerate() {
            let d_in = shape.blocks * dtype.block_elems();
            let class = [Class::N, Class::U, Class::H, Class::Z][(i + turn) % 4];
            let builder = shape
                .params(Builder::new(MatmulQ8::NAME).param("type", dtype))
                .param("d_in", d_in)
                .param("class", class)
                .tag_if(i % 17 == 4, Tag::Reduced)
                .tag_if(
                    i == 7 && matches!(dtype, DType::Q8_0 | DType::Q4_1 | DType::Q6_K),
                    Tag::Quick,
                );
            let w = shape.weight(dtype, d_in);
            cases.push(case(
                builder,
                shape.n_tokens,
                w,
                class,
                shape.scale,
                shape.bias,
            ));
        }
    }
    let mut cases = thin(cases, 16, 400);
    for dtype in BENCH_TYPES
        .into_iter()
        .filter(|dtype| TYPES.contains(dtype))
    {
        for (name, d_out, d_in) in MODEL_SHAPES {
            for n_tokens in [1, 8, 64] {
                if d_in % dtype.block_elems() != 0 {
                    continue;
                }
                let builder = Builder::new(MatmulQ8::NAME)
                    .param("bench", name)
                    .param("type", dtype)
                    .param("n_tokens", n_tokens)
                    .tag(Tag::Bench);
                cases.push(case(
                    builder,
                    n_tokens,
                    TensorDesc::new(dtype, [d_out, d_in]),
                    Class::N,
                    1.0,
                    false,
                ));
            }
        }
    }
    cases
}
