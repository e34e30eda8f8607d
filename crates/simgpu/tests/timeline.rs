//! The context-switch timeline: what a reader gets to see of who is on the engine, and when.

mod common;

use std::os::fd::AsRawFd as _;
use std::time::{Duration, Instant};

use common::reader::*;
use common::*;
use rm::{class, ctrl, layout, nr, timeline};
use simgpu::client::Node;
use simgpu::work::{Kernel, Op, Work, WorkStatus};

const GROUP: u32 = 0x5c00_0020;
/// Between the end of a context and the start of the next.
const RESTORE_NS: u64 = 82_000;

/// A tenant with one compute context of a slice.
fn context(node: &TestNode, slice_us: u64) -> (Tenant, u32) {
    let mut tenant = Tenant::new(node);
    tenant.uvm_space();
    let channel = tenant.channel(GROUP);
    tenant.preemption(channel, 2);
    slice(&mut tenant, slice_us);
    (tenant, channel)
}

fn slice(tenant: &mut Tenant, us: u64) {
    let mut params = us.to_le_bytes();
    assert_eq!(
        tenant.control(GROUP, ctrl::NVA06C_SET_TIMESLICE, &mut params),
        OK
    );
}

/// Queues a kernel.
fn spin(tenant: &mut Tenant, channel: u32, ms: u64) {
    let op = Op::Launch(Kernel::Spin { ns: ms * 1_000_000 });
    let work = Work {
        client: tenant.root,
        channel,
        wait: false,
        op,
    };
    tenant.client.submit(&work).unwrap();
}

fn number_of(tenant: &mut Tenant, channel: u32) -> u32 {
    let mut params = tenant.of_control(ctrl::NVC36F_GPFIFO_GET_WORK_SUBMIT_TOKEN);
    let token = ctrl::NVC36F_GPFIFO_GET_WORK_SUBMIT_TOKEN;
    assert_eq!(tenant.control(channel, token, &mut params), OK);
    get32(&params, 0)
}

/// Time between start and end, by context; the records are whole: in order, none missing, never two at once.
fn residency(records: &[Record]) -> std::collections::BTreeMap<u32, u64> {
    let mut sums = std::collections::BTreeMap::new();
    let mut on: Option<Record> = None;
    for (index, record) in records.iter().enumerate() {
        assert_eq!(record.number, records[0].number.wrapping_add(index as u16));
        assert!(
            index == 0 || record.ns >= records[index - 1].ns,
            "{records:?}"
        );
        match (record.tag, on.take()) {
            (timeline::START, None) => on = Some(*record),
            (timeline::END, Some(start)) => {
                assert_eq!(start.context, record.context);
                *sums.entry(record.context).or_default() += record.ns - start.ns;
            }
            // What was on the engine when the reader came.
            (timeline::END, None) if index == 0 => {}
            other => panic!("{other:?} in {records:?}"),
        }
    }
    sums
}

#[test]
fn residency_of_two_contexts_is_as_their_slices() {
    let node = node("1xH200");
    let (mut first, first_channel) = context(&node, 30_000);
    let (mut second, second_channel) = context(&node, 10_000);
    let mut reader = Reader::open(&node, 1024, timeline::KEEP_NEWEST, true);
    let numbers = [
        number_of(&mut first, first_channel),
        number_of(&mut second, second_channel),
    ];
    assert_ne!(numbers[0], numbers[1]);
    for _ in 0..4 {
        spin(&mut first, first_channel, 500);
        spin(&mut second, second_channel, 500);
    }
    // Whole cycles: from one start of the first to a later one.
    let mut records = Vec::new();
    let until = Instant::now() + Duration::from_secs(30);
    while records.len() < 41 && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(20));
        records.extend(reader.flushed());
    }
    records.drain(..4);
    let last = records
        .iter()
        .rposition(|r| r.tag == timeline::START && r.context == numbers[0]);
    let first_start = records
        .iter()
        .position(|r| r.tag == timeline::START && r.context == numbers[0]);
    let sums = residency(&records[first_start.unwrap()..last.unwrap()]);
    let (a, b) = (sums[&numbers[0]] as f64, sums[&numbers[1]] as f64);
    let share = a / (a + b);
    // Saving a context counts as its own: 30.188 of 40.376 ms.
    assert!((0.745..0.7505).contains(&share), "{share} {records:?}");
    assert!(
        records
            .iter()
            .all(|record| record.pid == std::process::id())
    );
}

