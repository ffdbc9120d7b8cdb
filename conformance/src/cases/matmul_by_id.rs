//! Cases of `matmul_by_id`.

use gemel_core::dtype::WEIGHT_TYPES;
use gemel_core::ops::glu::GluKind;
use gemel_core::ops::matmul_by_id::MatmulById;
use gemel_core::{DType, TensorDesc};

use super::{Builder, Case, Tag, thin};
use crate::fill::{Class, Fill, Rng};

/// Which experts tokens choose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ids {
    /// Different ones, as a router does.
    Distinct,
    /// All of them one and the same.
    One,
    /// Any, also several times in a token.
    Any,
    /// Every third is -1.
    Holes,
    /// Also numbers that are no expert's.
    Wild,
    /// None at all.
    None,
    /// No operand: matrix `j` is for row `j` of each token, and there are `k`.
    Batched,
}

impl Ids {
    const ALL: [Self; 6] = [
        Self::Distinct,
        Self::One,
        Self::Any,
        Self::Holes,
        Self::Wild,
        Self::None,
    ];

    fn values(self, rng: &mut Rng, n_tokens: usize, k: usize, n_experts: usize) -> Vec<i32> {
        let one = rng.below(n_experts) as i32;
        let mut ids = Vec::with_capacity(n_tokens * k);
        for t in 0..n_tokens {
            let order = rng.permutation(n_experts);
            for j in 0..k {
                let any = rng.below(n_experts) as i32;
                ids.push(match self {
                    Self::One => one,
                    Self::Any => any,
                    Self::Holes if (t + j) % 3 == 1 => -1,
                    Self::Distinct | Self::Holes => order[j % n_experts] as i32,
                    Self::Wild => [any, n_experts as i32, i32::MAX, i32::MIN][rng.below(4)],
                    Self::None | Self::Batched => -1,
                });
            }
        }
        ids
    }
}

/// Tokens, experts, experts used: each number of pairs around a regime's border, few and many experts.
const ROUTES: [(usize, usize, usize); 20] = [
    (1, 1, 1),
    (1, 4, 2),
    (1, 8, 8),
    (1, 128, 8),
    (2, 6, 2),
    (2, 512, 10),
    (3, 2, 1),
    (5, 3, 3),
    (5, 64, 6),
    (8, 33, 8),
    (7, 4, 2),
    (17, 1, 1),
    (17, 8, 4),
    (13, 40, 5),
    (33, 2, 2),
    (33, 16, 10),
    (64, 4, 1),
    (65, 5, 1),
    (129, 4, 2),
    (3, 20, 32),
];

/// A product and what is special about it.
#[derive(Clone, Copy, Debug)]
struct Product {
    dtype: DType,
    route: (usize, usize, usize),
    ids: Ids,
    d_out: usize,
    d_in: usize,
    /// Whether each pair has activations of its own.
    own_rows: bool,
    /// Rows of a window, 0 for none.
    window_rows: usize,
    glu: Option<GluKind>,
    /// Values of an expert's scale: none, one, one for each half.
    scales: usize,
    biased: bool,
    class: Class,
    strided: bool,
}

