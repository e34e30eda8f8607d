//! The two programs of the device wall ([`crate::device_wall`]), instruction by instruction.

use crate::bpf::{Instruction, instruction};

// The instruction set's operations, as far as they are used.
const MOVE: u8 = 0xbf;
const MOVE_VALUE: u8 = 0xb7;
const ADD_VALUE: u8 = 0x07;
const AND_VALUE: u8 = 0x57;
const SHIFT_RIGHT: u8 = 0x77;
const LOAD_U16: u8 = 0x69;
const LOAD_U32: u8 = 0x61;
const LOAD_U64: u8 = 0x79;
const LOAD_MAP: u8 = 0x18;
const STORE_U32: u8 = 0x63;
const STORE_U64: u8 = 0x7b;
const IF_EQUAL: u8 = 0x15;
const IF_NOT_EQUAL: u8 = 0x55;
const CALL: u8 = 0x85;
const EXIT: u8 = 0x95;
/// `BPF_PSEUDO_MAP_FD`: the value of a [`LOAD_MAP`] is a descriptor.
const MAP_BY_FD: u8 = 1;

// Functions of the kernel.
const MAP_LOOKUP: i32 = 1;
const CURRENT_CGROUP_ID: i32 = 80;

// `struct bpf_cgroup_dev_ctx`: kind of device in the low, of access in the high half of the first word.
const ACCESS_TYPE: i16 = 0;
const MAJOR: i16 = 4;
const CHARACTER_DEVICE: i32 = 2;
const READ_OR_WRITE: i32 = 2 | 4;

/// The device program: 0 forbids, 1 allows.
pub fn program(majors: i32, groups: i32) -> Vec<Instruction> {
    let i = instruction;
    let mut code = vec![
        i(MOVE, 6, 1, 0, 0),
        i(LOAD_U32, 2, 6, ACCESS_TYPE, 0),
        i(MOVE, 3, 2, 0, 0),
        i(AND_VALUE, 2, 0, 0, 0xffff),
        i(IF_NOT_EQUAL, 2, 0, ALLOW, CHARACTER_DEVICE),
        i(SHIFT_RIGHT, 3, 0, 0, 16),
        i(AND_VALUE, 3, 0, 0, READ_OR_WRITE),
        i(IF_EQUAL, 3, 0, ALLOW, 0),
        i(LOAD_U32, 2, 6, MAJOR, 0),
    ];
    code.extend(is_outside(majors, groups));
    code.push(i(MOVE_VALUE, 0, 0, 0, 0));
    code.push(i(EXIT, 0, 0, 0, 0));
    allow_with(1, &mut code);
    code
}

/// Where the kernel keeps what is asked of a file, in bytes.
#[derive(Clone, Copy, Debug)]
pub struct FileFields {
    /// Of a file: its inode.
    pub inode: i16,
    /// Of an inode: its kind and mode.
    pub mode: i16,
    /// Of an inode: the device, twelve bits of major above twenty of minor.
    pub device: i16,
}

/// The program before `security_file_receive(file)`: 0 goes on to ask that function, anything else is its answer.
pub fn receive_program(majors: i32, groups: i32, fields: FileFields) -> Vec<Instruction> {
    let i = instruction;
    let mut code = vec![
        i(LOAD_U64, 6, 1, 0, 0),
        i(LOAD_U64, 7, 6, fields.inode, 0),
        i(LOAD_U16, 2, 7, fields.mode, 0),
        i(AND_VALUE, 2, 0, 0, libc::S_IFMT as i32),
        i(IF_NOT_EQUAL, 2, 0, ALLOW, libc::S_IFCHR as i32),
        i(LOAD_U32, 2, 7, fields.device, 0),
        i(SHIFT_RIGHT, 2, 0, 0, 20),
    ];
    code.extend(is_outside(majors, groups));
    code.push(i(MOVE_VALUE, 0, 0, 0, -libc::EPERM));
    code.push(i(EXIT, 0, 0, 0, 0));
    allow_with(0, &mut code);
    code
}

/// The frame of a program: what it stores lies below.
const FRAME: u8 = 10;

/// Goes on if register 2 holds a locked major and this process is in no slice's group.
fn is_outside(majors: i32, groups: i32) -> Vec<Instruction> {
    let i = instruction;
    let mut code = vec![i(STORE_U32, FRAME, 2, -4, 0)];
    code.extend(look_up(majors, -4));
    code.push(i(IF_EQUAL, 0, 0, ALLOW, 0));
    code.push(i(CALL, 0, 0, 0, CURRENT_CGROUP_ID));
    code.push(i(STORE_U64, FRAME, 0, -16, 0));
    code.extend(look_up(groups, -16));
    code.push(i(IF_NOT_EQUAL, 0, 0, ALLOW, 0));
    code
}

/// Looks up in a set what is stored there in the frame: register 0 is zero if it is not in the set.
fn look_up(set: i32, stored: i32) -> [Instruction; 5] {
    let i = instruction;
    [
        i(LOAD_MAP, 1, MAP_BY_FD, 0, set),
        i(0, 0, 0, 0, 0),
        i(MOVE, 2, FRAME, 0, 0),
        i(ADD_VALUE, 2, 0, 0, stored),
        i(CALL, 0, 0, 0, MAP_LOOKUP),
    ]
}

