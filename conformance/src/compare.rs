//! The judge: what a device computed against what the reference says.
//!
//! - every element: `|z - y| <= tau * m + alpha`, finite exactly where the reference is, equal sign of infinities;
//! - every row of [`NMSE_ROW`] elements or more: squared error over the squared reference at most `nmse`;
//! - integers: equal;
//! - encoded cells of a cache: codes equal except at ties, scales within one unit of f16.
//!
//! Every comparison is written so that NaN fails it.
#![allow(
    clippy::neg_cmp_op_on_partial_ord,
    clippy::float_cmp,
    reason = "`!(error <= bound)` is true for NaN, and exact outputs are compared exactly"
)]

use gemel_core::format::{self, cache_row::CacheRow, scales};
use gemel_core::op::Tolerance;
use gemel_core::tensor::Layout;
use gemel_core::{DType, TensorDesc};

/// Shortest row that is judged as a whole.
pub const NMSE_ROW: usize = 32;

/// What the reference expects in one output.
#[derive(Clone, Debug)]
pub struct Expected {
    /// Type and shape of the output.
    pub desc: TensorDesc,
    /// Values, in row order.
    pub values: Vec<f64>,
    /// Magnitudes: the same expressions with absolute values of all terms.
    pub magnitudes: Vec<f64>,
    /// Root sums of squares of the terms.
    pub norms: Vec<f64>,
}

/// The figures of an output that was compared.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Figures {
    /// Largest absolute error.
    pub max_abs: f64,
    /// Largest share of the bound that an element used; above 1 is a failure.
    pub headroom: f64,
    /// Largest normalised mean squared error of a row.
    pub nmse: f64,
}

impl Figures {
    /// The worse of both in each figure.
    #[must_use]
    pub fn worst(self, other: Self) -> Self {
        Self {
            max_abs: self.max_abs.max(other.max_abs),
            headroom: self.headroom.max(other.headroom),
            nmse: self.nmse.max(other.nmse),
        }
    }
}

/// An output that was refused.
#[derive(Clone, Debug, PartialEq)]
pub struct Mismatch {
    /// How far it went before it was refused, over all elements.
    pub figures: Figures,
    /// The first bad elements, one a line.
    pub message: String,
}

/// Bad elements that a message lists.
const LISTED: usize = 8;

/// The elements of an output as the device stored them: exact in f64 for every type that ops write.
///
/// # Panics
/// If `bytes` is shorter than the descriptor says.
pub fn elements(desc: &TensorDesc, bytes: &[u8]) -> Vec<f64> {
    let n = desc.last();
    let size = desc.dtype.block_bytes();
    let mut out = Vec::with_capacity(desc.n_elems());
    for row in 0..desc.rows() {
        let at = desc.row_offset(row) * size;
        for element in bytes[at..at + n * size].chunks_exact(size) {
            out.push(match (desc.dtype, element) {
                (DType::F32, &[a, b, c, d]) => f64::from(f32::from_le_bytes([a, b, c, d])),
                (DType::I32, &[a, b, c, d]) => f64::from(i32::from_le_bytes([a, b, c, d])),
                (DType::U32, &[a, b, c, d]) => f64::from(u32::from_le_bytes([a, b, c, d])),
                (DType::F16, &[a, b]) => half::f16::from_le_bytes([a, b]).to_f64(),
                (DType::BF16, &[a, b]) => half::bf16::from_le_bytes([a, b]).to_f64(),
                (other, _) => panic!("ops do not write {other}"),
            });
        }
    }
    out
}

/// The value as the output's type holds it.
fn stored(dtype: DType, value: f64) -> f64 {
    match dtype {
        DType::F16 => half::f16::from_f64(value).to_f64(),
        DType::BF16 => half::bf16::from_f64(value).to_f64(),
        DType::F32 => f64::from(value as f32),
        _ => value,
    }
}

