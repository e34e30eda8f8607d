//! Rules that depend on who calls: two processes and two users, which one test process cannot be.

use std::fs::File;

use rm::{class, layout, nr};

use super::*;
use crate::client::Node;

const DEVICE: u32 = 0x5c00_0002;
const MEMORY: u32 = 0x5c00_0010;

/// A process with a control file, a device file, a UVM file and a client with a device.
struct Process {
    caller: Caller,
    control: FileId,
    uvm: FileId,
    keeper: FileId,
    client: u32,
}

fn status(block: &Block, at: usize) -> Status {
    Status(block.u32(at))
}

fn allocate(
    rm: &mut Rm,
    caller: Caller,
    control: FileId,
    words: [u32; 4],
    params: Block,
) -> (Status, u32) {
    let mut call = Call::new(caller, control, Block(vec![0; layout::nvos64::SIZE]));
    for (index, word) in words.into_iter().enumerate() {
        call.block.put_u32(4 * index, word);
    }
    call.params = Some(params);
    call.device_files = rm.device_file_ids();
    rm.frontend(nr::RM_ALLOC, &mut call).unwrap();
    (
        status(&call.block, layout::nvos64::STATUS),
        call.block.u32(layout::nvos64::H_OBJECT_NEW),
    )
}

impl Process {
    fn new(rm: &mut Rm, pid: u32, euid: u32) -> Process {
        let caller = Caller { pid, euid };
        let mut open = |kind: u32, node| {
            let id = (1, u64::from(pid * 10 + kind));
            rm.add_file(id, Some(node), File::open("/dev/null").unwrap().into());
            id
        };
        let (control, _, uvm, keeper) = (
            open(0, Node::Control),
            open(1, Node::Gpu(0)),
            open(2, Node::Uvm),
            open(3, Node::Uvm),
        );
        let (_, client) = allocate(rm, caller, control, [0; 4], Block::default());
        let process = Process {
            caller,
            control,
            uvm,
            keeper,
            client,
        };
        assert_eq!(
            process.alloc(rm, client, DEVICE, class::NV01_DEVICE_0, Block(vec![0; 56])),
            Status::OK
        );
        process
    }

    fn alloc(&self, rm: &mut Rm, parent: u32, handle: u32, class: u32, params: Block) -> Status {
        allocate(
            rm,
            self.caller,
            self.control,
            [self.client, parent, handle, class],
            params,
        )
        .0
    }

    fn memory(&self, rm: &mut Rm, handle: u32, size: u64) -> Status {
        let mut params = Block(vec![0; size_of_class(class::NV01_MEMORY_LOCAL_USER)]);
        params.put_u64(layout::memory_allocation::SIZE_FIELD, size);
        self.alloc(rm, DEVICE, handle, class::NV01_MEMORY_LOCAL_USER, params)
    }

    fn call(&self, rm: &mut Rm, number: u8, block: Block, status_at: usize) -> Status {
        let mut call = Call::new(self.caller, self.control, block);
        call.descriptor = Some(self.control);
        rm.frontend(number, &mut call).unwrap();
        status(&call.block, status_at)
    }

    fn dup(&self, rm: &mut Rm, from: &Process, handle: u32) -> Status {
        use layout::nvos55 as at;
        let mut block = Block(vec![0; at::SIZE]);
        for (field, word) in [
            (at::H_CLIENT, self.client),
            (at::H_PARENT, DEVICE),
            (at::H_OBJECT, handle),
            (at::H_CLIENT_SRC, from.client),
            (at::H_OBJECT_SRC, MEMORY),
        ] {
            block.put_u32(field, word);
        }
        self.call(rm, nr::RM_DUP_OBJECT, block, at::STATUS)
    }

    fn share(&self, rm: &mut Rm, kind: u16, target: u32) -> Status {
        use layout::nvos57 as at;
        let mut block = Block(vec![0; at::SIZE]);
        block.put_u32(at::H_CLIENT, self.client);
        block.put_u32(at::H_OBJECT, MEMORY);
        block.put_u32(at::TARGET, target);
        block.put_u16(at::TYPE, kind);
        self.call(rm, nr::RM_SHARE, block, at::STATUS)
    }

    fn free(&self, rm: &mut Rm, handle: u32) {
        let mut block = Block(vec![0; layout::nvos00::SIZE]);
        block.put_u32(layout::nvos00::H_ROOT, self.client);
        block.put_u32(layout::nvos00::H_OBJECT_OLD, handle);
        assert_eq!(
            self.call(rm, nr::RM_FREE, block, layout::nvos00::STATUS),
            Status::OK
        );
    }
}

/// Bytes of the parameters of a class on the branch that a node has by itself.
fn size_of_class(class: u32) -> usize {
    let entry = crate::abi_of(crate::DRIVER_VERSION).class(class);
    entry.unwrap().size.into()
}

fn rm() -> Rm {
    Rm::new("1xH200".parse().unwrap())
}

