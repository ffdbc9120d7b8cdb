//! Sampling against hand-computed distributions, plain definitions and chi-square.

use gemel_engine::sampler::random::{Stream, uniform};
use gemel_engine::sampler::{
    DEFAULT_DRY_BREAKERS, DryBreakers, Mirostat, Sampler, SamplerError, SamplerParams,
    SoftmaxStats, Stage,
};
use proptest::prelude::*;

const BANNED: f32 = f32::NEG_INFINITY;

/// Parameters like the first but for the fields listed.
macro_rules! params {
    ($base:expr; $($field:ident: $value:expr),*) => {
        SamplerParams { $($field: $value,)* ..$base }
    };
}

/// All stages off and temperature 1: the model's own distribution.
fn neutral() -> SamplerParams {
    SamplerParams {
        temperature: 1.0,
        top_k: 0,
        top_p: 1.0,
        min_p: 0.0,
        ..SamplerParams::default()
    }
}

/// Logits of given probabilities.
fn logits_of(probs: &[f64]) -> Vec<f32> {
    probs.iter().map(|p| p.ln() as f32).collect()
}

/// The distribution over the whole vocabulary, 0 for what was dropped.
fn distribution(sampler: &mut Sampler, logits: &[f32]) -> Vec<f64> {
    let mut probs = vec![0.0; logits.len()];
    for c in sampler.distribution(logits).expect("a distribution") {
        probs[c.id as usize] += f64::from(c.prob);
    }
    probs
}

/// Checks the final distribution of a chain without history.
fn check(params: SamplerParams, logits: &[f32], want: &[f64]) {
    let name = format!("{params:?} on {logits:?}");
    let mut sampler = Sampler::new(params, 1).expect("good parameters");
    let got = distribution(&mut sampler, logits);
    assert_close(&got, want, &name);
}

fn assert_close(got: &[f64], want: &[f64], name: &str) {
    for (a, b) in got.iter().zip(want) {
        assert!((a - b).abs() < 2e-6, "{name}: got {got:?}, want {want:?}");
    }
}

const P: [f64; 5] = [0.15, 0.4, 0.05, 0.3, 0.1];

#[test]
fn truncating_stages_by_hand() {
    let z = logits_of(&P);
    check(neutral(), &z, &P);
    let third = 0.4 / 0.7;
    let top2 = [0.0, third, 0.0, 1.0 - third, 0.0];
    let top3 = [0.15 / 0.85, 0.4 / 0.85, 0.0, 0.3 / 0.85, 0.0];
    let one = [0.0, 1.0, 0.0, 0.0, 0.0];

    check(params!(neutral(); top_k: 2), &z, &top2);
    check(params!(neutral(); top_k: 1), &z, &one);
    check(params!(neutral(); top_k: 99), &z, &P);
    check(params!(neutral(); top_p: 0.6), &z, &top2);
    check(params!(neutral(); top_p: 0.71), &z, &top3);
    check(params!(neutral(); top_p: 0.0), &z, &one);
    check(params!(neutral(); top_p: 0.0, min_keep: 3), &z, &top3);
    // 0.35 of 0.4 is 0.14: 0.4, 0.3 and 0.15 pass.
    check(params!(neutral(); min_p: 0.35), &z, &top3);
    check(params!(neutral(); min_p: 1.0), &z, &one);
    check(params!(neutral(); min_p: 1.0, min_keep: 2), &z, &top2);
    // Logits 0, 0, 0, 4: mean 1, deviation sqrt(3) = 1.732; 1 sigma keeps z >= 2.268.
    let s = [0.0, 0.0, 0.0, 4.0];
    check(
        params!(neutral(); top_n_sigma: 1.0),
        &s,
        &[0.0, 0.0, 0.0, 1.0],
    );
    let e = 4.0_f64.exp() + 3.0;
    let all = [1.0 / e, 1.0 / e, 1.0 / e, 4.0_f64.exp() / e];
    check(params!(neutral(); top_n_sigma: 2.4), &s, &all);
    // A banned token counts for neither mean nor deviation: 0 and 4 have deviation 2.
    check(
        params!(neutral(); top_n_sigma: 1.9),
        &[BANNED, 0.0, 4.0],
        &[0.0, 0.0, 1.0],
    );
}

/// Entropy of P is 1.3918 nats. Distances of -ln p: 0.4: 0.4756, 0.3: 0.1879, 0.15: 0.5053,
/// 0.1: 0.9107, 0.05: 1.6039. Order: 0.3, 0.4, 0.15, 0.1, 0.05.
#[test]
fn typical_by_hand() {
    let z = logits_of(&P);
    let typical = |typical_p, min_keep| SamplerParams {
        typical_p,
        min_keep,
        ..neutral()
    };
    check(typical(0.2, 0), &z, &[0.0, 0.0, 0.0, 1.0, 0.0]);
    check(typical(0.31, 0), &z, &[0.0, 4.0 / 7.0, 0.0, 3.0 / 7.0, 0.0]);
    check(typical(0.0, 2), &z, &[0.0, 4.0 / 7.0, 0.0, 3.0 / 7.0, 0.0]);
    check(
        typical(0.71, 0),
        &z,
        &[0.15 / 0.85, 0.4 / 0.85, 0.0, 0.3 / 0.85, 0.0],
    );
    // Probabilities that underflow to 0 go last instead of making everything NaN.
    check(
        typical(0.99, 0),
        &[0.0, 0.0, -400.0, BANNED],
        &[0.5, 0.5, 0.0, 0.0],
    );
    check(typical(0.9, 0), &[0.0, -400.0], &[1.0, 0.0]);
}