/// Judges one output, given the elements that the device computed.
///
/// # Errors
/// The first bad elements and rows.
pub fn judge(expected: &Expected, got: &[f64], tolerance: Tolerance) -> Result<Figures, Mismatch> {
    let desc = &expected.desc;
    let exact = !desc.dtype.is_float() || tolerance == Tolerance::EXACT;
    let mut figures = Figures::default();
    let mut bad = Vec::new();
    let mut n_bad = 0;
    if got.len() != expected.values.len() {
        return Err(Mismatch {
            figures,
            message: format!(
                "{} elements instead of {}",
                got.len(),
                expected.values.len()
            ),
        });
    }
    let n = desc.last().max(1);
    let mut note = |index: usize, text: String| {
        n_bad += 1;
        if bad.len() < LISTED {
            bad.push(format!("[{}, {}] {text}", index / n, index % n));
        }
    };
    for (index, (&z, &y)) in got.iter().zip(&expected.values).enumerate() {
        let rounded = stored(desc.dtype, y);
        if y.is_nan() {
            note(index, "the reference wrote nothing here".to_owned());
            continue;
        }
        if exact {
            // -0 equals +0; anything else must be the same number.
            if !(z == rounded) {
                figures.headroom = f64::INFINITY;
                figures.max_abs = figures.max_abs.max((z - rounded).abs());
                note(index, format!("is {z}, expected exactly {rounded}"));
            }
            continue;
        }
        if rounded.is_infinite() {
            if !(z == rounded) {
                figures.headroom = f64::INFINITY;
                note(index, format!("is {z}, expected {rounded}"));
            }
            continue;
        }
        let bound = tolerance.tau * expected.magnitudes[index] + tolerance.alpha;
        let err = (z - y).abs();
        if !(err <= bound) {
            note(
                index,
                format!("is {z}, expected {y}, off by {err:.3e}, bound {bound:.3e}"),
            );
        }
        if err.is_nan() {
            figures.headroom = f64::INFINITY;
        } else {
            figures.max_abs = figures.max_abs.max(err);
            if err > 0.0 {
                figures.headroom = figures.headroom.max(err / bound);
            }
        }
    }
    if !exact && n >= NMSE_ROW {
        for (row, z) in got.chunks(n).enumerate() {
            let range = row * n..row * n + z.len();
            let (mut error, mut reference) = (0.0, 0.0);
            for ((&z, &y), &s) in z
                .iter()
                .zip(&expected.values[range.clone()])
                .zip(&expected.norms[range])
            {
                if y.is_finite() && z.is_finite() && stored(desc.dtype, y).is_finite() {
                    error += (z - y) * (z - y);
                    reference += (y * y).max(s * s);
                }
            }
            // What the absolute part of the bound allows does not count against the row.
            let slack = n as f64 * tolerance.alpha * tolerance.alpha;
            let nmse = if error <= slack {
                0.0
            } else {
                error / reference
            };
            figures.nmse = figures.nmse.max(nmse);
            if !(nmse <= tolerance.nmse) {
                note(
                    row * n,
                    format!("row error {nmse:.3e}, bound {:.3e}", tolerance.nmse),
                );
            }
        }
    }
    if n_bad == 0 {
        return Ok(figures);
    }
    if n_bad > bad.len() {
        bad.push(format!("and {} more", n_bad - bad.len()));
    }
    Err(Mismatch {
        figures,
        message: bad.join("; "),
    })
}

/// An in-place operand before and after, by the reference.
#[derive(Clone, Copy, Debug)]
pub struct State<'a> {
    /// Type, shape and layout.
    pub desc: &'a TensorDesc,
    /// Storage before the op.
    pub before: &'a [u8],
    /// Storage after the op.
    pub after: &'a [u8],
    /// For caches: every cell in plain f32 after the op, so that ties of their codes can be told.
    pub exact: Option<&'a [f32]>,
    /// For f32 states and cells of plain types that the op computes: the magnitude of each element, negative where it
    /// must stay as it was.
    pub magnitudes: &'a [f64],
}

