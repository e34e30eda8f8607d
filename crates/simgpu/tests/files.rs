//! Who may use what, and when it goes: clients hang on files, files live until their last descriptor is gone.

mod common;

use std::io::{Read as _, Write as _};
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::os::unix::net::UnixStream;

use common::*;
use rm::{class, layout, nr, uvm};
use simgpu::client::{Client, Node};

#[test]
fn a_client_answers_only_on_the_file_it_was_made_on() {
    let node = node("1xH200");
    let mut tenant = Tenant::new(&node);
    let other = tenant.client.open(Node::Control).unwrap();
    let words = [tenant.root, SUBDEVICE, rm::ctrl::NV2080_FB_GET_INFO_V2];
    let mut params = params_of(rm::ctrl::NV2080_FB_GET_INFO_V2);
    assert_eq!(
        control(&mut tenant.client, other.as_fd(), words, &mut params),
        INVALID_CLIENT
    );
    assert_eq!(
        control(
            &mut tenant.client,
            tenant.control.as_fd(),
            words,
            &mut params
        ),
        OK
    );
}

#[test]
fn a_device_file_speaks_for_the_control_file_it_is_tied_to() {
    let node = node("1xH200");
    let mut tenant = Tenant::new(&node);
    let event = [
        tenant.root,
        SUBDEVICE,
        0x5c00_0100,
        class::NV01_EVENT_OS_EVENT,
    ];
    let device = tenant.device_file.try_clone().unwrap();
    let mut params = [0; layout::event_alloc::SIZE];
    assert_eq!(
        alloc(&mut tenant.client, device.as_fd(), event, &mut params),
        INVALID_CLIENT
    );
    let mut block = tenant.control.as_raw_fd().to_le_bytes();
    tenant
        .client
        .ioctl(
            device.as_fd(),
            request(nr::REGISTER_FD, 4),
            block.as_mut_ptr(),
        )
        .unwrap();
    assert_eq!(
        alloc(&mut tenant.client, device.as_fd(), event, &mut params),
        OK
    );
}

#[test]
fn clients_get_handles_of_the_drivers_own_and_objects_those_of_the_tenant() {
    let node = node("1xH200");
    let mut tenant = Tenant::new(&node);
    assert_eq!(tenant.root & 0xfff0_0000, 0xc1d0_0000);
    // Where a client is asked for, the first word is the handle that is wanted.
    assert_eq!(
        tenant.alloc(0, 0, class::NV01_ROOT_CLIENT, &mut []),
        0x19,
        "NV_ERR_INSERT_DUPLICATE_NAME"
    );
    let second = new_root(&mut tenant.client, tenant.control.as_fd());
    assert_eq!(second, tenant.root + 1);
    assert_eq!(tenant.memory(0x5c00_0010, MIB).0, OK);
    assert_eq!(tenant.memory(0x5c00_0010, MIB).0, 0x19, "a handle in use");
    assert_eq!(tenant.memory(0, MIB).0, OK, "the driver chooses");
}

#[test]
fn a_device_needs_an_open_device_file_of_the_callers() {
    let node = node("2xH200");
    let mut client = Client::connect(&node.socket).unwrap();
    let control = client.open(Node::Control).unwrap();
    let root = new_root(&mut client, control.as_fd());
    let mut params = [0; layout::device_alloc::SIZE];
    let handles = [root, root, DEVICE, class::NV01_DEVICE_0];
    assert_eq!(
        alloc(&mut client, control.as_fd(), handles, &mut params),
        INSUFFICIENT_PERMISSIONS
    );
    let _other = client.open(Node::Gpu(1)).unwrap();
    assert_eq!(
        alloc(&mut client, control.as_fd(), handles, &mut params),
        INSUFFICIENT_PERMISSIONS
    );
    let _own = client.open(Node::Gpu(0)).unwrap();
    assert_eq!(
        alloc(&mut client, control.as_fd(), handles, &mut params),
        OK
    );
    assert_eq!(
        client.open(Node::Gpu(2)).unwrap_err().raw_os_error(),
        Some(libc::ENODEV)
    );
}

