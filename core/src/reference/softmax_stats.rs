//! `softmax_stats`.
