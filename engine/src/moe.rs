//! Mixture of experts: the hyper-parameters, the tensors and the nodes of a layer whose FFN is one.
//!
//! ```text
//! x -> router -> moe_route -> ids, weights
//! x, ids -> gate and up of the chosen experts, with their gated unit -> down of the chosen experts
//! -> moe_combine: the weighted sum, the shared expert, the residual
//! ```

use gemel_core::error::GraphError;
use gemel_core::graph::ValueId;
use gemel_core::ops::glu::{Glu, GluKind};
use gemel_core::ops::matmul::{Factors, Matmul};
use gemel_core::ops::matmul_by_id::MatmulById;
use gemel_core::ops::moe_combine::{MoeCombine, SharedExpert};
use gemel_core::ops::moe_route::{self, Gate, MoeRoute};

use crate::blocks::{GatedFfn, StepGraph};
use crate::gguf::Metadata;
use crate::models::ModelError;
use crate::weights::{ExpertStack, Linear, Requests, WeightError, WeightId};

/// Number and width of the experts of a model, and how tokens choose among them.
#[derive(Clone, Debug, PartialEq)]
pub struct MoeParams {
    /// Experts of a layer.
    pub n_experts: usize,
    /// How a token's experts are chosen and weighed; `route.k` is their number.
    pub route: MoeRoute,
    /// Width between the projections of an expert.
    pub d_ff: usize,
}

/// Refuses a hyper-parameter.
fn refuse(
    arch: &str,
    key: &str,
    found: impl std::fmt::Display,
    expected: impl Into<String>,
) -> ModelError {
    ModelError::HyperParameter {
        key: format!("{arch}.{key}"),
        found: found.to_string(),
        expected: expected.into(),
    }
}

impl MoeParams {
    /// Reads `ARCH.expert_count` and what belongs to it: a softmax over all experts, weights that sum to 1, as most
    /// architectures have it whatever other keys say. `None` where there are no experts.
    ///
    /// `d_ff` is the width of an expert for the number of experts used, for files that do not state it; architectures
    /// whose experts are as wide as their FFN ignore the key.
    ///
    /// # Errors
    /// Numbers that contradict each other or exceed what the router can do.
    pub fn read(
        metadata: &Metadata,
        arch: &str,
        n_layers: usize,
        d_ff: impl FnOnce(Option<usize>, usize) -> usize,
    ) -> Result<Option<Self>, ModelError> {
        let key = |name: &str| format!("{arch}.{name}");
        let n_experts = metadata.opt_u32(&key("expert_count"))?.unwrap_or(0) as usize;
        if n_experts == 0 {
            return Ok(None);
        }
        if n_experts > moe_route::MAX_EXPERTS {
            let most = format!("at most {}", moe_route::MAX_EXPERTS);
            return Err(refuse(arch, "expert_count", n_experts, most));
        }
        let uniform = |name: &str| -> Result<Option<usize>, ModelError> {
            let Some(values) = metadata.opt_per_layer_u32(&key(name), n_layers)? else {
                return Ok(None);
            };
            match values.split_first() {
                Some((&first, rest)) if rest.iter().all(|&v| v == first) => {
                    Ok(Some(first as usize))
                }
                _ => Err(refuse(
                    arch,
                    name,
                    format!("{values:?}"),
                    "the same in all layers",
                )),
            }
        };
        let k = uniform("expert_used_count")?.unwrap_or(0);
        let most = n_experts.min(moe_route::MAX_K);
        if k == 0 || k > most {
            let expected = format!("in 1..={most}: there are {n_experts} experts");
            return Err(refuse(arch, "expert_used_count", k, expected));
        }
        let d_ff = d_ff(uniform("expert_feed_forward_length")?, k);
        if d_ff == 0 || d_ff > 1 << 20 {
            let expected = "in 1..=1048576";
            return Err(refuse(arch, "expert_feed_forward_length", d_ff, expected));
        }
        Ok(Some(Self {
            n_experts,
            route: MoeRoute {
                k,
                gate: Gate::Softmax,
                groups: 1,
                groups_used: 1,
                normalize: true,
                scale: 1.0,
            },
            d_ff,
        }))
    }

