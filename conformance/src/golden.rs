//! Golden models: tiny random-weight GGUF files with the logits of an independent engine.
//!
//! They lie in `engine/tests/golden/tiny` with a README that says how they were made. A golden model opens on any
//! device, so that the same check runs on the reference and on a GPU.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context as _, Result, bail};
use gemel_core::{DType, Device};
use gemel_engine::blocks::{Head, Precision};
use gemel_engine::forward::{Context, StepOutput, StepToken};
use gemel_engine::gguf::{GgufFile, Metadata};
use gemel_engine::kv_cache::{CacheConfig, SeqId};
use gemel_engine::models;
use gemel_engine::perplexity::log_prob;
use gemel_engine::weights::Requests;
use serde_json::Value;

/// Folder of the tiny models.
pub fn tiny_dir() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../engine/tests/golden/tiny")
}

/// Largest difference of logits that the description of the golden models allows.
pub const TOLERANCE: f32 = 1e-3;

/// A golden model: file, token sequences, logits.
#[derive(Debug)]
pub struct Golden {
    /// Name of the file without extension.
    pub name: String,
    file: GgufFile,
    json: Value,
    floats: Vec<f32>,
}

/// How a golden model is run.
#[derive(Clone, Copy, Debug)]
pub struct Setting {
    /// Most tokens of a step.
    pub n_ubatch: usize,
    /// Sequences.
    pub n_seqs: usize,
    /// Type of cached keys and values.
    pub kv_type: DType,
    /// How activations enter quantised products.
    pub precision: Precision,
    /// Whether tables of which a step reads a few rows stay in the file.
    pub tables_in_file: bool,
}

impl Default for Setting {
    fn default() -> Self {
        Self {
            n_ubatch: 512,
            n_seqs: 1,
            kv_type: DType::F32,
            precision: Precision::Strict,
            tables_in_file: false,
        }
    }
}

impl Golden {
    /// Opens a tiny model by name.
    ///
    /// # Errors
    /// Files that are missing or damaged.
    pub fn tiny(name: &str) -> Result<Self> {
        let path = |extension: &str| tiny_dir().join(format!("{name}.{extension}"));
        let read = |extension: &str| {
            std::fs::read(path(extension))
                .with_context(|| format!("reading {}", path(extension).display()))
        };
        Ok(Self {
            name: name.to_owned(),
            file: GgufFile::open(&path("gguf"))?,
            json: serde_json::from_slice(&read("json")?)?,
            floats: read("f32")?
                .chunks_exact(4)
                .map(|word| f32::from_le_bytes([word[0], word[1], word[2], word[3]]))
                .collect(),
        })
    }

