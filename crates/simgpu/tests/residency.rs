//! Who is on the compute engine when somebody asks, and cards that lack what a scheduler wants of them.

mod common;

use std::collections::BTreeMap;
use std::time::Duration;

use common::reader::{self, Reader};
use common::*;
use rm::{ctrl, layout, timeline};
use simgpu::work::{Kernel, Op, Work};

const GROUP: u32 = 0x5c00_0020;
const NOBODY: u32 = u32::MAX;

fn slice(tenant: &mut Tenant, us: u64) {
    let mut params = us.to_le_bytes();
    let set = tenant.control(GROUP, ctrl::NVA06C_SET_TIMESLICE, &mut params);
    assert_eq!(set, OK);
}

/// A tenant with one compute context of a slice, and the number of its channel.
fn context(node: &TestNode, slice_us: u64) -> (Tenant, u32, u32) {
    let mut tenant = Tenant::new(node);
    tenant.uvm_space();
    let channel = tenant.channel(GROUP);
    tenant.preemption(channel, 2);
    slice(&mut tenant, slice_us);
    let number = numbers(&mut tenant, [channel])[0];
    (tenant, channel, number)
}

fn numbers<const N: usize>(tenant: &mut Tenant, handles: [u32; N]) -> [u32; N] {
    use layout::channel_list as at;
    let mut found = [0u32; N];
    let mut params = [0; at::SIZE];
    put32(&mut params, at::NUM_CHANNELS, N as u32);
    put64(
        &mut params,
        at::P_CHANNEL_HANDLE_LIST,
        handles.as_ptr() as u64,
    );
    put64(&mut params, at::P_CHANNEL_LIST, found.as_mut_ptr() as u64);
    let listed = tenant.control(DEVICE, ctrl::NV0080_FIFO_GET_CHANNELLIST, &mut params);
    assert_eq!(listed, OK);
    found
}

fn resident(tenant: &mut Tenant) -> (u32, u32) {
    let mut params = [0; layout::resident_channel::SIZE];
    let command = ctrl::NV2080_GR_GET_CURRENT_RESIDENT_CHANNEL;
    let status = tenant.control(SUBDEVICE, command, &mut params);
    (status, get32(&params, layout::resident_channel::CH_ID))
}

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

#[test]
fn whoever_asks_is_told_which_channel_is_on_the_engine() {
    let node = node("1xH200");
    let mut observer = Tenant::new(&node);
    assert_eq!(resident(&mut observer), (OK, NOBODY));
    let (mut first, first_channel, one) = context(&node, 9000);
    let (mut second, second_channel, other) = context(&node, 3000);
    first.submit(first_channel, Op::Launch(Kernel::Spin { ns: 1000 }));
    // It stays there, idle, until another comes.
    std::thread::sleep(Duration::from_millis(5));
    assert_eq!(resident(&mut observer), (OK, one));
    for _ in 0..8 {
        spin(&mut first, first_channel, 200);
        spin(&mut second, second_channel, 200);
    }
    let mut seen: BTreeMap<u32, u32> = BTreeMap::new();
    for _ in 0..400 {
        let (status, number) = resident(&mut observer);
        assert_eq!(status, OK);
        *seen.entry(number).or_default() += 1;
        std::thread::sleep(Duration::from_micros(1300));
    }
    assert_eq!(seen.len(), 2, "{seen:?}");
    // 9.27 of 12.54 ms with the switches; a standard error of 0.022 and machines that are busy.
    let share = f64::from(seen[&one]) / f64::from(seen[&one] + seen[&other]);
    assert!((0.64..0.84).contains(&share), "{share} {seen:?}");
}

#[test]
fn what_is_no_channel_has_no_number() {
    let node = node("1xH200");
    let (mut tenant, channel, number) = context(&node, 2000);
    assert_eq!(
        numbers(&mut tenant, [channel, GROUP, 0x5c00_0999]),
        [number, NOBODY, NOBODY]
    );
}

#[test]
fn a_card_can_lack_what_a_scheduler_wants_of_it() {
    let without = node("1xH200-no-timeline-no-residency");
    let mut observer = Tenant::new(&without);
    assert_eq!(resident(&mut observer).0, NOT_SUPPORTED);
    assert_eq!(reader::bind(&mut observer, true).0, NOT_SUPPORTED);
}

/// The call is taken, and every group has the slice that it began with.
#[test]
fn slices_that_are_inert_divide_equally() {
    let node = node("1xH200-no-slices");
    let (mut first, first_channel, one) = context(&node, 30_000);
    let (mut second, second_channel, other) = context(&node, 10_000);
    let mut reader = Reader::open(&node, 4096, timeline::KEEP_NEWEST, true);
    spin(&mut first, first_channel, 400);
    spin(&mut second, second_channel, 400);
    std::thread::sleep(Duration::from_millis(300));
    let mut sums: BTreeMap<u32, u64> = BTreeMap::new();
    for pair in reader.flushed().windows(2) {
        if let [start, end] = pair
            && (start.tag, end.tag) == (timeline::START, timeline::END)
        {
            *sums.entry(start.context).or_default() += end.ns - start.ns;
        }
    }
    let share = sums[&one] as f64 / (sums[&one] + sums[&other]) as f64;
    assert!((0.45..0.55).contains(&share), "{share} {sums:?}");
}
