//! Decoders and encoders against the Python package `gguf` 0.19.0 (`scripts/format_vectors.py`), against
//! hand-computed values, and against the properties that cache rows rely on.

#![allow(clippy::float_cmp, reason = "formats are exact")]

use std::path::PathBuf;

use gemel_core::DType;
use gemel_core::dtype::{CACHE_TYPES, WEIGHT_TYPES};
use gemel_core::format::grid::{entry, iq1_value, iq2_value, iq3_s_value, iq3_xxs_value};
use gemel_core::format::scales::{first_non_finite, make_finite};
use gemel_core::format::{EncodeFlags, can_encode, codebook, decode_row, encode_row};
use proptest::prelude::*;
use proptest::test_runner::RngSeed;

/// The types with a quantising encoder.
const QUANTISED: [DType; 6] = [
    DType::Q8_0,
    DType::Q4_0,
    DType::Q4_1,
    DType::Q5_0,
    DType::Q5_1,
    DType::MXFP4,
];

/// Blocks in a sum of `sums.txt`.
const N_SUM_BLOCKS: usize = 4096;

#[test]
fn decoders_match_the_package_on_stored_blocks() {
    let mut n_types = 0;
    for &dtype in WEIGHT_TYPES {
        let Ok(golden) = std::fs::read(golden_path(&format!("{dtype}.bin"))) else {
            continue;
        };
        n_types += 1;
        let block = dtype.block_bytes() + 4 * dtype.block_elems();
        assert_eq!(golden.len() % block, 0, "{dtype}: size of the golden file");
        let (bytes, expected) = golden.split_at(golden.len() / block * dtype.block_bytes());
        let expected = floats(expected);
        let actual = decode(dtype, bytes);
        for (i, (a, e)) in actual.iter().zip(&expected).enumerate() {
            assert!(
                same(*a, *e),
                "{dtype}: element {i} is {a:e} ({:08x}), expected {e:e} ({:08x})",
                a.to_bits(),
                e.to_bits()
            );
        }
    }
    // All but f32 and the two types that the package does not know.
    assert_eq!(n_types, WEIGHT_TYPES.len() - 3, "types with a golden file");
}

#[test]
fn decoders_match_the_package_on_random_blocks() {
    let mut n_types = 0;
    for (what, name, sum) in sums() {
        if what != "decode" {
            continue;
        }
        n_types += 1;
        let dtype = DType::from_name(&name).unwrap();
        let bytes = random_blocks(dtype, u64::from(gguf_id(dtype)), N_SUM_BLOCKS);
        assert_eq!(
            first_non_finite(dtype, &bytes),
            None,
            "{dtype}: valid blocks"
        );
        let words = decode(dtype, &bytes)
            .into_iter()
            .map(|x| (x + 0.0).to_bits());
        assert_eq!(
            weighted_sum(words),
            sum,
            "{dtype}: sum over {N_SUM_BLOCKS} blocks"
        );
    }
    assert_eq!(n_types, WEIGHT_TYPES.len() - 5, "types with a sum");
}

#[test]
fn codebooks_match_the_package() {
    let mut n_books = 0;
    for (what, name, sum) in sums() {
        if what != "codebook" {
            continue;
        }
        n_books += 1;
        let dtype = DType::from_name(&name).unwrap();
        let table = codebook(dtype).unwrap();
        let (n_values, bits, value): (usize, usize, fn(u32) -> u32) = match dtype {
            DType::IQ1_S => (8, 2, |code| iq1_value(code).cast_unsigned()),
            DType::IQ3_XXS => (4, 3, iq3_xxs_value),
            DType::IQ3_S => (4, 3, iq3_s_value),
            _ => (8, 2, iq2_value),
        };
        let values = (0..2 * table.len()).flat_map(|index| {
            let entry = entry(table, index);
            assert_eq!(
                entry >> (n_values * bits),
                0,
                "{dtype}: bits above entry {index}"
            );
            (0..n_values).map(move |k| value((entry >> (bits * k)) & ((1 << bits) - 1)))
        });
        assert_eq!(weighted_sum(values), sum, "{dtype}: sum of the codebook");
    }
    assert_eq!(n_books, 6, "codebooks");
    assert_eq!(
        codebook(DType::IQ1_M),
        codebook(DType::IQ1_S),
        "iq1_m shares the table of iq1_s"
    );
    assert_eq!(codebook(DType::Q4_K), None, "q4_k has no codebook");
}

