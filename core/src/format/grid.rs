//! How the codebook tables are read: entry, code, value, signs.
//!
//! A table holds one 16-bit entry per index, two to a word, the even index in the low half. An entry
//! is a list of codes, the first in the lowest bits:
//!
//! | table | values | bits per code | value of code `c` |
//! |---|---|---|---|
//! | `iq2_xxs` `iq2_xs` `iq2_s` | 8 | 2 | `8 + 17c + (c >> 1)`: 8, 25, 43 |
//! | `iq3_xxs` | 4 | 3 | `4 + 8c + 2((c + 1) >> 3)`: 4, 12, ..., 52, 62 |
//! | `iq3_s` | 4 | 3 | `1 + 2c`: 1, 3, ..., 15 |
//! | `iq1_s` `iq1_m` | 8 | 2 | `c - 1`: -1, 0, 1 |

/// The 16-bit entry at `index`.
#[inline]
pub fn entry(table: &[u32], index: usize) -> u32 {
    (table[index / 2] >> (16 * (index % 2))) & 0xffff
}

/// The value of a two-bit code of the `iq2_*` tables.
#[inline]
pub fn iq2_value(code: u32) -> u32 {
    8 + 17 * code + (code >> 1)
}

/// The value of a three-bit code of the `iq3_xxs` table.
#[inline]
pub fn iq3_xxs_value(code: u32) -> u32 {
    4 + 8 * code + 2 * ((code + 1) >> 3)
}

/// The value of a three-bit code of the `iq3_s` table.
#[inline]
pub fn iq3_s_value(code: u32) -> u32 {
    1 + 2 * code
}

/// The value of a two-bit code of the `iq1` table.
#[inline]
pub fn iq1_value(code: u32) -> i32 {
    code as i32 - 1
}

/// Eight sign bits from seven: the eighth makes the number of minus signs even.
#[inline]
pub fn seven_signs(signs: u32) -> u32 {
    signs | (signs.count_ones() & 1) << 7
}

/// `-x` if bit `k` of `signs` is set.
#[inline]
fn signed(x: f32, signs: u32, k: usize) -> f32 {
    f32::from_bits(x.to_bits() ^ ((signs >> k) & 1) << 31)
}

/// Eight elements of an `iq2_*` entry.
#[inline]
pub(super) fn decode_iq2(table: &[u32], index: usize, scale: f32, signs: u32, out: &mut [f32; 8]) {
    let entry = entry(table, index);
    for (k, x) in out.iter_mut().enumerate() {
        *x = signed(scale * iq2_value((entry >> (2 * k)) & 3) as f32, signs, k);
    }
}

/// Four elements of an `iq3_*` entry.
#[inline]
pub(super) fn decode_iq3(
    table: &[u32],
    value: impl Fn(u32) -> u32,
    index: usize,
    scale: f32,
    signs: u32,
    out: &mut [f32; 4],
) {
    let entry = entry(table, index);
    for (k, x) in out.iter_mut().enumerate() {
        *x = signed(scale * value((entry >> (3 * k)) & 7) as f32, signs, k);
    }
}

/// Eight elements of an `iq1_*` entry.
#[inline]
pub(super) fn decode_iq1(table: &[u32], index: usize, scale: f32, delta: f32, out: &mut [f32; 8]) {
    let entry = entry(table, index);
    for (k, x) in out.iter_mut().enumerate() {
        *x = scale * (iq1_value((entry >> (2 * k)) & 3) as f32 + delta);
    }
}
