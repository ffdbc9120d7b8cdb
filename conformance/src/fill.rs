//! Seeded operands: every byte of a case's storage follows from its id.
//!
//! Numbers come from a counter-based generator keyed by the id, the seed and the operand, with arithmetic that is
//! exact in every C library, so an id alone reproduces a case bit for bit on any machine.

use std::fmt;
use std::sync::Arc;

use gemel_core::format::{self, cache_row::CacheRow, scales};
use gemel_core::tensor::Layout;
use gemel_core::{DType, TensorDesc};

/// A counter-based generator: value `n` of a stream depends on the key and `n` only.
#[derive(Clone, Debug)]
pub struct Rng {
    key: u64,
    counter: u64,
}

/// Mixes the bits of a word (the finaliser of `SplitMix64`).
pub fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Hash of a text (FNV-1a, mixed).
pub fn hash(text: &str) -> u64 {
    let fnv = text.bytes().fold(0xcbf2_9ce4_8422_2325, |h: u64, byte| {
        (h ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    mix(fnv)
}

impl Rng {
    /// The stream of one operand of a case.
    pub fn new(id: &str, seed: u64, operand: usize) -> Self {
        Self {
            key: hash(id) ^ mix(seed.wrapping_add(0x5eed)) ^ mix(operand as u64 + 1),
            counter: 0,
        }
    }

    /// The next 64 bits.
    pub fn next_u64(&mut self) -> u64 {
        self.counter += 1;
        mix(self
            .key
            .wrapping_add(self.counter.wrapping_mul(0x9e37_79b9_7f4a_7c15)))
    }

    /// Uniform in `0 .. n`.
    pub fn below(&mut self, n: usize) -> usize {
        ((u128::from(self.next_u64()) * n as u128) >> 64) as usize
    }

    /// Uniform in `[0, 1)`.
    pub fn unit(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// Normal with mean 0 and deviation 1: the sum of twelve uniform numbers, exact in any C library.
    pub fn normal(&mut self) -> f64 {
        let sum: u64 = (0..3)
            .flat_map(|_| {
                let word = self.next_u64();
                (0..4).map(move |i| (word >> (16 * i)) & 0xffff)
            })
            .sum();
        (sum as f64 + 6.0) / 65_536.0 - 6.0
    }

    /// A random order of `0 .. n`.
    pub fn permutation(&mut self, n: usize) -> Vec<usize> {
        let mut order: Vec<usize> = (0..n).collect();
        for i in (1..n).rev() {
            order.swap(i, self.below(i + 1));
        }
        order
    }
}

/// Classes of float values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Class {
    /// Uniform in [-1, 1].
    U,
    /// Normal, deviation 1.
    N,
    /// Heavy tail, with one outlier channel, as in real activations.
    H,
    /// Small: deviation 1e-6.
    S,
    /// Subnormals mixed with ordinary numbers.
    D,
    /// Large: deviation 1e4, dangerous in f16.
    L,
    /// Huge: deviation 1e15, for ops that stay in f32.
    V,
    /// Whole zero rows, scattered zeros, negative zero.
    Z,
    /// Constant rows and ties.
    C,
    /// Cancelling pairs +a, -a with a small residue.
    X,
}

impl Class {
    /// Classes that any op takes.
    pub const COMMON: [Self; 7] = [
        Self::U,
        Self::N,
        Self::H,
        Self::S,
        Self::Z,
        Self::C,
        Self::X,
    ];

    /// Element `i` of row `row` with `n` elements.
    fn value(self, rng: &mut Rng, outlier: usize, row: usize, i: usize, last: f64) -> f64 {
        match self {
            Self::U => 2.0 * rng.unit() - 1.0,
            Self::N => rng.normal(),
            Self::H => {
                let spread = 2_f64.powi((2.9 * rng.normal()).round() as i32);
                let outlier = if i == outlier { 100.0 } else { 1.0 };
                rng.normal() * spread * outlier
            }
            Self::S => 1e-6 * rng.normal(),
            Self::D => {
                if rng.below(2) == 0 {
                    1e-39 * rng.normal()
                } else {
                    rng.normal()
                }
            }
            Self::L => 1e4 * rng.normal(),
            Self::V => 1e15 * rng.normal(),
            Self::Z => match (row % 3, rng.below(3)) {
                (0, 0) => -0.0,
                (0, _) | (_, 0) => 0.0,
                _ => rng.normal(),
            },
            Self::C => {
                if row.is_multiple_of(2) {
                    0.75
                } else {
                    [-1.0, 0.5, 0.5, 2.0][rng.below(4)]
                }
            }
            Self::X => {
                if i.is_multiple_of(2) {
                    rng.normal()
                } else {
                    -last + 1e-5 * rng.normal()
                }
            }
        }
    }

    /// `rows * n` values.
    pub fn values(self, rng: &mut Rng, rows: usize, n: usize) -> Vec<f32> {
        let outlier = rng.below(n.max(1));
        let mut last = 0.0;
        let mut out = Vec::with_capacity(rows * n);
        for row in 0..rows {
            for i in 0..n {
                last = self.value(rng, outlier, row, i, last);
                out.push(last as f32);
            }
        }
        out
    }
}

impl fmt::Display for Class {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// What lies in storage that must not matter. A case runs with both: kernels may assume finite numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Poison {
    /// Quiet NaN.
    Nan,
    /// 1e30, or the largest number of the type.
    Huge,
}

impl Poison {
    /// The word that poisons storage of a type. Blocks get it everywhere, so their scales are poison.
    pub fn word(self, dtype: DType) -> u32 {
        match (self, dtype) {
            (Self::Nan, DType::F32) => 0x7fc0_dead,
            (Self::Nan, DType::BF16) => 0x7fc0_7fc0,
            (Self::Nan, DType::I32 | DType::U32) => 0x8000_0001,
            (Self::Nan, _) => 0x7e00_7e00,
            (Self::Huge, DType::F32) => 0x7149_f2ca,
            (Self::Huge, DType::BF16) => 0x7149_7149,
            (Self::Huge, DType::I32 | DType::U32) => 0x7fff_fff0,
            (Self::Huge, _) => 0x7bff_7bff,
        }
    }

    /// `n_bytes` of poison, rounded up to whole words.
    pub fn bytes(self, dtype: DType, n_bytes: usize) -> Vec<u8> {
        self.word(dtype).to_le_bytes().repeat(n_bytes.div_ceil(4))
    }
}

/// How the storage of an operand is filled.
#[derive(Clone)]
pub enum Fill {
    /// Floats of a class, encoded to the operand's type where it has an encoder.
    Floats(Class),
    /// Weights: floats of a class for the float types, random valid blocks for block types.
    Weight(Class),
    /// Integers in `lo ..= hi`.
    Range(i32, i32),
    /// These integers, in row order.
    Ints(Arc<[i32]>),
    /// These floats, in row order.
    Values(Arc<[f32]>),
    /// A paged cache: cells `page * PAGE + index` that are live hold values of the class, the others poison.
    Pages(Class, Arc<[bool]>),
    /// Floats of a class in the rows that are live, poison in the others.
    Rows(Class, Arc<[bool]>),
    /// Random bits.
    Bits,
    /// Floats that follow from the shape, in row order: tables.
    Table(fn(&TensorDesc) -> Vec<f32>),
}

impl fmt::Debug for Fill {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Floats(class) => write!(f, "floats {class}"),
            Self::Weight(class) => write!(f, "weight {class}"),
            Self::Range(lo, hi) => write!(f, "integers {lo}..={hi}"),
            Self::Ints(ints) => write!(f, "{} given integers", ints.len()),
            Self::Values(values) => write!(f, "{} given floats", values.len()),
            Self::Pages(class, _) => write!(f, "pages {class}"),
            Self::Rows(class, _) => write!(f, "live rows {class}"),
            Self::Bits => f.write_str("bits"),
            Self::Table(_) => f.write_str("table"),
        }
    }
}

/// Scale of the products of random blocks: keeps sums of the suite's lengths far from f32's limits.
const WEIGHT_SCALE: f32 = 0.05;

/// Storage of an operand in the reference's layout, from the start of the binding to its last element.
///
/// # Panics
/// If the table gives a fill that does not fit the descriptor: a mistake in the table.
pub fn storage(desc: &TensorDesc, fill: &Fill, rng: &mut Rng, poison: Poison) -> Vec<u8> {
    let dtype = desc.dtype;
    let (rows, n) = (desc.rows(), desc.last());
    if let Fill::Pages(class, live) = fill {
        return pages(desc, *class, live, rng, poison);
    }
    if desc.layout == Layout::Pages {
        let live: Arc<[bool]> = vec![true; desc.shape[0] * desc.shape[2]].into();
        let Fill::Floats(class) = fill else {
            panic!("a cache is filled with floats or pages, not with {fill:?}");
        };
        return pages(desc, *class, &live, rng, poison);
    }
    let mut bytes = poison.bytes(dtype, desc.n_bytes());
    if desc.n_elems() == 0 {
        return bytes;
    }
    let row_bytes = dtype.row_bytes(n).expect("tables have whole blocks");
    let mut put = |row: usize, data: &[u8]| {
        let at = desc.row_offset(row) / dtype.block_elems() * dtype.block_bytes();
        bytes[at..at + row_bytes].copy_from_slice(data);
    };
    match fill {
        Fill::Floats(class) => {
            let values = class.values(rng, rows, n);
            for (row, values) in values.chunks(n).enumerate() {
                put(row, &encode(dtype, values));
            }
        }
        Fill::Weight(class) if !dtype.is_block() => {
            let values = class.values(rng, rows, n);
            for (row, values) in values.chunks(n).enumerate() {
                put(row, &encode(dtype, values));
            }
        }
        Fill::Weight(_) => {
            for row in 0..rows {
                put(row, &random_blocks(dtype, row_bytes, rng));
            }
        }
        Fill::Range(lo, hi) => {
            let span = (i64::from(*hi) - i64::from(*lo) + 1) as usize;
            for row in 0..rows {
                let ints: Vec<u8> = (0..n)
                    .flat_map(|_| ((i64::from(*lo) + rng.below(span) as i64) as i32).to_le_bytes())
                    .collect();
                put(row, &ints);
            }
        }
        Fill::Ints(ints) => {
            assert_eq!(ints.len(), rows * n, "one integer per element of {desc}");
            for (row, ints) in ints.chunks(n).enumerate() {
                let data: Vec<u8> = ints.iter().flat_map(|v| v.to_le_bytes()).collect();
                put(row, &data);
            }
        }
        Fill::Values(values) => {
            assert_eq!(values.len(), rows * n, "one float per element of {desc}");
            for (row, values) in values.chunks(n).enumerate() {
                put(row, &encode(dtype, values));
            }
        }
        Fill::Rows(class, live) => {
            assert_eq!(live.len(), rows, "one flag per row of {desc}");
            let values = class.values(rng, rows, n);
            for (row, values) in values.chunks(n).enumerate().filter(|(row, _)| live[*row]) {
                put(row, &encode(dtype, values));
            }
        }
        Fill::Bits => {
            for row in 0..rows {
                let data: Vec<u8> = (0..row_bytes.div_ceil(8))
                    .flat_map(|_| rng.next_u64().to_le_bytes())
                    .take(row_bytes)
                    .collect();
                put(row, &data);
            }
        }
        Fill::Table(make) => {
            let values = make(desc);
            for (row, values) in values.chunks(n).enumerate() {
                put(row, &encode(dtype, values));
            }
        }
        Fill::Pages(..) => unreachable!("handled above"),
    }
    bytes
}

fn encode(dtype: DType, values: &[f32]) -> Vec<u8> {
    if dtype == DType::I32 {
        return values
            .iter()
            .flat_map(|&v| (v as i32).to_le_bytes())
            .collect();
    }
    let n_bytes = dtype
        .row_bytes(values.len())
        .expect("tables have whole blocks");
    let mut out = vec![0; n_bytes];
    format::encode_row(dtype, values, &mut out);
    out
}

/// Random valid blocks whose values have a magnitude near [`WEIGHT_SCALE`]: codes are random bits, scales are drawn.
fn random_blocks(dtype: DType, row_bytes: usize, rng: &mut Rng) -> Vec<u8> {
    let mut bytes: Vec<u8> = (0..row_bytes.div_ceil(8))
        .flat_map(|_| rng.next_u64().to_le_bytes())
        .take(row_bytes)
        .collect();
    scales::make_finite(dtype, &mut bytes);
    for block in bytes.chunks_exact_mut(dtype.block_bytes()) {
        if dtype == DType::NVFP4 {
            // Four scales of 4 exponent bits each: below 2.
            block[..4].iter_mut().for_each(|scale| *scale &= 0x3f);
        }
        for field in scales::scale_fields(dtype) {
            let scale = WEIGHT_SCALE
                * (0.25 + rng.unit() as f32)
                * if rng.below(2) == 0 { 1.0 } else { -1.0 };
            let bits = half::f16::from_f32(scale).to_bits();
            match *field {
                scales::ScaleField::F16(at) => {
                    block[at..at + 2].copy_from_slice(&bits.to_le_bytes());
                }
                // 2^-8 .. 2^0.
                scales::ScaleField::E8M0(at) => block[at] = 119 + rng.below(9) as u8,
                scales::ScaleField::F16TopNibbles(at) => {
                    for i in 0..4 {
                        let nibble = ((bits >> (4 * i)) & 0xf) as u8;
                        let top = &mut block[at + 2 * i + 1];
                        *top = (*top & 0x0f) | (nibble << 4);
                    }
                }
            }
        }
    }
    bytes
}

fn pages(desc: &TensorDesc, class: Class, live: &[bool], rng: &mut Rng, poison: Poison) -> Vec<u8> {
    let dtype = desc.dtype;
    let [n_pages, n_heads, page, n] = desc.shape[..] else {
        panic!("a cache has four axes, but this is {desc}");
    };
    let cell = CacheRow::new(dtype, n);
    let n_bytes = cell.n_words() * 4;
    let mut bytes = poison.bytes(dtype, desc.n_bytes());
    let outlier = rng.below(n.max(1));
    for p in 0..n_pages {
        for h in 0..n_heads {
            for i in 0..page {
                if !live[p * page + i] {
                    continue;
                }
                let row = (p * n_heads + h) * page + i;
                let mut last = 0.0;
                let mut values: Vec<f32> = (0..n)
                    .map(|e| {
                        last = class.value(rng, outlier, row, e, last);
                        last as f32
                    })
                    .collect();
                values.resize(cell.padded_elems(), 0.0);
                cell.pack(
                    &encode(dtype, &values),
                    &mut bytes[row * n_bytes..(row + 1) * n_bytes],
                );
            }
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use gemel_core::dtype::WEIGHT_TYPES;

    #[test]
    fn the_same_id_gives_the_same_bytes() {
        let desc = TensorDesc::f32([3, 5]);
        let make = |id: &str, seed| {
            storage(
                &desc,
                &Fill::Floats(Class::H),
                &mut Rng::new(id, seed, 0),
                Poison::Nan,
            )
        };
        assert_eq!(make("a", 0), make("a", 0), "same");
        assert_ne!(make("a", 0), make("b", 0), "another id");
        assert_ne!(make("a", 0), make("a", 1), "another seed");
    }

    #[test]
    fn storage_between_rows_is_poison() {
        let desc = TensorDesc::f32([2, 8]).narrow(1, 2, 3).unwrap();
        let bytes = storage(
            &desc,
            &Fill::Floats(Class::U),
            &mut Rng::new("x", 0, 0),
            Poison::Nan,
        );
        let words: Vec<u32> = bytes
            .chunks_exact(4)
            .map(|w| u32::from_le_bytes(w.try_into().unwrap()))
            .collect();
        let poisoned: Vec<usize> = (0..words.len())
            .filter(|&i| words[i] == 0x7fc0_dead)
            .collect();
        assert_eq!(
            poisoned,
            [0, 1, 5, 6, 7, 8, 9],
            "all but the two rows of three"
        );
    }

    #[test]
    fn random_weights_are_moderate() {
        for &dtype in WEIGHT_TYPES {
            let n = 512;
            let desc = TensorDesc::new(dtype, [4, n]);
            let fill = Fill::Weight(Class::N);
            let bytes = storage(&desc, &fill, &mut Rng::new("w", 0, 0), Poison::Nan);
            let mut row = vec![0.0; n];
            format::decode_row(dtype, &bytes[..dtype.row_bytes(n).unwrap()], &mut row);
            let rms = (row.iter().map(|v| v * v).sum::<f32>() / n as f32).sqrt();
            assert!(rms > 1e-3 && rms < 200.0, "{dtype}: {rms}");
        }
    }

    #[test]
    fn normal_numbers_have_the_right_moments() {
        let mut rng = Rng::new("moments", 0, 0);
        let draws: Vec<f64> = (0..20_000).map(|_| rng.normal()).collect();
        let mean = draws.iter().sum::<f64>() / 20_000.0;
        let var = draws.iter().map(|v| v * v).sum::<f64>() / 20_000.0;
        assert!(
            mean.abs() < 0.03 && (var - 1.0).abs() < 0.05,
            "{mean} {var}"
        );
    }
}
