//! `rope_kv_write` as its parts, one after the other.

use super::kv_write::kv_write;
use super::rope::rope;
use super::{RefArgs, RefOutput, RefTensor};
use crate::PAGE;
use crate::ops::kv_write::KvWrite;
use crate::ops::rope_kv_write::RopeKvWrite;
use crate::tensor::TensorDesc;

/// Rotates queries and keys, then writes keys and values.
///
/// # Panics
/// On operands that the op refuses.
pub fn rope_kv_write(op: &RopeKvWrite, args: &mut RefArgs<'_>) {
    let [x, v, pos, table, slots] = args.inputs[..] else {
        unreachable!("five inputs")
    };
    let [queries, keys] = op.parts(x.desc).expect("checked");
    let y = turned(
        op,
        [
            RefTensor {
                desc: &queries,
                ..x
            },
            pos,
            table,
        ],
    );
    let to = &mut args.outputs[0];
    for (i, &value) in y.values.iter().enumerate() {
        to.put_sum(i, value, y.magnitudes[i], y.norms[i]);
    }
    let k = turned(op, [RefTensor { desc: &keys, ..x }, pos, table]);

    let cache = &mut args.inouts[0];
    let (n_pages, n_heads, dim) = (cache.desc.shape[0], cache.desc.shape[1], cache.desc.last());
    for (t, slot) in slots.to_i32().into_iter().enumerate() {
        let Some(slot) = usize::try_from(slot)
            .ok()
            .filter(|&slot| slot < n_pages * PAGE)
        else {
            continue;
        };
        for h in 0..n_heads {
            let from = (t * n_heads + h) * dim..(t * n_heads + h + 1) * dim;
            let values: Vec<f32> = k.values[from.clone()].iter().map(|&v| v as f32).collect();
            let row = (slot / PAGE * n_heads + h) * PAGE + slot % PAGE;
            cache.set_cell(row, &values);
            if let Some(magnitudes) = &mut cache.magnitudes {
                magnitudes.resize(cache.desc.n_elems(), -1.0);
                magnitudes[row * dim..(row + 1) * dim].copy_from_slice(&k.magnitudes[from]);
            }
        }
    }
    let mut written = RefArgs {
        inputs: vec![v, slots],
        inouts: vec![args.inouts.remove(1)],
        outputs: Vec::new(),
    };
    kv_write(&KvWrite, &mut written);
    args.inouts.push(written.inouts.remove(0));
}

/// What a rotation makes of heads.
struct Turned {
    values: Vec<f64>,
    magnitudes: Vec<f64>,
    norms: Vec<f64>,
}

fn turned(op: &RopeKvWrite, inputs: [RefTensor<'_>; 3]) -> Turned {
    let desc = TensorDesc::f32(inputs[0].desc.shape.clone());
    let mut part = RefArgs {
        inputs: inputs.to_vec(),
        inouts: Vec::new(),
        outputs: vec![RefOutput::new(&desc)],
    };
    rope(&op.rope(), &mut part);
    let RefOutput {
        values,
        magnitudes,
        norms,
        ..
    } = part.outputs.remove(0);
    Turned {
        values,
        magnitudes,
        norms,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dtype::DType;
    use crate::op::Op;
    use crate::ops::rope::{FINE, RopeMode};
    use crate::reference::RefTensorMut;
    use crate::reference::testing::{f32s, i32s};

    #[test]
    fn a_quarter_turn_by_hand() {
        // One query and one key of two channels at position 1, which turns them by a quarter; values of one channel.
        let table: Vec<f32> = (0..=FINE)
            .flat_map(|row| {
                let angle = (row % FINE) as f64 * std::f64::consts::FRAC_PI_2;
                [angle.cos() as f32, angle.sin() as f32]
            })
            .collect();
        let op = RopeKvWrite {
            mode: RopeMode::Neox,
            n_rot: 2,
            n_heads: 1,
        };
        let descs = [
            TensorDesc::f32([1, 2, 2]),
            TensorDesc::f32([1, 1, 1]),
            TensorDesc::i32([1]),
            TensorDesc::f32([FINE + 1, 1, 2]),
            TensorDesc::i32([1]),
        ];
        let bytes = [
            f32s(&[1.0, 2.0, 3.0, 5.0]),
            f32s(&[7.0]),
            i32s(&[1]),
            f32s(&table),
            i32s(&[9]),
        ];
        let caches = [2, 1].map(|dim| TensorDesc::pages(DType::F32, 1, 1, dim));
        let refs: Vec<&TensorDesc> = descs.iter().collect();
        let outputs = op.outputs(&refs, &[&caches[0], &caches[1]]).unwrap();
        let mut stored = caches.each_ref().map(|desc| vec![0; desc.n_bytes()]);
        let [k_bytes, v_bytes] = &mut stored;
        let mut args = RefArgs {
            inputs: descs
                .iter()
                .zip(&bytes)
                .map(|(desc, bytes)| RefTensor { desc, bytes })
                .collect(),
            inouts: vec![
                RefTensorMut::new(&caches[0], k_bytes),
                RefTensorMut::new(&caches[1], v_bytes),
            ],
            outputs: vec![RefOutput::new(&outputs[0])],
        };
        rope_kv_write(&op, &mut args);
        let close = |found: &[f64], expected: &[f64]| {
            let pairs = found.iter().zip(expected);
            pairs.clone().all(|(a, b)| (a - b).abs() < 1e-6) && found.len() == expected.len()
        };
        let y = &args.outputs[0].values;
        assert!(close(y, &[-2.0, 1.0]), "query {y:?}");
        let cell = |i: usize| -> Vec<f64> {
            let cache = RefTensor {
                desc: &caches[i],
                bytes: &stored[i],
            };
            cache.row_vec(9).into_iter().map(f64::from).collect()
        };
        assert!(close(&cell(0), &[-5.0, 3.0]), "key {:?}", cell(0));
        assert!(close(&cell(1), &[7.0]), "value {:?}", cell(1));
    }
}
