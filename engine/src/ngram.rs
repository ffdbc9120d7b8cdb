//! Tables of n-gram embeddings: the last tokens of a sequence, hashed, name the rows that a token reads.
//!
//! The op `ngram_hash` says how. Multipliers have more than 32 bits and are whole numbers of 64 all the way.
//!
//! A table may be larger than everything else of a model, and a token reads a few KiB of it. Where it does not fit device
//! memory it stays in the file: the host hashes, reads the rows and sends them with the step.

use gemel_core::TensorDesc;
use gemel_core::device::Device;
use gemel_core::error::DeviceError;
use gemel_core::graph::Tensor;
use rayon::prelude::*;

use crate::gguf::{FileRows, GgufError};
use crate::weights::{RowPlace, RowTable};

/// From so many rows on several cores read them.
const PARALLEL_ROWS: usize = 256;

/// How tokens name rows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NgramHashes {
    /// The token that ends a text: it hides all tokens before it, and stands for missing ones.
    pub eos: u32,
    /// Rows that an n-gram of each length names.
    pub n_heads_per_ngram: usize,
    /// Multiplier of the token itself, of the one before it, and so on: as many as the longest n-gram has tokens.
    pub multipliers: Vec<u64>,
    /// For each row that a token reads, the shortest n-grams first: number of rows to choose from, and the first one.
    pub heads: Vec<[u32; 2]>,
}

impl NgramHashes {
    /// Tokens of the longest n-gram.
    pub fn longest(&self) -> usize {
        self.multipliers.len()
    }

    /// The rows that tokens name, `n_heads` each, of contexts `[n_tokens, longest]`: a token and those before it in its
    /// sequence, the nearest first, negative where there is none.
    pub fn rows(&self, contexts: &[i32]) -> Vec<usize> {
        let n_heads = self.heads.len();
        let mut rows = Vec::with_capacity(contexts.len() / self.longest().max(1) * n_heads);
        for context in contexts.chunks_exact(self.longest().max(1)) {
            let mut mixed = 0;
            let mut is_cut = false;
            for (back, (&id, multiplier)) in context.iter().zip(&self.multipliers).enumerate() {
                // The token's own id hides nothing, whatever it is.
                let id = u32::try_from(id).ok();
                let seen = id.filter(|_| !is_cut).unwrap_or(self.eos);
                is_cut |= back > 0 && seen == self.eos;
                mixed ^= u64::from(seen).wrapping_mul(*multiplier);
                let heads = back.checked_sub(1).and_then(|length| {
                    let first = length * self.n_heads_per_ngram;
                    self.heads.get(first..first + self.n_heads_per_ngram)
                });
                rows.extend(
                    heads
                        .into_iter()
                        .flatten()
                        .map(|&[n, first]| (mixed % u64::from(n.max(1))) as usize + first as usize),
                );
            }
        }
        rows
    }

    /// The multipliers `[longest, 2]` and the heads `[n_heads, 2]` in device memory, as `ngram_hash` reads them.
    ///
    /// # Errors
    /// Out of memory, device lost.
    pub fn upload(&self, device: &dyn Device) -> Result<[Tensor; 2], DeviceError> {
        let multipliers: Vec<u32> = self
            .multipliers
            .iter()
            .flat_map(|&m| [m as u32, (m >> 32) as u32])
            .collect();
        let upload = |words: &[u32]| -> Result<Tensor, DeviceError> {
            let desc = TensorDesc::i32([words.len() / 2, 2]);
            let buffer = device.alloc(desc.n_bytes() as u64, "n-gram hashes")?;
            device.write(&buffer, 0, bytemuck::cast_slice(words))?;
            Ok(Tensor {
                desc,
                buffers: vec![buffer],
            })
        };
        Ok([upload(&multipliers)?, upload(&self.heads.concat())?])
    }
}

/// A table of n-gram embeddings.
#[derive(Clone, Debug)]
pub struct NgramTable {
    /// How tokens name rows.
    pub hashes: NgramHashes,
    /// Its rows.
    pub rows: RowTable,
}

impl NgramTable {
    /// Channels of all rows that a token reads.
    pub fn n_channels(&self) -> usize {
        self.hashes.heads.len() * self.rows.width
    }

    /// The rows in the file, if they are there.
    pub fn in_file(&self) -> Option<&FileRows> {
        match &self.rows.place {
            RowPlace::Device(_) => None,
            RowPlace::File(rows) => Some(rows),
        }
    }

