//! The case tables: one op a file, in the order of the catalogue.

mod add;
mod add_rms_norm;
mod argmax;
mod attention;
mod causal_conv;
mod concat_channels;
mod copy_cast;
mod copy_rows;
mod delta_gates;
mod delta_rule_chunk;
mod delta_rule_step;
mod gated_rms_norm;
mod gather_rows;
mod glu;
mod hadamard;
mod hc_combine;
mod hc_combine_norm;
mod hc_mix;
mod index_pool;
mod index_score;
mod kv_write;
mod l2_norm;
mod layer_norm;
mod matmul;
mod matmul_by_id;
mod matmul_q8;
mod moe_combine;
mod moe_route;
mod mul;
mod ngram_hash;
mod ple_gate;
mod quantize_q8;
mod rms_norm;
mod rope;
mod rope_kv_write;
mod runs;
mod scale;
mod scatter_rows;
mod softcap;
mod softmax_stats;
mod sparse_attention;
mod top_k_logits;
mod topk_blocks;
mod unary;

use std::fmt;
use std::sync::Arc;

use gemel_core::TensorDesc;
use gemel_core::op::{Caps, DeviceClass, Op};
use gemel_core::ops;
use gemel_core::tensor::Layout;

use crate::fill::{Class, Fill, hash};

/// What a tag says about a case.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Tag {
    /// Part of the reduced set for slow adapters.
    Reduced,
    /// Part of the fixed set of `cargo test`.
    Quick,
    /// A shape of a real model, for benchmarks; not part of the tests unless asked for.
    Bench,
}

impl Tag {
    /// The lower-case word of the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Reduced => "reduced",
            Self::Quick => "quick",
            Self::Bench => "bench",
        }
    }
}

/// An operand of a case.
#[derive(Clone, Debug)]
pub struct Operand {
    /// Its name in the op's documentation.
    pub name: &'static str,
    /// Type, shape, strides, offset, in the reference's layout.
    pub desc: TensorDesc,
    /// Whether devices read it in tiles of eight rows.
    pub weight: bool,
    /// How its storage is filled.
    pub fill: Fill,
}

impl Operand {
    /// The descriptor that a device of this class gets.
    pub fn device_desc(&self, class: DeviceClass) -> TensorDesc {
        if !self.weight || class == DeviceClass::Reference {
            return TensorDesc {
                window_rows: 0,
                ..self.desc.clone()
            };
        }
        TensorDesc {
            layout: Layout::Tile8,
            ..self.desc.clone()
        }
    }
}

/// Computes operands that depend on others: `(all storages in the reference's layout)`.
pub type Finish = Arc<dyn Fn(&mut [Vec<u8>]) + Send + Sync>;

/// One op on operands of given shapes, types and values.
#[derive(Clone)]
pub struct Case {
    /// `op[key=value,..]`: printable, unique, and the source of all values.
    pub id: String,
    /// The op with its attributes.
    pub op: Arc<dyn Op>,
    /// The row of the support table: element types or kind.
    pub variant: String,
    /// Operands read.
    pub inputs: Vec<Operand>,
    /// Operands updated in place.
    pub inouts: Vec<Operand>,
    /// Computes operands from others after all are filled.
    pub finish: Option<Finish>,
    /// Sets the case belongs to.
    pub tags: Vec<Tag>,
}

impl Case {
    /// Whether the case belongs to a set.
    pub fn has(&self, tag: Tag) -> bool {
        self.tags.contains(&tag)
    }

    /// Inputs, then in-place operands: the order of fills.
    pub fn operands(&self) -> impl Iterator<Item = &Operand> {
        self.inputs.iter().chain(&self.inouts)
    }

    /// What the op writes for these operands on a device of this class.
    ///
    /// # Errors
    /// What the op's shape rule refuses.
    pub fn outputs(
        &self,
        class: DeviceClass,
    ) -> Result<Vec<TensorDesc>, gemel_core::error::OpError> {
        let descs = |operands: &[Operand]| {
            operands
                .iter()
                .map(|operand| operand.device_desc(class))
                .collect::<Vec<_>>()
        };
        let (inputs, inouts) = (descs(&self.inputs), descs(&self.inouts));
        self.op.outputs(
            &inputs.iter().collect::<Vec<_>>(),
            &inouts.iter().collect::<Vec<_>>(),
        )
    }

