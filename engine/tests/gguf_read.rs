//! Reading GGUF files: golden files written by the reference tool, round trips, shards, opening errors.

#![allow(
    clippy::unwrap_used,
    reason = "helpers of tests may unwrap as tests do"
)]

use std::borrow::Cow;
use std::fs;
use std::path::{Path, PathBuf};

use gemel_core::DType;
use gemel_engine::gguf::write::{self, TensorSpec};
use gemel_engine::gguf::{Array, Gguf, GgufError, GgufFile, Metadata, TensorInfo, Value};
use proptest::prelude::*;

fn golden_folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/tiny")
}

fn golden_files() -> Vec<PathBuf> {
    let mut files: Vec<PathBuf> = fs::read_dir(golden_folder())
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|ext| ext == "gguf"))
        .collect();
    files.sort();
    assert!(files.len() >= 33, "{} golden files", files.len());
    files
}

/// An empty folder for the test of this name.
fn folder(name: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR"))
        .join("gguf_read")
        .join(name);
    if path.exists() {
        fs::remove_dir_all(&path).unwrap();
    }
    fs::create_dir_all(&path).unwrap();
    path
}

fn spec_of(t: &TensorInfo) -> TensorSpec {
    TensorSpec {
        name: t.name.clone(),
        dtype: t.dtype,
        shape: t.shape.clone(),
    }
}

#[test]
fn golden_files_agree_with_their_descriptions() {
    for path in golden_files() {
        let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
        let json = fs::read_to_string(path.with_extension("json")).unwrap();
        let json: serde_json::Value = serde_json::from_str(&json).unwrap();
        let file = GgufFile::open(&path).unwrap();
        let m = file.metadata();
        assert_eq!(file.gguf().version, 3, "{name}");
        assert_eq!(file.n_bytes(), fs::metadata(&path).unwrap().len(), "{name}");

        let arch = m.str("general.architecture").unwrap();
        assert_eq!(arch, json["architecture"], "{name}");
        let n_vocab = json["n_vocab"].as_u64().unwrap() as usize;
        assert_eq!(
            m.strings("tokenizer.ggml.tokens").unwrap().len(),
            n_vocab,
            "{name}"
        );
        assert_eq!(
            m.i32s("tokenizer.ggml.token_type").unwrap().len(),
            n_vocab,
            "{name}"
        );

        let config = json["config"].as_object().unwrap();
        let mut n_checked = 0;
        for (key, want) in config {
            let key = format!("{arch}.{key}");
            if !m.contains(&key) {
                continue;
            }
            if want.is_u64() {
                assert_eq!(m.u64(&key).unwrap(), want.as_u64().unwrap(), "{name} {key}");
            } else if want.is_f64() {
                assert_eq!(
                    m.f32(&key).unwrap().to_bits(),
                    (want.as_f64().unwrap() as f32).to_bits(),
                    "{name} {key}"
                );
            } else if want.is_boolean() {
                assert_eq!(
                    m.bool(&key).unwrap(),
                    want.as_bool().unwrap(),
                    "{name} {key}"
                );
            } else if want.is_string() {
                assert_eq!(m.str(&key).unwrap(), want.as_str().unwrap(), "{name} {key}");
            } else {
                continue;
            }
            n_checked += 1;
        }
        assert!(
            n_checked >= 8,
            "{name}: only {n_checked} hyper-parameters checked"
        );

        let n_layers = m.u32(&format!("{arch}.block_count")).unwrap() as usize;
        let heads = m
            .per_layer_u32(&format!("{arch}.attention.head_count"), n_layers)
            .unwrap();
        assert_eq!(heads.len(), n_layers, "{name}");
        let d_model = m.u32(&format!("{arch}.embedding_length")).unwrap() as usize;
        let embd = file.gguf().tensor("token_embd.weight").unwrap();
        assert_eq!(embd.shape, [n_vocab, d_model], "{name}");
        let tensor = |name: &str| file.gguf().tensor(name);
        if let Some(down) = tensor("blk.0.ffn_down_exps.weight") {
            let n_experts = m.u32(&format!("{arch}.expert_count")).unwrap() as usize;
            assert_eq!(down.shape[..2], [n_experts, d_model], "{name}");
        } else {
            let d_ff = m.u32(&format!("{arch}.feed_forward_length")).unwrap() as usize;
            let down = tensor("blk.0.ffn_down.weight").unwrap();
            assert_eq!(down.shape, [d_model, d_ff], "{name}");
            let gate = tensor("blk.0.ffn_gate.weight").unwrap();
            assert_eq!(gate.shape, [d_ff, d_model], "{name}");
        }

        // llama-TYPE and llama-NVFP4-scaled name the type of their matrices.
        let kind = name.strip_prefix("llama-").filter(|&kind| kind != "moe");
        if let Some(kind) = kind {
            let dtype = DType::from_name(kind.trim_end_matches("-scaled")).unwrap();
            assert_eq!(embd.dtype, dtype, "{name}");
            assert_eq!(
                file.gguf().tensor("output_norm.weight").unwrap().dtype,
                DType::F32,
                "{name}"
            );
        }
    }
}