    /// Names of all tiny models of the folder, in order.
    ///
    /// # Errors
    /// The folder cannot be read.
    pub fn tiny_names() -> Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in std::fs::read_dir(tiny_dir())? {
            let path = entry?.path();
            if path
                .extension()
                .is_some_and(|extension| extension == "gguf")
                && let Some(stem) = path.file_stem().and_then(|stem| stem.to_str())
            {
                names.push(stem.to_owned());
            }
        }
        names.sort();
        Ok(names)
    }

    /// A list of token ids, `tokens.NAME` of the description.
    ///
    /// # Errors
    /// No such list.
    pub fn tokens(&self, name: &str) -> Result<Vec<u32>> {
        ids(&self.json["tokens"][name]).with_context(|| format!("{}: tokens {name}", self.name))
    }

    /// Greedy continuation of the prompt, the list `NAME`, with the smallest margin along it.
    ///
    /// # Errors
    /// No such list.
    pub fn greedy(&self) -> Result<(Vec<u32>, f64)> {
        // For quantised files the list of the decoded weights is the one for f32 activations.
        let quantisation = &self.json["quantisation"];
        let (list, margin) = if quantisation["greedy_ids_dequantised"].is_array() {
            (
                &quantisation["greedy_ids_dequantised"],
                &quantisation["greedy_min_margin_dequantised"],
            )
        } else if self.json["greedy_ids_dequantised"].is_array() {
            (
                &self.json["greedy_ids_dequantised"],
                &self.json["greedy_min_margin_dequantised"],
            )
        } else {
            (&self.json["greedy_ids"], &self.json["greedy_min_margin"])
        };
        Ok((ids(list)?, margin.as_f64().unwrap_or(0.0)))
    }

    /// Whether there is a block of this name.
    pub fn has(&self, block: &str) -> bool {
        self.find(block).is_some()
    }

    fn find(&self, block: &str) -> Option<&Value> {
        self.json["blocks"]
            .as_array()?
            .iter()
            .find(|entry| entry["name"] == block)
    }

    /// Rows of logits of a block.
    ///
    /// # Errors
    /// No such block.
    pub fn block(&self, block: &str) -> Result<Vec<Vec<f32>>> {
        let entry = self
            .find(block)
            .with_context(|| format!("{}: no block {block}", self.name))?;
        let offset = entry["offset_floats"].as_u64().context("offset_floats")? as usize;
        let shape: Vec<usize> = ids(&entry["shape"])?
            .into_iter()
            .map(|n| n as usize)
            .collect();
        let width = *shape.last().context("shape")?;
        let n: usize = shape.iter().product();
        Ok(self.floats[offset..offset + n]
            .chunks(width)
            .map(<[f32]>::to_vec)
            .collect())
    }

    /// Logits of the prompt and its greedy continuation on a device, against the golden ones.
    ///
    /// # Errors
    /// The model does not run, or has no such block.
    pub fn check(&self, device: &Arc<dyn Device>, n_greedy: usize) -> Result<Verdict> {
        let mut verdict = Verdict::default();
        let block = ["ref64_prompt_all", "dequant_prompt_last8", "prompt_all"]
            .into_iter()
            .find(|block| self.has(block))
            .with_context(|| format!("{}: no logits of a prompt", self.name))?;
        let (prompt, expected) = (self.tokens("prompt")?, self.block(block)?);
        let mut context = self.open(device, Setting::default())?;
        let found = last_logits(&mut context, &prompt, expected.len())?;
        let worst = max_difference(&found, &expected);
        // The tolerance is on this side, so that a NaN is a problem.
        if worst.is_nan() || worst > TOLERANCE {
            verdict
                .problems
                .push(format!("logits of the prompt differ by {worst}"));
        }
        let (ids, margin) = self.greedy()?;
        let ids = &ids[..n_greedy.min(ids.len())];
        let found: Vec<u32> = greedy(&mut context, &prompt, ids.len())?
            .iter()
            .map(|greedy| greedy.id)
            .collect();
        verdict.n_tokens = found.len();
        if found != ids {
            let text = format!("greedy: {found:?} instead of {ids:?}");
            if margin > f64::from(TOLERANCE) {
                verdict.problems.push(text);
            } else {
                verdict.ties.push(text);
            }
        }
        Ok(verdict)
    }

    /// The file.
    pub fn file(&self) -> &GgufFile {
        &self.file
    }

    /// The model on a device.
    ///
    /// # Errors
    /// Whatever loading reports.
    pub fn open(&self, device: &Arc<dyn Device>, setting: Setting) -> Result<Context> {
        open_file(&self.file, device, setting, 1024)
    }

    /// The model with metadata of its own on a device.
    ///
    /// # Errors
    /// Whatever loading reports.
    pub fn open_as(
        &self,
        metadata: &Metadata,
        device: &Arc<dyn Device>,
        setting: Setting,
    ) -> Result<Context> {
        open_with(&self.file, metadata, device, setting, 1024)
    }
}

/// A model file on a device, without its tokenizer.
///
/// # Errors
/// Whatever loading reports.
pub fn open_file(
    file: &GgufFile,
    device: &Arc<dyn Device>,
    setting: Setting,
    n_ctx: usize,
) -> Result<Context> {
    open_with(file, file.metadata(), device, setting, n_ctx)
}

