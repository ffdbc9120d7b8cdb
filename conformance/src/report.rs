//! What came out of a run, as a table, as JSON lines, as `JUnit` XML.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde::{Deserialize, Serialize};

use crate::cases::Case;

/// How a case ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Status {
    /// Everything held.
    Pass,
    /// Wrong results.
    Fail,
    /// The op refuses these operands on this device.
    Unsupported,
    /// The device reported an error.
    Error,
    /// A panic, or the death of the process.
    Crash,
}

/// The outcome of one case on one device.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Outcome {
    /// Id of the case.
    pub id: String,
    /// The op.
    pub op: String,
    /// The row of the support table.
    pub variant: String,
    /// Name of the device.
    pub device: String,
    /// How it ended.
    pub status: Status,
    /// What was wrong; empty if nothing was.
    pub message: String,
    /// Largest share of the bound that an element used. `null` in JSON: beyond any bound.
    #[serde(deserialize_with = "null_is_infinite")]
    pub headroom: f64,
    /// Largest absolute error.
    #[serde(deserialize_with = "null_is_infinite")]
    pub max_abs: f64,
    /// Largest normalised mean squared error of a row.
    #[serde(deserialize_with = "null_is_infinite")]
    pub nmse: f64,
    /// Bytes that must move.
    pub bytes: u64,
    /// Arithmetic that must happen.
    pub flops: u64,
    /// Time on the host, an equal share of the batch's.
    pub wall_us: u64,
}

/// JSON has no infinity.
fn null_is_infinite<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
    Ok(Option::<f64>::deserialize(deserializer)?.unwrap_or(f64::INFINITY))
}

impl Outcome {
    /// The outcome of a case that has not run.
    pub fn new(case: &Case, device: &str) -> Self {
        Self {
            id: case.id.clone(),
            op: case.op.name().to_owned(),
            variant: case.variant.clone(),
            device: device.to_owned(),
            status: Status::Pass,
            message: String::new(),
            headroom: 0.0,
            max_abs: 0.0,
            nmse: 0.0,
            bytes: 0,
            flops: 0,
            wall_us: 0,
        }
    }

    /// Whether the run may still be called a success. Every case of the tables must be supported.
    pub fn is_good(&self) -> bool {
        self.status == Status::Pass
    }
}

/// How a report is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// One line an op, and every failure.
    Table,
    /// JSON lines: a header, one object a case, the totals.
    Json,
    /// `JUnit` XML.
    Junit,
}

/// What a run was.
#[derive(Clone, Debug, Serialize)]
pub struct Header {
    /// Name of the device.
    pub device: String,
    /// What the hardware and driver call themselves.
    pub description: String,
    /// The class that launches were chosen for.
    pub class: String,
    /// Seed.
    pub seed: u64,
    /// Version of this program.
    pub version: &'static str,
}

/// Writes a report.
pub fn write(format: Format, header: &Header, outcomes: &[Outcome]) -> String {
    match format {
        Format::Table => table(header, outcomes),
        Format::Json => json(header, outcomes),
        Format::Junit => junit(header, outcomes),
    }
}

/// Counts by op.
#[derive(Clone, Copy, Debug, Default)]
struct Row {
    n: usize,
    passed: usize,
    headroom: f64,
    nmse: f64,
    wall_us: u64,
}

fn rows(outcomes: &[Outcome]) -> Vec<(&str, Row)> {
    // In the order in which ops appear.
    let mut order: Vec<&str> = Vec::new();
    let mut rows: BTreeMap<&str, Row> = BTreeMap::new();
    for outcome in outcomes {
        if !rows.contains_key(outcome.op.as_str()) {
            order.push(&outcome.op);
        }
        let row = rows.entry(&outcome.op).or_default();
        row.n += 1;
        row.wall_us += outcome.wall_us;
        if outcome.is_good() {
            row.passed += 1;
            row.headroom = row.headroom.max(outcome.headroom);
            row.nmse = row.nmse.max(outcome.nmse);
        }
    }
    order.into_iter().map(|op| (op, rows[op])).collect()
}

/// Command line that runs a case again.
pub fn replay(header: &Header, id: &str) -> String {
    let seed = match header.seed {
        0 => String::new(),
        seed => format!(" --seed {seed}"),
    };
    format!(
        "gemel-conformance test --device '{}'{seed} --case '{id}'",
        header.device
    )
}