/// Judges the whole storage of an in-place operand: written rows as the reference encodes them, computed elements
/// within the tolerance, every other byte as it was.
///
/// # Errors
/// The first bad bytes or cells.
pub fn judge_state(
    state: State<'_>,
    got: &[u8],
    tolerance: Tolerance,
) -> Result<Figures, Mismatch> {
    let mut bad = Vec::new();
    let mut n_bad = 0;
    let mut figures = Figures::default();
    let mut note = |text: String| {
        n_bad += 1;
        if bad.len() < LISTED {
            bad.push(text);
        }
    };
    let desc = state.desc;
    match (desc.layout, state.exact) {
        (Layout::Pages, Some(exact)) => {
            let n = desc.last();
            let cell = CacheRow::new(desc.dtype, n);
            let n_bytes = cell.n_words() * 4;
            for (row, exact) in exact.chunks_exact(n).enumerate() {
                let range = row * n_bytes..(row + 1) * n_bytes;
                let (before, after) = (&state.before[range.clone()], &state.after[range.clone()]);
                let cell_bytes = &got[range];
                if cell_bytes == after {
                    continue;
                }
                if before == after {
                    note(format!("cell {row} changed, but was not to be written"));
                    continue;
                }
                // How far each channel may be off before it is stored; nothing where it is copied.
                let reach: Vec<f64> = match state.magnitudes.get(row * n..(row + 1) * n) {
                    Some(magnitudes) => magnitudes
                        .iter()
                        .map(|m| tolerance.tau * m.max(0.0) + tolerance.alpha)
                        .collect(),
                    None => vec![0.0; n],
                };
                match judge_cell(desc.dtype, cell, after, cell_bytes, (exact, &reach)) {
                    Ok(headroom) => figures.headroom = figures.headroom.max(headroom),
                    Err(text) => note(format!("cell {row}: {text}")),
                }
            }
        }
        _ if !state.magnitudes.is_empty() => {
            let words = |bytes: &[u8]| -> Vec<u32> {
                let words = bytes.chunks_exact(4);
                words
                    .map(|w| u32::from_le_bytes([w[0], w[1], w[2], w[3]]))
                    .collect()
            };
            let (got, after) = (words(got), words(state.after));
            for (index, (&z, &y)) in got.iter().zip(&after).enumerate() {
                // Such states are contiguous, so what lies beyond the elements is nobody's.
                let magnitude = state.magnitudes.get(index).copied().unwrap_or(-1.0);
                if z == y {
                    continue;
                }
                let (z, y) = (f64::from(f32::from_bits(z)), f64::from(f32::from_bits(y)));
                let bound = tolerance.tau * magnitude + tolerance.alpha;
                let err = (z - y).abs();
                if magnitude < 0.0 || !(err <= bound) {
                    note(format!(
                        "state element {index} is {z}, expected {y}, off by {err:.3e}, bound {bound:.3e}"
                    ));
                } else {
                    figures.max_abs = figures.max_abs.max(err);
                    figures.headroom = figures.headroom.max(err / bound);
                }
            }
        }
        _ => {
            for (index, (got, after)) in got.iter().zip(state.after).enumerate() {
                if got != after {
                    note(format!("byte {index} is {got:#04x}, expected {after:#04x}"));
                }
            }
        }
    }
    if n_bad == 0 {
        return Ok(figures);
    }
    if n_bad > bad.len() {
        bad.push(format!("and {} more", n_bad - bad.len()));
    }
    figures.headroom = f64::INFINITY;
    Err(Mismatch {
        figures,
        message: bad.join("; "),
    })
}

/// A code may differ from the reference's by one where the value lies within this share of a step of a border.
const TIE: f64 = 1e-4;

/// Scale and minimum of a block before they are rounded to f16; codes are chosen by these.
fn unrounded(dtype: DType, block: &[f32]) -> (f64, f64) {
    let values = || block.iter().copied().map(f64::from);
    let largest = values().fold(0.0, |a: f64, b| if b.abs() > a.abs() { b } else { a });
    let low = values().fold(f64::INFINITY, f64::min);
    let high = values().fold(f64::NEG_INFINITY, f64::max);
    match dtype {
        DType::Q8_0 => (largest / 127.0, 0.0),
        DType::Q4_0 => (largest / -8.0, 0.0),
        DType::Q5_0 => (largest / -16.0, 0.0),
        DType::Q4_1 => ((high - low) / 15.0, low),
        DType::Q5_1 => ((high - low) / 31.0, low),
        other => unreachable!("{other} is no block type of caches"),
    }
}