/// Writing what was read gives the same bytes, so nothing is lost, reordered or misplaced.
#[test]
fn golden_files_are_written_back_byte_for_byte() {
    for path in golden_files() {
        let file = GgufFile::open(&path).unwrap();
        let tensors: Vec<(TensorSpec, Cow<'_, [u8]>)> = file
            .gguf()
            .tensors()
            .iter()
            .map(|t| (spec_of(t), file.bytes(t)))
            .collect();
        let written = write::to_vec(file.metadata(), &tensors).unwrap();
        assert!(
            written == fs::read(&path).unwrap(),
            "{} differs",
            path.display()
        );
    }
}

/// The data of one tensor, found without the reader: the norms of this file are all near one.
#[test]
fn tensor_data_are_where_the_directory_says() {
    let file = GgufFile::open(&golden_folder().join("llama.gguf")).unwrap();
    for t in file
        .gguf()
        .tensors()
        .iter()
        .filter(|t| t.name.ends_with("norm.weight"))
    {
        assert_eq!(
            (t.shape.as_slice(), t.n_bytes, t.offset % 32),
            ([64].as_slice(), 256, 0),
            "{}",
            t.name
        );
        let bytes = file.bytes(t);
        let values: &[f32] = bytemuck::cast_slice(&bytes);
        assert!(
            values.iter().all(|x| (0.2..3.0).contains(x)),
            "{}: {values:?}",
            t.name
        );
    }
    assert!(file.gguf().tensor("no such tensor").is_none(), "found");
}

/// Data with a recognisable byte at every place.
fn pattern(seed: usize, n_bytes: usize) -> Vec<u8> {
    (0..n_bytes).map(|i| (i * 31 + seed * 101) as u8).collect()
}

fn tensor(name: &str, dtype: DType, shape: &[usize]) -> Tensor {
    let spec = TensorSpec {
        name: name.to_owned(),
        dtype,
        shape: shape.to_vec(),
    };
    let data = pattern(name.len(), spec.n_bytes().unwrap());
    (spec, data)
}

#[test]
fn released_data_stay_readable() {
    let path = folder("release").join("model.gguf");
    let big = tensor("big", DType::Q8_0, &[1024, 1024]);
    let all = [
        tensor("small", DType::F32, &[3]),
        big.clone(),
        tensor("last", DType::BF16, &[5, 7]),
    ];
    fs::write(&path, write::to_vec(&Metadata::new(), &all).unwrap()).unwrap();
    let file = GgufFile::open(&path).unwrap();
    for t in file.gguf().tensors() {
        for range in [
            0..0,
            0..1,
            0..t.n_bytes,
            1..usize::MAX,
            usize::MAX - 1..usize::MAX,
            t.n_bytes..t.n_bytes + 1,
        ] {
            file.release(t, range);
        }
        #[allow(
            clippy::reversed_empty_ranges,
            reason = "a caller's mistake must not panic"
        )]
        file.release(t, 7..3);
    }
    for (spec, data) in &all {
        assert!(
            *file.bytes(file.gguf().tensor(&spec.name).unwrap()) == *data,
            "{}",
            spec.name
        );
    }
}

