//! The device's own limits, measured with kernels that no model uses: reading memory in order, multiply-adds in
//! registers and, where there are matrix units, products of matrices in registers. Shares of peak refer to these, not
//! to data sheets.

use std::collections::BTreeMap;
use std::fmt;

use gemel_core::TensorDesc;
use gemel_core::error::OpError;
use gemel_core::op::{
    Binding, Caps, Cost, DeviceClass, Launch, Launches, Op, Operands, Params, Roof, Sharding, Spec,
    Tolerance,
};
use gemel_core::reference::RefArgs;

use crate::bench::{self, Effort};
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
    /// What its matrix units do, where kernels can use them.
    pub matrix: Option<MatrixPeak>,
}

/// Operations a second of matrix units and of products of four bytes; a multiply-add is two.
#[derive(Clone, Copy, Debug)]
pub struct MatrixPeak {
    /// f16, summed in f32.
    pub f16: f64,
    /// bf16, summed in f32.
    pub bf16: f64,
    /// Signed bytes.
    pub s8: f64,
    /// Four products of bytes a thread, without matrix units.
    pub dot4: f64,
}

impl Peak {
    /// Arithmetic under this roof, operations a second.
    pub fn arithmetic(&self, roof: Roof) -> f64 {
        match (roof, self.matrix) {
            (Roof::Vector, _) | (_, None) => self.flops_per_s,
            (Roof::Matrix, Some(matrix)) => matrix.f16.max(matrix.bf16),
            (Roof::ByteMatrix, Some(matrix)) => matrix.s8,
        }
    }

    /// The share of its roofline that an op of this cost reaches in this time.
    pub fn share(&self, roof: Roof, cost: Cost, seconds: f64) -> f64 {
        let read = cost.bytes as f64 / self.bytes_per_s;
        let computed = cost.flops as f64 / self.arithmetic(roof);
        read.max(computed) / seconds
    }
}

/// One line: the limits in GB/s and GFLOP/s.
impl fmt::Display for Peak {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "limits: {:.1} GB/s read, {:.1} GFLOP/s of f32 multiply-adds",
            self.bytes_per_s / 1e9,
            self.flops_per_s / 1e9
        )?;
        match self.matrix {
            Some(matrix) => write!(
                f,
                "; matrix products of f16 {:.1}, of bf16 {:.1}, of bytes {:.1}; of four bytes {:.1} GFLOP/s",
                matrix.f16 / 1e9,
                matrix.bf16 / 1e9,
                matrix.s8 / 1e9,
                matrix.dot4 / 1e9
            ),
            None => Ok(()),
        }
    }
}

/// The measurements.
#[derive(Clone, Copy, Debug)]
enum Kind {
    Read,
    Fma,
    F16,
    Bf16,
    S8,
    Dot4,
}

impl Kind {
    /// Operations of a thread in a turn of the kernel's loop.
    fn flops(self) -> u64 {
        match self {
            Self::Read => 0,
            // Sixteen chains.
            Self::Fma => 16 * 2,
            // Four products of 16 x 16 by 16 x 8, shared by the lanes of a warp.
            Self::F16 | Self::Bf16 => 4 * (2 * 16 * 16 * 8) / 32,
            Self::S8 => 4 * (2 * 16 * 32 * 8) / 32,
            Self::Dot4 => 16 * 8,
        }
    }
}

/// Threads of a block.
const THREADS: u32 = 64;

/// How much is measured.
#[derive(Clone, Copy, Debug)]
struct Size {
    /// Blocks of a launch: enough to fill the device; software devices have two cores or so.
    blocks: u32,
    /// Turns of each thread's loop of arithmetic.
    turns: usize,
    /// Bytes that are read: more than the last cache holds.
    n_bytes: u64,
}

impl Size {
    fn new(caps: &Caps, emulated: bool) -> Self {
        match caps.class {
            // Figures mean nothing there; that the kernels run is all.
            _ if emulated => Self {
                blocks: 4,
                turns: 16,
                n_bytes: 1 << 16,
            },
            DeviceClass::Software | DeviceClass::Reference => Self {
                blocks: 16,
                turns: 4096,
                n_bytes: 64 << 20,
            },
            DeviceClass::Integrated | DeviceClass::Discrete => {
                let blocks = 8192;
                let turn = u64::from(blocks * THREADS) * 64;
                Self {
                    blocks,
                    turns: 4096,
                    n_bytes: (256 << 20).min(caps.max_binding_bytes / 2).max(turn) / turn * turn,
                }
            }
        }
    }

    fn threads(&self) -> usize {
        (self.blocks * THREADS) as usize
    }
}