/// Compares one encoded cell with the reference's. Returns the share of the allowance used.
fn judge_cell(
    dtype: DType,
    cell: CacheRow,
    after: &[u8],
    got: &[u8],
    (exact, reach): (&[f32], &[f64]),
) -> Result<f64, String> {
    let n = cell.padded_elems();
    let n_bytes = dtype.row_bytes(n).expect("padded to whole blocks");
    let (mut want_blocks, mut got_blocks) = (vec![0; n_bytes], vec![0; n_bytes]);
    cell.unpack(after, &mut want_blocks);
    cell.unpack(got, &mut got_blocks);
    if !dtype.is_block() && got[n_bytes..].iter().any(|&byte| byte != 0) {
        return Err("padding is not zero".to_owned());
    }
    let decode = |blocks: &[u8]| {
        let mut out = vec![0.0; n];
        format::decode_row(dtype, blocks, &mut out);
        out
    };
    let (want, have) = (decode(&want_blocks), decode(&got_blocks));
    let mut used = 0.0_f64;
    if !dtype.is_block() {
        // f16 and bf16: WGSL leaves the rounding of stores to the implementation, by one unit.
        let bits = |at: usize, blocks: &[u8]| {
            i32::from(u16::from_le_bytes([blocks[2 * at], blocks[2 * at + 1]]))
        };
        // A unit of the stored type on top of the error of what is stored.
        let unit = match dtype {
            DType::F32 => 0.0,
            DType::F16 => 1.0 / 1024.0,
            _ => 1.0 / 128.0,
        };
        for (i, (&value, &reach)) in exact.iter().zip(reach).enumerate() {
            let same = if dtype == DType::F32 {
                have[i].to_bits() == want[i].to_bits()
            } else {
                bits(i, &want_blocks).abs_diff(bits(i, &got_blocks)) <= 1
            };
            let off = (f64::from(have[i]) - f64::from(value)).abs();
            if !(same || reach > 0.0 && off <= reach + unit * f64::from(value.abs())) {
                return Err(format!(
                    "element {i} of {value} is {}, expected {}",
                    have[i], want[i]
                ));
            }
            used = used.max(1.0);
        }
        return Ok(used);
    }
    if reach.iter().any(|&reach| reach > 0.0) {
        for (b, block) in got_blocks.chunks_exact(dtype.block_bytes()).enumerate() {
            let range = b * dtype.block_elems()..((b + 1) * dtype.block_elems()).min(exact.len());
            judge_computed_block(
                dtype,
                block,
                &have[range.clone()],
                (&exact[range.clone()], &reach[range]),
            )
            .map_err(|text| format!("block {b}: {text}"))?;
        }
        return Ok(1.0);
    }
    let elems = dtype.block_elems();
    for (b, (want_block, got_block)) in want_blocks
        .chunks_exact(dtype.block_bytes())
        .zip(got_blocks.chunks_exact(dtype.block_bytes()))
        .enumerate()
    {
        let mut ulps = 0;
        for field in scales::scale_fields(dtype) {
            let scales::ScaleField::F16(at) = *field else {
                unreachable!("cache types have f16 scales only");
            };
            let bits = |block: &[u8]| i32::from(u16::from_le_bytes([block[at], block[at + 1]]));
            let (w, g) = (bits(want_block), bits(got_block));
            ulps = ulps.max(w.abs_diff(g));
        }
        if ulps > 1 {
            return Err(format!("block {b}: a scale is {ulps} units of f16 off"));
        }
        used = used.max(f64::from(ulps) / 2.0);
        let scale =
            |at: usize| half::f16::from_le_bytes([want_block[at], want_block[at + 1]]).to_f32();
        let step = scale(0).abs();
        let minimum = match scales::scale_fields(dtype) {
            [_, scales::ScaleField::F16(at)] => scale(*at).abs(),
            _ => 0.0,
        };
        // What is beyond the head is zero.
        let mut block = exact[b * elems..((b + 1) * elems).min(exact.len())].to_vec();
        block.resize(elems, 0.0);
        let (d, low) = unrounded(dtype, &block);
        for i in b * elems..((b + 1) * elems).min(exact.len()) {
            let (x, w, g) = (exact[i], want[i], have[i]);
            // One unit of f16 is at most 2^-10 of a scale, or 2^-24 where that is subnormal; the part of a value that
            // is a multiple of the scale is at most as large as the value and the minimum together.
            let reach = w.abs() + 2.0 * minimum + step;
            let moved = ulps as f32 * (reach / 1024.0 + 128.0 / 16_777_216.0);
            let off = (g - w).abs();
            if off <= moved {
                continue;
            }
            // All encoders round quotients at half integers.
            let quotient = (f64::from(x) - low) / d;
            let to_border = (quotient.abs() % 1.0 - 0.5).abs();
            if !(to_border <= TIE && off <= 1.01 * step + moved) {
                return Err(format!("element {i} of {x} is {g}, expected {w}"));
            }
            used = 1.0;
        }
    }
    Ok(used)
}

