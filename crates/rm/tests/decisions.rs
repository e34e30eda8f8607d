//! What is decided about calls, on every branch: what passes, what is charged, what is out of reach.

use rm::{Abi, Account, Answer, Charge, Decision, Kind, Status};

/// UVM calls that need no notification: they act on the caller's own addresses and take no memory that is not charged
/// already. Adding one here needs such a reason in its row.
const PASSED: [u32; 13] = [23, 24, 31, 42, 43, 44, 45, 46, 47, 51, 53, 72, 73];

/// The branch that ran on a card.
fn traced() -> &'static Abi {
    rm::for_driver("580.159.04").expect("branch 580").abi
}

/// An entry that the branch on the card has. On a branch without it the number is unknown, and so refused.
fn entry_of<T>(abi: &Abi, entry: Option<T>, number: impl std::fmt::Debug) -> Option<T> {
    assert!(
        entry.is_some() || abi.branch() != traced().branch(),
        "{number:?} is not there"
    );
    entry
}

fn reaches_the_driver(decision: Decision) -> bool {
    matches!(
        decision,
        Decision::Execute | Decision::InTenant | Decision::Pass
    )
}

#[test]
fn what_is_not_done_charges_nothing() {
    for abi in rm::branches() {
        let entries = (abi
            .escapes()
            .map(|entry| (entry.name, entry.decision, entry.account)))
        .chain(
            abi.uvm_calls()
                .map(|entry| (entry.name, entry.decision, entry.account)),
        )
        .chain(
            abi.classes()
                .map(|entry| (entry.name, entry.decision, entry.account)),
        )
        .chain(
            abi.controls()
                .map(|entry| (entry.name, entry.decision, entry.account)),
        );
        for (name, decision, account) in entries {
            if decision != Decision::Execute {
                assert_eq!(
                    account,
                    Account::Free,
                    "{name}: only what the helper executes can be charged"
                );
            }
        }
    }
}

#[test]
fn device_memory_is_charged() {
    for abi in rm::branches() {
        for entry in abi
            .classes()
            .filter(|entry| reaches_the_driver(entry.decision))
        {
            let charged = match entry.kind {
                Kind::ChannelGroup | Kind::Channel | Kind::VaSpace | Kind::Engine => {
                    Account::Charges(Charge::Measured)
                }
                Kind::Memory => match entry.id {
                    0x40 => Account::Charges(Charge::MemoryAllocation),
                    0xf8 | 0xfd => Account::Shares,
                    // Host memory, and address space.
                    0x3e | 0x42 | 0x50a0 => Account::Free,
                    other => {
                        panic!("memory class {other:#x} has no accounting decision in this test")
                    }
                },
                Kind::Client | Kind::Device | Kind::Subdevice | Kind::Event | Kind::Other => {
                    Account::Free
                }
            };
            assert_eq!(entry.account, charged, "{}", entry.name);
        }
        assert_eq!(
            abi.escape(0x4a).unwrap().account,
            Account::Charges(Charge::VidHeap)
        );
        assert_eq!(abi.escape(0x34).unwrap().account, Account::Shares);
        assert_eq!(abi.escape(0x29).unwrap().account, Account::Releases);
        assert_eq!(abi.uvm(33).unwrap().account, Account::Shares);
        assert_eq!(abi.uvm(34).unwrap().account, Account::Releases);
        assert_eq!(abi.uvm(66).unwrap().account, Account::Releases);
        for request in [26, 30, 38] {
            assert_eq!(
                abi.uvm(request).unwrap().account,
                Account::Free,
                "UVM {request} gives nothing back"
            );
        }
    }
}

#[test]
fn only_listed_calls_pass_without_a_notification() {
    for abi in rm::branches() {
        let passed: Vec<u32> = abi
            .uvm_calls()
            .filter(|entry| entry.decision == Decision::Pass)
            .map(|entry| entry.request)
            .collect();
        assert_eq!(passed, PASSED);
        assert!(abi.escapes().all(|entry| entry.decision != Decision::Pass));
        assert!(
            abi.classes()
                .all(|entry| entry.decision == Decision::Execute
                    || matches!(entry.decision, Decision::Refuse(_)))
        );
        assert!(
            abi.controls()
                .all(|entry| !matches!(entry.decision, Decision::Pass | Decision::InTenant))
        );
        let in_tenant: Vec<u8> = abi
            .escapes()
            .filter(|entry| entry.decision == Decision::InTenant)
            .map(|entry| entry.nr)
            .collect();
        assert_eq!(in_tenant, [0x27]);
        let in_tenant: Vec<u32> = abi
            .uvm_calls()
            .filter(|entry| entry.decision == Decision::InTenant)
            .map(|entry| entry.request)
            .collect();
        assert_eq!(in_tenant, [75, 0x3000_0001]);
    }
}