fn open_with(
    file: &GgufFile,
    metadata: &Metadata,
    device: &Arc<dyn Device>,
    setting: Setting,
    n_ctx: usize,
) -> Result<Context> {
    let mut requests = Requests::new(file, metadata.str("general.architecture")?);
    if setting.tables_in_file {
        requests.leave_tables_in_file();
    }
    let model = models::load(metadata, &mut requests)?;
    let weights = requests.upload(&**device, &mut |_, _| {})?;
    let config = CacheConfig {
        n_ctx,
        n_seqs: setting.n_seqs,
        n_ubatch: setting.n_ubatch,
        k_type: setting.kv_type,
        v_type: setting.kv_type,
    };
    Ok(Context::new(
        device.clone(),
        Arc::from(model),
        Arc::new(weights),
        config,
        setting.precision,
    )?)
}

fn ids(list: &Value) -> Result<Vec<u32>> {
    let list = list.as_array().context("a list is missing")?;
    list.iter()
        .map(|id| {
            id.as_u64()
                .map(|id| id as u32)
                .context("a list entry is no number")
        })
        .collect()
}

/// Logits of a step's outputs.
fn logits(outputs: Vec<StepOutput>) -> Result<Vec<Vec<f32>>> {
    outputs
        .into_iter()
        .map(|output| match output {
            StepOutput::Logits(logits) => Ok(logits),
            other => bail!("logits were asked for, but got {other:?}"),
        })
        .collect()
}

/// Logits after each of the last `n_last` tokens of `ids`, fed to a new sequence in steps of the micro-batch.
///
/// # Errors
/// A failed step.
pub fn last_logits(context: &mut Context, ids: &[u32], n_last: usize) -> Result<Vec<Vec<f32>>> {
    let seq = context.create()?;
    let n_ubatch = context.cache().config().n_ubatch;
    let first = ids.len() - n_last;
    let mut rows = Vec::new();
    let tokens: Vec<StepToken> = ids
        .iter()
        .enumerate()
        .map(|(i, &id)| StepToken {
            seq,
            id,
            output: i >= first,
        })
        .collect();
    for chunk in tokens.chunks(n_ubatch) {
        rows.extend(logits(context.step(chunk, Head::Logits)?)?);
    }
    context.remove(seq)?;
    Ok(rows)
}

/// Logits after the last `n_last` tokens of each sequence, the tokens of all interleaved in shared steps.
///
/// # Errors
/// A failed step.
pub fn interleaved_logits(
    context: &mut Context,
    sequences: &[&[u32]],
    n_last: usize,
) -> Result<Vec<Vec<Vec<f32>>>> {
    let seqs: Vec<SeqId> = sequences
        .iter()
        .map(|_| context.create())
        .collect::<Result<_, _>>()?;
    let longest = sequences.iter().map(|ids| ids.len()).max().unwrap_or(0);
    let mut tokens = Vec::new();
    for position in 0..longest {
        for (index, ids) in sequences.iter().enumerate() {
            if let Some(&id) = ids.get(position) {
                let output = position + n_last >= ids.len();
                tokens.push((
                    index,
                    StepToken {
                        seq: seqs[index],
                        id,
                        output,
                    },
                ));
            }
        }
    }
    let mut rows = vec![Vec::new(); sequences.len()];
    let n_ubatch = context.cache().config().n_ubatch;
    for chunk in tokens.chunks_mut(n_ubatch) {
        // Ops that work along sequences want the tokens of each side by side.
        if !context.cache().states().is_empty() {
            chunk.sort_by_key(|(index, _)| *index);
        }
        let step: Vec<StepToken> = chunk.iter().map(|(_, token)| *token).collect();
        let outputs = logits(context.step(&step, Head::Logits)?)?;
        let owners = chunk
            .iter()
            .filter(|(_, token)| token.output)
            .map(|(index, _)| *index);
        for (index, row) in owners.zip(outputs) {
            rows[index].push(row);
        }
    }
    for seq in seqs {
        context.remove(seq)?;
    }
    Ok(rows)
}

/// A published model with the tokens and log-probabilities of an independent engine.
#[derive(Debug)]
pub struct Published {
    /// The model file.
    pub file: GgufFile,
    json: Value,
    perplexity: Value,
}

