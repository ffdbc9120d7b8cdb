//! How bytes get from one GPU to another: by peer access where it was seen to work, otherwise in two hops through
//! pinned host memory.
//!
//! That the driver offers peer access is not enough: behind some memory controllers it reports success and copies
//! nothing, or something else. So each direction of each pair is tried when the second of the two devices opens, with
//! patterns of several sizes and both devices busy, and what does not come back as it was sent goes through the host.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use gemel_core::device::{Copied, Ticket};
use gemel_core::error::DeviceError;

use crate::buffers::Allocation;
use crate::caps::CudaInfo;
use crate::error::{Fault, Gpu, lock};
use crate::lane::{self, Kept, Lane};
use crate::launch::{Context, Event, Memory, Pinned, Stream};

/// Bytes of one hop through the host: while one piece goes up, the next comes down.
const PIECE: u64 = 2 << 20;

/// Pieces of pinned memory of one copy. A piece is filled again when it has gone up.
const PIECES: usize = 4;

/// Whether copies between devices may use peer access.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PeerAccess {
    /// Where the driver offers it and a test shows that it works.
    #[default]
    Auto,
    /// Never.
    Off,
}

/// How copies from one device to another go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Route {
    /// Both are one GPU.
    Same,
    /// Directly: the test of the pair has passed.
    Peer,
    /// Through pinned host memory, and why.
    Staged(String),
}

impl fmt::Display for Route {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Same => f.write_str("the same GPU"),
            Self::Peer => f.write_str("peer access (tested)"),
            Self::Staged(why) => write!(f, "through pinned host memory ({why})"),
        }
    }
}

/// The routes between two devices.
#[derive(Clone, Debug)]
pub struct Link {
    /// Names of the two.
    pub devices: [String; 2],
    /// From the first to the second, and back.
    pub routes: [Route; 2],
}

/// One line.
impl fmt::Display for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b] = &self.devices;
        let [there, back] = &self.routes;
        if there == back {
            write!(f, "{a} <-> {b}: {there}")
        } else {
            write!(f, "{a} -> {b}: {there}; {b} -> {a}: {back}")
        }
    }
}

/// The routes between all pairs of devices, found by opening and testing them.
pub fn links(devices: &[CudaInfo]) -> Vec<Link> {
    let between = |source: &CudaInfo, target: &CudaInfo| {
        let open = |device: &CudaInfo| Context::open(device.ordinal);
        match (open(source), open(target)) {
            (Ok(source), Ok(target)) => {
                route(&source, &target, PeerAccess::Auto, Duration::from_secs(10))
            }
            (Err(fault), _) | (_, Err(fault)) => Route::Staged(fault.to_string()),
        }
    };
    let pairs = devices.iter().enumerate().flat_map(|(index, first)| {
        devices[index + 1..]
            .iter()
            .map(move |second| (first, second))
    });
    pairs
        .map(|(first, second)| Link {
            devices: [first.name.clone(), second.name.clone()],
            routes: [between(first, second), between(second, first)],
        })
        .collect()
}

/// The routes to a lane, by the number of the source's.
#[derive(Debug, Default)]
pub(crate) struct Routes {
    found: Mutex<HashMap<u64, Route>>,
    access: PeerAccess,
}

impl Routes {
    pub(crate) fn new(access: PeerAccess) -> Self {
        Self {
            found: Mutex::default(),
            access,
        }
    }

    /// The route from a lane. One that was never tried is not trusted.
    pub(crate) fn from(&self, source: u64) -> Route {
        lock(&self.found)
            .get(&source)
            .cloned()
            .unwrap_or_else(|| Route::Staged("not tested".to_owned()))
    }

    fn set(&self, source: u64, route: Route) {
        lock(&self.found).insert(source, route);
    }
}

/// Finds the routes between a new lane and the others.
pub(crate) fn connect(new: &Arc<Lane>) {
    static LANES: Mutex<Vec<Weak<Lane>>> = Mutex::new(Vec::new());
    let mut lanes = lock(&LANES);
    lanes.retain(|other| other.strong_count() > 0);
    for other in lanes.iter().filter_map(Weak::upgrade) {
        let deadline = new.gpu.deadline.min(other.gpu.deadline);
        for (source, target) in [(&other, new), (new, &other)] {
            let access = target.routes.access;
            let route = route(&source.context, &target.context, access, deadline);
            target.routes.set(source.id, route);
        }
    }
    lanes.push(Arc::downgrade(new));
}

/// The route of one direction.
fn route(
    source: &Arc<Context>,
    target: &Arc<Context>,
    access: PeerAccess,
    limit: Duration,
) -> Route {
    if source.is_of(target) {
        return Route::Same;
    }
    if access == PeerAccess::Off {
        return Route::Staged("peer access is switched off".to_owned());
    }
    match target.enable_peer(source) {
        Err(fault) => Route::Staged(fault.to_string()),
        Ok(()) => match test(source, target, limit) {
            Ok(()) => Route::Peer,
            Err(why) => Route::Staged(format!("the driver offers peer access, but {why}")),
        },
    }
}

