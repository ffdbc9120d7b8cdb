//! `scatter_rows` by copying bytes.

use super::RefArgs;
use crate::ops::scatter_rows::ScatterRows;

/// `y[idx[t], ..] = x[t, ..]`
pub fn scatter_rows(_: &ScatterRows, args: &mut RefArgs<'_>) {
    let x = args.inputs[0];
    let idx = args.inputs[1].to_i32();
    let y = &mut args.inouts[0];
    let n_bytes = x.desc.last() * 4;
    for (t, row) in idx.into_iter().enumerate() {
        let Ok(row) = usize::try_from(row) else {
            continue;
        };
        if row >= y.desc.shape[0] {
            continue;
        }
        let from = x.desc.row_offset(t) * 4;
        let to = y.desc.row_offset(row) * 4;
        y.bytes[to..to + n_bytes].copy_from_slice(&x.bytes[from..from + n_bytes]);
    }
}

#[cfg(test)]
mod tests {
    use super::super::{RefTensor, RefTensorMut};
    use super::*;
    use crate::op::Op;
    use crate::tensor::TensorDesc;

    #[test]
    fn listed_rows_are_replaced_and_the_rest_stays() {
        let words = |v: &[i32]| v.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<u8>>();
        // Columns 1 and 2 of three.
        let x = TensorDesc::i32([4, 3]).narrow(1, 1, 2).unwrap();
        let idx = TensorDesc::i32([4]);
        let y = TensorDesc::i32([3, 2]);
        ScatterRows.outputs(&[&x, &idx], &[&y]).unwrap();
        let x_bytes = words(&(100..112).collect::<Vec<_>>());
        let idx_bytes = words(&[2, -1, 3, 0]);
        let mut bytes = words(&[10, 11, 12, 13, 14, 15]);
        let mut args = RefArgs {
            inputs: vec![
                RefTensor {
                    desc: &x,
                    bytes: &x_bytes,
                },
                RefTensor {
                    desc: &idx,
                    bytes: &idx_bytes,
                },
            ],
            inouts: vec![RefTensorMut::new(&y, &mut bytes)],
            outputs: Vec::new(),
        };
        scatter_rows(&ScatterRows, &mut args);
        assert_eq!(bytes, words(&[110, 111, 12, 13, 101, 102]), "rows 0 and 2");
    }
}