#[test]
fn q1_0_by_hand() {
    let mut block = [0_u8; 18];
    block[..2].copy_from_slice(&[0x00, 0xc1]); // -2.5
    block[2] = 0b0000_0101;
    block[17] = 0b1000_0000;
    let mut expected = [2.5; 128];
    for i in [0, 2, 127] {
        expected[i] = -2.5;
    }
    assert_eq!(decode(DType::Q1_0, &block), expected);
}

#[test]
fn q2_0_by_hand() {
    let mut block = [0b0101_0101_u8; 18];
    block[..2].copy_from_slice(&[0x00, 0x34]); // 0.25
    block[2] = 0b11_10_01_00;
    block[17] = 0b00_01_01_11;
    let mut expected = [0.0; 64];
    expected[..4].copy_from_slice(&[-0.25, 0.0, 0.25, 0.5]);
    expected[60..].copy_from_slice(&[0.5, 0.0, 0.0, -0.25]);
    assert_eq!(decode(DType::Q2_0, &block), expected);
}

#[test]
fn plain_types_are_cast() {
    assert_eq!(decode(DType::F32, &1.5e-42_f32.to_le_bytes()), [1.5e-42]);
    assert_eq!(decode(DType::I8, &[0x80, 0x7f]), [-128.0, 127.0]);
    assert_eq!(decode(DType::I16, &(-300_i16).to_le_bytes()), [-300.0]);
    assert_eq!(
        decode(DType::I32, &(-70_000_i32).to_le_bytes()),
        [-70_000.0]
    );
    assert_eq!(
        decode(DType::U32, &u32::MAX.to_le_bytes()),
        [4_294_967_296.0]
    );
    assert_eq!(
        decode(DType::I64, &(1_i64 << 40).to_le_bytes()),
        [1_099_511_627_776.0]
    );
    assert_eq!(decode(DType::F64, &0.1_f64.to_le_bytes()), [0.1]);
}

#[test]
fn a_row_is_its_blocks_at_any_alignment() {
    for &dtype in WEIGHT_TYPES {
        let (size, elems) = (dtype.block_bytes(), dtype.block_elems());
        for n_blocks in [1, 2, 7, 33] {
            let blocks = random_blocks(dtype, 5, n_blocks);
            let expected: Vec<f32> = blocks.chunks(size).flat_map(|b| decode(dtype, b)).collect();
            for shift in 0..4 {
                let mut shifted = vec![0; shift];
                shifted.extend_from_slice(&blocks);
                let mut actual = vec![f32::NAN; n_blocks * elems];
                decode_row(dtype, &shifted[shift..], &mut actual);
                let equal = actual
                    .iter()
                    .zip(&expected)
                    .all(|(a, e)| a.to_bits() == e.to_bits());
                assert!(equal, "{dtype}: {n_blocks} blocks at offset {shift}");
            }
        }
    }
}

#[test]
fn encoders_match_the_package_on_stored_blocks() {
    for dtype in QUANTISED {
        let golden = std::fs::read(golden_path(&format!("{dtype}.encode.bin"))).unwrap();
        let n_blocks = golden.len() / (128 + dtype.block_bytes());
        let (x, expected) = golden.split_at(128 * n_blocks);
        let (bytes, flags) = encode(dtype, &floats(x));
        assert_eq!(flags, EncodeFlags::default(), "{dtype}: finite input");
        for (i, (a, e)) in bytes
            .chunks(dtype.block_bytes())
            .zip(expected.chunks(dtype.block_bytes()))
            .enumerate()
        {
            assert_eq!(a, e, "{dtype}: block {i}");
        }
    }
}

#[test]
fn encoders_match_the_package_on_random_blocks() {
    let mut n_types = 0;
    for (what, name, sum) in sums() {
        if what != "encode" {
            continue;
        }
        n_types += 1;
        let dtype = DType::from_name(&name).unwrap();
        let x = encode_input(u64::from(gguf_id(dtype)) + 200, N_SUM_BLOCKS);
        let (bytes, _) = encode(dtype, &x);
        assert_eq!(
            weighted_sum(bytes.into_iter().map(u32::from)),
            sum,
            "{dtype}: sum over {N_SUM_BLOCKS} blocks"
        );
    }
    assert_eq!(n_types, QUANTISED.len(), "types with a sum");
}

