//! What is measured, and how: the tests of a run, their repetitions, and what a step of them costs.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use gemel_core::device::Traffic;
use gemel_engine::blocks::Head;
use gemel_engine::forward::{Context, OpWork, StepToken};
use gemel_engine::kv_cache::SeqId;
use gemel_engine::memory::Checkpoint;

use crate::session;

/// What is repeated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// A prompt of so many tokens.
    Prefill(usize),
    /// Steps of several sequences.
    Decode {
        /// Steps.
        n: usize,
        /// Sequences in each step.
        n_seqs: usize,
        /// Tokens of each sequence in a step, of which all but the first are taken back after it.
        n_verify: usize,
    },
}

/// One test.
#[derive(Clone, Copy, Debug)]
pub(super) struct Test {
    /// Tokens that every sequence has when a repetition starts.
    pub(super) depth: usize,
    /// What is repeated.
    pub(super) kind: Kind,
}

impl Test {
    /// As in the table: `tg128 x5 @ d4096`.
    pub(super) fn name(&self) -> String {
        let part = |shown: bool, text: String| if shown { text } else { String::new() };
        [
            match self.kind {
                Kind::Prefill(n) => format!("pp{n}"),
                Kind::Decode { n, .. } => format!("tg{n}"),
            },
            part(self.n_seqs() > 1, format!(" x{}", self.n_seqs())),
            part(self.n_verify() > 1, format!(" v{}", self.n_verify())),
            part(self.depth > 0, format!(" @ d{}", self.depth)),
        ]
        .concat()
    }

    /// Tokens of the prompt, 0 if there is none.
    pub(super) fn n_prompt(&self) -> usize {
        match self.kind {
            Kind::Prefill(n) => n,
            Kind::Decode { .. } => 0,
        }
    }

    /// Decode steps.
    pub(super) fn n_gen(&self) -> usize {
        match self.kind {
            Kind::Prefill(_) => 0,
            Kind::Decode { n, .. } => n,
        }
    }

    /// Sequences.
    pub(super) fn n_seqs(&self) -> usize {
        match self.kind {
            Kind::Prefill(_) => 1,
            Kind::Decode { n_seqs, .. } => n_seqs,
        }
    }

    /// Tokens of a sequence in a decode step.
    pub(super) fn n_verify(&self) -> usize {
        match self.kind {
            Kind::Prefill(_) => 1,
            Kind::Decode { n_verify, .. } => n_verify,
        }
    }

    /// Tokens that a sequence has at most.
    pub(super) fn longest(&self) -> usize {
        self.depth
            + match self.kind {
                Kind::Prefill(n) => n,
                Kind::Decode { n, n_verify, .. } => n + n_verify - 1,
            }
    }
}

/// Host side of a decode step, averaged.
#[derive(Clone, Copy, Debug)]
pub(super) struct StepCost {
    pub(super) host: Duration,
    pub(super) submits: f64,
    pub(super) uploaded: f64,
    pub(super) downloaded: f64,
    pub(super) launches: f64,
}

/// One row of the table.
#[derive(Debug)]
pub(super) struct Row {
    pub(super) test: Test,
    /// Tokens per second of each repetition, those of all sequences together.
    pub(super) rates: Vec<f64>,
    /// Time of each decode step of all repetitions.
    pub(super) steps: Vec<Duration>,
    pub(super) step: Option<StepCost>,
    /// What a decode step at the end of the test does on the device, by op.
    pub(super) work: Vec<OpWork>,
}

impl Row {
    pub(super) fn mean(&self) -> f64 {
        self.rates.iter().sum::<f64>() / self.rates.len() as f64
    }

    pub(super) fn deviation(&self) -> f64 {
        if self.rates.len() < 2 {
            return 0.0;
        }
        let mean = self.mean();
        let squares: f64 = self
            .rates
            .iter()
            .map(|rate| (rate - mean) * (rate - mean))
            .sum();
        (squares / (self.rates.len() - 1) as f64).sqrt()
    }

