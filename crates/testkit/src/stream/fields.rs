//! What the fields of blocks hold, as far as a stream has to tell it.

use rm::{Abi, Names, class, ctrl, layout, nr, uvm};

use super::What;

/// What a field holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// A client.
    Client,
    /// An object of the call's client.
    Object,
    /// An object of the client that this field names.
    ObjectOf(usize),
    /// The handle of a new object of the call's client below the parent that this field names.
    New(usize),
    /// A number of four bytes.
    Word,
    /// A number of eight bytes.
    Quad,
    /// An address on the card.
    Address,
    /// Where a mapping for the processor lies.
    Mapping,
    /// Where a new one lies: chosen by the program, else by the driver.
    NewMapping(bool),
    /// A card's UUID, sixteen bytes.
    Uuid,
    /// The number of a card's device.
    Instance,
    /// A descriptor number.
    Descriptor,
    /// A descriptor number in eight bytes.
    WideDescriptor,
    /// A process id.
    Process,
    /// An address of a buffer.
    Pointer,
    /// The address of memory of the program.
    Host,
    /// The driver's version, as text.
    Version,
    /// So many bytes that are not told.
    Untold(usize),
}

impl Kind {
    /// Its bytes.
    pub fn width(self) -> usize {
        match self {
            Kind::Quad
            | Kind::Address
            | Kind::Mapping
            | Kind::NewMapping(_)
            | Kind::WideDescriptor
            | Kind::Pointer
            | Kind::Host => 8,
            Kind::Uuid => 16,
            Kind::Version => 64,
            Kind::Untold(width) => width,
            _ => 4,
        }
    }
}

/// A field: its offset, and what it holds.
pub type Field = (usize, Kind);

use Kind::*;

fn word(block: &[u8], at: usize) -> u32 {
    let bytes = block.get(at..at + 4).and_then(|b| b.try_into().ok());
    bytes.map_or(0, u32::from_le_bytes)
}

/// Where the status of a call stands in its block, in bytes.
pub fn status_at(abi: &Abi, what: What) -> Option<usize> {
    let at = match what {
        What::Escape(number, size) => {
            let entry = abi.escape(number)?;
            let i = entry.sizes.iter().position(|&s| u32::from(s) == size)?;
            entry.status.get(i).copied().flatten()
        }
        What::Uvm(request) => abi.uvm(request)?.status,
        What::Map => None,
    };
    at.map(usize::from)
}

/// Whether an allocation makes a client.
pub fn is_root(abi: &Abi, class: u32) -> bool {
    abi.class(class).is_some_and(|c| c.kind == rm::Kind::Client)
}