#[test]
fn memory_is_freed_by_object_ancestor_client_and_last_close() {
    let node = node("1xH200");
    let mut watcher = Tenant::new(&node);
    let all = watcher.free_bytes();
    let mut tenant = Tenant::new(&node);
    let root = tenant.root;
    for (how, handle) in [
        ("object", 0x5c00_0010),
        ("ancestor", DEVICE),
        ("client", root),
    ] {
        if how != "object" {
            tenant = Tenant::new(&node);
        }
        assert_eq!(tenant.memory(0x5c00_0010, GIB).0, OK);
        assert_eq!(watcher.free_bytes(), all - GIB);
        let handle = if how == "client" { tenant.root } else { handle };
        assert_eq!(tenant.free(handle), OK);
        assert_eq!(watcher.free_bytes(), all, "freed by {how}");
    }
    let mut tenant = Tenant::new(&node);
    assert_eq!(tenant.memory(0x5c00_0010, GIB).0, OK);
    let file = tenant.file(&tenant.control);
    drop(tenant);
    eventually("freed by the last close", || watcher.free_bytes() == all);
    assert_eq!(watcher.client.released(&[file]).unwrap(), [true]);
    assert_eq!(watcher.client.classify(file.0, file.1).unwrap(), None);
}

#[test]
fn a_handle_that_is_gone_is_freed_without_an_error() {
    let node = node("1xH200");
    let mut tenant = Tenant::new(&node);
    assert_eq!(tenant.free(0x5c00_0777), OK);
    assert_eq!(tenant.free(tenant.root), OK);
    assert_eq!(tenant.free(tenant.root), INVALID_CLIENT);
}

#[test]
fn a_forked_child_that_closes_frees_nothing_of_its_parents() {
    let node = node("1xH200");
    let mut tenant = Tenant::new(&node);
    assert_eq!(tenant.memory(0x5c00_0010, GIB).0, OK);
    let before = tenant.free_bytes();
    let file = tenant.file(&tenant.control);
    let child = in_child(|| {
        drop(tenant.control.try_clone());
        0
    });
    assert_eq!(child.wait(), 0);
    assert_eq!(tenant.client.released(&[file]).unwrap(), [false]);
    assert_eq!(tenant.free_bytes(), before);
}

#[test]
fn a_child_that_lives_on_keeps_the_file_and_its_death_ends_it() {
    let node = node("1xH200");
    let mut watcher = Client::connect(&node.socket).unwrap();
    let tenant = Tenant::new(&node);
    let file = tenant.file(&tenant.control);
    let (mut here, mut there) = UnixStream::pair().unwrap();
    let child = in_child(|| {
        drop(here.try_clone());
        let mut byte = [0];
        i32::from(there.read(&mut byte).is_err())
    });
    assert_eq!(
        watcher.classify(file.0, file.1).unwrap(),
        Some(Node::Control)
    );
    drop(tenant);
    assert_eq!(
        watcher.released(&[file]).unwrap(),
        [false],
        "the child inherited it"
    );
    here.write_all(&[1]).unwrap();
    assert_eq!(child.wait(), 0);
    eventually("its death is the last close", || {
        watcher.released(&[file]).unwrap() == [true]
    });
}

#[test]
fn a_descriptor_in_flight_or_a_mapping_holds_the_file() {
    let node = node("1xH200");
    let mut watcher = Client::connect(&node.socket).unwrap();
    let control = watcher.open(Node::Control).unwrap();
    let file = file_id(control.as_fd());
    let (left, right) = UnixStream::pair().unwrap();
    send_descriptor(&left, control.as_raw_fd());
    drop(control);
    assert_eq!(watcher.released(&[file]).unwrap(), [false], "in flight");
    drop((left, right));
    eventually("nobody can receive it any more", || {
        watcher.released(&[file]).unwrap() == [true]
    });

    let uvm = watcher.open(Node::Uvm).unwrap();
    let file = file_id(uvm.as_fd());
    // SAFETY: a new shared mapping of a file that nobody else maps.
    let page = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            4096,
            libc::PROT_READ,
            libc::MAP_SHARED,
            uvm.as_raw_fd(),
            0,
        )
    };
    assert_ne!(page, libc::MAP_FAILED);
    drop(uvm);
    assert_eq!(watcher.released(&[file]).unwrap(), [false], "mapped");
    // SAFETY: unmaps what was mapped above; nothing refers to it.
    unsafe { libc::munmap(page, 4096) };
    eventually("unmapped", || watcher.released(&[file]).unwrap() == [true]);
}

