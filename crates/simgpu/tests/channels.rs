//! Work, time, and who may stop whom.

mod common;

use std::time::{Duration, Instant};

use common::*;
use rm::{ctrl, layout};
use simgpu::client::Client;
use simgpu::work::{Kernel, Op, Work, WorkStatus};

const GROUP: u32 = 0x5c00_0020;
const MEMORY: u32 = 0x5c00_0010;
const BASE: u64 = 0x7f00_0000_0000;

fn ready(node: &TestNode) -> (Tenant, u32) {
    let mut tenant = Tenant::new(node);
    tenant.uvm_space();
    let channel = tenant.channel(GROUP);
    tenant.preemption(channel, 2);
    (tenant, channel)
}

#[test]
fn kernels_and_copies_do_what_they_say() {
    let node = node("1xH200");
    let (mut tenant, channel) = ready(&node);
    tenant.mapped(MEMORY, BASE, 32 * MIB);
    let words = 3_000_001_u64;
    let (x, y, out) = (BASE, BASE + 16 * MIB, BASE + 31 * MIB);
    let mut run = |op| assert_eq!(tenant.submit(channel, op).status, WorkStatus::Done);
    run(Op::Launch(Kernel::Fill {
        p: x,
        value: 3.0_f32.to_bits(),
        n: words,
    }));
    run(Op::Fill {
        dst: y,
        value: 1.5_f32.to_bits(),
        width: 4,
        count: words,
    });
    run(Op::Write {
        dst: x,
        bytes: 5.0_f32.to_le_bytes().to_vec(),
    });
    run(Op::Launch(Kernel::Saxpy {
        a: 2.0,
        x,
        y,
        n: words,
    }));
    run(Op::Launch(Kernel::Sum {
        p: x,
        n: words,
        out,
    }));
    let float = |bytes: Vec<u8>| f32::from_le_bytes(bytes.try_into().unwrap());
    assert_eq!(float(tenant.read(channel, y, 4)), 11.5);
    assert_eq!(float(tenant.read(channel, y + 4 * (words - 1), 4)), 7.5);
    assert_eq!(tenant.read(channel, y + 4 * words, 4), [0; 4]);
    let sum = u64::from(5.0_f32.to_bits()) + (words - 1) * u64::from(3.0_f32.to_bits());
    assert_eq!(tenant.read(channel, out, 8), sum.to_le_bytes());

    let pattern: Vec<u8> = (0..3_000_000_u32).map(|at| (at % 251) as u8).collect();
    tenant.submit(
        channel,
        Op::Write {
            dst: x,
            bytes: pattern.clone(),
        },
    );
    tenant.submit(
        channel,
        Op::Copy {
            dst: x + 777,
            src: x,
            len: pattern.len() as u64,
        },
    );
    assert!(
        tenant.read(channel, x + 777, pattern.len() as u64) == pattern,
        "overlapping, towards the end"
    );
    tenant.submit(
        channel,
        Op::Copy {
            dst: x,
            src: x + 777,
            len: pattern.len() as u64,
        },
    );
    assert!(
        tenant.read(channel, x, pattern.len() as u64) == pattern,
        "overlapping, towards the start"
    );
}

#[test]
fn an_address_that_nothing_is_mapped_at_kills_the_channel() {
    let node = node("1xH200");
    let (mut tenant, channel) = ready(&node);
    tenant.mapped(MEMORY, BASE, 2 * MIB);
    let past = tenant.submit(
        channel,
        Op::Fill {
            dst: BASE,
            value: 0,
            width: 4,
            count: MIB,
        },
    );
    assert_eq!(
        past.status,
        WorkStatus::Fault {
            address: BASE + 2 * MIB
        }
    );
    let after = tenant.submit(channel, Op::Read { src: BASE, len: 4 });
    assert_eq!(
        after.status,
        WorkStatus::Fault {
            address: BASE + 2 * MIB
        }
    );
    let odd = tenant.channel(0x5c00_0040);
    for op in [
        Op::Fill {
            dst: BASE + 1,
            value: 0,
            width: 4,
            count: 1,
        },
        Op::Fill {
            dst: BASE,
            value: 0,
            width: 3,
            count: 1,
        },
        Op::Launch(Kernel::Fill {
            p: BASE,
            value: 0,
            n: u64::MAX,
        }),
        Op::Read {
            src: u64::MAX,
            len: 2,
        },
    ] {
        assert_eq!(
            tenant.submit(odd, op.clone()).status,
            WorkStatus::Invalid,
            "{op:?}"
        );
    }
    assert_eq!(
        tenant.submit(odd, Op::Read { src: BASE, len: 4 }).status,
        WorkStatus::Done
    );
    assert_eq!(
        tenant.submit(0x5c00_0999, Op::Wait).status,
        WorkStatus::NoChannel
    );
}

