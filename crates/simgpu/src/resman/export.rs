//! Memory held by descriptors: exported objects and dmabufs.

use rm::{Status, class, layout};

use super::clients::{Body, Object};
use super::{Answer, Call, Rm, status};
use crate::proto::FileId;

/// Handles that `0x00003d0b` and `0x00003d0c` have room for.
const MOST_EXPORTED: usize = 512;
const MOST_IMPORTED: usize = 128;

impl Rm {
    fn export(&mut self, call: &Call, client: u32, handles: &[u32], first: usize) -> Answer {
        let file = call
            .descriptor
            .filter(|&file| self.node_of(file).is_some())
            .ok_or(Status::INVALID_ARGUMENT)?;
        let memories: Vec<u64> = handles
            .iter()
            .map(|&handle| self.memory_of(client, handle))
            .collect::<Answer<_>>()?;
        for &memory in &memories {
            self.get_memory(memory);
        }
        let Some(open) = self.files.get_mut(&file) else {
            return Err(Status::INVALID_ARGUMENT);
        };
        let mut replaced = Vec::new();
        for (at, memory) in (first..).zip(memories) {
            match open.exports.get_mut(at) {
                Some(slot) => replaced.push(std::mem::replace(slot, memory)),
                None => open.exports.push(memory),
            }
        }
        for memory in replaced {
            self.put_memory(memory);
        }
        Ok(())
    }

    fn import(
        &mut self,
        call: &Call,
        client: u32,
        parent: u32,
        handle: u32,
        memory: u64,
    ) -> Answer<u32> {
        let handle = self.choose_handle(call, client, handle)?;
        let gpu = self.parent_gpu(call, client, parent)?;
        let (class, on) = self
            .memories
            .get(&memory)
            .map_or((class::NV01_MEMORY_SYSTEM, None), |it| (it.class, it.gpu));
        let mut object = Object::plain(parent, class, on.or(gpu));
        object.body = Body::Memory(memory);
        self.get_memory(memory);
        self.insert(client, handle, object);
        Ok(handle)
    }

    fn exported(&self, call: &Call) -> Answer<&super::File> {
        call.descriptor
            .and_then(|file| self.files.get(&file))
            .ok_or(Status::INVALID_ARGUMENT)
    }

    /// `0x00003d05`: {type@0, hDevice@4, hParent@8, hObject@12, fd@16, flags@20}.
    pub(super) fn export_object(&mut self, call: &mut Call, client: u32) -> Answer {
        let handle = call.params().u32(12);
        self.export(call, client, &[handle], 0)
    }

    /// `0x00003d06`: {fd@0, type@4, hDevice@8, hParent@12, hObject@16}.
    pub(super) fn import_object(&mut self, call: &mut Call, client: u32) -> Answer {
        let memory = *self
            .exported(call)?
            .exports
            .first()
            .ok_or(Status::OBJECT_NOT_FOUND)?;
        let (parent, handle) = (call.params().u32(12), call.params().u32(16));
        let handle = self.import(call, client, parent, handle, memory)?;
        call.params().put_u32(16, handle);
        Ok(())
    }

    /// `0x00003d0b`: {fd@0, hDevice@4, maxObjects u16@8, metadata[64]@10, objects[512]@76, count u16@2124, index u16@2126}.
    pub(super) fn export_objects(&mut self, call: &mut Call, client: u32) -> Answer {
        let params = call.params();
        let (count, index) = (usize::from(params.u16(2124)), usize::from(params.u16(2126)));
        if count + index > MOST_EXPORTED {
            return Err(Status::INVALID_ARGUMENT);
        }
        let metadata: [u8; 64] = std::array::from_fn(|at| params.u8(10 + at));
        let handles: Vec<u32> = (0..count).map(|at| params.u32(76 + 4 * at)).collect();
        self.export(call, client, &handles, index)?;
        if let Some(open) = call.descriptor.and_then(|file| self.files.get_mut(&file)) {
            open.metadata = metadata;
        }
        Ok(())
    }

    /// `0x00003d0c`: {fd@0, hParent@4, objects[128]@8, types[128]@520, count u16@648, index u16@650}.
    pub(super) fn import_objects(&mut self, call: &mut Call, client: u32) -> Answer {
        const TYPE_VIDMEM: u8 = 1;
        let params = call.params();
        let (parent, count) = (params.u32(4), usize::from(params.u16(648)));
        let index = usize::from(params.u16(650));
        if count > MOST_IMPORTED {
            return Err(Status::INVALID_ARGUMENT);
        }
        let memories = self
            .exported(call)?
            .exports
            .get(index..index + count)
            .ok_or(Status::OBJECT_NOT_FOUND)?
            .to_vec();
        for (at, memory) in memories.into_iter().enumerate() {
            let asked = call.params().u32(8 + 4 * at);
            let handle = self.import(call, client, parent, asked, memory)?;
            call.params().put_u32(8 + 4 * at, handle);
            call.params().put_u8(520 + at, TYPE_VIDMEM);
        }
        Ok(())
    }

