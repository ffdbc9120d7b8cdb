//! `tile8`: the one layout of weights in device memory, shared by all backends.
//!
//! A matrix `[n_rows, n_cols]` is cut into tiles of 8 rows x 1 block. Neighbouring invocations then own
//! neighbouring rows and read neighbouring words, and every word is aligned although most formats have
//! blocks of 2 modulo 4 bytes. The size is that of the file, apart from the padding of the last 8 rows.
//!
//! A block of the file is its *narrow* field (the one f16 scale, or the exponent byte of `mxfp4`, that
//! breaks the alignment; many formats have none) and whole 32-bit words around it. A tile is
//!
//! ```text
//! narrow of row 0, row 1, ... row 7 | word 0 of rows 0..7 | word 1 of rows 0..7 | ...
//! ```
//!
//! with the words in file order, the narrow field skipped, and `words_per_block` of them. In a buffer of u32,
//! with `narrow_words = 2 * narrow_bytes` and `tile_words = tile_bytes / 4`:
//!
//! - tile of (row, block): `t = (row / 8) * blocks_per_row + block`;
//! - word `w`: `t * tile_words + narrow_words + w * 8 + row % 8`;
//! - narrow f16: half `row % 2` (0 is low) of word `t * tile_words + row % 8 / 2`;
//! - narrow byte: byte `row % 4` of word `t * tile_words + row % 8 / 4`.
//!
//! Rows are padded with zero bytes to a multiple of 8. The block of a plain float type is one word: one f32,
//! or two f16 or bf16, the last word of an odd row padded with zero.
//!
//! ```
//! use gemel_core::{DType, format::tile8::Tile8};
//!
//! let tiles = Tile8::new(DType::Q8_0, 3, 64);
//! assert_eq!((tiles.blocks_per_row(), tiles.tile_bytes()), (2, 8 * 34));
//!
//! let rows: Vec<u8> = (0..3 * tiles.row_bytes()).map(|i| i as u8).collect();
//! let mut packed = vec![0; tiles.group_bytes()];
//! tiles.pack_rows(&rows, &mut packed);
//! assert_eq!(packed[2..4], rows[68..70], "the scale of row 1 follows that of row 0");
//!
//! let mut back = vec![0; rows.len()];
//! tiles.unpack_rows(&packed, &mut back);
//! assert_eq!(back, rows);
//! ```

use super::FormatError;
use crate::DType;
use crate::dtype::WEIGHT_TYPES;

/// Rows of a tile.
pub const TILE_ROWS: usize = 8;

/// A weight matrix in tiles of 8 rows x 1 block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Tile8 {
    dtype: DType,
    n_rows: usize,
    n_cols: usize,
    row_bytes: usize,
    packed_bytes: usize,
}

/// Offset and size in bytes of the field whose removal leaves whole words, `(0, 0)` if there is none.
fn narrow_field(dtype: DType) -> (usize, usize) {
    match dtype {
        DType::Q4_0
        | DType::Q5_0
        | DType::Q8_0
        | DType::IQ1_S
        | DType::IQ2_XXS
        | DType::IQ2_XS
        | DType::IQ2_S
        | DType::IQ3_XXS
        | DType::IQ3_S
        | DType::IQ4_NL
        | DType::Q1_0
        | DType::Q2_0 => (0, 2),
        DType::Q3_K => (108, 2),
        DType::Q6_K => (208, 2),
        DType::TQ1_0 => (52, 2),
        DType::TQ2_0 => (64, 2),
        DType::MXFP4 => (0, 1),
        DType::F32
        | DType::F16
        | DType::BF16
        | DType::I8
        | DType::I16
        | DType::I32
        | DType::I64
        | DType::F64
        | DType::U32
        | DType::Q4_1
        | DType::Q5_1
        | DType::Q2_K
        | DType::Q4_K
        | DType::Q5_K
        | DType::IQ1_M
        | DType::IQ4_XS
        | DType::NVFP4 => (0, 0),
    }
}

impl Tile8 {
    /// The layout of `n_rows` rows of `n_cols` elements, which the caller has checked.
    ///
    /// # Panics
    /// Where [`Self::try_new`] returns an error.
    pub fn new(dtype: DType, n_rows: usize, n_cols: usize) -> Self {
        match Self::try_new(dtype, n_rows, n_cols) {
            Ok(tiles) => tiles,
            Err(error) => panic!("{error}"),
        }
    }