#[test]
fn temperature_by_hand() {
    let z = [0.0, 2.0_f32.ln(), 4.0_f32.ln()];
    check(neutral(), &z, &[1.0 / 7.0, 2.0 / 7.0, 4.0 / 7.0]);
    let half = params!(neutral(); temperature: 0.5);
    check(half, &z, &[1.0 / 21.0, 4.0 / 21.0, 16.0 / 21.0]);
    let double = params!(neutral(); temperature: 2.0);
    let sum = 1.0 + 2.0_f64.sqrt() + 2.0;
    check(double, &z, &[1.0 / sum, 2.0_f64.sqrt() / sum, 2.0 / sum]);
    let zero = params!(neutral(); temperature: 0.0);
    check(zero.clone(), &z, &[0.0, 0.0, 1.0]);
    check(zero, &[1.0, 3.0, 3.0, 3.0], &[0.0, 1.0, 0.0, 0.0]);
    let tiny = params!(neutral(); temperature: 1e-40);
    check(tiny, &[100.0, 3e38, -3e38], &[0.0, 1.0, 0.0]);

    // A uniform distribution has normalised entropy 1: the temperature is the upper end, 1.5, and the
    // result is uniform anyway. A two-token distribution 0.8/0.2 has 0.7219 bits of 1.
    let dynamic = params!(neutral(); dynatemp_range: 0.5);
    check(dynamic.clone(), &[1.0, 1.0], &[0.5, 0.5]);
    let h = -(0.8_f64 * 0.8_f64.log2() + 0.2 * 0.2_f64.log2());
    let ratio = 4.0_f64.powf(1.0 / (0.5 + h));
    let want = [ratio / (1.0 + ratio), 1.0 / (1.0 + ratio)];
    check(dynamic.clone(), &logits_of(&[0.8, 0.2]), &want);
    let ratio = 4.0_f64.powf(1.0 / (0.5 + h * h));
    let want = [ratio / (1.0 + ratio), 1.0 / (1.0 + ratio)];
    let squared = params!(dynamic; dynatemp_exponent: 2.0);
    check(squared, &logits_of(&[0.8, 0.2]), &want);
}

#[test]
fn xtc_by_hand() {
    let z = logits_of(&P);
    let on = params!(neutral(); xtc_probability: 1.0, xtc_threshold: 0.12);
    // 0.4, 0.3 and 0.15 reach the threshold; 0.15 stays.
    check(on.clone(), &z, &[0.5, 0.0, 0.05 / 0.3, 0.0, 0.1 / 0.3]);
    check(params!(on.clone(); xtc_threshold: 0.35), &z, &P);
    check(params!(on.clone(); xtc_threshold: 0.51), &z, &P);
    check(params!(on.clone(); min_keep: 4), &z, &P);
    check(
        params!(on.clone(); min_keep: 3),
        &z,
        &[0.5, 0.0, 0.05 / 0.3, 0.0, 0.1 / 0.3],
    );
    check(on.clone(), &[2.0], &[1.0]);
    // With temperature 0 XTC still removes the maximum; without XTC the maximum is drawn.
    check(
        params!(on; temperature: 0.0),
        &z,
        &[1.0, 0.0, 0.0, 0.0, 0.0],
    );
    check(
        params!(neutral(); temperature: 0.0),
        &z,
        &[0.0, 1.0, 0.0, 0.0, 0.0],
    );

    // It acts in as many positions as its probability says.
    let sometimes = params!(neutral(); xtc_probability: 0.3, xtc_threshold: 0.12);
    let mut sampler = Sampler::new(sometimes, 5).expect("good parameters");
    let n = 20_000;
    let mut acted = 0;
    for _ in 0..n {
        if distribution(&mut sampler, &z)[1] == 0.0 {
            acted += 1;
        }
        sampler.accept(0);
    }
    // Standard deviation of the count is 65.
    assert!(
        (f64::from(acted) - 6000.0).abs() < 260.0,
        "acted {acted} times of {n}"
    );
}

#[test]
fn ties_go_to_the_lower_id() {
    let z = [1.0, 2.0, 2.0, 2.0, 0.0];
    check(params!(neutral(); top_k: 2), &z, &[0.0, 0.5, 0.5, 0.0, 0.0]);
    check(
        params!(neutral(); top_p: 0.1),
        &z,
        &[0.0, 1.0, 0.0, 0.0, 0.0],
    );
    let zeros = [-0.0, 0.0, -0.0];
    check(params!(neutral(); top_k: 1), &zeros, &[1.0, 0.0, 0.0]);
    let greedy = SamplerParams::greedy();
    let mut sampler = Sampler::new(greedy, 0).expect("good parameters");
    assert_eq!(sampler.sample(&zeros).expect("a token").id, 0);
    assert_eq!(sampler.sample(&z).expect("a token").id, 1);
}

