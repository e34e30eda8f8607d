//! Calls to the resource manager that guard makes for itself: with an own client, never with the tenant's parameters.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use policy::units::Bytes;
use rm::{Abi, Status, class, ctrl, layout, nr};

use crate::backend::{Backend, Node};

/// The request of a frontend ioctl: read and write, type `F`.
pub fn request(nr: u8, size: usize) -> u32 {
    0xc000_0000 | (size as u32) << 16 | 0x46 << 8 | u32::from(nr)
}

/// Reads a `u32` of a block.
pub fn u32_at(block: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(block[at..at + 4].try_into().expect("four bytes"))
}

/// Reads a `u64` of a block.
pub fn u64_at(block: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(block[at..at + 8].try_into().expect("eight bytes"))
}

/// Writes a `u32` into a block.
pub fn put_u32(block: &mut [u8], at: usize, value: u32) {
    block[at..at + 4].copy_from_slice(&value.to_le_bytes());
}

/// Writes a `u64` into a block.
pub fn put_u64(block: &mut [u8], at: usize, value: u64) {
    block[at..at + 8].copy_from_slice(&value.to_le_bytes());
}

/// Runs control `cmd` on an object through `file`.
///
/// # Errors
/// The ioctl itself failed; the driver's own refusal is the status.
pub fn control(
    backend: &dyn Backend,
    file: BorrowedFd<'_>,
    client: u32,
    object: u32,
    cmd: u32,
    params: &mut [u8],
) -> io::Result<Status> {
    use layout::nvos54 as l;
    let mut block = [0u8; l::SIZE];
    put_u32(&mut block, l::H_CLIENT, client);
    put_u32(&mut block, l::H_OBJECT, object);
    put_u32(&mut block, l::CMD, cmd);
    // The driver refuses a pointer to nothing.
    if !params.is_empty() {
        put_u64(&mut block, l::PARAMS, params.as_mut_ptr() as u64);
        put_u32(&mut block, l::PARAMS_SIZE, params.len() as u32);
    }
    backend.ioctl(file, request(nr::RM_CONTROL, l::SIZE), &mut block)?;
    Ok(Status(u32_at(&block, l::STATUS)))
}

/// What the driver says for the number of no channel.
const NO_CHANNEL: u32 = u32::MAX;

/// Hardware's number of a channel of a client, asked by one of its devices; `None`: it has none.
///
/// # Errors
/// The ioctl failed, or the driver refused (the status is in the text).
pub fn number_of_channel(
    backend: &dyn Backend,
    file: BorrowedFd<'_>,
    (client, device, channel): (u32, u32, u32),
) -> io::Result<Option<u32>> {
    use layout::channel_list as l;
    let mut number = NO_CHANNEL;
    let mut params = [0u8; l::SIZE];
    put_u32(&mut params, l::NUM_CHANNELS, 1);
    let (handles, numbers) = (&raw const channel as u64, &raw mut number as u64);
    put_u64(&mut params, l::P_CHANNEL_HANDLE_LIST, handles);
    put_u64(&mut params, l::P_CHANNEL_LIST, numbers);
    let list = ctrl::NV0080_FIFO_GET_CHANNELLIST;
    match control(backend, file, client, device, list, &mut params)? {
        // The driver wrote it behind the compiler's back.
        Status::OK => Ok(Some(std::hint::black_box(number)).filter(|&n| n != NO_CHANNEL)),
        s => Err(io::Error::other(format!(
            "the driver refused the number of a channel: {s:?}"
        ))),
    }
}

/// Allocates an object; returns its handle.
///
/// # Errors
/// The ioctl failed, or the driver refused (the status is in the text).
pub fn alloc(
    backend: &dyn Backend,
    file: BorrowedFd<'_>,
    (client, parent, handle): (u32, u32, u32),
    class: u32,
    params: &mut [u8],
) -> io::Result<u32> {
    use layout::nvos64 as l;
    let mut block = [0u8; l::SIZE];
    put_u32(&mut block, l::H_ROOT, client);
    put_u32(&mut block, l::H_OBJECT_PARENT, parent);
    put_u32(&mut block, l::H_OBJECT_NEW, handle);
    put_u32(&mut block, l::H_CLASS, class);
    if !params.is_empty() {
        put_u64(&mut block, l::P_ALLOC_PARMS, params.as_mut_ptr() as u64);
        put_u32(&mut block, l::PARAMS_SIZE, params.len() as u32);
    }
    backend.ioctl(file, request(nr::RM_ALLOC, l::SIZE), &mut block)?;
    match Status(u32_at(&block, l::STATUS)) {
        Status::OK => Ok(u32_at(&block, l::H_OBJECT_NEW)),
        s => Err(io::Error::other(format!(
            "the driver refused class {class:#x}: {s:?}"
        ))),
    }
}

