//! The questions that the guard asks for itself: in the sizes of the branch, and all of them answered, or no slice.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;

use guard::audit::{Finding, audit};
use guard::backend::{Backend, FileId, FileWatch, Node};
use guard::rmcall::{OwnClient, put_u32, put_u64, u32_at, u64_at};
use guard::tenant::{SliceDevice, Tenant, Walls};
use policy::objects::Limits;
use policy::units::Bytes;
use rm::{Abi, Status, ctrl, layout, nr};

/// Parameters that have not the size of the control's (`NV_ERR_INVALID_PARAM_STRUCT`).
const WRONG_SIZE: u32 = 0x3a;
const GPU_ID: u32 = 6;

/// A driver with one card that answers what the guard asks, but for what a test takes away.
struct Driver {
    abi: &'static Abi,
    heap_kib: u32,
    /// A control that it answers "not supported".
    deaf_to: Option<u32>,
    /// An index of frame-buffer information that it refuses.
    blind_to: Option<u32>,
    /// Bytes that it says every process holds.
    held: u64,
}

impl Driver {
    fn of(abi: &'static Abi) -> Driver {
        Driver {
            abi,
            heap_kib: 1 << 20,
            deaf_to: None,
            blind_to: None,
            held: 0,
        }
    }

    fn opened(self) -> io::Result<OwnClient> {
        OwnClient::open(Arc::new(self))
    }

    fn control(&self, cmd: u32, params: &mut [u8]) -> u32 {
        use layout::{fb_info as l, fb_info_entry as e};
        let size = self.abi.control(cmd).map(|entry| entry.size as usize);
        if self.deaf_to == Some(cmd) {
            return Status::NOT_SUPPORTED.0;
        }
        if size != Some(params.len()) {
            return WRONG_SIZE;
        }
        match cmd {
            ctrl::NV0000_GPU_GET_ATTACHED_IDS => put_u32(params, 0, GPU_ID),
            ctrl::NV2080_GPU_GET_NAME_STRING => params[4..8].copy_from_slice(b"Card"),
            ctrl::NV2080_FB_GET_INFO_V2 => {
                let count = u32_at(params, l::FB_INFO_LIST_SIZE) as usize;
                for at in (0..count).map(|i| l::FB_INFO_LIST + i * e::SIZE) {
                    if self.blind_to == Some(u32_at(params, at + e::INDEX)) {
                        return Status::INVALID_ARGUMENT.0;
                    }
                    put_u32(params, at + e::DATA, self.heap_kib);
                }
            }
            ctrl::NV2080_GPU_GET_PID_INFO => {
                use layout::{pid_info as l, pid_info_entry as e};
                put_u64(params, l::PID_INFO_LIST + e::MEM_PRIVATE, self.held)
            }
            _ => {}
        }
        Status::OK.0
    }
}

/// Nothing that is watched ends.
struct Watch;

impl FileWatch for Watch {
    fn identify(&mut self, _: BorrowedFd<'_>) -> io::Result<FileId> {
        Ok(FileId(0))
    }

    fn gone(&mut self) -> io::Result<Vec<FileId>> {
        Ok(Vec::new())
    }
}

impl Backend for Driver {
    fn classify(&self, _: BorrowedFd<'_>) -> io::Result<Option<Node>> {
        Ok(None)
    }

    fn maps_uvm(&self, _: &str, _: u64, _: &str) -> bool {
        false
    }

