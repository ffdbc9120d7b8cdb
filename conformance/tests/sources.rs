//! Every kernel source of every case, on a machine without a GPU: parsed, validated, translated to each shading
//! language, and linted for barriers in divergent control flow.

use std::collections::{BTreeMap, BTreeSet};

use gemel_conformance::cases;
use gemel_conformance::run::least_caps;
use gemel_core::op::DeviceClass;
use naga::back::{glsl, hlsl, msl, spv};
use naga::valid::{Capabilities, ModuleInfo, ValidationFlags, Validator};
use rayon::prelude::*;

/// Distinct source texts with their op and entry points, over all cases and classes of device.
fn sources() -> BTreeMap<String, (String, BTreeSet<&'static str>)> {
    let mut texts: BTreeMap<String, (String, BTreeSet<&'static str>)> = BTreeMap::new();
    let mut known = BTreeSet::new();
    for case in cases::all() {
        for class in [DeviceClass::Software, DeviceClass::Discrete] {
            let launches = case
                .launches(&least_caps(class))
                .unwrap_or_else(|error| panic!("{case:?}: {error}"));
            for launch in launches.list {
                // Assembling costs more than looking whether this specialisation came by before.
                let names: Vec<String> = launch
                    .params
                    .fields()
                    .iter()
                    .map(|(name, _)| name.to_string())
                    .collect();
                if !known.insert((
                    case.op.name(),
                    launch.entry,
                    format!("{:?} {names:?}", launch.spec),
                )) {
                    continue;
                }
                let text = gemel_wgpu::source::assemble(case.op.name(), &launch)
                    .unwrap_or_else(|error| panic!("{case:?}: {error}"));
                let entry = texts
                    .entry(text)
                    .or_insert_with(|| (case.id.clone(), BTreeSet::new()));
                entry.1.insert(launch.entry);
            }
        }
    }
    texts
}

fn validated(id: &str, text: &str) -> (naga::Module, ModuleInfo) {
    let module = naga::front::wgsl::parse_str(text)
        .unwrap_or_else(|e| panic!("{id}: {}", e.emit_to_string(text)));
    let info = Validator::new(ValidationFlags::all(), Capabilities::all())
        .validate(&module)
        .unwrap_or_else(|e| panic!("{id}: {}", e.emit_to_string(text)));
    (module, info)
}

fn translate(id: &str, entry: &str, module: &naga::Module, info: &ModuleInfo) {
    let stage = naga::ShaderStage::Compute;
    let options = spv::Options {
        lang_version: (1, 3),
        ..spv::Options::default()
    };
    let pipeline = spv::PipelineOptions {
        shader_stage: stage,
        entry_point: entry.to_owned(),
    };
    spv::write_vec(module, info, &options, Some(&pipeline))
        .unwrap_or_else(|e| panic!("{id} {entry}: SPIR-V: {e}"));

    let options = msl::Options {
        fake_missing_bindings: true,
        lang_version: (2, 0),
        ..msl::Options::default()
    };
    let pipeline = msl::PipelineOptions {
        entry_point: Some((stage, entry.to_owned())),
        ..msl::PipelineOptions::default()
    };
    msl::write_string(module, info, &options, &pipeline)
        .unwrap_or_else(|e| panic!("{id} {entry}: MSL: {e}"));

    let options = hlsl::Options {
        fake_missing_bindings: true,
        ..hlsl::Options::default()
    };
    let pipeline = hlsl::PipelineOptions {
        entry_point: Some((stage, entry.to_owned())),
    };
    let mut out = String::new();
    hlsl::Writer::new(&mut out, &options, &pipeline)
        .write(module, info, None)
        .unwrap_or_else(|e| panic!("{id} {entry}: HLSL: {e}"));

    let options = glsl::Options {
        version: glsl::Version::new_gles(310),
        ..glsl::Options::default()
    };
    let pipeline = glsl::PipelineOptions {
        shader_stage: stage,
        entry_point: entry.to_owned(),
        multiview: None,
    };
    let mut out = String::new();
    glsl::Writer::new(
        &mut out,
        module,
        info,
        &options,
        &pipeline,
        naga::proc::BoundsCheckPolicies::default(),
    )
    .and_then(|mut writer| writer.write())
    .unwrap_or_else(|e| panic!("{id} {entry}: GLSL: {e}"));
}

#[test]
fn every_source_is_valid_in_every_shading_language() {
    let sources = sources();
    assert!(sources.len() > 100, "{} texts", sources.len());
    sources.par_iter().for_each(|(text, (id, entries))| {
        let (module, info) = validated(id, text);
        for entry in entries {
            translate(id, entry, &module, &info);
        }
    });
}

/// Statements that hold a barrier although the threads of a block may disagree about reaching it.
///
/// A condition is uniform if it is made of constants, parameters, the ids and counts that a whole block shares, and
/// what lies at a uniform place of storage that the kernel never writes; the arguments of a helper are uniform if they
/// are so in all its calls. A thread's own ids, other values in memory, and variables that are ever given such values
/// are not uniform.
mod barriers {
    use super::{BTreeSet, ModuleInfo};
    use naga::{Block, Expression, Function, Handle, Module, Statement};

    pub(super) fn check(module: &Module, info: &ModuleInfo) -> Vec<String> {
        let mut found = Vec::new();
        let with_barrier: BTreeSet<Handle<Function>> = transitive(module);
        let written = written(module);
        // Arguments that differ between threads in some call. Callers come after their callees in a module.
        let mut divergent: BTreeSet<(Handle<Function>, usize)> = BTreeSet::new();
        let mut judge = |handle: Option<Handle<Function>>,
                         function: &Function,
                         info,
                         name: &str,
                         found: &mut Vec<String>| {
            let lint = Lint {
                module,
                function,
                handle,
                info,
                with_barrier: &with_barrier,
                written: &written,
                divergent: &divergent,
            };
            lint.block(&function.body, true, name, found);
            let mut calls = Vec::new();
            walk(&function.body, &mut |statement| {
                if let Statement::Call {
                    function,
                    arguments,
                    ..
                } = statement
                {
                    for (index, &argument) in arguments.iter().enumerate() {
                        if !lint.is_uniform(argument) {
                            calls.push((*function, index));
                        }
                    }
                }
            });
            divergent.extend(calls);
        };
        for (index, entry) in module.entry_points.iter().enumerate() {
            judge(
                None,
                &entry.function,
                info.get_entry_point(index),
                &entry.name,
                &mut found,
            );
        }
        let functions: Vec<_> = module.functions.iter().collect();
        for (handle, function) in functions.into_iter().rev() {
            let name = function.name.clone().unwrap_or_default();
            judge(Some(handle), function, &info[handle], &name, &mut found);
        }
        found
    }

    /// Storage that some function of the module writes.
    fn written(module: &Module) -> BTreeSet<Handle<naga::GlobalVariable>> {
        let mut written = BTreeSet::new();
        let functions = module.functions.iter().map(|(_, f)| f);
        for function in functions.chain(module.entry_points.iter().map(|entry| &entry.function)) {
            walk(&function.body, &mut |statement| match statement {
                Statement::Store { pointer, .. } | Statement::Atomic { pointer, .. } => {
                    written.extend(global(function, *pointer));
                }
                // A pointer that is handed on may be written through.
                Statement::Call { arguments, .. } => {
                    written.extend(
                        arguments
                            .iter()
                            .filter_map(|&argument| global(function, argument)),
                    );
                }
                _ => {}
            });
        }
        written
    }

    /// The global variable that a pointer points into.
    fn global(
        function: &Function,
        pointer: Handle<Expression>,
    ) -> Option<Handle<naga::GlobalVariable>> {
        match &function.expressions[pointer] {
            Expression::GlobalVariable(handle) => Some(*handle),
            Expression::Access { base, .. } | Expression::AccessIndex { base, .. } => {
                global(function, *base)
            }
            _ => None,
        }
    }

    /// Functions that reach a barrier.
    fn transitive(module: &Module) -> BTreeSet<Handle<Function>> {
        let mut with: BTreeSet<Handle<Function>> = BTreeSet::new();
        // Callees come first in a module.
        for (handle, function) in module.functions.iter() {
            if contains(&function.body, &with) {
                with.insert(handle);
            }
        }
        with
    }

    fn contains(block: &Block, with: &BTreeSet<Handle<Function>>) -> bool {
        block.iter().any(|statement| match statement {
            Statement::ControlBarrier(_) | Statement::WorkGroupUniformLoad { .. } => true,
            Statement::Call { function, .. } => with.contains(function),
            Statement::Block(block) => contains(block, with),
            Statement::If { accept, reject, .. } => {
                contains(accept, with) || contains(reject, with)
            }
            Statement::Loop {
                body, continuing, ..
            } => contains(body, with) || contains(continuing, with),
            Statement::Switch { cases, .. } => cases.iter().any(|case| contains(&case.body, with)),
            _ => false,
        })
    }

    struct Lint<'a> {
        module: &'a Module,
        function: &'a Function,
        handle: Option<Handle<Function>>,
        info: &'a naga::valid::FunctionInfo,
        with_barrier: &'a BTreeSet<Handle<Function>>,
        written: &'a BTreeSet<Handle<naga::GlobalVariable>>,
        divergent: &'a BTreeSet<(Handle<Function>, usize)>,
    }

    impl Lint<'_> {
        fn block(&self, block: &Block, uniform: bool, name: &str, found: &mut Vec<String>) {
            // After a thread may have returned alone, what follows is divergent.
            let mut uniform = uniform;
            for statement in block {
                match statement {
                    Statement::ControlBarrier(_) | Statement::WorkGroupUniformLoad { .. }
                        if !uniform =>
                    {
                        found.push(format!("barrier in divergent control flow of `{name}`"));
                    }
                    Statement::Call { function, .. }
                        if !uniform && self.with_barrier.contains(function) =>
                    {
                        found.push(format!(
                            "call with a barrier in divergent control flow of `{name}`"
                        ));
                    }
                    Statement::Block(inner) => self.block(inner, uniform, name, found),
                    Statement::If {
                        condition,
                        accept,
                        reject,
                    } => {
                        let same = uniform && self.is_uniform(*condition);
                        self.block(accept, same, name, found);
                        self.block(reject, same, name, found);
                        if !same && (leaves(accept) || leaves(reject)) {
                            uniform = false;
                        }
                    }
                    Statement::Switch { selector, cases } => {
                        let same = uniform && self.is_uniform(*selector);
                        for case in cases {
                            self.block(&case.body, same, name, found);
                        }
                    }
                    Statement::Loop {
                        body,
                        continuing,
                        break_if,
                    } => {
                        let exit = break_if.is_none_or(|condition| self.is_uniform(condition));
                        let same = uniform && exit && !self.diverges(body);
                        self.block(body, same, name, found);
                        self.block(continuing, same, name, found);
                    }
                    _ => {}
                }
            }
        }

        /// Whether some threads may leave a loop or an iteration while others stay.
        fn diverges(&self, block: &Block) -> bool {
            block.iter().any(|statement| match statement {
                Statement::If {
                    condition,
                    accept,
                    reject,
                } => {
                    (!self.is_uniform(*condition) && (leaves(accept) || leaves(reject)))
                        || self.diverges(accept)
                        || self.diverges(reject)
                }
                Statement::Block(inner) => self.diverges(inner),
                _ => false,
            })
        }

        fn is_uniform(&self, handle: Handle<Expression>) -> bool {
            // naga's own analysis, except that loop counters and the like live in variables, which it gives up on.
            self.info[handle].uniformity.non_uniform_result.is_none()
                || self.uniform_expression(handle, &mut BTreeSet::new())
        }

        fn uniform_expression(
            &self,
            handle: Handle<Expression>,
            seen: &mut BTreeSet<Handle<naga::LocalVariable>>,
        ) -> bool {
            let of = |h: Handle<Expression>, seen: &mut _| self.uniform_expression(h, seen);
            match &self.function.expressions[handle] {
                Expression::Literal(_)
                | Expression::Constant(_)
                | Expression::Override(_)
                | Expression::ZeroValue(_)
                | Expression::WorkGroupUniformLoadResult { .. } => true,
                Expression::GlobalVariable(global) => {
                    let variable = &self.module.global_variables[*global];
                    let is_storage = matches!(variable.space, naga::AddressSpace::Storage { .. });
                    variable.space == naga::AddressSpace::Uniform
                        || (is_storage && !self.written.contains(global))
                }
                Expression::FunctionArgument(index) => {
                    let argument = &self.function.arguments[*index as usize];
                    match &argument.binding {
                        Some(naga::Binding::BuiltIn(built_in)) => matches!(
                            built_in,
                            naga::BuiltIn::WorkGroupId
                                | naga::BuiltIn::NumWorkGroups
                                | naga::BuiltIn::WorkGroupSize
                        ),
                        Some(_) => false,
                        None => self.handle.is_some_and(|handle| {
                            !self.divergent.contains(&(handle, *index as usize))
                        }),
                    }
                }
                Expression::Load { pointer } => match &self.function.expressions[*pointer] {
                    Expression::LocalVariable(local) => self.uniform_local(*local, seen),
                    _ => of(*pointer, seen),
                },
                Expression::Access { base, index } => of(*base, seen) && of(*index, seen),
                Expression::AccessIndex { base, .. } | Expression::Swizzle { vector: base, .. } => {
                    of(*base, seen)
                }
                Expression::Splat { value, .. } => of(*value, seen),
                Expression::Compose { components, .. } => components.iter().all(|&c| of(c, seen)),
                Expression::Unary { expr, .. } | Expression::As { expr, .. } => of(*expr, seen),
                Expression::Binary { left, right, .. } => of(*left, seen) && of(*right, seen),
                Expression::Select {
                    condition,
                    accept,
                    reject,
                } => of(*condition, seen) && of(*accept, seen) && of(*reject, seen),
                Expression::Math {
                    arg,
                    arg1,
                    arg2,
                    arg3,
                    ..
                } => {
                    of(*arg, seen)
                        && [arg1, arg2, arg3]
                            .into_iter()
                            .flatten()
                            .all(|&a| of(a, seen))
                }
                Expression::CallResult(_) => self.uniform_call(handle, seen),
                _ => false,
            }
        }

        /// A call with uniform arguments of a function that reads nothing else gives a uniform result.
        fn uniform_call(
            &self,
            result: Handle<Expression>,
            seen: &mut BTreeSet<Handle<naga::LocalVariable>>,
        ) -> bool {
            let mut uniform = true;
            walk(&self.function.body, &mut |statement| {
                if let Statement::Call {
                    function,
                    arguments,
                    result: Some(r),
                } = statement
                    && *r == result
                {
                    let callee = &self.module.functions[*function];
                    let pure = callee.expressions.iter().all(|(_, e)| match e {
                        Expression::GlobalVariable(global) => {
                            let variable = &self.module.global_variables[*global];
                            let is_storage =
                                matches!(variable.space, naga::AddressSpace::Storage { .. });
                            variable.space == naga::AddressSpace::Uniform
                                || (is_storage && !self.written.contains(global))
                        }
                        _ => true,
                    });
                    // A reduction over the block ends with a value that all threads read from one place.
                    let reduced = self.with_barrier.contains(function);
                    uniform = reduced
                        || (pure && arguments.iter().all(|&a| self.uniform_expression(a, seen)));
                }
            });
            uniform
        }

        /// A variable to which only uniform values are assigned.
        fn uniform_local(
            &self,
            local: Handle<naga::LocalVariable>,
            seen: &mut BTreeSet<Handle<naga::LocalVariable>>,
        ) -> bool {
            if !seen.insert(local) {
                return true;
            }
            let init = self.function.local_variables[local].init;
            let mut uniform = init.is_none_or(|init| self.uniform_expression(init, seen));
            walk(&self.function.body, &mut |statement| match statement {
                Statement::Store { pointer, value }
                    if base(self.function, *pointer) == Some(local) =>
                {
                    uniform = uniform && self.uniform_expression(*value, seen);
                }
                // A variable whose address is handed on may be given anything.
                Statement::Call { arguments, .. } => {
                    let handed = arguments.iter().any(|&a| matches!(&self.function.expressions[a], Expression::LocalVariable(l) if *l == local));
                    uniform = uniform && !handed;
                }
                _ => {}
            });
            uniform
        }
    }

    /// The variable that a pointer points into.
    fn base(
        function: &Function,
        pointer: Handle<Expression>,
    ) -> Option<Handle<naga::LocalVariable>> {
        match &function.expressions[pointer] {
            Expression::LocalVariable(local) => Some(*local),
            Expression::Access { base: b, .. } | Expression::AccessIndex { base: b, .. } => {
                base(function, *b)
            }
            _ => None,
        }
    }

    fn walk(block: &Block, visit: &mut impl FnMut(&Statement)) {
        for statement in block {
            visit(statement);
            match statement {
                Statement::Block(inner) => walk(inner, visit),
                Statement::If { accept, reject, .. } => {
                    walk(accept, visit);
                    walk(reject, visit);
                }
                Statement::Loop {
                    body, continuing, ..
                } => {
                    walk(body, visit);
                    walk(continuing, visit);
                }
                Statement::Switch { cases, .. } => {
                    for case in cases {
                        walk(&case.body, visit);
                    }
                }
                _ => {}
            }
        }
    }

    /// Whether a block can end in `return`, `break` or `continue`.
    fn leaves(block: &Block) -> bool {
        block.iter().any(|statement| match statement {
            Statement::Return { .. } | Statement::Break | Statement::Continue | Statement::Kill => {
                true
            }
            Statement::Block(inner) => leaves(inner),
            Statement::If { accept, reject, .. } => leaves(accept) || leaves(reject),
            Statement::Switch { cases, .. } => cases.iter().any(|case| leaves(&case.body)),
            _ => false,
        })
    }
}

