//! `matmul_q8` in f64.

use super::matmul::product;
use super::{RefArgs, RefTensor};
use crate::dtype::DType;
use crate::format;
use crate::ops::matmul_q8::MatmulQ8;

/// `y = scale * (d q) w^T + bias`.
pub fn matmul_q8(op: &MatmulQ8, args: &mut RefArgs<'_>) {
    let [q, s, w] = [args.inputs[0], args.inputs[1], args.inputs[2]];
    let bias = args.inputs.get(3).map(|bias| bias.row_vec(0));
    let scales = s.to_f32();
    let x: Vec<f64> = (0..q.desc.rows())
        .flat_map(|t| q.words(t))
        .flat_map(|word| word.to_le_bytes().map(u8::cast_signed))
        .enumerate()
        .map(|(i, code)| f64::from(code) * f64::from(scales[i / 32 * 2]))
        .collect();
    // Scale and minimum meet the activations apart, so they count apart.
    let magnitudes = |o: usize, row: &mut [f64]| {
        for (w, minimum) in row.iter_mut().zip(minima(w, o)) {
            let minimum = f64::from(minimum);
            *w += 2.0 * minimum.abs();
        }
    };
    let has_minimum = code_bytes(w.desc.dtype).is_some();
    product(
        op.scale,
        &x,
        w,
        bias.as_deref(),
        has_minimum.then_some(&magnitudes),
        &mut args.outputs[0],
    );
}

/// Where the codes of a block begin, for types whose values are `a * code + b`.
fn code_bytes(dtype: DType) -> Option<usize> {
    match dtype {
        DType::Q4_1 | DType::Q5_1 => Some(4),
        DType::Q4_K | DType::Q5_K => Some(16),
        _ => None,
    }
}

/// The minimum `b` of every element of row `o`: what the row decodes to when all codes are 0.
fn minima(w: RefTensor<'_>, o: usize) -> Vec<f32> {
    let dtype = w.desc.dtype;
    let n = w.desc.last();
    let n_bytes = n / dtype.block_elems() * dtype.block_bytes();
    let mut blocks = w.bytes[o * n_bytes..(o + 1) * n_bytes].to_vec();
    if let Some(codes) = code_bytes(dtype) {
        for block in blocks.chunks_exact_mut(dtype.block_bytes()) {
            block[codes..].fill(0);
        }
    }
    let mut minima = vec![0.0; n];
    format::decode_row(dtype, &blocks, &mut minima);
    minima
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::op::Op;
    use crate::reference::RefOutput;
    use crate::tensor::{Layout, TensorDesc};

    #[test]
    fn scale_and_minimum_meet_the_activations_apart() {
        // One row of q4_1: d = 0.5, m = -4, codes 6 in the low and 10 in the high half.
        let mut block = Vec::new();
        for f in [0.5, -4.0] {
            block.extend(half::f16::from_f32(f).to_le_bytes());
        }
        block.extend([0xa6; 16]);
        // Activations 0.25 * 2 in the low half, 0.25 * -1 in the high half.
        let q: Vec<u8> = [2_i8, -1]
            .iter()
            .flat_map(|&c| [c.cast_unsigned(); 16])
            .collect();
        let s: Vec<u8> = [0.25_f32, 0.25 * 16.0]
            .iter()
            .flat_map(|v| v.to_le_bytes())
            .collect();
        let descs = [
            TensorDesc::new(DType::U32, [1, 8]),
            TensorDesc::f32([1, 1, 2]),
            TensorDesc::weight(DType::Q4_1, [1, 32], Layout::Rows),
        ];
        let op = MatmulQ8 { scale: 1.0 };
        let refs: Vec<&TensorDesc> = descs.iter().collect();
        let out = op.outputs(&refs, &[]).unwrap();
        let data = [&q, &s, &block];
        let mut args = RefArgs {
            inputs: descs
                .iter()
                .zip(data)
                .map(|(desc, bytes)| RefTensor { desc, bytes })
                .collect(),
            inouts: Vec::new(),
            outputs: vec![RefOutput::new(&out[0])],
        };
        op.reference(&mut args);
        // Weights -1 and 1: 16 * (-1 * 0.5) + 16 * (1 * -0.25).
        assert_eq!(args.outputs[0].values, [-12.0], "product");
        // (1 + 2 * 4) * 16 * (0.5 + 0.25)
        assert_eq!(
            args.outputs[0].magnitudes,
            [108.0],
            "the minimum counts apart"
        );
    }
}