#[test]
fn zero_rows_are_plus_zero() {
    for &dtype in CACHE_TYPES {
        for zero in [0.0, -0.0] {
            let (bytes, flags) = encode(dtype, &[zero; 32]);
            assert!(!flags.non_finite, "{dtype}");
            assert!(decode(dtype, &bytes).iter().all(|x| *x == 0.0), "{dtype}");
            if dtype.is_block() {
                let mut x = vec![1.0_f32; 32];
                x[7] = 0.5;
                let scale = |bytes: &[u8]| u16::from_le_bytes([bytes[0], bytes[1]]);
                assert_eq!(scale(&bytes), 0, "{dtype}: +0");
                assert_ne!(scale(&encode(dtype, &x).0), 0, "{dtype}");
            }
        }
    }
}

/// Scales that f16 cannot hold become zero, and so do all the codes.
#[test]
fn vanishing_rows_become_zero() {
    for dtype in [
        DType::Q8_0,
        DType::Q4_0,
        DType::Q5_0,
        DType::Q4_1,
        DType::Q5_1,
    ] {
        for tiny in [1e-9_f32, 1e-40, f32::from_bits(1)] {
            let x: Vec<f32> = (0..32).map(|i| tiny * (i as f32 - 16.0) / 16.0).collect();
            assert_eq!(
                encode(dtype, &x),
                encode(dtype, &[0.0; 32]),
                "{dtype}: {tiny:e}"
            );
        }
    }
    // One ulp of f16 subnormals survives: am = 127 * 2^-24.
    let x = [127.0 * 2.0_f32.powi(-24); 32];
    let (bytes, _) = encode(DType::Q8_0, &x);
    assert_eq!(bytes[..3], [1, 0, 127], "smallest q8_0 scale");
    assert_eq!(decode(DType::Q8_0, &bytes), x);
}

#[test]
fn non_finite_elements_are_flagged_and_never_stored() {
    for dtype in CACHE_TYPES.iter().copied().chain([DType::MXFP4]) {
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let mut x = [1.0_f32; 64];
            x[40] = bad;
            let (bytes, flags) = encode(dtype, &x);
            assert!(flags.non_finite, "{dtype}: {bad} is flagged");
            assert_eq!(first_non_finite(dtype, &bytes), None, "{dtype}: {bad}");
            let y = decode(dtype, &bytes);
            assert!(
                y.iter().all(|y| y.is_finite()),
                "{dtype}: {bad} decodes to a finite row"
            );
            assert!(
                y[..32].iter().all(|y| (y - 1.0).abs() < 0.07),
                "{dtype}: the other block is whole"
            );
            if bad.is_nan() {
                assert_eq!(y[40], 0.0, "{dtype}: NaN becomes 0");
                // Exactly the row that has 0 there.
                x[40] = 0.0;
                assert_eq!(bytes, encode(dtype, &x).0, "{dtype}");
            } else {
                assert!(
                    y[40] * bad.signum() > 60_000.0,
                    "{dtype}: {bad} saturates, got {}",
                    y[40]
                );
                x[40] = f32::MAX * bad.signum();
                assert_eq!(
                    (bytes, false),
                    {
                        let (b, f) = encode(dtype, &x);
                        (b, f.non_finite)
                    },
                    "{dtype}"
                );
            }
        }
    }
}

/// Beyond the f16 range scales saturate at 65504 and elements at the largest code; nothing overflows.
#[test]
fn the_f16_range_saturates() {
    let mut x = [0.0_f32; 32];
    x[0] = -3.0e8;
    x[1] = 2.0 * 65504.0;
    x[2] = 3.0e8;
    let codes = |dtype| {
        decode(dtype, &encode(dtype, &x).0)
            .into_iter()
            .take(4)
            .map(|y| y / 65504.0)
            .collect::<Vec<_>>()
    };
    assert_eq!(codes(DType::Q8_0), [-127.0, 2.0, 127.0, 0.0]);
    // The first of the largest magnitudes gets code 0, which is -8 or -16 scales.
    assert_eq!(codes(DType::Q4_0), [-8.0, 2.0, 7.0, 0.0]);
    assert_eq!(codes(DType::Q5_0), [-16.0, 2.0, 15.0, 0.0]);
    // The minimum is -65504.
    assert_eq!(codes(DType::Q4_1), [-1.0, 2.0, 14.0, 0.0]);
    assert_eq!(codes(DType::Q5_1), [-1.0, 2.0, 30.0, 0.0]);
    for dtype in [DType::F16, DType::BF16] {
        let max = if dtype == DType::F16 {
            65504.0
        } else {
            3.389_531_4e38
        };
        assert_eq!(
            decode(dtype, &encode(dtype, &[f32::MAX, f32::MIN]).0),
            [max, -max],
            "{dtype}"
        );
    }
    // A whole row beyond the range, on either side.
    for far in [1.0e9, -1.0e9, f32::MAX, f32::MIN] {
        for dtype in QUANTISED {
            let y = decode(dtype, &encode(dtype, &[far; 32]).0);
            assert!(
                y.iter()
                    .all(|y| y.is_finite() && y * far.signum() >= 65504.0),
                "{dtype}: {far} -> {}",
                y[0]
            );
        }
    }
}

