//! The numbers that shape a draw, their defaults and their ranges.

use super::SamplerError;

/// A step of the chain. The names are those that users and model files write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Repeat, frequency and presence penalties.
    Penalties,
    /// Don't repeat yourself: a penalty that grows with the length of the repetition.
    Dry,
    /// Drops tokens further than n standard deviations below the largest logit.
    TopNSigma,
    /// Keeps the k largest.
    TopK,
    /// Keeps the tokens whose surprise is nearest to the mean surprise.
    Typical,
    /// Keeps the smallest set whose probabilities reach p.
    TopP,
    /// Keeps tokens of at least p times the largest probability.
    MinP,
    /// Exclude top choices: now and then drops all but the least likely of the likely tokens.
    Xtc,
    /// Divides the logits by the temperature.
    Temperature,
}

impl Stage {
    /// All stages in the default order.
    pub const ALL: [Self; 9] = [
        Self::Penalties,
        Self::Dry,
        Self::TopNSigma,
        Self::TopK,
        Self::Typical,
        Self::TopP,
        Self::MinP,
        Self::Xtc,
        Self::Temperature,
    ];

    /// The stage's name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Penalties => "penalties",
            Self::Dry => "dry",
            Self::TopNSigma => "top_n_sigma",
            Self::TopK => "top_k",
            Self::Typical => "typ_p",
            Self::TopP => "top_p",
            Self::MinP => "min_p",
            Self::Xtc => "xtc",
            Self::Temperature => "temperature",
        }
    }

    /// Reads a list of names separated by `;` or `,`. `typical`, `typical_p` and `temp` are accepted
    /// as other names.
    ///
    /// # Errors
    /// [`SamplerError::UnknownStage`] for a name that is not a stage.
    pub fn parse_list(list: &str) -> Result<Vec<Self>, SamplerError> {
        let names = list.split([';', ',']).map(str::trim);
        names
            .filter(|name| !name.is_empty())
            .map(|name| match name {
                "typical" | "typical_p" => Ok(Self::Typical),
                "temp" => Ok(Self::Temperature),
                name => {
                    let found = Self::ALL.into_iter().find(|stage| stage.name() == name);
                    found.ok_or_else(|| SamplerError::UnknownStage {
                        found: name.to_owned(),
                        known: Self::ALL.map(Self::name).join(", "),
                    })
                }
            })
            .collect()
    }
}

/// Whether Mirostat replaces the truncating stages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mirostat {
    /// The chain of [`SamplerParams::stages`].
    #[default]
    Off,
    /// Version 1: estimates the exponent of the distribution and cuts at a rank.
    V1,
    /// Version 2: cuts at a surprise.
    V2,
}

impl Mirostat {
    /// 1 or 2, or `None` when off.
    pub(super) fn version(self) -> Option<u8> {
        match self {
            Self::Off => None,
            Self::V1 => Some(1),
            Self::V2 => Some(2),
        }
    }
}

/// The numbers that shape a draw. Each field states its default and the value that turns it off.
#[derive(Clone, Debug, PartialEq)]
pub struct SamplerParams {
    /// Divides logits; 0 chooses the largest. Default 0.8.
    pub temperature: f32,
    /// Half the range in which the temperature follows the entropy. Default 0, off.
    pub dynatemp_range: f32,
    /// Exponent of the normalised entropy in that range. Default 1.
    pub dynatemp_exponent: f32,
    /// Keeps this many tokens. Default 40; 0 is off.
    pub top_k: usize,
    /// Keeps the smallest set of at least this probability. Default 0.95; 1 is off.
    pub top_p: f32,
    /// Keeps tokens of at least this share of the largest probability. Default 0.05; 0 is off.
    pub min_p: f32,
    /// Keeps the most typical tokens up to this probability. Default 1, off.
    pub typical_p: f32,
    /// Keeps tokens within this many standard deviations of the largest logit. Default -1; 0 and
    /// below are off.
    pub top_n_sigma: f32,
    /// Probability that XTC acts on a token. Default 0, off.
    pub xtc_probability: f32,
    /// Probability above which a token counts as a top choice for XTC. Default 0.1; above 0.5 is off.
    pub xtc_threshold: f32,
    /// Tokens that typical, top-p, min-p and XTC leave at least. Default 0.
    pub min_keep: usize,
    /// Tokens of history that penalties look at. Default 64; 0 turns penalties off.
    pub repeat_last_n: usize,
    /// Divides positive logits of seen tokens and multiplies negative ones. Default 1, off.
    pub repeat_penalty: f32,
    /// Subtracted from the logit for each time a token was seen. Default 0, off.
    pub frequency_penalty: f32,
    /// Subtracted once from the logit of a seen token. Default 0, off.
    pub presence_penalty: f32,
    /// Scale of the DRY penalty. Default 0, off.
    pub dry_multiplier: f32,
    /// Base of the DRY penalty's growth with length. Default 1.75; below 1 is off.
    pub dry_base: f32,
    /// Longest repetition that DRY leaves alone. Default 2.
    pub dry_allowed_length: usize,
    /// Tokens of history that DRY looks at. Default 64; 0 is off.
    pub dry_last_n: usize,
    /// Mirostat in place of the stages. Default off.
    pub mirostat: Mirostat,
    /// Mirostat's wanted surprise, in bits. Default 5.
    pub mirostat_tau: f32,
    /// Mirostat's learning rate. Default 0.1.
    pub mirostat_eta: f32,
    /// Adaptive-p's wanted probability of drawn tokens. Default -1; below 0 is off.
    pub adaptive_target: f32,
    /// Adaptive-p's memory, 0 to 0.99. Default 0.9.
    pub adaptive_decay: f32,
    /// Added to the logits of these tokens before anything else; -infinity bans. Default empty.
    pub logit_bias: Vec<(u32, f32)>,
    /// The order of the stages. A stage that is not listed does not run. Default [`Stage::ALL`].
    pub stages: Vec<Stage>,
}

