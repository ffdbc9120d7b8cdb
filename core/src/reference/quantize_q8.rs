//! `quantize_q8`.
