//! `kv_write` with the encoders of [`crate::format`].

use super::RefArgs;
use crate::PAGE;
use crate::ops::kv_write::KvWrite;

/// `cache[slots[t]] = encode(x[t])`, head by head.
pub fn kv_write(_: &KvWrite, args: &mut RefArgs<'_>) {
    let x = args.inputs[0];
    let slots = args.inputs[1].to_i32();
    let cache = &mut args.inouts[0];
    let (n_pages, n_heads) = (cache.desc.shape[0], cache.desc.shape[1]);
    for (t, slot) in slots.into_iter().enumerate() {
        let Ok(slot) = usize::try_from(slot) else {
            continue;
        };
        if slot >= n_pages * PAGE {
            continue;
        }
        for h in 0..n_heads {
            let row = (slot / PAGE * n_heads + h) * PAGE + slot % PAGE;
            cache.set_cell(row, &x.row_vec(t * n_heads + h));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{RefTensor, RefTensorMut};
    use super::*;
    use crate::dtype::DType;
    use crate::op::Op;
    use crate::tensor::TensorDesc;

    fn write(cache: &TensorDesc, bytes: &mut [u8], x: &TensorDesc, values: &[f32], slots: &[i32]) {
        let slots_desc = TensorDesc::i32([slots.len()]);
        KvWrite.outputs(&[x, &slots_desc], &[cache]).unwrap();
        let x_bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        let slot_bytes: Vec<u8> = slots.iter().flat_map(|v| v.to_le_bytes()).collect();
        let mut args = RefArgs {
            inputs: vec![
                RefTensor {
                    desc: x,
                    bytes: &x_bytes,
                },
                RefTensor {
                    desc: &slots_desc,
                    bytes: &slot_bytes,
                },
            ],
            inouts: vec![RefTensorMut::new(cache, bytes)],
            outputs: Vec::new(),
        };
        kv_write(&KvWrite, &mut args);
    }

    #[test]
    fn heads_go_to_their_own_cells_and_the_rest_stays() {
        // Two pages, two heads, two channels: a row is 8 bytes, a page of a head 512.
        let cache = TensorDesc::pages(DType::F32, 2, 2, 2);
        let mut bytes = vec![0xAA; cache.n_bytes()];
        let x = TensorDesc::f32([4, 2, 2]);
        let values: Vec<f32> = (1..=16).map(|v| v as f32).collect();
        // Skipped, cell 3 of page 1, beyond the cache, cell 0 of page 0.
        write(&cache, &mut bytes, &x, &values, &[-1, 67, 128, 0]);
        let mut expected = vec![0xAA; cache.n_bytes()];
        for (row, pair) in [
            (2 * 64 + 3, [5.0_f32, 6.0]),
            (3 * 64 + 3, [7.0, 8.0]),
            (0, [13.0, 14.0]),
            (64, [15.0, 16.0]),
        ] {
            expected[row * 8..row * 8 + 4].copy_from_slice(&pair[0].to_le_bytes());
            expected[row * 8 + 4..row * 8 + 8].copy_from_slice(&pair[1].to_le_bytes());
        }
        assert_eq!(bytes, expected, "listed cells and nothing else");
    }

    #[test]
    fn blocks_are_padded_and_never_hold_nan() {
        // 40 channels: two blocks of q8_0, the second with 24 zeros.
        let cache = TensorDesc::pages(DType::Q8_0, 1, 1, 40);
        let mut bytes = vec![0xAA; cache.n_bytes()];
        let x = TensorDesc::f32([1, 1, 40]);
        let mut values = vec![0.0; 40];
        values[0] = 127.0;
        values[1] = -64.0;
        values[2] = f32::NAN;
        values[32] = 254.0;
        write(&cache, &mut bytes, &x, &values, &[0]);
        let mut row = vec![0; 68];
        row[..4].copy_from_slice(&[0x00, 0x3C, 0x00, 0x40]); // f16 1.0, 2.0
        row[4..7].copy_from_slice(&[127, 192, 0]);
        row[36] = 127;
        assert_eq!(bytes[..68], row, "scales, then codes");
        assert!(bytes[68..].iter().all(|&b| b == 0xAA), "the rest stays");
    }

    #[test]
    fn shapes_that_do_not_match_the_cache_are_refused() {
        let cache = TensorDesc::pages(DType::F16, 2, 2, 64);
        let slots = TensorDesc::i32([3]);
        let x = TensorDesc::f32([3, 1, 64]);
        let error = KvWrite.outputs(&[&x, &slots], &[&cache]).unwrap_err();
        assert!(error.to_string().contains("[n_tokens, 2, 64]"), "{error}");
        let rows = TensorDesc::new(DType::F16, [2, 2, 64, 64]);
        let x = TensorDesc::f32([3, 2, 64]);
        assert!(
            KvWrite.outputs(&[&x, &slots], &[&rows]).is_err(),
            "not pages"
        );
    }
}
