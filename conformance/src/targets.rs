//! Limits of NVIDIA's multiprocessors as documented, and how many blocks of a kernel one of them holds.
//!
//! # Source
//! CUDA C++ Programming Guide 13, table "Technical Specifications per Compute Capability": resident threads and blocks,
//! registers, shared memory. Blackwell's tuning guide says 32 blocks where that table says 24; the smaller counts.
//! Registers are given to warps in units of 256 and to four warps at a time, shared memory to blocks in units of 128
//! bytes, plus 1 KiB that the system keeps from 8.0 on (the same guide, "Multiprocessor Level", and CUDA's own
//! occupancy calculator).

use std::fmt;

use gemel_core::op::Caps;

use gemel_cuda::cubin::Resources;

/// Registers of a multiprocessor.
const REGISTERS: u32 = 65_536;
/// Registers are given to a warp in multiples of this.
const REGISTER_UNIT: u32 = 256;
/// A multiprocessor has four parts with registers of their own.
const PARTS: u32 = 4;
/// Shared memory is given to a block in multiples of this.
const SHARED_UNIT: u32 = 128;
/// Threads of a warp.
const WARP: u32 = 32;

/// An architecture that kernels are compiled for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Target {
    /// Compute capability: `(9, 0)`.
    pub compute: (u32, u32),
    /// Warps that a multiprocessor holds.
    pub max_warps: u32,
    /// Blocks that it holds.
    pub max_blocks: u32,
    /// Its shared memory, in bytes.
    pub shared_bytes: u32,
    /// Of which the system keeps this much for each block.
    pub reserved_bytes: u32,
}

const fn target(compute: (u32, u32), max_warps: u32, max_blocks: u32, shared_kib: u32) -> Target {
    Target {
        compute,
        max_warps,
        max_blocks,
        shared_bytes: shared_kib << 10,
        reserved_bytes: if compute.0 >= 8 { 1 << 10 } else { 0 },
    }
}

/// The architectures, oldest first.
pub const TARGETS: [Target; 7] = [
    target((7, 5), 32, 16, 64),
    target((8, 0), 64, 32, 164),
    target((8, 6), 48, 16, 100),
    target((8, 9), 48, 24, 100),
    target((9, 0), 64, 32, 228),
    target((10, 0), 64, 32, 228),
    target((12, 0), 48, 24, 100),
];

/// What keeps a multiprocessor from holding more blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Bound {
    /// Its number of warps: it is full.
    Warps,
    /// Its number of blocks.
    Blocks,
    /// Its registers.
    Registers,
    /// Its shared memory.
    Shared,
}

impl Bound {
    /// The word of the report.
    pub fn name(self) -> &'static str {
        match self {
            Self::Warps => "warps",
            Self::Blocks => "blocks",
            Self::Registers => "registers",
            Self::Shared => "shared memory",
        }
    }
}

/// How full a multiprocessor is with blocks of one kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Occupancy {
    /// Blocks that it holds; 0: the kernel cannot run.
    pub blocks: u32,
    /// Their warps.
    pub warps: u32,
    /// Why there are no more.
    pub bound: Bound,
}

impl Target {
    /// The target of a name such as `sm_90`.
    pub fn named(name: &str) -> Option<Self> {
        TARGETS
            .into_iter()
            .find(|target| target.to_string() == name)
    }

    /// What a device of this architecture with much memory offers to definitions.
    pub fn caps(&self) -> Caps {
        gemel_cuda::documented_caps(
            self.compute,
            self.shared_bytes - self.reserved_bytes,
            80 << 30,
        )
    }

    /// How full a multiprocessor is with blocks of `threads` threads that ask for `dynamic_bytes` of shared memory.
    pub fn occupancy(&self, threads: u32, resources: Resources, dynamic_bytes: u32) -> Occupancy {
        let warps = threads.div_ceil(WARP).max(1);
        let per_warp = (resources.registers * WARP).next_multiple_of(REGISTER_UNIT);
        let by_registers = match per_warp {
            0 => u32::MAX,
            _ => REGISTERS / PARTS / per_warp * PARTS / warps,
        };
        let shared = (resources.shared_bytes + dynamic_bytes + self.reserved_bytes)
            .next_multiple_of(SHARED_UNIT);
        let by_shared = match shared {
            0 => u32::MAX,
            _ => self.shared_bytes / shared,
        };
        // The first of equals is named.
        let (blocks, bound) = [
            (self.max_warps / warps, Bound::Warps),
            (self.max_blocks, Bound::Blocks),
            (by_registers, Bound::Registers),
            (by_shared, Bound::Shared),
        ]
        .into_iter()
        .min_by_key(|&(blocks, _)| blocks)
        .unwrap_or((0, Bound::Warps));
        Occupancy {
            blocks,
            warps: blocks * warps,
            bound,
        }
    }
}

/// `sm_90`.
impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sm_{}{}", self.compute.0, self.compute.1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn held(name: &str, threads: u32, registers: u32, shared: u32) -> (u32, u32, Bound) {
        let resources = Resources {
            registers,
            shared_bytes: shared,
            local_bytes: 0,
        };
        let occupancy = Target::named(name)
            .unwrap()
            .occupancy(threads, resources, 0);
        (occupancy.blocks, occupancy.warps, occupancy.bound)
    }

    /// Figures of the occupancy calculator of CUDA's toolkit for these kernels.
    #[test]
    fn occupancy_follows_the_documented_limits() {
        assert_eq!(held("sm_80", 256, 32, 0), (8, 64, Bound::Warps), "full");
        assert_eq!(
            held("sm_80", 32, 32, 0),
            (32, 32, Bound::Blocks),
            "small blocks"
        );
        assert_eq!(
            held("sm_90", 128, 255, 0),
            (2, 8, Bound::Registers),
            "255 registers"
        );
        // 72 registers: 9 units a warp, 7 warps a part, 28 in all: three blocks of eight.
        assert_eq!(
            held("sm_90", 256, 72, 0),
            (3, 24, Bound::Registers),
            "by part"
        );
        // 48 KiB and what the system keeps: four times in 228 KiB, twice in 100.
        assert_eq!(
            held("sm_90", 128, 32, 48 << 10),
            (4, 16, Bound::Shared),
            "Hopper"
        );
        assert_eq!(
            held("sm_89", 128, 32, 48 << 10),
            (2, 8, Bound::Shared),
            "Ada"
        );
        assert_eq!(
            held("sm_75", 1024, 64, 0),
            (1, 32, Bound::Warps),
            "Turing is full"
        );
        assert_eq!(
            held("sm_75", 1024, 128, 0),
            (0, 0, Bound::Registers),
            "too large"
        );
    }

    #[test]
    fn names_are_found() {
        for target in TARGETS {
            assert_eq!(Target::named(&target.to_string()), Some(target), "{target}");
        }
        assert_eq!(Target::named("sm_70"), None, "older than what we run on");
    }
}