impl Product {
    fn builder(&self) -> Builder {
        let (n_tokens, n_experts, k) = self.route;
        let mut builder = Builder::new(MatmulById::NAME)
            .param("type", self.dtype)
            .param("n_tokens", n_tokens)
            .param("experts", n_experts)
            .param("k", k)
            .param("ids", format!("{:?}", self.ids).to_lowercase())
            .param("d_out", self.d_out)
            .param("d_in", self.d_in)
            .param("class", self.class)
            .variant(self.dtype.name());
        for (name, set) in [
            ("own_rows", self.own_rows),
            ("biased", self.biased),
            ("strided", self.strided),
        ] {
            if set {
                builder = builder.param(name, 1);
            }
        }
        if let Some(kind) = self.glu {
            builder = builder.param("glu", kind.name());
        }
        for (name, n) in [("windows", self.window_rows), ("scales", self.scales)] {
            if n > 0 {
                builder = builder.param(name, n);
            }
        }
        let (wide, skip) = if self.strided {
            (self.d_in + 12, 8)
        } else {
            (self.d_in, 0)
        };
        let x = if self.own_rows {
            TensorDesc::f32([n_tokens, k, wide]).narrow(2, skip, self.d_in)
        } else {
            TensorDesc::f32([n_tokens, wide]).narrow(1, skip, self.d_in)
        };
        let mut w = TensorDesc::new(self.dtype, [n_experts, self.d_out, self.d_in]);
        w.window_rows = self.window_rows;
        let key = format!("{self:?}");
        let ids = self
            .ids
            .values(&mut Rng::new(&key, 0, 55), n_tokens, k, n_experts);
        builder = builder
            .input("x", x.expect("the columns exist"), Fill::Floats(self.class))
            .weight("w", w, Class::N);
        if self.ids != Ids::Batched {
            builder = builder.input(
                "ids",
                TensorDesc::i32([n_tokens, k]),
                Fill::Ints(ids.into()),
            );
        }
        let scales = match self.scales {
            0 => None,
            1 => Some(TensorDesc::f32([n_experts])),
            n => Some(TensorDesc::f32([n, n_experts])),
        };
        if let Some(scales) = scales {
            builder = builder.input("scale", scales, Fill::Floats(Class::U));
        }
        if self.biased {
            builder = builder.input(
                "bias",
                TensorDesc::f32([n_experts, self.d_out]),
                Fill::Floats(Class::N),
            );
        }
        builder
    }

    fn op(&self) -> MatmulById {
        MatmulById {
            glu: self.glu,
            scaled: self.scales > 0,
            biased: self.biased,
            batched: self.ids == Ids::Batched,
        }
    }
}

/// Types of the quick set: one of each way of decoding.
const QUICK_TYPES: [DType; 5] = [
    DType::F32,
    DType::Q8_0,
    DType::Q4_K,
    DType::IQ3_S,
    DType::MXFP4,
];

/// The table.
pub(super) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for (turn, &dtype) in WEIGHT_TYPES.iter().enumerate() {
        let block = dtype.block_elems();
        for (i, route) in ROUTES.into_iter().enumerate() {
            for j in 0..2 {
                let at = i + 7 * j + turn;
                // Every second product has a gated unit, whose halves are whole quads.
                let glu = (j == 1).then(|| GluKind::ALL[[0, 0, 1, 0, 2, 3, 4][at % 7]]);
                let large = route.0 * route.2 > 100 || route.1 > 64;
                let d_out = match (glu, large) {
                    (None, false) => [1, 8, 7, 40, 33, 68, 13][at % 7],
                    (None, true) => [8, 5, 12][at % 3],
                    (Some(_), false) => [8, 16, 40, 136, 72][at % 5],
                    (Some(_), true) => [8, 24][at % 2],
                };
                let d_in = match block {
                    1 => [4, 36, 64, 100, 256][at % 5],
                    block if large => block,
                    block => block * [1, 2, 3][at % 3],
                };
                // Windows anywhere, also inside an expert; with a gated unit between experts.
                let window_rows = match (at % 3, glu) {
                    (1, None) if route.1 * d_out > 8 => [8, 16, 24][at % 4 % 3],
                    (1, Some(_)) if route.1 > 1 => d_out * (1 + route.1 / 3),
                    _ => 0,
                };
                let own_rows = at % 4 >= 2;
                let product = Product {
                    dtype,
                    route,
                    ids: Ids::ALL[[0, 2, 3, 1, 0, 4, 2, 0, 5][at % 9]],
                    d_out,
                    d_in,
                    own_rows,
                    window_rows,
                    glu,
                    scales: if d_out % 2 == 0 {
                        [0, 0, 1, 0, 2][at % 5]
                    } else {
                        [0, 1][at % 2]
                    },
                    biased: at % 4 == 1,
                    class: [Class::N, Class::U, Class::H, Class::X, Class::Z, Class::S][at % 6],
                    strided: at % 3 == 2,
                };
                let quick = QUICK_TYPES.contains(&dtype) && (i == 4 || i == 15);
                cases.push(
                    product
                        .builder()
                        .tag_if(i % 10 == 4 && dtype != DType::F32, Tag::Reduced)
                        .tag_if(quick, Tag::Quick)
                        .build(product.op()),
                );
            }
        }
    }
    cases.extend(special());
    let mut cases = thin(cases, 8, 400);
    for dtype in [
        DType::Q8_0,
        DType::Q4_K,
        DType::Q6_K,
        DType::IQ4_XS,
        DType::F16,
    ] {
        for (n_tokens, glu) in [1, 4, 512]
            .into_iter()
            .flat_map(|n| [(n, Some(GluKind::Swiglu)), (n, None)])
        {
            let product = Product {
                dtype,
                route: (n_tokens, 32, 4),
                ids: Ids::Distinct,
                d_out: if glu.is_some() { 1536 } else { 2048 },
                d_in: if glu.is_some() { 2048 } else { 768 },
                own_rows: glu.is_none(),
                window_rows: 0,
                glu,
                scales: 0,
                biased: false,
                class: Class::N,
                strided: false,
            };
            cases.push(
                product
                    .builder()
                    .param("bench", 1)
                    .tag(Tag::Bench)
                    .build(product.op()),
            );
        }
    }
    cases
}

