//! From a GGUF file to text.
//!
//! In reading order: the file (`mmap`, `gguf`), what is in it (`tokenizer`, `chat`, `weights`), the models as graphs
//! (`models`, `blocks`, `moe`, `ngram`, `rope`), their memory (`memory`: `kv_cache` and `state`), steps on a device (`forward`),
//! and what is made of the logits (`sampler`, `text`, `generate`, `perplexity`). `load` ties a file and a device
//! together; `synthetic` makes models up.

pub mod blocks;
pub mod chat;
pub mod forward;
pub mod generate;
pub mod gguf;
pub mod kv_cache;
pub mod load;
pub mod memory;
pub mod mmap;
pub mod models;
pub mod moe;
pub mod ngram;
pub mod perplexity;
pub mod rope;
pub mod sampler;
pub mod state;
pub mod synthetic;
pub mod text;
pub mod tokenizer;
pub mod weights;