/// The fields of a frontend ioctl's block.
pub fn of_escape(abi: &Abi, number: u8, block: &[u8]) -> Vec<Field> {
    let size = block.len();
    let mut fields: Vec<Field> = match number {
        nr::RM_FREE => vec![(0, Client), (4, Object), (8, Object)],
        nr::RM_ALLOC => {
            use layout::{nvos21, nvos64 as l};
            let mut fields = vec![
                (l::H_ROOT, Client),
                (l::H_OBJECT_PARENT, Object),
                (l::H_OBJECT_NEW, New(l::H_OBJECT_PARENT)),
                (l::H_CLASS, Word),
                (l::P_ALLOC_PARMS, Pointer),
            ];
            if size == l::SIZE {
                fields.push((l::P_RIGHTS_REQUESTED, Pointer));
                fields.extend([(l::PARAMS_SIZE, Word), (l::FLAGS, Word)]);
            } else {
                fields.push((nvos21::PARAMS_SIZE, Word));
            }
            fields
        }
        nr::RM_CONTROL => {
            use layout::nvos54 as l;
            vec![
                (l::H_CLIENT, Client),
                (l::H_OBJECT, Object),
                (l::CMD, Word),
                (l::FLAGS, Word),
                (l::PARAMS, Pointer),
                (l::PARAMS_SIZE, Word),
            ]
        }
        nr::RM_ALLOC_MEMORY => {
            use layout::{nvos02 as l, nvos02_with_fd as with};
            vec![
                (l::H_ROOT, Client),
                (l::H_OBJECT_PARENT, Object),
                (l::H_OBJECT_NEW, New(l::H_OBJECT_PARENT)),
                (l::H_CLASS, Word),
                (l::FLAGS, Word),
                (l::P_MEMORY, Host),
                (l::LIMIT, Quad),
                (with::FD, Descriptor),
            ]
        }
        nr::RM_DUP_OBJECT => {
            use layout::nvos55 as l;
            vec![
                (l::H_CLIENT, Client),
                (l::H_PARENT, Object),
                (l::H_OBJECT, New(l::H_PARENT)),
                (l::H_CLIENT_SRC, Client),
                (l::H_OBJECT_SRC, ObjectOf(l::H_CLIENT_SRC)),
                (l::FLAGS, Word),
            ]
        }
        nr::RM_SHARE => {
            use layout::nvos57 as l;
            vec![
                (l::H_CLIENT, Client),
                (l::H_OBJECT, Object),
                (l::ACCESS_MASK, Word),
                (l::TYPE, Word),
            ]
        }
        nr::RM_VID_HEAP_CONTROL => vid_heap(word(block, layout::nvos32::FUNCTION)),
        nr::RM_MAP_MEMORY => {
            use layout::{nvos33 as l, nvos33_with_fd as with};
            vec![
                (l::H_CLIENT, Client),
                (l::H_DEVICE, Object),
                (l::H_MEMORY, Object),
                (l::OFFSET, Quad),
                (l::LENGTH, Quad),
                (l::P_LINEAR_ADDRESS, NewMapping(false)),
                (l::FLAGS, Word),
                (with::FD, Descriptor),
            ]
        }
        nr::RM_UNMAP_MEMORY => {
            use layout::nvos34 as l;
            vec![
                (l::H_CLIENT, Client),
                (l::H_DEVICE, Object),
                (l::H_MEMORY, Object),
                (l::P_LINEAR_ADDRESS, Mapping),
                (l::FLAGS, Word),
            ]
        }
        nr::RM_UPDATE_DEVICE_MAPPING_INFO => {
            use layout::nvos56 as l;
            vec![
                (l::H_CLIENT, Client),
                (l::H_DEVICE, Object),
                (l::H_MEMORY, Object),
                (l::P_OLD_CPU_ADDRESS, Mapping),
                (l::P_NEW_CPU_ADDRESS, NewMapping(true)),
            ]
        }
        nr::RM_ALLOC_CONTEXT_DMA2 => {
            use layout::nvos39 as l;
            vec![
                (l::H_OBJECT_PARENT, Client),
                (l::H_SUB_DEVICE, Object),
                (l::H_OBJECT_NEW, New(l::H_SUB_DEVICE)),
                (l::H_CLASS, Word),
                (l::FLAGS, Word),
                (l::H_MEMORY, Object),
                (l::OFFSET, Quad),
                (l::LIMIT, Quad),
            ]
        }
        nr::RM_MAP_MEMORY_DMA => {
            use layout::nvos46 as l;
            vec![
                (l::H_CLIENT, Client),
                (l::H_DEVICE, Object),
                (l::H_DMA, Object),
                (l::H_MEMORY, Object),
                (l::OFFSET, Quad),
                (l::LENGTH, Quad),
                (l::FLAGS, Word),
                (abi.layout().nvos46.dma_offset, NewMapping(false)),
            ]
        }
        nr::RM_UNMAP_MEMORY_DMA => {
            use layout::nvos47 as l;
            vec![
                (l::H_CLIENT, Client),
                (l::H_DEVICE, Object),
                (l::H_DMA, Object),
                (l::H_MEMORY, Object),
                (l::FLAGS, Word),
                (l::DMA_OFFSET, Mapping),
            ]
        }
        nr::ALLOC_OS_EVENT | nr::FREE_OS_EVENT => {
            use layout::alloc_os_event as l;
            vec![
                (l::H_CLIENT, Client),
                (l::H_DEVICE, Object),
                (l::FD, Descriptor),
            ]
        }
        nr::REGISTER_FD => vec![(layout::register_fd::CTL_FD, Descriptor)],
        nr::RM_GET_EVENT_DATA => vec![(layout::nvos41::P_EVENT, Pointer)],
        nr::CHECK_VERSION_STR => {
            use layout::check_version as l;
            vec![(l::CMD, Word), (l::VERSION_STRING, Version)]
        }
        nr::EXPORT_TO_DMABUF_FD => {
            use layout::export_to_dmabuf_fd as l;
            let handles = abi.layout().export_to_dmabuf_fd.handles;
            vec![
                (l::FD, Descriptor),
                (l::H_CLIENT, Client),
                (l::TOTAL_SIZE, Quad),
                (handles, ObjectOf(l::H_CLIENT)),
            ]
        }
        // Answers only.
        nr::CARD_INFO | nr::NUMA_INFO | nr::SYS_PARAMS => vec![(0, Untold(size))],
        _ => Vec::new(),
    };
    let status = status_at(abi, What::Escape(number, size as u32));
    fields.extend(status.map(|at| (at, Untold(4))));
    fields
}

