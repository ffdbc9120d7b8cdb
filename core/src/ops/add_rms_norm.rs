//! `add_rms_norm`.
