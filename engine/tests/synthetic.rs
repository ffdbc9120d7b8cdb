//! Synthetic models: distributions, independence of how they are read, files, and activations that stay O(1).

#![allow(
    clippy::unwrap_used,
    reason = "helpers of tests may unwrap as tests do"
)]

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use gemel_core::DType;
use gemel_core::dtype::{CACHE_TYPES, WEIGHT_TYPES};
use gemel_core::format;
use gemel_core::format::cache_row::CacheRow;
use gemel_core::format::nvfp4;
use gemel_core::format::scales::{ScaleField, scale_fields};
use gemel_core::graph::Tensor;
use gemel_core::reference::ReferenceDevice;
use gemel_engine::blocks::Head;
use gemel_engine::forward::{Context, StepOutput, StepToken};
use gemel_engine::gguf::{Gguf, GgufFile, TensorInfo, write};
use gemel_engine::kv_cache::SeqId;
use gemel_engine::load::{LoadOptions, load};
use gemel_engine::models;
use gemel_engine::synthetic::{self, Spec, SpecError};
use gemel_engine::tokenizer::Tokenizer;
use gemel_engine::weights::Requests;

fn open(spec: &str) -> GgufFile {
    spec.parse::<Spec>().unwrap().open().unwrap()
}

fn tensor<'a>(file: &'a GgufFile, name: &str) -> &'a TensorInfo {
    file.gguf().tensor(name).unwrap()
}

/// Values of the first `n_rows` rows of a matrix.
fn rows(file: &GgufFile, t: &TensorInfo, n_rows: usize) -> (Vec<u8>, Vec<f32>) {
    let d_in = *t.shape.last().unwrap();
    let n = (t.n_elems() / d_in).min(n_rows) * d_in;
    let mut scratch = Vec::new();
    let bytes = file
        .piece(t, 0..t.dtype.row_bytes(n).unwrap(), &mut scratch)
        .to_vec();
    let mut values = vec![0.0; n];
    format::decode_row(t.dtype, &bytes, &mut values);
    (bytes, values)
}

fn mean_and_deviation(values: &[f32]) -> (f64, f64) {
    let n = values.len() as f64;
    let mean = values.iter().map(|&x| f64::from(x)).sum::<f64>() / n;
    let squares = values.iter().map(|&x| (f64::from(x) - mean).powi(2));
    (mean, (squares.sum::<f64>() / n).sqrt())
}

/// Logits after each of `ids`.
fn logits(file: &GgufFile, ids: &[u32]) -> Vec<Vec<f32>> {
    let options = LoadOptions {
        n_ctx: Some(64),
        ..LoadOptions::default()
    };
    let device = Arc::new(ReferenceDevice::new());
    let mut context = load(file, device, &options, &mut |_, _| {})
        .unwrap()
        .context;
    let seq = context.create().unwrap();
    let tokens: Vec<_> = ids
        .iter()
        .map(|&id| StepToken {
            seq,
            id,
            output: true,
        })
        .collect();
    let outputs = context.step(&tokens, Head::Logits).unwrap();
    outputs
        .into_iter()
        .map(|output| match output {
            StepOutput::Logits(logits) => logits,
            other => panic!("logits were asked for: {other:?}"),
        })
        .collect()
}

#[test]
fn names_are_read_and_mistakes_answered_with_what_there_is() {
    let spec: Spec = "llama:8b:Q4_K".parse().unwrap();
    assert_eq!(spec.to_string(), "llama:8b:q4_k:1", "seed 1 by default");
    assert_eq!(spec, "llama:8b:q4_k:1".parse().unwrap());
    let message = |text: &str| text.parse::<Spec>().unwrap_err().to_string();
    for text in ["", "llama", "llama:8b", "llama:8b:q4_k:1:2"] {
        let message = message(text);
        assert!(
            message.contains("ARCH:SIZE:TYPE") && message.contains("llama (tiny,"),
            "{text}: {message}"
        );
    }
    let arch = message("mamba:1b:q4_k");
    assert!(arch.contains("mamba") && arch.contains("gemma3"), "{arch}");
    let size = message("llama:9b:q4_k");
    assert!(size.contains("9b") && size.contains("135m"), "{size}");
    for dtype in ["q9", "i32", ""] {
        let message = message(&format!("llama:8b:{dtype}"));
        assert!(message.contains("iq2_xxs"), "{dtype}: {message}");
    }
    assert!(matches!(
        "llama:8b:q4_k:-1".parse::<Spec>(),
        Err(SpecError::Seed { .. })
    ));
}