fn vid_heap(function: u32) -> Vec<Field> {
    use layout::{nvos32 as l, nvos32_alloc_range as r, nvos32_alloc_size as s, nvos32_free as f};
    let mut fields = vec![
        (l::H_ROOT, Client),
        (l::H_OBJECT_PARENT, Object),
        (l::FUNCTION, Word),
        (l::H_VA_SPACE, Object),
    ];
    let new = (s::H_MEMORY, New(l::H_OBJECT_PARENT));
    match function {
        2 => {
            fields.extend([new, (s::TYPE, Word), (s::FLAGS, Word), (s::ATTR, Word)]);
            fields.extend([
                (s::SIZE_FIELD, Quad),
                (s::ALIGNMENT, Quad),
                (s::ATTR2, Word),
            ]);
            fields.extend([
                (s::OFFSET, Untold(8)),
                (s::LIMIT, Untold(8)),
                (s::ADDRESS, Untold(8)),
            ]);
        }
        3 => fields.push((f::H_MEMORY, Object)),
        14 => {
            fields.extend([new, (r::TYPE, Word), (r::FLAGS, Word), (r::ATTR, Word)]);
            fields.extend([
                (r::SIZE_FIELD, Quad),
                (r::ALIGNMENT, Quad),
                (r::ATTR2, Word),
            ]);
        }
        _ => {}
    }
    fields
}

