//! What one entry of the table says.

/// An RM status word (`NV_STATUS`), as the driver writes it into a parameter block.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Status(pub u32);

impl Status {
    /// The call succeeded.
    pub const OK: Status = Status(0);
    /// The caller may not do this (`NV_ERR_INSUFFICIENT_PERMISSIONS`).
    pub const INSUFFICIENT_PERMISSIONS: Status = Status(0x1b);
    /// An argument is out of range (`NV_ERR_INVALID_ARGUMENT`).
    pub const INVALID_ARGUMENT: Status = Status(0x1f);
    /// There is no such class (`NV_ERR_INVALID_CLASS`).
    pub const INVALID_CLASS: Status = Status(0x22);
    /// The client handle does not belong to this file (`NV_ERR_INVALID_CLIENT`).
    pub const INVALID_CLIENT: Status = Status(0x23);
    /// No memory left (`NV_ERR_NO_MEMORY`): what an application sees as `CUDA_ERROR_OUT_OF_MEMORY`.
    pub const NO_MEMORY: Status = Status(0x51);
    /// The driver does not know this call (`NV_ERR_NOT_SUPPORTED`).
    pub const NOT_SUPPORTED: Status = Status(0x56);
    /// No object has this handle (`NV_ERR_OBJECT_NOT_FOUND`).
    pub const OBJECT_NOT_FOUND: Status = Status(0x57);
}

impl core::fmt::Debug for Status {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "Status({:#x})", self.0)
    }
}

/// What the guard does with a call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Decision {
    /// The helper executes it on its own copy and writes the results back.
    Execute,
    /// It needs the caller's address space: it runs in the tenant and is verified afterwards.
    InTenant,
    /// The filter lets it through without a notification: its worst case is harmless whatever the memory says.
    Pass,
    /// The tenant is told that it succeeded; nothing is done.
    Absorb,
    /// The tenant is told this status; the driver never sees the call.
    Refuse(Status),
}

/// What a call means for the memory ledger.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Account {
    /// It takes device memory: charged before it is forwarded.
    Charges(Charge),
    /// It makes another name for memory that is charged already.
    Shares,
    /// It gives memory back.
    Releases,
    /// It touches no device memory.
    Free,
}

/// How much device memory a charging call takes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Charge {
    /// The `MEMORY_ALLOCATION` block says: size, page size and location in its attributes.
    MemoryAllocation,
    /// The `NVOS32` block says (functions 2, 6, 14).
    VidHeap,
    /// Nothing says: context buffers, instance memory, page tables. Measured around the call.
    Measured,
    /// A mapping of the UVM file: its length (managed memory is charged when it is reserved).
    ManagedMapping,
}

/// A field of a parameter block that can name an object of another client.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Foreign {
    /// Byte offset of the (first) field.
    pub offset: u16,
    /// What the field holds.
    pub names: Names,
}

/// What a [`Foreign`] field holds, and so what it may hold.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Names {
    /// One client handle: zero or a client of this tenant.
    Client,
    /// An array of client handles in the block itself, its length a `u32` at `count`, at most `max`.
    ClientArray {
        /// Byte offset of the length.
        count: u16,
        /// Most entries the block has room for.
        max: u16,
    },
    /// A process id: zero or a process of this tenant.
    Process,
}

/// A pointer inside a parameter block: what it points to is copied in, executed on a copy, and copied back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Pointer {
    /// Byte offset of the 8-byte pointer in the block.
    pub offset: u16,
    /// How many elements it points to.
    pub count: Count,
    /// Bytes of one element.
    pub element: u16,
    /// Most bytes that may be copied; a larger request is refused.
    pub max: u32,
}

/// Where the length of an embedded array stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Count {
    /// A `u32` at this byte offset of the block.
    Field(u16),
    /// Always this many.
    Fixed(u32),
    /// The square of the `u32` at this byte offset.
    Square(u16),
}