    /// Takes gate, groups, normalisation and scale from the file, for architectures that leave them to it:
    /// `expert_gating_func` (`default` without it), `expert_group_count`, `expert_group_used_count`,
    /// `expert_weights_norm`, `expert_weights_scale`.
    ///
    /// # Errors
    /// A gate that does not exist, groups that do not divide the experts or hold too few of them.
    pub fn with_routing_keys(
        mut self,
        metadata: &Metadata,
        arch: &str,
        default: Gate,
    ) -> Result<Self, ModelError> {
        let key = |name: &str| format!("{arch}.{name}");
        self.route.gate = match metadata.opt_u32(&key("expert_gating_func"))? {
            None | Some(0) => default,
            Some(1) => Gate::Softmax,
            Some(2) => Gate::Sigmoid,
            Some(3) => Gate::SoftmaxAfter,
            Some(4) => Gate::SqrtSoftplus,
            Some(other) => {
                let known = "1 (softmax), 2 (sigmoid), 3 (softmax over the chosen) or \
                             4 (root of the softplus)";
                return Err(refuse(arch, "expert_gating_func", other, known));
            }
        };
        let count = |name: &str| -> Result<usize, ModelError> {
            Ok(metadata.opt_u32(&key(name))?.unwrap_or(0).max(1) as usize)
        };
        let (groups, used) = (
            count("expert_group_count")?,
            count("expert_group_used_count")?,
        );
        if groups > moe_route::MAX_GROUPS || !self.n_experts.is_multiple_of(groups) {
            let expected = format!(
                "a divisor of the {} experts, at most {}",
                self.n_experts,
                moe_route::MAX_GROUPS
            );
            return Err(refuse(arch, "expert_group_count", groups, expected));
        }
        if used > groups || self.n_experts / groups * used < self.route.k {
            let expected = format!(
                "at most {groups} and enough groups for {} experts",
                self.route.k
            );
            return Err(refuse(arch, "expert_group_used_count", used, expected));
        }
        (self.route.groups, self.route.groups_used) = (groups, used);
        self.route.normalize = metadata
            .opt_bool(&key("expert_weights_norm"))?
            .unwrap_or(false);
        self.route.scale = match metadata.opt_f32(&key("expert_weights_scale"))? {
            // Files without a factor may say 0.
            None | Some(0.0) => 1.0,
            Some(scale) => scale,
        };
        Ok(self)
    }

    /// Elements of the widest activation of a token: the outputs of its experts, or their gate and up.
    pub fn widest(&self, d_model: usize) -> usize {
        self.route.k * d_model.max(2 * self.d_ff)
    }
}

/// Gate and up of the experts.
#[derive(Clone, Debug)]
pub enum ExpertGateUp {
    /// Two stacks of matrices.
    Split {
        /// Gate.
        gate: ExpertStack,
        /// Up.
        up: ExpertStack,
    },
    /// One stack, each matrix with the rows of gate, then those of up.
    Stacked(ExpertStack),
}

/// The part of an FFN that every token uses.
#[derive(Clone, Debug)]
pub struct SharedFfn {
    /// The FFN.
    pub ffn: GatedFfn,
    /// A vector whose product with the token, through the logistic function, multiplies the FFN.
    pub gate: Option<WeightId>,
}

/// An FFN of experts.
#[derive(Clone, Debug)]
pub struct Moe {
    /// Number, width, choice.
    pub params: MoeParams,
    /// Logits of the experts, `[n_experts, d_model]`.
    pub router: Linear,
    /// Added to scores for the choice alone, `[n_experts]`.
    pub selection_bias: Option<WeightId>,
    /// Gate and up.
    pub gate_up: ExpertGateUp,
    /// Down.
    pub down: ExpertStack,
    /// Activation.
    pub kind: GluKind,
    /// The shared expert.
    pub shared: Option<SharedFfn>,
}

impl Moe {
    /// Requests the tensors of a layer that are named as in most files: `ffn_gate_inp`, `exp_probs_b` if there is one,
    /// `ffn_gate_exps` and `ffn_up_exps`, or `ffn_gate_up_exps`, and `ffn_down_exps`. A shared expert is the caller's.
    ///
    /// # Errors
    /// Missing, or of another shape or type.
    pub fn load(
        requests: &mut Requests<'_>,
        params: &MoeParams,
        d_model: usize,
        layer: usize,
        kind: GluKind,
    ) -> Result<Self, WeightError> {
        let name = |what: &str| format!("blk.{layer}.{what}");
        let (n, d_ff) = (params.n_experts, params.d_ff);
        let fused = name("ffn_gate_up_exps");
        let gate_up = if requests.has(&format!("{fused}.weight")) {
            ExpertGateUp::Stacked(requests.experts(&fused, [n, 2 * d_ff, d_model])?)
        } else {
            let (gate, up) = (name("ffn_gate_exps"), name("ffn_up_exps"));
            let shape = [n, d_ff, d_model];
            match requests.opt_stacked_experts(&fused, [&gate, &up], shape)? {
                Some(stack) => ExpertGateUp::Stacked(stack),
                None => ExpertGateUp::Split {
                    gate: requests.experts(&gate, shape)?,
                    up: requests.experts(&up, shape)?,
                },
            }
        };
        Ok(Self {
            params: params.clone(),
            router: requests.linear(&name("ffn_gate_inp"), n, d_model)?,
            selection_bias: requests.opt_vector(&name("exp_probs_b.bias"), n)?,
            gate_up,
            down: requests.experts(&name("ffn_down_exps"), [n, d_model, d_ff])?,
            kind,
            shared: None,
        })
    }

