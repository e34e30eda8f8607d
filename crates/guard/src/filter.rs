//! The tenant's seccomp filter: classic BPF that decides which calls are notified.
//!
//! The rules, each with its reason:
//! - Another ABI (i386, x32) gets `ENOSYS`: its numbers mean other calls.
//! - `ioctl`: by number whatever the type byte, since the driver looks at the low 8 bits and the size only. A pair
//!   (number, size) that the driver accepts is notified; with any other size the driver itself rejects the call, so
//!   terminals and other devices keep their ioctls at native speed.
//! - UVM requests are whole 32-bit words: those in the pass list run natively (their worst case is harmless whatever
//!   the memory says), every other small word is notified.
//! - `mmap`: managed memory is made by mapping the UVM file and by nothing else. Such a mapping must be shared,
//!   readable and writable, and its offset equals its address (the driver rejects any other, uvm.c), so the offset is
//!   never zero: shared mappings at offset 0, the common kind, are not notified.
//! - `seccomp` with a new listener gets `EBUSY`: the newest listener would win over ours.

use rm::{Abi, Decision, nr};

/// One classic BPF instruction (`struct sock_filter`).
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Instruction {
    code: u16,
    jump_true: u8,
    jump_false: u8,
    k: u32,
}

/// A finished filter.
#[derive(Clone, Debug)]
pub struct Program(Vec<Instruction>);

impl Program {
    /// The instructions, as the kernel takes them.
    pub fn instructions(&self) -> &[Instruction] {
        &self.0
    }
}

const LD_ABS: u16 = 0x20;
const JEQ: u16 = 0x15;
const JGE: u16 = 0x35;
const JSET: u16 = 0x45;
const AND: u16 = 0x54;
const RET: u16 = 0x06;

const RET_ALLOW: u32 = 0x7fff_0000;
const RET_NOTIFY: u32 = 0x7fc0_0000;
const RET_ERRNO: u32 = 0x0005_0000;

const AUDIT_ARCH_X86_64: u32 = 0xc000_003e;
/// Set in the number of an x32 call.
const X32_BIT: u32 = 0x4000_0000;

/// `struct seccomp_data`: nr@0 arch@4 instruction_pointer@8 args@16, little endian.
const NR: u32 = 0;
const ARCH: u32 = 4;
const fn arg_low(i: u32) -> u32 {
    16 + 8 * i
}
const fn arg_high(i: u32) -> u32 {
    arg_low(i) + 4
}

/// Number (bits 7:0) and size (bits 29:16) of an ioctl request, without type and direction.
pub const NUMBER_AND_SIZE: u32 = 0x3fff_00ff;

/// Largest UVM request word in use on any branch, apart from the named large ones.
const UVM_SMALL_WORDS: u32 = 0xff;

#[derive(Default)]
struct Assembler(Vec<Instruction>);