/// The fields of a UVM call's block.
pub fn of_uvm(abi: &Abi, request: u32, block: &[u8]) -> Vec<Field> {
    let mut fields = match request {
        uvm::INITIALIZE => vec![(layout::uvm_initialize::FLAGS, Quad)],
        uvm::MM_INITIALIZE => vec![(layout::uvm_mm_initialize::UVM_FD, Descriptor)],
        uvm::REGISTER_GPU => {
            use layout::uvm_register_gpu as l;
            vec![
                (l::GPU_UUID, Uuid),
                // Answers.
                (l::NUMA_ENABLED, Untold(8)),
                (l::RM_CTRL_FD, Descriptor),
                (l::H_CLIENT, Client),
                (l::H_SMC_PART_REF, ObjectOf(l::H_CLIENT)),
            ]
        }
        uvm::REGISTER_GPU_VASPACE => {
            use layout::uvm_register_gpu_vaspace as l;
            vec![
                (l::GPU_UUID, Uuid),
                (l::RM_CTRL_FD, Descriptor),
                (l::H_CLIENT, Client),
                (l::H_VA_SPACE, ObjectOf(l::H_CLIENT)),
            ]
        }
        uvm::REGISTER_CHANNEL => {
            use layout::uvm_register_channel as l;
            vec![
                (l::GPU_UUID, Uuid),
                (l::RM_CTRL_FD, Descriptor),
                (l::H_CLIENT, Client),
                (l::H_CHANNEL, ObjectOf(l::H_CLIENT)),
                (l::BASE, Address),
                (l::LENGTH, Quad),
            ]
        }
        uvm::UNREGISTER_CHANNEL => {
            let at = abi.layout().uvm_unregister_channel;
            let uuid = at.gpu_uuid.map(|at| (at, Uuid));
            let named = [(at.h_client, Client), (at.h_channel, ObjectOf(at.h_client))];
            uuid.into_iter().chain(named).collect()
        }
        uvm::UNREGISTER_GPU | uvm::UNREGISTER_GPU_VASPACE | uvm::PAGEABLE_MEM_ACCESS_ON_GPU => {
            vec![(0, Uuid), (16, Untold(4))]
        }
        uvm::ENABLE_PEER_ACCESS | uvm::DISABLE_PEER_ACCESS => vec![(0, Uuid), (16, Uuid)],
        uvm::FREE => {
            let length = abi.layout().uvm_free.length;
            let base = (layout::uvm_free::BASE, Address);
            std::iter::once(base)
                .chain(length.map(|at| (at, Quad)))
                .collect()
        }
        uvm::UNMAP_EXTERNAL | uvm::MAP_DYNAMIC_PARALLELISM_REGION => {
            use layout::uvm_unmap_external as l;
            vec![(l::BASE, Address), (l::LENGTH, Quad), (l::GPU_UUID, Uuid)]
        }
        uvm::ALLOC_SEMAPHORE_POOL => {
            use layout::uvm_alloc_semaphore_pool as l;
            let count = abi.layout().uvm_alloc_semaphore_pool.gpu_attributes_count;
            let mut fields = vec![(l::BASE, Address), (l::LENGTH, Quad), (count, Quad)];
            fields.extend(per_gpu(l::PER_GPU_ATTRIBUTES, word(block, count)));
            fields
        }
        uvm::MAP_EXTERNAL_ALLOCATION => {
            use layout::uvm_map_external as l;
            let at = abi.layout().uvm_map_external;
            let mut fields = vec![(l::BASE, Address), (l::LENGTH, Quad), (l::OFFSET, Quad)];
            fields.extend(per_gpu(
                l::PER_GPU_ATTRIBUTES,
                word(block, at.gpu_attributes_count),
            ));
            fields.extend([(at.gpu_attributes_count, Quad), (at.rm_ctrl_fd, Descriptor)]);
            fields.extend([(at.h_client, Client), (at.h_memory, ObjectOf(at.h_client))]);
            fields
        }
        uvm::ALLOC_DEVICE_P2P => {
            use layout::uvm_alloc_device_p2p as l;
            vec![
                (l::BASE, Address),
                (l::LENGTH, Quad),
                (l::OFFSET, Quad),
                (l::GPU_UUID, Uuid),
                (l::RM_CTRL_FD, Descriptor),
                (l::H_CLIENT, Client),
                (l::H_MEMORY, ObjectOf(l::H_CLIENT)),
            ]
        }
        // Answers only.
        uvm::PAGEABLE_MEM_ACCESS => vec![(0, Untold(8))],
        _ => Vec::new(),
    };
    let status = status_at(abi, What::Uvm(request));
    fields.extend(status.map(|at| (at, Untold(4))));
    fields
}