    /// The layout of `n_rows` rows of `n_cols` elements as a file states them.
    ///
    /// # Errors
    /// If `dtype` is not a weight type, `n_cols` is not a whole number of blocks, or the size overflows.
    pub fn try_new(dtype: DType, n_rows: usize, n_cols: usize) -> Result<Self, FormatError> {
        if !WEIGHT_TYPES.contains(&dtype) {
            return Err(FormatError::NotAWeight { dtype });
        }
        let block_elems = dtype.block_elems();
        if !n_cols.is_multiple_of(block_elems) {
            return Err(FormatError::PartialBlock {
                dtype,
                n_cols,
                block_elems,
            });
        }
        let too_large = FormatError::TooLarge {
            dtype,
            n_rows,
            n_cols,
        };
        let row_bytes = dtype.row_bytes(n_cols).ok_or(too_large.clone())?;
        let mut tiles = Self {
            dtype,
            n_rows,
            n_cols,
            row_bytes,
            packed_bytes: 0,
        };
        tiles.packed_bytes = tiles
            .blocks_per_row()
            .checked_mul(tiles.tile_bytes())
            .and_then(|group_bytes| group_bytes.checked_mul(tiles.n_groups()))
            .ok_or(too_large)?;
        Ok(tiles)
    }

    /// The type of the elements.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Rows, without padding.
    pub fn n_rows(&self) -> usize {
        self.n_rows
    }

    /// Elements in a row.
    pub fn n_cols(&self) -> usize {
        self.n_cols
    }

    /// Bytes of the narrow field: 2, 1 or 0.
    pub fn narrow_bytes(&self) -> usize {
        narrow_field(self.dtype).1
    }

    /// Where the narrow field lies in a block of the file, in bytes; 0 if there is none.
    pub fn narrow_offset(&self) -> usize {
        narrow_field(self.dtype).0
    }

    /// Words before word 0 of row 0 in a tile: the narrow fields of 8 rows.
    pub fn narrow_words(&self) -> usize {
        TILE_ROWS * self.narrow_bytes() / 4
    }

    /// Bytes of a block here: that of the file, or one word for the plain float types.
    pub fn block_bytes(&self) -> usize {
        self.dtype.block_bytes().max(4)
    }

    /// Elements in a block: that of the format, or as many as a word holds for the plain float types.
    pub fn elems_per_block(&self) -> usize {
        if self.dtype.is_block() {
            self.dtype.block_elems()
        } else {
            4 / self.dtype.block_bytes()
        }
    }

    /// 32-bit words in a block, without the narrow field.
    pub fn words_per_block(&self) -> usize {
        (self.block_bytes() - self.narrow_bytes()) / 4
    }

    /// Bytes of a tile, a multiple of 8.
    pub fn tile_bytes(&self) -> usize {
        TILE_ROWS * self.block_bytes()
    }

    /// Blocks in a row, a last partial word of a plain float type included.
    pub fn blocks_per_row(&self) -> usize {
        self.n_cols.div_ceil(self.elems_per_block())
    }

    /// Bytes of a row in the file.
    pub fn row_bytes(&self) -> usize {
        self.row_bytes
    }

    /// Groups of 8 rows, the last one padded.
    pub fn n_groups(&self) -> usize {
        self.n_rows.div_ceil(TILE_ROWS)
    }

    /// Bytes of the tiles of 8 rows.
    pub fn group_bytes(&self) -> usize {
        self.blocks_per_row() * self.tile_bytes()
    }

    /// Bytes of the whole matrix, padding included.
    pub fn packed_bytes(&self) -> usize {
        self.packed_bytes
    }

    /// Where the tile of (`row`, `block`) begins, in bytes from the start of the matrix.
    pub fn tile_offset(&self, row: usize, block: usize) -> usize {
        (row / TILE_ROWS * self.blocks_per_row() + block) * self.tile_bytes()
    }