#[test]
fn two_processes_have_two_address_spaces() {
    let node = node("1xH200");
    let (mut first, channel) = ready(&node);
    first.mapped(MEMORY, BASE, 2 * MIB);
    first.submit(
        channel,
        Op::Write {
            dst: BASE,
            bytes: b"mine".to_vec(),
        },
    );
    let (mut second, seconds) = ready(&node);
    second.mapped(MEMORY, BASE, 2 * MIB);
    assert_eq!(second.read(seconds, BASE, 4), [0; 4]);
    assert_eq!(first.read(channel, BASE, 4), b"mine");
}

#[test]
fn time_of_the_device_is_what_the_work_costs() {
    let node = node("1xH200");
    let (mut tenant, channel) = ready(&node);
    let wall = Instant::now();
    let first = tenant.submit(channel, Op::Launch(Kernel::Spin { ns: 20_000_000 }));
    assert!(
        wall.elapsed() >= Duration::from_millis(19),
        "the clock is not ahead of the wall"
    );
    let second = tenant.submit(channel, Op::Launch(Kernel::Spin { ns: 3_000_000 }));
    assert!(first.end_ns - first.start_ns >= 20_000_000);
    assert!(second.start_ns >= first.end_ns);
    assert!((3_000_000..4_000_000).contains(&second.busy_ns));
}

#[test]
fn work_runs_in_order_and_may_be_queued() {
    let node = node("1xH200");
    let (mut tenant, channel) = ready(&node);
    tenant.mapped(MEMORY, BASE, 2 * MIB);
    for value in 0..50 {
        let op = Op::Fill {
            dst: BASE,
            value,
            width: 4,
            count: 4,
        };
        let queued = tenant
            .client
            .submit(&Work {
                client: tenant.root,
                channel,
                wait: false,
                op,
            })
            .unwrap();
        assert_eq!(
            (queued.status, queued.ticket),
            (WorkStatus::Queued, u64::from(value) + 1)
        );
    }
    assert_eq!(tenant.submit(channel, Op::Wait).ticket, 51);
    assert_eq!(tenant.read(channel, BASE, 4), 49_u32.to_le_bytes());
}

/// Names channels of whoever in FIFO_DISABLE_CHANNELS.
fn disable(tenant: &mut Tenant, named: &[(u32, u32)], disable: bool) -> u32 {
    use layout::disable_channels as at;
    let mut params = [0; at::SIZE];
    params[at::B_DISABLE] = disable.into();
    put32(&mut params, at::NUM_CHANNELS, named.len() as u32);
    for (index, (client, channel)) in named.iter().enumerate() {
        put32(&mut params, at::H_CLIENT_LIST + 4 * index, *client);
        put32(&mut params, at::H_CHANNEL_LIST + 4 * index, *channel);
    }
    tenant.control(SUBDEVICE, ctrl::NV2080_FIFO_DISABLE_CHANNELS, &mut params)
}

fn state(tenant: &mut Tenant, client: u32, channel: u32) -> (u32, [u8; 3]) {
    use layout::channel_state as at;
    const DIAGNOSTICS: u32 = 0x5c00_0055;
    if tenant.alloc(
        SUBDEVICE,
        DIAGNOSTICS,
        rm::class::NV20_SUBDEVICE_DIAG,
        &mut [],
    ) != OK
    {
        assert_eq!(tenant.free(DIAGNOSTICS), OK);
        assert_eq!(
            tenant.alloc(
                SUBDEVICE,
                DIAGNOSTICS,
                rm::class::NV20_SUBDEVICE_DIAG,
                &mut []
            ),
            OK
        );
    }
    let mut params = [0; at::SIZE];
    put32(&mut params, at::H_CLIENT, client);
    put32(&mut params, at::H_CHANNEL, channel);
    let status = tenant.control(
        DIAGNOSTICS,
        ctrl::NV208F_FIFO_GET_CHANNEL_STATE,
        &mut params,
    );
    (
        status,
        params[at::B_BOUND..at::B_BOUND + 3].try_into().unwrap(),
    )
}

