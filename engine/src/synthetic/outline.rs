//! The header of a model under construction: its keys, its tensors, and how their values are distributed.

use gemel_core::DType;

use super::blocks::Law;
use super::vocab;
use crate::gguf::write::TensorSpec;
use crate::gguf::{Metadata, Value};

/// Least standard deviation of a matrix: with less, scales of blocks would be subnormal f16 numbers.
const LEAST_DEVIATION: f32 = 1.0 / 128.0;

/// Standard deviation of logits.
const LOGIT_DEVIATION: f32 = 2.0;

/// Keys and tensors, in file order.
#[derive(Debug)]
pub(super) struct Outline {
    arch: &'static str,
    dtype: DType,
    pub(super) metadata: Metadata,
    pub(super) tensors: Vec<(TensorSpec, Law)>,
}

impl Outline {
    pub(super) fn new(arch: &'static str, name: &str, dtype: DType) -> Self {
        let mut metadata = Metadata::new();
        metadata.insert("general.architecture", Value::String(arch.to_owned()));
        metadata.insert("general.name", Value::String(name.to_owned()));
        metadata.insert("general.quantization_version", Value::U32(2));
        Self {
            arch,
            dtype,
            metadata,
            tensors: Vec::new(),
        }
    }

    /// The key `ARCH.NAME`.
    pub(super) fn key(&mut self, name: &str, value: Value) {
        self.metadata.insert(format!("{}.{name}", self.arch), value);
    }

    /// The key `ARCH.NAME` of a count or size.
    pub(super) fn size(&mut self, name: &str, value: usize) {
        self.key(name, Value::U32(value as u32));
    }

    /// The key `ARCH.NAME` of a number.
    pub(super) fn number(&mut self, name: &str, value: f32) {
        self.key(name, Value::F32(value));
    }

    fn push(&mut self, name: String, dtype: DType, shape: Vec<usize>, law: Law) {
        self.tensors.push((TensorSpec { name, dtype, shape }, law));
    }

    /// A matrix `LABEL.weight` of shape `[.., d_out, d_in]` in TYPE: two axes, or three for the experts of a layer.
    pub(super) fn matrix(&mut self, label: &str, shape: &[usize]) {
        let d_in = shape.last().copied().unwrap_or(1);
        let dtype = for_rows(self.dtype, d_in);
        let deviation = (1.0 / (d_in as f32).sqrt()).max(LEAST_DEVIATION);
        self.push(
            format!("{label}.weight"),
            dtype,
            shape.to_vec(),
            Law::Spread(deviation),
        );
        if dtype == DType::NVFP4 {
            // One factor a matrix.
            let n = if shape.len() == 3 { shape[0] } else { 1 };
            let law = Law::SecondScale(deviation);
            self.push(format!("{label}.scale"), DType::F32, vec![n], law);
        }
    }

    /// A matrix `LABEL.weight` that files keep in f32, such as a router.
    pub(super) fn float_matrix(&mut self, label: &str, shape: &[usize]) {
        let d_in = shape.last().copied().unwrap_or(1);
        let law = Law::Spread(1.0 / (d_in as f32).sqrt());
        self.push(format!("{label}.weight"), DType::F32, shape.to_vec(), law);
    }

    /// A norm `LABEL.weight` of `n` around `centre`, in f32.
    pub(super) fn norm(&mut self, label: &str, n: usize, centre: f32) {
        self.vector(format!("{label}.weight"), &[n], centre, 0.1 * centre);
    }

    /// Values with this full name in `centre ± spread`, in f32.
    pub(super) fn vector(&mut self, name: String, shape: &[usize], centre: f32, spread: f32) {
        let law = Law::Around { centre, spread };
        self.push(name, DType::F32, shape.to_vec(), law);
    }

    /// Constants with this full name, in f32.
    #[allow(dead_code, reason = "for architectures with constant tables")]
    pub(super) fn values(&mut self, name: String, values: Vec<f32>) {
        self.push(name, DType::F32, vec![values.len()], Law::Values(values));
    }

    /// A matrix `LABEL.weight` of which rows are read, not multiplied with, in TYPE or, for `nvfp4`, in `q8_0`.
    pub(super) fn table(&mut self, label: &str, shape: &[usize], deviation: f32) {
        let d_in = shape.last().copied().unwrap_or(1);
        let dtype = match self.dtype {
            DType::NVFP4 => for_rows(DType::Q8_0, d_in),
            dtype => for_rows(dtype, d_in),
        };
        let law = Law::Spread(deviation);
        self.push(format!("{label}.weight"), dtype, shape.to_vec(), law);
    }

    /// Vocabulary, embedding, final norm and head. `tied`: the embedding is the head.
    pub(super) fn ends(&mut self, n_vocab: usize, d_model: usize, tied: bool) {
        self.embedding_and_head(n_vocab, d_model, tied);
        self.norm("output_norm", d_model, 1.0);
    }

    /// The same without the norm.
    pub(super) fn embedding_and_head(&mut self, n_vocab: usize, d_model: usize, tied: bool) {
        self.size("vocab_size", n_vocab);
        vocab::put(&mut self.metadata, n_vocab);
        // A head may not lose what the layers made: six bits at least, as in published files.
        let head = if self.dtype.bits_per_elem() < DType::Q6_K.bits_per_elem() {
            for_rows(DType::Q6_K, d_model)
        } else {
            for_rows(self.dtype, d_model)
        };
        let deviation = (LOGIT_DEVIATION / (d_model as f32).sqrt()).max(LEAST_DEVIATION);
        let (label, shape) = ("token_embd", [n_vocab, d_model]);
        let law = Law::Spread(deviation);
        if tied {
            self.push(format!("{label}.weight"), head, shape.to_vec(), law);
        } else {
            self.table(label, &shape, deviation);
            self.push("output.weight".to_owned(), head, shape.to_vec(), law);
        }
    }
}

/// The type itself, or what converters take instead for rows that are no whole number of its blocks.
fn for_rows(dtype: DType, d_in: usize) -> DType {
    if d_in.is_multiple_of(dtype.block_elems()) {
        return dtype;
    }
    let fallback = match dtype {
        DType::Q4_K => DType::Q5_0,
        DType::Q5_K => DType::Q5_1,
        DType::Q6_K => DType::Q8_0,
        DType::TQ1_0 | DType::TQ2_0 => DType::Q4_0,
        _ => DType::IQ4_NL,
    };
    if d_in.is_multiple_of(fallback.block_elems()) {
        fallback
    } else {
        DType::F16
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_without_whole_blocks_fall_back_as_converters_do() {
        assert_eq!(for_rows(DType::Q4_K, 4096), DType::Q4_K);
        assert_eq!(for_rows(DType::Q4_K, 576), DType::Q5_0, "576 = 2.25 * 256");
        assert_eq!(for_rows(DType::Q6_K, 896), DType::Q8_0);
        assert_eq!(for_rows(DType::IQ2_XXS, 896), DType::IQ4_NL);
        assert_eq!(for_rows(DType::Q4_0, 40), DType::F16);
    }
}