#[test]
fn the_gap_between_two_contexts_is_the_restore() {
    let node = node("1xH200");
    let (mut first, first_channel) = context(&node, 2000);
    let (mut second, second_channel) = context(&node, 2000);
    let mut reader = Reader::open(&node, 1024, timeline::KEEP_NEWEST, true);
    spin(&mut first, first_channel, 20);
    spin(&mut second, second_channel, 20);
    first.submit(first_channel, Op::Wait);
    let records = reader.flushed();
    assert!(records.len() > 8, "{records:?}");
    for pair in records
        .windows(2)
        .filter(|pair| pair[0].tag == timeline::END)
    {
        let gap = pair[1].ns - pair[0].ns;
        assert!(gap.abs_diff(RESTORE_NS) <= 32, "{gap}");
    }
}

#[test]
fn a_lone_context_has_no_end() {
    let node = node("1xH200");
    let (mut tenant, channel) = context(&node, 2000);
    let mut reader = Reader::open(&node, 1024, timeline::KEEP_NEWEST, true);
    for _ in 0..3 {
        tenant.submit(channel, Op::Launch(Kernel::Spin { ns: 10_000_000 }));
        std::thread::sleep(Duration::from_millis(5));
    }
    let records = reader.flushed();
    let tags: Vec<u8> = records.iter().map(|record| record.tag).collect();
    assert_eq!(tags, [timeline::START]);
    assert!(records[0].ns + 30_000_000 <= reader.now());
    // A reader that comes while it is there sees nothing of it at all.
    let mut late = Reader::open(&node, 1024, timeline::KEEP_NEWEST, true);
    tenant.submit(channel, Op::Launch(Kernel::Spin { ns: 10_000_000 }));
    assert_eq!(late.flushed(), []);
}

/// Reads on until there are so many records.
fn read_until(reader: &mut Reader, count: usize) -> Vec<Record> {
    let mut records = Vec::new();
    let until = Instant::now() + Duration::from_secs(30);
    while records.len() < count && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(10));
        records.extend(reader.flushed());
    }
    assert!(records.len() >= count, "{records:?}");
    records
}

#[test]
fn three_groups_take_turns_in_one_order() {
    let node = node("1xH200");
    let mut tenants = [2000, 3000, 1000].map(|us| context(&node, us));
    let mut reader = Reader::open(&node, 1024, timeline::KEEP_NEWEST, true);
    let numbers = tenants
        .each_mut()
        .map(|(tenant, channel)| number_of(tenant, *channel));
    for (tenant, channel) in &mut tenants {
        spin(tenant, *channel, 200);
    }
    let records = read_until(&mut reader, 30);
    let starts: Vec<u32> = records
        .iter()
        .filter(|record| record.tag == timeline::START)
        .map(|record| record.context)
        .collect();
    // The first may have begun alone; from then on it is a cycle.
    for (index, context) in starts.iter().enumerate() {
        assert_eq!(*context, numbers[index % 3], "{starts:?} of {numbers:?}");
    }
    let sums = residency(&records);
    assert_eq!(sums.len(), 3);
}