/// Whether a block is what an encoder makes of values that are off by up to `reach`: a scale that one of those values
/// gives, and every code the nearest one or, beyond the range of codes, its end.
fn judge_computed_block(
    dtype: DType,
    block: &[u8],
    have: &[f32],
    (exact, reach): (&[f32], &[f64]),
) -> Result<(), String> {
    let elems = dtype.block_elems();
    // What is beyond the head is zero.
    let mut padded = exact.to_vec();
    padded.resize(elems, 0.0);
    let slack = reach.iter().copied().fold(0.0, f64::max);
    let f16 = |at: usize| half::f16::from_le_bytes([block[at], block[at + 1]]).to_f64();
    let (d, low) = unrounded(dtype, &padded);
    let is_ranged = matches!(dtype, DType::Q4_1 | DType::Q5_1);
    let (scale, minimum) = (f16(0), if is_ranged { f16(2) } else { 0.0 });
    // A unit of f16, which the device may be off by, on top of what the values allow.
    let unit = |v: f64| 1.01 * v.abs() / 1024.0 + 1.0 / 16_777_216.0;
    let (steps, n_codes) = match dtype {
        DType::Q8_0 => (127.0, 254.0),
        DType::Q4_0 => (8.0, 15.0),
        DType::Q5_0 => (16.0, 31.0),
        DType::Q4_1 => (15.0 / 2.0, 15.0),
        DType::Q5_1 => (31.0 / 2.0, 31.0),
        other => unreachable!("{other} is no block type of caches"),
    };
    // The sign of these scales is that of the value of largest magnitude, which may be either of two.
    let rivals = |v: &f32| f64::from(v.abs()) + 2.0 * slack >= d.abs() * steps;
    let may_turn = matches!(dtype, DType::Q4_0 | DType::Q5_0)
        && padded.iter().any(|v| rivals(v) && f64::from(*v) * d > 0.0);
    let off = (scale - d).abs().min(if may_turn {
        (scale + d).abs()
    } else {
        f64::MAX
    });
    if !(off <= unit(d) + slack / steps) {
        return Err(format!("its scale is {scale}, expected {d}"));
    }
    if is_ranged && !((minimum - low).abs() <= unit(low) + slack) {
        return Err(format!("its minimum is {minimum}, expected {low}"));
    }
    for (i, ((&z, &x), &reach)) in have.iter().zip(exact).zip(reach).enumerate() {
        let x = f64::from(x);
        // From the first code to the last.
        let ends = match dtype {
            DType::Q8_0 => [-127.0 * scale, 127.0 * scale],
            DType::Q4_0 => [-8.0 * scale, 7.0 * scale],
            DType::Q5_0 => [-16.0 * scale, 15.0 * scale],
            _ => [minimum, minimum + n_codes * scale],
        };
        let nearest = x.clamp(ends[0].min(ends[1]), ends[0].max(ends[1]));
        // Codes are chosen by scale and minimum before they are rounded.
        let z = f64::from(z);
        let code = if scale == 0.0 {
            0.0
        } else {
            ((z - minimum) / scale).abs()
        };
        let rounded = (code + 0.5) * unit(d) + if is_ranged { unit(low) } else { 0.0 };
        let bound = (0.5 + TIE) * scale.abs() + reach + rounded;
        if !((z - nearest).abs() <= bound) {
            return Err(format!("element {i} of {x} is {z}, bound {bound:.3e}"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn expected(values: &[f64], n: usize) -> Expected {
        Expected {
            desc: TensorDesc::f32([values.len() / n, n]),
            values: values.to_vec(),
            magnitudes: values.iter().map(|v| v.abs()).collect(),
            norms: values.iter().map(|v| v.abs()).collect(),
        }
    }

    const TOLERANCE: Tolerance = Tolerance {
        tau: 1e-6,
        alpha: 1e-9,
        nmse: 1e-13,
    };

    #[test]
    fn a_wrong_code_of_a_computed_block_fails() {
        let exact: Vec<f32> = (0..32)
            .map(|i| ((i * 37 % 32) as f32 - 15.3) / 7.0)
            .collect();
        let reach = vec![1e-6; 32];
        for dtype in [
            DType::Q8_0,
            DType::Q4_0,
            DType::Q4_1,
            DType::Q5_0,
            DType::Q5_1,
        ] {
            let cell = CacheRow::new(dtype, 32);
            let judge = |values: &[f32], change: &dyn Fn(&mut Vec<u8>)| {
                let mut blocks = vec![0; dtype.block_bytes()];
                format::encode_row(dtype, values, &mut blocks);
                change(&mut blocks);
                let mut padded = blocks.clone();
                padded.resize(dtype.row_bytes(cell.padded_elems()).unwrap(), 0);
                let mut words = vec![0; cell.n_words() * 4];
                cell.pack(&padded, &mut words);
                judge_cell(dtype, cell, &words, &words, (&exact, &reach))
            };
            judge(&exact, &|_| {}).unwrap_or_else(|error| panic!("{dtype}: {error}"));
            let near: Vec<f32> = exact.iter().map(|v| v + 5e-7).collect();
            judge(&near, &|_| {}).unwrap_or_else(|error| panic!("{dtype}, near: {error}"));
            let far: Vec<f32> = exact.iter().map(|v| v * 1.01).collect();
            assert!(judge(&far, &|_| {}).is_err(), "{dtype}: another scale");
            let last = dtype.block_bytes() - 1;
            let code = |blocks: &mut Vec<u8>| blocks[last] = blocks[last].wrapping_add(1);
            assert!(judge(&exact, &code).is_err(), "{dtype}: another code");
            let scale = |blocks: &mut Vec<u8>| blocks[0] = blocks[0].wrapping_add(4);
            assert!(
                judge(&exact, &scale).is_err(),
                "{dtype}: the scale four units off"
            );
        }
    }

    #[test]
    fn a_planted_nan_fails() {
        let y = expected(&[1.0, 2.0, 3.0], 3);
        assert!(
            judge(&y, &[1.0, f64::NAN, 3.0], TOLERANCE).is_err(),
            "by tolerance"
        );
        assert!(
            judge(&y, &[1.0, f64::NAN, 3.0], Tolerance::EXACT).is_err(),
            "exactly"
        );
        let nan = Tolerance {
            tau: f64::NAN,
            ..TOLERANCE
        };
        assert!(
            judge(&y, &[1.0, 2.0, 3.5], nan).is_err(),
            "a bound that is NaN"
        );
        let unwritten = expected(&[1.0, f64::NAN, 3.0], 3);
        assert!(
            judge(&unwritten, &[1.0, f64::NAN, 3.0], TOLERANCE).is_err(),
            "NaN in the reference excuses nothing"
        );
    }

    #[test]
    fn infinities_must_agree_in_sign() {
        let y = expected(&[f64::INFINITY, 2.0], 2);
        assert!(judge(&y, &[f64::INFINITY, 2.0], TOLERANCE).is_ok(), "same");
        assert!(
            judge(&y, &[f64::NEG_INFINITY, 2.0], TOLERANCE).is_err(),
            "other sign"
        );
        assert!(judge(&y, &[f64::MAX, 2.0], TOLERANCE).is_err(), "finite");
        let finite = expected(&[1.0, 2.0], 2);
        assert!(
            judge(&finite, &[1.0, f64::INFINITY], TOLERANCE).is_err(),
            "infinite"
        );
        // Matching infinities elsewhere do not excuse a wrong element.
        assert!(
            judge(&y, &[f64::INFINITY, 2.1], TOLERANCE).is_err(),
            "other element"
        );
    }

    #[test]
    fn cancellation_scales_the_bound() {
        let mut y = expected(&[1e-9], 1);
        y.magnitudes = vec![10.0];
        assert!(judge(&y, &[5e-6], TOLERANCE).is_ok(), "within tau * m");
        assert!(judge(&y, &[1.2e-5], TOLERANCE).is_err(), "beyond");
    }

    #[test]
    fn one_bad_row_fails_although_each_element_passes() {
        let n = 64;
        let mut y = expected(&vec![1.0; 2 * n], n);
        y.magnitudes = vec![1e3; 2 * n];
        let mut z = vec![1.0; 2 * n];
        z[n..].fill(1.0 + 5e-4);
        let mismatch = judge(&y, &z, TOLERANCE).unwrap_err();
        assert!(
            mismatch.message.contains("[1, 0] row error"),
            "{}",
            mismatch.message
        );
    }

    #[test]
    fn exact_outputs_differ_by_nothing() {
        let y = expected(&[1.0, -0.0], 2);
        assert!(
            judge(&y, &[1.0, 0.0], Tolerance::EXACT).is_ok(),
            "zeros are equal"
        );
        let next = f64::from(f32::from_bits(1.0_f32.to_bits() + 1));
        assert!(
            judge(&y, &[next, 0.0], Tolerance::EXACT).is_err(),
            "one unit"
        );
    }

    fn cell_of(dtype: DType, values: &[f32]) -> Vec<u8> {
        let cell = CacheRow::new(dtype, values.len());
        let mut blocks = vec![0; dtype.row_bytes(values.len()).unwrap()];
        format::encode_row(dtype, values, &mut blocks);
        let mut out = vec![0; cell.n_words() * 4];
        cell.pack(&blocks, &mut out);
        out
    }

    #[test]
    fn cells_may_differ_at_ties_only() {
        for dtype in [
            DType::Q8_0,
            DType::Q4_0,
            DType::Q5_1,
            DType::Q4_1,
            DType::Q5_0,
        ] {
            let x: Vec<f32> = (0..32).map(|i| (i as f32 * 0.77).sin()).collect();
            let desc = TensorDesc::pages(dtype, 1, 1, 32);
            let one = cell_of(dtype, &x);
            let n = one.len();
            let mut after = vec![0; n * 64];
            after[..n].copy_from_slice(&one);
            let before = vec![0; n * 64];
            let mut exact = vec![0.0; 32 * 64];
            exact[..32].copy_from_slice(&x);
            let state = State {
                desc: &desc,
                before: &before,
                after: &after,
                exact: Some(&exact),
                magnitudes: &[],
            };
            assert!(
                judge_state(state, &after, TOLERANCE).is_ok(),
                "{dtype}: same"
            );
            let mut n_refused = 0;
            for byte in 4..n {
                let mut got = after.clone();
                got[byte] ^= 1;
                n_refused += usize::from(judge_state(state, &got, TOLERANCE).is_err());
            }
            assert!(
                n_refused >= n - 8,
                "{dtype}: {n_refused} of {} flips refused",
                n - 4
            );
            let mut got = after.clone();
            got[n] = 1;
            assert!(
                judge_state(state, &got, TOLERANCE).is_err(),
                "{dtype}: a cell that was not written"
            );
        }
    }

    #[test]
    fn computed_states_have_a_tolerance_and_untouched_ones_none() {
        let desc = TensorDesc::f32([3]);
        let bytes = |values: [f32; 3]| values.map(f32::to_le_bytes).concat();
        let before = bytes([f32::NAN, 0.0, 5.0]);
        let after = bytes([f32::NAN, 2.0, 5.0]);
        let state = State {
            desc: &desc,
            before: &before,
            after: &after,
            exact: None,
            magnitudes: &[-1.0, 2.0, -1.0],
        };
        let verdict = |values| judge_state(state, &bytes(values), TOLERANCE).is_ok();
        assert!(verdict([f32::NAN, 2.0, 5.0]), "equal");
        assert!(verdict([f32::NAN, 2.000_001, 5.0]), "within the bound");
        assert!(!verdict([f32::NAN, 2.000_01, 5.0]), "beyond it");
        assert!(!verdict([f32::NAN, f32::NAN, 5.0]), "NaN");
        assert!(!verdict([f32::NAN, 2.0, 5.000_001]), "not to be written");
        assert!(!verdict([0.0, 2.0, 5.0]), "poison overwritten");
    }
}
