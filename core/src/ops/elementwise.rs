//! What the elementwise ops share: how blocks walk over strided and repeated operands.
//!
//! Neighbouring axes that can be walked as one are merged first, so that contiguous operands, and operands repeated
//! over whole rows, are a single long row. Each block then owns `chunk` neighbouring elements of one row.

use super::expect_f32;
use crate::error::{OpError, bad_operand};
use crate::op::{Caps, DeviceClass, Params, fold_grid};
use crate::tensor::TensorDesc;

/// An axis of the output with the strides of both operands; operand `b` repeats every `b_size` elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Axis {
    size: usize,
    a: usize,
    b_size: usize,
    b: usize,
}

impl Axis {
    /// This axis and the next outer one as a single axis.
    fn merge(self, outer: Self) -> Option<Self> {
        let repeats_all = outer.b_size == 1;
        let continues = self.b_size == self.size && outer.b == self.b * self.size;
        if outer.a != self.a * self.size || !(repeats_all || continues) {
            return None;
        }
        Some(Self {
            size: self.size * outer.size,
            b_size: if repeats_all {
                self.b_size
            } else {
                self.b_size * outer.b_size
            },
            ..self
        })
    }
}

/// Threads, grid and the part of the parameter block that says which elements a block owns.
#[derive(Clone, Debug)]
pub(crate) struct Walk {
    pub(crate) threads: u32,
    pub(crate) grid: [u32; 3],
    pub(crate) params: Params,
}

/// Checks that `b` repeats into `a` on every axis and returns `a`'s shape, contiguous.
pub(crate) fn repeated(
    op: &'static str,
    a: &TensorDesc,
    b: &TensorDesc,
) -> Result<TensorDesc, OpError> {
    expect_f32(op, "a", a)?;
    expect_f32(op, "b", b)?;
    let outer = a.rank().checked_sub(b.rank());
    let fits = outer.is_some_and(|outer| {
        a.shape[outer..]
            .iter()
            .zip(&b.shape)
            .all(|(&a, &b)| a == b || (b != 0 && a.is_multiple_of(b)))
    });
    if !fits {
        return Err(bad_operand(
            op,
            "b",
            format!("of a shape that repeats into {:?}", a.shape),
            b,
        ));
    }
    Ok(TensorDesc::f32(a.shape.clone()))
}

/// The walk over one operand.
pub(crate) fn walk_one(op: &'static str, x: &TensorDesc, caps: &Caps) -> Result<Walk, OpError> {
    let axes = merged(op, "x", x, None)?;
    walk(&axes, x, None, caps)
}

/// The walk over two operands, of which `b` may repeat.
pub(crate) fn walk_two(
    op: &'static str,
    a: &TensorDesc,
    b: &TensorDesc,
    caps: &Caps,
) -> Result<Walk, OpError> {
    let axes = merged(op, "a", a, Some(b))?;
    walk(&axes, a, Some(b), caps)
}

/// The walk over the tokens of streams `[n_tokens, n_streams, d_model]`: a block owns neighbouring channels of one token
/// in all streams. Row `t * n1 + c` of operand `a` is stream `c` of token `t`.
pub(crate) fn walk_streams(x: &TensorDesc, caps: &Caps) -> Result<Walk, OpError> {
    let (n_tokens, n_streams, n) = (x.shape[0], x.shape[1], x.shape[2]);
    let (threads, per_thread) = per_block(n_tokens * n, caps);
    let chunk = threads as usize * per_thread;
    let n_chunks = n.div_ceil(chunk).max(1);
    Ok(Walk {
        threads,
        grid: fold_grid(n_tokens * n_chunks, caps)?,
        params: Params::new()
            .u32("n_rows", n_tokens)
            .u32("n", n)
            .u32("chunk", chunk)
            .u32("n_chunks", n_chunks)
            .u32("n1", n_streams)
            .u32("a_s0", x.strides[0])
            .u32("a_s1", x.strides[1])
            .u32("a_off", x.offset),
    })
}

/// Threads of a block, and the elements of each, for an operand of this size.
fn per_block(n_elems: usize, caps: &Caps) -> (u32, usize) {
    match caps.class {
        // Few threads with a loop each: a block costs as much as a hundred loads there.
        DeviceClass::Software | DeviceClass::Reference => (32, 16),
        DeviceClass::Integrated | DeviceClass::Discrete => {
            // Small tensors spread over the whole device, large ones amortise the start of a block.
            let per_thread = if n_elems > 1 << 18 { 4 } else { 1 };
            (256.min(caps.max_threads_per_block), per_thread)
        }
    }
}