#[test]
fn uvm_requests_are_told_from_frontend_numbers_by_the_whole_word() {
    for abi in rm::branches() {
        // Low bytes that mean one thing to the frontend and another to UVM.
        for nr in [39, 42, 43, 53, 65, 78, 79_u8] {
            let escape = abi.escape(nr).expect("a frontend number");
            let Some(uvm) = entry_of(abi, abi.uvm(nr.into()), nr) else {
                continue;
            };
            assert_ne!(escape.name, uvm.name);
            // The frontend's request as programs write it: direction, size, type byte 'F', number.
            for size in escape.sizes {
                let request = 3 << 30 | u32::from(*size) << 16 | 0x46 << 8 | u32::from(nr);
                assert!(
                    abi.uvm(request).is_none(),
                    "{} is no UVM request",
                    escape.name
                );
            }
        }
        for request in PASSED {
            assert!(abi.uvm(request | 0x4600).is_none());
        }
    }
}

#[test]
fn levers_and_device_wide_calls_are_out_of_reach() {
    for abi in rm::branches() {
        let denied = Decision::Refuse(Status::INSUFFICIENT_PERMISSIONS);
        let unsupported = Decision::Refuse(Status::NOT_SUPPORTED);
        for cmd in [
            0x2080_110b,
            0x2080_111a,
            0x2080_121c,
            0x2080_1238,
            0x90cd_0101,
            0x90cd_0104,
            0xa06c_0107,
            0x80_170f,
            0x2080_01a9,
            0x2080_01ad,
            0x2080_0112,
            0x2080_205b,
            0x2080_206f,
            0x2080_0174,
            0x506f_0105,
            0x83de_031d,
            0x83de_0326,
            0x83de_0327,
        ] {
            let entry = entry_of(abi, abi.control(cmd), cmd);
            assert!(
                entry.is_none_or(|entry| entry.decision == denied),
                "{abi:?} {cmd:#x}"
            );
        }
        for cmd in [
            0x2080_0145,
            0x2080_0146,
            0x2080_220c,
            0x2080_2210,
            0x80_1909,
            0x2080_0407,
            0x2080_1702,
            0x2080_0513,
        ] {
            let entry = entry_of(abi, abi.control(cmd), cmd);
            assert!(
                entry.is_none_or(|entry| entry.decision == Decision::Absorb),
                "{abi:?} {cmd:#x}"
            );
        }
        // Absorbed, it left a short matrix product at a fifth of the native rate (H200, driver 580.159).
        assert_eq!(
            abi.control(0x2080_200a).unwrap().decision,
            Decision::Execute
        );
        // CUDA's own schedule, timeslice and preempt calls are answered with success; the last two are the scheduler's.
        for (cmd, decision) in [
            (0xa06c_0101, Decision::Execute),
            (0xa06f_0103, Decision::Execute),
            (0xa06c_0103, Decision::Absorb),
            (0xa06c_0105, Decision::Absorb),
        ] {
            assert_eq!(abi.control(cmd).unwrap().decision, decision, "{cmd:#x}");
        }
        for id in [
            0x0f, 0x78, 0x7e, 0x81, 0x82, 0x83, 0xc2, 0xf3, 0x900e, 0x90cc, 0x90cd, 0xb0cc, 0xb1cc,
            0xb2cc,
        ] {
            let entry = entry_of(abi, abi.class(id), id);
            assert!(
                entry.is_none_or(|entry| entry.decision == denied),
                "{abi:?} {id:#x}"
            );
        }
        for nr in [
            0x28, 0x32, 0x33, 0x37, 0x38, 0x39, 0x4d, 0x56, 0x59, 0x5c, 0x5d, 0x5f, 209, 211, 213,
            216,
        ] {
            let entry = entry_of(abi, abi.escape(nr), nr);
            assert!(
                entry.is_none_or(|entry| entry.decision == unsupported),
                "{abi:?} {nr:#x}"
            );
        }
        for request in (54..=64).chain([67, 69, 71, 74, 76, 77, 79, 80, 2047]) {
            let entry = entry_of(abi, abi.uvm(request), request);
            assert!(
                entry.is_none_or(|entry| entry.decision == unsupported),
                "{abi:?} UVM {request}"
            );
        }
    }
}

#[test]
fn answers_about_memory_and_processes_are_changed() {
    for abi in rm::branches() {
        for (cmd, answer) in [
            (0x2080_1301, Answer::FbInfoPointer),
            (0x2080_1303, Answer::FbInfoInline),
            (0x2080_1320, Answer::FbRegions),
            (0x2080_018d, Answer::Pids),
            (0x2080_018e, Answer::PidInfo),
            (0x2080_2096, Answer::UtilSamples),
            (0x201, Answer::GpuIds),
            (0x214, Answer::GpuIds),
            (0x288, Answer::GpuIds),
            (0xb04, Answer::ForeignZeroed),
        ] {
            let entry = entry_of(abi, abi.control(cmd), cmd);
            assert!(
                entry.is_none_or(|entry| entry.answer == answer),
                "{abi:?} {cmd:#x}"
            );
        }
    }
}

#[test]
fn nothing_undocumented_is_carried_to_a_branch_that_nobody_traced() {
    for abi in rm::branches().filter(|abi| abi.branch() != traced().branch()) {
        let foreign = abi
            .controls()
            .find(|entry| entry.name.starts_with("undocumented"));
        assert!(foreign.is_none(), "{abi:?}: {foreign:?}");
    }
}
