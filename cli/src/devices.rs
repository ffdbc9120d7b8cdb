//! `gemel devices`: what models can run on.

use std::io::Write as _;

use anyhow::{Result, bail};
use clap::Args;
use gemel_cuda::{Link, Route};
use gemel_wgpu::{WgpuOptions, enumerate};
use serde_json::json;

/// Arguments of `gemel devices`.
#[derive(Args, Debug)]
pub(crate) struct DevicesArgs {
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// How copies from a device to each other go.
fn copies(links: &[Link], from: &str) -> Vec<serde_json::Value> {
    let routes = links.iter().flat_map(|link| {
        let [a, b] = &link.devices;
        let [there, back] = &link.routes;
        [(a, b, there), (b, a, back)]
    });
    routes
        .filter(|(source, _, _)| *source == from)
        .map(|(_, target, route)| {
            let (kind, why) = match route {
                Route::Same => ("same", None),
                Route::Peer => ("peer", None),
                Route::Staged(why) => ("staged", Some(why)),
            };
            json!({ "to": target, "route": kind, "why": why })
        })
        .collect()
}

/// Runs the command.
pub(crate) fn devices(args: &DevicesArgs) -> Result<()> {
    let adapters = enumerate(&WgpuOptions::new("wgpu"));
    let cuda = gemel_cuda::enumerate();
    let mut out = std::io::stdout().lock();
    if args.json {
        let mut list: Vec<_> = adapters
            .iter()
            .map(|adapter| {
                json!({
                    "name": adapter.name,
                    "adapter": adapter.adapter,
                    "backend": adapter.backend,
                    "driver": adapter.driver,
                    "class": adapter.caps.class.name(),
                    "memory_bytes": adapter.caps.memory_bytes,
                    "max_binding_bytes": adapter.caps.max_binding_bytes,
                    "f16": adapter.caps.f16,
                    "subgroup": adapter.caps.warp,
                })
            })
            .collect();
        let links = gemel_cuda::links(cuda.as_deref().unwrap_or_default());
        list.extend(cuda.iter().flatten().map(|device| {
            json!({
                "copies": copies(&links, &device.name),
                "name": device.name,
                "adapter": device.device,
                "backend": "cuda",
                "driver": device.driver,
                "class": device.caps.class.name(),
                "memory_bytes": device.caps.memory_bytes,
                "max_binding_bytes": device.caps.max_binding_bytes,
                "f16": device.caps.f16,
                "subgroup": device.caps.warp,
            })
        }));
        writeln!(out, "{}", serde_json::to_string_pretty(&list)?)?;
    } else {
        writeln!(
            out,
            "{:<10} {:<11} {:<8} {:>11} {:>5} {:>9}  adapter",
            "name", "class", "backend", "memory MiB", "f16", "subgroup"
        )?;
        for adapter in &adapters {
            let caps = &adapter.caps;
            writeln!(
                out,
                "{:<10} {:<11} {:<8} {:>11} {:>5} {:>9}  {} ({})",
                adapter.name,
                caps.class.name(),
                adapter.backend,
                caps.memory_bytes >> 20,
                if caps.f16 { "yes" } else { "no" },
                caps.warp.map_or("no".to_owned(), |n| n.to_string()),
                adapter.adapter,
                adapter.driver
            )?;
        }
        for device in cuda.iter().flatten() {
            let caps = &device.caps;
            writeln!(
                out,
                "{:<10} {:<11} {:<8} {:>11} {:>5} {:>9}  {} (compute capability {}.{}, {})",
                device.name,
                caps.class.name(),
                "cuda",
                caps.memory_bytes >> 20,
                if caps.f16 { "yes" } else { "no" },
                caps.warp.map_or("no".to_owned(), |n| n.to_string()),
                device.device,
                device.compute.0,
                device.compute.1,
                device.driver
            )?;
        }
        writeln!(
            out,
            "{:<10} {:<11} {:<8} {:>11} {:>5} {:>9}  f64 definitions of the ops, for checking",
            "reference", "reference", "host", "-", "-", "-"
        )?;
        for link in gemel_cuda::links(cuda.as_deref().unwrap_or_default()) {
            writeln!(out, "copies {link}")?;
        }
        if let Err(reason) = &cuda {
            writeln!(out, "cuda: not available: {reason}")?;
        }
    }
    if adapters.is_empty() && cuda.is_err() {
        bail!(
            "no GPU adapter found; install your GPU's Vulkan driver and the Vulkan loader (Debian: libvulkan1), or a software driver (Debian: mesa-vulkan-drivers)"
        );
    }
    Ok(())
}