#[test]
fn anybody_can_detach_anybodys_channel_and_only_that_until_it_is_attached() {
    let node = node("1xH200");
    let (mut victim, channel) = ready(&node);
    let other = victim.channel(0x5c00_0040);
    let (root, file) = (victim.root, victim.control.try_clone().unwrap());
    let mut attacker = Tenant::new(&node);
    assert_eq!(state(&mut attacker, root, channel), (OK, [1, 1, 1]));
    assert_eq!(disable(&mut attacker, &[(root, channel)], true), OK);
    assert_eq!(state(&mut attacker, root, channel), (OK, [1, 0, 0]));
    assert_eq!(disable(&mut attacker, &[(root, 0x5c00_0999)], true), 0x21);
    assert_eq!(disable(&mut attacker, &vec![(root, channel); 64], true), OK);

    let (send, finished) = std::sync::mpsc::channel();
    let socket = node.socket.clone();
    let waiting = std::thread::spawn(move || {
        let _file = file;
        let mut client = Client::connect(&socket).unwrap();
        let op = Op::Launch(Kernel::Spin { ns: 1000 });
        send.send(
            client
                .submit(&Work {
                    client: root,
                    channel,
                    wait: true,
                    op,
                })
                .unwrap(),
        )
        .unwrap();
    });
    assert_eq!(
        victim
            .submit(other, Op::Launch(Kernel::Spin { ns: 1000 }))
            .status,
        WorkStatus::Done
    );
    assert!(
        finished.recv_timeout(Duration::from_millis(200)).is_err(),
        "the detached channel waits"
    );
    assert_eq!(disable(&mut attacker, &[(root, channel)], false), OK);
    assert_eq!(
        finished
            .recv_timeout(Duration::from_secs(20))
            .unwrap()
            .status,
        WorkStatus::Done
    );
    waiting.join().unwrap();
}

#[test]
fn a_detach_stops_a_kernel_and_an_attach_lets_it_go_on() {
    let node = node("1xH200");
    let (mut tenant, channel) = ready(&node);
    let op = Op::Launch(Kernel::Spin { ns: 60_000_000 });
    let start = Instant::now();
    tenant
        .client
        .submit(&Work {
            client: tenant.root,
            channel,
            wait: false,
            op,
        })
        .unwrap();
    std::thread::sleep(Duration::from_millis(10));
    let root = tenant.root;
    assert_eq!(disable(&mut tenant, &[(root, channel)], true), OK);
    std::thread::sleep(Duration::from_millis(100));
    // The engine is free meanwhile.
    let other = tenant.channel(0x5c00_0040);
    assert_eq!(
        tenant
            .submit(other, Op::Launch(Kernel::Spin { ns: 1000 }))
            .status,
        WorkStatus::Done
    );
    assert_eq!(disable(&mut tenant, &[(root, channel)], false), OK);
    assert_eq!(tenant.submit(channel, Op::Wait).status, WorkStatus::Done);
    assert!(
        start.elapsed() >= Duration::from_millis(150),
        "what was left of it ran after the attach"
    );
}

#[test]
fn a_context_that_asked_for_nothing_ends_its_kernel_before_it_is_detached() {
    let node = node("1xH200");
    let (mut tenant, channel) = ready(&node);
    tenant.preemption(channel, 0);
    let (root, other) = (tenant.root, tenant.channel(0x5c00_0040));
    let op = Op::Launch(Kernel::Spin { ns: 60_000_000 });
    let work = Work {
        client: root,
        channel,
        wait: false,
        op,
    };
    let start = Instant::now();
    tenant.client.submit(&work).unwrap();
    std::thread::sleep(Duration::from_millis(10));
    assert_eq!(disable(&mut tenant, &[(root, channel)], true), OK);
    tenant.submit(other, Op::Launch(Kernel::Spin { ns: 1000 }));
    assert!(
        start.elapsed() >= Duration::from_millis(55),
        "the engine was not free before"
    );
}

