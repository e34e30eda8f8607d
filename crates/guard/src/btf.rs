//! What the kernel says of its own functions and structures (BTF): the number of a function, and where a field lies.
//! The format is in the kernel's document "BPF Type Format".

use std::io;

const MAGIC: u16 = 0xeb9f;
const KIND_STRUCT: u32 = 4;
const KIND_FUNCTION: u32 = 12;

/// The kernel's types.
#[derive(Debug)]
pub struct Types {
    bytes: Vec<u8>,
    types: (usize, usize),
    names: usize,
}

/// One type: its number, kind, name, and where its members begin.
struct Type {
    id: u32,
    kind: u32,
    name: usize,
    members: usize,
    count: usize,
    /// Members of this structure have a size in bits beside their place.
    bit_fields: bool,
}

impl Types {
    /// Those of the running kernel.
    ///
    /// # Errors
    /// The kernel was built without them.
    pub fn of_kernel() -> io::Result<Types> {
        Types::parse(std::fs::read("/sys/kernel/btf/vmlinux")?)
    }

    fn parse(bytes: Vec<u8>) -> io::Result<Types> {
        let found = (|| {
            let header = u32_at(&bytes, 4)? as usize;
            let (types, length) = (u32_at(&bytes, 8)? as usize, u32_at(&bytes, 12)? as usize);
            let types = header.checked_add(types)?;
            let names = header.checked_add(u32_at(&bytes, 16)? as usize)?;
            let magic = u16::from_le_bytes(bytes.get(..2)?.try_into().ok()?);
            (magic == MAGIC).then_some(((types, types.checked_add(length)?), names))
        })();
        let (types, names) =
            found.ok_or_else(|| io::Error::other("the kernel's types are of another format"))?;
        Ok(Types {
            bytes,
            types,
            names,
        })
    }

    /// The number of a function.
    pub fn function(&self, name: &str) -> Option<u32> {
        let mut all = self.all();
        all.find(|t| t.kind == KIND_FUNCTION && self.is_named(t.name, name))
            .map(|t| t.id)
    }

    /// Where a field of a structure lies, in bytes from its start.
    pub fn field(&self, structure: &str, field: &str) -> Option<u32> {
        const MEMBER: usize = 12;
        let mut all = self.all();
        let found = all.find(|t| t.kind == KIND_STRUCT && self.is_named(t.name, structure))?;
        let places = (0..found.count).map(|i| found.members + i * MEMBER);
        let at = places.into_iter().find(|&at| {
            u32_at(&self.bytes, at).is_some_and(|n| self.is_named(n as usize, field))
        })?;
        let place = u32_at(&self.bytes, at + 8)?;
        let bits = if found.bit_fields {
            place & 0x00ff_ffff
        } else {
            place
        };
        (bits % 8 == 0).then_some(bits / 8)
    }

    fn is_named(&self, at: usize, name: &str) -> bool {
        let text = self.bytes.get(self.names + at..).unwrap_or_default();
        text.strip_prefix(name.as_bytes())
            .is_some_and(|rest| rest.first() == Some(&0))
    }

    fn all(&self) -> impl Iterator<Item = Type> {
        let (mut at, end) = self.types;
        let mut id = 0;
        std::iter::from_fn(move || {
            if at >= end {
                return None;
            }
            let info = u32_at(&self.bytes, at + 4)?;
            let (kind, count) = (info >> 24 & 31, (info & 0xffff) as usize);
            id += 1;
            let found = Type {
                id,
                kind,
                name: u32_at(&self.bytes, at)? as usize,
                members: at + 12,
                count,
                bit_fields: info >> 31 != 0,
            };
            at += 12
                + match kind {
                    // An integer, a variable, a tag.
                    1 | 14 | 17 => 4,
                    // An array.
                    3 => 12,
                    // Structures and unions; sections of data; wide enumerations.
                    KIND_STRUCT | 5 | 15 | 19 => 12 * count,
                    // Enumerations; what functions take.
                    6 | 13 => 8 * count,
                    _ => 0,
                };
            Some(found)
        })
    }
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    let word = bytes.get(at..at.checked_add(4)?)?;
    Some(u32::from_le_bytes(word.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An integer, a structure with two fields and a function.
    fn small() -> Vec<u8> {
        let names = b"\0int\0file\0f_flags\0f_inode\0receive\0";
        let words: [u32; 19] = [
            1,
            1 << 24,
            4,
            0, // int
            5,
            1 << 31 | 4 << 24 | 2,
            16,
            10,
            1,
            0,
            18,
            1,
            64, // struct file
            0,
            2 << 24,
            1, // a pointer
            26,
            12 << 24,
            3, // a function
        ];
        let mut bytes = vec![0x9f, 0xeb, 1, 0];
        let types = 4 * words.len() as u32;
        for word in [24, 0, types, types, names.len() as u32] {
            bytes.extend_from_slice(&word.to_le_bytes());
        }
        words
            .iter()
            .for_each(|w| bytes.extend_from_slice(&w.to_le_bytes()));
        bytes.extend_from_slice(names);
        bytes
    }

    #[test]
    fn functions_and_fields_are_found() {
        let types = Types::parse(small()).unwrap();
        assert_eq!(types.function("receive"), Some(4));
        assert_eq!(types.function("recei"), None);
        assert_eq!(types.field("file", "f_inode"), Some(8));
        assert_eq!(types.field("file", "f_flags"), Some(0));
        assert_eq!(types.field("int", "f_flags"), None);
    }

    #[test]
    fn what_is_cut_short_or_of_another_kind_finds_nothing() {
        let whole = small();
        for length in 0..whole.len() {
            if let Ok(types) = Types::parse(whole[..length].to_vec()) {
                let _found = (types.function("receive"), types.field("file", "f_inode"));
            }
        }
        assert!(Types::parse(vec![0; 64]).is_err());
    }
}
