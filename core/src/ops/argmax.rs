//! `argmax`.