    /// Packs 1 to 8 rows, contiguous as in the file, into the tiles of one group. Missing rows become zero.
    ///
    /// # Panics
    /// If `rows` is not 1 to 8 whole rows or `out` is not [`Self::group_bytes`] long.
    pub fn pack_rows(&self, rows: &[u8], out: &mut [u8]) {
        self.check(rows.len(), out.len());
        out.fill(0);
        if self.row_bytes == 0 {
            return;
        }
        let (narrow_at, narrow) = narrow_field(self.dtype);
        for (r, row) in rows.chunks_exact(self.row_bytes).enumerate() {
            if !self.dtype.is_block() {
                let (words, rest) = row.as_chunks::<4>();
                let targets = lane_mut(out, r);
                for (target, word) in targets.zip(words) {
                    *target = *word;
                }
                // The last f16 or bf16 of an odd row: half a word.
                if !rest.is_empty() {
                    let at = 4 * (TILE_ROWS * words.len() + r);
                    out[at..][..rest.len()].copy_from_slice(rest);
                }
                continue;
            }
            let tiles = out.chunks_exact_mut(self.tile_bytes());
            for (block, tile) in row.chunks_exact(self.block_bytes()).zip(tiles) {
                let (narrows, words) = tile.split_at_mut(TILE_ROWS * narrow);
                let (before, rest) = block.split_at(narrow_at);
                let (field, after) = rest.split_at(narrow);
                narrows[r * narrow..][..narrow].copy_from_slice(field);
                let source = before.as_chunks::<4>().0.iter();
                let source = source.chain(after.as_chunks::<4>().0);
                for (target, source) in lane_mut(words, r).zip(source) {
                    *target = *source;
                }
            }
        }
    }

    /// The inverse of [`Self::pack_rows`]: the first `rows.len() / row_bytes` rows of a group.
    ///
    /// # Panics
    /// If `rows` is not 1 to 8 whole rows or `tiles` is not [`Self::group_bytes`] long.
    pub fn unpack_rows(&self, tiles: &[u8], rows: &mut [u8]) {
        self.check(rows.len(), tiles.len());
        if self.row_bytes == 0 {
            return;
        }
        let (narrow_at, narrow) = narrow_field(self.dtype);
        for (r, row) in rows.chunks_exact_mut(self.row_bytes).enumerate() {
            if !self.dtype.is_block() {
                let (words, rest) = row.as_chunks_mut::<4>();
                if !rest.is_empty() {
                    let at = 4 * (TILE_ROWS * words.len() + r);
                    rest.copy_from_slice(&tiles[at..][..rest.len()]);
                }
                for (word, source) in words.iter_mut().zip(lane(tiles, r)) {
                    *word = *source;
                }
                continue;
            }
            let tiles = tiles.chunks_exact(self.tile_bytes());
            for (block, tile) in row.chunks_exact_mut(self.block_bytes()).zip(tiles) {
                let (narrows, words) = tile.split_at(TILE_ROWS * narrow);
                let (before, rest) = block.split_at_mut(narrow_at);
                let (field, after) = rest.split_at_mut(narrow);
                field.copy_from_slice(&narrows[r * narrow..][..narrow]);
                let target = before.as_chunks_mut::<4>().0.iter_mut();
                let target = target.chain(after.as_chunks_mut::<4>().0);
                for (target, source) in target.zip(lane(words, r)) {
                    *target = *source;
                }
            }
        }
    }

    fn check(&self, rows_bytes: usize, tiles_bytes: usize) {
        let whole = self.row_bytes == 0
            || rows_bytes.is_multiple_of(self.row_bytes)
                && (1..=TILE_ROWS).contains(&(rows_bytes / self.row_bytes));
        assert!(
            whole,
            "{rows_bytes} bytes are not 1 to {TILE_ROWS} {} rows of {} bytes",
            self.dtype, self.row_bytes
        );
        assert_eq!(
            tiles_bytes,
            self.group_bytes(),
            "bytes of a group of {} tiles",
            self.dtype
        );
    }
}

/// The words of row `r` of 8 that take turns.
fn lane(words: &[u8], r: usize) -> impl Iterator<Item = &[u8; 4]> {
    words.as_chunks::<4>().0.iter().skip(r).step_by(TILE_ROWS)
}

