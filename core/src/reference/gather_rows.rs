//! `gather_rows` in f64.

use super::RefArgs;
use crate::ops::gather_rows::GatherRows;

/// `y[t] = scale * w[ids[t]]`; rows that do not exist are zero.
pub fn gather_rows(op: &GatherRows, args: &mut RefArgs<'_>) {
    let w = args.inputs[0];
    let ids = args.inputs[1].to_i32();
    let y = &mut args.outputs[0];
    let n = w.desc.last();
    let n_rows = w.desc.rows();
    let mut row = vec![0.0; n];
    for (t, &id) in ids.iter().enumerate() {
        match usize::try_from(id) {
            Ok(id) if id < n_rows => w.row(id, &mut row),
            _ => row.fill(0.0),
        }
        for (i, &v) in row.iter().enumerate() {
            y.put(t * n + i, f64::from(v) * f64::from(op.scale));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dtype::DType;
    use crate::op::Op;
    use crate::reference::{RefOutput, RefTensor};
    use crate::tensor::{Layout, TensorDesc};

    #[test]
    fn rows_that_do_not_exist_are_zero() {
        // Two rows of q8_0: scales 0.5 and 2, codes 1 and -3.
        let mut blocks = Vec::new();
        for (d, code) in [(0.5, 1_i8), (2.0, -3)] {
            blocks.extend(half::f16::from_f32(d).to_le_bytes());
            blocks.extend([code.cast_unsigned(); 32]);
        }
        let w = TensorDesc::weight(DType::Q8_0, [2, 32], Layout::Rows);
        let ids = TensorDesc::i32([4]);
        let id_bytes: Vec<u8> = [1, -1, 2, 0_i32]
            .iter()
            .flat_map(|id| id.to_le_bytes())
            .collect();
        let op = GatherRows { scale: 10.0 };
        let out = op.outputs(&[&w, &ids], &[]).unwrap();
        let inputs = [(&w, &blocks), (&ids, &id_bytes)];
        let mut args = RefArgs {
            inputs: inputs
                .map(|(desc, bytes)| RefTensor { desc, bytes })
                .to_vec(),
            inouts: Vec::new(),
            outputs: vec![RefOutput::new(&out[0])],
        };
        op.reference(&mut args);
        for (row, expected) in [-60.0, 0.0, 0.0, 5.0].into_iter().enumerate() {
            let got = &args.outputs[0].values[32 * row..32 * (row + 1)];
            assert_eq!(got, [expected; 32], "row {row}");
        }
    }
}