    /// Adds the nodes of the layer: experts are chosen by `x` and applied to it.
    ///
    /// # Errors
    /// Shapes that do not fit.
    pub fn build(
        &self,
        g: &mut StepGraph<'_>,
        label: &str,
        x: ValueId,
        residual: Option<ValueId>,
    ) -> Result<ValueId, GraphError> {
        self.build_routed_by(g, label, x, x, residual)
    }

    /// The same with experts chosen by another value of the token than they are applied to.
    ///
    /// # Errors
    /// Shapes that do not fit.
    pub fn build_routed_by(
        &self,
        g: &mut StepGraph<'_>,
        label: &str,
        router_x: ValueId,
        x: ValueId,
        residual: Option<ValueId>,
    ) -> Result<ValueId, GraphError> {
        // Whatever the precision of other products, a router's choice is made on exact ones.
        let logits = g.exact_linear(&self.router, router_x)?; // [n_tokens, n_experts]
        let mut inputs = vec![logits];
        if let Some(bias) = self.selection_bias {
            inputs.push(g.weight(&format!("{label}.selection_bias"), bias));
        }
        let routed = g.graph.apply_multi(
            format!("{label}.route"),
            self.params.route.clone(),
            &inputs,
            &[],
        )?;
        let [ids, weights] = [routed[0], routed[1]]; // [n_tokens, k]
        let h = self.gate_up(g, label, x, ids)?; // [n_tokens, k, d_ff]
        let y = experts(g, &self.down, None, h, ids)?; // [n_tokens, k, d_model]

        let mut inputs = vec![y, weights];
        let mut kind = SharedExpert::None;
        if let Some(shared) = &self.shared {
            kind = SharedExpert::Plain;
            inputs.push(g.gated_ffn(&format!("{label}.shared"), &shared.ffn, x)?);
            if let Some(gate) = shared.gate {
                kind = SharedExpert::Gated;
                let gate_label = format!("{label}.shared_gate");
                let w = g.weight(&gate_label, gate);
                inputs.push(g.graph.apply(
                    gate_label,
                    Matmul {
                        scale: 1.0,
                        factors: Factors::Exact,
                    },
                    &[x, w],
                )?);
            }
        }
        inputs.extend(residual);
        g.graph.apply(
            format!("{label}.combine"),
            MoeCombine {
                shared: kind,
                residual: residual.is_some(),
            },
            &inputs,
        )
    }

    /// `act(gate(x)) * up(x)` of the chosen experts, in one pass where their rows allow it.
    fn gate_up(
        &self,
        g: &mut StepGraph<'_>,
        label: &str,
        x: ValueId,
        ids: ValueId,
    ) -> Result<ValueId, GraphError> {
        let (gate, up) = match &self.gate_up {
            ExpertGateUp::Split { gate, up } => (
                experts(g, gate, None, x, ids)?,
                experts(g, up, None, x, ids)?,
            ),
            ExpertGateUp::Stacked(stack) => {
                let w = g.weight(&stack.label, stack.weight);
                if MatmulById::can_fuse_glu(g.graph.desc(w)) {
                    return experts(g, stack, Some(self.kind), x, ids);
                }
                let both = experts(g, stack, None, x, ids)?; // [n_tokens, k, 2 * d_ff]
                let d_ff = self.params.d_ff;
                (
                    g.graph.narrow(both, 2, 0, d_ff)?,
                    g.graph.narrow(both, 2, d_ff, d_ff)?,
                )
            }
        };
        let glu = Glu { kind: self.kind };
        g.graph.apply(format!("{label}.glu"), glu, &[gate, up])
    }
}