/// The attributes of a mapping on each card: UUID and five words (mapping type, caching, format, element, compression).
fn per_gpu(at: usize, count: u32) -> Vec<Field> {
    const STRIDE: usize = 36;
    /// Two cards more than a node has.
    const MOST: u32 = 18;
    let one = |i: usize| {
        let at = at + STRIDE * i;
        let words = (0..5).map(move |word| (at + 16 + 4 * word, Word));
        std::iter::once((at, Uuid)).chain(words)
    };
    (0..count.min(MOST) as usize).flat_map(one).collect()
}

/// The fields of the parameters of an allocation.
pub fn of_class(abi: &Abi, id: u32) -> Vec<Field> {
    let Some(entry) = abi.class(id) else {
        return Vec::new();
    };
    match entry.kind {
        _ if id == class::NV50_MEMORY_VIRTUAL => memory(),
        rm::Kind::Memory
            if usize::from(entry.size) >= layout::memory_allocation::H_VA_SPACE + 4 =>
        {
            memory()
        }
        rm::Kind::Device => {
            use layout::device_alloc as l;
            vec![
                (l::DEVICE_ID, Instance),
                (l::H_CLIENT_SHARE, Client),
                (l::H_TARGET_CLIENT, Client),
                (l::H_TARGET_DEVICE, ObjectOf(l::H_TARGET_CLIENT)),
                (l::FLAGS, Word),
                (l::VA_SPACE_SIZE, Quad),
                (l::VA_START_INTERNAL, Untold(16)),
                (l::VA_MODE, Word),
            ]
        }
        rm::Kind::Channel => {
            use layout::channel_alloc as l;
            vec![
                (l::H_OBJECT_ERROR, Object),
                (l::H_OBJECT_BUFFER, Object),
                (l::GP_FIFO_OFFSET, Untold(8)),
                (l::GP_FIFO_ENTRIES, Word),
                (l::FLAGS, Word),
                (l::H_CONTEXT_SHARE, Object),
                (l::H_VA_SPACE, Object),
                (l::H_USERD_MEMORY, Object),
                (l::USERD_OFFSET, Quad),
                (l::ENGINE_TYPE, Word),
                (l::H_OBJECT_ECC_ERROR, Object),
            ]
        }
        rm::Kind::ChannelGroup => {
            use layout::channel_group_alloc as l;
            vec![
                (l::H_OBJECT_ERROR, Object),
                (l::H_OBJECT_ECC_ERROR, Object),
                (l::H_VA_SPACE, Object),
                (l::ENGINE_TYPE, Word),
            ]
        }
        rm::Kind::VaSpace => {
            use layout::vaspace_alloc as l;
            vec![
                (l::INDEX, Word),
                (l::FLAGS, Word),
                (l::VA_SIZE, Quad),
                (l::VA_START_INTERNAL, Untold(16)),
                (l::BIG_PAGE_SIZE, Word),
                (l::VA_BASE, Quad),
            ]
        }
        rm::Kind::Event => {
            use layout::event_alloc as l;
            vec![
                (l::H_PARENT_CLIENT, Client),
                (l::H_SRC_RESOURCE, ObjectOf(l::H_PARENT_CLIENT)),
                (l::H_CLASS, Word),
                (l::NOTIFY_INDEX, Word),
                (l::DATA, WideDescriptor),
            ]
        }
        _ if id == class::GT200_DEBUGGER => {
            use layout::debugger_alloc as l;
            vec![
                (l::H_DEBUGGER_CLIENT_OBSOLETE, Client),
                (l::H_APP_CLIENT, Client),
                (l::H_CLASS3D_OBJECT, ObjectOf(l::H_APP_CLIENT)),
            ]
        }
        // Alignment and size (NV00F8_ALLOCATION_PARAMETERS, NV00FD_ALLOCATION_PARAMETERS).
        _ if matches!(
            id,
            class::NV_MEMORY_FABRIC | class::NV_MEMORY_MULTICAST_FABRIC
        ) =>
        {
            vec![(0, Quad), (8, Quad)]
        }
        // A session of MIG: a capability's descriptor.
        _ if matches!(id, 0xc639 | 0xc640) => vec![(0, WideDescriptor)],
        rm::Kind::Client => vec![(0, Untold(4))],
        _ => named(entry.foreign),
    }
}