/// Outer, middle and inner axis.
fn merged(
    op: &'static str,
    name: &'static str,
    a: &TensorDesc,
    b: Option<&TensorDesc>,
) -> Result<[Axis; 3], OpError> {
    let (b_shape, b_strides): (&[usize], &[usize]) = match b {
        Some(b) => (&b.shape, &b.strides),
        None => (&[], &[]),
    };
    let missing = a.rank().saturating_sub(b_shape.len());
    let axis = |i: usize| {
        let at = i.checked_sub(missing);
        Axis {
            size: a.shape[i],
            a: a.strides[i],
            b_size: at.map_or(1, |at| b_shape[at]),
            b: at.map_or(1, |at| b_strides[at]),
        }
    };
    let unit = Axis {
        size: 1,
        a: 1,
        b_size: 1,
        b: 1,
    };
    let mut axes = vec![if a.rank() == 0 {
        unit
    } else {
        axis(a.rank() - 1)
    }];
    for i in (0..a.rank().saturating_sub(1)).rev() {
        let outer = axis(i);
        if outer.size == 1 {
            continue;
        }
        let inner = axes.len() - 1;
        match axes[inner].merge(outer) {
            Some(both) => axes[inner] = both,
            None => axes.push(outer),
        }
    }
    if axes.len() > 3 {
        return Err(bad_operand(
            op,
            name,
            "strided or repeated along two outer axes at most",
            a,
        ));
    }
    axes.resize(3, unit);
    Ok([axes[2], axes[1], axes[0]])
}

fn walk(
    axes: &[Axis; 3],
    a: &TensorDesc,
    b: Option<&TensorDesc>,
    caps: &Caps,
) -> Result<Walk, OpError> {
    let [outer, middle, inner] = *axes;
    let n_rows = outer.size * middle.size;
    let n = inner.size;
    let (threads, per_thread) = per_block(n_rows * n, caps);
    let chunk = threads as usize * per_thread;
    let n_chunks = n.div_ceil(chunk).max(1);
    let mut params = Params::new()
        .u32("n_rows", n_rows)
        .u32("n", n)
        .u32("chunk", chunk)
        .u32("n_chunks", n_chunks)
        .u32("n1", middle.size.max(1))
        .u32("a_s0", outer.a)
        .u32("a_s1", middle.a)
        .u32("a_off", a.offset);
    if let Some(b) = b {
        params = params
            .u32("b_m0", outer.b_size.max(1))
            .u32("b_m1", middle.b_size.max(1))
            .u32("b_s0", outer.b)
            .u32("b_s1", middle.b)
            .u32("b_off", b.offset)
            .u32("b_n", inner.b_size.max(1))
            .u32("b_step", threads as usize % inner.b_size.max(1));
    }
    Ok(Walk {
        threads,
        grid: fold_grid(n_rows * n_chunks, caps)?,
        params,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn axes(a: &TensorDesc, b: &TensorDesc) -> [(usize, usize); 3] {
        merged("add", "a", a, Some(b))
            .unwrap()
            .map(|axis| (axis.size, axis.b_size))
    }

    #[test]
    fn axes_merge_where_both_operands_allow() {
        let t = |shape: &[usize]| TensorDesc::f32(shape);
        assert_eq!(
            axes(&t(&[3, 4, 8]), &t(&[3, 4, 8])),
            [(1, 1), (1, 1), (96, 96)],
            "same shape"
        );
        assert_eq!(
            axes(&t(&[3, 4, 8]), &t(&[8])),
            [(1, 1), (1, 1), (96, 8)],
            "a vector repeats along the whole"
        );
        assert_eq!(
            axes(&t(&[3, 4, 8]), &t(&[3, 4, 1])),
            [(1, 1), (12, 12), (8, 1)],
            "one value a row"
        );
        assert_eq!(
            axes(&t(&[3, 4, 8]), &t(&[3, 1, 4])),
            [(1, 1), (3, 3), (32, 4)],
            "repeats inside a row"
        );
        assert_eq!(
            axes(&t(&[6, 4, 8]), &t(&[2, 4, 8])),
            [(1, 1), (1, 1), (192, 64)],
            "whole rows repeat"
        );
        assert_eq!(
            axes(&t(&[3, 4, 8]), &t(&[3, 2, 1])),
            [(3, 3), (4, 2), (8, 1)],
            "nothing merges"
        );
        let part = t(&[3, 4, 8]).narrow(1, 1, 2).unwrap();
        assert_eq!(
            axes(&part, &t(&[3, 2, 8])),
            [(1, 1), (3, 3), (16, 16)],
            "some heads of each token are one row"
        );
    }

    #[test]
    fn more_than_two_outer_strides_are_refused() {
        let t = TensorDesc::f32([3, 4, 5, 8])
            .narrow(1, 0, 3)
            .and_then(|t| t.narrow(2, 0, 4))
            .and_then(|t| t.narrow(3, 0, 7))
            .unwrap();
        let error = merged("scale", "x", &t, None).unwrap_err();
        assert!(
            error.to_string().contains("two outer axes at most"),
            "{error}"
        );
    }
}