#[test]
fn every_size_has_what_its_architecture_asks_for() {
    let mut n_models = 0;
    for (arch, size) in synthetic::models() {
        // The type with the most tensors.
        let name = format!("{arch}:{size}:nvfp4");
        let file = open(&name);
        let mut requests = Requests::new(&file, arch);
        let model = models::load(file.metadata(), &mut requests)
            .unwrap_or_else(|error| panic!("{name}: {error}"));
        assert!(model.info().n_vocab >= 512, "{name}");
        if size == "tiny" {
            let tokenizer = Tokenizer::from_metadata(file.metadata()).unwrap();
            assert_eq!(tokenizer.n_vocab(), model.info().n_vocab, "{name}");
        }
        n_models += 1;
    }
    assert!(n_models >= 40, "{n_models}");
    // Published parameter counts, embeddings included.
    for (name, billions) in [
        ("llama:135m:f16", 0.1345),
        ("llama:8b:f16", 8.03),
        ("llama:70b:f16", 70.55),
        ("qwen2:0.5b:f16", 0.494),
        ("qwen2:7b:f16", 7.62),
        ("qwen3:0.6b:f16", 0.596),
        ("qwen3:32b:f16", 32.76),
        ("qwen35:27b:f16", 26.9),
        ("qwen35moe:35b-a3b:f16", 34.66),
        ("qwen35moe:397b-a17b:f16", 396.5),
        ("qwen3next:80b-a3b:f16", 79.67),
        ("qwen4exp:177b-a7b:f16", 125.7 + 51.2),
        ("deepseek32:671b-a37b:f16", 671.9),
        ("glm-dsa:744b-a40b:f16", 744.0),
        ("qwen3moe:30b-a3b:f16", 30.53),
        ("qwen3moe:235b-a22b:f16", 235.1),
        ("gemma3:270m:f16", 0.268),
        ("gemma3:12b:f16", 11.77),
        ("gemma3:27b:f16", 27.01),
    ] {
        let file = open(name);
        let n: usize = file.gguf().tensors().iter().map(TensorInfo::n_elems).sum();
        let found = n as f64 / 1e9;
        assert!(
            (found / billions - 1.0).abs() < 0.01,
            "{name}: {found} billion parameters"
        );
    }
}

#[test]
fn every_type_has_the_distribution_that_was_asked_for() {
    for &dtype in WEIGHT_TYPES {
        let file = open(&format!("llama:tiny:{dtype}"));
        for t in file.gguf().tensors().iter().filter(|t| t.shape.len() == 2) {
            let name = t.name.as_str();
            let is_end = name.starts_with("token_embd") || name.starts_with("output");
            assert!(is_end || t.dtype == dtype, "{name} is {}", t.dtype);
            let (_, values) = rows(&file, t, 128);
            let (mut mean, mut deviation) = mean_and_deviation(&values);
            if let Some(scale) = file.gguf().tensor(&name.replace(".weight", ".scale")) {
                assert_eq!(dtype, DType::NVFP4, "{name}");
                let scale: [u8; 4] = file.bytes(scale)[..].try_into().unwrap();
                let scale = f64::from(f32::from_le_bytes(scale));
                (mean, deviation) = (mean * scale, deviation * scale);
            }
            let asked = if is_end { 2.0 } else { 1.0 } / (t.shape[1] as f64).sqrt();
            let ratio = deviation / asked;
            assert!((0.93..1.07).contains(&ratio), "{dtype} {name}: {ratio}");
            assert!(
                mean.abs() < 0.05 * deviation,
                "{dtype} {name}: {mean} {deviation}"
            );
            let largest = values.iter().fold(0.0, |m: f32, x| m.max(x.abs()));
            assert!(largest > 0.0 && largest.is_finite(), "{dtype} {name}");
            // No stripe of a block is dead.
            let n = dtype.block_elems().max(32);
            for k in 0..n {
                let column = values.iter().skip(k).step_by(n);
                assert!(
                    column.into_iter().any(|&x| x != 0.0),
                    "{dtype} {name}: element {k}"
                );
            }
        }
        for t in file
            .gguf()
            .tensors()
            .iter()
            .filter(|t| t.name.contains("norm"))
        {
            let (_, values) = rows(&file, t, 1);
            assert!(
                t.dtype == DType::F32 && values.iter().all(|x| (0.9..=1.1).contains(x)),
                "{}",
                t.name
            );
        }
    }
}

