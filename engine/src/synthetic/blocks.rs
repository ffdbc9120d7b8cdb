//! Random blocks of every weight type: a counter, mixed, and the scales set to what the matrix asks for.

use std::collections::BTreeMap;

use gemel_core::DType;
use gemel_core::format;
use gemel_core::format::scales::{ScaleField, scale_fields};
use half::{bf16, f16};

/// The step of the counter: 2^64 divided by the golden ratio.
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// Blocks that are decoded to learn the size of a type's values.
const UNIT_BLOCKS: u64 = 512;

/// How the entries of a tensor are distributed.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Law {
    /// Mean 0 and this standard deviation.
    Spread(f32),
    /// Uniform in `centre ± spread`; float types only.
    Around {
        /// Middle.
        centre: f32,
        /// Half the width.
        spread: f32,
    },
    /// The factor that a product with a matrix in `nvfp4` needs for this standard deviation; f32 only.
    SecondScale(f32),
    /// These values; f32 only.
    Values(Vec<f32>),
}

/// Standard deviation of the values of a type whose scale is 1, learnt by decoding random blocks.
#[derive(Debug, Default)]
pub(super) struct UnitScales(BTreeMap<DType, f32>);

impl UnitScales {
    fn of(&mut self, dtype: DType) -> f32 {
        *self.0.entry(dtype).or_insert_with(|| {
            let mut block = vec![0; dtype.block_bytes()];
            let mut values = vec![0.0; dtype.block_elems()];
            let mut sum = 0.0;
            for index in 0..UNIT_BLOCKS {
                random_block(dtype, mix(0), 1.0, index, &mut block);
                format::decode_row(dtype, &block, &mut values);
                sum += values.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>();
            }
            let n = UNIT_BLOCKS as f64 * values.len() as f64;
            (sum / n).sqrt() as f32
        })
    }
}

/// What makes the bytes of one tensor.
#[derive(Debug)]
pub(super) struct Fill {
    dtype: DType,
    key: u64,
    kind: Kind,
}

#[derive(Debug)]
enum Kind {
    /// Blocks with this scale.
    Blocks(f32),
    /// Floats, uniform between centre - spread and centre + spread.
    Floats { centre: f32, spread: f32 },
    /// Constants.
    Values(Vec<f32>),
}

impl Fill {
    pub(super) fn new(
        seed: u64,
        name: &str,
        dtype: DType,
        law: &Law,
        units: &mut UnitScales,
    ) -> Self {
        let kind = match *law {
            // The second scale of nvfp4 brings its first ones to 1, where E4M3 is finest.
            Law::Spread(_) if dtype == DType::NVFP4 => Kind::Blocks(1.0),
            Law::Spread(deviation) if dtype.is_block() => Kind::Blocks(deviation / units.of(dtype)),
            Law::Spread(deviation) => Kind::Floats {
                centre: 0.0,
                spread: deviation * 3.0f32.sqrt(),
            },
            Law::Around { centre, spread } => Kind::Floats { centre, spread },
            Law::SecondScale(deviation) => Kind::Values(vec![deviation / units.of(DType::NVFP4)]),
            Law::Values(ref values) => Kind::Values(values.clone()),
        };
        // The name enters byte by byte, so that no two tensors share a stream.
        let key = name
            .bytes()
            .fold(mix(seed.wrapping_add(STEP)), |key, byte| {
                mix(key ^ u64::from(byte))
            });
        Self { dtype, key, kind }
    }

    /// Writes the bytes from `start` on.
    pub(super) fn fill(&self, start: usize, out: &mut [u8]) {
        // Floats are made a word of the counter at a time.
        let size = if self.dtype.is_block() {
            self.dtype.block_bytes()
        } else {
            8
        };
        let mut index = start / size;
        let mut rest = out;
        let mut skip = start % size;
        let mut whole = vec![0; size];
        while !rest.is_empty() {
            let n = (size - skip).min(rest.len());
            let (block, after) = rest.split_at_mut(n);
            if n == size {
                self.block(index, block);
            } else {
                self.block(index, &mut whole);
                block.copy_from_slice(&whole[skip..skip + n]);
            }
            (index, skip, rest) = (index + 1, 0, after);
        }
    }

    fn block(&self, index: usize, out: &mut [u8]) {
        match &self.kind {
            Kind::Blocks(scale) => random_block(self.dtype, self.key, *scale, index as u64, out),
            Kind::Floats { centre, spread } => {
                let word = word(self.key, index as u64);
                random_floats(self.dtype, word, *centre, *spread, out);
            }
            Kind::Values(values) => {
                for (k, out) in out.chunks_exact_mut(4).enumerate() {
                    let value = values.get(2 * index + k).copied().unwrap_or_default();
                    out.copy_from_slice(&value.to_le_bytes());
                }
            }
        }
    }
}

