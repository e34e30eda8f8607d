//! One ioctl: what it refers to is copied in, the RM executes it, what changed is copied out.

use std::os::fd::OwnedFd;

use rm::{Abi, Decision, UNSIZED_ESCAPES, class, layout, nr, uvm};

use super::connection::{Connection, Stop};
use crate::client::Node;
use crate::proto::FileId;
use crate::resman::{Array, Block, Call};

/// Largest parameters of a control.
const MOST_PARAMS: u32 = 1 << 20;

/// What is left to hand to the caller.
pub struct Executed {
    pub block: Vec<u8>,
    pub install: Option<(OwnedFd, usize)>,
}

/// Whether the filter of a guard would let this call run in the tenant.
fn runs_in_tenant(abi: &Abi, node: Node, request: u32) -> bool {
    let decision = match node {
        Node::Uvm => abi.uvm(request).map(|entry| entry.decision),
        _ => abi.escape(number(request)).map(|entry| entry.decision),
    };
    matches!(decision, Some(Decision::InTenant | Decision::Pass))
}

/// The driver goes by the low 8 bits of a request; the type byte and the direction mean nothing to it.
fn number(request: u32) -> u8 {
    request.to_le_bytes()[0]
}

impl Connection {
    /// Executes an ioctl on an open file.
    pub fn execute(
        &mut self,
        file: FileId,
        request: u32,
        block: Vec<u8>,
    ) -> Result<Executed, Stop> {
        let node = self
            .shared()
            .lock()
            .node_of(file)
            .ok_or(Stop::Errno(libc::ENOTTY))?;
        if self.is_filtered()? && !runs_in_tenant(self.shared().abi(), node, request) {
            // A real filter would have notified this call and not let it through.
            return Err(Stop::Errno(libc::EPERM));
        }
        if node == Node::Uvm {
            return self.execute_uvm(file, request, block);
        }
        if number(request) == nr::XFER_CMD {
            return self.execute_wrapped(file, block);
        }
        self.execute_frontend(file, number(request), block)
    }

    fn execute_uvm(
        &mut self,
        file: FileId,
        request: u32,
        block: Vec<u8>,
    ) -> Result<Executed, Stop> {
        let entry = self
            .shared()
            .abi()
            .uvm(request)
            .ok_or(Stop::Errno(libc::EINVAL))?;
        if block.len() != usize::from(entry.size) {
            return Err(Stop::Errno(libc::EINVAL));
        }
        let mut call = Call::new(self.caller(), file, Block(block));
        if request == uvm::MM_INITIALIZE {
            call.descriptor = self.resolve(
                call.block
                    .u32(layout::uvm_mm_initialize::UVM_FD)
                    .cast_signed(),
            )?;
        }
        let mut rm = self.shared().lock();
        rm.uvm(request, &mut call);
        self.shared().unlock(rm);
        Ok(Executed {
            block: call.block.0,
            install: None,
        })
    }

    /// `XFER_CMD` carries another ioctl: its number, its size, and where its block is.
    fn execute_wrapped(&mut self, file: FileId, block: Vec<u8>) -> Result<Executed, Stop> {
        use layout::xfer as at;
        let block = Block(block);
        if block.0.len() != at::SIZE {
            return Err(Stop::Errno(libc::EINVAL));
        }
        let inner = u8::try_from(block.u32(at::CMD))
            .ok()
            .filter(|&inner| inner != nr::XFER_CMD);
        let inner = inner.ok_or(Stop::Errno(libc::EINVAL))?;
        let (size, pointer) = (block.u32(at::SIZE_FIELD), block.u64(at::PTR));
        if size > MOST_PARAMS {
            return Err(Stop::Errno(libc::EINVAL));
        }
        let copied = self.copy_in(pointer, size)?;
        let mut executed = self.execute_frontend(file, inner, copied.clone())?;
        if let Some((_, at)) = executed.install {
            // The number of a new descriptor can only be written into the outer block; what wraps is refused.
            executed.install = None;
            return Err(Stop::Errno(if at == 0 {
                libc::EINVAL
            } else {
                libc::EFAULT
            }));
        }
        if executed.block != copied {
            self.copy_out(pointer, executed.block)?;
        }
        Ok(Executed {
            block: block.0,
            install: None,
        })
    }