#[test]
fn penalties_by_hand() {
    let params = SamplerParams {
        repeat_penalty: 2.0,
        frequency_penalty: 0.25,
        presence_penalty: 0.5,
        repeat_last_n: 4,
        ..neutral()
    };
    let mut sampler = Sampler::new(params, 1).expect("good parameters");
    let z = [4.0_f32, -1.0, 0.0, 1.5, BANNED];
    let softmax = |z: &[f32]| {
        let e: Vec<f64> = z.iter().map(|&z| f64::from(z).exp()).collect();
        let sum: f64 = e.iter().sum();
        e.into_iter().map(|e| e / sum).collect::<Vec<f64>>()
    };
    assert_close(
        &distribution(&mut sampler, &z),
        &softmax(&z),
        "nothing seen",
    );
    sampler.prime(&[0, 1]);
    sampler.accept(0);
    sampler.accept(4);
    // Token 0 twice: 4/2 - 2·0.25 - 0.5; token 1 once: -1·2 - 0.25 - 0.5; banned stays banned.
    let want = softmax(&[1.0, -2.75, 0.0, 1.5, BANNED]);
    assert_close(&distribution(&mut sampler, &z), &want, "four seen");
    sampler.accept(2);
    // The first 0 has left the window; a logit of exactly 0 counts as not positive.
    let want = softmax(&[4.0 / 2.0 - 0.75, -2.75, -0.75, 1.5, BANNED]);
    assert_close(&distribution(&mut sampler, &z), &want, "five seen");
    for _ in 0..4 {
        sampler.accept(3);
    }
    let want = softmax(&[4.0, -1.0, 0.0, 1.5 / 2.0 - 1.0 - 0.5, BANNED]);
    assert_close(
        &distribution(&mut sampler, &z),
        &want,
        "one token fills the window",
    );
}

#[test]
fn extreme_parameters_stay_finite() {
    let z = [3e38, -3e38, 0.0, 1.0];
    for repeat_penalty in [1e-38, 1e38] {
        for other in [3e38, -3e38] {
            let params = SamplerParams {
                repeat_penalty,
                frequency_penalty: other,
                presence_penalty: other,
                dry_multiplier: 3e38,
                dry_base: 3e38,
                dry_allowed_length: 1,
                logit_bias: vec![(0, 3e38), (1, -3e38)],
                ..SamplerParams::default()
            };
            let mut sampler = Sampler::new(params, 1).expect("good parameters");
            sampler.prime(&[0, 1, 2, 0, 1, 2, 0, 1]);
            let drawn = sampler.sample(&z).expect("a token");
            assert!(drawn.prob > 0.0 && drawn.prob <= 1.0, "{drawn:?}");
        }
    }
}

/// The definition of DRY in its plainest form, newest token last.
fn naive_dry(
    params: &SamplerParams,
    history: &[u32],
    breakers: &[Vec<u32>],
    n_vocab: usize,
) -> Vec<f64> {
    let w = &history[history.len().saturating_sub(params.dry_last_n)..];
    let mut penalty = vec![0.0; n_vocab];
    let n = w.len();
    let allowed = params.dry_allowed_length;
    if n <= allowed {
        return penalty;
    }
    let mut limit = n;
    for i in 0..n {
        let at = n - 1 - i;
        let tails = breakers
            .iter()
            .filter(|b| w[at..].starts_with(b))
            .map(|b| b.len() - 1);
        if let Some(tail) = tails.max() {
            limit = i - tail;
            break;
        }
    }
    if limit < allowed {
        return penalty;
    }
    for j in 0..n - 1 {
        let common = (0..=j)
            .take_while(|&d| w[j - d] == w[n - 1 - d])
            .count()
            .min(limit);
        if common >= allowed && !breakers.iter().any(|b| b == &[w[j + 1]]) {
            let exponent = (common - allowed) as i32;
            let value =
                f64::from(params.dry_multiplier) * f64::from(params.dry_base).powi(exponent);
            let slot = &mut penalty[w[j + 1] as usize];
            *slot = value.max(*slot);
        }
    }
    penalty
}

/// A vocabulary of letters, where a token is a breaker by its text.
fn letters() -> Vec<String> {
    ["a", "b", "c", "d", "\n", "x:y", "e<", "/", "f>"]
        .map(str::to_owned)
        .to_vec()
}

fn letter_tokens(text: &str) -> Vec<u32> {
    let letters = letters();
    let id = |c: char| letters.iter().position(|l| *l == c.to_string());
    text.chars().filter_map(id).map(|i| i as u32).collect()
}

#[test]
fn dry_by_hand() {
    let params = params!(neutral(); dry_multiplier: 0.5, dry_base: 2.0, dry_allowed_length: 2);
    let mut sampler = Sampler::new(params, 1).expect("good parameters");
    // a b c d, a b c: d would make the repetition 4 long; 3 repeated, 1 above the allowed length.
    sampler.prime(&[0, 1, 2, 3, 0, 1, 2]);
    let z = [0.0; 9];
    let got = distribution(&mut sampler, &z);
    let lowered = (-1.0_f64).exp(); // 0.5 · 2^(3 - 2)
    for (id, p) in got.iter().enumerate() {
        let want = if id == 3 { lowered } else { 1.0 } / (8.0 + lowered);
        assert!((p - want).abs() < 1e-6, "token {id}: {p}, want {want}");
    }
}

#[test]
fn dry_breakers_are_compiled_from_text() {
    let strings = ["\n", ":", "", "</"];
    let breakers = DryBreakers::compile(&strings, letters(), letter_tokens);
    let params = params!(neutral(); dry_multiplier: 1.0, dry_allowed_length: 1);
    let penalised = |history: &[u32]| -> Vec<usize> {
        let sampler = Sampler::new(params.clone(), 1).expect("good parameters");
        let mut sampler = sampler.with_dry_breakers(breakers.clone());
        sampler.prime(history);
        let got = distribution(&mut sampler, &[0.0; 9]);
        let max = got.iter().copied().fold(0.0, f64::max);
        (0..9).filter(|&i| got[i] < max - 1e-6).collect()
    };
    assert_eq!(penalised(&[0, 1, 0]), [1], "no breaker");
    assert_eq!(
        penalised(&[0, 4, 0, 1, 4]),
        [0_usize; 0],
        "a line break ends the search"
    );
    assert_eq!(
        penalised(&[0, 5, 0, 1, 5]),
        [0_usize; 0],
        "a token that contains a colon"
    );
    assert_eq!(
        penalised(&[0, 4, 0]),
        [0_usize; 0],
        "a breaker itself is not lowered"
    );
    // "e<" followed by "/" spells "</"; "e<" followed by something else does not.
    assert_eq!(
        penalised(&[6, 7, 0, 6, 7]),
        [0_usize; 0],
        "the tail is part of the breaker"
    );
    assert_eq!(
        penalised(&[6, 7, 0, 1, 6]),
        [7],
        "a head alone is no breaker"
    );
    assert!(DryBreakers::default().is_empty(), "default has none");
    assert!(
        !DryBreakers::compile(&DEFAULT_DRY_BREAKERS, letters(), letter_tokens).is_empty(),
        "line break and colon are in the vocabulary"
    );
}

