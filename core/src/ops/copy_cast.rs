//! `copy_cast`: copies a tensor into contiguous storage, converting the element type.
//!
//! `y = convert(x)`
//!
//! # Shapes
//! `x`: f32, f16, bf16 or i32 with a contiguous last axis and at most two outer strides, or any block format in file
//! order (`to` f32 only, on the reference only: on devices weights lie in tiles and `gather_rows` decodes them).
//! `y`: as `x`, contiguous, of type `to`.
//! # Numerics
//! To f16 and bf16: nearest even, overflow to infinity. To i32: towards zero, saturating, NaN becomes 0. i32 goes to
//! the 16-bit floats by way of f32. All conversions are exact in this sense on every device.

use std::fmt;

use super::elementwise::walk_one;
use super::take;
use crate::dtype::DType;
use crate::error::{OpError, bad_operand};
use crate::op::{Binding, Caps, Cost, Launch, Launches, Op, Operands, Sharding, Spec, Tolerance};
use crate::reference::{self, RefArgs};
use crate::tensor::{Layout, TensorDesc};

/// See the [module](self).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CopyCast {
    /// Element type of the result: f32, f16, bf16 or i32.
    pub to: DType,
}

impl CopyCast {
    /// The one name.
    pub const NAME: &str = "copy_cast";
}

/// The number by which the shader knows a plain type.
fn code(dtype: DType) -> Option<usize> {
    match dtype {
        DType::F32 => Some(0),
        DType::F16 => Some(1),
        DType::BF16 => Some(2),
        DType::I32 => Some(3),
        _ => None,
    }
}

impl fmt::Display for CopyCast {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}[to={}]", Self::NAME, self.to)
    }
}

impl Op for CopyCast {
    fn name(&self) -> &'static str {
        Self::NAME
    }

    fn outputs(
        &self,
        inputs: &[&TensorDesc],
        _: &[&TensorDesc],
    ) -> Result<Vec<TensorDesc>, OpError> {
        let [x] = take(Self::NAME, inputs)?;
        if x.layout != Layout::Rows {
            return Err(bad_operand(
                Self::NAME,
                "x",
                "in rows; gather_rows decodes weights in tiles",
                x,
            ));
        }
        let is_block = x.dtype.block_elems() > 1;
        if code(x.dtype).is_none() && !is_block {
            return Err(bad_operand(
                Self::NAME,
                "x",
                "f32, f16, bf16, i32 or a block format",
                x,
            ));
        }
        let y = TensorDesc::new(self.to, x.shape.clone());
        if code(self.to).is_none() || (is_block && self.to != DType::F32) {
            let expected = if is_block {
                "f32 when x is a block format"
            } else {
                "f32, f16, bf16 or i32"
            };
            return Err(bad_operand(Self::NAME, "y", expected, &y));
        }
        Ok(vec![y])
    }

    fn launches(&self, operands: Operands<'_>, caps: &Caps) -> Result<Launches, OpError> {
        let [x] = take(Self::NAME, operands.inputs)?;
        let (Some(x_type), Some(y_type)) = (code(x.dtype), code(self.to)) else {
            return Err(bad_operand(
                Self::NAME,
                "x",
                "of a plain type on this device; gather_rows decodes block formats",
                x,
            ));
        };
        // A thread writes whole words of the output, which two elements of different rows may share. So the walk is
        // over the words of the output, and the operand's rows are found per element.
        let per_word = if self.to.block_bytes() == 2 { 2 } else { 1 };
        let n_words = x.n_elems().div_ceil(per_word);
        let words = TensorDesc::f32([n_words]);
        let walk = walk_one(Self::NAME, &words, caps)?;
        let rows = walk_one(Self::NAME, x, caps)?;
        let mut params = walk.params;
        for (name, value) in rows.params.fields() {
            if let crate::op::Param::U32(value) = *value {
                params = params.u32(format!("x_{name}"), value as usize);
            }
        }
        Ok(Launches::one(Launch {
            entry: Self::NAME,
            spec: Spec::threads(walk.threads),
            params: params
                .u32("n_elems", x.n_elems())
                .u32("x_type", x_type)
                .u32("y_type", y_type),
            grid: walk.grid,
            bindings: vec![Binding::Input(0), Binding::Output(0)],
        }))
    }

    fn cost(&self, operands: Operands<'_>) -> Cost {
        let x = operands.inputs[0];
        let n = x.n_elems();
        Cost {
            bytes: (n / x.dtype.block_elems() * x.dtype.block_bytes() + n * self.to.block_bytes())
                as u64,
            flops: 0,
        }
    }

    fn tolerance(&self, operands: Operands<'_>) -> Tolerance {
        if operands.inputs[0].dtype.block_elems() > 1 {
            Tolerance::units(2.0, 1, 1e-13)
        } else {
            Tolerance::EXACT
        }
    }

    fn sharding(&self) -> Sharding {
        Sharding::Elementwise
    }

    fn reference(&self, args: &mut RefArgs<'_>) {
        reference::copy_cast::copy_cast(self, args);
    }

    fn as_any(&self) -> &dyn std::any::Any {
        self
    }
}