/// Frees an object of a client.
///
/// # Errors
/// The ioctl itself failed.
pub fn free(
    backend: &dyn Backend,
    file: BorrowedFd<'_>,
    client: u32,
    parent: u32,
    handle: u32,
) -> io::Result<Status> {
    use layout::nvos00 as l;
    let mut block = [0u8; l::SIZE];
    put_u32(&mut block, l::H_ROOT, client);
    put_u32(&mut block, l::H_OBJECT_PARENT, parent);
    put_u32(&mut block, l::H_OBJECT_OLD, handle);
    backend.ioctl(file, request(nr::RM_FREE, l::SIZE), &mut block)?;
    Ok(Status(u32_at(&block, l::STATUS)))
}

/// A GPU of this node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gpu {
    /// Position in the driver's order (as nvidia-smi counts).
    pub index: u32,
    /// `GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx`.
    pub uuid: String,
    /// The same, as sixteen bytes.
    pub uuid_bytes: [u8; 16],
    /// Product name.
    pub name: String,
    /// The driver's id of the card.
    pub gpu_id: u32,
    /// What an `NV01_DEVICE_0` names.
    pub instance: u32,
    /// `/dev/nvidiaN`.
    pub minor: u32,
    /// Memory that can be divided: the heap, without what the driver keeps for itself.
    pub memory: Bytes,
}

/// A client of guard's own, with one device and subdevice for each GPU.
pub struct OwnClient {
    backend: Arc<dyn Backend>,
    abi: &'static Abi,
    control_file: OwnedFd,
    /// `/dev/nvidiaN` of each GPU, held open: the driver looks for it in the table of whoever allocates a device.
    _gpu_files: Vec<OwnedFd>,
    client: u32,
    gpus: Vec<Gpu>,
    cards: Vec<CardInfo>,
}

/// Ask for the identity as bytes, not as text.
const GID_BINARY: u32 = 2;
/// `NV_DEVICE_ALLOCATION_VAMODE_MULTIPLE_VASPACES`.
const MULTIPLE_VASPACES: u32 = 2;

/// Channels of one call that detaches or attaches (`NV2080_CTRL_FIFO_DISABLE_CHANNELS_MAX_ENTRIES`).
pub const MOST_CHANNELS: usize = 64;

/// Indices of frame-buffer information (in KiB).
pub mod fb {
    /// Heap size: what can be allocated on an empty card.
    pub const HEAP_SIZE: u32 = 0x09;
    /// Heap free now.
    pub const HEAP_FREE: u32 = 0x16;
}

fn device_handle(i: usize) -> u32 {
    0xcafe_0000 + i as u32
}

fn subdevice_handle(i: usize) -> u32 {
    0xcaff_0000 + i as u32
}

/// The driver's files, open: where only root may open them, this is done before the helper gives root up.
pub struct OwnFiles {
    control: OwnedFd,
    gpus: Vec<OwnedFd>,
    cards: Vec<CardInfo>,
}

impl OwnFiles {
    /// Opens `nvidiactl` and the file of every card.
    ///
    /// # Errors
    /// As open(2).
    pub fn open(backend: &dyn Backend) -> io::Result<OwnFiles> {
        let control = backend.open(Node::Control)?;
        let cards = card_info(backend, control.as_fd())?;
        let gpus = cards
            .iter()
            .map(|card| backend.open(Node::Gpu(card.minor)))
            .collect::<io::Result<Vec<_>>>()?;
        Ok(OwnFiles {
            control,
            gpus,
            cards,
        })
    }
}

impl OwnClient {
    /// Opens the driver and finds its GPUs.
    ///
    /// # Errors
    /// A device file cannot be opened, or the driver refuses.
    pub fn open(backend: Arc<dyn Backend>) -> io::Result<OwnClient> {
        let files = OwnFiles::open(backend.as_ref())?;
        OwnClient::new(backend, files)
    }