fn table(header: &Header, outcomes: &[Outcome]) -> String {
    let mut out = format!(
        "{}: {} ({})\n\n",
        header.device, header.description, header.class
    );
    // Writing to a string cannot fail.
    let _ = writeln!(
        out,
        "{:<16} {:>7} {:>7} {:>9} {:>9} {:>8}",
        "op", "cases", "passed", "headroom", "nmse", "time"
    );
    for (op, row) in rows(outcomes) {
        let _ = writeln!(
            out,
            "{op:<16} {:>7} {:>7} {:>9.3} {:>9.1e} {:>6.1} s",
            row.n,
            row.passed,
            row.headroom,
            row.nmse,
            row.wall_us as f64 / 1e6
        );
    }
    let bad: Vec<&Outcome> = outcomes
        .iter()
        .filter(|outcome| !outcome.is_good())
        .collect();
    for outcome in &bad {
        let _ = writeln!(
            out,
            "\n{:?} {}\n  {}\n  {}",
            outcome.status,
            outcome.id,
            outcome.message,
            replay(header, &outcome.id)
        );
    }
    let _ = writeln!(
        out,
        "\n{} of {} passed",
        outcomes.len() - bad.len(),
        outcomes.len()
    );
    out
}

fn json(header: &Header, outcomes: &[Outcome]) -> String {
    let mut out = String::new();
    let line = |value: serde_json::Result<String>| {
        value.unwrap_or_else(|error| format!("{{\"error\": \"{error}\"}}"))
    };
    let _ = writeln!(out, "{}", line(serde_json::to_string(header)));
    for outcome in outcomes {
        let _ = writeln!(out, "{}", line(serde_json::to_string(outcome)));
    }
    let passed = outcomes.iter().filter(|outcome| outcome.is_good()).count();
    let totals = serde_json::json!({ "cases": outcomes.len(), "passed": passed });
    let _ = writeln!(out, "{totals}");
    out
}

/// Replaces what XML does not allow in text and attributes.
fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            c if c.is_control() => out.push(' '),
            c => out.push(c),
        }
    }
    out
}

fn junit(header: &Header, outcomes: &[Outcome]) -> String {
    let mut out = String::from("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuites>\n");
    for (op, row) in rows(outcomes) {
        let _ = writeln!(
            out,
            "<testsuite name=\"{op} on {}\" tests=\"{}\" failures=\"{}\" time=\"{:.3}\">",
            escape(&header.device),
            row.n,
            row.n - row.passed,
            row.wall_us as f64 / 1e6
        );
        for outcome in outcomes.iter().filter(|outcome| outcome.op == op) {
            let _ = write!(
                out,
                "<testcase classname=\"{op}\" name=\"{}\" time=\"{:.6}\"",
                escape(&outcome.id),
                outcome.wall_us as f64 / 1e6
            );
            if outcome.is_good() {
                out.push_str("/>\n");
            } else {
                let _ = writeln!(
                    out,
                    "><failure message=\"{:?}\">{}\n{}</failure></testcase>",
                    outcome.status,
                    escape(&outcome.message),
                    escape(&replay(header, &outcome.id))
                );
            }
        }
        out.push_str("</testsuite>\n");
    }
    out.push_str("</testsuites>\n");
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn example() -> (Header, Vec<Outcome>) {
        let case = &crate::cases::of("rms_norm")[0];
        let header = Header {
            device: "reference".to_owned(),
            description: "host".to_owned(),
            class: "reference".to_owned(),
            seed: 7,
            version: "0",
        };
        let good = Outcome::new(case, "reference");
        let bad = Outcome {
            id: "rms_norm[x=\"<&\"]".to_owned(),
            status: Status::Crash,
            message: "a < b & c".to_owned(),
            headroom: f64::INFINITY,
            ..good.clone()
        };
        (header, vec![good, bad])
    }

    #[test]
    fn every_format_names_failures_and_totals() {
        let (header, outcomes) = example();
        let table = write(Format::Table, &header, &outcomes);
        assert!(
            table.contains("1 of 2 passed") && table.contains("--seed 7"),
            "{table}"
        );
        let json = write(Format::Json, &header, &outcomes);
        assert_eq!(json.lines().count(), 4, "header, two cases, totals");
        for line in json.lines() {
            assert!(
                serde_json::from_str::<serde_json::Value>(line).is_ok(),
                "{line}"
            );
        }
        let back: Outcome = serde_json::from_str(json.lines().nth(2).unwrap()).unwrap();
        assert!(back.headroom.is_infinite(), "null is beyond any bound");
        let junit = write(Format::Junit, &header, &outcomes);
        assert!(
            junit.contains("failures=\"1\"") && junit.contains("a &lt; b &amp; c"),
            "{junit}"
        );
    }
}
