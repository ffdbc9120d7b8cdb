//! Time of a matrix product against its number of tokens: are there cliffs?
//!
//! One weight, one buffer of activations for the longest step; every number of tokens is a recording of its own.

use std::sync::Arc;

use gemel_core::device::Buffer;
use gemel_core::error::DeviceError;
use gemel_core::op::{Op, Operands, Roof};
use gemel_core::ops::matmul::{Factors, Matmul};
use gemel_core::plan::{Placed, Plan, Span, Step};
use gemel_core::tensor::Layout;
use gemel_core::{DType, TensorDesc};

use crate::bench::{self, Effort};
use crate::fill::{self, Class, Fill, Poison, Rng};
use crate::peak::Peak;
use crate::prepare::device_pieces;
use crate::run::{RecordError, Runner};

/// One token more that takes this many times as long is a cliff.
pub const CLIFF: f64 = 1.5;

/// What is multiplied.
#[derive(Clone, Copy, Debug)]
pub struct Product {
    /// Type of the weight.
    pub dtype: DType,
    /// Its rows.
    pub d_out: usize,
    /// Its columns.
    pub d_in: usize,
    /// The longest step.
    pub max_tokens: usize,
}

/// The time of one number of tokens.
#[derive(Clone, Copy, Debug)]
pub struct Point {
    /// Tokens of the step.
    pub n_tokens: usize,
    /// Seconds.
    pub seconds: f64,
    /// Share of the roofline.
    pub share: f64,
}

/// Times products of 1 to the most tokens.
///
/// # Errors
/// The op refuses its operands on this device, or the device fails.
pub fn measure(
    runner: &Runner,
    peak: &Peak,
    product: Product,
    effort: Effort,
) -> Result<Vec<Point>, RecordError> {
    let device = &**runner.device();
    let floats = TensorDesc::f32([product.max_tokens, product.d_in]);
    let stored = TensorDesc::new(product.dtype, [product.d_out, product.d_in]);
    let weight = TensorDesc {
        layout: Layout::Tile8,
        ..stored.clone()
    };
    let fill = |desc: &TensorDesc, fill: &Fill, index| {
        fill::storage(desc, fill, &mut Rng::new("sweep", 0, index), Poison::Nan)
    };
    let x = fill(&floats, &Fill::Floats(Class::N), 0);
    let w = device_pieces(&weight, fill(&stored, &Fill::Weight(Class::N), 1)).concat();
    let buffer = |name: &str, bytes: &[u8]| -> Result<Buffer, DeviceError> {
        let buffer = device.alloc(bytes.len() as u64, name)?;
        device.write(&buffer, 0, bytes)?;
        Ok(buffer)
    };
    let y_bytes = 4 * product.max_tokens * product.d_out;
    let buffers = vec![
        buffer("x", &x)?,
        buffer("w", &w)?,
        device.alloc(y_bytes as u64, "y")?,
    ];
    let op = Arc::new(Matmul {
        scale: 1.0,
        factors: Factors::Exact,
    });
    (1..=product.max_tokens)
        .map(|n_tokens| {
            let x = TensorDesc::f32([n_tokens, product.d_in]);
            let y = TensorDesc::f32([n_tokens, product.d_out]);
            let operands = Operands {
                inputs: &[&x, &weight],
                inouts: &[],
                outputs: &[&y],
            };
            let launches =
                op.launches(operands, runner.caps())
                    .map_err(|error| RecordError::Op {
                        message: error.to_string(),
                    })?;
            let cost = op.cost(operands);
            let placed = |desc: &TensorDesc, buffer: usize| Placed {
                desc: desc.clone(),
                spans: vec![Span {
                    buffer,
                    offset: 0,
                    n_bytes: desc.n_bytes() as u64,
                }],
            };
            let mut buffers = buffers.clone();
            let scratch = (launches.scratch.iter())
                .map(|&n_bytes| {
                    buffers.push(device.alloc(n_bytes as u64, "scratch")?);
                    Ok(Span {
                        buffer: buffers.len() - 1,
                        offset: 0,
                        n_bytes: n_bytes as u64,
                    })
                })
                .collect::<Result<_, DeviceError>>()?;
            let plan = Plan {
                label: format!("{}[n_tokens={n_tokens}]", Matmul::NAME),
                steps: vec![Step {
                    label: "y".to_owned(),
                    op: op.clone(),
                    inputs: vec![placed(&x, 0), placed(&weight, 1)],
                    inouts: Vec::new(),
                    outputs: vec![placed(&y, 2)],
                    scratch,
                    launches: launches.list,
                    cost,
                }],
                buffers,
                step_buffer: None,
                step_inputs: std::collections::BTreeMap::new(),
                outputs: Vec::new(),
                readback: None,
            };
            let recording = device.record(&Arc::new(plan))?;
            let seconds = bench::time(device, &recording, effort)?.best_s();
            Ok(Point {
                n_tokens,
                seconds,
                share: peak.share(Roof::Matrix, cost, seconds),
            })
        })
        .collect()
}

/// The steps after which one token more costs this many times as much or more.
pub fn cliffs(points: &[Point], factor: f64) -> Vec<(usize, f64)> {
    points
        .windows(2)
        .map(|pair| (pair[1].n_tokens, pair[1].seconds / pair[0].seconds))
        .filter(|&(_, ratio)| ratio >= factor)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cliff_is_a_step_of_the_curve() {
        let points: Vec<Point> = [1.0, 1.1, 2.2, 2.3]
            .into_iter()
            .enumerate()
            .map(|(i, seconds)| Point {
                n_tokens: i + 1,
                seconds,
                share: 1.0,
            })
            .collect();
        let found = cliffs(&points, 1.5);
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(
            found[0].0 == 3 && (found[0].1 - 2.0).abs() < 1e-9,
            "{found:?}"
        );
    }
}