/// Draws `n` tokens and returns the chi-square statistic against the stated distribution.
fn chi_square(params: SamplerParams, logits: &[f32], want: &[f64], n: u32) -> f64 {
    let mut sampler = Sampler::new(params, 20_260_928).expect("good parameters");
    let mut counts = vec![0_u32; want.len()];
    for _ in 0..n {
        let drawn = sampler.sample(logits).expect("a token");
        counts[drawn.id as usize] += 1;
        sampler.accept(drawn.id);
    }
    let mut statistic = 0.0;
    for (count, p) in counts.iter().zip(want) {
        if *p == 0.0 {
            assert_eq!(*count, 0, "a dropped token was drawn");
            continue;
        }
        let expected = p * f64::from(n);
        statistic += (f64::from(*count) - expected).powi(2) / expected;
    }
    statistic
}

/// Value that chi-square exceeds with probability 1e-4 (Wilson and Hilferty).
fn critical(degrees: f64) -> f64 {
    let a = 2.0 / (9.0 * degrees);
    degrees * (1.0 - a + 3.719 * a.sqrt()).powi(3)
}

#[test]
fn draws_follow_the_distribution() {
    let n = 100_000;
    let z = logits_of(&P);
    let check = |params: SamplerParams, want: &[f64]| {
        let degrees = want.iter().filter(|p| **p > 0.0).count() - 1;
        let statistic = chi_square(params.clone(), &z, want, n);
        let limit = critical(degrees as f64);
        assert!(
            statistic < limit,
            "{statistic} above {limit} for {params:?}"
        );
    };
    check(neutral(), &P);
    check(
        params!(neutral(); top_k: 3),
        &[0.15 / 0.85, 0.4 / 0.85, 0.0, 0.3 / 0.85, 0.0],
    );
    let squares: f64 = P.iter().map(|p| p * p).sum();
    let squared = P.map(|p| p * p / squares);
    check(params!(neutral(); temperature: 0.5), &squared);
    // XTC half of the time: a mixture.
    let with = [0.5, 0.0, 0.05 / 0.3, 0.0, 0.1 / 0.3];
    let mixture: Vec<f64> = P.iter().zip(with).map(|(a, b)| 0.5 * a + 0.5 * b).collect();
    check(
        params!(neutral(); xtc_probability: 0.5, xtc_threshold: 0.12),
        &mixture,
    );
    // The whole default chain: top-p at 0.95 keeps 0.4, 0.3, 0.15 and 0.1 (sum 0.95, or a rounding
    // below it), so its limit is moved off the border; min-p at 0.05 drops nothing.
    let quarter: Vec<f64> = P
        .iter()
        .map(|p| if *p > 0.06 { p.powf(1.25) } else { 0.0 })
        .collect();
    let sum: f64 = quarter.iter().sum();
    let want: Vec<f64> = quarter.iter().map(|p| p / sum).collect();
    check(params!(SamplerParams::default(); top_p: 0.94), &want);
}

/// A refused first draw followed by `sample_again` without the refused token follows the
/// distribution without that token.
#[test]
fn redraws_follow_the_masked_distribution() {
    let z = logits_of(&P);
    let mut masked = z.clone();
    masked[1] = BANNED;
    let mut sampler = Sampler::new(neutral(), 77).expect("good parameters");
    let n = 100_000_u32;
    let mut counts = [0_u32; 5];
    for _ in 0..n {
        let mut drawn = sampler.sample(&z).expect("a token");
        if drawn.id == 1 {
            drawn = sampler.sample_again(&masked).expect("a token");
        }
        counts[drawn.id as usize] += 1;
        sampler.accept(drawn.id);
    }
    assert_eq!(counts[1], 0, "refused");
    let mut statistic = 0.0;
    for i in [0, 2, 3, 4] {
        let expected = P[i] / 0.6 * f64::from(n);
        statistic += (f64::from(counts[i]) - expected).powi(2) / expected;
    }
    assert!(statistic < critical(3.0), "{statistic}");
}

/// The rejection rule of speculative sampling, built from the public pieces: the emitted token follows
/// the target's distribution although drafts come from another one.
#[test]
fn the_rejection_rule_keeps_the_distribution() {
    let draft = [0.3, 0.1, 0.2, 0.1, 0.3];
    let params = params!(neutral(); top_k: 4);
    let z = logits_of(&P);
    let mut sampler = Sampler::new(params, 3).expect("good parameters");
    let (seed, n) = (sampler.seed(), 100_000_u32);
    let pick = |probs: &[f64], u: f64| {
        let total: f64 = probs.iter().sum();
        let mut running = 0.0;
        probs.iter().position(|p| {
            running += p;
            running > u * total
        })
    };
    let mut counts = [0_u32; 5];
    for position in 0..u64::from(n) {
        let u = |stream| uniform(seed, 0, position, stream);
        let p = distribution(&mut sampler, &z);
        let d = pick(&draft, u(Stream::Draft)).expect("a draft");
        let id = if u(Stream::Accept) < p[d] / draft[d] {
            d
        } else {
            let left: Vec<f64> = p.iter().zip(draft).map(|(p, q)| (p - q).max(0.0)).collect();
            pick(&left, u(Stream::Residual)).expect("a rest")
        };
        counts[id] += 1;
        sampler.accept(id as u32);
    }
    let want = distribution(&mut sampler, &z);
    let mut statistic = 0.0;
    for (count, p) in counts.iter().zip(&want).filter(|(_, p)| **p > 0.0) {
        let expected = p * f64::from(n);
        statistic += (f64::from(*count) - expected).powi(2) / expected;
    }
    assert!(statistic < critical(3.0), "{statistic}");
}

