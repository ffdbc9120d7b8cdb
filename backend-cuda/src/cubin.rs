//! What a cubin says about its kernels: registers, shared and local memory.
//!
//! A cubin is an ELF file of 64 bits. The section `.nv.info` is a list of attributes, each a form, a name, a length and
//! its bytes; two of them tell registers and stack of a function, named by its index in the symbol table. The section
//! `.nv.shared.KERNEL` has the size of the kernel's shared memory; from 9.0 on its first KiB is the system's.
//!
//! The section `.text.KERNEL` has the instructions, 16 bytes each. For estimates its loops are found, which are what
//! branches backwards span, and in them the instructions of the tensor cores are counted.
//!
//! # Source
//! ELF: System V ABI, chapter 4. Instructions: as `nvdisasm` shows them, for 7.5 to 9.0. The attributes are not documented; `cuobjdump --dump-elf` prints their names
//! (`EIATTR_REGCOUNT`, `EIATTR_FRAME_SIZE`), and a test compares with what `cuobjdump -res-usage` prints.

/// What one thread or block of a kernel takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Resources {
    /// Registers of a thread.
    pub registers: u32,
    /// Shared memory of a block that the source declares, in bytes; what the system keeps is not in it.
    pub shared_bytes: u32,
    /// Local memory of a thread, in bytes: registers that were spilled, and arrays that are indexed at run time.
    pub local_bytes: u32,
}

/// Attributes of `.nv.info`, and the form of those that have a length and bytes.
const SIZED: u8 = 4;
const REGISTER_COUNT: u8 = 0x2f;
const FRAME_SIZE: u8 = 0x11;

/// Bytes of a section's header.
const SECTION_HEADER: usize = 64;

/// From this major number on, the section of shared memory begins with what the system keeps.
const COUNTS_RESERVED: u32 = 9;
const RESERVED: u32 = 1 << 10;

/// What is wrong with a file that should be a cubin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Malformed(&'static str);

impl std::fmt::Display for Malformed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "not a cubin as NVRTC makes them: {}", self.0)
    }
}

impl std::error::Error for Malformed {}

/// Little-endian numbers at offsets of a text of bytes.
#[derive(Clone, Copy)]
struct Bytes<'a>(&'a [u8]);

impl<'a> Bytes<'a> {
    fn at(self, offset: usize, n: usize) -> Option<&'a [u8]> {
        self.0.get(offset..offset.checked_add(n)?)
    }

    fn u16(self, offset: usize) -> Option<u16> {
        self.at(offset, 2)?.try_into().ok().map(u16::from_le_bytes)
    }

    fn u32(self, offset: usize) -> Option<u32> {
        self.at(offset, 4)?.try_into().ok().map(u32::from_le_bytes)
    }

    fn size(self, offset: usize) -> Option<usize> {
        let bytes = self.at(offset, 8)?.try_into().ok()?;
        usize::try_from(u64::from_le_bytes(bytes)).ok()
    }

    /// The text from an offset to the next zero byte.
    fn text(self, offset: usize) -> Option<&'a str> {
        let rest = self.0.get(offset..)?;
        let end = rest.iter().position(|&byte| byte == 0)?;
        std::str::from_utf8(&rest[..end]).ok()
    }
}

/// A section's header.
#[derive(Clone, Copy)]
struct Section<'a> {
    name: &'a str,
    offset: usize,
    n_bytes: usize,
    link: usize,
}

