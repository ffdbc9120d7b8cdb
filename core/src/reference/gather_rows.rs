//! `gather_rows`.
