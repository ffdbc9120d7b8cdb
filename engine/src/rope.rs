//! Rotary frequencies of a model -> the cos/sin table that the `rope` op reads.
//!
//! The table is built in f64. It holds the angles of positions 0..256 ("fine") and of the multiples of 256
//! ("coarse"); the op adds the two angles, so that the table grows with a 256th of the context and stays exact.

use gemel_core::TensorDesc;
use gemel_core::device::Device;
use gemel_core::error::DeviceError;
use gemel_core::graph::Tensor;
use gemel_core::ops::rope::RopeMode;

use crate::gguf::{GgufError, Metadata};

/// Positions covered by the fine part of the table.
const FINE: usize = 256;

/// How queries and keys are rotated.
#[derive(Clone, Debug, PartialEq)]
pub struct RopeConfig {
    /// Which channels form a pair.
    pub mode: RopeMode,
    /// Rotated channels of a head.
    pub n_rot: usize,
    /// Base of the frequencies.
    pub theta: f64,
    /// Positions are multiplied by this (1 / scaling factor).
    pub freq_scale: f64,
    /// YaRN: share of extrapolation, 0 for none.
    pub ext_factor: f64,
    /// Magnitude of cos and sin before YaRN's own factor.
    pub attn_factor: f64,
    /// YaRN: rotations over the original context above which nothing is interpolated.
    pub beta_fast: f64,
    /// YaRN: rotations below which everything is interpolated.
    pub beta_slow: f64,
    /// Context the model was first trained with.
    pub n_ctx_orig: usize,
    /// Divisors of the frequencies, one a pair; empty for none.
    pub factors: Vec<f32>,
}

impl RopeConfig {
    /// The keys `ARCH.rope.*` of a file.
    ///
    /// # Errors
    /// Keys of the wrong type or outside their range.
    pub fn from_metadata(
        metadata: &Metadata,
        arch: &str,
        mode: RopeMode,
        head_dim: usize,
        n_ctx_train: usize,
    ) -> Result<Self, GgufError> {
        let key = |name: &str| format!("{arch}.rope.{name}");
        let n_rot = metadata
            .opt_u32(&key("dimension_count"))?
            .map_or(head_dim, |n| n as usize);
        let theta = f64::from(metadata.opt_f32(&key("freq_base"))?.unwrap_or(10_000.0));
        let kind = metadata.opt_str(&key("scaling.type"))?.unwrap_or("linear");
        let factor = match metadata.opt_f32(&key("scaling.factor"))? {
            Some(factor) => Some(factor),
            None => metadata.opt_f32(&key("scale_linear"))?,
        };
        let factor = f64::from(factor.unwrap_or(0.0));
        let freq_scale = if kind == "none" || factor == 0.0 {
            1.0
        } else {
            1.0 / factor
        };
        let float = |name: &str, default: f32| -> Result<f64, GgufError> {
            Ok(f64::from(metadata.opt_f32(&key(name))?.unwrap_or(default)))
        };
        let ext = float("scaling.yarn_ext_factor", -1.0)?;
        let yarn = kind == "yarn";
        Ok(Self {
            mode,
            n_rot,
            theta,
            freq_scale,
            ext_factor: match (yarn, ext < 0.0) {
                (true, true) => 1.0,
                (true, false) => ext,
                (false, _) => 0.0,
            },
            attn_factor: float("scaling.attn_factor", 1.0)?,
            beta_fast: float("scaling.yarn_beta_fast", 32.0)?,
            beta_slow: float("scaling.yarn_beta_slow", 1.0)?,
            n_ctx_orig: metadata
                .opt_u32(&key("scaling.original_context_length"))?
                .map_or(n_ctx_train, |n| n as usize),
            factors: Vec::new(),
        })
    }

