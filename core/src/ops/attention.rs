//! `attention`.