    /// `0x00003d08`: {fd@0, deviceInstance@4, gpuInstance@8, maxObjects u16@12, metadata[64]@14}.
    pub(super) fn export_info(&mut self, call: &mut Call) -> Answer {
        let open = self.exported(call)?;
        let first = *open.exports.first().ok_or(Status::OBJECT_NOT_FOUND)?;
        let (count, metadata) = (open.exports.len(), open.metadata);
        let gpu = self
            .memories
            .get(&first)
            .and_then(|memory| memory.gpu)
            .unwrap_or(0);
        let params = call.params();
        params.put_u32(4, u32::try_from(gpu).unwrap_or(0));
        // {fd@0 deviceInstance@4 gpuInstanceId@8 maxObjects:2 metadata[64]}; branch 535 has no gpuInstanceId.
        let mut at = 8;
        if params.0.len() == 80 {
            params.put_u32(at, u32::MAX);
            at += 4;
        }
        params.put_u16(at, u16::try_from(count).unwrap_or(u16::MAX));
        params.put(at + 2, &metadata);
        Ok(())
    }

    /// `0x503c0104`: {hMemory@0, address@8, size@16, offset@24}. The object holds the memory from now on.
    pub(super) fn register_vidmem(
        &mut self,
        call: &mut Call,
        client: u32,
        third_party: u64,
    ) -> Answer {
        let handle = call.params().u32(0);
        let memory = self.memory_of(client, handle)?;
        if self.registered.contains_key(&(third_party, handle)) {
            return Err(status::INSERT_DUPLICATE_NAME);
        }
        self.pin_memory(memory);
        self.registered.insert((third_party, handle), memory);
        Ok(())
    }

    /// `0x503c0105`: {hMemory@0}
    pub(super) fn unregister_vidmem(&mut self, call: &mut Call, third_party: u64) -> Answer {
        let handle = call.params().u32(0);
        let memory = self
            .registered
            .remove(&(third_party, handle))
            .ok_or(Status::OBJECT_NOT_FOUND)?;
        self.unpin_memory(memory);
        Ok(())
    }

    /// A third-party object is freed.
    pub(super) fn unregister_all(&mut self, third_party: u64) {
        let held: Vec<u32> = self
            .registered
            .range((third_party, 0)..=(third_party, u32::MAX))
            .map(|(&(_, handle), _)| handle)
            .collect();
        for handle in held {
            if let Some(memory) = self.registered.remove(&(third_party, handle)) {
                self.unpin_memory(memory);
            }
        }
    }

    /// `EXPORT_TO_DMABUF_FD`: a descriptor of its own that holds the memory. The server makes it beforehand.
    ///
    /// # Errors
    /// `EINVAL` where an existing dmabuf is to be added to and the descriptor is none.
    pub(super) fn export_to_dmabuf(&mut self, call: &mut Call) -> Result<Answer, i32> {
        use layout::export_to_dmabuf_fd as at;
        const MOST: u32 = 128;
        let first = self.abi.layout().export_to_dmabuf_fd.handles;
        let client = call.block.u32(at::H_CLIENT);
        let count = call.block.u32(at::NUM_OBJECTS);
        if call.block.u32(at::FD).cast_signed() != -1 {
            // Adding to a dmabuf that exists is not simulated.
            return Ok(Err(Status::NOT_SUPPORTED));
        }
        let handles: Vec<u32> = (0..count.min(MOST) as usize)
            .map(|n| call.block.u32(first + 4 * n))
            .collect();
        let memories = self.client(call, client).and_then(|_| {
            handles
                .iter()
                .map(|&handle| self.memory_of(client, handle))
                .collect::<Answer<Vec<u64>>>()
        });
        let memories = match memories {
            Ok(memories) if (1..=MOST).contains(&count) => memories,
            failed => {
                let status = failed.err().unwrap_or(Status::INVALID_ARGUMENT);
                call.install = None;
                return Ok(Err(status));
            }
        };
        let file: FileId = call.descriptor.ok_or(libc::EINVAL)?;
        for &memory in &memories {
            self.get_memory(memory);
        }
        let open = self.files.get_mut(&file).ok_or(libc::EINVAL)?;
        open.exports = memories;
        Ok(Ok(()))
    }
}