fn memory() -> Vec<Field> {
    use layout::memory_allocation as l;
    vec![
        (l::OWNER, Untold(4)),
        (l::TYPE, Word),
        (l::FLAGS, Word),
        (l::WIDTH, Word),
        (l::HEIGHT, Word),
        (l::PITCH, Word),
        (l::ATTR, Word),
        (l::ATTR2, Word),
        (l::FORMAT, Word),
        (l::RANGE_LO, Untold(16)),
        (l::SIZE_FIELD, Quad),
        (l::ALIGNMENT, Quad),
        (l::OFFSET, Untold(24)),
        (l::H_VA_SPACE, Object),
        (l::INTERNALFLAGS, Word),
    ]
}

fn named(foreign: &[rm::Foreign]) -> Vec<Field> {
    let fields = foreign.iter().map(|f| {
        let kind = match f.names {
            Names::Client | Names::ClientArray { .. } => Client,
            Names::Process => Process,
        };
        (usize::from(f.offset), kind)
    });
    fields.collect()
}

/// The fields of a control's parameters.
pub fn of_control(abi: &Abi, cmd: u32, params: &[u8]) -> Vec<Field> {
    let mut fields = match cmd {
        ctrl::NV0000_OS_UNIX_EXPORT_OBJECT_TO_FD => {
            vec![(0, Word), (4, Object), (8, Object), (12, Object)]
        }
        ctrl::NV0000_OS_UNIX_IMPORT_OBJECT_FROM_FD => {
            vec![(4, Word), (8, Object), (12, Object), (16, New(12))]
        }
        ctrl::NV0000_OS_UNIX_EXPORT_OBJECTS_TO_FD => {
            let count = usize::from(word(params, 2124) as u16).min(16);
            let objects = (0..count).map(|i| (76 + 4 * i, Object));
            let own = [(4, Object), (8, Word), (12, Untold(64)), (2124, Word)];
            own.into_iter().chain(objects).collect()
        }
        ctrl::NV0000_OS_UNIX_IMPORT_OBJECTS_FROM_FD => {
            let count = usize::from(word(params, 648) as u16).min(16);
            let objects = (0..count).flat_map(|i| [(8 + 4 * i, New(4)), (520 + i, Untold(1))]);
            let own = [(4, Object), (648, Word)];
            own.into_iter().chain(objects).collect()
        }
        ctrl::NVA06C_SET_TIMESLICE => vec![(layout::timeslice::TIMESLICE_US, Quad)],
        // Subdevice, memory, and the intervals in both (ctrl00fd.h).
        ctrl::NV00FD_ATTACH_MEM => {
            vec![(0, Object), (4, Object), (8, Quad), (16, Quad), (24, Quad)]
        }
        ctrl::NV00FD_DETACH_MEM => vec![(0, Object), (8, Quad)],
        // The name of a part of the information ROM: three letters.
        ctrl::NV2080_GPU_GET_INFOROM_OBJECT_VERSION => vec![(0, Word)],
        ctrl::NV2080_GR_SET_CTXSW_PREEMPTION_MODE => {
            use layout::preemption_mode as l;
            vec![(l::FLAGS, Word), (l::H_CHANNEL, Object)]
        }
        _ => Vec::new(),
    };
    let Some(entry) = abi.control(cmd) else {
        return fields;
    };
    fields.extend(named(entry.foreign));
    fields.extend(
        entry
            .pointers
            .iter()
            .map(|p| (usize::from(p.offset), Pointer)),
    );
    fields.extend(entry.fd.map(|at| (usize::from(at), Descriptor)));
    fields
}
