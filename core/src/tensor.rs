//! Tensor descriptors: element type, shape, strides, offset and storage layout.

use std::fmt;

use crate::dtype::DType;
use crate::format::{cache_row::CacheRow, tile8::Tile8};

/// How the bytes of a tensor are arranged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Layout {
    /// Row after row as in a file: plain elements or whole blocks, the last axis contiguous.
    Rows,
    /// Weights in tiles of 8 rows by one block, see [`crate::format::tile8`].
    Tile8,
    /// A paged key or value cache `[n_pages, n_heads, PAGE, head_dim]`, see [`crate::format::cache_row`].
    Pages,
}

/// Type, shape, strides and offset of one operand. Axes run slowest first; the last axis is contiguous.
///
/// # Units
/// `strides` and `offset` count elements. Blocks are never split: for block types every stride and the offset
/// are multiples of the block's elements.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct TensorDesc {
    /// Element type or block format.
    pub dtype: DType,
    /// Sizes of the axes, slowest first.
    pub shape: Vec<usize>,
    /// Distance in elements between neighbours along each axis; the last one is 1.
    pub strides: Vec<usize>,
    /// Elements before the first one in the binding.
    pub offset: usize,
    /// Arrangement of the bytes.
    pub layout: Layout,
    /// For weights too large for one binding: rows in each window but the last, a multiple of 8. Each window is a
    /// buffer of its own with the layout of a matrix of that many rows. 0: everything is in one buffer.
    pub window_rows: usize,
}

impl TensorDesc {
    /// A contiguous tensor.
    pub fn new(dtype: DType, shape: impl Into<Vec<usize>>) -> Self {
        let shape = shape.into();
        let strides = contiguous_strides(&shape);
        Self {
            dtype,
            shape,
            strides,
            offset: 0,
            layout: Layout::Rows,
            window_rows: 0,
        }
    }

    /// A contiguous f32 tensor.
    pub fn f32(shape: impl Into<Vec<usize>>) -> Self {
        Self::new(DType::F32, shape)
    }

    /// A contiguous i32 tensor.
    pub fn i32(shape: impl Into<Vec<usize>>) -> Self {
        Self::new(DType::I32, shape)
    }

    /// A weight matrix `[d_out, d_in]` in the given layout.
    pub fn weight(dtype: DType, shape: impl Into<Vec<usize>>, layout: Layout) -> Self {
        Self {
            layout,
            ..Self::new(dtype, shape)
        }
    }

    /// A paged cache `[n_pages, n_heads, PAGE, head_dim]`.
    pub fn pages(dtype: DType, n_pages: usize, n_heads: usize, head_dim: usize) -> Self {
        Self {
            layout: Layout::Pages,
            ..Self::new(dtype, [n_pages, n_heads, crate::PAGE, head_dim])
        }
    }

    /// A paged cache with one row for each block of `ratio` tokens: `[n_pages, n_heads, PAGE / ratio, dim]`.
    pub fn block_pages(
        dtype: DType,
        n_pages: usize,
        n_heads: usize,
        ratio: usize,
        dim: usize,
    ) -> Self {
        Self {
            layout: Layout::Pages,
            ..Self::new(dtype, [n_pages, n_heads, crate::PAGE / ratio, dim])
        }
    }

    /// Number of axes.
    pub fn rank(&self) -> usize {
        self.shape.len()
    }

    /// Number of elements.
    pub fn n_elems(&self) -> usize {
        self.shape.iter().product()
    }

    /// Size of the last axis (1 for a scalar).
    pub fn last(&self) -> usize {
        self.shape.last().copied().unwrap_or(1)
    }

    /// Product of all axes but the last.
    pub fn rows(&self) -> usize {
        match self.shape.split_last() {
            Some((_, outer)) => outer.iter().product(),
            None => 1,
        }
    }

    /// Whether the elements lie one after the other.
    pub fn is_contiguous(&self) -> bool {
        self.strides == contiguous_strides(&self.shape)
    }

    /// The distance in elements from one row to the next, if all outer axes collapse into one.
    ///
    /// A tensor `[T, H, d]` whose heads are adjacent collapses to `T * H` rows with stride `d`; a view of some of
    /// the heads of each token does not.
    pub fn row_stride(&self) -> Option<usize> {
        if self.rank() < 2 {
            return Some(self.last());
        }
        let mut stride = None;
        let mut expected = 0;
        for axis in (0..self.rank() - 1).rev() {
            if self.shape[axis] == 1 {
                continue;
            }
            match stride {
                None => {
                    stride = Some(self.strides[axis]);
                    expected = self.strides[axis] * self.shape[axis];
                }
                Some(_) if self.strides[axis] == expected => expected *= self.shape[axis],
                Some(_) => return None,
            }
        }
        Some(stride.unwrap_or_else(|| self.last()))
    }

    /// The tile layout of `n_rows` rows of this weight.
    ///
    /// # Panics
    /// If a row is not a whole number of blocks, which the graph builder refuses first.
    pub fn tiles(&self, n_rows: usize) -> Tile8 {
        Tile8::new(self.dtype, n_rows, self.last())
    }

    /// First row and number of rows of each window; a single one unless `window_rows` is set.
    pub fn windows(&self) -> Vec<(usize, usize)> {
        let rows = self.rows();
        if self.window_rows == 0 || self.window_rows >= rows {
            return vec![(0, rows)];
        }
        (0..rows)
            .step_by(self.window_rows)
            .map(|first| (first, self.window_rows.min(rows - first)))
            .collect()
    }