/// Whether a scale field of a block is a subnormal number or zero.
fn has_subnormal_scale(dtype: DType, block: &[u8]) -> bool {
    let half = |at: usize| u16::from_le_bytes([block[at], block[at + 1]]);
    let subnormal = |bits: u16| bits & 0x7c00 == 0;
    if dtype == DType::NVFP4 {
        return block[..4]
            .iter()
            .any(|&byte| nvfp4::scale_value(byte) < 1.0 / 64.0);
    }
    scale_fields(dtype).iter().any(|field| match *field {
        ScaleField::F16(at) => subnormal(half(at)),
        ScaleField::E8M0(at) => block[at] == 0,
        ScaleField::F16TopNibbles(at) => {
            subnormal((0..4).fold(0, |bits, k| bits | (half(at + 2 * k) >> 12) << (4 * k)))
        }
    })
}

#[test]
fn no_scale_is_subnormal_at_any_published_width() {
    // The last size of an architecture is the widest.
    let widest: BTreeMap<_, _> = synthetic::models().collect();
    for (arch, size) in widest {
        for &dtype in WEIGHT_TYPES {
            let file = open(&format!("{arch}:{size}:{dtype}"));
            let mut seen = BTreeSet::new();
            for t in file.gguf().tensors().iter().filter(|t| t.shape.len() > 1) {
                if !seen.insert((t.dtype, t.shape.last())) {
                    continue;
                }
                let (bytes, values) = rows(&file, t, 1);
                assert!(
                    values.iter().all(|x| *x == 0.0 || x.is_normal()),
                    "{arch}:{size}:{dtype} {}",
                    t.name
                );
                let mut blocks = bytes.chunks_exact(t.dtype.block_bytes());
                assert!(
                    blocks.all(|block| !has_subnormal_scale(t.dtype, block)),
                    "{arch}:{size}:{dtype} {}",
                    t.name
                );
            }
        }
    }
}

#[test]
fn bytes_do_not_depend_on_how_they_are_read() {
    let one_thread = rayon_pool();
    for &dtype in WEIGHT_TYPES {
        let file = open(&format!("qwen3:tiny:{dtype}:42"));
        for name in ["blk.1.ffn_down.weight", "blk.0.attn_norm.weight"] {
            let t = tensor(&file, name);
            let whole = file.bytes(t);
            assert_eq!(whole, one_thread.install(|| file.bytes(t)), "threads");
            let mut scratch = vec![7; 3];
            for (start, end) in [(0, 1), (1, 5), (7, 1000), (131, 132), (513, t.n_bytes)] {
                let range = start.min(t.n_bytes)..end.min(t.n_bytes);
                assert_eq!(
                    file.piece(t, range.clone(), &mut scratch),
                    &whole[range.clone()],
                    "{dtype} {name} {range:?}"
                );
            }
        }
        let t = tensor(&file, "blk.1.ffn_down.weight");
        let bytes = file.bytes(t);
        let other = open(&format!("qwen3:tiny:{dtype}:43"));
        assert_ne!(bytes, other.bytes(t), "{dtype}: the seed matters");
        let twin = tensor(&file, "blk.0.ffn_down.weight");
        assert_ne!(bytes, file.bytes(twin), "{dtype}: the name matters");
        assert_eq!(bytes, open(&format!("qwen3:tiny:{dtype}:42")).bytes(t));
    }
}

fn rayon_pool() -> rayon::ThreadPool {
    rayon::ThreadPoolBuilder::new()
        .num_threads(1)
        .build()
        .unwrap()
}

/// A seed means the same weights for ever: results of different days are compared.
#[test]
fn weights_of_a_seed_never_change() {
    let sum = |dtype: &str| {
        let file = open(&format!("llama:tiny:{dtype}:7"));
        let bytes = file.bytes(tensor(&file, "blk.1.attn_v.weight"));
        bytes.iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, &byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)
        })
    };
    let sums: Vec<(String, u64)> = WEIGHT_TYPES
        .iter()
        .map(|dtype| (dtype.to_string(), sum(dtype.name())))
        .collect();
    let golden: Vec<(String, u64)> = include_str!("golden/synthetic.txt")
        .lines()
        .map(|line| {
            let (dtype, sum) = line.split_once(' ').unwrap();
            (dtype.to_owned(), u64::from_str_radix(sum, 16).unwrap())
        })
        .collect();
    if std::env::var_os("GEMEL_UPDATE_GOLDEN").is_some() {
        let lines: Vec<String> = sums
            .iter()
            .map(|(dtype, sum)| format!("{dtype} {sum:016x}\n"))
            .collect();
        std::fs::write(
            concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/synthetic.txt"),
            lines.concat(),
        )
        .unwrap();
        return;
    }
    assert_eq!(sums, golden);
}