    /// Bytes that a decode step cannot avoid moving on the device.
    pub(super) fn device_bytes(&self) -> u64 {
        self.work.iter().map(|work| work.cost.bytes).sum()
    }

    /// The middle one of all decode steps: what disturbs a few of them does not count.
    pub(super) fn median_step(&self) -> Duration {
        median(&self.steps)
    }
}

fn median(times: &[Duration]) -> Duration {
    let mut times = times.to_vec();
    times.sort_unstable();
    times.get(times.len() / 2).copied().unwrap_or_default()
}

/// Sequences of one depth.
struct Deep {
    depth: usize,
    seqs: Vec<(SeqId, Checkpoint)>,
}

impl Deep {
    fn new(context: &mut Context, depth: usize, n_seqs: usize) -> Result<Self> {
        let seqs = (0..n_seqs).map(|_| at_depth(context, depth));
        Ok(Self {
            depth,
            seqs: seqs.collect::<Result<_>>()?,
        })
    }

    fn ids(&self, n: usize) -> Vec<SeqId> {
        self.seqs.iter().take(n).map(|(seq, _)| *seq).collect()
    }

    /// Brings the first sequences back to their depth; filled anew where what one needs is gone, as with a window.
    fn rewind(&mut self, context: &mut Context, n: usize) -> Result<()> {
        for (seq, checkpoint) in self.seqs.iter_mut().take(n) {
            let back = context.truncate(*seq, self.depth).is_ok()
                || context.restore(*seq, checkpoint).is_ok();
            if !back {
                context.remove(*seq)?;
                (*seq, *checkpoint) = at_depth(context, self.depth)?;
            }
        }
        Ok(())
    }

    fn remove(self, context: &mut Context) -> Result<()> {
        for (seq, _) in self.seqs {
            context.remove(seq)?;
        }
        Ok(())
    }
}

/// A sequence that has so many tokens, and the way back.
pub(super) fn at_depth(context: &mut Context, depth: usize) -> Result<(SeqId, Checkpoint)> {
    let seq = context.create()?;
    context.assume(seq, depth)?;
    Ok((seq, context.checkpoint(seq)?))
}

/// Token ids for measuring: any will do, and the same ones every time.
fn token_ids(n: usize, n_vocab: usize) -> Vec<u32> {
    (0..n as u64)
        .map(|i| (i.wrapping_mul(2_654_435_761) % n_vocab as u64) as u32)
        .collect()
}

fn prefill(context: &mut Context, seq: SeqId, n: usize) -> Result<Duration> {
    let ids = token_ids(n, context.info().n_vocab);
    let start = Instant::now();
    context.prefill(seq, &ids, Head::Argmax, &mut |_| true)?;
    Ok(start.elapsed())
}

/// The times of decode steps.
#[derive(Debug, Default)]
pub(super) struct Steps {
    total: Duration,
    /// From beginning to end.
    each: Vec<Duration>,
    /// Before waiting for the device.
    host: Vec<Duration>,
}

/// `n` steps of `n_verify` tokens of each sequence, of which all but the first are taken back.
pub(super) fn decode(
    context: &mut Context,
    seqs: &[SeqId],
    n: usize,
    n_verify: usize,
) -> Result<Steps> {
    let ids = token_ids(n * n_verify, context.info().n_vocab);
    let mut steps = Steps::default();
    let start = Instant::now();
    for ids in ids.chunks(n_verify) {
        let begin = Instant::now();
        let tokens: Vec<StepToken> = seqs
            .iter()
            .flat_map(|&seq| {
                ids.iter().map(move |&id| StepToken {
                    seq,
                    id,
                    output: true,
                })
            })
            .collect();
        let step = context.submit(&tokens, Head::Argmax)?;
        steps.host.push(begin.elapsed());
        context.finish(step)?;
        if n_verify > 1 {
            for &seq in seqs {
                let len = context.cache().len(seq)? + 1 - n_verify;
                context
                    .truncate(seq, len)
                    .context("taking back the tokens of --verify")?;
            }
        }
        steps.each.push(begin.elapsed());
    }
    steps.total = start.elapsed();
    Ok(steps)
}