impl Assembler {
    fn load(&mut self, offset: u32) {
        self.0.push(Instruction {
            code: LD_ABS,
            jump_true: 0,
            jump_false: 0,
            k: offset,
        });
    }
    fn ret(&mut self, k: u32) {
        self.0.push(Instruction {
            code: RET,
            jump_true: 0,
            jump_false: 0,
            k,
        });
    }
    fn and(&mut self, k: u32) {
        self.0.push(Instruction {
            code: AND,
            jump_true: 0,
            jump_false: 0,
            k,
        });
    }
    /// If the accumulator equals `k`, return `verdict`.
    fn when_equal(&mut self, k: u32, verdict: u32) {
        self.0.push(Instruction {
            code: JEQ,
            jump_true: 0,
            jump_false: 1,
            k,
        });
        self.ret(verdict);
    }
    /// If the accumulator differs from `k`, return `verdict`.
    fn unless_equal(&mut self, k: u32, verdict: u32) {
        self.0.push(Instruction {
            code: JEQ,
            jump_true: 1,
            jump_false: 0,
            k,
        });
        self.ret(verdict);
    }
    /// If the accumulator is at least `k`, return `verdict`.
    fn when_at_least(&mut self, k: u32, verdict: u32) {
        self.0.push(Instruction {
            code: JGE,
            jump_true: 0,
            jump_false: 1,
            k,
        });
        self.ret(verdict);
    }
    /// If any bit of `k` is set, return `verdict`.
    fn when_any_bit(&mut self, k: u32, verdict: u32) {
        self.0.push(Instruction {
            code: JSET,
            jump_true: 0,
            jump_false: 1,
            k,
        });
        self.ret(verdict);
    }
    /// Runs `body` only if the accumulator equals `k`; `body` must return on every path.
    fn block_when_equal(&mut self, k: u32, body: impl FnOnce(&mut Assembler)) {
        self.block((JEQ, 1, 0), k, body);
    }
    /// Runs `body` only if the accumulator is less than `k`; `body` must return on every path.
    fn block_when_below(&mut self, k: u32, body: impl FnOnce(&mut Assembler)) {
        self.block((JGE, 0, 1), k, body);
    }
    /// A comparison that skips one instruction to get into `body`.
    fn block(
        &mut self,
        (code, jump_true, jump_false): (u16, u8, u8),
        k: u32,
        body: impl FnOnce(&mut Assembler),
    ) {
        let mut inner = Assembler::default();
        body(&mut inner);
        // A jump reaches 255 instructions; a long body is jumped over with an unconditional jump (32-bit offset).
        const JA: u16 = 0x05;
        self.0.push(Instruction {
            code,
            jump_true,
            jump_false,
            k,
        });
        self.0.push(Instruction {
            code: JA,
            jump_true: 0,
            jump_false: 0,
            k: inner.0.len() as u32,
        });
        self.0.append(&mut inner.0);
    }
}

/// The filter of a tenant on driver branch `abi`.
pub fn tenant_filter(abi: &Abi) -> Program {
    let mut a = Assembler::default();
    a.load(ARCH);
    a.unless_equal(AUDIT_ARCH_X86_64, RET_ERRNO | libc::ENOSYS as u32);
    a.load(NR);
    a.when_at_least(X32_BIT, RET_ERRNO | libc::ENOSYS as u32);
    a.block_when_equal(libc::SYS_ioctl as u32, |a| ioctl_rules(a, abi));
    a.block_when_equal(libc::SYS_mmap as u32, mmap_rules);
    a.block_when_equal(libc::SYS_seccomp as u32, seccomp_rules);
    a.ret(RET_ALLOW);
    Program(a.0)
}

/// A filter that allows the given calls of this ABI and fails every other with `EPERM`.
pub fn allow_list(calls: &[libc::c_long]) -> Program {
    let mut a = Assembler::default();
    a.load(ARCH);
    a.unless_equal(AUDIT_ARCH_X86_64, RET_ERRNO | libc::EPERM as u32);
    a.load(NR);
    for &call in calls {
        a.when_equal(call as u32, RET_ALLOW);
    }
    a.ret(RET_ERRNO | libc::EPERM as u32);
    Program(a.0)
}

/// Frontend calls that programs make most: they are compared first.
const COMMON: [u8; 3] = [nr::RM_CONTROL, nr::RM_ALLOC, nr::RM_FREE];

fn ioctl_rules(a: &mut Assembler, abi: &Abi) {
    // UVM words are compared whole, so that 42 (a UVM call) is not taken for RM number 0x2a.
    let uvm = |a: &mut Assembler, small: bool| {
        for call in abi.uvm_calls() {
            let verdict = match call.decision {
                Decision::Pass => RET_ALLOW,
                _ => RET_NOTIFY,
            };
            if (call.request <= UVM_SMALL_WORDS) == small {
                a.when_equal(call.request, verdict);
            }
        }
    };
    a.load(arg_low(1));
    a.block_when_below(UVM_SMALL_WORDS + 1, |a| {
        // FIBMAP and FIGETBSZ of any file system (linux/fs.h); the UVM driver routes neither.
        for word in [0, 1, 2] {
            a.when_equal(word, RET_ALLOW);
        }
        uvm(a, true);
        // A small word that the table lacks: notified, so that it is counted and refused.
        a.ret(RET_NOTIFY);
    });
    uvm(a, false);
    a.and(NUMBER_AND_SIZE);
    let common = abi.escapes().filter(|escape| COMMON.contains(&escape.nr));
    let others = abi.escapes().filter(|escape| !COMMON.contains(&escape.nr));
    for escape in common.chain(others) {
        for &size in escape.sizes {
            a.when_equal(u32::from(size) << 16 | u32::from(escape.nr), RET_NOTIFY);
        }
    }
    // Numbers that the driver accepts with any size.
    a.and(0xff);
    for &nr in rm::UNSIZED_ESCAPES {
        a.when_equal(u32::from(nr), RET_NOTIFY);
    }
    a.ret(RET_ALLOW);
}