#[test]
fn a_full_buffer_drops_what_is_new_or_what_is_old_as_it_was_told() {
    let node = node("1xH200");
    let mut tenants = [1000, 1000].map(|us| context(&node, us));
    let mut oldest = Reader::open(&node, 8, timeline::KEEP_OLDEST, true);
    let newest = Reader::open(&node, 8, timeline::KEEP_NEWEST, true);
    for (tenant, channel) in &mut tenants {
        spin(tenant, *channel, 20);
    }
    for (tenant, channel) in &mut tenants {
        tenant.submit(*channel, Op::Wait);
    }
    let kept = oldest.flushed();
    assert_eq!(
        kept.iter().map(|record| record.number).collect::<Vec<_>>(),
        (0..7).collect::<Vec<_>>()
    );
    let dropped = oldest.dropped();
    assert!(dropped > 20, "{dropped}");
    // The ring was gone round several times: what it holds is the end of the story.
    assert_eq!(newest.dropped(), 0);
    let last = newest.records.word(
        ((newest.header.word(layout::event_buffer_header::RECORD_PUT) + 7) % 8) as usize * 32 + 8,
    ) >> 16;
    assert_eq!(u64::from(last), 7 + dropped - 1);
    // Told how far it was read, the buffer goes on; the count starts anew.
    oldest.update_get();
    assert_eq!(oldest.dropped(), 0);
    for (tenant, channel) in &mut tenants {
        spin(tenant, *channel, 2);
        tenant.submit(*channel, Op::Wait);
    }
    let after = oldest.flushed();
    assert_eq!(u64::from(after[0].number), 7 + dropped);
}

#[test]
fn the_driver_copies_by_itself_thirty_times_a_second() {
    let node = node("1xH200");
    let (mut tenant, channel) = context(&node, 2000);
    let mut reader = Reader::open(&node, 64, timeline::KEEP_NEWEST, true);
    tenant.submit(channel, Op::Launch(Kernel::Spin { ns: 1000 }));
    let until = Instant::now() + Duration::from_secs(10);
    let mut seen = Vec::new();
    while seen.is_empty() && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(5));
        seen = reader.seen();
    }
    assert_eq!(seen.len(), 1);
}

/// Names channels of whoever in FIFO_DISABLE_CHANNELS.
fn disable(tenant: &mut Tenant, client: u32, channel: u32, disable: bool, only: bool) {
    use layout::disable_channels as at;
    let mut params = [0; at::SIZE];
    params[at::B_DISABLE] = disable.into();
    params[at::B_ONLY_DISABLE_SCHEDULING] = only.into();
    put32(&mut params, at::NUM_CHANNELS, 1);
    put32(&mut params, at::H_CLIENT_LIST, client);
    put32(&mut params, at::H_CHANNEL_LIST, channel);
    let command = ctrl::NV2080_FIFO_DISABLE_CHANNELS;
    assert_eq!(tenant.control(SUBDEVICE, command, &mut params), OK);
}

#[test]
fn a_detach_inside_a_kernel_ends_its_context_at_once() {
    let node = node("1xH200");
    let (mut tenant, channel) = context(&node, 1_000_000);
    let mut reader = Reader::open(&node, 64, timeline::KEEP_NEWEST, true);
    spin(&mut tenant, channel, 400);
    std::thread::sleep(Duration::from_millis(20));
    let root = tenant.root;
    let before = reader.now();
    disable(&mut reader.tenant, root, channel, true, false);
    let records = read_until(&mut reader, 2);
    let after = reader.now();
    assert_eq!(
        [records[0].tag, records[1].tag],
        [timeline::START, timeline::END]
    );
    // Saving it takes 0.188 ms; what is above is the machine's.
    assert!(
        records[1].ns >= before + 188_000 - 64,
        "{records:?} {before}"
    );
    assert!(records[1].ns <= after, "{records:?} {after}");
    assert!(records[1].ns - before < 300_000_000, "not at its end");
    // It goes on where it was.
    disable(&mut reader.tenant, root, channel, false, false);
    tenant.submit(channel, Op::Wait);
    let records = reader.flushed();
    assert_eq!(
        records.iter().map(|record| record.tag).collect::<Vec<_>>(),
        [timeline::START]
    );
    assert!(reader.now() - records[0].ns >= 300_000_000);
}

