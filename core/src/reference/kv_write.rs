//! `kv_write`.
