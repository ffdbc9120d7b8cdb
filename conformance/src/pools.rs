//! The memory of a batch: every operand poisoned and guarded, and judged afterwards.
//!
//! A plan is plain data, so the steps of a batch are placed by hand: operand `i` of every case lies in pool `i`, one
//! buffer a pool, so no launch binds one buffer for reading and for writing. Each operand's binding ends with guard
//! words *inside* it, because drivers drop writes beyond a binding and a guard outside would never show them; the
//! gaps between bindings are checked too. Everything that is no element is poison: NaN in the first run, huge numbers
//! in the second, and both runs must give the same bits.

use std::collections::{BTreeMap, BTreeSet};

use gemel_core::device::Buffer;
use gemel_core::plan::{Placed, Plan, Span, Step};
use gemel_core::{DType, TensorDesc};

use crate::compare::{self, Figures};
use crate::fill::Poison;
use crate::prepare::{Prepared, slot};
use crate::report::{Outcome, Status};

/// Guard bytes at the end of each operand's binding, inside it.
const GUARD: usize = 256;

/// Bytes between two bindings at least, and the alignment of bindings: the strictest of any adapter.
const ALIGN: usize = 256;

/// What the guard words are and what outputs hold before a run. Two patterns, so that a device that copies what was
/// there is caught by the second run.
pub(crate) const STALE: [u32; 3] = [0x7fc0_dead, 0x7fc1_beef, 0x7fc0_dead];

/// Where one binding lies in its pool.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    pub(crate) pool: usize,
    pub(crate) at: usize,
    /// Bytes of the operand, whole words.
    pub(crate) n_bytes: usize,
    pub(crate) case: usize,
    pub(crate) operand: Part,
}

/// Which operand of a case a binding belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    Input(usize, usize),
    Inout(usize),
    Output(usize),
    Scratch(usize),
}

/// The bindings of a batch in their pools.
#[derive(Debug)]
pub(crate) struct PoolLayout {
    pub(crate) sizes: Vec<(String, usize)>,
    pub(crate) places: Vec<Place>,
}

impl PoolLayout {
    pub(crate) fn new(cases: &[&Prepared]) -> Self {
        let mut layout = Self {
            sizes: Vec::new(),
            places: Vec::new(),
        };
        for (index, case) in cases.iter().enumerate() {
            for (i, input) in case.inputs.iter().enumerate() {
                for (window, piece) in input.pieces[0].iter().enumerate() {
                    layout.add(
                        &format!("input {i}"),
                        index,
                        Part::Input(i, window),
                        piece.len(),
                    );
                }
            }
            for (i, inout) in case.inouts.iter().enumerate() {
                layout.add(
                    &format!("state {i}"),
                    index,
                    Part::Inout(i),
                    inout.pieces[0][0].len(),
                );
            }
            for (i, output) in case.outputs.iter().enumerate() {
                layout.add(
                    &format!("output {i}"),
                    index,
                    Part::Output(i),
                    output.n_bytes(),
                );
            }
            for (i, &n_bytes) in case.scratch.iter().enumerate() {
                layout.add(&format!("scratch {i}"), index, Part::Scratch(i), n_bytes);
            }
        }
        layout
    }

    fn add(&mut self, pool: &str, case: usize, operand: Part, n_bytes: usize) {
        let known = self.sizes.iter().position(|(name, _)| name == pool);
        let index = known.unwrap_or(self.sizes.len());
        if known.is_none() {
            self.sizes.push((pool.to_owned(), ALIGN));
        }
        let size = &mut self.sizes[index].1;
        let n_bytes = n_bytes.next_multiple_of(4);
        let place = Place {
            pool: index,
            at: *size,
            n_bytes,
            case,
            operand,
        };
        *size = (place.at + n_bytes + GUARD + ALIGN).next_multiple_of(ALIGN);
        self.places.push(place);
    }