#[test]
fn a_context_that_is_not_stopped_inside_a_kernel_ends_with_it() {
    let node = node("1xH200");
    let (mut tenant, channel) = context(&node, 1000);
    tenant.preemption(channel, 0);
    let mut reader = Reader::open(&node, 64, timeline::KEEP_NEWEST, true);
    spin(&mut tenant, channel, 60);
    std::thread::sleep(Duration::from_millis(5));
    let root = tenant.root;
    disable(&mut reader.tenant, root, channel, true, false);
    let records = read_until(&mut reader, 2);
    assert_eq!(records[1].tag, timeline::END);
    assert!(records[1].ns - records[0].ns >= 60_000_000);
}

#[test]
fn disabling_scheduling_alone_lets_a_slice_run_out() {
    let node = node("1xH200");
    let (mut tenant, channel) = context(&node, 80_000);
    let mut reader = Reader::open(&node, 64, timeline::KEEP_NEWEST, true);
    spin(&mut tenant, channel, 400);
    std::thread::sleep(Duration::from_millis(5));
    let root = tenant.root;
    disable(&mut reader.tenant, root, channel, true, true);
    let records = read_until(&mut reader, 2);
    assert_eq!(records[1].tag, timeline::END);
    let resident = records[1].ns - records[0].ns;
    assert!(resident.abs_diff(80_188_000) <= 64, "{resident}");
}

#[test]
fn another_slice_holds_at_once_and_one_from_birth_is_kept() {
    let node = node("1xH200");
    let (mut first, first_channel) = context(&node, 10_000_000);
    // A slice set before the group has any channel.
    let mut second = Tenant::new(&node);
    second.uvm_space();
    use layout::channel_group_alloc;
    let mut params = [0; channel_group_alloc::SIZE];
    put32(&mut params, channel_group_alloc::ENGINE_TYPE, 1);
    put32(&mut params, channel_group_alloc::H_VA_SPACE, VASPACE);
    let class = class::KEPLER_CHANNEL_GROUP_A;
    assert_eq!(second.alloc(DEVICE, GROUP, class, &mut params), OK);
    slice(&mut second, 5000);
    let gpfifo = rm::class::HOPPER_CHANNEL_GPFIFO_A;
    let mut params = second.of_class(gpfifo);
    assert_eq!(second.alloc(GROUP, GROUP + 1, gpfifo, &mut params), OK);
    let schedule = ctrl::NVA06C_GPFIFO_SCHEDULE;
    assert_eq!(second.control(GROUP, schedule, &mut [1, 0, 0]), OK);
    second.preemption(GROUP + 1, 2);
    let mut reader = Reader::open(&node, 64, timeline::KEEP_NEWEST, true);
    spin(&mut first, first_channel, 8000);
    spin(&mut second, GROUP + 1, 100);
    std::thread::sleep(Duration::from_millis(20));
    // Ten seconds of slice are running; three milliseconds of it are past.
    slice(&mut first, 3000);
    let records = read_until(&mut reader, 6);
    assert!(records[1].ns - records[0].ns < 2_000_000_000, "{records:?}");
    let ran = |at: usize| records[at + 1].ns - records[at].ns - 188_000;
    assert!(ran(2).abs_diff(5_000_000) <= 64, "{records:?}");
    assert!(ran(4).abs_diff(3_000_000) <= 64, "{records:?}");
}