    /// Reads the rows that these contexts name, see [`NgramHashes::rows`], from the file: `[n_tokens, n_channels]`.
    /// Empty if they are in device memory.
    ///
    /// # Errors
    /// The file has changed its length.
    pub fn read(&self, contexts: &[i32]) -> Result<Vec<f32>, GgufError> {
        let Some(file) = self.in_file() else {
            return Ok(Vec::new());
        };
        file.check_unchanged()?;
        let rows = self.hashes.rows(contexts);
        // All at once, so that the disk sees as many requests as it can take, and not one after the other.
        file.prefetch(rows.iter().copied());
        let mut values = vec![0.0; rows.len() * self.rows.width];
        let decode = |(out, &row): (&mut [f32], &usize)| {
            file.decode(row, out);
            for value in out {
                *value *= self.rows.scale;
            }
        };
        let width = self.rows.width.max(1);
        if rows.len() < PARALLEL_ROWS {
            values.chunks_mut(width).zip(&rows).for_each(decode);
        } else {
            let pieces = values.par_chunks_mut(width).zip(rows.par_iter());
            pieces.with_min_len(PARALLEL_ROWS / 4).for_each(decode);
        }
        Ok(values)
    }

    /// Has the rows that these contexts name read from the disk by a thread of its own, if they are in a file: what the
    /// next step will need, while this one runs.
    pub fn prefetch(&self, contexts: &[i32]) {
        let Some(file) = self.in_file() else {
            return;
        };
        let (file, rows) = (file.clone(), self.hashes.rows(contexts));
        let thread = std::thread::Builder::new().name("n-gram rows".to_owned());
        // Without the thread the next step waits for the disk instead.
        drop(thread.spawn(move || file.prefetch(rows)));
    }
}

/// The token at `position` of a sequence and the `n - 1` before it, the nearest first; -1 where there is none.
pub fn context(ids: &[u32], position: usize, n: usize) -> impl Iterator<Item = i32> + '_ {
    (0..n).map(move |back| {
        let id = position.checked_sub(back).and_then(|at| ids.get(at));
        id.map_or(-1, |id| id.cast_signed())
    })
}

#[cfg(test)]
#[allow(clippy::unreadable_literal, reason = "numbers as they are published")]
mod tests {
    use super::*;

    /// Of the model whose table has 320 million rows.
    fn published() -> NgramHashes {
        let sizes = [
            20000003, 20000023, 20000033, 20000047, 20000059, 20000063, 20000069, 20000077,
            20000081, 20000093, 20000107, 20000147, 20000153, 20000159, 20000161, 20000171,
        ];
        let heads = sizes.iter().scan(0, |next, &n| {
            let first = *next;
            *next += n;
            Some([n, first])
        });
        NgramHashes {
            eos: 248044,
            n_heads_per_ngram: 8,
            multipliers: vec![23703573157769, 20109073645365, 8052911324071],
            heads: heads.collect(),
        }
    }

    fn last_rows(hashes: &NgramHashes, ids: &[u32]) -> Vec<usize> {
        let context: Vec<i32> = context(ids, ids.len() - 1, hashes.longest()).collect();
        hashes.rows(&context)
    }

    #[test]
    fn rows_of_the_published_constants() {
        let hashes = published();
        assert_eq!(hashes.heads[15], [20000171, 300001275], "the last head");
        for (ids, pairs, triples) in [
            (
                &[9707][..],
                [16410909, 39682429, 55103279, 60931720],
                [169641436, 182022480, 209277433, 237891023],
            ),
            (
                &[9707, 11],
                [18158303, 36390029, 45652312, 70783524],
                [175132467, 192583600, 217919476, 237199054],
            ),
            (
                &[9707, 11, 1879],
                [6380558, 26411572, 56460672, 78566983],
                [164226950, 190352573, 210933682, 238908951],
            ),
            (
                &[9707, 248044, 1879],
                [4534223, 34461195, 53188831, 67623329],
                [160426620, 196479308, 211378993, 239143795],
            ),
            (
                &[248044, 9707, 1879],
                [19556458, 22264623, 53735970, 65927109],
                [162871545, 189762108, 212811403, 237189125],
            ),
            (
                &[9707, 11, 248044],
                [4679147, 20352667, 52599150, 74683044],
                [179487506, 195941560, 207086481, 221700584],
            ),
        ] {
            let rows = last_rows(&hashes, ids);
            assert_eq!(rows.len(), 16, "one a head");
            assert_eq!(rows[..4], pairs, "pairs of {ids:?}");
            assert_eq!(rows[8..12], triples, "triples of {ids:?}");
        }
    }

    #[test]
    fn the_first_multiplier_belongs_to_the_token_itself() {
        let hashes = NgramHashes {
            eos: 99,
            n_heads_per_ngram: 1,
            multipliers: vec![3, 5, 7],
            heads: vec![[101, 0], [103, 101]],
        };
        let ids = [7, 9, 11];
        let rows: Vec<_> = (1..=3).map(|n| last_rows(&hashes, &ids[..n])).collect();
        assert_eq!(rows, [[1, 124], [56, 136], [12, 162]]);
    }

    #[test]
    fn nothing_and_padding_name_no_row_outside_the_table() {
        let hashes = published();
        assert_eq!(hashes.rows(&[]), [0; 0], "no tokens");
        assert_eq!(hashes.rows(&[5, 6]), [0; 0], "no whole context");
        // Padding: a row, whichever, but none outside the table.
        assert!(hashes.rows(&[-1; 3]).iter().all(|&row| row < 320_001_446));
    }
}