/// One repetition.
fn run(context: &mut Context, deep: &mut Deep, row: &mut Row, counts: bool) -> Result<()> {
    let test = row.test;
    let seqs = deep.ids(test.n_seqs());
    match test.kind {
        Kind::Prefill(n) => {
            let time = prefill(context, seqs[0], n)?;
            if counts {
                row.rates.push(session::rate(n, time));
            }
        }
        Kind::Decode { n_verify, .. } if !counts => {
            decode(context, &seqs, 1, n_verify)?;
        }
        Kind::Decode { n, n_verify, .. } => {
            let before = context.device().traffic();
            let steps = decode(context, &seqs, n, n_verify)?;
            let after = context.device().traffic();
            let tokens = n * n_verify * seqs.len();
            row.rates.push(session::rate(tokens, steps.total));
            // The median: where the device is the same processor, its threads push some submissions aside.
            row.step = Some(step_cost(before, after, median(&steps.host), n));
            row.steps.extend(steps.each);
        }
    }
    deep.rewind(context, test.n_seqs())
}

fn step_cost(before: Traffic, after: Traffic, host: Duration, n: usize) -> StepCost {
    let per_step = |after: u64, before: u64| (after - before) as f64 / n as f64;
    StepCost {
        host,
        submits: per_step(after.submits, before.submits),
        uploaded: per_step(after.uploaded, before.uploaded),
        downloaded: per_step(after.downloaded, before.downloaded),
        launches: per_step(after.launches, before.launches),
    }
}

/// The depths of some tests, in their order.
pub(super) fn depths(tests: &[Test]) -> Vec<usize> {
    let mut depths: Vec<usize> = Vec::new();
    for test in tests {
        if !depths.contains(&test.depth) {
            depths.push(test.depth);
        }
    }
    depths
}

/// Runs tests. Those of a depth follow one another, each with all its repetitions; with `interleave` the sequences of
/// all depths stay, and every repetition goes through all tests.
pub(super) fn measure(
    context: &mut Context,
    tests: &[Test],
    repetitions: usize,
    interleave: bool,
) -> Result<Vec<Row>> {
    let bar = session::count_bar("measuring");
    bar.set_length((tests.len() * (repetitions + 1)) as u64);
    let mut rows: Vec<Row> = Vec::new();
    let parts: Vec<Vec<Test>> = if interleave {
        vec![tests.to_vec()]
    } else {
        let of = |depth| tests.iter().filter(move |test| test.depth == depth);
        let depths = depths(tests).into_iter();
        depths.map(|depth| of(depth).copied().collect()).collect()
    };
    for part in parts {
        let n_seqs = part.iter().map(Test::n_seqs).max().unwrap_or(1);
        let mut deep = depths(&part)
            .into_iter()
            .map(|depth| Deep::new(context, depth, n_seqs))
            .collect::<Result<Vec<_>>>()?;
        let first = rows.len();
        rows.extend(part.iter().map(|&test| Row {
            test,
            rates: Vec::new(),
            steps: Vec::new(),
            step: None,
            work: Vec::new(),
        }));
        // The first run compiles kernels and is not counted.
        let turns = if interleave {
            let turn = |repetition| (first..first + part.len()).map(move |row| (repetition, row));
            (0..=repetitions).flat_map(turn).collect::<Vec<_>>()
        } else {
            let turn = |row| (0..=repetitions).map(move |repetition| (repetition, row));
            (first..first + part.len()).flat_map(turn).collect()
        };
        for (repetition, row) in turns {
            let row = &mut rows[row];
            if let Some(deep) = deep.iter_mut().find(|deep| deep.depth == row.test.depth) {
                run(context, deep, row, repetition > 0)?;
            }
            bar.inc(1);
        }
        for row in &mut rows[first..] {
            if let Kind::Decode {
                n_seqs, n_verify, ..
            } = row.test.kind
            {
                row.work = context.step_work(n_seqs * n_verify, row.test.longest())?;
            }
        }
        for deep in deep {
            deep.remove(context)?;
        }
    }
    bar.finish_and_clear();
    Ok(rows)
}
