//! `quantize_q8`, exact.

use super::RefArgs;
use crate::ops::quantize_q8::{BLOCK, STEP};

/// `d = max |x| * STEP`, `q = x / d` rounded half away from zero, `s = (d, d * sum q)`.
pub fn quantize_q8(args: &mut RefArgs<'_>) {
    let x = args.inputs[0];
    let n = x.desc.last();
    let mut row = vec![0.0; n];
    for t in 0..x.desc.rows() {
        x.row(t, &mut row);
        for (b, block) in row.as_chunks::<BLOCK>().0.iter().enumerate() {
            let at = t * n / BLOCK + b;
            let (codes, d) = quantize_block(block);
            for (i, four) in codes.as_chunks::<4>().0.iter().enumerate() {
                let word = u32::from_le_bytes(four.map(i8::cast_unsigned));
                args.outputs[0].put(8 * at + i, f64::from(word));
            }
            let sum: i32 = codes.iter().map(|&code| i32::from(code)).sum();
            args.outputs[1].put(2 * at, f64::from(d));
            args.outputs[1].put(2 * at + 1, f64::from(d * sum as f32));
        }
    }
}

/// Codes and scale of a block.
fn quantize_block(block: &[f32; BLOCK]) -> ([i8; BLOCK], f32) {
    let block = block.map(|x| {
        if x.is_nan() {
            0.0
        } else {
            x.clamp(f32::MIN, f32::MAX)
        }
    });
    let largest = block.iter().fold(0.0_f32, |m, x| m.max(x.abs()));
    let d = largest * STEP;
    if d < f32::MIN_POSITIVE {
        return ([0; BLOCK], 0.0);
    }
    let codes = block.map(|x| {
        let x_abs = x.abs();
        // The quotient is a guess; the borders, rounded to f32, decide.
        let mut code = (x_abs / d).round().min(127.0);
        if code < 127.0 && x_abs >= (code + 0.5) * d {
            code += 1.0;
        } else if x_abs < (code - 0.5) * d {
            code -= 1.0;
        }
        code.copysign(x) as i8
    });
    (codes, d)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_round_half_away_from_zero() {
        let mut block = [0.0; BLOCK];
        // d = 1: every code is the rounded element.
        block[..6].copy_from_slice(&[127.0, 2.5, -2.5, 2.25, -0.25, 1.75]);
        let (codes, d) = quantize_block(&block);
        assert!((d - 1.0).abs() < 1e-6, "scale {d}");
        assert_eq!(codes[..6], [127, 3, -3, 2, 0, 2], "rounded");
        assert!(codes[6..].iter().all(|&code| code == 0), "zeros stay zero");
    }

    #[test]
    fn zeros_and_tiny_values_have_no_scale() {
        for x in [0.0, f32::MIN_POSITIVE, -f32::from_bits(1)] {
            assert_eq!(quantize_block(&[x; BLOCK]), ([0; BLOCK], 0.0), "{x}");
        }
    }

    #[test]
    fn non_finite_values_do_not_spread() {
        let mut block = [1.0; BLOCK];
        block[0] = f32::NAN;
        let (codes, d) = quantize_block(&block);
        assert_eq!((codes[0], codes[1]), (0, 127), "NaN counts as zero");
        assert!((d * 127.0 - 1.0).abs() < 1e-6, "and not for the scale");
        block[0] = f32::NEG_INFINITY;
        let (codes, d) = quantize_block(&block);
        assert_eq!((codes[0], codes[1]), (-127, 0), "infinity saturates");
        assert!(d.is_finite(), "the scale is finite");
    }
}
