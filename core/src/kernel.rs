//! Kernels as backends keep them: what makes one, and each compiled once.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::error::DeviceError;
use crate::op::{Const, Launch, Spec};

/// What makes a kernel: the source is made of nothing else, given the files.
///
/// Cheaper than the text itself, which a plan of hundreds of launches would put together hundreds of times.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Key {
    /// The op, and so the file.
    pub op: &'static str,
    /// Entry point.
    pub entry: &'static str,
    /// Constants and imports.
    pub spec: Spec,
    /// Names and types of the parameter block.
    pub params: Vec<(Cow<'static, str>, &'static str)>,
}

impl Key {
    /// The key of a launch of an op.
    pub fn new(op: &'static str, launch: &Launch) -> Self {
        Self {
            op,
            entry: launch.entry,
            spec: launch.spec.clone(),
            params: launch
                .params
                .fields()
                .iter()
                .map(|(name, value)| (name.clone(), value.type_name()))
                .collect(),
        }
    }
}

/// `op/entry[CONST=value, prefix=file]`, for messages.
impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        name(f, self.op, self.entry, &self.spec)
    }
}

/// The name of the kernel of a launch, as a [`Key`] prints it.
pub fn name_of(op: &str, launch: &Launch) -> String {
    struct Named<'a>(&'a str, &'a Launch);
    impl fmt::Display for Named<'_> {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            name(f, self.0, self.1.entry, &self.1.spec)
        }
    }
    Named(op, launch).to_string()
}

fn name(f: &mut fmt::Formatter<'_>, op: &str, entry: &str, spec: &Spec) -> fmt::Result {
    write!(f, "{op}/{entry}[")?;
    let mut separator = "";
    for (name, value) in &spec.consts {
        match value {
            Const::U32(value) => write!(f, "{separator}{name}={value}")?,
            Const::Bool(value) => write!(f, "{separator}{name}={value}")?,
        }
        separator = ", ";
    }
    for (prefix, file) in &spec.imports {
        write!(f, "{separator}{prefix}={file}")?;
        separator = ", ";
    }
    f.write_str("]")
}

/// Called with the number of kernels compiled and the number to compile.
#[derive(Clone)]
pub struct Progress(pub Arc<dyn Fn(usize, usize) + Send + Sync>);

impl fmt::Debug for Progress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Progress")
    }
}

/// The kernels of a device, each compiled once.
#[derive(Debug)]
pub struct Kernels<K> {
    ready: Mutex<HashMap<Key, Arc<K>>>,
    progress: Option<Progress>,
}

impl<K: Send + Sync> Kernels<K> {
    /// None yet.
    pub fn new(progress: Option<Progress>) -> Self {
        Self {
            ready: Mutex::default(),
            progress,
        }
    }