#[test]
fn barriers_stand_in_uniform_control_flow() {
    let found: BTreeMap<String, String> = sources()
        .par_iter()
        .flat_map_iter(|(text, (id, _))| {
            let (module, info) = validated(id, text);
            barriers::check(&module, &info)
                .into_iter()
                .map(|problem| (problem, id.clone()))
        })
        .collect();
    assert!(found.is_empty(), "{found:#?}");
}

#[test]
fn the_barrier_lint_finds_a_planted_barrier() {
    let check = |body: &str| {
        let text = format!(
            "struct Params {{ n: u32 }}
            @group(0) @binding(0) var<uniform> p: Params;
            @group(0) @binding(1) var<storage, read_write> y: array<u32>;
            var<workgroup> shared_words: array<u32, 64>;
            @compute @workgroup_size(64)
            fn main(@builtin(workgroup_id) block: vec3<u32>, @builtin(local_invocation_index) thread: u32) {{ {body} }}"
        );
        let (module, info) = validated("planted", &text);
        !barriers::check(&module, &info).is_empty()
    };
    assert!(
        !check("if (block.x >= p.n) { return; } workgroupBarrier(); y[thread] = 1u;"),
        "uniform return"
    );
    assert!(
        check("if (thread >= p.n) { return; } workgroupBarrier(); y[thread] = 1u;"),
        "divergent return"
    );
    assert!(
        check("if (thread < 3u) { workgroupBarrier(); } y[thread] = 1u;"),
        "divergent branch"
    );
    assert!(
        !check("for (var i = 0u; i < p.n; i += 64u) { workgroupBarrier(); } y[thread] = 1u;"),
        "uniform loop"
    );
    assert!(
        check("for (var i = thread; i < p.n; i += 64u) { workgroupBarrier(); } y[thread] = 1u;"),
        "divergent loop"
    );
    assert!(
        check("if (y[0] == 1u) { workgroupBarrier(); } y[thread] = 1u;"),
        "loaded condition"
    );
}
