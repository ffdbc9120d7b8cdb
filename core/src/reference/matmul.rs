//! `matmul`.
