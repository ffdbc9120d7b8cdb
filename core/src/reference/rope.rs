//! `rope`.
