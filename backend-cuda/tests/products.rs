//! Matrix products on the emulated device: a row of up to 16 tokens has the same bits whatever other rows the step has.
//!
//! Needs a C++ compiler, as `device.rs` does.

#![allow(clippy::unwrap_used, reason = "the helpers belong to tests")]

use std::sync::Arc;

use gemel_core::DType;
use gemel_core::device::{Device, submit};
use gemel_core::format::tile8::Tile8;
use gemel_core::graph::{Graph, Tensor};
use gemel_core::ops::matmul::{FEW_TOKENS, Factors, Matmul};
use gemel_core::ops::matmul_q8::MatmulQ8;
use gemel_core::ops::quantize_q8::QuantizeQ8;
use gemel_core::plan::{self, Arena};
use gemel_core::tensor::{Layout, TensorDesc};
use gemel_cuda::emulated::open_emulated;
use gemel_cuda::{CudaDevice, CudaOptions};

/// Bytes that look random and depend on the seed alone.
fn noise(n: usize, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    (0..n)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 40) as u8
        })
        .collect()
}

/// Random blocks whose f16 scales are small numbers.
fn weight(device: &dyn Device, dtype: DType, d_out: usize, d_in: usize) -> Tensor {
    let tiles = Tile8::new(dtype, d_out, d_in);
    let mut rows = noise(d_out * tiles.row_bytes(), 5);
    let (scales, from): (&[usize], usize) = match dtype {
        DType::Q4_K => (&[0, 2], 144),
        DType::Q6_K => (&[208], 210),
        DType::Q8_0 => (&[0], 34),
        _ => (&[0], 2),
    };
    for block in rows.chunks_exact_mut(from) {
        for &at in scales {
            // 2^-8 .. 2^-4 and a sign.
            block[at + 1] = (block[at + 1] & 0x80) | 0x1c | (block[at + 1] & 0x0c);
        }
    }
    let mut packed = vec![0; tiles.packed_bytes()];
    for (rows, group) in rows
        .chunks(8 * tiles.row_bytes())
        .zip(packed.chunks_exact_mut(tiles.group_bytes()))
    {
        tiles.pack_rows(rows, group);
    }
    let buffer = device.alloc(packed.len() as u64, "weight").unwrap();
    device.write(&buffer, 0, &packed).unwrap();
    Tensor {
        desc: TensorDesc::weight(dtype, [d_out, d_in], Layout::Tile8),
        buffers: vec![buffer],
    }
}

/// The bits of the product of the first `n_tokens` rows of x.
fn product(device: &CudaDevice, w: &Tensor, x: &[f32], n_tokens: usize, integer: bool) -> Vec<u32> {
    let d_in = w.desc.last();
    let bytes: Vec<u8> = x[..n_tokens * d_in]
        .iter()
        .flat_map(|v| v.to_le_bytes())
        .collect();
    let buffer = device.alloc(bytes.len() as u64, "x").unwrap();
    device.write(&buffer, 0, &bytes).unwrap();
    let x = Tensor {
        desc: TensorDesc::f32([n_tokens, d_in]),
        buffers: vec![buffer],
    };
    let mut graph = Graph::new();
    let (x, w) = (graph.bind("x", &x), graph.bind("w", w));
    let y = if integer {
        let parts = graph
            .apply_multi("quantize", QuantizeQ8, &[x], &[])
            .unwrap();
        graph.apply("product", MatmulQ8 { scale: 1.0 }, &[parts[0], parts[1], w])
    } else {
        graph.apply(
            "product",
            Matmul {
                scale: 1.0,
                factors: Factors::Exact,
            },
            &[x, w],
        )
    };
    graph.output(y.unwrap());
    let plan = plan::compile("product", graph, device, &mut Arena::default()).unwrap();
    let recording = device.record(&Arc::new(plan)).unwrap();
    let pending = submit(device, &recording, &[], recording.plan.readback.as_ref()).unwrap();
    let bytes = device.finish(pending).unwrap();
    let output = &recording.plan.outputs[0];
    bytes[output.offset..output.offset + output.desc.n_bytes()]
        .chunks_exact(4)
        .map(|word| u32::from_le_bytes(word.try_into().unwrap()))
        .collect()
}

#[test]
fn a_row_of_few_tokens_has_the_same_bits_beside_any_others() {
    let device = open_emulated(&CudaOptions::new("cuda-emulated")).unwrap();
    // 8 and 16 warps, two groups of four runs for some and one for others, and rows that end inside a fragment.
    for (dtype, d_in) in [
        (DType::Q8_0, 32 * 37),
        (DType::Q8_0, 32 * 69),
        (DType::Q4_K, 256 * 5),
        (DType::Q6_K, 256 * 5),
        (DType::F16, 1000),
    ] {
        let d_out = 19;
        let w = weight(&device, dtype, d_out, d_in);
        let x: Vec<f32> = noise(4 * FEW_TOKENS * d_in, 7)
            .chunks_exact(4)
            .map(|b| (f32::from(b[0]) - 127.5) * f32::from(1 + b[1] % 4) / 64.0)
            .collect();
        for integer in [false, true] {
            if integer && !dtype.is_block() {
                continue;
            }
            let all = product(&device, &w, &x, FEW_TOKENS, integer);
            assert!(
                all.iter().any(|&bits| bits != all[0]),
                "{dtype}: the product is no constant"
            );
            for n_tokens in [1, 3, 5, 9] {
                let some = product(&device, &w, &x, n_tokens, integer);
                assert_eq!(
                    some,
                    all[..n_tokens * d_out],
                    "{dtype}, {n_tokens} tokens, integer products: {integer}"
                );
            }
        }
    }
}
