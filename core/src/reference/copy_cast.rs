//! `copy_cast`: conversions are exact, so results are already rounded to their type.

use half::{bf16, f16};

use super::RefArgs;
use crate::dtype::DType;
use crate::ops::copy_cast::CopyCast;

/// `y = convert(x)`, row by row.
pub fn copy_cast(op: &CopyCast, args: &mut RefArgs<'_>) {
    let x = args.inputs[0];
    let y = &mut args.outputs[0];
    let n = x.desc.last();
    for row in 0..x.desc.rows() {
        let values: Vec<f64> = if x.desc.dtype == DType::I32 {
            x.words(row)
                .map(|word| f64::from(word.cast_signed()))
                .collect()
        } else {
            x.row_vec(row).into_iter().map(f64::from).collect()
        };
        for (i, value) in values.into_iter().enumerate() {
            y.put(row * n + i, convert(value, op.to));
        }
    }
}

/// A value that is an f32 or an i32, in another plain type.
fn convert(value: f64, to: DType) -> f64 {
    match to {
        DType::F16 => f64::from(f16::from_f32(value as f32)),
        DType::BF16 => f64::from(bf16::from_f32(value as f32)),
        // `as` truncates, saturates and turns NaN into 0.
        DType::I32 => f64::from(value as i32),
        _ => f64::from(value as f32),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::op::{Caps, Op, Operands};
    use crate::reference::testing::{Output, f32s, i32s, run};
    use crate::tensor::{Layout, TensorDesc};

    fn cast(x: TensorDesc, bytes: &Vec<u8>, to: DType) -> Output {
        run(&CopyCast { to }, &[(x, bytes)]).remove(0)
    }

    #[test]
    fn floats_round_to_nearest_even_and_overflow() {
        let x = [
            1.0 + 1.0 / 2048.0,
            1.0 + 3.0 / 2048.0,
            65519.0,
            65520.0,
            -1e-7,
        ];
        let y = cast(TensorDesc::f32([5]), &f32s(&x), DType::F16);
        let expected = [
            1.0,
            1.0 + 4.0 / 2048.0,
            65504.0,
            f64::INFINITY,
            -2.0 / 16_777_216.0,
        ];
        assert_eq!(y.values, expected, "f16");
        let x = [1.0 + 1.0 / 256.0, 1.0 + 3.0 / 256.0, f32::MAX, -0.0];
        let y = cast(TensorDesc::f32([4]), &f32s(&x), DType::BF16);
        let expected = [1.0, 1.0 + 4.0 / 256.0, f64::INFINITY, 0.0];
        assert_eq!(y.values, expected, "bf16");
    }

    #[test]
    fn integers_truncate_and_saturate() {
        let x = [1.9, -1.9, 3e9, -3e9, f32::NAN, f32::INFINITY];
        let y = cast(TensorDesc::f32([6]), &f32s(&x), DType::I32);
        let (max, min) = (f64::from(i32::MAX), f64::from(i32::MIN));
        assert_eq!(y.values, [1.0, -1.0, max, min, 0.0, max], "from f32");
        let big = 16_777_217;
        let y = cast(TensorDesc::i32([2]), &i32s(&[big, -7]), DType::I32);
        assert_eq!(y.values, [f64::from(big), -7.0], "copied exactly");
        let y = cast(TensorDesc::i32([2]), &i32s(&[big, -7]), DType::F32);
        assert_eq!(y.values, [16_777_216.0, -7.0], "rounded to even");
    }

    #[test]
    fn views_become_contiguous() {
        let x = f32s(&[0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]);
        let view = TensorDesc::f32([3, 3]).narrow(1, 1, 2).unwrap();
        let y = cast(view, &x, DType::F32);
        assert_eq!(y.values, [1.0, 2.0, 4.0, 5.0, 7.0, 8.0], "two columns");
        assert!(y.desc.is_contiguous(), "{}", y.desc);
    }

    #[test]
    fn blocks_decode_on_the_reference_only() {
        let mut row = vec![0; 34];
        row[..2].copy_from_slice(&f16::from_f32(0.5).to_le_bytes());
        row[2] = 4;
        row[33] = 0xff;
        let x = TensorDesc::new(DType::Q8_0, [1, 32]);
        let y = cast(x.clone(), &row, DType::F32);
        assert_eq!((y.values[0], y.values[31]), (2.0, -0.5), "scale times code");

        let op = CopyCast { to: DType::F32 };
        let operands = Operands {
            inputs: &[&x],
            inouts: &[],
            outputs: &[],
        };
        let caps: Caps = crate::device::reference_caps();
        let error = op.launches(operands, &caps).unwrap_err();
        assert!(error.to_string().contains("gather_rows"), "{error}");
        let tiles = TensorDesc::weight(DType::F32, [8, 32], Layout::Tile8);
        let error = op.outputs(&[&tiles], &[]).unwrap_err();
        assert!(error.to_string().contains("gather_rows"), "{error}");
        let error = CopyCast { to: DType::F16 }.outputs(&[&x], &[]).unwrap_err();
        assert!(error.to_string().contains("must be f32"), "{error}");
    }
}