#[test]
fn a_written_model_is_the_same_model() {
    for name in [
        "llama:tiny:q4_k:3",
        "qwen2:tiny:nvfp4",
        "gemma3:tiny:iq2_xs",
    ] {
        let file = open(name);
        let mut last = (0, 0);
        let written = write::copy(&file, Vec::new(), &mut |done, total| last = (done, total));
        let written = written.unwrap();
        assert_eq!(last, (file.n_bytes(), file.n_bytes()), "{name}: progress");
        let header = Gguf::parse(&written).unwrap();
        assert_eq!(header.metadata, *file.metadata(), "{name}");
        let path = std::path::Path::new(env!("CARGO_TARGET_TMPDIR"))
            .join(format!("{}.gguf", name.replace(':', "-")));
        std::fs::write(&path, &written).unwrap();
        let back = GgufFile::open(&path).unwrap();
        for t in file.gguf().tensors() {
            let there = tensor(&back, &t.name);
            assert_eq!((t.dtype, &t.shape), (there.dtype, &there.shape), "{name}");
            assert_eq!(file.bytes(t), back.bytes(there), "{name}: {}", t.name);
        }
        let ids = [1, 300, 77, 5];
        assert_eq!(logits(&file, &ids), logits(&back, &ids), "{name}");
    }
}

/// Finite logits, spread as asked for and different from token to token.
fn check_logits(name: &str, file: &GgufFile) {
    let rows = logits(file, &[1, 300, 77, 5]);
    for row in &rows {
        let (mean, deviation) = mean_and_deviation(row);
        assert!(row.iter().all(|x| x.is_finite()), "{name}");
        // Asked for: 2. A tied head sees its own token's embedding in the stream, which a small vocabulary shows.
        assert!((1.0..4.0).contains(&deviation), "{name}: {deviation}");
        assert!(mean.abs() < deviation, "{name}: {mean} {deviation}");
    }
    assert_ne!(rows[0], rows[1], "{name}: the token matters");
}

#[test]
fn logits_are_sane_in_every_architecture_and_type() {
    for (arch, size) in synthetic::models().filter(|(_, size)| *size == "tiny") {
        for dtype in WEIGHT_TYPES {
            let name = format!("{arch}:{size}:{dtype}");
            check_logits(&name, &open(&name));
        }
    }
}

#[test]
fn logits_are_sane_behind_many_layers() {
    for name in ["llama:135m:q4_k", "gemma3:270m:q8_0"] {
        check_logits(name, &open(name));
    }
}

/// A context of a synthetic model on the reference with these cache types and micro-batch.
fn context(spec: &str, cache_type: DType, n_ubatch: usize) -> Context {
    let options = LoadOptions {
        n_ctx: Some(1024),
        n_ubatch,
        k_type: cache_type,
        v_type: cache_type,
        ..LoadOptions::default()
    };
    let device = Arc::new(ReferenceDevice::new());
    load(&open(spec), device, &options, &mut |_, _| {})
        .unwrap()
        .context
}

/// Logits after one token behind `depth` assumed ones.
fn logits_at(context: &mut Context, depth: usize) -> Vec<f32> {
    let seq = context.create().unwrap();
    context.assume(seq, depth).unwrap();
    assert_eq!(context.cache().len(seq).unwrap(), depth, "cached");
    let token = StepToken {
        seq,
        id: 7,
        output: true,
    };
    let outputs = context.step(&[token], Head::Logits).unwrap();
    context.remove(seq).unwrap();
    match &outputs[..] {
        [StepOutput::Logits(logits)] => logits.clone(),
        other => panic!("logits were asked for: {other:?}"),
    }
}