/// Peak memory counts only what is resident: released pages must really go.
#[cfg(target_os = "linux")]
#[test]
fn release_lowers_the_resident_size_of_the_map() {
    fn resident_kib(path: &Path) -> usize {
        let smaps = fs::read_to_string("/proc/self/smaps").unwrap();
        let mut lines = smaps
            .lines()
            .skip_while(|line| !line.ends_with(path.to_str().unwrap()));
        let rss = lines.find(|line| line.starts_with("Rss:")).unwrap();
        rss.split_whitespace().nth(1).unwrap().parse().unwrap()
    }
    let path = folder("resident")
        .canonicalize()
        .unwrap()
        .join("model.gguf");
    let big = tensor("big", DType::F32, &[4096, 1024]); // 16 MiB
    fs::write(&path, write::to_vec(&Metadata::new(), &[big]).unwrap()).unwrap();
    let file = GgufFile::open(&path).unwrap();
    let t = &file.gguf().tensors()[0];
    let sum: u64 = file.bytes(t).iter().map(|&b| u64::from(b)).sum();
    assert!(
        sum > 0 && resident_kib(&path) > 15 << 10,
        "reading must have made the file resident"
    );
    file.release(t, 0..t.n_bytes);
    let left = resident_kib(&path);
    assert!(left < 1 << 10, "{left} KiB are still resident");
}

#[test]
fn a_file_that_changes_length_is_noticed() {
    let path = folder("changed").join("model.gguf");
    fs::write(
        &path,
        write::to_vec(&Metadata::new(), &[tensor("t", DType::F32, &[64])]).unwrap(),
    )
    .unwrap();
    let file = GgufFile::open(&path).unwrap();
    file.check_unchanged().unwrap();
    let len = file.n_bytes();
    fs::OpenOptions::new()
        .write(true)
        .open(&path)
        .unwrap()
        .set_len(len + 1)
        .unwrap();
    let error = file.check_unchanged().unwrap_err();
    assert!(
        matches!(error, GgufError::Changed { expected, found, .. } if expected == len && found == len + 1),
        "{error}"
    );
}

