//! `ngram_hash` in 64-bit integers.

use super::RefArgs;
use crate::ops::ngram_hash::NgramHash;

/// The context of a token: its own id, then its predecessors up to the first that is missing or ends a text.
fn context(ids: &[i32], eos: i32) -> Vec<u64> {
    let mut context = vec![ids[0]];
    for &id in &ids[1..] {
        let is_cut = context.len() > 1 && context.last() == Some(&eos);
        context.push(if is_cut || id < 0 { eos } else { id });
    }
    context
        .into_iter()
        .map(|id| u64::from(id.cast_unsigned()))
        .collect()
}

/// See the definition.
pub fn ngram_hash(op: &NgramHash, args: &mut RefArgs<'_>) {
    let n = args.inputs[0].desc.last();
    let words = |tensor: usize| args.inputs[tensor].to_i32();
    let (ids, multipliers, heads) = (words(0), words(1), words(2));
    let multiplier = |j: usize| {
        let word = |w: usize| u64::from(multipliers[2 * j + w].cast_unsigned());
        word(0) | word(1) << 32
    };
    let n_heads = heads.len() / 2;
    for (t, ids) in ids.chunks_exact(n).enumerate() {
        let context = context(ids, op.eos);
        for head in 0..n_heads {
            let length = head / op.n_heads_per_ngram + 2;
            let mixed =
                (0..length).fold(0, |mixed, j| mixed ^ context[j].wrapping_mul(multiplier(j)));
            let size = u64::from(heads[2 * head].cast_unsigned());
            let row = match mixed.checked_rem(size) {
                Some(row) => row as i64 + i64::from(heads[2 * head + 1]),
                None => -1,
            };
            args.outputs[0].put(t * n_heads + head, row as f64);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::NgramHash;
    use crate::reference::testing::{i32s, run};
    use crate::tensor::TensorDesc;

    fn rows(op: &NgramHash, ids: &[i32], n: usize, multipliers: &[u64], heads: &[i32]) -> Vec<f64> {
        let words: Vec<i32> = multipliers
            .iter()
            .flat_map(|m| [*m as u32, (m >> 32) as u32].map(u32::cast_signed))
            .collect();
        let out = run(
            op,
            &[
                (TensorDesc::i32([ids.len() / n, n]), &i32s(ids)),
                (TensorDesc::i32([n, 2]), &i32s(&words)),
                (TensorDesc::i32([heads.len() / 2, 2]), &i32s(heads)),
            ],
        );
        out[0].values.clone()
    }

    /// Published with another engine (local-inference-lab/b12x, issue 332): tokens 7, 9, 11.
    #[test]
    fn multiplier_0_belongs_to_the_token_itself() {
        let op = NgramHash {
            eos: 99,
            n_heads_per_ngram: 1,
        };
        let ids = [7, -1, -1, 9, 7, -1, 11, 9, 7];
        let found = rows(&op, &ids, 3, &[3, 5, 7], &[101, 0, 103, 101]);
        assert_eq!(found, [1.0, 124.0, 56.0, 136.0, 12.0, 162.0], "rows");
    }

    /// Rows of heads 0 and 8 with the constants of the published model, computed independently from the formula.
    #[test]
    fn histories_end_at_the_end_of_a_text() {
        const EOS: i32 = 248_044;
        let op = NgramHash {
            eos: EOS,
            n_heads_per_ngram: 1,
        };
        let ids = [
            [9707, -1, -1],
            [11, 9707, -1],
            [1879, 11, 9707],
            [1879, EOS, 9707],
            [1879, 9707, EOS],
            [EOS, 11, 9707],
        ]
        .concat();
        let found = rows(
            &op,
            &ids,
            3,
            &[23_703_573_157_769, 20_109_073_645_365, 8_052_911_324_071],
            &[20_000_003, 0, 20_000_081, 160_000_374],
        );
        let expected: [[f64; 2]; 6] = [
            [16_410_909.0, 169_641_436.0],
            [18_158_303.0, 175_132_467.0],
            [6_380_558.0, 164_226_950.0],
            [4_534_223.0, 160_426_620.0],
            [19_556_458.0, 162_871_545.0],
            [4_679_147.0, 179_487_506.0],
        ];
        assert_eq!(found, expected.concat(), "rows");
    }
}
