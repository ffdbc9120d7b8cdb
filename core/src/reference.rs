//! The reference: every op in plain loops with f64 accumulation, and a device made of them.
//!
//! A reference function reads its operands through [`RefTensor`] and writes through [`RefOutput`]. For every element
//! it may also give the magnitude `m` (the same expression with absolute values of all terms) and the root sum of
//! squares `s` of the terms: tolerances scale with these, so that cancellation can neither hide an error nor make a
//! test fail by chance.

mod device;

pub mod add;
pub mod add_rms_norm;
pub mod argmax;
pub mod attention;
pub mod causal_conv;
pub mod concat_channels;
pub mod copy_cast;
pub mod copy_rows;
pub mod delta_gates;
pub mod delta_rule_chunk;
pub mod delta_rule_step;
pub mod gated_rms_norm;
pub mod gather_rows;
pub mod glu;
pub mod hadamard;
pub mod hc_combine;
pub mod hc_combine_norm;
pub mod hc_mix;
pub mod index_pool;
pub mod index_score;
pub mod kv_write;
pub mod l2_norm;
pub mod layer_norm;
pub mod matmul;
pub mod matmul_by_id;
pub mod matmul_q8;
pub mod moe_combine;
pub mod moe_route;
pub mod mul;
pub mod ngram_hash;
pub mod ple_gate;
pub mod quantize_q8;
pub mod rms_norm;
pub mod rope;
pub mod rope_kv_write;
pub mod scale;
pub mod scatter_rows;
pub mod softcap;
pub mod softmax_stats;
pub mod sparse_attention;
#[cfg(test)]
pub(crate) mod testing;
pub mod top_k_logits;
pub mod topk_blocks;
pub mod unary;

pub use device::ReferenceDevice;

use crate::dtype::DType;
use crate::format;
use crate::format::cache_row::CacheRow;
use crate::tensor::{Layout, TensorDesc};

/// An operand that is read.
#[derive(Clone, Copy, Debug)]
pub struct RefTensor<'a> {
    /// Description.
    pub desc: &'a TensorDesc,
    /// Storage, from the start of the binding.
    pub bytes: &'a [u8],
}

impl RefTensor<'_> {
    /// Decodes row `row` (over all outer axes) to f32.
    ///
    /// # Panics
    /// On weights that do not lie in file order, or an `out` that is not a row long.
    pub fn row(&self, row: usize, out: &mut [f32]) {
        let n = self.desc.last();
        assert_eq!(out.len(), n, "a row has the length of the last axis");
        match self.desc.layout {
            Layout::Rows => {
                let dtype = self.desc.dtype;
                let at = self.desc.row_offset(row) / dtype.block_elems() * dtype.block_bytes();
                let n_bytes = dtype
                    .row_bytes(n)
                    .expect("the graph checks that rows are whole blocks");
                match dtype {
                    DType::F32 => {
                        for (value, word) in out
                            .iter_mut()
                            .zip(self.bytes[at..at + n_bytes].chunks_exact(4))
                        {
                            *value = f32::from_le_bytes([word[0], word[1], word[2], word[3]]);
                        }
                    }
                    _ => format::decode_row(dtype, &self.bytes[at..at + n_bytes], out),
                }
            }
            Layout::Pages => {
                let cell = CacheRow::new(self.desc.dtype, n);
                let n_bytes = cell.n_words() * 4;
                decode_cell(
                    cell,
                    self.desc.dtype,
                    &self.bytes[row * n_bytes..(row + 1) * n_bytes],
                    out,
                );
            }
            Layout::Tile8 => panic!("the reference reads weights in file order, not in tiles"),
        }
    }

    /// Row `row` as a fresh vector.
    pub fn row_vec(&self, row: usize) -> Vec<f32> {
        let mut out = vec![0.0; self.desc.last()];
        self.row(row, &mut out);
        out
    }

    /// All elements, in row order.
    pub fn to_f32(&self) -> Vec<f32> {
        (0..self.desc.rows())
            .flat_map(|row| self.row_vec(row))
            .collect()
    }

    /// The 32-bit words of row `row` of an integer tensor.
    pub fn words(&self, row: usize) -> impl Iterator<Item = u32> + '_ {
        let at = self.desc.row_offset(row) * 4;
        self.bytes[at..at + self.desc.last() * 4]
            .chunks_exact(4)
            .map(|word| u32::from_le_bytes([word[0], word[1], word[2], word[3]]))
    }

    /// All integers, in row order.
    pub fn to_i32(&self) -> Vec<i32> {
        (0..self.desc.rows())
            .flat_map(|row| self.words(row).map(u32::cast_signed))
            .collect()
    }
}

/// Decodes the words of a cache row.
fn decode_cell(cell: CacheRow, dtype: DType, words: &[u8], out: &mut [f32]) {
    let n = cell.padded_elems();
    let mut blocks = vec![0; dtype.row_bytes(n).expect("padded to whole blocks")];
    cell.unpack(words, &mut blocks);
    let mut padded = vec![0.0; n];
    format::decode_row(dtype, &blocks, &mut padded);
    out.copy_from_slice(&padded[..out.len()]);
}

/// An operand that is updated in place.
#[derive(Debug)]
pub struct RefTensorMut<'a> {
    /// Description.
    pub desc: &'a TensorDesc,
    /// Storage, from the start of the binding.
    pub bytes: &'a mut [u8],
    /// Magnitudes of the elements in row order where the op computed them, negative where it left them alone; empty
    /// if it only copied. `None` where nobody reads them.
    pub magnitudes: Option<Vec<f64>>,
}

