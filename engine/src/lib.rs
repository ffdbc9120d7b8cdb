//! From a GGUF file to text: weights, tokenizer, models, caches, sampling.

pub mod chat;
pub mod gguf;
pub mod mmap;
pub mod sampler;
pub mod text;
pub mod tokenizer;
