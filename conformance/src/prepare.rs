//! A case made ready: its operands filled, its launches chosen, and what the reference says about it.

use gemel_core::op::{Caps, DeviceClass, Launch, Op, Operands, Tolerance};
use gemel_core::reference::{RefArgs, RefOutput, RefTensor, RefTensorMut};
use gemel_core::tensor::Layout;
use gemel_core::{DType, TensorDesc};

use crate::cases::Case;
use crate::compare::{Expected, State};
use crate::fill::{self, Poison, Rng};
use crate::report::Status;

/// An operand's storage as devices want it: one piece per window.
pub(crate) fn device_pieces(desc: &TensorDesc, bytes: Vec<u8>) -> Vec<Vec<u8>> {
    if desc.layout != Layout::Tile8 {
        return vec![bytes];
    }
    desc.windows()
        .into_iter()
        .map(|(first, n_rows)| {
            let tiles = desc.tiles(n_rows);
            let row_bytes = tiles.row_bytes();
            let mut packed = vec![0; tiles.packed_bytes()];
            let rows = &bytes[first * row_bytes..(first + n_rows) * row_bytes];
            if tiles.group_bytes() > 0 {
                for (rows, out) in rows
                    .chunks(8 * row_bytes)
                    .zip(packed.chunks_mut(tiles.group_bytes()))
                {
                    tiles.pack_rows(rows, out);
                }
            }
            packed
        })
        .collect()
}

/// An operand on the device.
#[derive(Debug)]
pub(crate) struct Placement {
    pub(crate) desc: TensorDesc,
    /// Storage by poison: NaN, huge; one piece per window.
    pub(crate) pieces: [Vec<Vec<u8>>; 2],
}

/// A case with its operands, its launches and what the reference says.
#[derive(Debug)]
pub(crate) struct Prepared {
    pub(crate) case: Case,
    pub(crate) inputs: Vec<Placement>,
    pub(crate) inouts: Vec<Placement>,
    pub(crate) outputs: Vec<TensorDesc>,
    pub(crate) scratch: Vec<usize>,
    pub(crate) launches: Vec<Launch>,
    pub(crate) cost: gemel_core::op::Cost,
    pub(crate) tolerance: Tolerance,
    pub(crate) expected: Vec<Expected>,
    pub(crate) states: Vec<ExpectedState>,
}

/// An in-place operand before and after, see [`State`].
#[derive(Debug)]
pub struct ExpectedState {
    desc: TensorDesc,
    before: Vec<u8>,
    after: Vec<u8>,
    exact: Option<Vec<f32>>,
    magnitudes: Vec<f64>,
}

impl ExpectedState {
    /// What the judge compares with.
    pub fn state(&self) -> State<'_> {
        State {
            desc: &self.desc,
            before: &self.before,
            after: &self.after,
            exact: self.exact.as_deref(),
            magnitudes: &self.magnitudes,
        }
    }
}

/// What the reference says about a case.
#[derive(Debug)]
pub struct Reference {
    /// Outputs.
    pub outputs: Vec<Expected>,
    /// In-place operands.
    pub states: Vec<ExpectedState>,
    /// How far a device may be from them.
    pub tolerance: Tolerance,
}

/// Asks the reference about a case.
///
/// # Errors
/// What the op refuses.
pub fn reference(case: &Case, seed: u64) -> Result<Reference, String> {
    let prepared = Prepared::new(case, &gemel_core::device::reference_caps(), seed)
        .map_err(|(_, message)| message)?;
    Ok(Reference {
        outputs: prepared.expected,
        states: prepared.states,
        tolerance: prepared.tolerance,
    })
}

pub(crate) fn slot(poison: Poison) -> usize {
    match poison {
        Poison::Nan => 0,
        Poison::Huge => 1,
    }
}

/// Storage of all operands in the reference's layout.
pub(crate) fn storages(case: &Case, seed: u64, poison: Poison) -> Vec<Vec<u8>> {
    let mut all: Vec<Vec<u8>> = case
        .operands()
        .enumerate()
        .map(|(index, operand)| {
            let mut rng = Rng::new(&case.id, seed, index);
            let desc = TensorDesc {
                window_rows: 0,
                ..operand.desc.clone()
            };
            fill::storage(&desc, &operand.fill, &mut rng, poison)
        })
        .collect();
    if let Some(finish) = &case.finish {
        finish(&mut all);
    }
    all
}

impl Prepared {
    pub(crate) fn new(case: &Case, caps: &Caps, seed: u64) -> Result<Self, (Status, String)> {
        let mut prepared = Self::without_reference(case, caps, seed)?;
        prepared.ask_reference(case, seed);
        Ok(prepared)
    }