/// The words of row `r` of 8 that take turns.
fn lane_mut(words: &mut [u8], r: usize) -> impl Iterator<Item = &mut [u8; 4]> {
    let words = words.as_chunks_mut::<4>().0;
    words.iter_mut().skip(r).step_by(TILE_ROWS)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Type, narrow offset, narrow bytes, words, elements per block: written out a second time.
    const TABLE: &[(DType, usize, usize, usize, usize)] = &[
        (DType::F32, 0, 0, 1, 1),
        (DType::F16, 0, 0, 1, 2),
        (DType::BF16, 0, 0, 1, 2),
        (DType::Q4_0, 0, 2, 4, 32),
        (DType::Q4_1, 0, 0, 5, 32),
        (DType::Q5_0, 0, 2, 5, 32),
        (DType::Q5_1, 0, 0, 6, 32),
        (DType::Q8_0, 0, 2, 8, 32),
        (DType::Q2_K, 0, 0, 21, 256),
        (DType::Q3_K, 108, 2, 27, 256),
        (DType::Q4_K, 0, 0, 36, 256),
        (DType::Q5_K, 0, 0, 44, 256),
        (DType::Q6_K, 208, 2, 52, 256),
        (DType::IQ1_S, 0, 2, 12, 256),
        (DType::IQ1_M, 0, 0, 14, 256),
        (DType::IQ2_XXS, 0, 2, 16, 256),
        (DType::IQ2_XS, 0, 2, 18, 256),
        (DType::IQ2_S, 0, 2, 20, 256),
        (DType::IQ3_XXS, 0, 2, 24, 256),
        (DType::IQ3_S, 0, 2, 27, 256),
        (DType::IQ4_NL, 0, 2, 4, 32),
        (DType::IQ4_XS, 0, 0, 34, 256),
        (DType::TQ1_0, 52, 2, 13, 256),
        (DType::TQ2_0, 64, 2, 16, 256),
        (DType::MXFP4, 0, 1, 4, 32),
        (DType::NVFP4, 0, 0, 9, 64),
        (DType::Q1_0, 0, 2, 4, 128),
        (DType::Q2_0, 0, 2, 4, 64),
    ];

    #[test]
    fn every_weight_type_has_whole_words_around_its_narrow_field() {
        assert_eq!(TABLE.len(), WEIGHT_TYPES.len(), "one row per weight type");
        for &(dtype, offset, narrow, words, elems) in TABLE {
            assert!(WEIGHT_TYPES.contains(&dtype), "{dtype} is a weight type");
            let tiles = Tile8::new(dtype, 9, 2 * elems);
            assert_eq!(tiles.narrow_offset(), offset, "{dtype}: narrow offset");
            assert_eq!(tiles.narrow_bytes(), narrow, "{dtype}: narrow bytes");
            assert_eq!(tiles.words_per_block(), words, "{dtype}: words");
            assert_eq!(tiles.elems_per_block(), elems, "{dtype}: elements");
            assert_eq!(tiles.blocks_per_row(), 2, "{dtype}: blocks");
            assert_eq!(
                offset % 4,
                0,
                "{dtype}: whole words before the narrow field"
            );
            assert_eq!(
                narrow + 4 * words,
                tiles.block_bytes(),
                "{dtype}: nothing is lost"
            );
            assert_eq!(tiles.tile_bytes(), 8 * narrow + 32 * words, "{dtype}: tile");
            assert_eq!(
                tiles.narrow_words() * 4,
                8 * narrow,
                "{dtype}: narrow words"
            );
            assert_eq!(
                tiles.packed_bytes(),
                2 * 2 * tiles.tile_bytes(),
                "{dtype}: 9 rows are 2 groups"
            );
            // The narrow field is the scale: kernels read it as one.
            if narrow > 0 {
                let field = crate::format::scales::scale_fields(dtype)[0];
                let expected = match narrow {
                    1 => crate::format::scales::ScaleField::E8M0(offset),
                    _ => crate::format::scales::ScaleField::F16(offset),
                };
                assert_eq!(field, expected, "{dtype}: the narrow field is the scale");
            }
        }
    }

    #[test]
    fn tiles_are_where_the_module_says() {
        for &(dtype, offset, narrow, words, elems) in TABLE {
            let tiles = Tile8::new(dtype, 11, 3 * elems);
            let rows = random(11 * tiles.row_bytes());
            let packed = pack(&tiles, &rows);
            for row in 0..11 {
                for block in 0..3 {
                    let file = &rows[row * tiles.row_bytes() + block * tiles.block_bytes()..]
                        [..tiles.block_bytes()];
                    let tile = &packed[tiles.tile_offset(row, block)..];
                    let r = row % 8;
                    assert_eq!(
                        tile[r * narrow..][..narrow],
                        file[offset..offset + narrow],
                        "{dtype}: narrow"
                    );
                    for w in 0..words {
                        let skip = if narrow > 0 && 4 * w >= offset {
                            narrow
                        } else {
                            0
                        };
                        let at = 4 * (tiles.narrow_words() + w * 8 + r);
                        assert_eq!(
                            tile[at..at + 4],
                            file[4 * w + skip..][..4],
                            "{dtype}: word {w}"
                        );
                    }
                }
            }
        }
    }

    #[test]
    fn packing_is_lossless_and_pads_with_zero() {
        for &(dtype, _, _, _, elems) in TABLE {
            let odd = if dtype.is_block() { 3 * elems } else { 7 };
            for n_cols in [elems, odd] {
                for n_rows in 1..=17 {
                    let tiles = Tile8::new(dtype, n_rows, n_cols);
                    let rows = random(n_rows * tiles.row_bytes());
                    let packed = pack(&tiles, &rows);
                    assert_eq!(unpack(&tiles, &packed), rows, "{dtype} {n_rows} x {n_cols}");
                    // Padding rows decode to zero bytes.
                    let group = &packed[packed.len() - tiles.group_bytes()..];
                    let mut all = vec![1; 8 * tiles.row_bytes()];
                    tiles.unpack_rows(group, &mut all);
                    let used = (n_rows - 1) % 8 + 1;
                    assert!(
                        all[used * tiles.row_bytes()..].iter().all(|&b| b == 0),
                        "{dtype}: padding"
                    );
                    if n_cols % elems == 0 {
                        let sum = |bytes: &[u8]| bytes.iter().map(|&b| u64::from(b)).sum::<u64>();
                        assert_eq!(sum(&packed), sum(&rows), "{dtype}: nothing but the rows");
                    }
                }
            }
        }
    }

    #[test]
    fn refusals_name_the_cause() {
        let message = |r: Result<Tile8, FormatError>| r.unwrap_err().to_string();
        assert!(
            message(Tile8::try_new(DType::Q4_K, 1, 128)).contains("multiple of 256"),
            "partial block"
        );
        assert!(
            message(Tile8::try_new(DType::I32, 1, 128)).contains("i32"),
            "not a weight"
        );
        assert!(
            message(Tile8::try_new(DType::F32, usize::MAX, 2)).contains("too large"),
            "rows"
        );
        assert!(
            message(Tile8::try_new(DType::F32, 1, usize::MAX)).contains("too large"),
            "columns"
        );
    }

    fn pack(tiles: &Tile8, rows: &[u8]) -> Vec<u8> {
        let mut packed = vec![0xee; tiles.packed_bytes()];
        let groups = packed.chunks_exact_mut(tiles.group_bytes());
        for (rows, out) in rows.chunks(8 * tiles.row_bytes()).zip(groups) {
            tiles.pack_rows(rows, out);
        }
        packed
    }

    fn unpack(tiles: &Tile8, packed: &[u8]) -> Vec<u8> {
        let mut rows = vec![0xee; tiles.n_rows() * tiles.row_bytes()];
        let groups = packed.chunks_exact(tiles.group_bytes());
        for (rows, group) in rows.chunks_mut(8 * tiles.row_bytes()).zip(groups) {
            tiles.unpack_rows(group, rows);
        }
        rows
    }

    /// Bytes that differ, from a fixed seed.
    fn random(n: usize) -> Vec<u8> {
        let mut state = 0x9e37_79b9_7f4a_7c15_u64;
        (0..n)
            .map(|_| {
                state = state
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1);
                (state >> 56) as u8
            })
            .collect()
    }
}