impl<'a> RefTensorMut<'a> {
    /// An operand whose magnitudes nobody reads.
    pub fn new(desc: &'a TensorDesc, bytes: &'a mut [u8]) -> Self {
        Self {
            desc,
            bytes,
            magnitudes: None,
        }
    }

    /// Element `index`, in row order, of a contiguous f32 operand.
    pub fn f32(&self, index: usize) -> f32 {
        let at = (self.desc.offset + index) * 4;
        let word = &self.bytes[at..at + 4];
        f32::from_le_bytes([word[0], word[1], word[2], word[3]])
    }

    /// Writes an element of a contiguous f32 operand that was copied.
    pub fn put(&mut self, index: usize, value: f32) {
        let at = (self.desc.offset + index) * 4;
        self.bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
    }

    /// Writes an element of a contiguous f32 operand that was computed, with the magnitude of its terms.
    pub fn put_sum(&mut self, index: usize, value: f64, magnitude: f64) {
        if let Some(magnitudes) = &mut self.magnitudes {
            magnitudes.resize(self.desc.n_elems(), -1.0);
            magnitudes[index] = magnitude;
        }
        self.put(index, value as f32);
    }

    /// Encodes one cell of one head of a paged cache. Returns whether a value was not finite.
    ///
    /// # Panics
    /// If the cell does not exist.
    pub fn set_cell(&mut self, row: usize, values: &[f32]) -> bool {
        let dtype = self.desc.dtype;
        let cell = CacheRow::new(dtype, self.desc.last());
        let mut padded = values.to_vec();
        padded.resize(cell.padded_elems(), 0.0);
        let mut blocks = vec![
            0;
            dtype
                .row_bytes(padded.len())
                .expect("padded to whole blocks")
        ];
        let flags = format::encode_row(dtype, &padded, &mut blocks);
        let n_bytes = cell.n_words() * 4;
        cell.pack(&blocks, &mut self.bytes[row * n_bytes..(row + 1) * n_bytes]);
        flags.non_finite
    }
}

/// An operand that is written.
#[derive(Debug)]
pub struct RefOutput<'a> {
    /// Description.
    pub desc: &'a TensorDesc,
    /// Results in row order. Integers are exact.
    pub values: Vec<f64>,
    /// Magnitudes; empty where nobody reads them.
    pub magnitudes: Vec<f64>,
    /// Root sums of squares of the terms; empty where nobody reads them.
    pub norms: Vec<f64>,
}

impl<'a> RefOutput<'a> {
    /// An output that nothing has been written to: every element is NaN.
    pub fn new(desc: &'a TensorDesc) -> Self {
        let n = desc.n_elems();
        Self {
            desc,
            values: vec![f64::NAN; n],
            magnitudes: vec![0.0; n],
            norms: vec![0.0; n],
        }
    }

    /// An output whose magnitudes nobody reads: sums need not compute them.
    pub fn values_only(desc: &'a TensorDesc) -> Self {
        Self {
            desc,
            values: vec![f64::NAN; desc.n_elems()],
            magnitudes: Vec::new(),
            norms: Vec::new(),
        }
    }

    /// Whether magnitudes and norms are kept.
    pub fn wants_magnitudes(&self) -> bool {
        self.magnitudes.len() == self.values.len()
    }

    /// Writes an element that is one term.
    pub fn put(&mut self, index: usize, value: f64) {
        self.put_sum(index, value, value.abs(), value.abs());
    }

    /// Writes an element that is a sum, with the magnitude and root sum of squares of its terms.
    pub fn put_sum(&mut self, index: usize, value: f64, magnitude: f64, norm: f64) {
        self.values[index] = value;
        if self.wants_magnitudes() {
            self.magnitudes[index] = magnitude;
            self.norms[index] = norm;
        }
    }

    /// Writes the values into storage of the output's type and strides.
    ///
    /// # Panics
    /// On a type that no op writes.
    pub fn store(&self, bytes: &mut [u8]) {
        let n = self.desc.last();
        let size = self.desc.dtype.block_bytes();
        for row in 0..self.desc.rows() {
            let at = self.desc.row_offset(row) * size;
            for (i, &value) in self.values[row * n..(row + 1) * n].iter().enumerate() {
                let out = &mut bytes[at + i * size..at + (i + 1) * size];
                match self.desc.dtype {
                    DType::F32 => out.copy_from_slice(&(value as f32).to_le_bytes()),
                    DType::F16 => {
                        out.copy_from_slice(&half::f16::from_f32(value as f32).to_le_bytes());
                    }
                    DType::BF16 => {
                        out.copy_from_slice(&half::bf16::from_f32(value as f32).to_le_bytes());
                    }
                    DType::I32 => out.copy_from_slice(&(value as i32).to_le_bytes()),
                    DType::U32 => out.copy_from_slice(&(value as u32).to_le_bytes()),
                    other => panic!("ops do not write {other}"),
                }
            }
        }
    }
}

/// The operands of a reference function, in binding order.
#[derive(Debug)]
pub struct RefArgs<'a> {
    /// Read.
    pub inputs: Vec<RefTensor<'a>>,
    /// Updated in place.
    pub inouts: Vec<RefTensorMut<'a>>,
    /// Written.
    pub outputs: Vec<RefOutput<'a>>,
}