    fn of(&self, case: usize) -> impl Iterator<Item = &Place> {
        // Places are in the order of the cases.
        let first = self.places.partition_point(|place| place.case < case);
        self.places[first..]
            .iter()
            .take_while(move |place| place.case == case)
    }

    pub(crate) fn plan(&self, cases: &[&Prepared], buffers: &[Buffer]) -> Plan {
        let span = |place: &Place| Span {
            buffer: place.pool,
            offset: place.at as u64,
            n_bytes: (place.n_bytes + GUARD) as u64,
        };
        let steps = cases
            .iter()
            .enumerate()
            .map(|(index, case)| {
                let spans = |wanted: &dyn Fn(Part) -> bool| -> Vec<Span> {
                    self.of(index)
                        .filter(|place| wanted(place.operand))
                        .map(span)
                        .collect()
                };
                let placed = |desc: &TensorDesc, spans| Placed {
                    desc: desc.clone(),
                    spans,
                };
                Step {
                    label: case.case.id.clone(),
                    op: case.case.op.clone(),
                    inputs: (case.inputs.iter().enumerate())
                        .map(|(i, p)| {
                            placed(
                                &p.desc,
                                spans(&|part| matches!(part, Part::Input(n, _) if n == i)),
                            )
                        })
                        .collect(),
                    inouts: (case.inouts.iter().enumerate())
                        .map(|(i, p)| placed(&p.desc, spans(&|part| part == Part::Inout(i))))
                        .collect(),
                    outputs: (case.outputs.iter().enumerate())
                        .map(|(i, desc)| placed(desc, spans(&|part| part == Part::Output(i))))
                        .collect(),
                    scratch: spans(&|part| matches!(part, Part::Scratch(_))),
                    launches: case.launches.clone(),
                    cost: case.cost,
                }
            })
            .collect();
        Plan {
            label: "conformance".to_owned(),
            buffers: buffers.to_vec(),
            steps,
            step_buffer: None,
            step_inputs: BTreeMap::new(),
            outputs: Vec::new(),
            readback: None,
        }
    }

    /// The contents of the pools before a run.
    pub(crate) fn images(&self, cases: &[&Prepared], poison: Poison, stale: u32) -> Vec<Vec<u8>> {
        let mut images: Vec<Vec<u8>> = self
            .sizes
            .iter()
            .map(|(name, size)| {
                // Inputs may be read beyond their end by mistake: that must hurt. Guards of outputs are the same word.
                let word = if name.starts_with("input") {
                    poison.word(DType::F32)
                } else {
                    stale
                };
                word.to_le_bytes().repeat(size / 4)
            })
            .collect();
        for place in &self.places {
            let case = cases[place.case];
            let piece = match place.operand {
                Part::Input(i, window) => &case.inputs[i].pieces[slot(poison)][window],
                Part::Inout(i) => &case.inouts[i].pieces[slot(poison)][0],
                Part::Output(_) | Part::Scratch(_) => continue,
            };
            images[place.pool][place.at..place.at + piece.len()].copy_from_slice(piece);
        }
        images
    }

    /// Notes every change outside outputs, scratch and in-place operands: inputs, guards, gaps.
    pub(crate) fn check_untouched(
        &self,
        before: &[Vec<u8>],
        after: &[Vec<u8>],
        notes: &mut [BTreeSet<String>],
    ) {
        for (pool, (name, size)) in self.sizes.iter().enumerate() {
            if before[pool] == after[pool] {
                continue;
            }
            let places: Vec<&Place> = self
                .places
                .iter()
                .filter(|place| place.pool == pool)
                .collect();
            let mut at = 0;
            for (index, place) in places.iter().enumerate() {
                let next = places.get(index + 1).map_or(*size, |next| next.at);
                let changed = |from: usize, to: usize| {
                    (from..to).find(|&i| before[pool][i] != after[pool][i])
                };
                if let Some(i) = changed(at, place.at) {
                    notes[place.case].insert(format!("wrote {} bytes before {name}", place.at - i));
                }
                if matches!(place.operand, Part::Input(..))
                    && let Some(i) = changed(place.at, place.at + place.n_bytes)
                {
                    notes[place.case].insert(format!("changed byte {} of {name}", i - place.at));
                }
                if let Some(i) = changed(place.at + place.n_bytes, next) {
                    let beyond = i - place.at - place.n_bytes;
                    notes[place.case]
                        .insert(format!("wrote {beyond} bytes beyond the end of {name}"));
                }
                at = next;
            }
        }
    }