#[test]
fn a_channel_made_on_a_device_has_a_hidden_group_with_the_usual_slice() {
    let node = node("1xH200");
    let (mut first, first_channel) = context(&node, 4000);
    let mut second = Tenant::new(&node);
    second.uvm_space();
    let gpfifo = class::HOPPER_CHANNEL_GPFIFO_A;
    let mut params = second.of_class(gpfifo);
    put32(&mut params, layout::channel_alloc::H_VA_SPACE, VASPACE);
    put32(&mut params, layout::channel_alloc::ENGINE_TYPE, 1);
    assert_eq!(second.alloc(DEVICE, GROUP + 1, gpfifo, &mut params), OK);
    let schedule = ctrl::NVA06F_GPFIFO_SCHEDULE;
    assert_eq!(second.control(GROUP + 1, schedule, &mut [1, 0, 0]), OK);
    second.preemption(GROUP + 1, 2);
    let mut reader = Reader::open(&node, 64, timeline::KEEP_NEWEST, true);
    spin(&mut first, first_channel, 100);
    spin(&mut second, GROUP + 1, 100);
    let hidden = number_of(&mut second, GROUP + 1);
    let records = read_until(&mut reader, 8);
    let start = records
        .iter()
        .position(|r| r.tag == timeline::START && r.context == hidden);
    let start = start.unwrap();
    let ran = records[start + 1].ns - records[start].ns - 188_000;
    assert!(ran.abs_diff(2_048_000) <= 64, "{records:?}");
}

#[test]
fn who_was_freed_before_the_log_was_copied_is_nobody() {
    let node = node("1xH200");
    let (mut first, first_channel) = context(&node, 50_000);
    let (mut second, second_channel) = context(&node, 50_000);
    let mut reader = Reader::open(&node, 64, timeline::KEEP_NEWEST, true);
    spin(&mut first, first_channel, 100);
    std::thread::sleep(Duration::from_millis(2));
    spin(&mut second, second_channel, 100);
    assert_eq!(reader.flushed().len(), 1);
    assert_eq!(first.free(GROUP), OK);
    let records = read_until(&mut reader, 2);
    let number = number_of(&mut second, second_channel);
    let of = |record: Record| (record.tag, record.pid, record.context, record.ns > 0);
    assert_eq!(
        of(records[0]),
        (timeline::END, timeline::UNKNOWN, timeline::UNKNOWN, false)
    );
    assert_eq!(
        of(records[1]),
        (timeline::START, std::process::id(), number, true)
    );
}

#[test]
fn an_ordinary_user_is_shown_his_own_and_of_others_only_that_they_are() {
    // SAFETY: geteuid takes nothing and cannot fail.
    let root = unsafe { libc::geteuid() } == 0;
    let node = node("1xH200");
    let (mut others, channel) = context(&node, 2000);
    spin(&mut others, channel, 20_000);
    let others_pid = std::process::id();
    let child = in_child(|| {
        // SAFETY: setuid takes a number and touches no memory.
        assert!(!root || unsafe { libc::setuid(65_534) } == 0);
        let (mut tenant, own_channel) = context(&node, 2000);
        let number = number_of(&mut tenant, own_channel);
        let mut all = Reader::open(&node, 256, timeline::KEEP_NEWEST, true);
        let mut mine = Reader::open(&node, 256, timeline::KEEP_NEWEST, false);
        spin(&mut tenant, own_channel, 40);
        tenant.submit(own_channel, Op::Wait);
        let (all, mine) = (all.flushed(), mine.flushed());
        let me = std::process::id();
        let own = |record: &&Record| record.pid == me && record.context == number;
        assert!(all.iter().filter(own).count() > 10, "{all:?}");
        if root {
            let hidden = |record: &&Record| record.pid == timeline::HIDDEN && record.context == 0;
            assert!(all.iter().filter(hidden).count() > 10, "{all:?}");
            assert!(
                all.iter().all(|record| own(&record) || hidden(&record)),
                "{all:?}"
            );
            assert!(mine.iter().all(|record| own(&record)), "{mine:?}");
            // The time of another's end is somewhere in its saving: not the same part of it each time.
            let ends = all
                .windows(2)
                .filter(|pair| pair[0].tag == timeline::END && hidden(&&pair[0]));
            let mut gaps: Vec<u64> = ends.map(|pair| pair[1].ns - pair[0].ns).collect();
            assert!(
                gaps.iter()
                    .all(|gap| (RESTORE_NS - 64..RESTORE_NS + 188_064).contains(gap))
            );
            gaps.sort_unstable();
            gaps.dedup();
            assert!(gaps.len() > 3, "{gaps:?}");
        } else {
            // The other is the same user's: both buffers show him, by name.
            for records in [&all, &mine] {
                let others = records.iter().filter(|record| !own(record));
                assert!(others.clone().count() > 10, "{records:?}");
                assert!(others.clone().all(|record| record.pid == others_pid));
            }
        }
        0
    });
    assert_eq!(child.wait(), 0);
}