#[test]
fn a_channel_that_is_freed_ends_its_waiters() {
    let node = node("1xH200");
    let (mut tenant, channel) = ready(&node);
    let root = tenant.root;
    assert_eq!(disable(&mut tenant, &[(root, channel)], true), OK);
    let (socket, file) = (node.socket.clone(), tenant.control.try_clone().unwrap());
    let waiting = std::thread::spawn(move || {
        let _file = file;
        Client::connect(&socket)
            .unwrap()
            .submit(&Work {
                client: root,
                channel,
                wait: true,
                op: Op::Wait,
            })
            .unwrap()
    });
    std::thread::sleep(Duration::from_millis(50));
    assert_eq!(tenant.free(GROUP), OK);
    assert_eq!(waiting.join().unwrap().status, WorkStatus::NoChannel);
}

#[test]
fn work_waits_for_its_channel_to_be_scheduled() {
    let node = node("1xH200");
    let mut tenant = Tenant::new(&node);
    tenant.uvm_space();
    let (group, channel) = (GROUP, GROUP + 1);
    let class = rm::class::KEPLER_CHANNEL_GROUP_A;
    assert_eq!(
        tenant.alloc(
            DEVICE,
            group,
            class,
            &mut [0; layout::channel_group_alloc::SIZE]
        ),
        OK
    );
    let gpfifo = rm::class::HOPPER_CHANNEL_GPFIFO_A;
    let mut params = tenant.of_class(gpfifo);
    assert_eq!(tenant.alloc(group, channel, gpfifo, &mut params), OK);
    let op = Op::Launch(Kernel::Spin { ns: 1000 });
    tenant
        .client
        .submit(&Work {
            client: tenant.root,
            channel,
            wait: false,
            op,
        })
        .unwrap();
    let root = tenant.root;
    assert_eq!(state(&mut tenant, root, channel), (OK, [1, 1, 0]));
    // Off answers OK and does nothing; on is remembered.
    for byte in [1, 0] {
        assert_eq!(
            tenant.control(group, ctrl::NVA06C_GPFIFO_SCHEDULE, &mut [byte, 0, 0]),
            OK
        );
        assert_eq!(state(&mut tenant, root, channel), (OK, [1, 1, 1]));
    }
    assert_eq!(tenant.submit(channel, Op::Wait).status, WorkStatus::Done);
    // A channel that is switched off stays off.
    assert_eq!(
        tenant.control(channel, ctrl::NVA06F_GPFIFO_SCHEDULE, &mut [0, 0, 0]),
        OK
    );
    assert_eq!(
        tenant.control(channel, ctrl::NVA06F_GPFIFO_SCHEDULE, &mut [1, 0, 0]),
        OK
    );
    assert_eq!(state(&mut tenant, root, channel), (OK, [1, 0, 0]));
}

// As seen on an H200 (driver 580.159), whatever else the channel asks for.
#[test]
fn a_channel_in_a_group_names_no_address_space() {
    let node = node("1xH200");
    let (mut tenant, channel) = ready(&node);
    let gpfifo = rm::class::HOPPER_CHANNEL_GPFIFO_A;
    let mut params = tenant.of_class(gpfifo);
    let group = channel - 1;
    put32(&mut params, layout::channel_alloc::H_VA_SPACE, VASPACE);
    assert_eq!(tenant.alloc(group, channel + 1, gpfifo, &mut params), 0x1f);
    assert_eq!(tenant.alloc(DEVICE, channel + 1, gpfifo, &mut params), OK);
}

#[test]
fn only_who_holds_the_clients_file_may_submit() {
    let node = node("1xH200");
    let (tenant, channel) = ready(&node);
    let root = tenant.root;
    let child = in_child(|| {
        drop((tenant.control, tenant.device_file, tenant.uvm));
        let mut stranger = Client::connect(&node.socket).unwrap();
        let result = stranger
            .submit(&Work {
                client: root,
                channel,
                wait: true,
                op: Op::Wait,
            })
            .unwrap();
        i32::from(result.status != WorkStatus::NoChannel)
    });
    assert_eq!(child.wait(), 0);
}