/// Sends patterns from one device to another and looks at what has arrived.
fn test(source: &Arc<Context>, target: &Arc<Context>, limit: Duration) -> Result<(), String> {
    /// A word, a length that no engine copies in one piece of its own, and more than any cache line.
    const SIZES: [usize; 3] = [4, 65_540, 4 << 20];
    let failed = |fault: Fault| fault.to_string();
    let mut arrived_all = true;
    for (turn, n_bytes) in SIZES.into_iter().enumerate() {
        let pattern = |at: usize| (at.wrapping_mul(0x9e37_79b9) >> 13) as u8 ^ turn as u8;
        let streams = [source, target].map(Stream::new);
        let [up, down] = streams;
        let (up, down) = (up.map_err(failed)?, down.map_err(failed)?);
        let busy: Vec<(Stream, Memory)> = [source, target]
            .into_iter()
            .map(|context| Ok((Stream::new(context)?, Memory::new(context, n_bytes)?)))
            .collect::<Result<_, Fault>>()
            .map_err(failed)?;
        let from = Memory::new(source, n_bytes).map_err(failed)?;
        let to = Memory::new(target, n_bytes).map_err(failed)?;
        let mut sent = Pinned::new(source, n_bytes).map_err(failed)?;
        let received = Pinned::new(target, n_bytes).map_err(failed)?;
        for (at, byte) in sent.bytes_mut()[..n_bytes].iter_mut().enumerate() {
            *byte = pattern(at);
        }
        let there = Event::new(source, false).map_err(failed)?;
        let back = Event::new(target, false).map_err(failed)?;
        let work = || -> Result<bool, Fault> {
            down.clear(&to)?;
            up.upload(Some(&sent), &from, 0, n_bytes)?;
            up.record(&there)?;
            for _ in 0..4 {
                for (stream, memory) in &busy {
                    stream.clear(memory)?;
                }
            }
            down.wait(&there)?;
            down.copy(&from, 0, &to, 0, n_bytes)?;
            down.download(&to, 0, n_bytes, Some(&received))?;
            down.record(&back)?;
            lane::poll(&back, limit)
        };
        match work() {
            Ok(true) => {}
            Ok(false) => {
                // It may still be under way.
                std::mem::forget((from, to, sent, received));
                return Err(format!("a test copy took more than {} s", limit.as_secs()));
            }
            Err(fault) => {
                std::mem::forget((from, to, sent, received));
                return Err(fault.to_string());
            }
        }
        let bytes = received.bytes().get(..n_bytes).unwrap_or_default();
        arrived_all &= bytes
            .iter()
            .enumerate()
            .all(|(at, &byte)| byte == pattern(at));
    }
    if arrived_all {
        Ok(())
    } else {
        Err("a test pattern arrived damaged".to_owned())
    }
}

/// One end of a copy.
pub(crate) struct End<'a> {
    pub(crate) memory: &'a Arc<Allocation>,
    pub(crate) offset: u64,
    pub(crate) waits: &'a [Ticket],
}

/// Copies from the memory of one lane to that of another (or of the same).
pub(crate) fn copy(
    source: &Lane,
    target: &Lane,
    from: &End<'_>,
    to: &End<'_>,
    n_bytes: u64,
) -> Result<Copied, DeviceError> {
    let what = format!("a copy from {} to {}", source.gpu.name, target.gpu.name);
    if source.id != target.id && matches!(target.routes.from(source.id), Route::Staged(_)) {
        return through_host(source, target, from, to, n_bytes, &what);
    }
    let waits = [from.waits, to.waits].concat();
    let kept: Kept = vec![from.memory.clone(), to.memory.clone()];
    let (_, value) = target.enqueue(&what, &waits, kept, |stream| {
        let (from_memory, to_memory) = (&from.memory.memory, &to.memory.memory);
        stream.copy(
            from_memory,
            from.offset,
            to_memory,
            to.offset,
            n_bytes as usize,
        )
    })?;
    let ticket = target.ticket(value);
    Ok(Copied {
        read: ticket,
        written: ticket,
    })
}

/// Two hops, piece by piece, ordered by events alone: the host waits for nothing.
fn through_host(
    source: &Lane,
    target: &Lane,
    from: &End<'_>,
    to: &End<'_>,
    n_bytes: u64,
    what: &str,
) -> Result<Copied, DeviceError> {
    let n_pieces = n_bytes.div_ceil(PIECE);
    let ring = (0..n_pieces.min(PIECES as u64))
        .map(|_| Ok(Arc::new(source.pinned(n_bytes.min(PIECE) as usize)?)))
        .collect::<Result<Vec<_>, DeviceError>>()?;
    // Tickets of the hops so far: down from the source, up to the target.
    let (mut down, mut up) = (Vec::new(), Vec::new());
    for index in 0..n_pieces {
        let at = index * PIECE;
        let length = (n_bytes - at).min(PIECE) as usize;
        let slot = index as usize % PIECES;
        let lease = &ring[slot];
        // The first hop waits for the source's hazards, later ones for the piece to be free.
        let waits = match (index as usize).checked_sub(PIECES) {
            None if index == 0 => from.waits.to_vec(),
            None => Vec::new(),
            Some(before) => vec![up[before]],
        };
        let kept: Kept = vec![from.memory.clone(), lease.clone()];
        let (_, value) = source.enqueue(what, &waits, kept, |stream| {
            stream.download(
                &from.memory.memory,
                from.offset + at,
                length,
                lease.pinned(),
            )
        })?;
        down.push(source.ticket(value));
        let mut waits = vec![source.ticket(value)];
        if index == 0 {
            waits.extend(to.waits);
        }
        let kept: Kept = vec![to.memory.clone(), lease.clone()];
        let (_, value) = target.enqueue(what, &waits, kept, |stream| {
            stream.upload(lease.pinned(), &to.memory.memory, to.offset + at, length)
        })?;
        up.push(target.ticket(value));
    }
    let last = |tickets: &[Ticket], gpu: &Gpu| {
        let missing = || gpu.usage("a copy of no bytes");
        tickets.last().copied().ok_or_else(missing)
    };
    Ok(Copied {
        read: last(&down, &source.gpu)?,
        written: last(&up, &target.gpu)?,
    })
}