impl<'a> Section<'a> {
    fn contents(&self, file: Bytes<'a>) -> Option<Bytes<'a>> {
        file.at(self.offset, self.n_bytes).map(Bytes)
    }
}

fn sections(file: Bytes<'_>) -> Option<Vec<Section<'_>>> {
    if file.at(0, 6)? != [0x7f, b'E', b'L', b'F', 2, 1] {
        return None;
    }
    let (table, entry) = (file.size(40)?, usize::from(file.u16(58)?));
    let (n, names) = (usize::from(file.u16(60)?), usize::from(file.u16(62)?));
    let header = |index: usize| table.checked_add(index.checked_mul(entry)?);
    let strings = Bytes(file.0.get(file.size(header(names)?.checked_add(24)?)?..)?);
    (0..n)
        .map(|index| {
            let at = header(index)?;
            // All of it, although not every field is read.
            file.at(at, SECTION_HEADER)?;
            Some(Section {
                name: strings.text(file.u32(at)? as usize)?,
                offset: file.size(at.checked_add(24)?)?,
                n_bytes: file.size(at.checked_add(32)?)?,
                link: file.u32(at.checked_add(40)?)? as usize,
            })
        })
        .collect()
}

/// The name of a symbol by its index.
fn symbol<'a>(file: Bytes<'a>, sections: &[Section<'a>], index: u32) -> Option<&'a str> {
    let table = sections.iter().find(|section| section.name == ".symtab")?;
    let at = 24 * index as usize;
    let name = table.contents(file)?.u32(at)? as usize;
    sections.get(table.link)?.contents(file)?.text(name)
}

/// What a kernel of a cubin takes.
///
/// # Errors
/// Not a cubin, or one without this kernel.
pub fn resources(image: &[u8], kernel: &str, compute: (u32, u32)) -> Result<Resources, Malformed> {
    let file = Bytes(image);
    let sections = sections(file).ok_or(Malformed("its section table cannot be read"))?;
    let info = sections
        .iter()
        .find(|section| section.name == ".nv.info")
        .and_then(|section| section.contents(file))
        .ok_or(Malformed("it has no .nv.info"))?;
    let attributes = attributes(file, &sections, info, kernel)
        .ok_or(Malformed("its .nv.info cannot be read"))?;
    let shared = sections
        .iter()
        .find(|section| section.name.strip_prefix(".nv.shared.") == Some(kernel))
        .map_or(0, |section| section.n_bytes as u32);
    Ok(Resources {
        registers: attributes
            .registers
            .ok_or(Malformed("it does not tell the kernel's registers"))?,
        shared_bytes: if compute.0 >= COUNTS_RESERVED {
            shared.saturating_sub(RESERVED)
        } else {
            shared
        },
        local_bytes: attributes
            .frame
            .ok_or(Malformed("it does not tell the kernel's stack"))?,
    })
}

/// A loop of a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Loop {
    /// Index of its first instruction.
    pub first: usize,
    /// Instructions of a turn in which no branch is taken but the last: each takes a warp one issue slot.
    pub instructions: usize,
    /// Of these, products on tensor cores.
    pub products: usize,
}

/// The lowest 12 bits of an instruction: a branch, and products of 16-bit floats and of bytes.
const BRANCH: u64 = 0x947;
const PRODUCTS: [u64; 2] = [0x23c, 0x237];

/// The loops of a kernel that have products on tensor cores, the smallest first.
///
/// # Errors
/// Not a cubin, or one without this kernel.
pub fn loops(image: &[u8], kernel: &str, compute: (u32, u32)) -> Result<Vec<Loop>, Malformed> {
    let file = Bytes(image);
    let sections = sections(file).ok_or(Malformed("its section table cannot be read"))?;
    let text = sections
        .iter()
        .find(|section| section.name.strip_prefix(".text.") == Some(kernel))
        .and_then(|section| section.contents(file))
        .ok_or(Malformed("it has no instructions of the kernel"))?;
    let words: Vec<u64> = text
        .0
        .chunks_exact(16)
        .filter_map(|instruction| Some(u64::from_le_bytes(instruction[..8].try_into().ok()?)))
        .collect();
    let mut found = Vec::new();
    for (at, &word) in words.iter().enumerate() {
        if word & 0xfff != BRANCH {
            continue;
        }
        // The distance from the next instruction in words of 4 bytes.
        let high = word.cast_signed() >> 34;
        let distance = if compute.0 >= COUNTS_RESERVED {
            (high << 8) | i64::from((word >> 16) as u8)
        } else {
            high
        };
        let target = i64::try_from(at + 1).unwrap_or(i64::MAX) + distance.div_euclid(4);
        let Some(first) = usize::try_from(target).ok().filter(|&first| first <= at) else {
            continue;
        };
        let body = &words[first..=at];
        let products = body
            .iter()
            .filter(|&word| PRODUCTS.contains(&(word & 0xfff)))
            .count();
        if products > 0 {
            found.push(Loop {
                first,
                instructions: body.len(),
                products,
            });
        }
    }
    found.sort_by_key(|found| (found.instructions, found.first));
    Ok(found)
}

#[derive(Default)]
struct Attributes {
    registers: Option<u32>,
    frame: Option<u32>,
}

fn attributes(
    file: Bytes<'_>,
    sections: &[Section<'_>],
    info: Bytes<'_>,
    kernel: &str,
) -> Option<Attributes> {
    let mut found = Attributes::default();
    let mut at = 0;
    while at < info.0.len() {
        let (form, name) = (info.at(at, 2)?[0], info.at(at, 2)?[1]);
        // Other forms have their value where this has its length.
        let n = if form == SIZED {
            usize::from(info.u16(at + 2)?)
        } else {
            0
        };
        let target = match name {
            REGISTER_COUNT => Some(&mut found.registers),
            FRAME_SIZE => Some(&mut found.frame),
            _ => None,
        };
        if let (Some(target), SIZED) = (target, form)
            && symbol(file, sections, info.u32(at + 4)?)? == kernel
        {
            *target = Some(info.u32(at + 8)?);
        }
        at += 4 + n;
    }
    Some(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_cubin_is_refused() {
        for bytes in [
            &b""[..],
            b"\x7fELF",
            b"//\n// Generated by NVIDIA NVVM Compiler",
        ] {
            assert!(resources(bytes, "k", (8, 0)).is_err(), "{bytes:?}");
        }
    }

    /// A file of the sections that are read, with one kernel.
    fn cubin() -> Vec<u8> {
        let strings = b"\0.shstrtab\0.strtab\0.symtab\0.nv.info\0.nv.shared.k\0k\0";
        let name = |text: &[u8]| {
            let at = strings.windows(text.len()).position(|w| w == text);
            at.unwrap() as u32
        };
        let mut symbols = vec![0; 24];
        symbols.extend(name(b"k\0").to_le_bytes());
        symbols.extend([0; 20]);
        let mut info = Vec::new();
        info.extend([3, 0x1b, 0xff, 0]);
        for (attribute, value) in [(REGISTER_COUNT, 40u32), (FRAME_SIZE, 24)] {
            info.extend([SIZED, attribute, 8, 0]);
            info.extend(1u32.to_le_bytes());
            info.extend(value.to_le_bytes());
        }
        let contents: [(&[u8], &[u8], u64); 5] = [
            (b"\0", b"", 0),
            (b".strtab\0", strings, strings.len() as u64),
            (b".symtab\0", &symbols, symbols.len() as u64),
            (b".nv.info\0", &info, info.len() as u64),
            (b".nv.shared.k\0", b"", 1024 + 512),
        ];
        let mut file = vec![0x7f, b'E', b'L', b'F', 2, 1];
        file.resize(64, 0);
        let mut headers = Vec::new();
        for (section, bytes, n) in contents {
            headers.extend(name(section).to_le_bytes());
            headers.extend([0; 20]);
            headers.extend((file.len() as u64).to_le_bytes());
            headers.extend(n.to_le_bytes());
            headers.extend(1u32.to_le_bytes());
            headers.extend([0; 20]);
            file.extend(bytes);
        }
        let table = file.len() as u64;
        file[40..48].copy_from_slice(&table.to_le_bytes());
        file[58..60].copy_from_slice(&64u16.to_le_bytes());
        file[60..62].copy_from_slice(&5u16.to_le_bytes());
        file[62..64].copy_from_slice(&1u16.to_le_bytes());
        file.extend(headers);
        file
    }

    #[test]
    fn attributes_belong_to_their_kernel() {
        let file = cubin();
        let expected = |shared_bytes| Resources {
            registers: 40,
            shared_bytes,
            local_bytes: 24,
        };
        assert_eq!(
            resources(&file, "k", (8, 0)),
            Ok(expected(1536)),
            "before 9.0"
        );
        assert_eq!(
            resources(&file, "k", (9, 0)),
            Ok(expected(512)),
            "from 9.0 on"
        );
        assert!(resources(&file, "other", (9, 0)).is_err(), "another kernel");
    }

    #[test]
    fn cut_and_damaged_files_are_errors() {
        let file = cubin();
        for n in 0..file.len() {
            assert!(
                resources(&file[..n], "k", (9, 0)).is_err(),
                "cut to {n} bytes"
            );
        }
        for at in 0..file.len() {
            let mut bad = file.clone();
            bad[at] ^= 0xff;
            // Whatever it says, it returns.
            let _ = resources(&bad, "k", (9, 0));
        }
    }
}