fn send_descriptor(stream: &UnixStream, descriptor: i32) {
    let mut byte = 0_u8;
    let mut part = libc::iovec {
        iov_base: (&raw mut byte).cast(),
        iov_len: 1,
    };
    let mut control = [0_u64; 4];
    // SAFETY: all-zero is a valid msghdr; `part` and `control` are live, `control` is aligned for and larger than one
    // header with one descriptor.
    unsafe {
        let mut message: libc::msghdr = std::mem::zeroed();
        message.msg_iov = &raw mut part;
        message.msg_iovlen = 1;
        message.msg_control = control.as_mut_ptr().cast();
        message.msg_controllen = libc::CMSG_SPACE(4) as _;
        let header = libc::CMSG_FIRSTHDR(&raw const message);
        (*header).cmsg_level = libc::SOL_SOCKET;
        (*header).cmsg_type = libc::SCM_RIGHTS;
        (*header).cmsg_len = libc::CMSG_LEN(4) as _;
        libc::CMSG_DATA(header)
            .cast::<i32>()
            .write_unaligned(descriptor);
        assert_eq!(libc::sendmsg(stream.as_raw_fd(), &raw const message, 0), 1);
    }
}

#[test]
fn a_forked_child_connects_as_itself() {
    let node = node("1xH200");
    let mut tenant = Tenant::new(&node);
    // The parent owns the client, so the child may not map its memory, though it holds the file.
    let child = in_child(|| {
        let status = map_memory(&mut tenant, SUBDEVICE);
        i32::from(status != INVALID_CLIENT)
    });
    assert_eq!(child.wait(), 0);
    assert_eq!(map_memory(&mut tenant, SUBDEVICE), OK);
}

fn map_memory(tenant: &mut Tenant, handle: u32) -> u32 {
    use layout::{nvos33 as at, nvos33_with_fd};
    let mut block = [0; nvos33_with_fd::SIZE];
    put32(&mut block, at::H_CLIENT, tenant.root);
    put32(&mut block, at::H_DEVICE, DEVICE);
    put32(&mut block, at::H_MEMORY, handle);
    put64(&mut block, at::LENGTH, 4096);
    put32(
        &mut block,
        nvos33_with_fd::FD,
        tenant.device_file.as_raw_fd() as u32,
    );
    tenant.escape(nr::RM_MAP_MEMORY, &mut block).unwrap();
    get32(&block, at::STATUS)
}

#[test]
fn what_is_no_node_is_not_a_typewriter_and_bad_pointers_fault() {
    let node = node("1xH200");
    let mut tenant = Tenant::new(&node);
    let null = std::fs::File::open("/dev/null").unwrap();
    let mut block = [0; 48];
    let call = request(nr::RM_ALLOC, 48);
    let error = tenant
        .client
        .ioctl(null.as_fd(), call, block.as_mut_ptr())
        .unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::ENOTTY));
    let error = tenant
        .client
        .ioctl(tenant.control.as_fd(), call, 8 as *mut u8)
        .unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::EFAULT));
    put32(&mut block, 0, tenant.root);
    put32(&mut block, 4, DEVICE);
    put32(&mut block, 12, class::NV01_MEMORY_LOCAL_USER);
    put64(&mut block, 16, 0xdead_0000);
    let error = tenant
        .client
        .ioctl(tenant.control.as_fd(), call, block.as_mut_ptr())
        .unwrap_err();
    assert_eq!(
        error.raw_os_error(),
        Some(libc::EFAULT),
        "nested parameters"
    );
    for (call, size) in [
        (request(nr::RM_ALLOC, 40), 40),
        (request(0x99, 16), 16),
        (0xdead_beef, 16),
    ] {
        let mut block = vec![0; 0x4000];
        let error = tenant
            .client
            .ioctl(tenant.control.as_fd(), call, block.as_mut_ptr())
            .unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EINVAL), "{call:#x} {size}");
    }
}