    fn ready(&self) -> MutexGuard<'_, HashMap<Key, Arc<K>>> {
        self.ready.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The kernels of these launches, in order; those that are new are made on all cores. `device` is for messages.
    ///
    /// # Errors
    /// The first that `make` returns.
    pub fn get(
        &self,
        device: &str,
        launches: &[(&'static str, &Launch)],
        make: impl Fn(&Key, &Launch) -> Result<K, DeviceError> + Sync,
    ) -> Result<Vec<Arc<K>>, DeviceError> {
        let keys: Vec<Key> = launches
            .iter()
            .map(|&(op, launch)| Key::new(op, launch))
            .collect();
        let mut jobs: Vec<(&Key, &Launch)> = Vec::new();
        {
            let ready = self.ready();
            let mut seen: HashSet<&Key> = HashSet::new();
            for (key, &(_, launch)) in keys.iter().zip(launches) {
                if !ready.contains_key(key) && seen.insert(key) {
                    jobs.push((key, launch));
                }
            }
        }
        self.make_all(device, &jobs, &make)?;
        let ready = self.ready();
        keys.iter()
            .map(|key| {
                ready.get(key).cloned().ok_or_else(|| DeviceError::Driver {
                    device: device.to_owned(),
                    message: format!("kernel {key} vanished"),
                })
            })
            .collect()
    }

    fn make_all(
        &self,
        device: &str,
        jobs: &[(&Key, &Launch)],
        make: &(impl Fn(&Key, &Launch) -> Result<K, DeviceError> + Sync),
    ) -> Result<(), DeviceError> {
        if jobs.is_empty() {
            return Ok(());
        }
        let report = |done: usize| {
            if let Some(Progress(report)) = &self.progress {
                report(done, jobs.len());
            }
        };
        report(0);
        let next = AtomicUsize::new(0);
        let done = AtomicUsize::new(0);
        let work = || -> Result<(), DeviceError> {
            while let Some(&(key, launch)) = jobs.get(next.fetch_add(1, Ordering::Relaxed)) {
                let kernel = make(key, launch)?;
                self.ready().insert(key.clone(), Arc::new(kernel));
                report(done.fetch_add(1, Ordering::Relaxed) + 1);
            }
            Ok(())
        };
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let n_threads = cores.min(jobs.len());
        let failed = || DeviceError::Driver {
            device: device.to_owned(),
            message: "the kernel compiler failed".to_owned(),
        };
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0..n_threads).map(|_| scope.spawn(work)).collect();
            // All are joined before any failure counts: a panic that nobody has seen would be the scope's own.
            let results: Vec<_> = threads
                .into_iter()
                .map(|thread| thread.join().unwrap_or_else(|_| Err(failed())))
                .collect();
            results.into_iter().collect()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::op::Params;

    fn launch(threads: u32, n: u32) -> Launch {
        Launch {
            entry: "twice",
            spec: Spec::threads(threads)
                .flag("BIAS", true)
                .import("w", "plain"),
            params: Params::new().u32("n", n as usize),
            grid: [1, 1, 1],
            bindings: Vec::new(),
        }
    }

    #[test]
    fn names_say_what_a_kernel_is_made_of() {
        let launch = launch(64, 7);
        let name = "op/twice[THREADS=64, BIAS=true, w=plain]";
        assert_eq!(Key::new("op", &launch).to_string(), name, "key");
        assert_eq!(name_of("op", &launch), name, "launch");
    }

    #[test]
    fn kernels_are_made_once_and_parameters_do_not_count() {
        let reports = Arc::new(Mutex::new(Vec::new()));
        let heard = reports.clone();
        let kernels: Kernels<u32> = Kernels::new(Some(Progress(Arc::new(move |done, all| {
            heard.lock().unwrap().push((done, all));
        }))));
        let made = AtomicUsize::new(0);
        let make = |key: &Key, _: &Launch| {
            made.fetch_add(1, Ordering::Relaxed);
            Ok(key.spec.consts.len() as u32)
        };
        let (a, b, c) = (launch(64, 1), launch(32, 1), launch(64, 2));
        let launches = [("op", &a), ("op", &b), ("op", &c), ("other", &a)];
        let found = kernels.get("d", &launches, make).expect("made");
        assert_eq!(found.len(), 4, "in order");
        assert!(Arc::ptr_eq(&found[0], &found[2]), "one kernel");
        assert_eq!(made.load(Ordering::Relaxed), 3, "once each");
        let mut reports = std::mem::take(&mut *reports.lock().unwrap());
        reports.sort_unstable();
        assert_eq!(reports, [(0, 3), (1, 3), (2, 3), (3, 3)], "progress");
        kernels.get("d", &launches, make).expect("kept");
        assert_eq!(made.load(Ordering::Relaxed), 3, "none again");
    }

    #[test]
    fn what_cannot_be_made_is_an_error_and_is_tried_again() {
        let kernels: Kernels<u32> = Kernels::new(None);
        let (a, b) = (launch(64, 1), launch(32, 1));
        let launches = [("op", &a), ("op", &b)];
        let refuse = |key: &Key, _: &Launch| {
            if key.spec == b.spec {
                return Err(DeviceError::Compile {
                    kernel: key.to_string(),
                    log: "no".to_owned(),
                });
            }
            Ok(1)
        };
        let error = kernels.get("d", &launches, refuse).unwrap_err();
        assert!(error.to_string().contains("THREADS=32"), "{error}");
        kernels.get("d", &launches, |_, _| Ok(2)).expect("later");
        let panics = kernels.get("d", &[("new", &a), ("newer", &a)], |_, _| {
            panic!("on purpose")
        });
        assert!(
            matches!(panics, Err(DeviceError::Driver { .. })),
            "a compiler that fails is an error"
        );
    }
}
