//! The rows of a matrix, left in its file and decoded one by one: for tables of which a step reads a few rows.

use std::sync::Arc;

use gemel_core::format;

use super::shards::Data;
use super::{GgufError, TensorInfo};

/// The rows of a matrix in its file, or made up by the source of a model without one.
#[derive(Clone, Debug)]
pub struct FileRows {
    data: Arc<Data>,
    info: TensorInfo,
    n_rows: usize,
    row_bytes: usize,
}

impl FileRows {
    pub(super) fn new(data: Arc<Data>, info: TensorInfo) -> Self {
        let width = info.shape.last().copied().unwrap_or(1).max(1);
        let n_rows = info.n_elems() / width;
        if let Some((file, range)) = data.place(&info) {
            file.expect_scattered_reads(range);
        }
        Self {
            row_bytes: info.n_bytes / n_rows.max(1),
            n_rows,
            data,
            info,
        }
    }

    /// Bytes of all rows.
    pub fn n_bytes(&self) -> u64 {
        self.info.n_bytes as u64
    }

    /// Fails if the file has changed its length since it was opened.
    ///
    /// # Errors
    /// Names the file.
    pub fn check_unchanged(&self) -> Result<(), GgufError> {
        match self.data.place(&self.info) {
            Some((file, _)) => file.check_len(),
            None => Ok(()),
        }
    }

    /// Has the system read these rows from the disk, all at once, without waiting for it.
    pub fn prefetch(&self, rows: impl IntoIterator<Item = usize>) {
        let Some((file, range)) = self.data.place(&self.info) else {
            return;
        };
        for row in rows {
            if row < self.n_rows {
                let start = range.start + row * self.row_bytes;
                file.prefetch(start..start + self.row_bytes);
            }
        }
    }

    /// Decodes a row into `out`, which has its width; zeros if there is no such row.
    pub fn decode(&self, row: usize, out: &mut [f32]) {
        if row >= self.n_rows {
            out.fill(0.0);
            return;
        }
        let start = row * self.row_bytes;
        let mut scratch = Vec::new();
        let bytes = (self.data).piece(&self.info, start..start + self.row_bytes, &mut scratch);
        format::decode_row(self.info.dtype, bytes, out);
    }
}