#[test]
fn what_a_buffer_is_made_of_is_checked() {
    const INVALID_ARGUMENT: u32 = 0x1f;
    let node = node("1xH200");
    let mut tenant = Tenant::new(&node);
    assert_eq!(
        memory_of_no_device(&mut tenant, HEADER, 4096, READ_ONLY),
        OK
    );
    assert_eq!(
        memory_of_no_device(&mut tenant, RECORDS, 64 * 32, READ_ONLY),
        OK
    );
    assert_eq!(
        memory_of_no_device(&mut tenant, 0x5c00_0111, 0, READ_ONLY),
        INVALID_ARGUMENT
    );
    // Too small, or for its user to write.
    assert_eq!(event_buffer(&mut tenant, 65, 0), INVALID_ARGUMENT);
    assert_eq!(event_buffer(&mut tenant, 0, 0), INVALID_ARGUMENT);
    assert_eq!(tenant.free(HEADER), OK);
    assert_eq!(memory_of_no_device(&mut tenant, HEADER, 4096, 0), OK);
    assert_eq!(event_buffer(&mut tenant, 64, 0), INVALID_ARGUMENT);
    assert_eq!(tenant.free(HEADER), OK);
    assert_eq!(
        memory_of_no_device(&mut tenant, HEADER, 4096, READ_ONLY),
        OK
    );
    // A notification goes to an event that the client has registered, and to nothing else.
    let event = tenant.client.open(Node::Control).unwrap();
    let number = event.as_raw_fd() as u64;
    assert_eq!(event_buffer(&mut tenant, 64, number), INVALID_ARGUMENT);
    use layout::alloc_os_event as at;
    let mut block = [0; at::SIZE];
    put32(&mut block, at::H_CLIENT, tenant.root);
    put32(&mut block, at::FD, number as u32);
    tenant.escape(nr::ALLOC_OS_EVENT, &mut block).unwrap();
    assert_eq!(get32(&block, at::STATUS), OK);
    assert_eq!(event_buffer(&mut tenant, 64, number), OK);
    // A file shows one memory, from its start, and is a control file.
    let file = tenant.client.open(Node::Control).unwrap();
    assert_eq!(map_on(&mut tenant, RECORDS, 8192, &file), 0x37);
    assert_eq!(map_on(&mut tenant, RECORDS, 2048, &file), OK);
    assert_eq!(map_on(&mut tenant, HEADER, 4096, &file), 0x63);
    let device = tenant.device_file.try_clone().unwrap();
    assert_eq!(map_on(&mut tenant, HEADER, 4096, &device), INVALID_ARGUMENT);
}

#[test]
fn time_on_the_engine_adds_up_to_the_work_done() {
    let node = node("1xH200");
    let (mut first, first_channel) = context(&node, 3000);
    let (mut second, second_channel) = context(&node, 1000);
    let number = number_of(&mut first, first_channel);
    let wall = Instant::now();
    let before = first.client.usage(0).unwrap();
    spin(&mut first, first_channel, 2000);
    spin(&mut second, second_channel, 2000);
    std::thread::sleep(Duration::from_millis(400));
    let usage = first.client.usage(0).unwrap();
    let wall = wall.elapsed().as_nanos() as u64;
    let of = |root: u32| {
        let group = usage
            .groups
            .iter()
            .find(|group| group.client == root)
            .unwrap();
        assert_eq!(group.pid, std::process::id());
        group.ran_ns
    };
    let (a, b) = (of(first.root), of(second.root));
    let share = a as f64 / (a + b) as f64;
    assert!((0.735..0.765).contains(&share), "{share}");
    let passed = usage.clock_ns[0] - before.clock_ns[0];
    // Besides the work there were switches, one a slice; and the clock is not ahead of the wall's.
    let switches = (passed - a - b) as f64 / (passed as f64 * 0.54 / 4.54);
    assert!((0.9..1.1).contains(&switches), "{a} {b} {passed}");
    assert!(passed <= wall, "{passed} {wall}");
    let context = usage.groups.iter().find(|group| group.client == first.root);
    assert_eq!(context.unwrap().context, number);
    // What is gone is still counted.
    assert_eq!(first.free(GROUP), OK);
    assert!(
        second
            .client
            .usage(0)
            .unwrap()
            .computed_ns(std::process::id())
            >= a + b
    );
    assert!(second.client.usage(1).is_err());
}