    /// Radians per position of each pair, and the magnitude of cos and sin.
    pub fn frequencies(&self) -> (Vec<f64>, f64) {
        let n = self.n_rot as f64;
        let correction = |beta: f64| {
            n * (self.n_ctx_orig as f64 / (beta * std::f64::consts::TAU)).ln()
                / (2.0 * self.theta.ln())
        };
        let low = correction(self.beta_fast).floor().max(0.0);
        let high = correction(self.beta_slow).ceil().min(n - 1.0);
        let frequencies = (0..self.n_rot / 2)
            .map(|pair| {
                let factor = self.factors.get(pair).map_or(1.0, |&f| f64::from(f));
                let base = self.theta.powf(-2.0 * pair as f64 / n) / factor;
                if self.ext_factor == 0.0 {
                    return base * self.freq_scale;
                }
                let ramp = ((pair as f64 - low) / (high - low).max(0.001)).clamp(0.0, 1.0);
                let keep = (1.0 - ramp) * self.ext_factor;
                base * self.freq_scale * (1.0 - keep) + base * keep
            })
            .collect();
        let magnitude = if self.ext_factor == 0.0 {
            self.attn_factor
        } else {
            self.attn_factor * (1.0 + 0.1 * (1.0 / self.freq_scale).ln())
        };
        (frequencies, magnitude)
    }

    /// The table `[256 + n_coarse, n_rot / 2, 2]` for positions below `n_ctx`.
    pub fn table(&self, n_ctx: usize) -> Vec<f32> {
        let (frequencies, magnitude) = self.frequencies();
        let n_coarse = n_ctx.div_ceil(FINE).max(1);
        let mut table = Vec::with_capacity((FINE + n_coarse) * frequencies.len() * 2);
        let mut row = |position: f64, magnitude: f64| {
            for frequency in &frequencies {
                let (sin, cos) = (position * frequency).sin_cos();
                table.push((cos * magnitude) as f32);
                table.push((sin * magnitude) as f32);
            }
        };
        for position in 0..FINE {
            row(position as f64, 1.0);
        }
        for block in 0..n_coarse {
            row((block * FINE) as f64, magnitude);
        }
        table
    }

    /// The table in device memory.
    ///
    /// # Errors
    /// Out of memory, device lost.
    pub fn upload(&self, n_ctx: usize, device: &dyn Device) -> Result<Tensor, DeviceError> {
        let table = self.table(n_ctx);
        let pairs = self.n_rot / 2;
        let desc = TensorDesc::f32([table.len() / (pairs * 2), pairs, 2]);
        let buffer = device.alloc((table.len() * 4) as u64, "rope table")?;
        device.write(&buffer, 0, bytemuck::cast_slice(&table))?;
        Ok(Tensor {
            desc,
            buffers: vec![buffer],
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plain(theta: f64) -> RopeConfig {
        RopeConfig {
            mode: RopeMode::Neox,
            n_rot: 64,
            theta,
            freq_scale: 1.0,
            ext_factor: 0.0,
            attn_factor: 1.0,
            beta_fast: 32.0,
            beta_slow: 1.0,
            n_ctx_orig: 4096,
            factors: Vec::new(),
        }
    }

    #[test]
    fn the_sum_of_two_angles_is_exact_at_a_million_positions() {
        let config = plain(10_000.0);
        let (frequencies, _) = config.frequencies();
        let n_ctx = 1 << 20;
        let table = config.table(n_ctx);
        let pairs = config.n_rot / 2;
        for position in [0, 1, 255, 256, 65_537, n_ctx - 1] {
            for (pair, frequency) in frequencies.iter().enumerate() {
                let at = |row: usize| {
                    let index = (row * pairs + pair) * 2;
                    (table[index], table[index + 1])
                };
                let (cos_fine, sin_fine) = at(position % FINE);
                let (cos_coarse, sin_coarse) = at(FINE + position / FINE);
                let cos = cos_coarse * cos_fine - sin_coarse * sin_fine;
                let exact = (position as f64 * frequency).cos();
                assert!(
                    (f64::from(cos) - exact).abs() < 1e-6,
                    "position {position}, pair {pair}"
                );
            }
        }
    }

    #[test]
    fn yarn_keeps_fast_pairs_and_interpolates_slow_ones() {
        let config = RopeConfig {
            freq_scale: 0.25,
            ext_factor: 1.0,
            ..plain(10_000.0)
        };
        let (frequencies, magnitude) = config.frequencies();
        let (base, _) = plain(10_000.0).frequencies();
        assert!(
            (frequencies[0] - base[0]).abs() < 1e-12,
            "fastest pair kept"
        );
        assert!(
            (frequencies[31] - base[31] * 0.25).abs() < 1e-12,
            "slowest pair interpolated"
        );
        assert!(
            (magnitude - (1.0 + 0.1 * 4f64.ln())).abs() < 1e-12,
            "magnitude of the paper"
        );
    }
}