    /// The launches on a device with these capabilities.
    ///
    /// # Errors
    /// What the op refuses.
    pub fn launches(
        &self,
        caps: &Caps,
    ) -> Result<gemel_core::op::Launches, gemel_core::error::OpError> {
        let descs = |operands: &[Operand]| {
            operands
                .iter()
                .map(|operand| operand.device_desc(caps.class))
                .collect::<Vec<_>>()
        };
        let (inputs, inouts) = (descs(&self.inputs), descs(&self.inouts));
        let outputs = self.outputs(caps.class)?;
        self.op.launches(
            gemel_core::op::Operands {
                inputs: &inputs.iter().collect::<Vec<_>>(),
                inouts: &inouts.iter().collect::<Vec<_>>(),
                outputs: &outputs.iter().collect::<Vec<_>>(),
            },
            caps,
        )
    }
}

impl fmt::Debug for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.id)
    }
}

/// Puts a case together; parameters end up in the id in the order in which they are given.
#[derive(Debug)]
pub struct Builder {
    op: &'static str,
    params: Vec<String>,
    variant: String,
    inputs: Vec<Operand>,
    inouts: Vec<Operand>,
    tags: Vec<Tag>,
}

impl Builder {
    /// A case of an op.
    pub fn new(op: &'static str) -> Self {
        Self {
            op,
            params: Vec::new(),
            variant: "f32".to_owned(),
            inputs: Vec::new(),
            inouts: Vec::new(),
            tags: Vec::new(),
        }
    }

    /// Names a parameter in the id.
    #[must_use]
    pub fn param(mut self, key: &str, value: impl fmt::Display) -> Self {
        self.params.push(format!("{key}={value}"));
        self
    }

    /// The row of the support table.
    #[must_use]
    pub fn variant(mut self, variant: impl Into<String>) -> Self {
        self.variant = variant.into();
        self
    }

    /// Adds an operand that is read.
    #[must_use]
    pub fn input(mut self, name: &'static str, desc: TensorDesc, fill: Fill) -> Self {
        self.inputs.push(Operand {
            name,
            desc,
            weight: false,
            fill,
        });
        self
    }

    /// Adds a weight matrix, which devices read in tiles.
    #[must_use]
    pub fn weight(mut self, name: &'static str, desc: TensorDesc, class: Class) -> Self {
        self.inputs.push(Operand {
            name,
            desc,
            weight: true,
            fill: Fill::Weight(class),
        });
        self
    }

    /// Adds an operand that is updated in place.
    #[must_use]
    pub fn inout(mut self, name: &'static str, desc: TensorDesc, fill: Fill) -> Self {
        self.inouts.push(Operand {
            name,
            desc,
            weight: false,
            fill,
        });
        self
    }

    /// Puts the case into a set.
    #[must_use]
    pub fn tag(mut self, tag: Tag) -> Self {
        if !self.tags.contains(&tag) {
            self.tags.push(tag);
        }
        self
    }

    /// Puts the case into a set if a condition holds.
    #[must_use]
    pub fn tag_if(self, condition: bool, tag: Tag) -> Self {
        if condition { self.tag(tag) } else { self }
    }

    /// The case.
    pub fn build(self, op: impl Op + 'static) -> Case {
        Case {
            id: format!("{}[{}]", self.op, self.params.join(",")),
            op: Arc::new(op),
            variant: self.variant,
            inputs: self.inputs,
            inouts: self.inouts,
            finish: None,
            tags: self.tags,
        }
    }
}

/// Puts every `reduced`-th case into the reduced set and every `quick`-th into the set of `cargo test`, chosen by
/// the hash of the id, so that all dimensions are sampled.
#[must_use]
pub fn thin(mut cases: Vec<Case>, reduced: u64, quick: u64) -> Vec<Case> {
    for case in &mut cases {
        let draw = hash(&case.id) >> 20;
        for (n, tag) in [(reduced, Tag::Reduced), (quick, Tag::Quick)] {
            if draw.is_multiple_of(n) && !case.has(tag) {
                case.tags.push(tag);
            }
        }
        // Whatever is quick is reduced too.
        if case.has(Tag::Quick) && !case.has(Tag::Reduced) {
            case.tags.push(Tag::Reduced);
        }
    }
    cases
}

/// A case table.
pub type Table = fn() -> Vec<Case>;