#[test]
fn the_same_counter_gives_the_same_token() {
    let z: Vec<f32> = (0..200).map(|i| ((i * 37) % 101) as f32 * 0.03).collect();
    let params = params!(SamplerParams::default(); repeat_penalty: 1.1);
    let text = |seed, sequence, prompt: &[u32], interrupted: bool| -> Vec<u32> {
        let sampler = Sampler::new(params.clone(), seed).expect("good parameters");
        let mut sampler = sampler.with_sequence(sequence);
        sampler.prime(prompt);
        (0..50)
            .map(|i| {
                if interrupted && i % 3 == 0 {
                    // Draws that are thrown away, and work on a copy, leave no trace.
                    sampler.sample(&z[..100]).expect("a token");
                    let mut copy = sampler.clone();
                    copy.accept(7);
                    copy.sample(&z).expect("a token");
                }
                let id = sampler.sample(&z).expect("a token").id;
                sampler.accept(id);
                id
            })
            .collect()
    };
    let base = text(9, 0, &[], false);
    assert_eq!(base, text(9, 0, &[], true), "discarded draws");
    assert_eq!(
        base,
        text(9, 0, &[250, 251], false),
        "a prompt of other tokens"
    );
    assert_ne!(base, text(10, 0, &[], false), "another seed");
    assert_ne!(base, text(9, 1, &[], false), "another sequence");
}

#[test]
fn bad_parameters_are_named() {
    let bad: Vec<(&str, SamplerParams)> = vec![
        ("temperature", params!(neutral(); temperature: -0.1)),
        ("temperature", params!(neutral(); temperature: f32::NAN)),
        ("dynatemp_range", params!(neutral(); dynatemp_range: -1.0)),
        ("top_p", params!(neutral(); top_p: 1.01)),
        ("top_p", params!(neutral(); top_p: -0.1)),
        ("min_p", params!(neutral(); min_p: 2.0)),
        ("typical_p", params!(neutral(); typical_p: f32::NAN)),
        (
            "top_n_sigma",
            params!(neutral(); top_n_sigma: f32::INFINITY),
        ),
        ("xtc_probability", params!(neutral(); xtc_probability: 1.5)),
        ("repeat_penalty", params!(neutral(); repeat_penalty: 0.0)),
        (
            "presence_penalty",
            params!(neutral(); presence_penalty: f32::NAN),
        ),
        ("dry_multiplier", params!(neutral(); dry_multiplier: -1.0)),
        ("mirostat_tau", params!(neutral(); mirostat_tau: -1.0)),
        ("adaptive_decay", params!(neutral(); adaptive_decay: 1.0)),
        ("adaptive_target", params!(neutral(); adaptive_target: 1.5)),
        (
            "logit_bias",
            params!(neutral(); logit_bias: vec![(1, f32::NAN)]),
        ),
        (
            "stages",
            params!(neutral(); stages: vec![Stage::TopK, Stage::TopK]),
        ),
    ];
    for (want, params) in bad {
        match Sampler::new(params, 0) {
            Err(SamplerError::BadParameter { name, .. }) => assert_eq!(name, want),
            other => panic!("{want}: {other:?}"),
        }
    }
    let error = Sampler::new(params!(neutral(); top_p: 3.0), 0).expect_err("too large");
    assert_eq!(
        error.to_string(),
        "sampling parameter top_p is 3; it must be between 0 and 1"
    );
}

#[test]
fn broken_logits_are_errors() {
    for params in [neutral(), SamplerParams::greedy(), SamplerParams::default()] {
        let mut sampler = Sampler::new(params, 0).expect("good parameters");
        for value in [f32::NAN, f32::INFINITY] {
            match sampler.sample(&[0.0, 1.0, value]) {
                Err(SamplerError::BadLogit { id: 2, .. }) => {}
                other => panic!("{value}: {other:?}"),
            }
        }
        let none = SamplerError::NoCandidate { n_logits: 2 };
        assert_eq!(sampler.sample(&[BANNED, BANNED]), Err(none));
        assert!(sampler.sample(&[]).is_err(), "an empty vocabulary");
        assert_eq!(sampler.sample(&[BANNED, -5.0]).expect("one left").id, 1);
        let stats = SoftmaxStats {
            n_vocab: 1,
            max: 1.0,
            sum: f32::NAN,
        };
        assert!(
            sampler.sample_candidates(&[0], &[1.0], &stats).is_err(),
            "a broken sum"
        );
    }
    let banned = params!(neutral(); logit_bias: vec![(0, BANNED), (1, BANNED)]);
    let mut sampler = Sampler::new(banned, 0).expect("good parameters");
    assert!(sampler.sample(&[1.0, 2.0]).is_err(), "all banned by bias");
    assert_eq!(
        sampler.sample(&[1.0]),
        Err(SamplerError::BiasOutsideVocabulary { id: 1, n_vocab: 1 })
    );
}