#[test]
fn objects_are_duplicated_by_their_own_user_or_process_and_by_nobody_else() {
    let mut rm = rm();
    let owner = Process::new(&mut rm, 100, 1000);
    assert_eq!(owner.memory(&mut rm, MEMORY, 1 << 30), Status::OK);
    let stranger = Process::new(&mut rm, 101, 1001);
    let same_user = Process::new(&mut rm, 102, 1000);
    assert_eq!(
        stranger.dup(&mut rm, &owner, 0x21),
        Status::INSUFFICIENT_PERMISSIONS
    );
    assert_eq!(same_user.dup(&mut rm, &owner, 0x21), Status::OK);
    // A helper that serves two tenants has one pid: the hole of a shared helper.
    let same_pid = Process {
        caller: Caller {
            pid: 100,
            euid: 1002,
        },
        ..Process::new(&mut rm, 103, 1002)
    };
    assert_eq!(
        same_pid.dup(&mut rm, &owner, 0x21),
        Status::INSUFFICIENT_PERMISSIONS,
        "its client is pid 103's"
    );
    let (_, client) = allocate(
        &mut rm,
        same_pid.caller,
        same_pid.control,
        [0; 4],
        Block::default(),
    );
    let same_pid = Process { client, ..same_pid };
    assert_eq!(
        same_pid.alloc(
            &mut rm,
            client,
            DEVICE,
            class::NV01_DEVICE_0,
            Block(vec![0; 56])
        ),
        Status::OK
    );
    assert_eq!(same_pid.dup(&mut rm, &owner, 0x21), Status::OK);
    assert_eq!(
        owner.dup(&mut rm, &owner, 0x21),
        Status::OK,
        "the client itself"
    );
}

#[test]
fn a_duplicate_is_no_second_piece_of_memory_and_holds_the_first() {
    let mut rm = rm();
    let owner = Process::new(&mut rm, 100, 1000);
    let all = rm.free_bytes(0);
    assert_eq!(owner.memory(&mut rm, MEMORY, 1 << 30), Status::OK);
    assert_eq!(rm.memory_by_pid(0, 100), [1 << 30, 0, 0]);
    let other = Process::new(&mut rm, 101, 1000);
    assert_eq!(other.dup(&mut rm, &owner, MEMORY), Status::OK);
    assert_eq!(rm.free_bytes(0), all - (1 << 30));
    assert_eq!(rm.memory_by_pid(0, 100), [0, 1 << 30, 0]);
    assert_eq!(rm.memory_by_pid(0, 101), [0, 0, 1 << 30]);
    owner.free(&mut rm, MEMORY);
    assert_eq!(rm.free_bytes(0), all - (1 << 30));
    other.free(&mut rm, MEMORY);
    assert_eq!(rm.free_bytes(0), all);
}

#[test]
fn a_share_policy_opens_and_closes_an_object() {
    let mut rm = rm();
    let owner = Process::new(&mut rm, 100, 1000);
    assert_eq!(owner.memory(&mut rm, MEMORY, 1 << 20), Status::OK);
    let stranger = Process::new(&mut rm, 101, 1001);
    let same_user = Process::new(&mut rm, 102, 1000);
    let mut handle = 0x100;
    let mut dup = |rm: &mut Rm, who: &Process| {
        handle += 1;
        who.dup(rm, &owner, handle)
    };
    for (kind, target, strangers, users) in [
        (1, 0, Status::OK, Status::OK),
        (
            4,
            0,
            Status::INSUFFICIENT_PERMISSIONS,
            Status::INSUFFICIENT_PERMISSIONS,
        ),
        (
            3,
            stranger.client,
            Status::OK,
            Status::INSUFFICIENT_PERMISSIONS,
        ),
        (2, 0, Status::INSUFFICIENT_PERMISSIONS, Status::OK),
    ] {
        assert_eq!(owner.share(&mut rm, kind, target), Status::OK);
        assert_eq!(dup(&mut rm, &stranger), strangers, "type {kind}");
        assert_eq!(dup(&mut rm, &same_user), users, "type {kind}");
    }
    assert_eq!(
        stranger.share(&mut rm, 1, 0),
        Status::OBJECT_NOT_FOUND,
        "it has no such object"
    );
}