/// Every pattern of ids in every regime, lengths and strides that are no multiple of four floats, and every
/// activation.
fn special() -> Vec<Case> {
    let mut products = Vec::new();
    let plain = Product {
        dtype: DType::F32,
        route: (1, 1, 1),
        ids: Ids::Any,
        d_out: 12,
        d_in: 32,
        own_rows: false,
        window_rows: 0,
        glu: None,
        scales: 0,
        biased: true,
        class: Class::N,
        strided: false,
    };
    for dtype in [DType::F16, DType::Q4_0] {
        for (r, route) in [(2, 5, 3), (33, 5, 2), (100, 7, 1), (97, 3, 1), (70, 300, 2)]
            .into_iter()
            .enumerate()
        {
            for ids in Ids::ALL {
                for glu in [None, Some(GluKind::Swiglu)] {
                    products.push(Product {
                        dtype,
                        route,
                        ids,
                        d_out: [16, 24][r % 2],
                        own_rows: r % 2 == 1,
                        glu,
                        ..plain
                    });
                }
            }
        }
    }
    for dtype in [DType::F32, DType::F16, DType::BF16] {
        for (i, d_in) in [1, 3, 5, 31, 33, 65, 127].into_iter().enumerate() {
            products.push(Product {
                dtype,
                route: [(1, 3, 2), (9, 3, 1), (80, 3, 1), (40, 2, 2)][i % 4],
                d_out: [1, 9, 17, 11][i % 4],
                d_in,
                own_rows: i % 2 == 0,
                window_rows: [0, 8][i % 2],
                biased: i % 3 == 0,
                ..plain
            });
        }
    }
    for glu in GluKind::ALL {
        for (i, route) in [(1, 4, 2), (40, 4, 2), (200, 4, 2)].into_iter().enumerate() {
            products.push(Product {
                dtype: DType::Q8_0,
                route,
                ids: Ids::Distinct,
                d_out: 136,
                d_in: 64,
                glu: Some(glu),
                scales: i,
                class: [Class::H, Class::N, Class::X][i],
                ..plain
            });
        }
    }
    products.extend(batched(plain));
    products
        .into_iter()
        .map(|product| product.builder().build(product.op()))
        .collect()
}

