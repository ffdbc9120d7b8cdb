//! Tables of n-gram embeddings: the last tokens of a sequence, hashed, name the rows that a token reads.
//!
//! The op `ngram_hash` says how. Multipliers have more than 32 bits and are whole numbers of 64 all the way.

use gemel_core::TensorDesc;
use gemel_core::device::Device;
use gemel_core::error::DeviceError;
use gemel_core::graph::Tensor;

use crate::weights::WeightId;

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
    /// Channels of a row.
    pub width: usize,
    /// Its rows, `[n_rows, width]`.
    pub rows: WeightId,
}

impl NgramTable {
    /// Channels of all rows that a token reads.
    pub fn n_channels(&self) -> usize {
        self.hashes.heads.len() * self.width
    }
}