/// The products with the chosen experts of a stack.
fn experts(
    g: &mut StepGraph<'_>,
    stack: &ExpertStack,
    glu: Option<GluKind>,
    x: ValueId,
    ids: ValueId,
) -> Result<ValueId, GraphError> {
    let w = g.weight(&stack.label, stack.weight);
    let [n_experts, d_out] = [g.graph.desc(w).shape[0], g.graph.desc(w).shape[1]];
    let mut inputs = vec![x, w, ids];
    if let Some(scale) = stack.scale {
        let mut value = g.weight(&format!("{}.scale", stack.label), scale);
        if g.graph.desc(value).n_elems() == 2 * n_experts {
            value = g.graph.reshape(value, [2, n_experts])?;
        }
        inputs.push(value);
    }
    if let Some(bias) = stack.bias {
        let value = g.weight(&format!("{}.bias", stack.label), bias);
        inputs.push(g.graph.reshape(value, [n_experts, d_out])?);
    }
    let op = MatmulById {
        glu,
        scaled: stack.scale.is_some(),
        biased: stack.bias.is_some(),
        batched: false,
    };
    g.graph.apply(&*stack.label, op, &inputs)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Metadata of architecture `a` with these overrides.
    fn metadata(specs: &[&str]) -> Metadata {
        let mut metadata = Metadata::new();
        for spec in specs {
            metadata.apply_override(spec).unwrap();
        }
        metadata
    }

    const EIGHT: [&str; 2] = ["a.expert_count=int:8", "a.expert_used_count=int:2"];

    fn read(specs: &[&str]) -> Result<Option<MoeParams>, ModelError> {
        let specs = [&EIGHT[..], specs].concat();
        MoeParams::read(&metadata(&specs), "a", 3, |stated, k| {
            stated.unwrap_or(96 / k)
        })
    }

    fn routed(specs: &[&str]) -> Result<MoeRoute, String> {
        let params = read(specs).unwrap().unwrap();
        let specs = [&EIGHT[..], specs].concat();
        params
            .with_routing_keys(&metadata(&specs), "a", Gate::Softmax)
            .map(|params| params.route)
            .map_err(|error| error.to_string())
    }

    #[test]
    fn widths_are_stated_or_follow() {
        let params = read(&[]).unwrap().unwrap();
        assert_eq!((params.n_experts, params.route.k, params.d_ff), (8, 2, 48));
        assert_eq!(params.widest(64), 2 * 96, "gate and up of two experts");
        let stated = read(&["a.expert_feed_forward_length=int:32"]).unwrap();
        assert_eq!(stated.unwrap().d_ff, 32, "the file's own");
        let dense = MoeParams::read(&metadata(&[]), "a", 3, |_, _| 1).unwrap();
        assert_eq!(dense, None, "no experts");
    }

    #[test]
    fn numbers_that_cannot_be_are_refused_by_name() {
        for (spec, words) in [
            ("a.expert_used_count=int:9", "1..=8"),
            ("a.expert_used_count=int:0", "1..=8"),
            ("a.expert_count=int:4096", "at most 1024"),
            ("a.expert_feed_forward_length=int:0", "1..=1048576"),
        ] {
            let error = read(&[spec]).unwrap_err().to_string();
            let key = spec.split('=').next().unwrap();
            assert!(error.contains(key) && error.contains(words), "{error}");
        }
    }

    #[test]
    fn routing_follows_the_file() {
        let route = routed(&[
            "a.expert_gating_func=int:2",
            "a.expert_group_count=int:4",
            "a.expert_group_used_count=int:2",
            "a.expert_weights_norm=bool:true",
            "a.expert_weights_scale=float:2.5",
        ])
        .unwrap();
        assert_eq!(
            route,
            MoeRoute {
                k: 2,
                gate: Gate::Sigmoid,
                groups: 4,
                groups_used: 2,
                normalize: true,
                scale: 2.5,
            }
        );
        let plain = routed(&["a.expert_weights_scale=float:0"]).unwrap();
        assert_eq!((plain.gate, plain.groups), (Gate::Softmax, 1), "defaults");
        assert!(plain.scale.to_bits() == 1.0_f32.to_bits(), "0 is no factor");
        for (specs, words) in [
            (&["a.expert_gating_func=int:7"][..], "expert_gating_func"),
            (&["a.expert_group_count=int:3"], "divisor of the 8"),
            (
                &[
                    "a.expert_group_count=int:8",
                    "a.expert_group_used_count=int:1",
                ],
                "enough groups for 2",
            ),
        ] {
            let error = routed(specs).unwrap_err();
            assert!(error.contains(words), "{error}");
        }
    }
}