/// A prompt of a published model, with what follows it.
#[derive(Clone, Debug)]
pub struct Prompt {
    /// Its name.
    pub name: String,
    /// Its tokens.
    pub ids: Vec<u32>,
    /// Greedy continuation.
    pub greedy: Vec<u32>,
    /// Distance of each greedy token to the runner-up, in log-probability.
    pub gaps: Vec<f64>,
    /// Ids and log-probabilities of the 20 most likely tokens after the prompt.
    pub top20: Vec<(u32, f64)>,
}

/// Where `scripts/fetch-models.sh` puts models.
pub fn models_dir() -> PathBuf {
    if let Some(dir) = std::env::var_os("GEMEL_MODELS") {
        return dir.into();
    }
    let cache = std::env::var_os("GEMEL_CACHE").map(PathBuf::from);
    let cache = cache
        .or_else(|| std::env::var_os("XDG_CACHE_HOME").map(|dir| PathBuf::from(dir).join("gemel")));
    let home = || PathBuf::from(std::env::var_os("HOME").unwrap_or_default()).join(".cache/gemel");
    cache.unwrap_or_else(home).join("models")
}

impl Published {
    /// SmolLM2-135M-Instruct in `Q4_1`.
    ///
    /// # Errors
    /// The model was not fetched.
    pub fn smollm2() -> Result<Self> {
        Self::open(
            "smollm2-135m-instruct-q4_1.gguf",
            "smollm2-135m.json",
            "SmolLM2-135M-Instruct Q4_1",
        )
    }

    /// Gemma 3 270M in `Q4_K_M`.
    ///
    /// # Errors
    /// The model was not fetched.
    pub fn gemma3() -> Result<Self> {
        Self::open(
            "gemma3-270m-q4_k_m.gguf",
            "gemma3-270m.json",
            "Gemma 3 270M Q4_K_M (see gemma3-270m.json)",
        )
    }

    fn open(file: &str, json: &str, perplexity: &str) -> Result<Self> {
        let path = models_dir().join(file);
        let file = GgufFile::open(&path).with_context(|| {
            format!(
                "opening {}; run scripts/fetch-models.sh all",
                path.display()
            )
        })?;
        let golden = tiny_dir().join("../real");
        let read = |name: &str| -> Result<Value> {
            Ok(serde_json::from_slice(&std::fs::read(golden.join(name))?)?)
        };
        // The text and the figures of both models are in one place.
        let perplexity = read("smollm2-135m.json")?["perplexity"]["models"][perplexity].clone();
        Ok(Self {
            file,
            json: read(json)?,
            perplexity,
        })
    }

    /// All prompts, in the precise setting (weights decoded to f32, cache in f32).
    ///
    /// # Errors
    /// A damaged description.
    pub fn prompts(&self) -> Result<Vec<Prompt>> {
        let list = self.json["prompts"].as_array().context("prompts")?;
        list.iter()
            .map(|prompt| {
                let greedy = &prompt["greedy"]["f32w_f32kv"];
                let top = prompt["top20_next"]["f32w_f32kv"]
                    .as_array()
                    .context("top20_next")?;
                Ok(Prompt {
                    name: prompt["name"].as_str().unwrap_or_default().to_owned(),
                    ids: ids(&prompt["prompt_ids"])?,
                    greedy: ids(&greedy["ids"])?,
                    gaps: greedy["gap"]
                        .as_array()
                        .context("gap")?
                        .iter()
                        .map(|gap| gap.as_f64().unwrap_or(f64::INFINITY))
                        .collect(),
                    top20: top
                        .iter()
                        .map(|entry| {
                            let id = entry["id"].as_u64().unwrap_or_default() as u32;
                            (id, entry["logprob"].as_f64().unwrap_or(f64::NAN))
                        })
                        .collect(),
                })
            })
            .collect()
    }