    /// Bytes from the start of the binding to the end of the last element.
    ///
    /// # Panics
    /// If a row is not a whole number of blocks, which the graph builder refuses first.
    pub fn n_bytes(&self) -> usize {
        match self.layout {
            Layout::Tile8 => self
                .windows()
                .into_iter()
                .map(|(_, n_rows)| self.tiles(n_rows).packed_bytes())
                .sum(),
            Layout::Pages => {
                self.shape[0]
                    * self.shape[1]
                    * self.shape[2]
                    * CacheRow::new(self.dtype, self.last()).n_words()
                    * 4
            }
            Layout::Rows => {
                if self.n_elems() == 0 {
                    return 0;
                }
                let last_elem: usize = self
                    .shape
                    .iter()
                    .zip(&self.strides)
                    .map(|(&n, &stride)| (n - 1) * stride)
                    .sum();
                let end = self.offset + last_elem + 1;
                end.div_ceil(self.dtype.block_elems()) * self.dtype.block_bytes()
            }
        }
    }

    /// The element offset of the row with this index, rows numbered over all outer axes.
    pub fn row_offset(&self, row: usize) -> usize {
        let mut rest = row;
        let mut offset = self.offset;
        for axis in (0..self.rank().saturating_sub(1)).rev() {
            offset += (rest % self.shape[axis]) * self.strides[axis];
            rest /= self.shape[axis];
        }
        offset
    }

    /// The same elements under another shape.
    ///
    /// Allowed when the tensor is contiguous, or when only the last axis is cut in two.
    pub fn reshape(&self, shape: impl Into<Vec<usize>>) -> Option<Self> {
        let shape = shape.into();
        if shape.iter().product::<usize>() != self.n_elems() || self.layout != Layout::Rows {
            return None;
        }
        let strides = if self.is_contiguous() {
            contiguous_strides(&shape)
        } else {
            let outer = self.rank() - 1;
            if shape.len() <= outer || shape[..outer] != self.shape[..outer] {
                return None;
            }
            let mut strides = self.strides[..outer].to_vec();
            strides.extend(contiguous_strides(&shape[outer..]));
            strides
        };
        Some(Self {
            shape,
            strides,
            ..self.clone()
        })
    }

    /// The same elements repeated `n` times along a new axis in front of `axis`, without a copy.
    ///
    /// For operands that are read; the new axis has stride 0.
    pub fn repeat(&self, axis: usize, n: usize) -> Option<Self> {
        if axis >= self.rank() || self.layout != Layout::Rows {
            return None;
        }
        let mut view = self.clone();
        view.shape.insert(axis, n);
        view.strides.insert(axis, 0);
        Some(view)
    }

    /// Elements `start .. start + len` of an axis.
    pub fn narrow(&self, axis: usize, start: usize, len: usize) -> Option<Self> {
        if axis >= self.rank() || start + len > self.shape[axis] {
            return None;
        }
        let mut view = self.clone();
        view.shape[axis] = len;
        view.offset += start * self.strides[axis];
        Some(view)
    }
}

/// The strides of a contiguous tensor with this shape.
pub fn contiguous_strides(shape: &[usize]) -> Vec<usize> {
    let mut strides = vec![1; shape.len()];
    for axis in (0..shape.len().saturating_sub(1)).rev() {
        strides[axis] = strides[axis + 1] * shape[axis + 1];
    }
    strides
}

impl fmt::Debug for TensorDesc {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{:?}", self.dtype, self.shape)?;
        if !self.is_contiguous() {
            write!(f, " strides {:?}", self.strides)?;
        }
        if self.offset != 0 {
            write!(f, " +{}", self.offset)?;
        }
        match self.layout {
            Layout::Rows => Ok(()),
            Layout::Tile8 => f.write_str(" tile8"),
            Layout::Pages => f.write_str(" pages"),
        }
    }
}

impl fmt::Display for TensorDesc {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn row_stride_collapses_only_adjacent_axes() {
        let t = TensorDesc::f32([4, 6, 8]);
        assert_eq!(t.row_stride(), Some(8), "contiguous");
        let heads = t.narrow(1, 2, 3).unwrap();
        assert_eq!(heads.row_stride(), None, "some heads of each token");
        assert_eq!(
            heads.row_offset(3),
            48 + 16,
            "second token, first kept head"
        );
        let one = t.narrow(1, 2, 1).unwrap();
        assert_eq!(one.row_stride(), Some(48), "one head of each token");
        assert_eq!(
            one.n_bytes(),
            (16 + 3 * 48 + 8) * 4,
            "up to the last element"
        );
    }

    #[test]
    fn a_repeated_axis_takes_no_storage() {
        let t = TensorDesc::f32([5, 8]);
        let streams = t.repeat(1, 3).unwrap();
        assert_eq!(streams.shape, [5, 3, 8], "a new middle axis");
        assert_eq!(streams.n_bytes(), t.n_bytes(), "the same storage");
        assert_eq!(
            (streams.row_offset(2), streams.row_offset(3)),
            (0, 8),
            "rows of a token coincide"
        );
        assert!(t.repeat(2, 3).is_none(), "the last axis stays contiguous");
    }

    #[test]
    fn reshape_splits_the_last_axis_of_a_view() {
        let t = TensorDesc::f32([5, 24]).narrow(1, 8, 16).unwrap();
        let heads = t.reshape([5, 4, 4]).unwrap();
        assert_eq!(heads.strides, [24, 4, 1], "outer stride kept");
        assert!(t.reshape([20, 4]).is_none(), "would need a copy");
    }
}