#[test]
fn the_type_byte_means_nothing_and_211_wraps_any_other() {
    let node = node("1xH200");
    let mut tenant = Tenant::new(&node);
    let mut block = [0; 48];
    let odd = request(nr::RM_ALLOC, 48) & !0xff00 | 0x7700;
    tenant
        .client
        .ioctl(tenant.control.as_fd(), odd, block.as_mut_ptr())
        .unwrap();
    assert_eq!(get32(&block, layout::nvos64::STATUS), OK);
    assert_ne!(get32(&block, layout::nvos64::H_OBJECT_NEW), 0);

    let mut inner = [0; 48];
    let mut outer = [0; 16];
    put32(&mut outer, layout::xfer::CMD, nr::RM_ALLOC.into());
    put32(&mut outer, layout::xfer::SIZE_FIELD, 48);
    put64(&mut outer, layout::xfer::PTR, inner.as_mut_ptr() as u64);
    tenant.escape(nr::XFER_CMD, &mut outer).unwrap();
    assert_eq!(
        get32(&inner, layout::nvos64::H_OBJECT_NEW) & 0xfff0_0000,
        0xc1d0_0000
    );
}

#[test]
fn a_filtered_caller_may_only_make_calls_that_a_filter_lets_through() {
    let node = node("1xH200");
    let child = in_child(|| {
        allow_everything();
        let mut client = Client::connect(&node.socket).unwrap();
        let control = client.open(Node::Control).unwrap();
        let file = client.open(Node::Uvm).unwrap();
        let mut block = [0; 48];
        let refused = client.ioctl(
            control.as_fd(),
            request(nr::RM_ALLOC, 48),
            block.as_mut_ptr(),
        );
        assert_eq!(refused.unwrap_err().raw_os_error(), Some(libc::EPERM));
        let mut block = [0; layout::uvm_initialize::SIZE];
        assert_eq!(
            uvm_call(&mut client, file.as_fd(), uvm::INITIALIZE, &mut block, 8),
            OK
        );
        let mut block = [0; 24];
        let refused = client.ioctl(file.as_fd(), uvm::FREE, block.as_mut_ptr());
        assert_eq!(refused.unwrap_err().raw_os_error(), Some(libc::EPERM));
        // Nor does it learn who else has had the engines.
        let refused = client.usage(0).unwrap_err();
        assert_eq!(refused.raw_os_error(), Some(libc::EPERM));
        0
    });
    assert_eq!(child.wait(), 0);
}

/// Installs a filter that allows every call: what counts is that there is one.
fn allow_everything() {
    let allow = libc::sock_filter {
        code: 0x06,
        jt: 0,
        jf: 0,
        k: libc::SECCOMP_RET_ALLOW,
    };
    let mut rules = [allow];
    let program = libc::sock_fprog {
        len: 1,
        filter: rules.as_mut_ptr(),
    };
    // SAFETY: the program points at one live instruction, which the kernel copies.
    unsafe {
        assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
        assert_eq!(
            libc::prctl(
                libc::PR_SET_SECCOMP,
                libc::SECCOMP_MODE_FILTER,
                &raw const program
            ),
            0
        );
    }
}

#[test]
fn hostile_bytes_end_the_connection_and_nothing_else() {
    let node = node("1xH200");
    let mut tenant = Tenant::new(&node);
    let mut state = 99_u64;
    for _ in 0..300 {
        let mut stream = UnixStream::connect(&node.socket).unwrap();
        let mut frame = Vec::new();
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        let length = (state >> 58) as u32;
        frame.extend_from_slice(&length.to_le_bytes());
        for index in 0..length {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            frame.push(if index == 0 {
                (state >> 60) as u8
            } else {
                (state >> 56) as u8
            });
        }
        // The server may have hung up already.
        let _ = stream.write_all(&frame);
    }
    assert_eq!(tenant.memory(0x5c00_0010, MIB).0, OK);
}

#[test]
fn the_server_dies_with_its_parent() {
    let socket =
        std::env::temp_dir().join(format!("simgpu-test-orphan-{}.sock", std::process::id()));
    let connects = || Client::connect(&socket).is_ok();
    let child = in_child(|| {
        let _server = in_child(|| {
            let failed = simgpu::server::serve(&"1xH200".parse().unwrap(), &socket, || {});
            panic!("{failed:?}")
        });
        eventually("the server listens", connects);
        0
    });
    assert_eq!(child.wait(), 0);
    eventually("the server is gone", || !connects());
    std::fs::remove_file(&socket).unwrap();
}