#[test]
fn bias_and_logprob_by_hand() {
    let params = params!(neutral(); logit_bias: vec![(0, BANNED), (2, 2.0_f32.ln())]);
    let z = logits_of(&[0.5, 0.25, 0.25]);
    check(params.clone(), &z, &[0.0, 1.0 / 3.0, 2.0 / 3.0]);
    let mut sampler = Sampler::new(params, 0).expect("good parameters");
    let drawn = sampler.sample(&z).expect("a token");
    // The log-probability is the model's, the probability that of the draw.
    assert!((drawn.logprob - 0.25_f32.ln()).abs() < 1e-6, "{drawn:?}");
    let want = if drawn.id == 1 { 1.0 / 3.0 } else { 2.0 / 3.0 };
    assert!((drawn.prob - want).abs() < 1e-6, "{drawn:?}");
}

#[test]
fn stage_lists_are_read() {
    let list = Stage::parse_list("top_k; temp,typical;min_p").expect("known names");
    assert_eq!(
        list,
        [Stage::TopK, Stage::Temperature, Stage::Typical, Stage::MinP]
    );
    let error = Stage::parse_list("top_k;warp").expect_err("no such stage");
    assert!(error.to_string().contains("\"warp\""), "{error}");
    let names = Stage::ALL.map(Stage::name).join(";");
    assert_eq!(Stage::parse_list(&names).expect("own names"), Stage::ALL);
    // Order matters: temperature first flattens what top-p sees.
    let z = logits_of(&P);
    let first = SamplerParams {
        stages: vec![Stage::Temperature, Stage::TopP],
        temperature: 1e6,
        top_p: 0.5,
        ..neutral()
    };
    check(
        first,
        &z,
        &[1.0 / 3.0, 1.0 / 3.0, 0.0, 1.0 / 3.0, 0.0].map(|p: f64| p),
    );
}

#[test]
fn model_files_change_the_defaults() {
    let number = |key: &str| match key {
        "general.sampling.temp" => Some(0.6),
        "general.sampling.top_k" => Some(20.0),
        "general.sampling.penalty_last_n" => Some(-1.0),
        _ => None,
    };
    let text =
        |key: &str| (key == "general.sampling.sequence").then(|| "top_k;temperature".to_owned());
    let params = SamplerParams::from_metadata(number, text).expect("good values");
    let want = SamplerParams {
        temperature: 0.6,
        top_k: 20,
        repeat_last_n: 0,
        stages: vec![Stage::TopK, Stage::Temperature],
        ..SamplerParams::default()
    };
    assert_eq!(params, want);
    let bad = SamplerParams::from_metadata(|key| key.ends_with("top_p").then_some(7.0), |_| None);
    assert!(bad.is_err(), "top_p of 7");
}

#[test]
fn mirostat_two_by_hand() {
    // tau 1: the limit begins at 2 bits, so tokens of at least a quarter stay.
    let params = params!(neutral(); mirostat: Mirostat::V2, mirostat_tau: 1.0);
    let z = logits_of(&[0.125, 0.5, 0.1251, 0.2499]);
    let mut sampler = Sampler::new(params.clone(), 1).expect("good parameters");
    assert_close(
        &distribution(&mut sampler, &z),
        &[0.0, 1.0, 0.0, 0.0],
        "one stays",
    );
    let drawn = sampler.sample(&z).expect("a token");
    assert_eq!(drawn.id, 1);
    sampler.accept(drawn.id);
    // It was certain: surprise 0, so the limit rises by 0.1 · 1.
    assert!(
        (sampler.mirostat_mu() - 2.1).abs() < 1e-6,
        "{}",
        sampler.mirostat_mu()
    );
    let want = [0.0, 0.5 / 0.7499, 0.0, 0.2499 / 0.7499];
    assert_close(&distribution(&mut sampler, &z), &want, "two stay");
    sampler.sample(&z).expect("a token");
    sampler.accept(0);
    assert!(
        (sampler.mirostat_mu() - 2.1).abs() < 1e-6,
        "not the drawn token"
    );

    // In the long run the mean surprise is tau.
    let wide: Vec<f32> = (0..1000).map(|i| -((i + 1) as f32).ln()).collect();
    for mirostat in [Mirostat::V1, Mirostat::V2] {
        let params = SamplerParams {
            mirostat,
            mirostat_tau: 3.0,
            ..neutral()
        };
        let mut sampler = Sampler::new(params, 4).expect("good parameters");
        let n = 20_000;
        let mut bits = 0.0;
        for _ in 0..n {
            let drawn = sampler.sample(&wide).expect("a token");
            bits -= f64::from(drawn.prob).log2();
            sampler.accept(drawn.id);
        }
        let mean = bits / f64::from(n);
        assert!(
            (mean - 3.0).abs() < 0.05,
            "{mirostat:?}: mean surprise {mean}"
        );
    }
}

#[test]
fn mirostat_one_by_hand() {
    // Zipf with exponent 2: s = 2, ε = 1; with τ = 2, μ = 4: k = (16 / (1 - 1/N))^(1/2), N = 50: 4.04.
    let p: Vec<f32> = (0..50).map(|i| -2.0 * ((i + 1) as f32).ln()).collect();
    let params = params!(neutral(); mirostat: Mirostat::V1, mirostat_tau: 2.0);
    let mut sampler = Sampler::new(params.clone(), 1).expect("good parameters");
    let kept = distribution(&mut sampler, &p)
        .iter()
        .filter(|p| **p > 0.0)
        .count();
    assert_eq!(kept, 4);
    // Degenerate inputs: one candidate, all equal, one above -infinity.
    for z in [vec![1.0], vec![0.0; 30], vec![BANNED, 2.0, BANNED]] {
        let drawn = sampler.sample(&z).expect("a token");
        assert!(drawn.prob > 0.0 && drawn.prob <= 1.0, "{drawn:?} of {z:?}");
    }
}