#[test]
fn calls_on_the_callers_address_space_want_the_process_that_made_the_client() {
    let mut rm = rm();
    let owner = Process::new(&mut rm, 100, 1000);
    assert_eq!(owner.memory(&mut rm, MEMORY, 1 << 20), Status::OK);
    let mut vaspace = Block(vec![0; size_of_class(class::FERMI_VASPACE_A)]);
    vaspace.put_u32(layout::vaspace_alloc::FLAGS, 0x48);
    assert_eq!(
        owner.alloc(
            &mut rm,
            DEVICE,
            0x5c00_0009,
            class::FERMI_VASPACE_A,
            vaspace
        ),
        Status::OK
    );
    let uuid = rm.node.devices[0].uuid;
    let uvm = |rm: &mut Rm, caller: Caller, request: u32, block: Block, at: usize| {
        let mut call = Call::new(caller, owner.uvm, block);
        rm.uvm(request, &mut call);
        status(&call.block, at)
    };
    use layout::{uvm_register_gpu, uvm_register_gpu_vaspace as space};
    let initialize = Block(vec![0; layout::uvm_initialize::SIZE]);
    assert_eq!(
        uvm(&mut rm, owner.caller, rm::uvm::INITIALIZE, initialize, 8),
        Status::OK
    );
    let keep = |rm: &mut Rm| {
        let block = Block(vec![0; layout::uvm_mm_initialize::SIZE]);
        let mut call = Call::new(owner.caller, owner.keeper, block);
        call.descriptor = Some(owner.uvm);
        rm.uvm(rm::uvm::MM_INITIALIZE, &mut call);
        status(&call.block, layout::uvm_mm_initialize::RM_STATUS)
    };
    let mut register = Block(vec![0; uvm_register_gpu::SIZE]);
    register.put(0, &uuid);
    let at = uvm_register_gpu::RM_STATUS;
    assert_eq!(
        uvm(&mut rm, owner.caller, rm::uvm::REGISTER_GPU, register, at),
        Status::OK
    );
    // The same user, holding the same files, in another process.
    let child = Caller {
        pid: 101,
        euid: 1000,
    };
    let mut block = Block(vec![0; space::SIZE]);
    block.put(0, &uuid);
    block.put_u32(space::H_CLIENT, owner.client);
    block.put_u32(space::H_VA_SPACE, 0x5c00_0009);
    let register = |rm: &mut Rm, caller: Caller| {
        let request = rm::uvm::REGISTER_GPU_VASPACE;
        uvm(rm, caller, request, block.clone(), space::RM_STATUS)
    };
    assert_eq!(register(&mut rm, child), Status::INSUFFICIENT_PERMISSIONS);
    assert_eq!(
        register(&mut rm, owner.caller),
        super::status::PAGE_TABLE_NOT_AVAIL,
        "nothing keeps the address space yet"
    );
    assert_eq!(keep(&mut rm), Status::OK);
    assert_eq!(keep(&mut rm), super::status::INVALID_STATE, "it is kept");
    assert_eq!(register(&mut rm, owner.caller), Status::OK);
    rm.release_file(owner.keeper);
    assert_eq!(
        keep(&mut rm),
        super::status::PAGE_TABLE_NOT_AVAIL,
        "let go, it cannot be kept again"
    );
    use layout::{nvos33 as map, nvos33_with_fd};
    let mut block = Block(vec![0; nvos33_with_fd::SIZE]);
    block.put_u32(map::H_CLIENT, owner.client);
    block.put_u32(map::H_MEMORY, MEMORY);
    block.put_u64(map::LENGTH, 4096);
    let as_child = Process {
        caller: child,
        ..owner
    };
    assert_eq!(
        as_child.call(&mut rm, nr::RM_MAP_MEMORY, block.clone(), map::STATUS),
        Status::INVALID_CLIENT
    );
    let owner = Process {
        caller: Caller {
            pid: 100,
            euid: 1000,
        },
        ..as_child
    };
    assert_eq!(
        owner.call(&mut rm, nr::RM_MAP_MEMORY, block, map::STATUS),
        Status::OK
    );
}

#[test]
fn nothing_is_left_when_every_file_is_gone() {
    let mut rm = rm();
    for pid in [100, 101] {
        let process = Process::new(&mut rm, pid, 1000);
        assert_eq!(process.memory(&mut rm, MEMORY, 1 << 30), Status::OK);
        let group = Block(vec![0; layout::channel_group_alloc::SIZE]);
        assert_eq!(
            process.alloc(&mut rm, DEVICE, 0x20, class::KEPLER_CHANNEL_GROUP_A, group),
            Status::OK
        );
        for (parent, handle) in [(0x20, 0x21), (DEVICE, 0x22)] {
            let channel = Block(vec![0; size_of_class(class::HOPPER_CHANNEL_GPFIFO_A)]);
            let answer = process.alloc(
                &mut rm,
                parent,
                handle,
                class::HOPPER_CHANNEL_GPFIFO_A,
                channel,
            );
            assert_eq!(answer, Status::OK);
        }
    }
    assert_eq!(
        rm.groups.len(),
        4,
        "a channel under a device has a group of its own"
    );
    let files: Vec<FileId> = rm.files.keys().copied().collect();
    for file in files {
        rm.release_file(file);
    }
    assert_eq!(rm.free_bytes(0), rm.capacity(0));
    let left = [
        rm.clients.len(),
        rm.memories.len(),
        rm.groups.len(),
        rm.channels.len(),
        rm.files.len(),
    ];
    assert_eq!(left, [0; 5]);
}