fn mmap_rules(a: &mut Assembler) {
    const READ_WRITE: u32 = (libc::PROT_READ | libc::PROT_WRITE) as u32;
    const TYPE: u32 = 0x0f;
    a.load(arg_low(3));
    a.when_any_bit(libc::MAP_ANONYMOUS as u32, RET_ALLOW);
    a.and(TYPE);
    a.when_equal(libc::MAP_PRIVATE as u32, RET_ALLOW);
    a.load(arg_low(2));
    a.and(READ_WRITE);
    a.unless_equal(READ_WRITE, RET_ALLOW);
    a.load(arg_low(5));
    a.0.push(Instruction {
        code: JEQ,
        jump_true: 1,
        jump_false: 0,
        k: 0,
    });
    a.ret(RET_NOTIFY);
    a.load(arg_high(5));
    a.when_equal(0, RET_ALLOW);
    a.ret(RET_NOTIFY);
}

fn seccomp_rules(a: &mut Assembler) {
    const NEW_LISTENER: u32 = 1 << 3;
    a.load(arg_low(1));
    a.when_any_bit(NEW_LISTENER, RET_ERRNO | libc::EBUSY as u32);
    a.ret(RET_ALLOW);
}

/// What the filter does with a call: an interpreter of the few instructions in use, so that tests can ask without a
/// kernel.
#[cfg(test)]
pub(crate) fn verdict(program: &Program, syscall: u32, arch: u32, args: [u64; 6]) -> u32 {
    let mut data = [0u8; 64];
    data[0..4].copy_from_slice(&syscall.to_le_bytes());
    data[4..8].copy_from_slice(&arch.to_le_bytes());
    for (i, a) in args.iter().enumerate() {
        data[16 + 8 * i..24 + 8 * i].copy_from_slice(&a.to_le_bytes());
    }
    let (mut acc, mut pc) = (0u32, 0usize);
    loop {
        let i = program.0[pc];
        pc += 1;
        let jump = |yes: bool| if yes { i.jump_true } else { i.jump_false } as usize;
        match i.code {
            LD_ABS => {
                acc = u32::from_le_bytes(data[i.k as usize..i.k as usize + 4].try_into().unwrap())
            }
            AND => acc &= i.k,
            JEQ => pc += jump(acc == i.k),
            JGE => pc += jump(acc >= i.k),
            JSET => pc += jump(acc & i.k != 0),
            0x05 => pc += i.k as usize,
            RET => return i.k,
            other => panic!("instruction {other:#x} is not in use"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn program() -> Program {
        tenant_filter(rm::for_driver("580.159.04").unwrap().abi)
    }

    fn ioctl(request: u64) -> u32 {
        verdict(
            &program(),
            libc::SYS_ioctl as u32,
            AUDIT_ARCH_X86_64,
            [3, request, 0x1000, 0, 0, 0],
        )
    }

    fn mmap(prot: i32, flags: i32, offset: u64) -> u32 {
        verdict(
            &program(),
            libc::SYS_mmap as u32,
            AUDIT_ARCH_X86_64,
            [0, 4096, prot as u64, flags as u64, 3, offset],
        )
    }

    #[test]
    fn rm_calls_are_notified_whatever_type_direction_and_high_half() {
        assert_eq!(ioctl(0xc030_462b), RET_NOTIFY, "RM_ALLOC");
        assert_eq!(ioctl(0x0030_002b), RET_NOTIFY, "no type, no direction");
        assert_eq!(
            ioctl(0xdead_beef_c020_462a),
            RET_NOTIFY,
            "the kernel ignores the high half"
        );
        assert_eq!(
            ioctl(0xc020_5a2b),
            RET_NOTIFY,
            "RM_ALLOC in its 32-byte form, another type"
        );
        assert_eq!(ioctl(0xc010_46d3), RET_NOTIFY, "XFER_CMD wraps any other");
    }

    #[test]
    fn terminals_and_files_keep_their_ioctls() {
        for request in [
            libc::TCGETS,
            libc::TIOCGWINSZ,
            libc::FIONREAD,
            libc::FIOCLEX,
            libc::FIONBIO,
            libc::TIOCSCTTY,
        ] {
            assert_eq!(ioctl(request), RET_ALLOW, "{request:#x}");
        }
        assert_eq!(
            ioctl(0x5429),
            RET_ALLOW,
            "TIOCGSID: the number of RM_FREE without its size"
        );
        assert_eq!(
            ioctl(0x802c_542a),
            RET_ALLOW,
            "TCGETS2: the number of RM_CONTROL with another size"
        );
        assert_eq!(ioctl(2), RET_ALLOW, "FIGETBSZ");
    }

    #[test]
    fn threat_09_uvm_words_are_compared_whole() {
        for pass in [23u64, 24, 31, 42, 43, 44, 45, 46, 47, 51, 53, 72, 73] {
            assert_eq!(ioctl(pass), RET_ALLOW, "{pass}");
            assert_eq!(
                ioctl(pass | 0xffff_ffff_0000_0000),
                RET_ALLOW,
                "{pass}: the kernel ignores the high half"
            );
            assert_ne!(ioctl(pass | 0x0030_0000 | 0x4600), RET_ERRNO, "{pass}");
        }
        for notified in [
            25u64,
            26,
            27,
            28,
            29,
            30,
            33,
            34,
            37,
            38,
            39,
            65,
            66,
            68,
            70,
            75,
            78,
            0x3000_0001,
            200,
        ] {
            assert_eq!(ioctl(notified), RET_NOTIFY, "{notified}");
        }
        assert_eq!(ioctl(0x0020_002a), RET_NOTIFY, "RM_CONTROL is not UVM 42");
    }

    #[test]
    fn managed_mappings_are_notified_and_common_shared_ones_are_not() {
        let rw = libc::PROT_READ | libc::PROT_WRITE;
        assert_eq!(mmap(rw, libc::MAP_SHARED, 0x7f00_0000_0000), RET_NOTIFY);
        assert_eq!(mmap(rw, libc::MAP_SHARED_VALIDATE, 0x10000), RET_NOTIFY);
        assert_eq!(
            mmap(rw, libc::MAP_SHARED | libc::MAP_FIXED, 0x1_0000_0000),
            RET_NOTIFY,
            "low half zero"
        );
        assert_eq!(
            mmap(rw | libc::PROT_EXEC, libc::MAP_SHARED, 0x10000),
            RET_NOTIFY
        );
        assert_eq!(
            mmap(rw, libc::MAP_SHARED, 0),
            RET_ALLOW,
            "the offset of a managed mapping is its address"
        );
        assert_eq!(
            mmap(libc::PROT_READ, libc::MAP_SHARED, 0x10000),
            RET_ALLOW,
            "the driver wants it writable"
        );
        assert_eq!(mmap(rw, libc::MAP_PRIVATE, 0x10000), RET_ALLOW);
        assert_eq!(
            mmap(rw, libc::MAP_SHARED | libc::MAP_ANONYMOUS, 0x10000),
            RET_ALLOW
        );
    }

    #[test]
    fn other_abis_and_second_listeners_are_refused() {
        const I386: u32 = 0x4000_0003;
        assert_eq!(
            verdict(&program(), 54, I386, [0; 6]),
            RET_ERRNO | libc::ENOSYS as u32
        );
        let x32 = libc::SYS_ioctl as u32 | X32_BIT;
        assert_eq!(
            verdict(&program(), x32, AUDIT_ARCH_X86_64, [0; 6]),
            RET_ERRNO | libc::ENOSYS as u32
        );
        let seccomp = |flags| {
            verdict(
                &program(),
                libc::SYS_seccomp as u32,
                AUDIT_ARCH_X86_64,
                [1, flags, 0, 0, 0, 0],
            )
        };
        assert_eq!(seccomp(1 << 3), RET_ERRNO | libc::EBUSY as u32);
        assert_eq!(seccomp(1 << 3 | 1), RET_ERRNO | libc::EBUSY as u32);
        assert_eq!(seccomp(0), RET_ALLOW, "a tenant may filter itself further");
    }
}
