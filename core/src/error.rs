//! What can go wrong in the op set, the graph, the plan and on a device.

use crate::tensor::TensorDesc;

/// An operand that does not fit an op, or a limit that a launch would exceed.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum OpError {
    /// An operand has another type, shape or layout than the op takes.
    #[error("{op}: operand {operand} must be {expected}, but is {found}")]
    Operand {
        /// The op.
        op: &'static str,
        /// The operand's name in the op's documentation.
        operand: &'static str,
        /// What the op takes.
        expected: String,
        /// What it was given.
        found: String,
    },
    /// The wrong number of operands.
    #[error("{op}: takes {expected} operands, but was given {found}")]
    Count {
        /// The op.
        op: &'static str,
        /// How many the op takes.
        expected: usize,
        /// How many it was given.
        found: usize,
    },
    /// An attribute of the op that it cannot have.
    #[error("{op}: {what} must be {expected}, but is {found}")]
    Attribute {
        /// The op.
        op: &'static str,
        /// The attribute.
        what: &'static str,
        /// What the op takes.
        expected: String,
        /// What it was given.
        found: String,
    },
    /// A limit of the device.
    #[error("{what}: {needed} needed, but the device allows {limit}")]
    Limit {
        /// What is limited.
        what: &'static str,
        /// How much the launch needs.
        needed: u64,
        /// How much the device allows.
        limit: u64,
    },
}

/// Builds [`OpError::Operand`] for a descriptor that does not fit.
pub fn bad_operand(
    op: &'static str,
    operand: &'static str,
    expected: impl Into<String>,
    found: &TensorDesc,
) -> OpError {
    OpError::Operand {
        op,
        operand,
        expected: expected.into(),
        found: found.to_string(),
    }
}

/// A graph that cannot be built or planned.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum GraphError {
    /// An op refused its operands.
    #[error("in `{label}`: {source}")]
    Op {
        /// Label of the node.
        label: String,
        /// Why.
        source: OpError,
    },
    /// A view that does not exist.
    #[error("in `{label}`: cannot view {found} as {wanted}")]
    View {
        /// Label of the value.
        label: String,
        /// What was asked for.
        wanted: String,
        /// The tensor.
        found: String,
    },
    /// A value larger than the device can bind.
    #[error(
        "value `{label}` needs {needed} bytes, but the device binds at most {limit}; use a smaller micro-batch (-ub)"
    )]
    TooLarge {
        /// Label of the value.
        label: String,
        /// Its size.
        needed: u64,
        /// The device's limit.
        limit: u64,
    },
    /// A graph input without a buffer.
    #[error("no buffer is bound to `{label}`")]
    Unbound {
        /// Label of the value.
        label: String,
    },
}

/// What a device reports that a caller cannot foresee.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DeviceError {
    /// No such device.
    #[error("no device `{wanted}`; {available}")]
    NotFound {
        /// What was asked for.
        wanted: String,
        /// What there is, or what to install.
        available: String,
    },
    /// Device memory ran out, by the engine's own account or the driver's.
    #[error(
        "out of device memory on {device}: {needed} bytes wanted for {what}, {free} of {total} bytes free"
    )]
    OutOfMemory {
        /// The device.
        device: String,
        /// What the memory was for.
        what: String,
        /// How much was wanted.
        needed: u64,
        /// How much was free.
        free: u64,
        /// How much there is.
        total: u64,
    },
    /// The device stopped answering or was removed.
    #[error("device {device} was lost: {reason}")]
    Lost {
        /// The device.
        device: String,
        /// The driver's words.
        reason: String,
    },
    /// A kernel did not compile.
    #[error("kernel {kernel} did not compile: {log}")]
    Compile {
        /// Op, entry and specialisation.
        kernel: String,
        /// The compiler's words, with source line.
        log: String,
    },
    /// A wait that took too long.
    #[error("{device}: waited {seconds} s for {what}")]
    Timeout {
        /// The device.
        device: String,
        /// What did not finish.
        what: String,
        /// How long the wait was.
        seconds: u64,
    },
    /// A buffer of another device, or a range outside a buffer: a mistake of the caller.
    #[error("{device}: {what}")]
    Usage {
        /// The device.
        device: String,
        /// What was wrong.
        what: String,
    },
    /// Any other failure of the driver.
    #[error("{device}: {message}")]
    Driver {
        /// The device.
        device: String,
        /// The driver's words.
        message: String,
    },
}