    fn execute_frontend(
        &mut self,
        file: FileId,
        number: u8,
        block: Vec<u8>,
    ) -> Result<Executed, Stop> {
        let entry = self
            .shared()
            .abi()
            .escape(number)
            .ok_or(Stop::Errno(libc::EINVAL))?;
        let sized = entry
            .sizes
            .iter()
            .any(|&size| usize::from(size) == block.len());
        if !sized && !UNSIZED_ESCAPES.contains(&number) {
            return Err(Stop::Errno(libc::EINVAL));
        }
        let mut call = Call::new(self.caller(), file, Block(block));
        let pointer = match number {
            nr::RM_ALLOC => self.gather_alloc(&mut call)?,
            nr::RM_CONTROL => self.gather_control(&mut call)?,
            nr::RM_ALLOC_MEMORY => self.gather_pages(&mut call)?,
            nr::EXPORT_TO_DMABUF_FD => self.gather_dmabuf(&mut call)?,
            _ => {
                if let Some(at) = entry.fd {
                    call.descriptor = self.resolve(call.block.u32(at.into()).cast_signed())?;
                }
                0
            }
        };
        let params = call.params.clone();
        let arrays: Vec<Block> = call
            .arrays
            .iter()
            .map(|array| array.bytes.clone())
            .collect();
        let mut rm = self.shared().lock();
        let result = rm.frontend(number, &mut call);
        self.shared().unlock(rm);
        result.map_err(Stop::Errno)?;
        for (array, before) in call.arrays.iter().zip(&arrays) {
            if array.bytes != *before
                && let Some(params) = &params
            {
                self.copy_out(params.u64(array.at), array.bytes.0.clone())?;
            }
        }
        if let Some(mut changed) = call
            .params
            .filter(|changed| Some(changed) != params.as_ref())
        {
            // Pointers in the parameters stay the caller's.
            for array in &call.arrays {
                changed.put_u64(
                    array.at,
                    params.as_ref().map_or(0, |params| params.u64(array.at)),
                );
            }
            if pointer != 0 {
                self.copy_out(pointer, changed.0)?;
            }
        }
        Ok(Executed {
            block: call.block.0,
            install: call.install,
        })
    }

    /// Parameters of `RM_ALLOC`: their size goes by the class, whatever the caller says.
    fn gather_alloc(&mut self, call: &mut Call) -> Result<u64, Stop> {
        use layout::nvos64 as at;
        let (pointer, class) = (
            call.block.u64(at::P_ALLOC_PARMS),
            call.block.u32(at::H_CLASS),
        );
        let size = self
            .shared()
            .abi()
            .class(class)
            .map_or(0, |entry| u32::from(entry.size));
        if pointer != 0 && size > 0 {
            call.params = Some(Block(self.copy_in(pointer, size)?));
        }
        if class == class::NV01_DEVICE_0 {
            let gpu = call
                .params
                .as_ref()
                .map_or(0, |params| params.u32(layout::device_alloc::DEVICE_ID));
            call.device_files = self.device_files(gpu)?;
        }
        Ok(pointer)
    }

    /// Parameters of a control, the arrays they point to, and the file behind a descriptor in them.
    fn gather_control(&mut self, call: &mut Call) -> Result<u64, Stop> {
        use layout::nvos54 as at;
        let (pointer, size) = (call.block.u64(at::PARAMS), call.block.u32(at::PARAMS_SIZE));
        let Some(entry) = self.shared().abi().control(call.block.u32(at::CMD)) else {
            return Ok(pointer);
        };
        if size != entry.size || size == 0 || size > MOST_PARAMS {
            return Ok(pointer);
        }
        let params = Block(self.copy_in(pointer, size)?);
        for array in entry.pointers {
            let at = usize::from(array.offset);
            let count = match array.count {
                rm::Count::Field(field) => params.u32(field.into()),
                rm::Count::Fixed(count) => count,
                rm::Count::Square(field) => params
                    .u32(field.into())
                    .saturating_mul(params.u32(field.into())),
            };
            let bytes = count.saturating_mul(array.element.into());
            let bytes = if params.u64(at) == 0 { 0 } else { bytes };
            if bytes > array.max {
                return Err(Stop::Errno(libc::EINVAL));
            }
            let bytes = Block(self.copy_in(params.u64(at), bytes)?);
            call.arrays.push(Array { at, bytes });
        }
        if let Some(at) = entry.fd {
            call.descriptor = self.resolve(params.u32(at.into()).cast_signed())?;
        }
        call.params = Some(params);
        Ok(pointer)
    }

    /// Pages to be pinned must be there.
    fn gather_pages(&mut self, call: &mut Call) -> Result<u64, Stop> {
        use layout::nvos02 as at;
        let (base, limit) = (call.block.u64(at::P_MEMORY), call.block.u64(at::LIMIT));
        if call.block.u32(at::H_CLASS) == class::NV01_MEMORY_SYSTEM_OS_DESCRIPTOR {
            for address in [base, base.saturating_add(limit)] {
                match self.copy_in(address, 1) {
                    Ok(_) => {}
                    Err(Stop::Errno(_)) => call.pages_present = false,
                    Err(gone) => return Err(gone),
                }
            }
        }
        // Parameters, as long as those of the class.
        const FABRIC: u32 = 56;
        if call.block.u32(at::H_CLASS) == class::NV01_MEMORY_FLA {
            match self.copy_in(base, FABRIC) {
                Ok(params) => call.params = Some(Block(params)),
                Err(Stop::Errno(_)) => call.pages_present = false,
                Err(gone) => return Err(gone),
            }
        }
        Ok(0)
    }

    /// A dmabuf is a file of its own; -1 asks for a new one.
    fn gather_dmabuf(&mut self, call: &mut Call) -> Result<u64, Stop> {
        use layout::export_to_dmabuf_fd as at;
        if call.block.u32(at::FD).cast_signed() == -1 {
            let (id, descriptor) = self.open_stand_in("dmabuf", None)?;
            call.descriptor = Some(id);
            call.install = Some((descriptor, at::FD));
        }
        Ok(0)
    }
}
