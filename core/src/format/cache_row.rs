//! The layout of one row (one cell of one head) of a key or value cache.
//!
//! A row of `head_dim` elements is stored as whole 32-bit words so that every backend reads it without unaligned
//! loads: first the narrow fields (the f16 scales) of all its blocks, padded to a word, then the remaining words of
//! the blocks in file order. Plain types are just their elements, padded to a word.

use crate::dtype::DType;

/// Byte offset and size of the field of a cache type's block that is narrower than a word.
fn narrow_field(dtype: DType) -> (usize, usize) {
    match dtype {
        DType::Q8_0 | DType::Q5_0 | DType::Q4_0 => (0, 2),
        _ => (0, 0),
    }
}

/// The word layout of a cache row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheRow {
    dtype: DType,
    head_dim: usize,
}

impl CacheRow {
    /// A row of `head_dim` elements; a partial last block is padded with zeros.
    pub fn new(dtype: DType, head_dim: usize) -> Self {
        Self { dtype, head_dim }
    }

    /// Elements after padding to whole blocks.
    pub fn padded_elems(self) -> usize {
        self.head_dim.next_multiple_of(self.dtype.block_elems())
    }

    fn n_blocks(self) -> usize {
        self.padded_elems() / self.dtype.block_elems()
    }

    /// Words taken by the narrow fields at the front of the row.
    pub fn narrow_words(self) -> usize {
        let (_, bytes) = narrow_field(self.dtype);
        (self.n_blocks() * bytes).div_ceil(4)
    }

    /// Words of one row.
    pub fn n_words(self) -> usize {
        if !self.dtype.is_block() {
            return (self.head_dim * self.dtype.block_bytes()).div_ceil(4);
        }
        let (_, narrow) = narrow_field(self.dtype);
        self.narrow_words() + self.n_blocks() * (self.dtype.block_bytes() - narrow) / 4
    }

    /// Writes the blocks of a row (file order) as the words of a cache row.
    ///
    /// # Panics
    /// If a slice does not have the size of the row.
    pub fn pack(self, blocks: &[u8], row: &mut [u8]) {
        assert_eq!(
            row.len(),
            self.n_words() * 4,
            "a cache row has n_words words"
        );
        row.fill(0);
        if !self.dtype.is_block() {
            row[..blocks.len()].copy_from_slice(blocks);
            return;
        }
        self.for_fields(|block, field, at| row[at].copy_from_slice(&blocks[block][field]));
    }

    /// The inverse of [`pack`](Self::pack).
    ///
    /// # Panics
    /// If a slice does not have the size of the row.
    pub fn unpack(self, row: &[u8], blocks: &mut [u8]) {
        assert_eq!(
            row.len(),
            self.n_words() * 4,
            "a cache row has n_words words"
        );
        if !self.dtype.is_block() {
            let n = blocks.len();
            blocks.copy_from_slice(&row[..n]);
            return;
        }
        self.for_fields(|block, field, at| blocks[block][field].copy_from_slice(&row[at]));
    }

    /// Calls `copy(block range, range inside the block, range in the row)` for each piece of each block.
    fn for_fields(
        self,
        mut copy: impl FnMut(std::ops::Range<usize>, std::ops::Range<usize>, std::ops::Range<usize>),
    ) {
        let size = self.dtype.block_bytes();
        let (narrow_at, narrow) = narrow_field(self.dtype);
        let words_at = self.narrow_words() * 4;
        for b in 0..self.n_blocks() {
            let block = b * size..(b + 1) * size;
            copy(
                block.clone(),
                narrow_at..narrow_at + narrow,
                b * narrow..(b + 1) * narrow,
            );
            let rest = words_at + b * (size - narrow);
            copy(block.clone(), 0..narrow_at, rest..rest + narrow_at);
            copy(
                block,
                narrow_at + narrow..size,
                rest + narrow_at..rest + size - narrow,
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dtype::CACHE_TYPES;

    #[test]
    fn pack_then_unpack_is_the_identity() {
        for &dtype in CACHE_TYPES {
            for head_dim in [32, 64, 96, 128, 256] {
                let row = CacheRow::new(dtype, head_dim);
                let n = dtype.row_bytes(row.padded_elems()).unwrap();
                let blocks: Vec<u8> = (0..n).map(|i| (i * 37 % 251) as u8).collect();
                let mut packed = vec![0; row.n_words() * 4];
                row.pack(&blocks, &mut packed);
                let mut back = vec![0; n];
                row.unpack(&packed, &mut back);
                assert_eq!(blocks, back, "{dtype} {head_dim}");
                assert!(
                    packed.len() - n < 4,
                    "{dtype} {head_dim}: at most one word of padding"
                );
            }
        }
    }

    #[test]
    fn scales_come_first() {
        let row = CacheRow::new(DType::Q8_0, 64);
        let mut blocks = vec![0; 68];
        blocks[0..2].copy_from_slice(&[1, 2]);
        blocks[34..36].copy_from_slice(&[3, 4]);
        let mut packed = vec![0; 68];
        row.pack(&blocks, &mut packed);
        assert_eq!(
            packed[..4],
            [1, 2, 3, 4],
            "two f16 scales in the first word"
        );
    }
}
