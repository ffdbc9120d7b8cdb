//! Malformed GGUF input: every class seen in public gives a typed error, without a panic and without
//! more memory than the file is long.
//!
//! A counting allocator measures the peak of each parse on its own thread.

#![allow(
    clippy::unwrap_used,
    reason = "helpers of tests may unwrap as tests do"
)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::fmt::Write as _;
use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use gemel_core::DType;
use gemel_core::dtype::DTypeError;
use gemel_engine::gguf::{Array, Gguf, GgufError, Metadata, Value};

/// What a parse may allocate beyond the length of the file: the directory of a real header, whose strings
/// and vectors take more in memory than on disk, and the text of an error.
const SLACK: usize = 24 << 10;

struct Counting;

thread_local! {
    static NOW: Cell<usize> = const { Cell::new(0) };
    static PEAK: Cell<usize> = const { Cell::new(0) };
}

fn count(more: usize, less: usize) {
    NOW.with(|now| {
        let n = (now.get() + more).saturating_sub(less);
        now.set(n);
        PEAK.with(|peak| peak.set(peak.get().max(n)));
    });
}

#[allow(
    unsafe_code,
    reason = "only a global allocator sees what a parse allocates"
)]
// SAFETY: every call is passed on to the system allocator unchanged; counting uses only thread-local
// cells that are initialised without allocating and have no destructor.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size(), 0);
        // SAFETY: the caller keeps the contract of `alloc`, which is the same.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        count(0, layout.size());
        // SAFETY: `ptr` came from `System` with this layout.
        unsafe { System.dealloc(ptr, layout) }
    }

    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        // Old and new block can exist at the same time.
        count(new_size, 0);
        count(0, layout.size());
        // SAFETY: `ptr` came from `System` with this layout; the caller keeps the rest of the contract.
        unsafe { System.realloc(ptr, layout, new_size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Result and peak of the bytes allocated by `f`, or `None` if it panicked.
fn measured<T>(f: impl FnOnce() -> T) -> Option<(T, usize)> {
    NOW.with(|now| now.set(0));
    PEAK.with(|peak| peak.set(0));
    let result = catch_unwind(AssertUnwindSafe(f)).ok()?;
    Some((result, PEAK.with(Cell::get)))
}

/// Parses, and requires that it neither panics nor allocates more than the file is long plus `SLACK`.
fn parse(what: &str, bytes: &[u8]) -> Result<Gguf, GgufError> {
    let (result, peak) =
        measured(|| Gguf::parse(bytes)).unwrap_or_else(|| panic!("{what}: panicked"));
    assert!(
        peak <= bytes.len() + SLACK,
        "{what}: {peak} bytes allocated for a file of {}",
        bytes.len()
    );
    if let Err(error) = &result {
        // Messages must not themselves fail, nor pass on kilobytes or control characters of the file.
        let message = error.to_string();
        assert!(
            message.len() < 700 && !message.contains(char::is_control),
            "{what}: {message:?}"
        );
    }
    result
}

#[test]
fn the_measurement_sees_allocations() {
    let ((), peak) = measured(|| drop(vec![0u8; 1 << 20])).unwrap();
    assert!(peak >= 1 << 20, "{peak}");
    assert!(measured(|| panic!("expected")).is_none(), "panics are seen");
}

/// Files put together field by field, so that each field can be wrong.
#[derive(Clone, Default)]
struct Raw(Vec<u8>);

impl Raw {
    fn new(version: u32, n_tensors: u64, n_keys: u64) -> Self {
        Self(b"GGUF".to_vec())
            .u32(version)
            .u64(n_tensors)
            .u64(n_keys)
    }

    fn bytes(mut self, bytes: &[u8]) -> Self {
        self.0.extend_from_slice(bytes);
        self
    }

    fn u32(self, x: u32) -> Self {
        self.bytes(&x.to_le_bytes())
    }

    fn u64(self, x: u64) -> Self {
        self.bytes(&x.to_le_bytes())
    }

    fn str(self, text: &[u8]) -> Self {
        self.u64(text.len() as u64).bytes(text)
    }

    /// Key and type of a pair; the value follows.
    fn key(self, key: &str, kind: u32) -> Self {
        self.str(key.as_bytes()).u32(kind)
    }

    fn tensor(self, name: &[u8], dims: &[u64], kind: u32, offset: u64) -> Self {
        let head = self.str(name).u32(dims.len() as u32);
        dims.iter()
            .fold(head, |raw, &dim| raw.u64(dim))
            .u32(kind)
            .u64(offset)
    }

    fn pad(mut self, alignment: usize) -> Self {
        self.0.resize(self.0.len().next_multiple_of(alignment), 0);
        self
    }

    fn zeros(self, n: usize) -> Self {
        self.bytes(&vec![0; n])
    }
}

/// One tensor of these dimensions and type, with `n_data` bytes behind the header.
fn one_tensor(dims: &[u64], kind: u32, offset: u64, n_data: usize) -> Vec<u8> {
    Raw::new(3, 1, 0)
        .tensor(b"t", dims, kind, offset)
        .pad(32)
        .zeros(n_data)
        .0
}

/// The inputs of all classes, and how many there were.
#[derive(Default)]
struct Check {
    n_inputs: usize,
}

impl Check {
    /// Requires an error that `is_right` accepts.
    fn fails(&mut self, class: &str, bytes: &[u8], is_right: impl Fn(&GgufError) -> bool) {
        self.n_inputs += 1;
        match parse(class, bytes) {
            Ok(_) => panic!("{class}: input {} is accepted", self.n_inputs),
            Err(error) => assert!(
                is_right(&error),
                "{class}: input {}: {error:?}",
                self.n_inputs
            ),
        }
    }
}

/// Values at the borders where unchecked arithmetic wraps.
const HUGE: [u64; 9] = [
    1 << 31,
    1 << 32,
    1 << 40,
    (1 << 42) + 1,
    1 << 61,
    i64::MAX as u64,
    1 << 63,
    u64::MAX - 7,
    u64::MAX,
];

/// Element sizes of the array types, by type id.
const ELEMENTS: [(u32, u64); 11] = [
    (0, 1),
    (1, 1),
    (2, 2),
    (3, 2),
    (4, 4),
    (5, 4),
    (6, 4),
    (7, 1),
    (10, 8),
    (11, 8),
    (12, 8),
];

fn header_classes(check: &mut Check) {
    let whole = Raw::new(3, 0, 0).0;
    for n in 0..4 {
        check.fails(
            "shorter than the magic (CVE-2024-39720)",
            &whole[..n],
            |e| matches!(e, GgufError::TooShort { .. }),
        );
    }
    for n in 4..24 {
        check.fails("shorter than the header", &whole[..n], |e| {
            matches!(e, GgufError::TooShort { .. })
        });
    }
    for magic in [
        b"GGML",
        b"gguf",
        b"FUGG",
        b"PK\x03\x04",
        b"\0\0\0\0",
        b"\xff\xff\xff\xff",
    ] {
        let mut bytes = whole.clone();
        bytes[..4].copy_from_slice(magic);
        check.fails("another magic", &bytes, |e| {
            matches!(e, GgufError::NotGguf { .. })
        });
    }
    for version in [1, 2, 3] {
        check.fails(
            "big-endian",
            &Raw::new(u32::swap_bytes(version), 0, 0).0,
            |e| matches!(e, GgufError::ByteOrder { .. }),
        );
    }
    for version in [0, 1, 4, 5, 255, 0xffff, u32::MAX] {
        check.fails("unknown version", &Raw::new(version, 0, 0).0, |e| {
            matches!(e, GgufError::Version { .. })
        });
    }
}

fn count_classes(check: &mut Check) {
    let limit_or_truncated =
        |e: &GgufError| matches!(e, GgufError::Limit { .. } | GgufError::Truncated { .. });
    // u64::MAX / size + 1 elements of `size` bytes need 0 bytes after wrapping.
    let wrapping = [13, 14, 24, 32, 33, 56, 88].map(|size| u64::MAX / size + 1);
    for n in [1, 2, 1000, 1 << 16, 1 << 17, (1 << 17) + 1]
        .into_iter()
        .chain(HUGE)
        .chain(wrapping)
    {
        check.fails(
            "tensor count unchecked, or times record size wraps (CVE-2024-23496)",
            &Raw::new(3, n, 0).0,
            limit_or_truncated,
        );
        check.fails(
            "key count unchecked, or times record size wraps (CVE-2024-21802)",
            &Raw::new(3, 0, n).0,
            limit_or_truncated,
        );
        let with_room = Raw::new(3, n, n).zeros(136).0;
        check.fails(
            "counts near the maximum in a 160-byte file",
            &with_room,
            |e| limit_or_truncated(e) || (n < 4 && matches!(e, GgufError::Name { .. })),
        );
    }
    // Room for each count alone, but not for both.
    let both = Raw::new(3, 3, 8).zeros(112).0;
    check.fails("counts that fit one at a time", &both, |e| {
        matches!(e, GgufError::Truncated { .. })
    });
}

fn string_classes(check: &mut Check) {
    let limit_or_truncated =
        |e: &GgufError| matches!(e, GgufError::Limit { .. } | GgufError::Truncated { .. });
    for n in [
        9,
        100,
        0xffff,
        0x1_0000,
        (64 << 20) - 1,
        64 << 20,
        (64 << 20) + 1,
    ]
    .into_iter()
    .chain(HUGE)
    {
        let key = Raw::new(3, 0, 1).u64(n).bytes(b"abcdefgh").0;
        check.fails(
            "key length unchecked, or + 1 wraps",
            &key,
            limit_or_truncated,
        );
        let value = Raw::new(3, 0, 1).key("k", 8).u64(n).bytes(b"abcdefgh").0;
        check.fails(
            "string length unchecked (CVE-2024-21825)",
            &value,
            limit_or_truncated,
        );
        let element = Raw::new(3, 0, 1)
            .key("k", 9)
            .u32(8)
            .u64(2)
            .str(b"fine")
            .u64(n)
            .bytes(b"abcdefgh")
            .0;
        check.fails(
            "string in an array reaches beyond the file",
            &element,
            limit_or_truncated,
        );
        let name = Raw::new(3, 1, 0).u64(n).zeros(32).0;
        check.fails(
            "tensor name length unchecked (CVE-2024-23605)",
            &name,
            |e| limit_or_truncated(e) || (n < 32 && matches!(e, GgufError::Name { .. })),
        );
    }

    let long = "k".repeat(65_536);
    let key = Raw::new(3, 0, 1).key(&long, 0).bytes(&[1]).0;
    check.fails("key longer than 65535 bytes", &key, |e| {
        matches!(e, GgufError::Limit { .. })
    });
    for key in [
        "",
        "white space",
        "new\nline",
        "nul\0",
        "esc\x1b[31m",
        "d\u{e9}j\u{e0}",
        "\u{7f}",
    ] {
        let bytes = Raw::new(3, 0, 1).key(key, 0).bytes(&[1]).0;
        check.fails("empty key, or characters no key has", &bytes, |e| {
            // The empty key needs a byte less than the shortest pair.
            matches!(e, GgufError::Name { .. })
                || (key.is_empty() && matches!(e, GgufError::Truncated { .. }))
        });
    }
    let empty = Raw::new(3, 0, 1).key("", 4).u32(1).0;
    check.fails("empty key", &empty, |e| {
        matches!(
            e,
            GgufError::Name {
                problem: "is empty",
                ..
            }
        )
    });
    let twice = Raw::new(3, 0, 3)
        .key("a", 0)
        .bytes(&[1])
        .key("b", 0)
        .bytes(&[1])
        .key("a", 7)
        .bytes(&[1])
        .0;
    check.fails(
        "duplicate key",
        &twice,
        |e| matches!(e, GgufError::DuplicateKey { key } if key == "a"),
    );

    let bad: [&[u8]; 4] = [b"\xff", b"ab\x80", b"\xc0\xaf", b"\xed\xa0\x80"];
    for text in bad {
        let is_utf8 = |e: &GgufError| matches!(e, GgufError::Utf8 { .. });
        check.fails(
            "key is not UTF-8",
            &Raw::new(3, 0, 1).str(text).u32(0).bytes(&[1]).0,
            is_utf8,
        );
        check.fails(
            "string is not UTF-8",
            &Raw::new(3, 0, 1).key("k", 8).str(text).0,
            is_utf8,
        );
        let array = Raw::new(3, 0, 1)
            .key("k", 9)
            .u32(8)
            .u64(2)
            .str(b"ok")
            .str(text)
            .0;
        check.fails("string in an array is not UTF-8", &array, is_utf8);
        let name = Raw::new(3, 1, 0)
            .tensor(text, &[1], 0, 0)
            .pad(32)
            .zeros(32)
            .0;
        check.fails("tensor name is not UTF-8", &name, is_utf8);
    }
}

fn value_classes(check: &mut Check) {
    for kind in [13, 14, 100, 255, 0x8000_0000, u32::MAX] {
        let is_type = |e: &GgufError| matches!(e, GgufError::ValueType { id, .. } if *id == kind);
        check.fails(
            "unknown value type",
            &Raw::new(3, 0, 1).key("k", kind).zeros(64).0,
            is_type,
        );
        let array = Raw::new(3, 0, 1).key("k", 9).u32(kind).u64(1).zeros(64).0;
        check.fails("unknown element type", &array, is_type);
    }
    for byte in [2, 0x7f, 0x80, 255] {
        let is_bool = |e: &GgufError| matches!(e, GgufError::Bool { found, .. } if *found == byte);
        check.fails(
            "bool neither 0 nor 1",
            &Raw::new(3, 0, 1).key("k", 7).bytes(&[byte]).0,
            is_bool,
        );
        let array = Raw::new(3, 0, 1)
            .key("k", 9)
            .u32(7)
            .u64(3)
            .bytes(&[1, 0, byte])
            .0;
        check.fails("bool in an array neither 0 nor 1", &array, is_bool);
    }
    let mut nested = Raw::new(3, 0, 1).key("k", 9);
    for depth in [1, 2, 10, 10_000] {
        while nested.0.len() < 36 + 12 * depth {
            nested = nested.u32(9).u64(1);
        }
        let bytes = nested.clone().u32(0).u64(1).bytes(&[7]).0;
        check.fails("nested arrays, unbounded recursion", &bytes, |e| {
            matches!(e, GgufError::NestedArray { .. })
        });
    }

    for (kind, size) in ELEMENTS.into_iter().chain([(8, 8)]) {
        let wrapping = (u64::MAX / size).saturating_add(1);
        for n in [
            5,
            1 << 20,
            1 << 24,
            (1 << 24) + 1,
            wrapping,
            wrapping.saturating_add(1),
        ]
        .into_iter()
        .chain(HUGE)
        {
            // Room for four elements.
            let bytes = Raw::new(3, 0, 1)
                .key("k", 9)
                .u32(kind)
                .u64(n)
                .zeros(4 * size as usize)
                .0;
            check.fails(
                "array length unchecked, near the maximum, or times element size wraps",
                &bytes,
                |e| matches!(e, GgufError::Limit { .. } | GgufError::Truncated { .. }),
            );
        }
    }
    for (kind, size) in ELEMENTS {
        let bytes = Raw::new(3, 0, 1).key("k", kind).zeros(size as usize - 1).0;
        check.fails("value cut off", &bytes, |e| {
            matches!(e, GgufError::Truncated { .. })
        });
    }
}

fn alignment_classes(check: &mut Check) {
    let aligned = |kind: u32, value: &[u8]| {
        let head = Raw::new(3, 1, 1)
            .key("general.alignment", kind)
            .bytes(value);
        head.tensor(b"t", &[8], 0, 0).pad(32).zeros(64).0
    };
    let is_alignment = |e: &GgufError| matches!(e, GgufError::Alignment { .. });
    for a in [
        0,
        1,
        2,
        3,
        4,
        7,
        12,
        24,
        31,
        33,
        48,
        65_535,
        1 << 17,
        1 << 30,
        1 << 31,
        u32::MAX,
    ] {
        check.fails(
            "alignment 0, no power of two, or huge",
            &aligned(4, &a.to_le_bytes()),
            is_alignment,
        );
    }
    for (kind, size) in ELEMENTS.into_iter().filter(|&(kind, _)| kind != 4) {
        let mut value = vec![0; size as usize];
        value[0] = if kind == 7 { 1 } else { 32 };
        check.fails(
            "alignment of the wrong type",
            &aligned(kind, &value),
            is_alignment,
        );
    }
    let text = Raw::default().str(b"32").0;
    check.fails(
        "alignment of the wrong type",
        &aligned(8, &text),
        is_alignment,
    );
    let array = Raw::default().u32(4).u64(1).u32(32).0;
    check.fails(
        "alignment of the wrong type",
        &aligned(9, &array),
        is_alignment,
    );
}

fn shape_classes(check: &mut Check) {
    for n_dims in [0, 5, 6, 255, 1 << 16, 0x7fff_ffff, 0x8000_0000, u32::MAX] {
        let bytes = Raw::new(3, 1, 0).str(b"t").u32(n_dims).zeros(256).0;
        check.fails(
            "more axes than any fixed array, or none",
            &bytes,
            |e| matches!(e, GgufError::NDims { found, .. } if *found == n_dims),
        );
    }
    for axis in 0..4 {
        let mut dims = [32; 4];
        dims[axis] = 0;
        for kind in [0, 2, 12] {
            check.fails(
                "zero dimension, division by zero",
                &one_tensor(&dims, kind, 0, 64),
                |e| matches!(e, GgufError::Dim { axis: a, found: 0, .. } if *a == axis as u32),
            );
        }
        for dim in [
            (1 << 40) + 1,
            (1 << 42) + 1,
            1 << 61,
            1 << 62,
            1 << 63,
            u64::MAX - 255,
            u64::MAX,
        ] {
            let mut dims = [1; 4];
            dims[axis] = dim;
            check.fails(
                "dimension such as 2^42 + 1 (CVE-2026-33298)",
                &one_tensor(&dims, 0, 0, 64),
                |e| matches!(e, GgufError::Dim { found, .. } if *found == dim),
            );
        }
    }
    let wrapping: [&[u64]; 7] = [
        &[1 << 32, 1 << 32],
        &[1 << 40, 1 << 40],
        &[1 << 40, 1 << 13],
        &[1 << 40, 1 << 24, 1],
        &[1 << 16, 1 << 16, 1 << 16, 1 << 16],
        &[1 << 40, 1 << 40, 1 << 40, 1 << 40],
        &[(1 << 32) + 256, 1 << 32],
    ];
    for dims in wrapping {
        for kind in [0, 8, 14, 28] {
            check.fails(
                "product of dimensions wraps (CVE-2025-53630)",
                &one_tensor(dims, kind, 0, 64),
                |e| matches!(e, GgufError::TooLarge { .. }),
            );
        }
    }
    let large: [&[u64]; 4] = [
        &[1 << 40],
        &[1 << 40, 1 << 12],
        &[1 << 26, 1 << 26],
        &[17 * 256, 1 << 40],
    ];
    for dims in large {
        for kind in [0, 8, 12, 28] {
            check.fails(
                "large but no wrap, file too short",
                &one_tensor(dims, kind, 0, 64),
                |e| {
                    // On a 32-bit machine such a size cannot even be held.
                    matches!(e, GgufError::OutOfFile { .. } | GgufError::TooLarge { .. })
                },
            );
        }
    }
    for kind in 0..43 {
        let Ok(dtype) = DType::from_gguf_id(kind) else {
            continue;
        };
        let block = dtype.block_elems() as u64;
        if block == 1 {
            continue;
        }
        for row in [1, block / 2, block - 1, block + 1, 3 * block - 1] {
            check.fails(
                "row is no multiple of the block",
                &one_tensor(&[row, block], kind, 0, 1 << 10),
                |e| matches!(e, GgufError::RowNotBlocks { found, .. } if *found == row),
            );
        }
    }
}

fn type_classes(check: &mut Check) {
    for (kinds, which) in [
        (vec![4, 5, 31, 32, 33, 36, 37, 38], "removed"),
        (vec![9, 15], "internal"),
        (
            vec![
                43,
                44,
                100,
                255,
                256,
                0x7fff_ffff,
                0x8000_0000,
                0xffff_fffe,
                u32::MAX,
            ],
            "unknown or negative",
        ),
    ] {
        for kind in kinds {
            check.fails(
                &format!("{which} tensor type"),
                &one_tensor(&[256], kind, 0, 1 << 12),
                |e| {
                    matches!(
                        (e, which),
                        (
                            GgufError::DType {
                                source: DTypeError::Removed { .. },
                                ..
                            },
                            "removed"
                        ) | (
                            GgufError::DType {
                                source: DTypeError::Internal { .. },
                                ..
                            },
                            "internal"
                        ) | (
                            GgufError::DType {
                                source: DTypeError::Unknown { .. },
                                ..
                            },
                            "unknown or negative"
                        )
                    )
                },
            );
        }
    }
}

fn place_classes(check: &mut Check) {
    for offset in [
        1,
        4,
        8,
        16,
        31,
        33,
        48,
        (1 << 32) + 1,
        u64::MAX - 1,
        u64::MAX,
    ] {
        check.fails(
            "offset is not aligned",
            &one_tensor(&[8], 0, offset, 64),
            |e| matches!(e, GgufError::Misaligned { .. }),
        );
    }
    let near_the_end = [
        32,
        64,
        96,
        1 << 20,
        1 << 32,
        1 << 62,
        1 << 63,
        u64::MAX - 63,
        u64::MAX - 31,
    ];
    for offset in near_the_end {
        check.fails(
            "offset + size beyond the file, or wraps (CVE-2026-7482)",
            &one_tensor(&[9], 0, offset, 64),
            |e| matches!(e, GgufError::OutOfFile { .. }),
        );
    }
    for n_data in [0, 1, 31, 35] {
        check.fails("data cut off", &one_tensor(&[9], 0, 0, n_data), |e| {
            matches!(e, GgufError::OutOfFile { .. })
        });
    }
    let no_padding = Raw::new(3, 1, 0).tensor(b"t", &[1], 24, 0).0;
    check.fails("file ends before the data section", &no_padding, |e| {
        matches!(e, GgufError::OutOfFile { .. })
    });
    // Each fits the rules of a tensor; padded and added up they pass 2^64.
    let mut many = Raw::new(3, 512, 0);
    for i in 0..512u64 {
        many = many.tensor(
            format!("t{i}").as_bytes(),
            &[1 << 40, (1 << 12) + (1 << 11)],
            28,
            i << 55,
        );
    }
    check.fails(
        "sum of padded sizes wraps (CVE-2025-53630, CVE-2026-27940)",
        &many.pad(32).zeros(128 << 10).0,
        |e| matches!(e, GgufError::OutOfFile { .. } | GgufError::TooLarge { .. }),
    );

    // (offset, elements) of two tensors of f32.
    for pair in [
        [(0, 8), (0, 8)],
        [(0, 9), (32, 8)],
        [(32, 8), (0, 16)],
        [(0, 40), (64, 1)],
        [(96, 1), (0, 33)],
    ] {
        let mut raw = Raw::new(3, 2, 0);
        for (i, (offset, n)) in pair.into_iter().enumerate() {
            raw = raw.tensor(format!("t{i}").as_bytes(), &[n], 0, offset);
        }
        check.fails("tensors overlap", &raw.pad(32).zeros(256).0, |e| {
            matches!(e, GgufError::Overlap { .. })
        });
    }
    let twice = Raw::new(3, 3, 0)
        .tensor(b"a", &[1], 0, 0)
        .tensor(b"b", &[1], 0, 32)
        .tensor(b"a", &[1], 0, 64);
    check.fails(
        "duplicate tensor",
        &twice.pad(32).zeros(96).0,
        |e| matches!(e, GgufError::DuplicateTensor { name } if name == "a"),
    );
    let long = [b'x'; 64];
    let names: [&[u8]; 6] = [
        b"",
        b"nul\0",
        b"new\nline",
        b"esc\x1b[2J",
        b"\xc2\x85",
        &long,
    ];
    for name in names {
        let bytes = Raw::new(3, 1, 0)
            .tensor(name, &[1, 1], 0, 0)
            .pad(32)
            .zeros(32)
            .0;
        check.fails(
            "tensor name empty, too long or with control characters",
            &bytes,
            |e| matches!(e, GgufError::Name { .. }),
        );
    }
}

#[test]
fn every_known_class_is_a_typed_error() {
    let mut check = Check::default();
    header_classes(&mut check);
    count_classes(&mut check);
    string_classes(&mut check);
    value_classes(&mut check);
    alignment_classes(&mut check);
    shape_classes(&mut check);
    type_classes(&mut check);
    place_classes(&mut check);
    assert!(check.n_inputs >= 500, "only {} inputs", check.n_inputs);
}

/// The same builders without a fault: the errors above come from the faults, not from the builders.
#[test]
fn the_same_files_without_the_fault_are_accepted() {
    parse("empty", &Raw::new(3, 0, 0).0).unwrap();
    parse("version 2", &Raw::new(2, 0, 0).0).unwrap();
    parse("tensor", &one_tensor(&[8], 0, 0, 32)).unwrap();
    parse("at an offset", &one_tensor(&[8], 0, 32, 64)).unwrap();
    parse("no padding at the end", &one_tensor(&[9], 0, 0, 36)).unwrap();
    for (kind, size) in ELEMENTS.into_iter().chain([(8, 8)]) {
        let four = Raw::new(3, 0, 1)
            .key("k", 9)
            .u32(kind)
            .u64(4)
            .zeros(4 * size as usize)
            .0;
        let gguf = parse("array", &four).unwrap();
        assert!(
            matches!(gguf.metadata.get("k"), Some(Value::Array(array)) if array.len() == 4),
            "{kind}"
        );
    }
    for a in [8u32, 16, 32, 4096, 65_536] {
        let head = Raw::new(3, 2, 1).key("general.alignment", 4).u32(a);
        let head = head
            .tensor(b"t", &[1], 0, 0)
            .tensor(b"u", &[1], 0, a.into());
        let gguf = parse("alignment", &head.pad(a as usize).zeros(a as usize + 4).0).unwrap();
        assert!(gguf.tensors()[0].offset.is_multiple_of(a.into()), "{a}");
    }
    let name = [b'x'; 63];
    let gap = Raw::new(3, 2, 0)
        .tensor(&name, &[1], 0, 128)
        .tensor(b"u", &[32, 1, 1, 3], 8, 0)
        .pad(32)
        .zeros(256)
        .0;
    let gguf = parse("gap, order and four axes", &gap).unwrap();
    assert_eq!(gguf.tensor("u").unwrap().shape, [3, 1, 1, 32]);
    let keys = Raw::new(3, 0, 2)
        .key(&"k".repeat(65_535), 0)
        .bytes(&[1])
        .key("A/b-c.d", 7)
        .bytes(&[0])
        .0;
    parse("long key and odd characters", &keys).unwrap();
}

/// Dense but valid files take more in memory than on disk; the factor is bounded and small.
#[test]
fn memory_of_dense_files_is_bounded() {
    let strings = Raw::new(3, 0, 1)
        .key("k", 9)
        .u32(8)
        .u64(100_000)
        .zeros(800_000)
        .0;
    let mut keys = Raw::new(3, 0, 60_000);
    for i in 0..60_000 {
        keys = keys.key(&format!("{i:x}"), 0).bytes(&[0]);
    }
    let mut tensors = Raw::new(3, 60_000, 0);
    for i in 0..60_000u64 {
        tensors = tensors.tensor(format!("{i:x}").as_bytes(), &[1], 24, 32 * i);
    }
    let keys = keys.0;
    let directory = tensors.0.len();
    let tensors = tensors.pad(32).zeros(32 * 60_000).0;
    for (what, bytes, directory) in [
        ("strings", &strings, strings.len()),
        ("keys", &keys, keys.len()),
        ("tensors", &tensors, directory),
    ] {
        let (result, peak) = measured(|| Gguf::parse(bytes)).unwrap();
        result.unwrap();
        assert!(
            peak <= 6 * directory + SLACK,
            "{what}: {peak} bytes for {directory}"
        );
    }
    // Long lists that go wrong at their last element are not built at all.
    let mut damaged = Raw::new(3, 0, 1)
        .key("k", 9)
        .u32(8)
        .u64(100_000)
        .zeros(800_000)
        .0;
    let last = damaged.len() - 8;
    damaged[last] = 1;
    let (result, peak) = measured(|| Gguf::parse(&damaged)).unwrap();
    assert!(
        matches!(result, Err(GgufError::Truncated { .. })) && peak < SLACK,
        "{peak} bytes"
    );
}

/// Faults that only show when a key is used.
#[test]
fn hostile_hyper_parameters_are_typed_errors() {
    let mut m = Metadata::new();
    m.insert("a.block_count", Value::U64(u64::MAX));
    m.insert("a.heads", Value::I32(-4));
    m.insert("a.per_layer", Value::Array(Array::U32(vec![1; 7])));
    m.insert("a.per_layer_neg", Value::Array(Array::I32(vec![1, -1])));
    m.insert("a.eps", Value::F32(f32::NAN));
    m.insert("a.base", Value::F32(f32::INFINITY));
    m.insert(
        "tokenizer.ggml.scores",
        Value::Array(Array::String(vec!["0".into()])),
    );
    m.insert(
        "tokenizer.ggml.token_type",
        Value::Array(Array::F32(vec![1.0])),
    );
    m.insert("tokenizer.ggml.tokens", Value::Array(Array::U32(vec![1])));
    let errors = [
        (
            "block_count above any layer array",
            m.u32("a.block_count").unwrap_err(),
        ),
        ("negative head count", m.u32("a.heads").unwrap_err()),
        (
            "per-layer array too long",
            m.per_layer_u32("a.per_layer", 6).unwrap_err(),
        ),
        (
            "per-layer array too short",
            m.per_layer_u32("a.per_layer", 8).unwrap_err(),
        ),
        (
            "per-layer array negative",
            m.per_layer_u32("a.per_layer_neg", 2).unwrap_err(),
        ),
        ("NaN", m.f32("a.eps").unwrap_err()),
        ("infinity", m.f32("a.base").unwrap_err()),
        (
            "scores of the wrong type",
            m.f32s("tokenizer.ggml.scores").unwrap_err(),
        ),
        (
            "token types of the wrong type",
            m.i32s("tokenizer.ggml.token_type").unwrap_err(),
        ),
        (
            "tokens of the wrong type",
            m.strings("tokenizer.ggml.tokens").unwrap_err(),
        ),
    ];
    for (class, error) in errors {
        assert!(
            matches!(error, GgufError::BadValue { .. }),
            "{class}: {error:?}"
        );
    }
    m.insert("a.scalar", Value::U32(1));
    for n_layers in [1025, 1 << 40, usize::MAX] {
        let (result, peak) = measured(|| m.per_layer_u32("a.scalar", n_layers)).unwrap();
        assert!(
            result.is_err() && peak < SLACK,
            "{n_layers} layers: {peak} bytes"
        );
    }
}

/// A field of a real header: where it is, its size, and what it is.
struct Field {
    at: usize,
    n_bytes: usize,
    kind: FieldKind,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum FieldKind {
    Count,
    Length,
    ValueType,
    ArrayLength,
    NDims,
    Dim,
    TensorType,
    Offset,
}

/// Walks a valid header, written apart from the parser, and notes every field whose value can break it.
/// Returns the fields and where the header ends.
fn fields(bytes: &[u8]) -> (Vec<Field>, usize) {
    struct Walk<'a> {
        bytes: &'a [u8],
        at: usize,
        fields: Vec<Field>,
    }
    impl Walk<'_> {
        fn number(&mut self, n_bytes: usize, kind: FieldKind) -> usize {
            self.fields.push(Field {
                at: self.at,
                n_bytes,
                kind,
            });
            let mut le = [0; 8];
            le[..n_bytes].copy_from_slice(&self.bytes[self.at..self.at + n_bytes]);
            self.at += n_bytes;
            u64::from_le_bytes(le) as usize
        }
        fn text(&mut self) {
            let n = self.number(8, FieldKind::Length);
            self.at += n;
        }
    }
    const SIZES: [usize; 13] = [1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8];
    let mut w = Walk {
        bytes,
        at: 8,
        fields: Vec::new(),
    };
    let n_tensors = w.number(8, FieldKind::Count);
    let n_keys = w.number(8, FieldKind::Count);
    for _ in 0..n_keys {
        w.text();
        match w.number(4, FieldKind::ValueType) {
            8 => w.text(),
            9 => {
                let kind = w.number(4, FieldKind::ValueType);
                let n = w.number(8, FieldKind::ArrayLength);
                if kind == 8 {
                    (0..n).for_each(|_| w.text());
                } else {
                    w.at += n * SIZES[kind];
                }
            }
            kind => w.at += SIZES[kind],
        }
    }
    for _ in 0..n_tensors {
        w.text();
        let n_dims = w.number(4, FieldKind::NDims);
        for _ in 0..n_dims {
            w.number(8, FieldKind::Dim);
        }
        w.number(4, FieldKind::TensorType);
        w.number(8, FieldKind::Offset);
    }
    (w.fields, w.at)
}

fn golden(name: &str) -> Vec<u8> {
    fs::read(
        Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("tests/golden/tiny")
            .join(name),
    )
    .unwrap()
}

const GOLDEN: [&str; 5] = [
    "llama.gguf",
    "llama-Q4_K.gguf",
    "llama-IQ1_M.gguf",
    "qwen3.gguf",
    "gemma3.gguf",
];

/// Every field of a real header, set to values it cannot have, is an error.
#[test]
fn every_field_of_a_real_header_is_checked() {
    let mut n_inputs = 0;
    for name in GOLDEN {
        let mut bytes = golden(name);
        parse(name, &bytes).unwrap();
        let (fields, end) = fields(&bytes);
        assert!(
            end < bytes.len() && fields.len() > 400,
            "{name}: {} fields",
            fields.len()
        );
        for field in fields {
            let values: &[u64] = match field.kind {
                FieldKind::Count | FieldKind::Length | FieldKind::ArrayLength => {
                    &[1 << 27, 1 << 40, 1 << 61, 1 << 63, u64::MAX]
                }
                FieldKind::ValueType => &[13, 99, 0xffff_ffff],
                FieldKind::NDims => &[0, 5, 0xffff_ffff],
                FieldKind::Dim => &[0, (1 << 40) + 1, 1 << 63, u64::MAX],
                FieldKind::TensorType => &[4, 9, 33, 43, 0xffff_ffff],
                FieldKind::Offset => &[1, 1 << 40, 1 << 63, u64::MAX - 31, u64::MAX],
            };
            let range = field.at..field.at + field.n_bytes;
            let before = bytes[range.clone()].to_vec();
            for value in values {
                bytes[range.clone()].copy_from_slice(&value.to_le_bytes()[..field.n_bytes]);
                let mut what = String::new();
                write!(
                    what,
                    "{name}: {:?} at {} set to {value:#x}",
                    field.kind, field.at
                )
                .unwrap();
                let result = parse(&what, &bytes);
                assert!(result.is_err(), "{what}: accepted");
                n_inputs += 1;
            }
            bytes[range].copy_from_slice(&before);
        }
        parse(name, &bytes).unwrap();
    }
    assert!(n_inputs > 5000, "only {n_inputs} inputs");
}

/// A real file cut off anywhere in its header, or in its data, is an error.
#[test]
fn every_truncation_is_an_error() {
    for name in GOLDEN {
        let bytes = golden(name);
        let (_, end) = fields(&bytes);
        let in_header = (0..end).step_by(if name == GOLDEN[0] { 1 } else { 7 });
        for n in in_header.chain((end..bytes.len() - 32).step_by(bytes.len() / 50)) {
            assert!(
                parse(name, &bytes[..n]).is_err(),
                "{name}: accepted with {n} bytes"
            );
        }
    }
}

/// Single flipped bytes: any result, but no panic and no excess memory.
#[test]
fn flipped_bytes_do_no_harm() {
    for name in GOLDEN {
        let mut bytes = golden(name);
        let (_, end) = fields(&bytes);
        for (at, flip) in (0..end)
            .step_by(3)
            .zip([0x01, 0x80, 0xff, 0x20].into_iter().cycle())
        {
            bytes[at] ^= flip;
            let _any = parse(name, &bytes);
            bytes[at] ^= flip;
        }
    }
}

/// Several random bytes at once, in the header alone, so that the bound on memory is tight.
#[test]
fn random_damage_does_no_harm() {
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    let mut random = |below: usize| {
        // Xorshift, Marsaglia 2003.
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state % below as u64) as usize
    };
    for name in GOLDEN {
        let whole = golden(name);
        let (fields, end) = fields(&whole);
        for _ in 0..600 {
            let mut bytes = whole[..end].to_vec();
            for _ in 0..=random(6) {
                let at = match random(2) {
                    0 => random(end),
                    _ => fields[random(fields.len())].at + random(4),
                };
                bytes[at] = [0, 1, 0x7f, 0x80, 0xff, random(256) as u8][random(6)];
            }
            assert!(
                parse(name, &bytes).is_err(),
                "{name}: a file without data is accepted"
            );
        }
    }
}