/// The finaliser of splitmix64: a bijection in which every input bit moves half of the output bits.
#[inline]
pub(super) fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Word `index` of a stream.
#[inline]
fn word(key: u64, index: u64) -> u64 {
    mix(key.wrapping_add(index.wrapping_mul(STEP)))
}

/// `n` numbers with mean 0 and standard deviation 1.
pub(super) fn unit_floats(seed: u64, n: usize) -> Vec<f32> {
    let mut units = UnitScales::default();
    let fill = Fill::new(seed, "rows", DType::F32, &Law::Spread(1.0), &mut units);
    let mut values = vec![0.0f32; n];
    fill.fill(0, bytemuck::cast_slice_mut(&mut values));
    values
}

/// Eight bytes of floats from a word of random bits.
fn random_floats(dtype: DType, word: u64, centre: f32, spread: f32, out: &mut [u8]) {
    // Odd multiples of half a step: never 0.
    let at = |bits: u64, step: f32| centre + ((bits as f32 + 0.5) * step - 1.0) * spread;
    if dtype == DType::F32 {
        for (k, out) in out.chunks_exact_mut(4).enumerate() {
            let value = at((word >> (32 * k)) & 0x7f_ffff, 1.0 / 4_194_304.0);
            out.copy_from_slice(&value.to_le_bytes());
        }
        return;
    }
    for (k, out) in out.chunks_exact_mut(2).enumerate() {
        let value = at((word >> (16 * k)) & 0xffff, 1.0 / 32_768.0);
        let bits = if dtype == DType::BF16 {
            bf16::from_f32(value).to_bits()
        } else {
            // Subnormal numbers are kept out: some devices flush them.
            f16::from_f32(value.abs().max(1.0 / 8192.0).copysign(value)).to_bits()
        };
        out.copy_from_slice(&bits.to_le_bytes());
    }
}

/// Block `index` of a stream: random bits, but for what decides how large the values are.
fn random_block(dtype: DType, key: u64, scale: f32, index: u64, out: &mut [u8]) {
    let n_words = out.len().div_ceil(8) as u64;
    let first = index * (n_words + 1);
    for (w, chunk) in (0..).zip(out.chunks_mut(8)) {
        let bytes = word(key, first + w).to_le_bytes();
        chunk.copy_from_slice(&bytes[..chunk.len()]);
    }
    let dice = word(key, first + n_words);
    set_codes(dtype, out);
    set_scales(dtype, dice, scale, out);
}

/// Codes and inner scales that published files have: no code outside its range, no inner scale so large that the
/// outer one becomes a subnormal number.
fn set_codes(dtype: DType, block: &mut [u8]) {
    match dtype {
        // -128 is never a code.
        DType::Q8_0 => {
            for code in &mut block[2..] {
                *code |= u8::from(*code == 0x80);
            }
        }
        // Three values: code 3 becomes 1.
        DType::TQ2_0 => keep_three_codes(&mut block[..64]),
        DType::Q2_0 => keep_three_codes(&mut block[2..]),
        // Scale and minimum 8 to 15, alike.
        DType::Q2_K => {
            for sub in &mut block[..16] {
                *sub = (8 | *sub & 7) * 0x11;
            }
        }
        // Scales -32 to -17 and 16 to 31: the upper two bits of 6 are alike.
        DType::Q3_K => {
            for high in &mut block[104..108] {
                *high = (*high & 0x55) * 3;
            }
        }
        DType::Q4_K => equal_minima(&mut block[4..16], 8, 15), // 8 to 23
        DType::Q5_K => equal_minima(&mut block[4..16], 4, 7),  // 4 to 11
        // ±2 to ±5.
        DType::Q6_K => {
            for scale in &mut block[192..208] {
                let size = 2 + (*scale & 3);
                *scale = if *scale & 128 == 0 {
                    size
                } else {
                    size.wrapping_neg()
                };
            }
        }
        // Scales 30, 31, 33 and 34, which mean -2, -1, 1 and 2; one in four is large.
        DType::IQ4_XS => {
            let (mut high, mut low) = (0u16, 0u32);
            let bits = block[4];
            for j in 0..8 {
                let negative = (bits >> j) & 1 == 1;
                let size = 1 + ((block[5] & block[6]) >> j & 1);
                let scale = if negative { 32 - size } else { 32 + size };
                high |= u16::from(scale >> 4) << (2 * j);
                low |= u32::from(scale & 15) << (4 * j);
            }
            block[2..4].copy_from_slice(&high.to_le_bytes());
            block[4..8].copy_from_slice(&low.to_le_bytes());
        }
        // The upper half of four-bit scales is left out.
        DType::IQ3_XXS => {
            for word in block[66..98].chunks_exact_mut(4) {
                word[3] &= 0x3f;
            }
        }
        DType::IQ3_S => {
            for scales in &mut block[106..110] {
                *scales &= 0x33;
            }
        }
        _ => {}
    }
}

