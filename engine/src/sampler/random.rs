//! Random numbers without a state: a number is a function of where it is used.
//!
//! A generator with a state ties each number to how many were drawn before, so that a refused draft or
//! another order of slots changes all later text. Here the counter is (sequence, position, stream) and
//! the key is the seed.
//!
//! # Source
//! Philox 4x32-10: Salmon, Moraes, Dror and Shaw 2011, *Parallel random numbers: as easy as 1, 2, 3*,
//! section 3.3.

/// What a random number is for. Different streams at one position are independent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stream {
    /// The draw of a token.
    Draw,
    /// A second draw after the first was refused.
    Redraw,
    /// XTC's decision whether to act.
    Xtc,
    /// The draw of a draft token.
    Draft,
    /// The decision whether to accept a draft token.
    Accept,
    /// The draw from what is left after a draft token was refused.
    Residual,
}

/// A number in `[0, 1)` with 53 random bits.
pub fn uniform(seed: u64, sequence: u32, position: u64, stream: Stream) -> f64 {
    let key = [seed as u32, (seed >> 32) as u32];
    let counter = [
        position as u32,
        (position >> 32) as u32,
        sequence,
        stream as u32,
    ];
    let [a, b, ..] = philox(counter, key);
    let bits = (u64::from(a) << 32 | u64::from(b)) >> 11;
    bits as f64 * (1.0 / (1_u64 << 53) as f64)
}

/// Ten rounds of Philox on four words.
fn philox(mut counter: [u32; 4], mut key: [u32; 2]) -> [u32; 4] {
    /// Multipliers of the two lanes.
    const MULTIPLY: [u64; 2] = [0xD251_1F53, 0xCD9E_8D57];
    /// Key steps: golden ratio and square root of 3, minus 1, in 32 bits.
    const STEP: [u32; 2] = [0x9E37_79B9, 0xBB67_AE85];
    for _ in 0..10 {
        let a = MULTIPLY[0] * u64::from(counter[0]);
        let b = MULTIPLY[1] * u64::from(counter[2]);
        counter = [
            (b >> 32) as u32 ^ counter[1] ^ key[0],
            b as u32,
            (a >> 32) as u32 ^ counter[3] ^ key[1],
            a as u32,
        ];
        key = [key[0].wrapping_add(STEP[0]), key[1].wrapping_add(STEP[1])];
    }
    counter
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The three vectors that the authors publish for Philox 4x32-10.
    #[test]
    fn philox_vectors() {
        assert_eq!(
            philox([0; 4], [0; 2]),
            [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]
        );
        assert_eq!(
            philox([u32::MAX; 4], [u32::MAX; 2]),
            [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]
        );
        assert_eq!(
            philox(
                [0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344],
                [0xa409_3822, 0x299f_31d0]
            ),
            [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1]
        );
    }

    #[test]
    fn streams_positions_and_sequences_differ() {
        let base = uniform(1, 0, 0, Stream::Draw);
        assert!((0.0..1.0).contains(&base), "in range");
        let others = [
            uniform(2, 0, 0, Stream::Draw),
            uniform(1 << 32, 0, 0, Stream::Draw),
            uniform(1, 1, 0, Stream::Draw),
            uniform(1, 0, 1, Stream::Draw),
            uniform(1, 0, 1 << 32, Stream::Draw),
            uniform(1, 0, 0, Stream::Redraw),
            uniform(1, 0, 0, Stream::Xtc),
        ];
        for other in others {
            assert!((base - other).abs() > 1e-9, "{base} twice");
        }
    }
}