/// Two channels have the same work queued and these slices in microseconds: when the first is done, as a part of the
/// time until both are.
fn first_done([first, second]: [u64; 2]) -> f64 {
    let node = node("1xH200");
    let mut tenants = [(ready(&node), first), (ready(&node), second)];
    let named: Vec<(u32, u32)> = tenants
        .iter()
        .map(|((tenant, channel), _)| (tenant.root, *channel))
        .collect();
    assert_eq!(disable(&mut tenants[0].0.0, &named, true), OK);
    // The first work of the first channel tells when the engine starts.
    let (socket, (client, channel)) = (node.socket.clone(), named[0]);
    let file = tenants[0].0.0.control.try_clone().unwrap();
    let starting = std::thread::spawn(move || {
        let _file = file;
        Client::connect(&socket)
            .unwrap()
            .submit(&Work {
                client,
                channel,
                wait: true,
                op: Op::Wait,
            })
            .unwrap()
    });
    std::thread::sleep(Duration::from_millis(50));
    for ((tenant, channel), slice) in &mut tenants {
        assert_eq!(
            tenant.control(GROUP, ctrl::NVA06C_SET_TIMESLICE, &mut slice.to_le_bytes()),
            OK
        );
        for _ in 0..200 {
            let op = Op::Launch(Kernel::Spin { ns: 400_000 });
            let work = Work {
                client: tenant.root,
                channel: *channel,
                wait: false,
                op,
            };
            tenant.client.submit(&work).unwrap();
        }
    }
    assert_eq!(disable(&mut tenants[0].0.0, &named, false), OK);
    let start = starting.join().unwrap().end_ns;
    let ends =
        tenants.map(|((mut tenant, channel), _)| tenant.submit(channel, Op::Wait).end_ns - start);
    ends[0] as f64 / ends[1] as f64
}

#[test]
fn slices_divide_the_engine() {
    // Each has 80 ms of work: at 3:1 the first is done after 107 of 160 ms, at 1:1 both are done at the end.
    let even = first_done([4000, 4000]);
    assert!((0.85..1.15).contains(&even), "{even}");
    let three_to_one = first_done([12_000, 4000]);
    assert!((0.55..0.8).contains(&three_to_one), "{three_to_one}");
}

/// A device has 2048 channels for everybody, a group 128.
#[test]
fn channels_are_one_pool_for_all_tenants() {
    use rm::class;
    const FIRST: u32 = 0x5c10_0000;
    let node = node("2xH200");
    let mut tenant = Tenant::new(&node);
    tenant.uvm_space();
    let mut made = 0;
    'groups: for group in (0..).map(|i| FIRST + 1000 * i) {
        let mut params = [0; layout::channel_group_alloc::SIZE];
        put32(&mut params, layout::channel_group_alloc::ENGINE_TYPE, 1);
        assert_eq!(
            tenant.alloc(DEVICE, group, class::KEPLER_CHANNEL_GROUP_A, &mut params),
            OK
        );
        for number in 0..=128 {
            let mut params = tenant.of_class(class::HOPPER_CHANNEL_GPFIFO_A);
            let handle = group + 1 + number;
            let answer = tenant.alloc(group, handle, class::HOPPER_CHANNEL_GPFIFO_A, &mut params);
            match (answer, number) {
                (OK, ..128) => made += 1,
                (_, 128) => {}
                _ => break 'groups,
            }
        }
    }
    assert_eq!(made, 2048);
    // Nobody else gets one there, and everybody on the other device.
    let channel = |tenant: &mut Tenant| {
        let mut params = tenant.of_class(class::HOPPER_CHANNEL_GPFIFO_A);
        tenant.alloc(
            DEVICE,
            0x5c00_0777,
            class::HOPPER_CHANNEL_GPFIFO_A,
            &mut params,
        )
    };
    let mut other = Tenant::new(&node);
    assert_ne!(channel(&mut other), OK);
    assert_eq!(channel(&mut Tenant::on(&node, 1)), OK);
    assert_eq!(tenant.free(FIRST), OK);
    assert_eq!(channel(&mut other), OK);
}