/// Two-bit codes 0, 1 and 2; 3 becomes 1, so that their mean is 1.
fn keep_three_codes(codes: &mut [u8]) {
    for code in codes {
        let low = *code & 0x55;
        *code = low | *code & 0xaa & !(low << 1);
    }
}

/// Six-bit scales `least + (random & mask)` of `q4_k` and `q5_k`, with minima like them.
fn equal_minima(packed: &mut [u8], least: u8, mask: u8) {
    let scales: [u8; 8] = std::array::from_fn(|j| least + (packed[j] & mask));
    for j in 0..4 {
        let (first, second) = (scales[j], scales[j + 4]);
        packed[j] = first | (second >> 4) << 6;
        packed[j + 4] = packed[j];
        packed[j + 8] = (second & 15) * 0x11;
    }
}

/// Sets the scale fields. `dice` varies them by a quarter and draws signs.
fn set_scales(dtype: DType, dice: u64, scale: f32, block: &mut [u8]) {
    let vary = |bits: u64| 0.75 + (bits & 255) as f32 / 512.0;
    if dtype == DType::NVFP4 {
        for (k, byte) in block[..4].iter_mut().enumerate() {
            *byte = e4m3(scale * vary(dice >> (8 * k)));
        }
        return;
    }
    // What centres the codes: x = scale * code - minimum.
    let middle = match dtype {
        DType::Q4_1 => -7.5,
        DType::Q5_1 => -15.5,
        DType::Q2_K => 1.5,
        DType::Q4_K => 7.5,
        DType::Q5_K => 15.5,
        _ => 0.0,
    };
    let sign = if middle == 0.0 && dice >> 63 == 1 {
        -1.0
    } else {
        1.0
    };
    let d = sign * scale * vary(dice);
    for (k, field) in scale_fields(dtype).iter().enumerate() {
        let value = if k == 0 { d } else { middle * d };
        let bits = f16::from_f32(value).to_bits();
        match *field {
            ScaleField::F16(at) => block[at..at + 2].copy_from_slice(&bits.to_le_bytes()),
            ScaleField::F16TopNibbles(at) => {
                for n in 0..4 {
                    let nibble = (bits >> (4 * n)) as u8 & 15;
                    let byte = &mut block[at + 2 * n + 1];
                    *byte = *byte & 15 | nibble << 4;
                }
            }
            ScaleField::E8M0(at) => block[at] = e8m0(scale, (dice & 0xffff) as f32 / 65536.0),
        }
    }
}

/// A power of two at or above `scale / 2`: of the two neighbours the one that the dice say, so that the mean square
/// is that of `scale`.
fn e8m0(scale: f32, dice: f32) -> u8 {
    let exponent = (scale.to_bits() >> 23) as u8; // scale is positive
    let low = format::mxfp4::exponent_value(exponent);
    let share = ((scale / low).powi(2) - 1.0) / 3.0;
    exponent + u8::from(dice < share)
}

/// The nearest unsigned E4M3 number of a scale between 2^-6 and 448, the smaller one of two.
fn e4m3(scale: f32) -> u8 {
    // The two differ in the bias, 127 and 7, and in 20 bits of the mantissa.
    const BIAS: u32 = (127 - 7) << 3;
    let rounded = (scale.to_bits() + ((1 << 19) - 1)) >> 20;
    (rounded - BIAS) as u8
}

#[cfg(test)]
mod tests {
    use super::*;
    use gemel_core::format::nvfp4;

    #[test]
    fn e4m3_is_the_nearest_number() {
        for step in 0..2048 {
            let scale = 0.5 + step as f32 / 1024.0;
            let found = nvfp4::scale_value(e4m3(scale));
            let nearest = (1..=0x7e)
                .map(nvfp4::scale_value)
                .min_by(|a, b| (a - scale).abs().total_cmp(&(b - scale).abs()));
            assert_eq!(Some(found), nearest, "{scale}");
        }
    }
}