#[test]
fn assumed_tokens_are_cached_in_every_type_and_window() {
    for (spec, window) in [("llama:tiny:q8_0", 0), ("gemma3:tiny:q8_0", 64)] {
        let exact = logits_at(&mut context(spec, DType::F32, 100), 300);
        let empty = logits_at(&mut context(spec, DType::F32, 100), 0);
        assert_ne!(exact, empty, "{spec}: what is assumed is attended to");
        for &cache_type in CACHE_TYPES {
            let mut context = context(spec, cache_type, 100);
            let found = logits_at(&mut context, 300);
            assert_eq!(
                found,
                logits_at(&mut context, 300),
                "{spec} {cache_type}: the same rows again"
            );
            let differences: Vec<f32> = found.iter().zip(&exact).map(|(a, b)| a - b).collect();
            let (_, error) = mean_and_deviation(&differences);
            let (_, spread) = mean_and_deviation(&exact);
            // Rows of deviation 1 are cached with an error of this deviation. Keys and values of every layer err on
            // their own, so the squares add up; the layers behind may double what they are given.
            let n_layers = context.info().n_layers as f64;
            let most = 2.0 * (2.0 * n_layers).sqrt() * encoding_error(cache_type) * spread;
            assert!(error <= most, "{spec} {cache_type}: {error} {most}");
            // A layer that sees everything holds 300 rows; one with a window, what it can still see.
            for (index, layer) in (0..).zip(kv_rows(&mut context, 300)) {
                let least = if window > 0 && index % 6 < 5 {
                    window
                } else {
                    300
                };
                assert!(layer >= least, "{spec} {cache_type} layer {index}: {layer}");
            }
        }
    }
    let mut full = context("llama:tiny:q8_0", DType::F16, 64);
    let seq = full.create().unwrap();
    full.assume(seq, 1000).unwrap();
    let error = full.assume(seq, 25).unwrap_err().to_string();
    assert!(error.contains("1025") && error.contains("1024"), "{error}");
    assert_eq!(full.cache().len(seq).unwrap(), 1000, "nothing changed");
    full.assume(seq, 24).unwrap();
}

/// Logits after each of these tokens, given in one step.
fn logits_of(context: &mut Context, seq: SeqId, ids: &[u32]) -> Vec<Vec<f32>> {
    let tokens: Vec<_> = ids
        .iter()
        .map(|&id| StepToken {
            seq,
            id,
            output: true,
        })
        .collect();
    let outputs = context.step(&tokens, Head::Logits).unwrap();
    let logits = outputs.into_iter().map(|output| match output {
        StepOutput::Logits(logits) => logits,
        other => panic!("logits were asked for: {other:?}"),
    });
    logits.collect()
}

/// What the recurrent layers keep of a sequence.
fn states(context: &Context, seq: SeqId) -> Vec<Vec<f32>> {
    let tensors = context.cache().states().tensors();
    let read = |tensor: &Tensor| -> Vec<f32> {
        let n_bytes = tensor.desc.strides[0] * 4;
        let mut bytes = vec![0; n_bytes];
        context
            .device()
            .read(&tensor.buffers[0], (seq.0 * n_bytes) as u64, &mut bytes)
            .unwrap();
        let words = bytes.chunks_exact(4);
        words
            .map(|w| f32::from_le_bytes([w[0], w[1], w[2], w[3]]))
            .collect()
    };
    tensors.map(read).collect()
}

#[test]
fn assumed_tokens_leave_a_recurrent_state() {
    for spec in [
        "qwen35:tiny:q8_0",
        "qwen35moe:tiny:q8_0",
        "qwen3next:tiny:q8_0",
    ] {
        let mut context = context(spec, DType::F16, 100);
        // What another sequence leaves in the slot shows nowhere.
        let seq = context.create().unwrap();
        logits_of(&mut context, seq, &[5, 6, 7]);
        context.remove(seq).unwrap();
        let seq = context.create().unwrap();
        context.assume(seq, 300).unwrap();
        let shallow = states(&context, seq);
        for (index, values) in shallow.iter().enumerate() {
            let (_, deviation) = mean_and_deviation(values);
            assert!(
                (0.05..2.0).contains(&deviation) && values.iter().all(|x| x.is_finite()),
                "{spec} tensor {index}: {deviation}"
            );
            assert!(values.iter().all(|&x| x != 0.0), "{spec} tensor {index}");
        }
        let checkpoint = context.checkpoint(seq).unwrap();
        let one = logits_of(&mut context, seq, &[7]);
        let two = logits_of(&mut context, seq, &[9]);
        context.restore(seq, &checkpoint).unwrap();
        let both = logits_of(&mut context, seq, &[7, 9]);
        // The reference rounds a state to f32 between steps and not within one.
        let pairs = both.iter().flatten().zip(one.iter().chain(&two).flatten());
        for (a, b) in pairs {
            assert!((a - b).abs() < 1e-5, "{spec}: it goes on as any: {a} {b}");
        }
        let (_, deviation) = mean_and_deviation(&both[1]);
        assert!((1.0..4.0).contains(&deviation), "{spec}: {deviation}");
        context.remove(seq).unwrap();
        assert_ne!(both[0], logits_at(&mut context, 0), "{spec}: it is read");
        let seq = context.create().unwrap();
        context.assume(seq, 700).unwrap();
        assert_eq!(shallow, states(&context, seq), "{spec}: of any depth");
    }
}

