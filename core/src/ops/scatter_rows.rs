//! `scatter_rows`.