#[test]
fn no_record_is_of_the_future() {
    let node = node("1xH200");
    let (mut tenant, channel) = context(&node, 1_000_000);
    let mut reader = Reader::open(&node, 64, timeline::KEEP_NEWEST, true);
    spin(&mut tenant, channel, 10_000);
    let root = tenant.root;
    for detached in [true, false].repeat(10) {
        std::thread::sleep(Duration::from_millis(2));
        disable(&mut reader.tenant, root, channel, detached, false);
        let mut records = Vec::new();
        let until = Instant::now() + Duration::from_secs(10);
        while records.is_empty() && Instant::now() < until {
            records = reader.flushed();
            let now = reader.now();
            assert!(
                records.iter().all(|record| record.ns <= now),
                "{records:?} {now}"
            );
        }
        assert!(!records.is_empty());
    }
}

#[test]
fn time_of_a_group_that_is_freed_while_it_runs_is_not_lost() {
    let node = node("1xH200");
    let (mut tenant, channel) = context(&node, 10_000_000);
    spin(&mut tenant, channel, 5000);
    std::thread::sleep(Duration::from_millis(50));
    let before = tenant
        .client
        .usage(0)
        .unwrap()
        .computed_ns(std::process::id());
    assert!(before > 0);
    assert_eq!(tenant.free(GROUP), OK);
    // At once, and when the engine has noticed.
    for _ in 0..2 {
        let after = tenant.client.usage(0).unwrap();
        assert!(after.computed_ns(std::process::id()) >= before);
        assert!(after.groups.iter().all(|group| group.client == 0));
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn a_channel_that_is_stopped_is_dead() {
    let node = node("1xH200");
    let (mut tenant, channel) = context(&node, 2000);
    spin(&mut tenant, channel, 5000);
    let stop = ctrl::NVA06F_STOP_CHANNEL;
    let mut params = tenant.of_control(stop);
    let wall = Instant::now();
    assert_eq!(tenant.control(channel, stop, &mut params), OK);
    let ended = tenant.submit(channel, Op::Wait);
    assert!(
        matches!(ended.status, WorkStatus::Fault { .. }),
        "{ended:?}"
    );
    assert!(
        wall.elapsed() < Duration::from_secs(4),
        "not at its kernel's end"
    );
    // Others go on.
    let other = tenant.channel(GROUP + 0x20);
    assert_eq!(tenant.submit(other, Op::Wait).status, WorkStatus::Done);
}

#[test]
fn a_call_detaches_sixty_four_channels_and_no_more() {
    use layout::disable_channels as at;
    let node = node("1xH200");
    let (mut tenant, channel) = context(&node, 2000);
    for (count, answer) in [(64, OK), (65, 0x1f)] {
        let mut params = [0; at::SIZE];
        params[at::B_DISABLE] = 1;
        put32(&mut params, at::NUM_CHANNELS, count);
        for index in 0..64 {
            put32(&mut params, at::H_CLIENT_LIST + 4 * index, tenant.root);
            put32(&mut params, at::H_CHANNEL_LIST + 4 * index, channel);
        }
        let command = ctrl::NV2080_FIFO_DISABLE_CHANNELS;
        assert_eq!(tenant.control(SUBDEVICE, command, &mut params), answer);
    }
}