/// The pooled keys of the blocks of a sequence that began in an empty cache, by layer.
fn pooled_keys(context: &Context, n_blocks: usize) -> Vec<Vec<Vec<u8>>> {
    let n_layers = context.model().kv_layers().len();
    let layers = (0..n_layers).map(|layer| {
        let index = context.cache().kv().layer(layer).index.as_ref().unwrap();
        let keys = index.keys();
        let mut bytes = vec![0; keys.desc.n_bytes()];
        let device = context.device();
        device.read(&keys.buffers[0], 0, &mut bytes).unwrap();
        let n_rows = keys.desc.n_elems() / keys.desc.last();
        let rows = bytes.chunks_exact(bytes.len() / n_rows);
        rows.take(n_blocks).map(<[u8]>::to_vec).collect()
    });
    layers.collect()
}

#[test]
fn assumed_tokens_have_blocks_to_select() {
    let mut context = context("qwen4exp:tiny:q8_0", DType::Q8_0, 100);
    let seq = context.create().unwrap();
    // 80 blocks, and three tokens of another one.
    context.assume(seq, 323).unwrap();
    for keys in pooled_keys(&context, 80) {
        let distinct: BTreeSet<_> = keys.iter().collect();
        assert_eq!(distinct.len(), 80, "no two blocks have the same key");
        assert!(keys.iter().all(|key| key.iter().any(|&b| b != 0)));
    }
    let before = pooled_keys(&context, 81);
    let logits = logits_of(&mut context, seq, &[7]);
    let (_, deviation) = mean_and_deviation(&logits[0]);
    assert!((1.0..4.0).contains(&deviation), "{deviation}");
    for (before, after) in before.iter().zip(pooled_keys(&context, 81)) {
        assert_eq!(before[..80], after[..80], "complete blocks stay");
        assert_ne!(before[80], after[80], "the token completes another one");
    }
    let ops = context.step_work(1, 324).unwrap();
    assert!(ops.iter().any(|work| work.op == "sparse_attention"));
    assert_eq!(context.cache().ids(seq).len(), 324, "n-grams need all ids");
    let ids: BTreeSet<_> = context.cache().ids(seq).iter().collect();
    assert!(ids.len() > 250, "they differ: {}", ids.len());
}

/// Standard deviation of what a cache type loses of numbers that are uniform with deviation 1.
fn encoding_error(cache_type: DType) -> f64 {
    let width = 3.0f32.sqrt();
    // Squares modulo a prime: neighbours are far apart and not equally spaced, which would suit the codes too well.
    let values: Vec<f32> = (0..4096u32)
        .map(|i| ((i * i * 5 + i * 77) % 4093) as f32 / 2046.0 - 1.0)
        .map(|x| x * width)
        .collect();
    let mut bytes = vec![0; cache_type.row_bytes(values.len()).unwrap()];
    format::encode_row(cache_type, &values, &mut bytes);
    let mut back = vec![0.0; values.len()];
    format::decode_row(cache_type, &bytes, &mut back);
    let lost: Vec<f32> = values.iter().zip(&back).map(|(a, b)| a - b).collect();
    mean_and_deviation(&lost).1
}

/// By layer: cells whose keys are not all zero once `depth` tokens are assumed.
fn kv_rows(context: &mut Context, depth: usize) -> Vec<usize> {
    let seq = context.create().unwrap();
    context.assume(seq, depth).unwrap();
    let n_layers = context.info().n_layers;
    let counts = (0..n_layers)
        .map(|layer| {
            let k = &context.cache().kv().layer(layer).k;
            let mut bytes = vec![0; k.desc.n_bytes()];
            context.device().read(&k.buffers[0], 0, &mut bytes).unwrap();
            let [_, heads, page, dim] = k.desc.shape[..] else {
                panic!("pages have four axes");
            };
            let row_bytes = CacheRow::new(k.desc.dtype, dim).n_words() * 4;
            assert_eq!(bytes.len() % (heads * page * row_bytes), 0, "whole pages");
            let used = bytes
                .chunks_exact(row_bytes)
                .filter(|row| row.iter().any(|&b| b != 0));
            used.count() / heads
        })
        .collect();
    context.remove(seq).unwrap();
    counts
}