impl Default for SamplerParams {
    fn default() -> Self {
        Self {
            temperature: 0.8,
            dynatemp_range: 0.0,
            dynatemp_exponent: 1.0,
            top_k: 40,
            top_p: 0.95,
            min_p: 0.05,
            typical_p: 1.0,
            top_n_sigma: -1.0,
            xtc_probability: 0.0,
            xtc_threshold: 0.1,
            min_keep: 0,
            repeat_last_n: 64,
            repeat_penalty: 1.0,
            frequency_penalty: 0.0,
            presence_penalty: 0.0,
            dry_multiplier: 0.0,
            dry_base: 1.75,
            dry_allowed_length: 2,
            dry_last_n: 64,
            mirostat: Mirostat::Off,
            mirostat_tau: 5.0,
            mirostat_eta: 0.1,
            adaptive_target: -1.0,
            adaptive_decay: 0.9,
            logit_bias: Vec::new(),
            stages: Stage::ALL.to_vec(),
        }
    }
}

impl SamplerParams {
    /// The defaults with temperature 0: always the largest logit.
    pub fn greedy() -> Self {
        Self {
            temperature: 0.0,
            ..Self::default()
        }
    }

    /// The defaults as a model file changes them through its `general.sampling.*` keys.
    ///
    /// `number` and `text` look up a key by its full name. A user's own values go on top of the result.
    ///
    /// # Errors
    /// [`SamplerError::UnknownStage`] for a bad `general.sampling.sequence`, and
    /// [`SamplerError::BadParameter`] for a value out of range.
    pub fn from_metadata(
        number: impl Fn(&str) -> Option<f64>,
        text: impl Fn(&str) -> Option<String>,
    ) -> Result<Self, SamplerError> {
        let mut params = Self::default();
        if let Some(list) = text("general.sampling.sequence") {
            params.stages = Stage::parse_list(&list)?;
        }
        let number = |name: &str| number(&format!("general.sampling.{name}"));
        // A cast from float saturates, so a negative count is 0: off.
        let counts = [
            ("top_k", &mut params.top_k),
            ("penalty_last_n", &mut params.repeat_last_n),
        ];
        for (name, field) in counts {
            if let Some(value) = number(name) {
                *field = value as usize;
            }
        }
        let floats = [
            ("top_p", &mut params.top_p),
            ("min_p", &mut params.min_p),
            ("xtc_probability", &mut params.xtc_probability),
            ("xtc_threshold", &mut params.xtc_threshold),
            ("temp", &mut params.temperature),
            ("penalty_repeat", &mut params.repeat_penalty),
            ("mirostat_tau", &mut params.mirostat_tau),
            ("mirostat_eta", &mut params.mirostat_eta),
        ];
        for (name, field) in floats {
            if let Some(value) = number(name) {
                *field = value as f32;
            }
        }
        params.mirostat = match number("mirostat") {
            None | Some(0.0) => Mirostat::Off,
            Some(1.0) => Mirostat::V1,
            Some(2.0) => Mirostat::V2,
            Some(other) => {
                return Err(SamplerError::BadParameter {
                    name: "mirostat",
                    found: other.to_string(),
                    expected: "0, 1 or 2",
                });
            }
        };
        params.check()?;
        Ok(params)
    }

