//! A root client: objects, controls, sharing.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering};

use rm::{class, ctrl, layout, nr};

use super::{Answer, Block, Device, File, Node, checked, request};

/// First handle that a client gives its objects.
const FIRST_HANDLE: u32 = 0x5c00_0001;

/// Who may duplicate an object (`RS_SHARE_TYPE`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Share {
    /// Everybody.
    All,
    /// Processes of the same user.
    User,
    /// One client.
    Client(u32),
}

/// A root client and the control file it hangs on.
#[derive(Debug)]
pub struct Client {
    node: Node,
    control_file: OwnedFd,
    root: u32,
    next: AtomicU32,
}

impl Client {
    /// Opens the control file and becomes a client.
    ///
    /// # Errors
    /// The file cannot be opened, or the driver refuses.
    pub fn open(node: &Node) -> Answer<Client> {
        Client::on_file(node, node.open(File::Control)?)
    }

    /// Becomes a client on an open control file.
    ///
    /// # Errors
    /// The driver refuses.
    pub fn on_file(node: &Node, control_file: OwnedFd) -> Answer<Client> {
        Client::on_file_as(node, control_file, 0)
    }

    /// As [`Client::on_file`] with a handle of the caller's choice; 0: the driver chooses.
    ///
    /// # Errors
    /// The driver refuses.
    pub fn on_file_as(node: &Node, control_file: OwnedFd, handle: u32) -> Answer<Client> {
        let mut client = Client {
            node: node.clone(),
            control_file,
            root: 0,
            next: AtomicU32::new(FIRST_HANDLE),
        };
        client.root = client.alloc_as(0, handle, class::NV01_ROOT_CLIENT, Block::new(0))?;
        Ok(client)
    }

    /// The node.
    pub fn node(&self) -> &Node {
        &self.node
    }

    /// Its handle.
    pub fn root(&self) -> u32 {
        self.root
    }