    /// Becomes a client of the driver, as whoever calls, and finds its GPUs.
    ///
    /// # Errors
    /// The driver is of no known branch; it refuses, or does not answer a question that the guard cannot do without.
    pub fn new(backend: Arc<dyn Backend>, files: OwnFiles) -> io::Result<OwnClient> {
        let OwnFiles {
            control: control_file,
            gpus: gpu_files,
            cards,
        } = files;
        let (abi, _) = branch_of(backend.as_ref())?;
        let client = alloc(
            backend.as_ref(),
            control_file.as_fd(),
            (0, 0, 0),
            class::NV01_ROOT_CLIENT,
            &mut [],
        )?;
        let mut own = OwnClient {
            backend,
            abi,
            control_file,
            _gpu_files: gpu_files,
            client,
            gpus: Vec::new(),
            cards,
        };
        let mut ids = [0xffu8; 128];
        own.control(client, ctrl::NV0000_GPU_GET_ATTACHED_IDS, &mut ids)?;
        let attached = ids
            .chunks_exact(4)
            .map(|c| u32_at(c, 0))
            .take_while(|&id| id != u32::MAX);
        for (index, gpu_id) in attached.enumerate() {
            let card = own.cards.iter().find(|card| card.gpu_id == gpu_id);
            let minor = card.map_or(index as u32, |card| card.minor);
            let gpu = own.add_gpu(index, gpu_id, minor)?;
            own.can_measure(&gpu)?;
            own.gpus.push(gpu);
        }
        Ok(own)
    }

    fn add_gpu(&mut self, index: usize, gpu_id: u32, minor: u32) -> io::Result<Gpu> {
        use layout::device_alloc as d;
        let mut info = [0u8; 32];
        put_u32(&mut info, 0, gpu_id);
        self.control(self.client, ctrl::NV0000_GPU_GET_ID_INFO_V2, &mut info)?;
        let (instance, sub_instance) = (u32_at(&info, 8), u32_at(&info, 12));
        let mut params = [0u8; d::SIZE];
        put_u32(&mut params, d::DEVICE_ID, instance);
        put_u32(&mut params, d::H_CLIENT_SHARE, self.client);
        put_u32(&mut params, d::VA_MODE, MULTIPLE_VASPACES);
        let (device, subdevice) = (device_handle(index), subdevice_handle(index));
        let file = self.control_file.as_fd();
        alloc(
            self.backend.as_ref(),
            file,
            (self.client, self.client, device),
            class::NV01_DEVICE_0,
            &mut params,
        )?;
        let mut sub = sub_instance.to_le_bytes();
        alloc(
            self.backend.as_ref(),
            file,
            (self.client, device, subdevice),
            class::NV20_SUBDEVICE_0,
            &mut sub,
        )?;

        let mut gid = [0u8; 268];
        put_u32(&mut gid, 4, GID_BINARY);
        self.control(subdevice, ctrl::NV2080_GPU_GET_GID_INFO, &mut gid)?;
        let uuid_bytes: [u8; 16] = gid[12..28].try_into().expect("sixteen bytes");
        let mut name = self.params_of(ctrl::NV2080_GPU_GET_NAME_STRING)?;
        self.control(subdevice, ctrl::NV2080_GPU_GET_NAME_STRING, &mut name)?;
        let name = name[4..].split(|&b| b == 0).next().unwrap_or_default();
        let heap = self.frame_buffer_at(index, &[fb::HEAP_SIZE])?[0];
        Ok(Gpu {
            index: index as u32,
            uuid: format_uuid(&uuid_bytes),
            uuid_bytes,
            name: String::from_utf8_lossy(name).into_owned(),
            gpu_id,
            instance,
            minor,
            memory: heap,
        })
    }

    pub(crate) fn control(&self, object: u32, cmd: u32, params: &mut [u8]) -> io::Result<()> {
        match control(
            self.backend.as_ref(),
            self.control_file.as_fd(),
            self.client,
            object,
            cmd,
            params,
        )? {
            Status::OK => Ok(()),
            s => Err(io::Error::other(format!(
                "the driver refused control {cmd:#x}: {s:?}"
            ))),
        }
    }

    /// Empty parameters of a control whose size goes with the branch.
    fn params_of(&self, cmd: u32) -> io::Result<Vec<u8>> {
        let entry = self.abi.control(cmd).ok_or_else(|| {
            io::Error::new(
                io::ErrorKind::Unsupported,
                format!("branch {} has no control {cmd:#x}", self.abi.branch()),
            )
        })?;
        Ok(vec![0; entry.size as usize])
    }

