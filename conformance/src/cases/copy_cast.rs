//! Cases of `copy_cast`.

use gemel_core::ops::copy_cast::CopyCast;
use gemel_core::{DType, TensorDesc};

use super::{Builder, Case, Tag, thin};
use crate::fill::{Class, Fill};

const TYPES: [DType; 4] = [DType::F32, DType::F16, DType::BF16, DType::I32];

/// The table.
pub(super) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for from in TYPES {
        for to in TYPES {
            let case = |shape: &str, class: &str, x: TensorDesc, fill: Fill| {
                Builder::new(CopyCast::NAME)
                    .param("from", from)
                    .param("to", to)
                    .param("shape", shape)
                    .param("class", class)
                    .variant(format!("{from} -> {to}"))
                    .input("x", x, fill)
            };
            let fills = |i: usize| -> (String, Fill) {
                if from == DType::I32 {
                    let (lo, hi) = [(-3, 3), (-70_000, 70_000), (i32::MIN, i32::MAX)][i % 3];
                    return (format!("{lo}..{hi}"), Fill::Range(lo, hi));
                }
                // f16 holds no 1e15: it gets numbers that round to it.
                let classes = [
                    Class::N,
                    Class::L,
                    Class::H,
                    Class::Z,
                    Class::S,
                    Class::V,
                    Class::D,
                ];
                let class = classes[i % if from == DType::F16 { 5 } else { 7 }];
                (class.to_string(), Fill::Floats(class))
            };
            let sizes = [
                1, 2, 3, 31, 32, 33, 63, 64, 100, 127, 128, 129, 255, 257, 511, 513, 1000,
            ];
            for (i, n) in sizes.into_iter().enumerate() {
                let rows = [1, 2, 3, 5, 7][i % 5];
                for j in 0..2 {
                    let (class, fill) = fills(i + 2 * j);
                    let x = TensorDesc::new(from, [rows, n]);
                    cases.push(
                        case(&format!("{rows}x{n}"), &class, x, fill)
                            .tag_if(n == 129 && j == 0, Tag::Quick)
                            .build(CopyCast { to }),
                    );
                }
            }
            for (i, (tokens, heads, kept, n)) in
                [(3, 4, 2, 33), (2, 3, 1, 65), (4, 5, 3, 8), (1, 7, 6, 5)]
                    .into_iter()
                    .enumerate()
            {
                let (class, fill) = fills(i);
                let x = TensorDesc::new(from, [tokens, heads, n])
                    .narrow(1, heads - kept, kept)
                    .expect("the heads exist");
                let shape = format!("{tokens}x{kept}of{heads}x{n}");
                cases.push(case(&shape, &class, x, fill).build(CopyCast { to }));
            }
            for (i, (rows, n, wide)) in [(5, 7, 12), (3, 64, 100), (6, 1, 3)]
                .into_iter()
                .enumerate()
            {
                let (class, fill) = fills(i + 1);
                let x = TensorDesc::new(from, [rows, wide])
                    .narrow(1, wide - n, n)
                    .expect("the columns exist");
                let shape = format!("{rows}x{n}of{wide}");
                cases.push(case(&shape, &class, x, fill).build(CopyCast { to }));
            }
        }
    }
    let x = TensorDesc::f32([70_001, 3]);
    cases.push(
        Builder::new(CopyCast::NAME)
            .param("from", "f32")
            .param("to", "f16")
            .param("shape", "70001x3")
            .variant("f32 -> f16")
            .input("x", x, Fill::Floats(Class::N))
            .build(CopyCast { to: DType::F16 }),
    );
    let mut cases = thin(cases, 8, 40);
    cases.push(
        Builder::new(CopyCast::NAME)
            .param("bench", "f32 -> f16 4M")
            .variant("f32 -> f16")
            .input("x", TensorDesc::f32([512, 8192]), Fill::Floats(Class::N))
            .tag(Tag::Bench)
            .build(CopyCast { to: DType::F16 }),
    );
    cases
}