    /// Log-probabilities after prompts and their greedy continuations on a device, against the published ones. `prompts`
    /// empty: all; `n_greedy`: tokens of each continuation at most. Returns what is wrong, and near-ties (below 0.01 in
    /// log-probability) that were taken the other way, where the comparison of a continuation ends.
    ///
    /// # Errors
    /// The model does not run.
    pub fn check(
        &self,
        device: &Arc<dyn Device>,
        tolerance: f64,
        prompts: &[&str],
        n_greedy: usize,
    ) -> Result<Verdict> {
        let mut context = open_file(&self.file, device, Setting::default(), 2048)?;
        let mut verdict = Verdict::default();
        for prompt in self.prompts()? {
            if !prompts.is_empty() && !prompts.contains(&prompt.name.as_str()) {
                continue;
            }
            let row = last_logits(&mut context, &prompt.ids, 1)?
                .pop()
                .context("logits of the last token")?;
            for &(id, expected) in &prompt.top20 {
                let found = log_prob(&row, id as usize);
                let difference = (found - expected).abs();
                if difference.is_nan() || difference > tolerance {
                    verdict.problems.push(format!(
                        "{}: log-probability of {id} is {found} instead of {expected}",
                        prompt.name
                    ));
                }
            }
            let n = n_greedy.min(prompt.greedy.len());
            let found = greedy(&mut context, &prompt.ids, n)?;
            verdict.n_tokens += found.len();
            let golden = prompt.greedy.iter().zip(&prompt.gaps);
            for (step, (found, (&id, &gap))) in found.iter().zip(golden).enumerate() {
                if found.id == id {
                    continue;
                }
                if gap < 0.01 {
                    verdict.ties.push(format!(
                        "{}: near-tie of {gap} at token {step} taken the other way",
                        prompt.name
                    ));
                } else {
                    verdict.problems.push(format!(
                        "{}: token {step} is {} instead of {id}, which leads by {gap}",
                        prompt.name, found.id
                    ));
                }
                break;
            }
        }
        Ok(verdict)
    }

    /// Ids of the perplexity text, and the running perplexity after each chunk of 512.
    ///
    /// # Errors
    /// A damaged description.
    pub fn perplexity(&self) -> Result<(Vec<u32>, Vec<f64>)> {
        let running = self.perplexity["f32w_f32kv_detail"]["running"]
            .as_array()
            .context("running")?;
        Ok((
            ids(&self.perplexity["ids"])?,
            running
                .iter()
                .map(|value| value.as_f64().unwrap_or(f64::NAN))
                .collect(),
        ))
    }
}

/// What the comparison with a published model's figures found.
#[derive(Clone, Debug, Default)]
pub struct Verdict {
    /// Greedy tokens that were computed.
    pub n_tokens: usize,
    /// What is wrong.
    pub problems: Vec<String>,
    /// Near-ties taken the other way, which is not wrong.
    pub ties: Vec<String>,
}

/// One greedy step: the chosen id, and how far its logit is above the runner-up's.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Greedy {
    /// The token.
    pub id: u32,
    /// Distance to the runner-up, in log-probability.
    pub gap: f32,
}

/// Greedy continuation of a prompt.
///
/// # Errors
/// A failed step.
pub fn greedy(context: &mut Context, prompt: &[u32], n: usize) -> Result<Vec<Greedy>> {
    let seq = context.create()?;
    let mut output = context.prefill(seq, prompt, Head::TopK(8), &mut |_| true)?;
    let mut list = Vec::new();
    while let Some(StepOutput::TopK { ids, logits, .. }) = output {
        list.push(Greedy {
            id: ids[0],
            gap: logits[0] - logits[1],
        });
        if list.len() == n {
            break;
        }
        let step = [StepToken {
            seq,
            id: ids[0],
            output: true,
        }];
        output = context.step(&step, Head::TopK(8))?.pop();
    }
    context.remove(seq)?;
    Ok(list)
}

/// Largest absolute difference of two sets of rows; infinite if a value is NaN.
///
/// # Panics
/// If there are not as many rows as expected.
pub fn max_difference(found: &[Vec<f32>], expected: &[Vec<f32>]) -> f32 {
    assert_eq!(found.len(), expected.len(), "as many rows as expected");
    let pairs = found.iter().flatten().zip(expected.iter().flatten());
    pairs
        .map(|(a, b)| (a - b).abs())
        .map(|difference| {
            if difference.is_nan() {
                f32::INFINITY
            } else {
                difference
            }
        })
        .fold(0.0, f32::max)
}