    /// Checks every value against its range.
    ///
    /// # Errors
    /// [`SamplerError::BadParameter`] for the first that is outside.
    pub fn check(&self) -> Result<(), SamplerError> {
        let check = |name, value: f32, good: bool, expected| {
            if good {
                return Ok(());
            }
            Err(SamplerError::BadParameter {
                name,
                found: value.to_string(),
                expected,
            })
        };
        let finite = |name, v: f32| check(name, v, v.is_finite(), "finite");
        let positive =
            |name, v: f32| check(name, v, v.is_finite() && v > 0.0, "finite and above 0");
        let not_negative = |name, v: f32| {
            check(
                name,
                v,
                v.is_finite() && v >= 0.0,
                "finite and not negative",
            )
        };
        let share = |name, v: f32| check(name, v, (0.0..=1.0).contains(&v), "between 0 and 1");

        not_negative("temperature", self.temperature)?;
        not_negative("dynatemp_range", self.dynatemp_range)?;
        not_negative("dynatemp_exponent", self.dynatemp_exponent)?;
        share("top_p", self.top_p)?;
        share("min_p", self.min_p)?;
        share("typical_p", self.typical_p)?;
        finite("top_n_sigma", self.top_n_sigma)?;
        share("xtc_probability", self.xtc_probability)?;
        share("xtc_threshold", self.xtc_threshold)?;
        positive("repeat_penalty", self.repeat_penalty)?;
        finite("frequency_penalty", self.frequency_penalty)?;
        finite("presence_penalty", self.presence_penalty)?;
        not_negative("dry_multiplier", self.dry_multiplier)?;
        not_negative("dry_base", self.dry_base)?;
        not_negative("mirostat_tau", self.mirostat_tau)?;
        not_negative("mirostat_eta", self.mirostat_eta)?;
        let target = self.adaptive_target;
        check(
            "adaptive_target",
            target,
            target <= 1.0,
            "at most 1 (below 0 is off)",
        )?;
        let decay = self.adaptive_decay;
        check(
            "adaptive_decay",
            decay,
            (0.0..=0.99).contains(&decay),
            "between 0 and 0.99",
        )?;
        for &(_, bias) in &self.logit_bias {
            let good = !bias.is_nan() && bias != f32::INFINITY;
            check("logit_bias", bias, good, "finite or -infinity")?;
        }
        for (i, stage) in self.stages.iter().enumerate() {
            if self.stages[..i].contains(stage) {
                return Err(SamplerError::BadParameter {
                    name: "stages",
                    found: format!("{} twice", stage.name()),
                    expected: "a list without repetitions",
                });
            }
        }
        Ok(())
    }

    /// True if penalties do anything.
    #[allow(
        clippy::float_cmp,
        reason = "exactly these values are the neutral ones"
    )]
    pub(super) fn penalises(&self) -> bool {
        let neutral = self.repeat_penalty == 1.0
            && self.frequency_penalty == 0.0
            && self.presence_penalty == 0.0;
        self.repeat_last_n > 0 && !neutral
    }

    /// True if DRY does anything.
    pub(super) fn dry_is_on(&self) -> bool {
        self.dry_multiplier > 0.0 && self.dry_base >= 1.0 && self.dry_last_n > 0
    }

    /// See [`Sampler::candidate_count`](super::Sampler::candidate_count).
    pub(super) fn candidate_count(&self) -> Option<usize> {
        if self.mirostat != Mirostat::Off || self.logit_bias.iter().any(|&(_, bias)| bias > 0.0) {
            return None;
        }
        // Tokens that may sink between the model's logits and the choice.
        let mut n_lowered = self.logit_bias.len();
        for (i, stage) in self.stages.iter().enumerate() {
            if self.is_greedy(&self.stages[i..]) {
                return Some(n_lowered.saturating_add(1));
            }
            match stage {
                Stage::Penalties if self.penalises() => {
                    let lowers = self.repeat_penalty >= 1.0
                        && self.frequency_penalty >= 0.0
                        && self.presence_penalty >= 0.0;
                    if !lowers {
                        return None;
                    }
                    n_lowered = n_lowered.saturating_add(self.repeat_last_n);
                }
                Stage::Dry if self.dry_is_on() => {
                    n_lowered = n_lowered.saturating_add(self.dry_last_n);
                }
                Stage::TopK if self.top_k > 0 => return Some(self.top_k.saturating_add(n_lowered)),
                // Where these cut, and the dynamic temperature, depends on all tokens.
                stage if self.truncates(*stage) => return None,
                Stage::Temperature if self.dynatemp_range > 0.0 => return None,
                _ => {}
            }
        }
        None
    }

    /// True if these stages leave the largest logit and nothing else.
    fn is_greedy(&self, stages: &[Stage]) -> bool {
        let mut before = stages.iter().take_while(|&&s| s != Stage::Temperature);
        self.temperature == 0.0
            && self.dynatemp_range == 0.0
            && stages.contains(&Stage::Temperature)
            && before.all(|stage| match stage {
                Stage::Penalties => !self.penalises(),
                Stage::Dry => !self.dry_is_on(),
                // These two may drop the largest; all other truncating stages keep it.
                Stage::Typical | Stage::Xtc => !self.truncates(*stage),
                _ => true,
            })
    }

    /// True if this stage drops tokens with these parameters, top-k aside.
    fn truncates(&self, stage: Stage) -> bool {
        match stage {
            Stage::TopNSigma => self.top_n_sigma > 0.0,
            Stage::Typical => self.typical_p < 1.0,
            Stage::TopP => self.top_p < 1.0,
            Stage::MinP => self.min_p > 0.0,
            Stage::Xtc => self.xtc_probability > 0.0 && self.xtc_threshold <= 0.5,
            Stage::Penalties | Stage::Dry | Stage::TopK | Stage::Temperature => false,
        }
    }
}