/// f16 stores round to nearest even.
#[test]
fn half_types_round_to_nearest_even() {
    let x = [
        1.0 + 2.0_f32.powi(-11),
        1.0 + 3.0 * 2.0_f32.powi(-11),
        2.0_f32.powi(-25),
        3.0 * 2.0_f32.powi(-25),
        -0.0,
    ];
    let bits = |dtype, x: &[f32]| {
        encode(dtype, x)
            .0
            .chunks(2)
            .map(|b| u16::from_le_bytes([b[0], b[1]]))
            .collect::<Vec<_>>()
    };
    assert_eq!(bits(DType::F16, &x), [0x3c00, 0x3c02, 0, 2, 0x8000]);
    let x = [
        1.0 + 2.0_f32.powi(-8),
        1.0 + 3.0 * 2.0_f32.powi(-8),
        f32::from_bits(0x0001_8000),
    ];
    assert_eq!(bits(DType::BF16, &x), [0x3f80, 0x3f82, 2]);
}

#[test]
fn mxfp4_ties_go_to_the_smaller_magnitude() {
    let mut x = [0.0_f32; 32];
    // am = 4 makes the unit 1; every midpoint and its neighbours.
    let cases = [
        (4.0, 4.0),
        (0.25, 0.0),
        (0.2501, 0.5),
        (-0.25, 0.0),
        (0.75, 0.5),
        (-0.76, -1.0),
        (1.25, 1.0),
        (1.75, 1.5),
        (2.5, 2.0),
        (-2.5, -2.0),
        (2.6, 3.0),
        (3.5, 3.0),
        (3.6, 4.0),
        (5.0, 4.0),
        (5.1, 6.0),
        (7.9, 6.0),
    ];
    for (x, case) in x.iter_mut().zip(cases) {
        *x = case.0;
    }
    let (bytes, _) = encode(DType::MXFP4, &x);
    assert_eq!(bytes[0], 127, "unit 1");
    for ((x, expected), y) in cases.into_iter().zip(decode(DType::MXFP4, &bytes)) {
        assert_eq!(y, expected, "{x}");
    }
    // A negative that rounds to zero is code 0, not code 8.
    assert_eq!(bytes[1 + 3] & 15, 0, "-0.25");
    // The smallest exponents.
    assert_eq!(
        encode(DType::MXFP4, &[2.0_f32.powi(-127); 32]).0,
        [vec![0], vec![0x22; 16]].concat()
    );
}

#[test]
fn only_cache_types_and_mxfp4_have_encoders() {
    for &dtype in WEIGHT_TYPES {
        let expected = CACHE_TYPES.contains(&dtype) || dtype == DType::MXFP4;
        assert_eq!(can_encode(dtype), expected, "{dtype}");
    }
}

