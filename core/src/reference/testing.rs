//! What the tests of the reference share: run an op on bytes, look at the results.

use super::{RefArgs, RefOutput, RefTensor};
use crate::op::{Op, Operands};
use crate::tensor::TensorDesc;

/// The bytes of f32 values.
pub(crate) fn f32s(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|v| v.to_le_bytes()).collect()
}

/// The bytes of i32 values.
pub(crate) fn i32s(values: &[i32]) -> Vec<u8> {
    values.iter().flat_map(|v| v.to_le_bytes()).collect()
}

/// An output with its values and magnitudes.
#[derive(Debug)]
pub(crate) struct Output {
    pub(crate) desc: TensorDesc,
    pub(crate) values: Vec<f64>,
    pub(crate) magnitudes: Vec<f64>,
    pub(crate) norms: Vec<f64>,
}

/// Runs the reference of an op without in-place operands.
pub(crate) fn run(op: &dyn Op, inputs: &[(TensorDesc, &Vec<u8>)]) -> Vec<Output> {
    let descs: Vec<&TensorDesc> = inputs.iter().map(|(desc, _)| desc).collect();
    let outputs = op.outputs(&descs, &[]).expect("the operands fit");
    // Costs and tolerances must exist for whatever the shape rule lets through.
    let operands = Operands {
        inputs: &descs,
        inouts: &[],
        outputs: &outputs.iter().collect::<Vec<_>>(),
    };
    assert!(op.tolerance(operands).tau >= 0.0, "a tolerance");
    assert!(op.cost(operands).bytes > 0, "a cost");
    let mut args = RefArgs {
        inputs: inputs
            .iter()
            .map(|(desc, bytes)| RefTensor { desc, bytes })
            .collect(),
        inouts: Vec::new(),
        outputs: outputs.iter().map(RefOutput::new).collect(),
    };
    op.reference(&mut args);
    args.outputs
        .into_iter()
        .map(|output| Output {
            desc: output.desc.clone(),
            values: output.values,
            magnitudes: output.magnitudes,
            norms: output.norms,
        })
        .collect()
}

/// Compares to a relative (below 1: absolute) error.
pub(crate) fn close(found: &[f64], expected: &[f64], error: f64) {
    assert_eq!(found.len(), expected.len(), "number of elements");
    for (i, (&found, &expected)) in found.iter().zip(expected).enumerate() {
        assert!(
            (found - expected).abs() <= error * expected.abs().max(1.0),
            "element {i}: {found}, expected {expected}"
        );
    }
}
