//! Decoders whose residual has several streams: `qwen4exp`.

use super::blocks::mix;
use super::outline::Outline;
use super::sizes::{Hybrid, experts_and_shared, hybrid_keys, is_attention, mixer};
use crate::gguf::{Array, Value};

/// A decoder of delta nets and attention to selected blocks, with experts in every layer and a layer of n-grams.
#[derive(Clone, Copy)]
pub(super) struct Streamed {
    pub(super) hybrid: Hybrid,
    /// Streams of the residual, width between the projections of their gates.
    pub(super) streams: [usize; 2],
    /// Heads, channels, most selected tokens, tokens of a block.
    pub(super) indexer: [usize; 4],
    pub(super) ngrams: Ngrams,
}

/// A layer of n-grams: the second one.
#[derive(Clone, Copy)]
pub(super) struct Ngrams {
    /// Tokens of the longest one, and rows that those of each length name.
    pub(super) longest: usize,
    pub(super) n_heads: usize,
    /// Channels of a row.
    pub(super) width: usize,
    /// Each head chooses among so many rows or a few more: the primes from here on.
    pub(super) n_rows: u64,
    /// The token that hides what comes before it, and the one that stands for images.
    pub(super) eos: usize,
    pub(super) image: usize,
}

/// Taps of the convolution along n-grams.
const N_TAPS: usize = 4;

/// Number of the layer with n-grams.
const NGRAM_LAYER: usize = 1;

/// The step of splitmix64.
const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

impl Ngrams {
    /// Factors of the last tokens in the hash, odd and small enough that products with ids stay below 2^63.
    fn multipliers(&self, n_vocab: usize) -> Vec<u64> {
        let most = (i64::MAX as u64 / n_vocab as u64 / 2).max(1);
        let random = |i: u64| mix(1234u64.wrapping_add(GOLDEN.wrapping_mul(i + 2)));
        (0..self.longest as u64)
            .map(|i| 2 * (random(i) % most) + 1)
            .collect()
    }

    /// Rows that each head chooses from.
    fn rows(&self) -> Vec<u64> {
        let is_prime = |n: &u64| (2..=n.isqrt()).all(|d| !n.is_multiple_of(d));
        let heads = (self.longest - 1) * self.n_heads;
        (self.n_rows..).filter(is_prime).take(heads).collect()
    }
}

/// Keys and tensors.
pub(super) fn streamed(o: &mut Outline, m: &Streamed) {
    let (hybrid, ngrams) = (&m.hybrid, &m.ngrams);
    let (d, n_layers) = (hybrid.dense.d_model, hybrid.dense.n_layers);
    let ([n_streams, low_rank], [index_heads, index_dim, top_k, ratio]) = (m.streams, m.indexer);
    let width = n_streams * d;
    hybrid_keys(o, hybrid);
    o.size("hyper_connection.count", n_streams);
    o.size("hyper_connection.low_rank", low_rank);
    o.size("attention.indexer.head_count", index_heads);
    o.size("attention.indexer.key_length", index_dim);
    o.size("attention.indexer.top_k", top_k);
    let ratio_of = |layer| {
        if is_attention(layer) { ratio as i32 } else { 0 }
    };
    let ratios = (0..n_layers).map(ratio_of).collect();
    o.key(
        "attention.compress_ratios",
        Value::Array(Array::I32(ratios)),
    );
    o.size("ple.layers", NGRAM_LAYER);
    o.size("ple.ngram_size", ngrams.longest);
    o.size("ple.heads_per_ngram", ngrams.n_heads);
    o.size("ple.conv_kernel", N_TAPS);
    o.size("ple.eos_token_id", ngrams.eos);
    o.size("ple.image_token_id", ngrams.image);
    o.size("embedding_length_per_layer_input", ngrams.width);
    let rows = ngrams.rows();
    let offsets = rows.iter().scan(0, |at, n| {
        let offset = *at;
        *at += n;
        Some(offset)
    });
    for (name, values) in [
        (
            "layer_multipliers",
            ngrams.multipliers(hybrid.dense.n_vocab),
        ),
        ("head_offsets", offsets.collect()),
        ("head_vocab_sizes", rows.clone()),
    ] {
        o.key(&format!("ple.{name}"), Value::Array(Array::U64(values)));
    }
    o.embedding_and_head(hybrid.dense.n_vocab, d, hybrid.dense.tied);
    // What a token reads of the table is of size 1, as if it had been normed.
    let n_rows = rows.iter().sum::<u64>().next_multiple_of(128) as usize;
    o.table("per_layer_token_embd", &[n_rows, ngrams.width], 1.0);
    let mean = |o: &mut Outline, label: &str| {
        // The gates are a half in the middle.
        o.norm(&format!("{label}_norm"), width, 2.0);
        o.matrix(&format!("{label}_down"), &[low_rank, width]);
        o.matrix(&format!("{label}_up"), &[width, low_rank]);
    };
    mean(o, "output_hc");
    for layer in 0..n_layers {
        let name = |what: &str| format!("blk.{layer}.{what}");
        for part in ["hc_attn", "hc_ffn"] {
            mean(o, &name(part));
            o.matrix(&name(&format!("{part}_inject")), &[n_streams, width]);
        }
        if layer == NGRAM_LAYER {
            let d_in = rows.len() * ngrams.width;
            o.matrix(&name("ple_key"), &[width, d_in]);
            o.matrix(&name("ple_value"), &[d, d_in]);
            for part in ["ple_norm_key", "ple_norm_query", "ple_norm_conv"] {
                o.norm(&name(part), width, 1.0);
            }
            o.vector(name("ple_conv1d.weight"), &[width, N_TAPS], 0.0, 0.5);
        }
        mixer(o, hybrid, layer);
        if is_attention(layer) {
            o.float_matrix(&name("indexer.q_proj"), &[index_heads * index_dim, d]);
            o.float_matrix(&name("indexer.k_proj"), &[index_dim, d]);
            o.norm(&name("indexer.q_norm"), index_dim, 1.0);
            o.norm(&name("indexer.k_norm"), index_dim, 1.0);
        }
        experts_and_shared(o, layer, &hybrid.dense);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashes_are_those_of_the_published_model() {
        let ngrams = Ngrams {
            longest: 3,
            n_heads: 8,
            width: 160,
            n_rows: 20_000_000,
            eos: 248_044,
            image: 248_056,
        };
        assert_eq!(
            ngrams.multipliers(248_320),
            [23_703_573_157_769, 20_109_073_645_365, 8_052_911_324_071]
        );
        let rows = ngrams.rows();
        assert_eq!(rows[..3], [20_000_003, 20_000_023, 20_000_033]);
        assert_eq!(rows[15], 20_000_171);
        assert_eq!(rows.iter().sum::<u64>(), 320_001_446);
    }
}