    pub(crate) fn without_reference(
        case: &Case,
        caps: &Caps,
        seed: u64,
    ) -> Result<Self, (Status, String)> {
        let refused = |error: gemel_core::error::OpError| (Status::Unsupported, error.to_string());
        let outputs = case.outputs(caps.class).map_err(refused)?;
        let launches = if caps.class == DeviceClass::Reference {
            gemel_core::op::Launches::default()
        } else {
            case.launches(caps).map_err(refused)?
        };
        let mut by_poison =
            [Poison::Nan, Poison::Huge].map(|poison| storages(case, seed, poison).into_iter());
        let mut place = |operand: &crate::cases::Operand| {
            let desc = operand.device_desc(caps.class);
            let pieces = by_poison.each_mut().map(|storages| {
                device_pieces(&desc, storages.next().expect("one storage an operand"))
            });
            Placement { desc, pieces }
        };
        let inputs: Vec<Placement> = case.inputs.iter().map(&mut place).collect();
        let inouts: Vec<Placement> = case.inouts.iter().map(&mut place).collect();
        let input_descs: Vec<&TensorDesc> = inputs.iter().map(|p| &p.desc).collect();
        let inout_descs: Vec<&TensorDesc> = inouts.iter().map(|p| &p.desc).collect();
        let output_descs: Vec<&TensorDesc> = outputs.iter().collect();
        let operands = Operands {
            inputs: &input_descs,
            inouts: &inout_descs,
            outputs: &output_descs,
        };
        let (cost, tolerance) = (case.op.cost(operands), case.op.tolerance(operands));
        Ok(Self {
            case: case.clone(),
            inputs,
            inouts,
            outputs,
            scratch: launches.scratch,
            launches: launches.list,
            cost,
            tolerance,
            expected: Vec::new(),
            states: Vec::new(),
        })
    }

    /// Runs the definition in f64 on the host.
    pub(crate) fn ask_reference(&mut self, case: &Case, seed: u64) {
        let storages = storages(case, seed, Poison::Nan);
        let (inputs, inouts) = storages.split_at(case.inputs.len());
        let host = |operand: &crate::cases::Operand| operand.device_desc(DeviceClass::Reference);
        let input_descs: Vec<TensorDesc> = case.inputs.iter().map(host).collect();
        let inout_descs: Vec<TensorDesc> = case.inouts.iter().map(host).collect();
        (self.expected, self.states) = ask(
            &*case.op,
            (&input_descs, inputs),
            (&inout_descs, inouts),
            &self.outputs,
        );
    }
}

/// Runs a definition on operands in the reference's layout: what outputs and in-place operands should be.
pub(crate) fn ask(
    op: &dyn Op,
    (input_descs, inputs): (&[TensorDesc], &[Vec<u8>]),
    (inout_descs, inouts): (&[TensorDesc], &[Vec<u8>]),
    outputs: &[TensorDesc],
) -> (Vec<Expected>, Vec<ExpectedState>) {
    let run = |inout_descs: &[TensorDesc], after: &mut [Vec<u8>]| {
        let mut args = RefArgs {
            inputs: input_descs
                .iter()
                .zip(inputs)
                .map(|(desc, bytes)| RefTensor { desc, bytes })
                .collect(),
            inouts: inout_descs
                .iter()
                .zip(after)
                .map(|(desc, bytes)| RefTensorMut {
                    magnitudes: Some(Vec::new()),
                    ..RefTensorMut::new(desc, bytes)
                })
                .collect(),
            outputs: outputs.iter().map(RefOutput::new).collect(),
        };
        op.reference(&mut args);
        let magnitudes: Vec<Vec<f64>> = args
            .inouts
            .iter_mut()
            .map(|inout| inout.magnitudes.take().unwrap_or_default())
            .collect();
        let outputs = args
            .outputs
            .into_iter()
            .map(|output| Expected {
                desc: output.desc.clone(),
                values: output.values,
                magnitudes: output.magnitudes,
                norms: output.norms,
            })
            .collect::<Vec<_>>();
        (outputs, magnitudes)
    };
    let mut after: Vec<Vec<u8>> = inouts.to_vec();
    let (expected, magnitudes) = run(inout_descs, &mut after);
    // The same op on plain f32 caches says what the encoder was given.
    let exact = if inout_descs.iter().any(|desc| desc.layout == Layout::Pages) {
        let plain: Vec<TensorDesc> = inout_descs
            .iter()
            .map(|desc| TensorDesc {
                dtype: DType::F32,
                ..desc.clone()
            })
            .collect();
        let mut exact: Vec<Vec<u8>> = plain.iter().map(|desc| vec![0; desc.n_bytes()]).collect();
        run(&plain, &mut exact);
        exact
            .iter()
            .map(|bytes| {
                let words = bytes.chunks_exact(4);
                Some(
                    words
                        .map(|w| f32::from_le_bytes([w[0], w[1], w[2], w[3]]))
                        .collect(),
                )
            })
            .collect()
    } else {
        vec![None; inout_descs.len()]
    };
    let states = inout_descs
        .iter()
        .zip(inouts)
        .zip(after)
        .zip(exact)
        .zip(magnitudes)
        .map(
            |((((desc, before), after), exact), magnitudes)| ExpectedState {
                desc: desc.clone(),
                before: before.clone(),
                after,
                exact,
                magnitudes,
            },
        )
        .collect();
    (expected, states)
}
