//! Walks through the plan of a real model step by step: each step runs alone on the device, and the reference computes
//! the same step from the device's own inputs. The first step that differs is where a wrong model goes wrong.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use gemel_core::device::submit;
use gemel_core::error::DeviceError;
use gemel_core::op::Operands;
use gemel_core::plan::{Placed, Plan, Span};
use gemel_core::tensor::Layout;
use gemel_core::{Device, TensorDesc};

use crate::compare::{self, Figures};
use crate::prepare::ask;

/// What became of one step.
#[derive(Clone, Debug)]
pub struct Step {
    /// Position in the plan.
    pub index: usize,
    /// Label of the node, e.g. `blk.3.attn_q`.
    pub label: String,
    /// The op with its attributes.
    pub op: String,
    /// Figures over all outputs.
    pub figures: Figures,
    /// What is wrong; empty if nothing is.
    pub problems: Vec<String>,
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:5} {:<24} {:<28} headroom {:.3}, nmse {:.1e}",
            self.index, self.label, self.op, self.figures.headroom, self.figures.nmse
        )?;
        for problem in &self.problems {
            write!(f, "\n      {problem}")?;
        }
        Ok(())
    }
}

/// The operand in the reference's layout: descriptor and storage.
fn fetch(
    device: &dyn Device,
    plan: &Plan,
    placed: &Placed,
) -> Result<(TensorDesc, Vec<u8>), DeviceError> {
    let desc = &placed.desc;
    let read = |span: &Span| -> Result<Vec<u8>, DeviceError> {
        let mut bytes = vec![0; span.n_bytes as usize];
        device.read(&plan.buffers[span.buffer], span.offset, &mut bytes)?;
        Ok(bytes)
    };
    if desc.layout != Layout::Tile8 {
        return Ok((desc.clone(), read(&placed.spans[0])?));
    }
    let mut rows = Vec::new();
    for ((_, n_rows), span) in desc.windows().into_iter().zip(&placed.spans) {
        let tiles = desc.tiles(n_rows);
        let packed = read(span)?;
        let mut window = vec![0; n_rows * tiles.row_bytes()];
        for (rows, group) in window
            .chunks_mut(8 * tiles.row_bytes())
            .zip(packed.chunks_exact(tiles.group_bytes()))
        {
            tiles.unpack_rows(group, rows);
        }
        rows.extend(window);
    }
    let host = TensorDesc {
        layout: Layout::Rows,
        window_rows: 0,
        ..desc.clone()
    };
    Ok((host, rows))
}

fn check(device: &dyn Device, plan: &Plan, index: usize) -> Result<Step, DeviceError> {
    let step = &plan.steps[index];
    let fetch_all = |placed: &[Placed]| -> Result<(Vec<TensorDesc>, Vec<Vec<u8>>), DeviceError> {
        let all: Vec<_> = placed
            .iter()
            .map(|placed| fetch(device, plan, placed))
            .collect::<Result<_, _>>()?;
        Ok(all.into_iter().unzip())
    };
    let (input_descs, inputs) = fetch_all(&step.inputs)?;
    let (inout_descs, inouts) = fetch_all(&step.inouts)?;
    let alone = Arc::new(Plan {
        label: step.label.clone(),
        buffers: plan.buffers.clone(),
        steps: vec![step.clone()],
        step_buffer: None,
        step_inputs: BTreeMap::new(),
        outputs: Vec::new(),
        readback: None,
    });
    let recording = device.record(&alone)?;
    let pending = submit(device, &recording, &[], None)?;
    device.finish(pending)?;

    let output_descs: Vec<TensorDesc> = step
        .outputs
        .iter()
        .map(|placed| placed.desc.clone())
        .collect();
    let (expected, states) = ask(
        &*step.op,
        (&input_descs, &inputs),
        (&inout_descs, &inouts),
        &output_descs,
    );
    let tolerance = step.op.tolerance(Operands {
        inputs: &input_descs.iter().collect::<Vec<_>>(),
        inouts: &inout_descs.iter().collect::<Vec<_>>(),
        outputs: &output_descs.iter().collect::<Vec<_>>(),
    });
    let mut verdicts = Vec::new();
    for (placed, expected) in step.outputs.iter().zip(&expected) {
        let (desc, bytes) = fetch(device, plan, placed)?;
        verdicts.push(compare::judge(
            expected,
            &compare::elements(&desc, &bytes),
            tolerance,
        ));
    }
    for (placed, state) in step.inouts.iter().zip(&states) {
        let (_, bytes) = fetch(device, plan, placed)?;
        verdicts.push(compare::judge_state(state.state(), &bytes, tolerance));
    }
    let mut figures = Figures::default();
    let mut problems = Vec::new();
    for verdict in verdicts {
        match verdict {
            Ok(good) => figures = figures.worst(good),
            Err(mismatch) => {
                figures = figures.worst(mismatch.figures);
                problems.push(mismatch.message);
            }
        }
    }
    Ok(Step {
        index,
        label: step.label.clone(),
        op: step.op.to_string(),
        figures,
        problems,
    })
}

/// Checks the steps of a plan in order, while `tell` says to go on. Returns how many differ.
///
/// The plan must have been replayed before, so that the step buffer and the caches hold a real step.
///
/// # Errors
/// What the device reports.
pub fn walk(
    device: &dyn Device,
    plan: &Plan,
    tell: &mut dyn FnMut(&Step) -> bool,
) -> Result<usize, DeviceError> {
    let mut n_bad = 0;
    for index in 0..plan.steps.len() {
        let step = check(device, plan, index)?;
        n_bad += usize::from(!step.problems.is_empty());
        if !tell(&step) {
            break;
        }
    }
    Ok(n_bad)
}
