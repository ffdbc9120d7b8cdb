//! Cases of `ngram_hash`.

use std::sync::Arc;

use gemel_core::TensorDesc;
use gemel_core::ops::ngram_hash::NgramHash;

use super::{Builder, Case, thin};
use crate::fill::Fill;

/// Multipliers of the published `qwen4exp` model, then odd numbers that use all 64 bits.
const MULTIPLIERS: [u64; 8] = [
    23_703_573_157_769,
    20_109_073_645_365,
    8_052_911_324_071,
    0x9e37_79b9_7f4a_7c15,
    0xbf58_476d_1ce4_e5b9,
    0xffff_ffff_ffff_ffff,
    0x8000_0000_0000_0001,
    0x0000_0001_0000_0001,
];

fn words(numbers: impl IntoIterator<Item = u64>) -> Arc<[i32]> {
    numbers
        .into_iter()
        .flat_map(|n| [n as u32, (n >> 32) as u32].map(u32::cast_signed))
        .collect()
}

/// The table.
pub(super) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for n_ids in [2, 3, 5, 8] {
        for n_heads_per_ngram in [1, 2, 8] {
            for n_tokens in [1, 2, 63, 130] {
                // Small ids meet the end-of-text id and missing tokens often, large ones use all bits.
                for (name, ids, eos) in [
                    ("dense", Fill::Range(-1, 3), 2),
                    ("large", Fill::Range(-1000, i32::MAX - 1), 248_044),
                    ("missing", Fill::Range(-5, -1), 0),
                ] {
                    let n_heads = (n_ids - 1) * n_heads_per_ngram;
                    // Sizes of 1, primes of the published model, the largest, and none at all.
                    let sizes = [1, 20_000_003, 20_000_171, 101, i32::MAX as u64, 0];
                    let heads = (0..n_heads).map(|h| sizes[h % 6] | (h as u64 * 7) << 32);
                    cases.push(
                        Builder::new(NgramHash::NAME)
                            .param("n_tokens", n_tokens)
                            .param("n_ids", n_ids)
                            .param("heads", n_heads_per_ngram)
                            .param("ids", name)
                            .variant("i32")
                            .input("ids", TensorDesc::i32([n_tokens, n_ids]), ids)
                            .input(
                                "multipliers",
                                TensorDesc::i32([n_ids, 2]),
                                Fill::Ints(words(MULTIPLIERS[..n_ids].iter().copied())),
                            )
                            .input(
                                "heads",
                                TensorDesc::i32([n_heads, 2]),
                                Fill::Ints(words(heads)),
                            )
                            .build(NgramHash {
                                eos,
                                n_heads_per_ngram,
                            }),
                    );
                }
            }
        }
    }
    thin(cases, 4, 12)
}