#[test]
fn adaptive_p_by_hand() {
    let params = params!(neutral(); adaptive_target: 0.3, adaptive_decay: 0.5);
    let mut sampler = Sampler::new(params, 1).expect("good parameters");
    let z = logits_of(&P);
    let transformed = |wanted: f64| {
        let e: Vec<f64> = P
            .iter()
            .map(|p| {
                let d = (p - wanted).abs() / 0.3;
                (5.0 - 10.0 * d * d / (1.0 + d)).exp()
            })
            .collect();
        let sum: f64 = e.iter().sum();
        e.into_iter().map(|e| e / sum).collect::<Vec<f64>>()
    };
    // Weighted 0.6 of total 2 is the target itself.
    assert_close(
        &distribution(&mut sampler, &z),
        &transformed(0.3),
        "at first",
    );
    let drawn = sampler.sample(&z).expect("a token");
    sampler.accept(drawn.id);
    let (weighted, total) = (P[drawn.id as usize] + 0.5 * 0.6, 1.0 + 0.5 * 2.0);
    let wanted = (0.6 - weighted / total).clamp(0.0, 1.0);
    assert_close(
        &distribution(&mut sampler, &z),
        &transformed(wanted),
        "after one",
    );
    let second = sampler.sample(&z).expect("a token").id;
    sampler.accept((second + 1) % 5);
    assert_close(
        &distribution(&mut sampler, &z),
        &transformed(wanted),
        "not the drawn token",
    );
}

#[test]
fn candidate_counts() {
    let count = |params| {
        Sampler::new(params, 0)
            .expect("good parameters")
            .candidate_count()
    };
    assert_eq!(count(SamplerParams::default()), Some(40));
    assert_eq!(count(SamplerParams::greedy()), Some(1));
    assert_eq!(count(neutral()), None);
    let penalties = params!(SamplerParams::default(); repeat_penalty: 1.1);
    assert_eq!(count(penalties.clone()), Some(104));
    assert_eq!(
        count(params!(penalties.clone(); temperature: 0.0)),
        Some(65)
    );
    assert_eq!(count(params!(penalties; repeat_penalty: 0.9)), None);
    let bias = |value| params!(SamplerParams::default(); logit_bias: vec![(3, value)]);
    assert_eq!(count(bias(-1.0)), Some(41));
    assert_eq!(count(bias(1.0)), None);
    let sigma = params!(SamplerParams::default(); top_n_sigma: 1.0);
    assert_eq!(count(sigma.clone()), None);
    assert_eq!(count(params!(sigma; temperature: 0.0)), Some(1));
    let xtc = params!(SamplerParams::greedy(); xtc_probability: 0.5);
    assert_eq!(count(xtc), Some(40));
    let mirostat = params!(SamplerParams::default(); mirostat: Mirostat::V2);
    assert_eq!(count(mirostat), None);
    let mut sampler = Sampler::new(SamplerParams::default(), 0).expect("good parameters");
    let stats = SoftmaxStats {
        n_vocab: 100,
        max: 1.0,
        sum: 3.0,
    };
    let error = sampler
        .sample_candidates(&[1, 2], &[1.0, 0.0], &stats)
        .expect_err("two of 40");
    assert_eq!(
        error,
        SamplerError::WrongCandidateCount {
            expected: 40,
            found: 2
        }
    );
}

fn any_params() -> impl Strategy<Value = SamplerParams> {
    let cuts = (
        0_usize..12,
        0.0_f32..1.2,
        0.0_f32..0.5,
        0.3_f32..1.4,
        -1.0_f32..3.0,
    );
    let shape = (
        0.0_f32..2.0,
        any::<bool>(),
        0.0_f32..0.6,
        0.0_f32..0.6,
        0_usize..4,
    );
    let past = (
        0_usize..8,
        1.0_f32..1.5,
        0.0_f32..0.5,
        0.0_f32..0.5,
        0.0_f32..1.0,
    );
    let order = Just(Stage::ALL.to_vec()).prop_shuffle();
    let bias = prop::collection::vec((0_u32..30, prop_oneof![-3.0_f32..0.5, Just(BANNED)]), 0..3);
    (cuts, shape, past, order, bias).prop_map(|(cuts, shape, past, order, logit_bias)| {
        SamplerParams {
            top_k: cuts.0,
            top_p: cuts.1.min(1.0),
            min_p: (cuts.2 - 0.2).max(0.0),
            typical_p: cuts.3.min(1.0),
            top_n_sigma: cuts.4,
            temperature: if shape.0 < 0.4 { 0.0 } else { shape.0 },
            dynatemp_range: if shape.1 { 0.0 } else { 0.3 },
            xtc_probability: (shape.2 - 0.2).max(0.0),
            xtc_threshold: shape.3,
            min_keep: shape.4,
            repeat_last_n: past.0,
            repeat_penalty: past.1,
            frequency_penalty: past.2,
            presence_penalty: past.3,
            dry_multiplier: (past.4 - 0.3).max(0.0),
            dry_allowed_length: 1,
            dry_last_n: 10,
            logit_bias,
            stages: if shape.1 { Stage::ALL.to_vec() } else { order },
            ..SamplerParams::default()
        }
    })
}

