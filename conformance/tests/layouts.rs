//! The parameter block as kernels see it equals the bytes that are uploaded.

use std::collections::BTreeSet;

use gemel_conformance::cases;
use gemel_conformance::run::{kernel_name, least_caps};
use gemel_core::op::{DeviceClass, Launch};

/// Offsets, names and type names of `struct Params` as naga lays it out, and its size.
fn reflected(text: &str) -> (Vec<(u32, String, &'static str)>, u32) {
    let module =
        naga::front::wgsl::parse_str(text).unwrap_or_else(|e| panic!("{}", e.emit_to_string(text)));
    let (_, ty) = module
        .types
        .iter()
        .find(|(_, ty)| ty.name.as_deref() == Some("Params"))
        .expect("there is a struct Params");
    let naga::TypeInner::Struct { members, span } = &ty.inner else {
        panic!("Params is a struct");
    };
    let members = members
        .iter()
        .map(|member| {
            let naga::TypeInner::Scalar(scalar) = module.types[member.ty].inner else {
                panic!("members of Params are scalars");
            };
            let type_name = match (scalar.kind, scalar.width) {
                (naga::ScalarKind::Uint, 4) => "u32",
                (naga::ScalarKind::Sint, 4) => "i32",
                (naga::ScalarKind::Float, 4) => "f32",
                other => panic!("a member of type {other:?}"),
            };
            (
                member.offset,
                member.name.clone().unwrap_or_default(),
                type_name,
            )
        })
        .collect();
    (members, *span)
}

fn check(op: &str, launch: &Launch) {
    let text =
        gemel_wgpu::source::assemble(op, launch).unwrap_or_else(|error| panic!("{op}: {error}"));
    let (members, span) = reflected(&text);
    let bytes = launch.params.bytes();
    assert!(
        span as usize <= bytes.len(),
        "{op}: {span} bytes bound, {} uploaded",
        bytes.len()
    );
    let fields = launch.params.fields();
    for (index, (name, value)) in fields.iter().enumerate() {
        let (offset, member, type_name) = &members[index];
        assert_eq!(member, name, "{op}: member {index}");
        assert_eq!(*type_name, value.type_name(), "{op}: type of {name}");
        let at = *offset as usize;
        assert_eq!(
            bytes[at..at + 4],
            value.bits().to_le_bytes(),
            "{op}: {name} at {at}"
        );
    }
}

#[test]
fn parameter_blocks_lie_where_kernels_look() {
    let mut seen = BTreeSet::new();
    for case in cases::all() {
        for class in [DeviceClass::Software, DeviceClass::Discrete] {
            let launches = case
                .launches(&least_caps(class))
                .unwrap_or_else(|error| panic!("{case:?}: {error}"));
            for launch in &launches.list {
                let names: Vec<&str> = launch
                    .params
                    .fields()
                    .iter()
                    .map(|(name, _)| name.as_ref())
                    .collect();
                // A block per entry and list of names is enough: specialisations share it.
                if seen.insert(format!("{}/{} {names:?}", case.op.name(), launch.entry)) {
                    check(case.op.name(), launch);
                }
            }
        }
    }
    assert!(seen.len() >= cases::TABLES.len(), "every op was checked");
}

#[test]
fn the_entries_of_a_specialisation_share_one_block() {
    // Pipelines are cached by specialisation, so its launches must agree on the names of the parameters.
    let mut names_of = std::collections::BTreeMap::new();
    for case in cases::all() {
        let launches = case
            .launches(&least_caps(DeviceClass::Discrete))
            .unwrap_or_else(|error| panic!("{case:?}: {error}"));
        for launch in &launches.list {
            let names: Vec<String> = launch
                .params
                .fields()
                .iter()
                .map(|(name, _)| name.to_string())
                .collect();
            let known = names_of
                .entry(kernel_name(case.op.name(), launch))
                .or_insert_with(|| names.clone());
            assert_eq!(*known, names, "{case:?}");
        }
    }
}