/// How the driver's answer is changed before the tenant sees it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Answer {
    /// As the driver wrote it.
    AsIs,
    /// Frame-buffer information, entries in the block (`{count, {index, KiB}...}`): the slice's numbers.
    FbInfoInline,
    /// Frame-buffer information behind a pointer (`{count, pad, ptr}`): the slice's numbers.
    FbInfoPointer,
    /// Process ids on the device (GET_PIDS): the tenant's own processes.
    Pids,
    /// Memory of a process (GET_PID_INFO): from the ledger.
    PidInfo,
    /// A list of gpu ids: only those of the slice.
    GpuIds,
    /// Frame-buffer regions: sizes cut to the slice.
    FbRegions,
    /// Utilisation samples with process ids: foreign entries zeroed.
    UtilSamples,
    /// A list of {pid, ...} of other tenants: foreign entries zeroed.
    ForeignZeroed,
}

/// A frontend ioctl (`/dev/nvidiactl`, `/dev/nvidiaN`), by its number: the low 8 bits.
#[derive(Clone, Copy, Debug)]
pub struct Escape {
    /// Low 8 bits of the request.
    pub nr: u8,
    /// Name in the driver's headers.
    pub name: &'static str,
    /// Every size (`_IOC_SIZE`) the driver accepts for it; any other is rejected by the driver itself.
    pub sizes: &'static [u16],
    /// What the guard does.
    pub decision: Decision,
    /// What it means for the ledger.
    pub account: Account,
    /// Fields that can name another client.
    pub foreign: &'static [Foreign],
    /// Byte offset of the status word, if the block has one (by size, same order as `sizes`).
    pub status: &'static [Option<u16>],
    /// Byte offset of a file descriptor that must be translated, if any.
    pub fd: Option<u16>,
    /// Why this decision is right.
    pub why: &'static str,
}

/// A UVM ioctl, by its whole low 32-bit word.
#[derive(Clone, Copy, Debug)]
pub struct UvmCall {
    /// The 32-bit request.
    pub request: u32,
    /// Name in the driver's headers.
    pub name: &'static str,
    /// Bytes of its parameter block.
    pub size: u16,
    /// Byte offset of `rmStatus`, if it has one.
    pub status: Option<u16>,
    /// What the guard does.
    pub decision: Decision,
    /// What it means for the ledger.
    pub account: Account,
    /// Fields that can name another client.
    pub foreign: &'static [Foreign],
    /// Why this decision is right.
    pub why: &'static str,
}

/// A class that can be allocated with `RM_ALLOC`.
#[derive(Clone, Copy, Debug)]
pub struct Class {
    /// Class number.
    pub id: u32,
    /// Name in the driver's headers.
    pub name: &'static str,
    /// Bytes of its allocation parameters (the driver goes by the class, not by `paramsSize`); 0: none.
    pub size: u16,
    /// What sort of object it makes.
    pub kind: Kind,
    /// What the guard does.
    pub decision: Decision,
    /// What it means for the ledger.
    pub account: Account,
    /// Fields of its parameters that can name another client.
    pub foreign: &'static [Foreign],
    /// Why this decision is right.
    pub why: &'static str,
}

/// Sorts of object the guard has to tell apart.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// A root client.
    Client,
    /// A GPU as a client sees it.
    Device,
    /// A part of a device that controls address.
    Subdevice,
    /// Memory.
    Memory,
    /// A channel group (TSG).
    ChannelGroup,
    /// A channel.
    Channel,
    /// An address space.
    VaSpace,
    /// An engine object under a channel.
    Engine,
    /// An event.
    Event,
    /// Anything else.
    Other,
}

/// A control command (`RM_CONTROL`).
#[derive(Clone, Copy, Debug)]
pub struct Control {
    /// Command word.
    pub cmd: u32,
    /// Name in the driver's headers.
    pub name: &'static str,
    /// Bytes of its parameters on this branch; 0: none.
    pub size: u32,
    /// What the guard does.
    pub decision: Decision,
    /// What it means for the ledger.
    pub account: Account,
    /// Fields of its parameters that can name another client.
    pub foreign: &'static [Foreign],
    /// Pointers inside its parameters.
    pub pointers: &'static [Pointer],
    /// Byte offset of a file descriptor inside its parameters.
    pub fd: Option<u16>,
    /// How the answer is changed.
    pub answer: Answer,
    /// Why this decision is right.
    pub why: &'static str,
}
