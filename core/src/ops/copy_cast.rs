//! `copy_cast`.