/// Ends a program with this answer, and leads there what is to be allowed.
fn allow_with(answer: i32, code: &mut Vec<Instruction>) {
    // Jumps count from the instruction behind them.
    let end = code.len();
    for (at, jump) in code.iter_mut().enumerate() {
        if jump.offset == ALLOW && matches!(jump.code, IF_EQUAL | IF_NOT_EQUAL) {
            jump.offset = (end - at - 1) as i16;
        }
    }
    code.push(instruction(MOVE_VALUE, 0, 0, 0, answer));
    code.push(instruction(EXIT, 0, 0, 0, 0));
}

/// Stands for the distance to the end, which is known when all is written.
const ALLOW: i16 = i16::MAX;

#[cfg(test)]
mod tests {
    use super::*;

    const NVIDIA: u64 = 195;
    const SLICE: u64 = 0x1_0000_0007;

    const FIELDS: FileFields = FileFields {
        inode: 32,
        mode: 0,
        device: 76,
    };

    fn answers(kind: u32, access: u32, major: u64, group: u64) -> u64 {
        let context = [(0, u64::from(access << 16 | kind)), (4, major)];
        run(&program(3, 4), &context, group)
    }

    /// What the second program answers about a file of this mode and device.
    fn receives(mode: u32, major: u64, group: u64) -> i64 {
        let memory = [
            (0, 0x1000),
            (0x1000 + 32, 0x2000),
            (0x2000, u64::from(mode)),
            (0x2000 + 76, major << 20 | 255),
        ];
        run(&receive_program(3, 4, FIELDS), &memory, group) as i64
    }

    /// Runs a program as the kernel does: with majors {195, 236}, one slice's group, and this in memory, where its
    /// context lies at address 0.
    fn run(code: &[Instruction], memory: &[(u64, u64)], group: u64) -> u64 {
        let (mut r, mut frame) = ([0u64; 11], [0u64; 17]);
        let mut at = 0;
        loop {
            let i = code[at];
            let (to, from) = (usize::from(i.registers & 15), usize::from(i.registers >> 4));
            let value = i.immediate as u64;
            at += 1;
            match i.code {
                MOVE => r[to] = r[from],
                MOVE_VALUE => r[to] = value,
                ADD_VALUE => r[to] = r[to].wrapping_add(value),
                AND_VALUE => r[to] &= value,
                SHIFT_RIGHT => r[to] >>= value,
                LOAD_U16 | LOAD_U32 | LOAD_U64 => {
                    let at = r[from].wrapping_add_signed(i.offset.into());
                    r[to] = memory.iter().find(|&&(a, _)| a == at).unwrap().1;
                }
                STORE_U32 | STORE_U64 => frame[-i.offset as usize] = r[from],
                LOAD_MAP => {
                    r[to] = value;
                    at += 1;
                }
                CALL if i.immediate == CURRENT_CGROUP_ID => r[0] = group,
                CALL => {
                    let key = frame[r[2].wrapping_neg() as usize];
                    r[0] = u64::from(match r[1] {
                        3 => [NVIDIA, 236].contains(&key),
                        _ => key == SLICE,
                    });
                }
                IF_EQUAL if r[to] == value => at = at.checked_add_signed(i.offset.into()).unwrap(),
                IF_NOT_EQUAL if r[to] != value => {
                    at = at.checked_add_signed(i.offset.into()).unwrap()
                }
                IF_EQUAL | IF_NOT_EQUAL => {}
                EXIT => return r[0],
                other => panic!("{other:#x}"),
            }
        }
    }

    #[test]
    fn threat_10_only_slices_receive_an_open_device() {
        let device = libc::S_IFCHR | 0o666;
        for major in [NVIDIA, 236] {
            assert_eq!(receives(device, major, 1), -i64::from(libc::EPERM));
            assert_eq!(receives(device, major, SLICE), 0);
            assert_eq!(receives(libc::S_IFBLK | 0o666, major, 1), 0);
        }
        assert_eq!(receives(device, 1, 1), 0);
        assert_eq!(receives(libc::S_IFREG | 0o666, 0, 1), 0);
    }

    #[test]
    fn threat_10_only_slices_open_the_drivers_devices() {
        for access in [2, 4, 6, 7] {
            for major in [NVIDIA, 236] {
                assert_eq!(answers(2, access, major, 1), 0, "{access} {major}");
                assert_eq!(answers(2, access, major, SLICE), 1, "{access} {major}");
                // Half of the slice's number is another group's.
                assert_eq!(answers(2, access, major, SLICE & 0xffff_ffff), 0);
            }
            // Other devices, block devices of the same number.
            assert_eq!(answers(2, access, 1, 1), 1);
            assert_eq!(answers(1, access, NVIDIA, 1), 1);
        }
        // Making a node.
        assert_eq!(answers(2, 1, NVIDIA, 1), 1);
    }
}