/// One of the measurements as an op.
#[derive(Clone, Debug)]
struct Probe {
    kind: Kind,
    size: Size,
}

impl fmt::Display for Probe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.entry())
    }
}

impl Probe {
    fn entry(&self) -> &'static str {
        match self.kind {
            Kind::Read => "peak_read",
            Kind::Fma => "peak_fma",
            Kind::F16 => "peak_mma_f16",
            Kind::Bf16 => "peak_mma_bf16",
            Kind::S8 => "peak_mma_s8",
            Kind::Dot4 => "peak_mma_dot4",
        }
    }
}

impl Op for Probe {
    fn name(&self) -> &'static str {
        match self.kind {
            Kind::Read => "peak_read",
            Kind::Fma => "peak_fma",
            Kind::F16 | Kind::Bf16 | Kind::S8 | Kind::Dot4 => "peak_mma",
        }
    }

    fn outputs(&self, _: &[&TensorDesc], _: &[&TensorDesc]) -> Result<Vec<TensorDesc>, OpError> {
        Ok(vec![TensorDesc::f32([self.size.threads()])])
    }

    fn launches(&self, operands: Operands<'_>, _: &Caps) -> Result<Launches, OpError> {
        let n = match self.kind {
            Kind::Read => operands.inputs[0].n_elems() / 4,
            Kind::Fma | Kind::F16 | Kind::Bf16 | Kind::S8 | Kind::Dot4 => self.size.turns,
        };
        Ok(Launches::one(Launch {
            entry: self.entry(),
            spec: Spec::threads(THREADS),
            params: Params::new().u32("n", n),
            grid: [self.size.blocks, 1, 1],
            bindings: vec![Binding::Input(0), Binding::Output(0)],
        }))
    }

    fn cost(&self, operands: Operands<'_>) -> Cost {
        let n_threads = self.size.threads() as u64;
        match self.kind {
            Kind::Read => Cost {
                bytes: 4 * operands.inputs[0].n_elems() as u64,
                flops: 0,
            },
            kind => Cost {
                bytes: 0,
                flops: kind.flops() * n_threads * self.size.turns as u64,
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

/// The shaders and kernels, for [`Options::sources`](crate::run::Options::sources).
pub fn sources() -> BTreeMap<String, String> {
    [
        ("peak_read", include_str!("peak_read.wgsl")),
        ("peak_fma", include_str!("peak_fma.wgsl")),
        ("peak_read.cu", include_str!("peak_read.cu")),
        ("peak_fma.cu", include_str!("peak_fma.cu")),
        ("peak_mma.cu", include_str!("peak_mma.cu")),
    ]
    .map(|(name, text)| (name.to_owned(), text.to_owned()))
    .into()
}

fn case(kind: Kind, size: Size) -> Case {
    let probe = Probe { kind, size };
    let n_bytes = match kind {
        Kind::Read => size.n_bytes,
        _ => 16,
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
    let effort = Effort::of(runner);
    let size = Size::new(runner.caps(), effort == Effort::SMOKE);
    let rate = |kind: Kind| -> Result<f64, RecordError> {
        let recorded = runner.record(&case(kind, size))?;
        let timing = bench::time(&**runner.device(), &recorded.recording, effort)?;
        Ok((recorded.cost.bytes + recorded.cost.flops) as f64 / timing.least_s)
    };
    let matrix = if runner.caps().tensor_cores {
        Some(MatrixPeak {
            f16: rate(Kind::F16)?,
            bf16: rate(Kind::Bf16)?,
            s8: rate(Kind::S8)?,
            dot4: rate(Kind::Dot4)?,
        })
    } else {
        None
    };
    Ok(Peak {
        bytes_per_s: rate(Kind::Read)?,
        flops_per_s: rate(Kind::Fma)?,
        matrix,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_is_of_the_roof_that_binds() {
        let peak = Peak {
            bytes_per_s: 100.0,
            flops_per_s: 1000.0,
            matrix: Some(MatrixPeak {
                f16: 4000.0,
                bf16: 5000.0,
                s8: 10_000.0,
                dot4: 2000.0,
            }),
        };
        let share = |roof, bytes, flops| peak.share(roof, Cost { bytes, flops }, 2.0);
        let is = |share: f64, expected: f64| (share - expected).abs() < 1e-12;
        assert!(is(share(Roof::Vector, 100, 1000), 0.5), "both");
        assert!(is(share(Roof::Vector, 100, 4000), 2.0), "arithmetic");
        assert!(is(share(Roof::Matrix, 100, 5000), 0.5), "matrices");
        assert!(is(share(Roof::ByteMatrix, 10, 10_000), 0.5), "bytes");
    }
}