    /// Asks once for everything that later measures rest on. A card or a driver that does not answer is refused here:
    /// a limit on guesses is none.
    fn can_measure(&self, gpu: &Gpu) -> io::Result<()> {
        let cannot = |what: &str| {
            io::Error::new(
                io::ErrorKind::Unsupported,
                format!(
                    "GPU {} ({}): {what}, so memory cannot be limited on this card with this driver",
                    gpu.index, gpu.name
                ),
            )
        };
        if gpu.memory == Bytes(0) {
            return Err(cannot(
                "the driver says that it has no memory of its own to allocate (FB_GET_INFO_V2, HEAP_SIZE is 0)",
            ));
        }
        self.free_memory(gpu).map_err(|e| {
            cannot(&format!(
                "how much memory is free is not told (FB_GET_INFO_V2: {e})"
            ))
        })?;
        self.memory_of(gpu, std::process::id()).map_err(|e| {
            cannot(&format!(
                "how much memory a process holds is not told (GET_PID_INFO: {e})"
            ))
        })?;
        Ok(())
    }

    /// The GPUs of this node, in the driver's order.
    pub fn gpus(&self) -> &[Gpu] {
        &self.gpus
    }

    /// The window through which the processor reaches the card's memory (BAR1); zero: the driver names none.
    pub fn bar1(&self, gpu: &Gpu) -> Bytes {
        let card = self.cards.iter().find(|card| card.gpu_id == gpu.gpu_id);
        card.map_or(Bytes::ZERO, |card| card.bar1)
    }

    /// Our own client handle.
    pub fn client(&self) -> u32 {
        self.client
    }

    /// The file that our client is on.
    pub(crate) fn file(&self) -> BorrowedFd<'_> {
        self.control_file.as_fd()
    }

    /// The driver.
    pub(crate) fn backend(&self) -> &Arc<dyn Backend> {
        &self.backend
    }

    /// Bytes of a class's allocation parameters, in this branch.
    ///
    /// # Errors
    /// The branch has no such class.
    pub(crate) fn size_of_class(&self, class: u32) -> io::Result<usize> {
        let entry = self.abi.class(class).ok_or_else(|| {
            io::Error::new(
                io::ErrorKind::Unsupported,
                format!("branch {} has no class {class:#x}", self.abi.branch()),
            )
        })?;
        Ok(usize::from(entry.size))
    }

    /// Our handle of a GPU's subdevice.
    pub(crate) fn subdevice(gpu: &Gpu) -> u32 {
        subdevice_handle(gpu.index as usize)
    }

    /// Takes channels (client, handle) off their runlists, whatever they run, or puts them back; at most
    /// [`MOST_CHANNELS`]. It needs no right but their names (measured on an H200, driver 580.159).
    ///
    /// # Errors
    /// The driver refuses; then it has done nothing for some or all of them.
    pub fn detach(&self, gpu: &Gpu, channels: &[(u32, u32)], detach: bool) -> io::Result<()> {
        use layout::disable_channels as d;
        let mut params = [0u8; d::SIZE];
        params[d::B_DISABLE] = detach.into();
        put_u32(&mut params, d::NUM_CHANNELS, channels.len() as u32);
        for (i, &(client, channel)) in channels.iter().enumerate() {
            put_u32(&mut params, d::H_CLIENT_LIST + 4 * i, client);
            put_u32(&mut params, d::H_CHANNEL_LIST + 4 * i, channel);
        }
        self.control(
            OwnClient::subdevice(gpu),
            ctrl::NV2080_FIFO_DISABLE_CHANNELS,
            &mut params,
        )
    }

    /// The card's own time in nanoseconds.
    ///
    /// # Errors
    /// The driver refuses.
    pub fn gpu_time(&self, gpu: &Gpu) -> io::Result<u64> {
        let mut params = [0u8; layout::timer_time::SIZE];
        self.control(
            OwnClient::subdevice(gpu),
            ctrl::NV2080_TIMER_GET_TIME,
            &mut params,
        )?;
        Ok(u64_at(&params, layout::timer_time::TIME_NSEC))
    }

    /// Hardware's number of the channel whose context is on a card's compute engine, at work or not; `None`: there is
    /// none.
    ///
    /// # Errors
    /// The driver refuses.
    pub fn resident_channel(&self, gpu: &Gpu) -> io::Result<Option<u32>> {
        let mut params = [0u8; layout::resident_channel::SIZE];
        self.control(
            OwnClient::subdevice(gpu),
            ctrl::NV2080_GR_GET_CURRENT_RESIDENT_CHANNEL,
            &mut params,
        )?;
        let number = u32_at(&params, layout::resident_channel::CH_ID);
        Ok((number != NO_CHANNEL).then_some(number))
    }

    fn frame_buffer_at(&self, index: usize, want: &[u32]) -> io::Result<Vec<Bytes>> {
        use layout::{fb_info, fb_info_entry};
        let mut block = self.params_of(ctrl::NV2080_FB_GET_INFO_V2)?;
        put_u32(&mut block, fb_info::FB_INFO_LIST_SIZE, want.len() as u32);
        let entry = |i: usize| fb_info::FB_INFO_LIST + i * fb_info_entry::SIZE;
        for (i, &w) in want.iter().enumerate() {
            put_u32(&mut block, entry(i) + fb_info_entry::INDEX, w);
        }
        self.control(
            subdevice_handle(index),
            ctrl::NV2080_FB_GET_INFO_V2,
            &mut block,
        )?;
        Ok((0..want.len())
            .map(|i| Bytes::from_kib(u64::from(u32_at(&block, entry(i) + fb_info_entry::DATA))))
            .collect())
    }

    /// Memory of a GPU that nobody holds now.
    ///
    /// # Errors
    /// The driver refuses.
    pub fn free_memory(&self, gpu: &Gpu) -> io::Result<Bytes> {
        Ok(self.frame_buffer_at(gpu.index as usize, &[fb::HEAP_FREE])?[0])
    }

    /// What the driver says a process holds on a GPU: exact for allocations through the resource manager, blind to
    /// managed memory, page tables and context buffers (measured on an H200, driver 580.159).
    ///
    /// # Errors
    /// The driver refuses.
    pub fn memory_of(&self, gpu: &Gpu, pid: u32) -> io::Result<Bytes> {
        use layout::{pid_info, pid_info_entry as e};
        let mut block = vec![0u8; pid_info::SIZE];
        put_u32(&mut block, pid_info::PID_INFO_LIST_COUNT, 1);
        put_u32(&mut block, pid_info::PID_INFO_LIST + e::PID, pid);
        self.control(
            subdevice_handle(gpu.index as usize),
            ctrl::NV2080_GPU_GET_PID_INFO,
            &mut block,
        )?;
        let entry = &block[pid_info::PID_INFO_LIST..];
        if u32_at(entry, e::RESULT) != 0 {
            return Ok(Bytes(0));
        }
        Ok(Bytes(
            u64_at(entry, e::MEM_PRIVATE) + u64_at(entry, e::MEM_SHARED_OWNED),
        ))
    }
}