#[test]
fn opening_errors_say_what_is_wrong() {
    let folder = folder("opening");
    let mut swapped = b"GGUF".to_vec();
    swapped.extend_from_slice(&3u32.to_be_bytes());
    swapped.resize(64, 0);
    let versioned = |version: u32| {
        let mut bytes = b"GGUF".to_vec();
        bytes.extend_from_slice(&version.to_le_bytes());
        bytes.resize(64, 0);
        bytes
    };
    let mut safetensors = 1000u64.to_le_bytes().to_vec();
    safetensors.extend_from_slice(br#"{"__metadata__":{}}        "#);
    let cases: &[(&str, Vec<u8>, &str)] = &[
        ("empty", vec![], "0 bytes"),
        ("three", b"GGU".to_vec(), "3 bytes"),
        ("short", b"GGUF\x03\0\0\0".to_vec(), "8 bytes"),
        ("html", b"<!DOCTYPE html><html></html>".to_vec(), "HTML"),
        (
            "lfs",
            b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n".to_vec(),
            "git lfs pull",
        ),
        ("zip", b"PK\x03\x04 and so on and on and on".to_vec(), "zip"),
        ("safetensors", safetensors, "safetensors"),
        (
            "ggjt",
            b"tjgg\x03\0\0\0 and so on and on and on".to_vec(),
            "GGJT",
        ),
        ("zeros", vec![0; 100], "incomplete"),
        ("big-endian", swapped, "big-endian"),
        ("version 1", versioned(1), "version 1"),
        ("version 4", versioned(4), "newer engine"),
    ];
    for (name, bytes, want) in cases {
        let path = folder.join(name);
        fs::write(&path, bytes).unwrap();
        let message = GgufFile::open(&path).unwrap_err().to_string();
        assert!(
            message.contains(want) && message.contains(name),
            "{name}: {message}"
        );
    }
    let error = GgufFile::open(&folder).unwrap_err();
    assert!(
        matches!(
            error,
            GgufError::NotAFile {
                found: "a directory",
                ..
            }
        ),
        "{error}"
    );
    let error = GgufFile::open(&folder.join("absent.gguf")).unwrap_err();
    assert!(matches!(error, GgufError::NotFound { .. }), "{error}");
    #[cfg(unix)]
    {
        let error = GgufFile::open(Path::new("/dev/null")).unwrap_err();
        assert!(matches!(error, GgufError::NotAFile { .. }), "{error}");
    }
}

#[test]
fn version_2_is_version_3() {
    let mut bytes = fs::read(golden_folder().join("llama.gguf")).unwrap();
    let three = Gguf::parse(&bytes).unwrap();
    bytes[4] = 2;
    let two = Gguf::parse(&bytes).unwrap();
    assert_eq!(two.version, 2);
    assert_eq!(
        (two.metadata.len(), two.tensors()),
        (three.metadata.len(), three.tensors())
    );
}

#[test]
fn the_writer_refuses_what_no_file_can_hold() {
    let m = Metadata::new();
    let spec = |name: &str, dtype, shape: &[usize]| TensorSpec {
        name: name.into(),
        dtype,
        shape: shape.to_vec(),
    };
    for bad in [
        spec("", DType::F32, &[1]),
        spec(&"x".repeat(64), DType::F32, &[1]),
        spec("t", DType::U32, &[1]),
        spec("t", DType::F32, &[]),
        spec("t", DType::F32, &[1, 1, 1, 1, 1]),
        spec("t", DType::F32, &[0]),
        spec("t", DType::Q8_0, &[2, 33]),
        spec("t", DType::F32, &[usize::MAX, 2]),
    ] {
        let error = write::Writer::new(Vec::new(), &m, std::slice::from_ref(&bad)).unwrap_err();
        assert!(matches!(error, GgufError::Write { .. }), "{bad:?}: {error}");
    }
    let one = [spec("t", DType::F32, &[2])];
    let mut writer = write::Writer::new(Vec::new(), &m, &one).unwrap();
    assert!(writer.tensor(&[0; 7]).is_err(), "wrong size");
    writer.tensor(&[0; 8]).unwrap();
    assert!(writer.tensor(&[0; 8]).is_err(), "one too many");
    let writer = write::Writer::new(Vec::new(), &m, &one).unwrap();
    assert!(writer.finish().is_err(), "data missing");
}

/// A tensor and its data.
type Tensor = (TensorSpec, Vec<u8>);

/// A set of three shards: the first with metadata only, as the public splitter can write it.
struct Set {
    folder: PathBuf,
    shards: Vec<(Metadata, Vec<Tensor>)>,
}

impl Set {
    fn new(name: &str) -> Self {
        let tensors = [
            vec![],
            vec![
                tensor("a", DType::F32, &[4, 3]),
                tensor("b", DType::Q4_0, &[2, 64]),
            ],
            vec![tensor("c", DType::F16, &[9])],
        ];
        let mut shards = Vec::new();
        for (no, tensors) in tensors.into_iter().enumerate() {
            let mut m = Metadata::new();
            if no == 0 {
                m.insert("general.architecture", Value::String("llama".into()));
            }
            m.insert("split.no", Value::U16(no as u16));
            m.insert("split.count", Value::U16(3));
            m.insert("split.tensors.count", Value::I32(3));
            shards.push((m, tensors));
        }
        Self {
            folder: folder(name),
            shards,
        }
    }

    fn path(&self, no: usize) -> PathBuf {
        self.folder
            .join(format!("my-model-{:05}-of-00003.gguf", no + 1))
    }

    fn write(&self) {
        for (no, (m, tensors)) in self.shards.iter().enumerate() {
            fs::write(self.path(no), write::to_vec(m, tensors).unwrap()).unwrap();
        }
    }

    fn error(&self) -> GgufError {
        let error = GgufFile::open(&self.path(0)).unwrap_err();
        match error {
            GgufError::InFile { error, .. } => *error,
            other => other,
        }
    }
}

#[test]
fn shards_open_from_any_of_them() {
    let set = Set::new("shards");
    set.write();
    for no in 0..3 {
        let file = GgufFile::open(&set.path(no)).unwrap();
        assert_eq!(
            file.metadata().str("general.architecture").unwrap(),
            "llama"
        );
        assert_eq!(
            file.paths().collect::<Vec<_>>(),
            (0..3).map(|no| set.path(no)).collect::<Vec<_>>()
        );
        let places: Vec<(&str, usize)> = file
            .gguf()
            .tensors()
            .iter()
            .map(|t| (t.name.as_str(), t.shard))
            .collect();
        assert_eq!(places, [("a", 1), ("b", 1), ("c", 2)]);
        for (spec, data) in set.shards.iter().flat_map(|(_, tensors)| tensors) {
            let t = file.gguf().tensor(&spec.name).unwrap();
            assert_eq!(
                (spec_of(t), file.bytes(t)),
                (spec.clone(), Cow::Borrowed(data.as_slice()))
            );
        }
        let size: u64 = (0..3)
            .map(|no| fs::metadata(set.path(no)).unwrap().len())
            .sum();
        assert_eq!(file.n_bytes(), size);
    }
}

#[test]
fn shards_that_do_not_belong_together_are_errors() {
    let mut set = Set::new("shard_no");
    set.shards[2].0.insert("split.no", Value::U16(1));
    set.write();
    let error = set.error();
    assert!(
        matches!(&error, GgufError::BadValue { key, .. } if key == "split.no"),
        "{error}"
    );

    let mut set = Set::new("shard_count");
    set.shards[1].0.insert("split.count", Value::U16(4));
    set.write();
    let error = set.error();
    assert!(
        matches!(&error, GgufError::BadValue { key, .. } if key == "split.count"),
        "{error}"
    );

    let mut set = Set::new("shard_total");
    for (m, _) in &mut set.shards {
        m.insert("split.tensors.count", Value::I32(4));
    }
    set.write();
    let error = set.error();
    assert!(
        matches!(
            error,
            GgufError::ShardTensors {
                found: 3,
                expected: 4,
                ..
            }
        ),
        "{error}"
    );

    let mut set = Set::new("shard_total_differs");
    set.shards[2]
        .0
        .insert("split.tensors.count", Value::I32(-1));
    set.write();
    let error = set.error();
    assert!(
        matches!(&error, GgufError::BadValue { key, .. } if key == "split.tensors.count"),
        "{error}"
    );

    let mut set = Set::new("shard_duplicate");
    set.shards[2].1[0].0.name = "a".into();
    set.write();
    let error = set.error();
    assert!(
        matches!(&error, GgufError::DuplicateTensor { name } if name == "a"),
        "{error}"
    );

    let set = Set::new("shard_missing");
    set.write();
    fs::remove_file(set.path(1)).unwrap();
    let error = set.error();
    assert!(
        matches!(
            error,
            GgufError::ShardMissing {
                number: 2,
                count: 3,
                ..
            }
        ),
        "{error}"
    );

    let set = Set::new("shard_without_keys");
    set.write();
    fs::write(
        set.path(1),
        write::to_vec(&Metadata::new(), &set.shards[1].1).unwrap(),
    )
    .unwrap();
    let error = set.error();
    assert!(
        matches!(&error, GgufError::MissingKey { key, .. } if key == "split.count"),
        "{error}"
    );

    let set = Set::new("shard_damaged");
    set.write();
    let bytes = fs::read(set.path(2)).unwrap();
    fs::write(set.path(2), &bytes[..bytes.len() / 2]).unwrap();
    let message = GgufFile::open(&set.path(0)).unwrap_err().to_string();
    assert!(
        message.contains("00003-of-00003"),
        "the message must name the damaged shard: {message}"
    );
}

#[test]
fn shards_are_found_by_the_name_of_the_given_file_only() {
    for (name, renamed) in [
        ("renamed_plain", "model.gguf"),
        ("renamed_number", "my-model-00002-of-00003.gguf"),
        ("renamed_count", "my-model-00001-of-00004.gguf"),
        ("renamed_case", "my-model-00001-OF-00003.gguf"),
    ] {
        let set = Set::new(name);
        set.write();
        let renamed = set.folder.join(renamed);
        fs::copy(set.path(0), &renamed).unwrap();
        let error = GgufFile::open(&renamed).unwrap_err();
        assert!(
            matches!(
                error,
                GgufError::ShardName {
                    number: 1,
                    count: 3,
                    ..
                }
            ),
            "{name}: {error}"
        );
    }
    for (name, key, value) in [
        ("no_out_of_range", "split.no", Value::U16(3)),
        ("no_negative", "split.no", Value::I32(-1)),
        ("count_zero", "split.count", Value::U16(0)),
        ("count_large", "split.count", Value::U32(65_536)),
        (
            "count_text",
            "split.count",
            Value::String("../../etc/passwd".into()),
        ),
        ("total_negative", "split.tensors.count", Value::I32(-1)),
    ] {
        let mut set = Set::new(name);
        set.shards[0].0.insert(key, value);
        set.write();
        let error = set.error();
        assert!(
            matches!(&error, GgufError::BadValue { key: k, .. } if k == key),
            "{name}: {error}"
        );
    }
    // One shard of one is an ordinary file and may have any name.
    let mut m = Metadata::new();
    m.insert("split.no", Value::U16(0));
    m.insert("split.count", Value::U16(1));
    m.insert("split.tensors.count", Value::I32(0));
    let path = folder("one_of_one").join("any.gguf");
    fs::write(&path, write::to_vec::<&[u8]>(&m, &[]).unwrap()).unwrap();
    GgufFile::open(&path).unwrap();
}

fn any_value() -> impl Strategy<Value = Value> {
    use proptest::collection::vec;
    let text = "\\PC{0,12}";
    prop_oneof![
        any::<u8>().prop_map(Value::U8),
        any::<i8>().prop_map(Value::I8),
        any::<u16>().prop_map(Value::U16),
        any::<i16>().prop_map(Value::I16),
        any::<u32>().prop_map(Value::U32),
        any::<i32>().prop_map(Value::I32),
        any::<f32>().prop_map(Value::F32),
        any::<bool>().prop_map(Value::Bool),
        text.prop_map(Value::String),
        any::<u64>().prop_map(Value::U64),
        any::<i64>().prop_map(Value::I64),
        any::<f64>().prop_map(Value::F64),
        prop_oneof![
            vec(any::<u8>(), 0..9).prop_map(Array::U8),
            vec(any::<i8>(), 0..9).prop_map(Array::I8),
            vec(any::<u16>(), 0..9).prop_map(Array::U16),
            vec(any::<i16>(), 0..9).prop_map(Array::I16),
            vec(any::<u32>(), 0..9).prop_map(Array::U32),
            vec(any::<i32>(), 0..9).prop_map(Array::I32),
            vec(any::<f32>(), 0..9).prop_map(Array::F32),
            vec(any::<bool>(), 0..9).prop_map(Array::Bool),
            vec(text, 0..9).prop_map(Array::String),
            vec(any::<u64>(), 0..9).prop_map(Array::U64),
            vec(any::<i64>(), 0..9).prop_map(Array::I64),
            vec(any::<f64>(), 0..9).prop_map(Array::F64),
        ]
        .prop_map(Value::Array),
    ]
}

proptest! {
    #[test]
    fn what_is_written_is_read(
        values in proptest::collection::vec(("[a-z_.0-9-]{1,20}", any_value()), 0..12),
        tensors in proptest::collection::vec(
            (0..gemel_core::dtype::WEIGHT_TYPES.len(), proptest::collection::vec(1usize..4, 0..4), 1usize..3),
            0..6,
        ),
        alignment in proptest::option::of(3u32..13),
    ) {
        let mut metadata = Metadata::new();
        for (key, value) in values {
            metadata.insert(key, value);
        }
        if let Some(shift) = alignment {
            metadata.insert("general.alignment", Value::U32(1 << shift));
        }
        let tensors: Vec<Tensor> = tensors
            .into_iter()
            .enumerate()
            .map(|(i, (dtype, mut shape, n_blocks))| {
                let dtype = gemel_core::dtype::WEIGHT_TYPES[dtype];
                shape.push(n_blocks * dtype.block_elems());
                tensor(&format!("blk.{i}.weight"), dtype, &shape)
            })
            .collect();
        let bytes = write::to_vec(&metadata, &tensors).unwrap();
        let gguf = Gguf::parse(&bytes).unwrap();
        // NaN differs from itself, so compare what the values print as.
        prop_assert_eq!(format!("{:?}", gguf.metadata), format!("{:?}", metadata));
        prop_assert_eq!(gguf.tensors().len(), tensors.len());
        for (t, (spec, data)) in gguf.tensors().iter().zip(&tensors) {
            prop_assert_eq!(&spec_of(t), spec);
            prop_assert_eq!(t.offset % (1 << alignment.unwrap_or(5)), 0);
            let start = t.offset as usize;
            prop_assert_eq!(&bytes[start..start + t.n_bytes], data.as_slice());
        }
    }
}