    /// The control file.
    pub fn file(&self) -> BorrowedFd<'_> {
        self.control_file.as_fd()
    }

    /// A handle that no object of this client has had.
    pub fn fresh(&self) -> u32 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    /// Makes a frontend ioctl of the block's size on the control file.
    ///
    /// # Errors
    /// As ioctl(2).
    pub fn escape(&self, number: u8, block: &mut Block) -> Answer {
        self.node
            .ioctl(self.file(), request(number, block.len()), block)
            .map(|_| ())
    }

    /// One more client on the same control file; gives its handle. The first word of the block is no client that acts here,
    /// but the handle that is wanted for the new one (0: the driver chooses).
    ///
    /// # Errors
    /// The driver refuses.
    pub fn one_more(&self) -> Answer<u32> {
        use layout::nvos64 as l;
        let mut block = Block::new(l::SIZE).with32(l::H_CLASS, class::NV01_ROOT_CLIENT);
        self.escape(nr::RM_ALLOC, &mut block)?;
        checked(block.u32(l::STATUS))?;
        Ok(block.u32(l::H_OBJECT_NEW))
    }

    /// Allocates an object of `class` below `parent`; gives its handle.
    ///
    /// # Errors
    /// The driver refuses.
    pub fn alloc(&self, parent: u32, class: u32, params: Block) -> Answer<u32> {
        self.alloc_as(parent, self.fresh(), class, params)
    }

    /// As [`Client::alloc`] with a handle of the caller's choice; 0: the driver chooses.
    ///
    /// # Errors
    /// The driver refuses.
    pub fn alloc_as(&self, parent: u32, handle: u32, class: u32, mut params: Block) -> Answer<u32> {
        use layout::nvos64 as l;
        let mut block = Block::new(l::SIZE)
            .with32(l::H_ROOT, self.root)
            .with32(l::H_OBJECT_PARENT, parent)
            .with32(l::H_OBJECT_NEW, handle)
            .with32(l::H_CLASS, class)
            .with64(l::P_ALLOC_PARMS, params.address())
            .with32(l::PARAMS_SIZE, params.len() as u32);
        self.escape(nr::RM_ALLOC, &mut block)?;
        checked(block.u32(l::STATUS))?;
        Ok(block.u32(l::H_OBJECT_NEW))
    }

    /// Frees an object and everything below it. The client's own handle frees the client.
    ///
    /// # Errors
    /// The driver refuses.
    pub fn free(&self, object: u32) -> Answer {
        use layout::nvos00 as l;
        let mut block = Block::new(l::SIZE)
            .with32(l::H_ROOT, self.root)
            .with32(l::H_OBJECT_PARENT, self.root)
            .with32(l::H_OBJECT_OLD, object);
        self.escape(nr::RM_FREE, &mut block)?;
        checked(block.u32(l::STATUS))
    }

    /// Sends a control command to an object; the block carries the parameters and takes the answer.
    ///
    /// # Errors
    /// The driver refuses.
    pub fn control(&self, object: u32, command: u32, params: &mut Block) -> Answer {
        use layout::nvos54 as l;
        let mut block = Block::new(l::SIZE)
            .with32(l::H_CLIENT, self.root)
            .with32(l::H_OBJECT, object)
            .with32(l::CMD, command)
            .with64(l::PARAMS, params.address())
            .with32(l::PARAMS_SIZE, params.len() as u32);
        self.escape(nr::RM_CONTROL, &mut block)?;
        checked(block.u32(l::STATUS))
    }

    /// Another handle, below `parent`, for an object of some client.
    ///
    /// # Errors
    /// The driver refuses.
    pub fn duplicate(&self, parent: u32, source_client: u32, source: u32) -> Answer<u32> {
        use layout::nvos55 as l;
        let mut block = Block::new(l::SIZE)
            .with32(l::H_CLIENT, self.root)
            .with32(l::H_PARENT, parent)
            .with32(l::H_OBJECT, self.fresh())
            .with32(l::H_CLIENT_SRC, source_client)
            .with32(l::H_OBJECT_SRC, source);
        self.escape(nr::RM_DUP_OBJECT, &mut block)?;
        checked(block.u32(l::STATUS))?;
        Ok(block.u32(l::H_OBJECT))
    }

    /// Lets others duplicate an object.
    ///
    /// # Errors
    /// The driver refuses.
    pub fn share(&self, object: u32, with: Share) -> Answer {
        use layout::nvos57 as l;
        /// `RS_SHARE_ACTION_FLAG_COMPOSE`: beside what is granted already.
        const COMPOSE: u8 = 4;
        /// `RS_ACCESS_DUP_OBJECT`.
        const DUPLICATE: u32 = 1;
        let (kind, target): (u16, u32) = match with {
            Share::All => (1, 0),
            Share::User => (2, 0),
            Share::Client(client) => (3, client),
        };
        let mut block = Block::new(l::SIZE)
            .with32(l::H_CLIENT, self.root)
            .with32(l::H_OBJECT, object)
            .with32(l::TARGET, target)
            .with32(l::ACCESS_MASK, DUPLICATE)
            .with(l::TYPE, &kind.to_le_bytes())
            .with(l::ACTION, &[COMPOSE]);
        self.escape(nr::RM_SHARE, &mut block)?;
        checked(block.u32(l::STATUS))
    }

    /// Exports an object to an open control file.
    ///
    /// # Errors
    /// The driver refuses.
    pub fn export(&self, device: u32, object: u32, to: BorrowedFd<'_>) -> Answer {
        /// type@0 hDevice@4 hParent@8 hObject@12 fd@16 flags@20.
        const RM_OBJECT: u32 = 1;
        let mut params = Block::new(24)
            .with32(0, RM_OBJECT)
            .with32(4, device)
            .with32(8, device)
            .with32(12, object)
            .with32(16, to.as_raw_fd() as u32);
        self.control(
            self.root,
            ctrl::NV0000_OS_UNIX_EXPORT_OBJECT_TO_FD,
            &mut params,
        )
    }

    /// Imports what was exported to an open control file; gives its handle here.
    ///
    /// # Errors
    /// The driver refuses.
    pub fn import(&self, device: u32, from: BorrowedFd<'_>) -> Answer<u32> {
        /// fd@0 type@4 hDevice@8 hParent@12 hObject@16.
        const RM_OBJECT: u32 = 1;
        let mut params = Block::new(20)
            .with32(0, from.as_raw_fd() as u32)
            .with32(4, RM_OBJECT)
            .with32(8, device)
            .with32(12, device)
            .with32(16, self.fresh());
        self.control(
            self.root,
            ctrl::NV0000_OS_UNIX_IMPORT_OBJECT_FROM_FD,
            &mut params,
        )?;
        Ok(params.u32(16))
    }

    /// The devices that this client may see, in the driver's order.
    ///
    /// # Errors
    /// The driver refuses.
    pub fn devices(&self) -> Answer<Vec<Device>> {
        self.gpu_ids()?
            .into_iter()
            .map(|id| Device::open(self, id))
            .collect()
    }

    /// The first device.
    ///
    /// # Errors
    /// The driver refuses, or there is none (`ENODEV`).
    pub fn first_device(&self) -> Answer<Device> {
        let first = self
            .gpu_ids()?
            .first()
            .copied()
            .ok_or(super::Fault::Os(libc::ENODEV))?;
        Device::open(self, first)
    }

    /// The driver's ids of the cards that this client may see, in the driver's order.
    ///
    /// # Errors
    /// The driver refuses.
    pub fn gpu_ids(&self) -> Answer<Vec<u32>> {
        let mut ids = Block::new(128).with(0, &[0xff; 128]);
        self.control(self.root, ctrl::NV0000_GPU_GET_ATTACHED_IDS, &mut ids)?;
        Ok((0..32)
            .map(|i| ids.u32(4 * i))
            .take_while(|&id| id != u32::MAX)
            .collect())
    }

    /// Number of the device file of a card.
    ///
    /// # Errors
    /// The driver refuses, or there is no such card (`ENODEV`).
    pub fn minor_of(&self, gpu_id: u32) -> Answer<u32> {
        use layout::card_info as l;
        const ROOM: usize = 32;
        let mut block = Block::new(ROOM * l::SIZE);
        self.escape(nr::CARD_INFO, &mut block)?;
        (0..ROOM)
            .map(|i| i * l::SIZE)
            .find(|at| {
                block.bytes::<1>(at + l::VALID) != [0] && block.u32(at + l::GPU_ID) == gpu_id
            })
            .map(|at| block.u32(at + l::MINOR_NUMBER))
            .ok_or(super::Fault::Os(libc::ENODEV))
    }
}
