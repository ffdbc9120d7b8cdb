//! `softcap`.