/// What `CARD_INFO` says of a card.
struct CardInfo {
    gpu_id: u32,
    minor: u32,
    bar1: Bytes,
}

fn card_info(backend: &dyn Backend, file: BorrowedFd<'_>) -> io::Result<Vec<CardInfo>> {
    use layout::card_info as c;
    const ROOM: usize = 32;
    let mut block = vec![0u8; ROOM * c::SIZE];
    backend.ioctl(file, request(nr::CARD_INFO, ROOM * c::SIZE), &mut block)?;
    Ok(block
        .chunks_exact(c::SIZE)
        .filter(|card| card[c::VALID] != 0)
        .map(|card| CardInfo {
            gpu_id: u32_at(card, c::GPU_ID),
            minor: u32_at(card, c::MINOR_NUMBER),
            bar1: Bytes(u64_at(card, c::FB_SIZE)),
        })
        .collect())
}

/// `GPU-` and the sixteen bytes in the usual groups.
pub fn format_uuid(bytes: &[u8; 16]) -> String {
    let hex: String = bytes.iter().map(|b| format!("{b:02x}")).collect();
    format!(
        "GPU-{}-{}-{}-{}-{}",
        &hex[..8],
        &hex[8..12],
        &hex[12..16],
        &hex[16..20],
        &hex[20..]
    )
}

/// The branch of the driver that runs, with a word to the user if its exact release is not listed.
///
/// # Errors
/// No driver, or a branch that this version does not know: one line with what to do.
pub fn branch_of(backend: &dyn Backend) -> io::Result<(&'static Abi, Option<String>)> {
    let version = backend.driver_version()?;
    let found = rm::for_driver(&version)
        .map_err(|e| io::Error::new(io::ErrorKind::Unsupported, e.to_string()))?;
    let note = (!found.listed).then(|| {
        format!("driver {version} is not among the releases this version was checked with; using the layouts of its branch")
    });
    Ok((found.abi, note))
}