/// Products head by head: every type, every regime of tokens, heads that are part of wider rows.
fn batched(plain: Product) -> Vec<Product> {
    let mut products = Vec::new();
    for (turn, &dtype) in WEIGHT_TYPES.iter().enumerate() {
        for (i, (n_tokens, n_heads)) in [(1, 5), (3, 4), (16, 3), (17, 2), (70, 3), (2, 128)]
            .into_iter()
            .enumerate()
        {
            let at = turn + i;
            let d_in = match dtype.block_elems() {
                1 => [32, 20, 64, 7][at % 4],
                block => block * [1, 2][at % 2],
            };
            let d_out = [16, 32, 9, 20, 8][at % 5];
            products.push(Product {
                dtype,
                route: (n_tokens, n_heads, n_heads),
                d_out,
                d_in,
                own_rows: true,
                window_rows: if at % 3 == 1 && n_heads * d_out > 16 {
                    16
                } else {
                    0
                },
                scales: usize::from(at % 4 == 2),
                biased: at % 4 == 3,
                strided: at % 2 == 1,
                ids: Ids::Batched,
                ..plain
            });
        }
    }
    for n_tokens in [1, 6, 40] {
        products.push(Product {
            dtype: DType::Q8_0,
            route: (n_tokens, 3, 3),
            d_out: 48,
            d_in: 64,
            own_rows: true,
            glu: Some(GluKind::Swiglu),
            ids: Ids::Batched,
            ..plain
        });
    }
    products
}

#[cfg(test)]
mod tests {
    use gemel_core::op::Op;
    use gemel_core::ops::glu::Glu;
    use gemel_core::reference::{RefArgs, RefOutput, RefTensor};

    use super::*;
    use crate::fill::{Poison, storage};

    /// Runs the reference of an op.
    fn run(op: &dyn Op, inputs: &[(TensorDesc, Vec<u8>)]) -> Vec<f64> {
        let descs: Vec<&TensorDesc> = inputs.iter().map(|(desc, _)| desc).collect();
        let outputs = op.outputs(&descs, &[]).expect("the operands fit");
        let mut args = RefArgs {
            inputs: (inputs.iter())
                .map(|(desc, bytes)| RefTensor { desc, bytes })
                .collect(),
            inouts: Vec::new(),
            outputs: outputs.iter().map(RefOutput::values_only).collect(),
        };
        op.reference(&mut args);
        args.outputs.remove(0).values
    }

    /// The product with a gated unit is the product, then the unit over its halves.
    #[test]
    fn the_fused_form_equals_its_composition() {
        for case in cases().iter().filter(|case| case.has(Tag::Quick)) {
            let op = (case.op.as_any().downcast_ref::<MatmulById>()).expect("cases of this op");
            let Some(kind) = op.glu else { continue };
            let inputs: Vec<(TensorDesc, Vec<u8>)> = case
                .inputs
                .iter()
                .enumerate()
                .map(|(i, operand)| {
                    let desc = TensorDesc {
                        window_rows: 0,
                        ..operand.desc.clone()
                    };
                    let mut rng = Rng::new(&case.id, 0, i);
                    let bytes = storage(&desc, &operand.fill, &mut rng, Poison::Nan);
                    (desc, bytes)
                })
                .collect();
            let fused = run(op, &inputs);
            let parts = MatmulById {
                glu: None,
                ..op.clone()
            };
            let d_out = inputs[1].0.shape[1];
            let descs: Vec<&TensorDesc> = inputs.iter().map(|(desc, _)| desc).collect();
            let both = parts
                .outputs(&descs, &[])
                .expect("the operands fit")
                .remove(0);
            let bytes: Vec<u8> = (run(&parts, &inputs).iter())
                .flat_map(|&v| (v as f32).to_le_bytes())
                .collect();
            let half = |start| both.narrow(2, start, d_out / 2).expect("two halves");
            let composed = run(
                &Glu { kind },
                &[(half(0), bytes.clone()), (half(d_out / 2), bytes)],
            );
            for (fused, composed) in fused.iter().zip(composed) {
                let close = (fused - composed).abs() <= 1e-5 * composed.abs().max(1e-3);
                assert!(close, "{case:?}: {fused}, composed {composed}");
            }
        }
    }
}