    fn ioctl(&self, _: BorrowedFd<'_>, request: u32, block: &mut [u8]) -> io::Result<i32> {
        match request as u8 {
            nr::CARD_INFO => {
                block[layout::card_info::VALID] = 1;
                put_u32(block, layout::card_info::GPU_ID, GPU_ID);
            }
            nr::RM_ALLOC => {
                use layout::nvos64 as l;
                let asked = u32_at(block, l::H_OBJECT_NEW);
                put_u32(block, l::H_OBJECT_NEW, asked.max(1));
            }
            nr::RM_CONTROL => {
                use layout::nvos54 as l;
                let (at, len) = (u64_at(block, l::PARAMS), u32_at(block, l::PARAMS_SIZE));
                // SAFETY: the contract of `Backend::ioctl`: a pointer in the block points into a live buffer of the
                // caller, here of the length that stands beside it.
                let params = unsafe { std::slice::from_raw_parts_mut(at as *mut u8, len as usize) };
                let status = self.control(u32_at(block, l::CMD), params);
                put_u32(block, l::STATUS, status);
            }
            _ => return Err(io::Error::from_raw_os_error(libc::EINVAL)),
        }
        Ok(0)
    }

    fn open(&self, _: Node) -> io::Result<OwnedFd> {
        Ok(std::fs::File::open("/dev/null")?.into())
    }

    fn driver_version(&self) -> io::Result<String> {
        Ok(format!("{}.999.01", self.abi.branch()))
    }

    fn watch(&self) -> io::Result<Box<dyn FileWatch>> {
        Ok(Box::new(Watch))
    }
}

#[test]
fn every_branch_is_asked_in_its_own_sizes() {
    for abi in rm::branches() {
        let own = Driver::of(abi).opened();
        let own = own.unwrap_or_else(|e| panic!("{abi:?}: {e}"));
        assert_eq!(own.gpus().len(), 1);
        let card = &own.gpus()[0];
        assert_eq!((card.name.as_str(), card.memory.0), ("Card", 1 << 30));
        assert_eq!(own.free_memory(card).expect("an answer").0, 1 << 30);
    }
}

#[test]
fn a_card_that_cannot_be_measured_is_refused_and_not_guessed_at() {
    const HEAP_FREE: u32 = 0x16;
    for abi in rm::branches() {
        let without = [
            (
                "HEAP_SIZE",
                Driver {
                    heap_kib: 0,
                    ..Driver::of(abi)
                },
            ),
            (
                "FB_GET_INFO_V2",
                Driver {
                    blind_to: Some(HEAP_FREE),
                    ..Driver::of(abi)
                },
            ),
            (
                "GET_PID_INFO",
                Driver {
                    deaf_to: Some(ctrl::NV2080_GPU_GET_PID_INFO),
                    ..Driver::of(abi)
                },
            ),
        ];
        for (what, driver) in without {
            let refused = driver.opened().err().expect(what);
            let line = refused.to_string();
            assert_eq!(refused.kind(), io::ErrorKind::Unsupported, "{line}");
            assert!(
                line.starts_with("GPU 0 (Card): ") && line.contains(what),
                "{line}"
            );
            assert!(
                line.contains("memory cannot be limited") && !line.contains('\n'),
                "{line}"
            );
        }
    }
}

/// What the driver shows for the helper is what the tenant holds. Nobody has charged it here.
#[test]
fn an_audit_finds_what_the_driver_shows_and_the_ledger_does_not() {
    for (held, found) in [(0, 0), (4096, 1)] {
        let abi = rm::for_driver("580.159.04").expect("a known branch").abi;
        let backend = Arc::new(Driver {
            held,
            ..Driver::of(abi)
        });
        let own = OwnClient::open(backend.clone()).expect("it answers");
        let device = SliceDevice {
            gpu: own.gpus()[0].clone(),
            granted: Bytes(1 << 30),
        };
        let tenant = Tenant::new(
            "audited".into(),
            abi,
            backend,
            Walls::default(),
            vec![device],
            own,
            Limits::none(1),
        );
        let findings = audit(&tenant.expect("the kernel has what it needs"));
        assert_eq!(findings.len(), found, "{findings:?}");
        assert!(findings.iter().all(|f| matches!(
            f,
            Finding::UnchargedMemory { driver, ledger, .. } if (driver.0, ledger.0) == (4096, 0)
        )));
    }
}