/// A row of ordinary numbers: signs, a common scale, sometimes an offset, sometimes zeros.
fn row() -> impl Strategy<Value = Vec<f32>> {
    (
        prop::collection::vec(-1.0_f32..1.0, 32),
        -18_i32..14,
        prop_oneof![Just(0.0_f32), -3.0_f32..3.0],
        prop::collection::vec(prop::bool::weighted(0.1), 32),
    )
        .prop_map(|(x, exponent, offset, zeros)| {
            let scale = 2.0_f32.powi(exponent);
            x.iter()
                .zip(zeros)
                .map(|(x, zero)| if zero { 0.0 } else { (x + offset) * scale })
                .collect()
        })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4000, failure_persistence: None, rng_seed: RngSeed::Fixed(1), ..ProptestConfig::default() })]

    /// Writing a cache row that was read changes nothing.
    #[test]
    fn encoding_a_decoded_row_gives_its_bytes(x in row()) {
        for dtype in CACHE_TYPES.iter().copied().chain([DType::MXFP4]) {
            let (bytes, _) = encode(dtype, &x);
            let again = encode(dtype, &decode(dtype, &bytes)).0;
            prop_assert_eq!(bytes, again, "{}", dtype);
        }
    }

    #[test]
    fn the_error_of_a_round_trip_is_bounded(x in row()) {
        let am = x.iter().fold(0.0_f32, |am, x| am.max(x.abs()));
        let sm = x.iter().fold(0.0_f32, |sm, &x| if x.abs() > sm.abs() { x } else { sm });
        let (min, max) = x.iter().fold((f32::MAX, f32::MIN), |(min, max), &x| (min.min(x), max.max(x)));
        let tiny = 2.0_f32.powi(-25);
        let half_ulp = 2.0_f32.powi(-11);
        // All codes move with the rounding of d, all values with that of m.
        let ends = half_ulp * ((max - min) + min.abs());
        for dtype in QUANTISED {
            let y = decode(dtype, &encode(dtype, &x).0);
            for (x, y) in x.iter().zip(y) {
                // The side opposite to sm has one code less and clips.
                let clips = x * sm < 0.0;
                let one_sided = |codes: f32| am / codes * if clips { 2.0 } else { 1.0 } + am * half_ulp + codes / 2.0 * tiny;
                let bound = match dtype {
                    DType::Q8_0 => am / 254.0 + am * half_ulp + 127.0 * tiny,
                    DType::Q4_0 => one_sided(16.0),
                    DType::Q5_0 => one_sided(32.0),
                    DType::Q4_1 => (max - min) / 30.0 + ends + 16.0 * tiny,
                    DType::Q5_1 => (max - min) / 62.0 + ends + 32.0 * tiny,
                    _ => am / 4.0,
                };
                // Plus the rounding of the bound and of the decoded product themselves.
                prop_assert!((x - y).abs() <= bound * (1.0 + 1e-5), "{dtype}: {x:e} -> {y:e}, bound {bound:e}");
            }
        }
    }
}

fn decode(dtype: DType, bytes: &[u8]) -> Vec<f32> {
    let mut x = vec![f32::NAN; bytes.len() / dtype.block_bytes() * dtype.block_elems()];
    decode_row(dtype, bytes, &mut x);
    x
}

fn encode(dtype: DType, x: &[f32]) -> (Vec<u8>, EncodeFlags) {
    let mut bytes = vec![0xee; dtype.row_bytes(x.len()).expect("whole blocks")];
    let flags = encode_row(dtype, x, &mut bytes);
    (bytes, flags)
}

/// Equal bits, or both zero.
fn same(a: f32, b: f32) -> bool {
    a.to_bits() == b.to_bits() || a == 0.0 && b == 0.0
}

fn golden_path(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("tests/golden/formats")
        .join(name)
}

/// What is summed, the name of the type, and the sum.
fn sums() -> Vec<(String, String, u64)> {
    let text = std::fs::read_to_string(golden_path("sums.txt")).expect("sums.txt");
    text.lines()
        .map(|line| {
            let fields: Vec<&str> = line.split(' ').collect();
            (
                fields[0].to_owned(),
                fields[1].to_owned(),
                u64::from_str_radix(fields[2], 16).expect("a sum in hexadecimal"),
            )
        })
        .collect()
}

fn gguf_id(dtype: DType) -> u32 {
    dtype.gguf_id().expect("a type of files")
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    decode(DType::F32, bytes)
}

/// Output `i` (from 1) of the generator splitmix64.
fn splitmix64(seed: u64, i: u64) -> u64 {
    let z = seed.wrapping_add(i.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Sum of words, each times its own odd weight, modulo 2^64.
fn weighted_sum(words: impl Iterator<Item = u32>) -> u64 {
    words.zip(1..).fold(0_u64, |sum, (word, i)| {
        sum.wrapping_add(u64::from(word).wrapping_mul(splitmix64(0, i) | 1))
    })
}

fn random_blocks(dtype: DType, seed: u64, n: usize) -> Vec<u8> {
    let n_bytes = n * dtype.block_bytes();
    let mut bytes: Vec<u8> = (1..=n_bytes.div_ceil(8) as u64)
        .flat_map(|i| splitmix64(seed, i).to_le_bytes())
        .take(n_bytes)
        .collect();
    make_finite(dtype, &mut bytes);
    bytes
}

/// Blocks of 32 floats as `encode_input` of the script makes them.
fn encode_input(seed: u64, n: usize) -> Vec<f32> {
    (0..n as u64)
        .flat_map(|block| {
            let word = move |k| splitmix64(seed, block * 33 + k + 1);
            let scale = 2.0_f32.powi((word(32) % 28) as i32 - 39);
            (0..32).map(move |k| {
                let x = (word(k) >> 40) as i32 - (1 << 23);
                let x = if block % 4 == 0 { x & -(1 << 19) } else { x };
                x as f32 * scale
            })
        })
        .collect()
}