/// Logits with many ties.
fn any_logits() -> impl Strategy<Value = Vec<f32>> {
    let logit = prop_oneof![
        4 => (-8_i32..8).prop_map(|z| z as f32 * 0.5),
        2 => -4.0_f32..4.0,
        1 => Just(BANNED),
    ];
    prop::collection::vec(logit, 30)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(3000))]

    /// The largest logits give what all logits give, in whatever order they come.
    #[test]
    fn candidates_equal_full(
        params in any_params(),
        logits in any_logits(),
        history in prop::collection::vec(0_u32..30, 0..20),
        seed in any::<u64>(),
        shuffle in any::<u64>(),
    ) {
        let mut full = Sampler::new(params, seed).expect("good parameters");
        full.prime(&history);
        let mut short = full.clone();
        let Some(count) = full.candidate_count() else { return Ok(()) };
        let Ok(stats) = SoftmaxStats::of(&logits) else { return Ok(()) };

        let mut order: Vec<u32> = (0..30).collect();
        order.sort_by(|&a, &b| logits[b as usize].total_cmp(&logits[a as usize]).then(a.cmp(&b)));
        order.truncate(count);
        order.sort_by_key(|&id| u64::from(id).wrapping_mul(shuffle | 1));
        let values: Vec<f32> = order.iter().map(|&id| logits[id as usize]).collect();
        let got = short.sample_candidates(&order, &values, &stats);
        let want = full.sample(&logits);
        match (got, want) {
            (Ok(got), Ok(want)) => {
                prop_assert_eq!(got, want);
            }
            (got, want) => prop_assert_eq!(got.is_err(), want.is_err()),
        }
    }

    /// Whatever the chain, the result is a distribution, and what is drawn is in it.
    #[test]
    fn every_chain_gives_a_distribution(
        params in any_params(),
        logits in any_logits(),
        history in prop::collection::vec(0_u32..30, 0..20),
        seed in any::<u64>(),
    ) {
        let mut sampler = Sampler::new(params, seed).expect("good parameters");
        sampler.prime(&history);
        let Ok(drawn) = sampler.sample(&logits) else { return Ok(()) };
        let got = distribution(&mut sampler, &logits);
        let sum: f64 = got.iter().sum();
        prop_assert!((sum - 1.0).abs() < 1e-5, "sum {}", sum);
        prop_assert!((got[drawn.id as usize] - f64::from(drawn.prob)).abs() < 1e-7);
        prop_assert!(drawn.prob > 0.0);
        prop_assert!(logits[drawn.id as usize] > BANNED, "a banned token");
        prop_assert!(drawn.logprob <= 1e-6);
        prop_assert_eq!(sampler.sample(&logits), Ok(drawn), "drawing twice");
    }

    /// Tokens that trade places trade probabilities: no stage prefers an id (ties aside).
    #[test]
    fn permuting_the_vocabulary_permutes_the_distribution(
        params in any_params(),
        order in Just((0..30_usize).collect::<Vec<_>>()).prop_shuffle(),
        logits in prop::collection::vec(-5.0_f32..5.0, 30),
        history in prop::collection::vec(0_usize..30, 0..20),
    ) {
        let mut params = params;
        let mut plain = Sampler::new(params.clone(), 1).expect("good parameters");
        for (id, _) in &mut params.logit_bias {
            *id = order[*id as usize] as u32;
        }
        let mut moved = Sampler::new(params, 1).expect("good parameters");
        let mut moved_logits = vec![0.0; 30];
        for (from, &to) in order.iter().enumerate() {
            moved_logits[to] = logits[from];
        }
        plain.prime(&history.iter().map(|&t| t as u32).collect::<Vec<_>>());
        moved.prime(&history.iter().map(|&t| order[t] as u32).collect::<Vec<_>>());
        let a = plain.distribution(&logits);
        let b = moved.distribution(&moved_logits);
        let (Ok(a), Ok(b)) = (a, b) else { return Ok(()) };
        let mut want = vec![0.0_f32; 30];
        for c in a {
            want[order[c.id as usize]] = c.prob;
        }
        let mut got = vec![0.0_f32; 30];
        for c in b {
            got[c.id as usize] = c.prob;
        }
        for (a, b) in got.iter().zip(&want) {
            prop_assert!((a - b).abs() < 1e-5, "{:?} and {:?}", got, want);
        }
    }

    /// DRY equals its definition.
    #[test]
    fn dry_equals_its_definition(
        history in prop::collection::vec(0_u32..4, 0..30),
        dry_allowed_length in 0_usize..4,
        dry_last_n in 1_usize..40,
        breakers in prop::collection::vec(prop::collection::vec(0_u32..4, 1..3), 0..3),
    ) {
        let params = SamplerParams {
dry_multiplier: 0.1,
dry_base: 1.5,
dry_allowed_length,
dry_last_n,
..neutral()
};
        // Breakers spelled in a vocabulary of single letters compile to exactly these sequences.
        let vocab = ["a", "b", "c", "d"];
        let strings: Vec<String> = breakers
            .iter()
            .map(|b| b.iter().map(|&t| vocab[t as usize]).collect())
            .collect();
        let compiled = DryBreakers::compile(&strings, vocab, letter_tokens);
        let sampler = Sampler::new(params.clone(), 1).expect("good parameters");
        let mut sampler = sampler.with_dry_breakers(compiled);
        sampler.prime(&history);
        let got = distribution(&mut sampler, &[0.0; 4]);
        let weights: Vec<f64> = naive_dry(&params, &history, &breakers, 4)
            .into_iter()
            .map(|penalty| (-penalty).exp())
            .collect();
        let sum: f64 = weights.iter().sum();
        for (p, w) in got.iter().zip(&weights) {
            prop_assert!((p - w / sum).abs() < 1e-5, "{:?}, want {:?}", got, weights);
        }
    }
}
