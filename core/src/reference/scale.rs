//! `scale`.
