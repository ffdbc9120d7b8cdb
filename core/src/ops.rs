//! The op set, one definition a file, in the order of the catalogue.

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
mod elementwise;
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
mod matrix;
pub mod moe_combine;
pub mod moe_route;
pub mod mul;
pub mod ngram_hash;
pub mod ple_gate;
pub mod quantize_q8;
pub mod rms_norm;
pub mod rope;
pub mod rope_kv_write;
pub(crate) mod runs;
pub mod scale;
pub mod scatter_rows;
pub mod softcap;
pub mod softmax_stats;
pub mod sparse_attention;
pub mod top_k_logits;
pub mod topk_blocks;
pub mod unary;

use crate::dtype::DType;
use crate::error::{OpError, bad_operand};
use crate::tensor::{Layout, TensorDesc};

/// Names of all ops, in the order of the catalogue.
pub const NAMES: &[&str] = &[
    "copy_cast",
    "scatter_rows",
    "copy_rows",
    "concat_channels",
    "add",
    "mul",
    "scale",
    "softcap",
    "unary",
    "glu",
    "gather_rows",
    "rms_norm",
    "add_rms_norm",
    "gated_rms_norm",
    "l2_norm",
    "layer_norm",
    "hadamard",
    "matmul",
    "quantize_q8",
    "matmul_q8",
    "matmul_by_id",
    "rope",
    "kv_write",
    "rope_kv_write",
    "attention",
    "moe_route",
    "moe_combine",
    "causal_conv",
    "delta_gates",
    "delta_rule_step",
    "delta_rule_chunk",
    "hc_mix",
    "hc_combine",
    "hc_combine_norm",
    "ngram_hash",
    "ple_gate",
    "index_pool",
    "index_score",
    "topk_blocks",
    "sparse_attention",
    "softmax_stats",
    "argmax",
    "top_k_logits",
];

/// The operands as an array.
///
/// # Errors
/// If there are more or fewer than `N`.
pub(crate) fn take<'a, const N: usize>(
    op: &'static str,
    operands: &[&'a TensorDesc],
) -> Result<[&'a TensorDesc; N], OpError> {
    operands.try_into().map_err(|_| OpError::Count {
        op,
        expected: N,
        found: operands.len(),
    })
}

/// Refuses an operand that is not f32 rows.
pub(crate) fn expect_f32(
    op: &'static str,
    name: &'static str,
    desc: &TensorDesc,
) -> Result<(), OpError> {
    expect_type(op, name, desc, DType::F32)
}

/// Refuses an operand that is not rows of this plain type.
pub(crate) fn expect_type(
    op: &'static str,
    name: &'static str,
    desc: &TensorDesc,
    dtype: DType,
) -> Result<(), OpError> {
    if desc.dtype != dtype || desc.layout != Layout::Rows {
        return Err(bad_operand(op, name, format!("{dtype} rows"), desc));
    }
    Ok(())
}

/// Refuses an operand with another shape.
pub(crate) fn expect_shape(
    op: &'static str,
    name: &'static str,
    desc: &TensorDesc,
    shape: &[usize],
) -> Result<(), OpError> {
    if desc.shape != shape {
        return Err(bad_operand(op, name, format!("of shape {shape:?}"), desc));
    }
    Ok(())
}

/// Refuses an operand that is not f32 streams `[n_tokens, n_streams, d_model]` with the last axis contiguous; returns
/// the sizes.
pub(crate) fn expect_streams(
    op: &'static str,
    name: &'static str,
    desc: &TensorDesc,
) -> Result<[usize; 3], OpError> {
    expect_f32(op, name, desc)?;
    match desc.shape[..] {
        [n_tokens, n_streams, d_model] if n_streams > 0 => Ok([n_tokens, n_streams, d_model]),
        _ => Err(bad_operand(
            op,
            name,
            "of shape [tokens, streams, channels]",
            desc,
        )),
    }
}

/// Refuses a vector operand that is not contiguous f32 of this length.
pub(crate) fn expect_vector(
    op: &'static str,
    name: &'static str,
    desc: &TensorDesc,
    n: usize,
) -> Result<(), OpError> {
    expect_f32(op, name, desc)?;
    expect_shape(op, name, desc, &[n])?;
    if !desc.is_contiguous() {
        return Err(bad_operand(op, name, "contiguous", desc));
    }
    Ok(())
}