    /// Notes outputs whose bits differ between runs. What in-place operands hold outside the written cells is poison
    /// of each run, so of these only whole caches with one poison are compared, by the judge.
    pub(crate) fn check_same(
        &self,
        cases: &[&Prepared],
        first: &[Vec<u8>],
        again: &[Vec<u8>],
        notes: &mut [BTreeSet<String>],
    ) {
        for place in &self.places {
            // The rest of a last word belongs to nobody.
            let n_bytes = match place.operand {
                Part::Output(i) => cases[place.case].outputs[i].n_bytes(),
                Part::Input(..) | Part::Inout(_) | Part::Scratch(_) => place.n_bytes,
            };
            let range = place.at..place.at + n_bytes;
            let (a, b) = (&first[place.pool][range.clone()], &again[place.pool][range]);
            let differs = match place.operand {
                Part::Output(_) => a != b,
                Part::Inout(i) => {
                    let pieces = &cases[place.case].inouts[i].pieces;
                    // Written bytes are equal in both runs; the others are what each run began with.
                    (0..a.len()).any(|at| {
                        a[at] != b[at] && (a[at] != pieces[0][0][at] || b[at] != pieces[1][0][at])
                    })
                }
                Part::Input(..) | Part::Scratch(_) => false,
            };
            if differs {
                notes[place.case]
                    .insert("is not the same in a second run with other poison".to_owned());
            }
        }
    }

    /// Compares the outputs and in-place operands of a case with the reference.
    pub(crate) fn judge(
        &self,
        index: usize,
        case: &Prepared,
        after: &[Vec<u8>],
        notes: BTreeSet<String>,
    ) -> Judged {
        let mut judged = Judged {
            figures: Figures::default(),
            problems: notes.into_iter().collect(),
        };
        for place in self.of(index) {
            let bytes = &after[place.pool][place.at..place.at + place.n_bytes];
            let result = match place.operand {
                Part::Output(i) => {
                    let expected = &case.expected[i];
                    let stale = STALE[0].to_le_bytes();
                    let unwritten = bytes.chunks_exact(4).filter(|&word| word == stale).count();
                    if unwritten > 0 {
                        judged
                            .problems
                            .push(format!("left {unwritten} words of output {i} unwritten"));
                    }
                    let got = compare::elements(&expected.desc, bytes);
                    compare::judge(expected, &got, case.tolerance)
                }
                Part::Inout(i) => {
                    compare::judge_state(case.states[i].state(), bytes, case.tolerance)
                }
                Part::Input(..) | Part::Scratch(_) => continue,
            };
            match result {
                Ok(figures) => judged.figures = judged.figures.worst(figures),
                Err(mismatch) => {
                    judged.figures = judged.figures.worst(mismatch.figures);
                    judged.problems.push(mismatch.message);
                }
            }
        }
        judged
    }
}

/// The result of a case that ran.
#[derive(Debug)]
pub(crate) struct Judged {
    pub(crate) figures: Figures,
    pub(crate) problems: Vec<String>,
}

impl Judged {
    pub(crate) fn into_outcome(self, prepared: &Prepared, outcome: Outcome) -> Outcome {
        Outcome {
            status: if self.problems.is_empty() {
                Status::Pass
            } else {
                Status::Fail
            },
            message: self.problems.join("; "),
            headroom: self.figures.headroom,
            max_abs: self.figures.max_abs,
            nmse: self.figures.nmse,
            bytes: prepared.cost.bytes,
            flops: prepared.cost.flops,
            ..outcome
        }
    }
}
