//! `top_k_logits`.
