//! `matmul_q8`.
