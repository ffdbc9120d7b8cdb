//! The device's own limits, measured with two kernels that no model uses: reading memory in order, and multiply-adds
//! in registers. Shares of peak refer to these, not to data sheets.

use std::collections::BTreeMap;
use std::fmt;

use gemel_core::TensorDesc;
use gemel_core::error::OpError;
use gemel_core::op::{
    Binding, Caps, Cost, DeviceClass, Launch, Launches, Op, Operands, Params, Sharding, Spec,
    Tolerance,
};
use gemel_core::reference::RefArgs;

use crate::bench;
use crate::cases::{Builder, Case};
use crate::fill::{Class, Fill};
use crate::run::{RecordError, Runner};

/// What a device does at best.
#[derive(Clone, Copy, Debug)]
pub struct Peak {
    /// Bytes read in order, a second.
    pub bytes_per_s: f64,
    /// f32 operations a second; a multiply-add is two.
    pub flops_per_s: f64,
}

impl Peak {
    /// The share of its roofline that an op of this cost reaches in this time.
    pub fn share(&self, cost: Cost, seconds: f64) -> f64 {
        let read = cost.bytes as f64 / self.bytes_per_s;
        let computed = cost.flops as f64 / self.flops_per_s;
        read.max(computed) / seconds
    }
}

/// The two measurements.
#[derive(Clone, Copy, Debug)]
enum Kind {
    Read,
    Fma,
}

/// Threads of a block.
const THREADS: u32 = 64;

/// Bytes that the grid of a GPU reads in a turn.
const TURN: u64 = 32 << 20;

/// One of the measurements as an op.
#[derive(Clone, Debug)]
struct Probe {
    kind: Kind,
    /// Blocks of the launch.
    blocks: u32,
    /// Turns of each thread's loop, for `Fma`.
    turns: usize,
}

impl Probe {
    /// Enough blocks to fill the device; software devices have two cores or so.
    fn new(kind: Kind, caps: &Caps) -> Self {
        let (blocks, turns) = match caps.class {
            DeviceClass::Software | DeviceClass::Reference => (16, 4096),
            DeviceClass::Integrated | DeviceClass::Discrete => (8192, 4096),
        };
        Self {
            kind,
            blocks,
            turns,
        }
    }

    fn threads(&self) -> usize {
        (self.blocks * THREADS) as usize
    }
}

impl fmt::Display for Probe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl Op for Probe {
    fn name(&self) -> &'static str {
        match self.kind {
            Kind::Read => "peak_read",
            Kind::Fma => "peak_fma",
        }
    }

    fn outputs(&self, _: &[&TensorDesc], _: &[&TensorDesc]) -> Result<Vec<TensorDesc>, OpError> {
        Ok(vec![TensorDesc::f32([self.threads()])])
    }

    fn launches(&self, operands: Operands<'_>, _: &Caps) -> Result<Launches, OpError> {
        let n = match self.kind {
            Kind::Read => operands.inputs[0].n_elems() / 4,
            Kind::Fma => self.turns,
        };
        Ok(Launches::one(Launch {
            entry: self.name(),
            spec: Spec::threads(THREADS),
            params: Params::new().u32("n", n),
            grid: [self.blocks, 1, 1],
            bindings: vec![Binding::Input(0), Binding::Output(0)],
        }))
    }

    fn cost(&self, operands: Operands<'_>) -> Cost {
        match self.kind {
            Kind::Read => Cost {
                bytes: 4 * operands.inputs[0].n_elems() as u64,
                flops: 0,
            },
            Kind::Fma => Cost {
                bytes: 0,
                flops: (32 * self.threads() * self.turns) as u64,
            },
        }
    }

    fn tolerance(&self, _: Operands<'_>) -> Tolerance {
        Tolerance::EXACT
    }

    fn sharding(&self) -> Sharding {
        Sharding::Mirrored
    }

    fn reference(&self, args: &mut RefArgs<'_>) {
        // The result is of no use to anybody.
        args.outputs[0].values.fill(0.0);
    }

    fn as_any(&self) -> &dyn std::any::Any {
        self
    }
}

/// The two kernels, for [`Options::sources`](crate::run::Options::sources).
pub fn sources() -> BTreeMap<String, String> {
    [
        ("peak_read", include_str!("peak_read.wgsl")),
        ("peak_fma", include_str!("peak_fma.wgsl")),
    ]
    .map(|(name, text)| (name.to_owned(), text.to_owned()))
    .into()
}

fn case(kind: Kind, caps: &Caps) -> Case {
    let probe = Probe::new(kind, caps);
    // Larger than the last cache: 64 MiB in software, up to 256 MiB on a GPU.
    let n_bytes = match (kind, caps.class) {
        (Kind::Fma, _) => 16,
        (Kind::Read, DeviceClass::Software | DeviceClass::Reference) => 64 << 20,
        (Kind::Read, DeviceClass::Integrated | DeviceClass::Discrete) => {
            (256 << 20).min(caps.max_binding_bytes / 2).max(TURN) / TURN * TURN
        }
    };
    Builder::new(probe.name())
        .input(
            "x",
            TensorDesc::f32([n_bytes as usize / 16, 4]),
            Fill::Floats(Class::U),
        )
        .build(probe)
}

/// Measures the limits of a runner's device, which must have been opened with [`sources`].
///
/// # Errors
/// What the device reports.
pub fn measure(runner: &Runner) -> Result<Peak, RecordError> {
    let rate = |kind: Kind| -> Result<f64, RecordError> {
        let recorded = runner.record(&case(kind, runner.caps()))?;
        let timing = bench::time(&**runner.device(), &recorded.recording, bench::BUDGET)?;
        Ok((recorded.cost.bytes + recorded.cost.flops) as f64 / timing.least_s)
    };
    Ok(Peak {
        bytes_per_s: rate(Kind::Read)?,
        flops_per_s: rate(Kind::Fma)?,
    })
}