/// The tables by op, in the order of the catalogue.
pub const TABLES: &[(&str, Table)] = &[
    (ops::copy_cast::CopyCast::NAME, copy_cast::cases),
    (ops::scatter_rows::ScatterRows::NAME, scatter_rows::cases),
    (ops::copy_rows::CopyRows::NAME, copy_rows::cases),
    (
        ops::concat_channels::ConcatChannels::NAME,
        concat_channels::cases,
    ),
    (ops::add::Add::NAME, add::cases),
    (ops::mul::Mul::NAME, mul::cases),
    (ops::scale::Scale::NAME, scale::cases),
    (ops::softcap::Softcap::NAME, softcap::cases),
    (ops::unary::Unary::NAME, unary::cases),
    (ops::glu::Glu::NAME, glu::cases),
    (ops::gather_rows::GatherRows::NAME, gather_rows::cases),
    (ops::rms_norm::RmsNorm::NAME, rms_norm::cases),
    (ops::add_rms_norm::AddRmsNorm::NAME, add_rms_norm::cases),
    (
        ops::gated_rms_norm::GatedRmsNorm::NAME,
        gated_rms_norm::cases,
    ),
    (ops::l2_norm::L2Norm::NAME, l2_norm::cases),
    (ops::layer_norm::LayerNorm::NAME, layer_norm::cases),
    (ops::hadamard::Hadamard::NAME, hadamard::cases),
    (ops::matmul::Matmul::NAME, matmul::cases),
    (ops::quantize_q8::QuantizeQ8::NAME, quantize_q8::cases),
    (ops::matmul_q8::MatmulQ8::NAME, matmul_q8::cases),
    (ops::matmul_by_id::MatmulById::NAME, matmul_by_id::cases),
    (ops::rope::Rope::NAME, rope::cases),
    (ops::kv_write::KvWrite::NAME, kv_write::cases),
    (ops::rope_kv_write::RopeKvWrite::NAME, rope_kv_write::cases),
    (ops::attention::Attention::NAME, attention::cases),
    (ops::moe_route::MoeRoute::NAME, moe_route::cases),
    (ops::moe_combine::MoeCombine::NAME, moe_combine::cases),
    (ops::causal_conv::CausalConv::NAME, causal_conv::cases),
    (ops::delta_gates::DeltaGates::NAME, delta_gates::cases),
    (
        ops::delta_rule_step::DeltaRuleStep::NAME,
        delta_rule_step::cases,
    ),
    (
        ops::delta_rule_chunk::DeltaRuleChunk::NAME,
        delta_rule_chunk::cases,
    ),
    (ops::hc_mix::HcMix::NAME, hc_mix::cases),
    (ops::hc_combine::HcCombine::NAME, hc_combine::cases),
    (
        ops::hc_combine_norm::HcCombineNorm::NAME,
        hc_combine_norm::cases,
    ),
    (ops::ngram_hash::NgramHash::NAME, ngram_hash::cases),
    (ops::ple_gate::PleGate::NAME, ple_gate::cases),
    (ops::index_pool::IndexPool::NAME, index_pool::cases),
    (ops::index_score::IndexScore::NAME, index_score::cases),
    (ops::topk_blocks::TopkBlocks::NAME, topk_blocks::cases),
    (
        ops::sparse_attention::SparseAttention::NAME,
        sparse_attention::cases,
    ),
    (ops::softmax_stats::SoftmaxStats::NAME, softmax_stats::cases),
    (ops::argmax::Argmax::NAME, argmax::cases),
    (ops::top_k_logits::TopKLogits::NAME, top_k_logits::cases),
];

/// The cases of one op; none for an unknown name.
pub fn of(op: &str) -> Vec<Case> {
    TABLES
        .iter()
        .filter(|(name, _)| *name == op)
        .flat_map(|(_, table)| table())
        .collect()
}

/// All cases, op by op.
pub fn all() -> Vec<Case> {
    TABLES.iter().flat_map(|(_, table)| table()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn ids_are_unique_and_begin_with_the_op() {
        let mut seen = BTreeSet::new();
        for case in all() {
            assert!(
                case.id.starts_with(&format!("{}[", case.op.name())),
                "{case:?}"
            );
            assert!(seen.insert(case.id.clone()), "{case:?} twice");
        }
    }

    #[test]
    fn every_case_fits_its_op() {
        for case in all() {
            for class in [DeviceClass::Reference, DeviceClass::Discrete] {
                if let Err(error) = case.outputs(class) {
                    panic!("{case:?} on {}: {error}", class.name());
                }
            }
        }
    }
}
