//! Memory of a step does not grow with the context: activations and scratch of plans at any depth, on a device.
#![allow(clippy::unwrap_used, reason = "a test may fail")]

use std::sync::Arc;

use gemel_core::Device;
use gemel_core::device::Buffer;
use gemel_engine::blocks::{Head, StepShape};
use gemel_engine::forward::Context;
use gemel_engine::load::{LoadOptions, load};
use gemel_engine::synthetic::Spec;
use gemel_wgpu::{WgpuDevice, WgpuOptions};

const LONGEST: usize = 262_144;

/// A fresh context for up to [`LONGEST`] tokens, on a device of its own, and the bytes of weights and caches.
fn open(spec: &str) -> (Context, u64) {
    let device: Arc<dyn Device> = Arc::new(WgpuDevice::open(&WgpuOptions::new("wgpu")).unwrap());
    let options = LoadOptions {
        n_ctx: Some(LONGEST),
        ..LoadOptions::default()
    };
    let file = spec.parse::<Spec>().unwrap().open().unwrap();
    let loaded = load(&file, device, &options, &mut |_, _| {}).unwrap();
    let held = loaded.weight_bytes + loaded.cache_bytes;
    (loaded.context, held)
}

/// A micro-batch of a prompt, with or without its last token, or a decode step.
fn shapes(max_len: usize) -> [StepShape; 3] {
    [(512, 0), (512, 1), (1, 1)].map(|(n_tokens, n_outputs)| StepShape {
        n_tokens,
        n_outputs,
        max_len,
        head: Head::Argmax,
    })
}

#[test]
fn activations_of_a_prompt_do_not_grow_with_the_context() {
    for (spec, most) in [
        // Scores of blocks, of so many tokens at a time that they take up to 64 MiB, and the search among them.
        ("qwen4exp:tiny:q8_0", 128 << 20),
        ("qwen35:tiny:q8_0", 0),
        ("gemma3:tiny:q8_0", 0),
    ] {
        let (mut context, held) = open(spec);
        let empty = context.device().memory().used;
        // Beyond weights and caches: page tables, rope tables, where a step notes what it selects.
        assert!(empty - held < 4 << 20, "{spec}: {held} of {empty}");
        let (mut sizes, mut buffers) = (Vec::new(), 0);
        let mut max_len = 4096;
        while max_len <= LONGEST {
            for shape in shapes(max_len) {
                let plan = context.plan(shape).unwrap().plan;
                // What the host writes and reads of each plan, by tokens, and the parameters of its launches: whatever
                // the context.
                let read = plan.readback.as_ref().map(|part| &part.buffer);
                let both = plan.step_buffer.iter().chain(read);
                buffers += both.map(Buffer::n_bytes).sum::<u64>();
                buffers += 256 * plan.n_launches() as u64;
            }
            sizes.push(context.scratch_bytes());
            max_len *= 2;
        }
        let (first, last) = (sizes[0], sizes[sizes.len() - 1]);
        assert!(last <= first + most, "{spec}: {sizes:?}");
        // Twice the context after that, and nothing more.
        assert_eq!(sizes[sizes.len() - 2], last, "{spec}: {sizes:?}");
        let memory = context.device().memory();
        // Besides these buffers the arena is there once, but for the moment in which a larger one replaces it.
        let beyond = memory.used - empty;
        assert!(beyond <= last + buffers, "{spec}: {beyond} {sizes:?}");
        let peak = memory.peak - empty;
        assert!(peak <= 2 * last + buffers, "{spec}: {peak} {sizes:?}");
        // The plans of a bucket have as much of them as those of the next.
        let n_buckets = sizes.len() as u64;
        assert!(buffers / n_buckets <= 2 << 20, "{spec}: {buffers}");
    }
}
