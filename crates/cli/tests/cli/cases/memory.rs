//! Cases about what is charged to whom.

use std::fs;
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use testkit::outside::Observer;
use testkit::raw::{Block, Device, Pages};

use super::{Talker, line, part, playing, raw, until_told, within};
use crate::common::{GIB, MIB, Node, finish, is_root, wait_until};
use crate::cuda::Cuda;

#[test]
fn b07_the_quota_follows_the_card_and_not_its_number() {
    const TEST: &str = "memory::b07_the_quota_follows_the_card_and_not_its_number";
    const SECOND: &str = "GPU-53494d00-4832-4000-8000-677075736c01";
    let on = |cards: &str, size: u64| {
        let mut command = playing(TEST, &size.to_string());
        command.env("CUDA_VISIBLE_DEVICES", cards);
        Talker::start(command)
    };
    match part().as_deref() {
        None => {
            let node = Node::start("2xH200");
            let done = finish(within(&node, &["--memory", "5800MiB"], TEST, "slice"));
            done.ended(0);
        }
        Some("slice") => {
            let (mut first, mut second) = (on("0", 4096 * MIB), on("1", 4096 * MIB));
            assert_eq!(first.says("alloc"), "0");
            assert_eq!(second.says("alloc"), "0");
            for cards in ["1", SECOND, "1,0"] {
                let mut more = on(cards, 2048 * MIB);
                assert_eq!(more.says("alloc"), "2", "{cards}");
                more.ends();
            }
            second.ends();
            for cards in [SECOND, "1,0"] {
                let mut again = on(cards, 4096 * MIB);
                assert_eq!(again.says("alloc"), "0", "{cards}");
                again.ends();
            }
            first.ends();
        }
        Some(size) => {
            let cuda = Cuda::open();
            let got = cuda.alloc(size.parse().expect("a size"));
            println!("\nalloc {}", got.err().unwrap_or(0));
            until_told();
        }
    }
}

#[test]
fn b08_full_slices_leave_each_other_their_own() {
    const TEST: &str = "memory::b08_full_slices_leave_each_other_their_own";
    if part().is_some() {
        let cuda = Cuda::open();
        let free = cuda.free();
        let mut reached = 0;
        for step in [GIB, 64 * MIB, 2 * MIB] {
            while cuda.alloc(step).is_ok() {
                reached += step;
            }
        }
        println!("\nfilled {} {reached}", free - reached);
        return until_told();
    }
    let node = Node::start("1xH200");
    let fill = |options: &[&str]| {
        let mut slice = Talker::start(within(&node, options, TEST, "fill"));
        let said = slice.says("filled");
        let (short, reached) = said.split_once(' ').expect("two numbers");
        let short: u64 = short.parse().expect("bytes");
        assert!(short < 2 * MIB, "{short} bytes of its own were refused");
        (slice, reached.parse::<u64>().expect("bytes"))
    };
    // One after the other takes all that it may, the last all that is left of the card.
    let (first, _) = fill(&["--memory", "60GiB", "--name", "first"]);
    let (second, _) = fill(&["--memory", "40%", "--name", "second"]);
    let (third, reached) = fill(&["--name", "third"]);
    assert!(reached > 20 * GIB, "{reached}");
    for slice in [first, second, third] {
        slice.ends();
    }
}

#[test]
fn b19_imported_memory_is_charged_once_until_the_last_import_closes() {
    const TEST: &str = "memory::b19_imported_memory_is_charged_once_until_the_last_import_closes";
    const SIZE: u64 = 900 * MIB;
    match part().as_deref() {
        None => {
            let node = Node::start("1xH200");
            finish(within(&node, &["--memory", "3GiB"], TEST, "slice")).ended(0);
        }
        Some("slice") => {
            let (client, device) = raw();
            let free = || device.free_bytes(&client).expect("an answer");
            let start = free();
            let mut exporter = Talker::start(playing(TEST, "export"));
            let handle = exporter.says("handle");
            let exported = start - free();
            let mut importer = Talker::start(playing(TEST, "import"));
            importer.tell(&handle);
            importer.says("imported");
            let both = start - free();
            // The second process has a context of its own, and no second charge for the memory.
            assert!(both - exported < SIZE, "{both} after {exported}");
            exporter.ends();
            wait_until("only the importer is charged", || start - free() < both);
            let alone = start - free();
            assert!(alone >= SIZE, "{alone}: the import keeps the memory");
            importer.tell("read again");
            importer.says("still there");
            importer.ends();
            wait_until("everything is back", || free() == start);
        }
        Some("export") => {
            let cuda = Cuda::open();
            let memory = cuda.alloc(SIZE).expect("memory");
            cuda.set(memory, 0x1234_5678, 16);
            let handle = cuda.export(memory);
            println!("\nhandle {}", handle.map(|b| format!("{b:02x}")).concat());
            until_told();
        }
        Some(_) => {
            let cuda = Cuda::open();
            let text = line();
            let handle: [u8; 64] = std::array::from_fn(|i| {
                u8::from_str_radix(&text[2 * i..2 * i + 2], 16).expect("two digits")
            });
            let memory = cuda.import(handle);
            assert_eq!(cuda.get(memory), 0x1234_5678);
            println!("\nimported");
            line();
            assert_eq!(cuda.get(memory), 0x1234_5678);
            println!("still there");
            until_told();
        }
    }
}

#[test]
fn b22_callers_that_are_killed_in_their_calls_take_nothing_with_them() {
    const TEST: &str = "memory::b22_callers_that_are_killed_in_their_calls_take_nothing_with_them";
    match part().as_deref() {
        None => {
            let node = Node::start("1xH200");
            finish(within(&node, &["--memory", "4GiB"], TEST, "slice")).ended(0);
        }
        Some("slice") => {
            let (client, device) = raw();
            let free = || device.free_bytes(&client).expect("an answer");
            let start = free();
            for round in 0..40 {
                let mut storm = Talker::start(playing(TEST, "storm"));
                storm.says("calls");
                std::thread::sleep(Duration::from_micros(700 * (round % 10)));
                storm.child.kill().expect("a child");
                storm.child.wait().expect("a child");
            }
            wait_until("what the killed held is back", || free() == start);
            let memory = device.alloc(&client, 4 * GIB, Pages::Default);
            client.free(memory.expect("the whole quota")).expect("free");
        }
        Some(_) => {
            let said = AtomicBool::new(false);
            std::thread::scope(|scope| {
                for _ in 0..8 {
                    scope.spawn(|| {
                        let (client, device) = raw();
                        loop {
                            let memory = device.alloc(&client, 8 * MIB, Pages::Default);
                            if !said.swap(true, Ordering::Relaxed) {
                                println!("\ncalls");
                            }
                            client.free(memory.expect("memory")).expect("free");
                        }
                    });
                }
            });
        }
    }
}

/// The block of an allocation that another thread changes.
#[repr(C, align(16))]
struct Shared([AtomicU64; 32]);

#[test]
fn b34_a_size_that_another_thread_flips_is_charged_as_the_driver_reads_it() {
    const TEST: &str =
        "memory::b34_a_size_that_another_thread_flips_is_charged_as_the_driver_reads_it";
    const CALLS: u32 = 5_000;
    if part().is_none() {
        let node = Node::start("1xH200");
        let mut slice = Talker::start(within(&node, &["--memory", "1GiB"], TEST, "slice"));
        let helper: u32 = slice.says("helper").parse().expect("a pid");
        let observer = Observer::open(&testkit::raw::Node::simulated(Path::new(&node.socket)))
            .expect("a client outside");
        slice.tell("go on");
        let over = AtomicBool::new(false);
        let most = std::thread::scope(|scope| {
            let watch = scope.spawn(|| {
                let mut most = 0;
                while !over.load(Ordering::Relaxed) {
                    most = most.max(observer.memory_of(helper).expect("an answer")[0]);
                    std::thread::sleep(Duration::from_millis(1));
                }
                most
            });
            let said = slice.says("granted");
            over.store(true, Ordering::Relaxed);
            assert!(
                said.parse::<u32>().expect("a number") > CALLS / 100,
                "{said}"
            );
            watch.join().expect("the watcher")
        });
        assert!(most > 0 && most <= GIB, "{most}");
        return slice.ends();
    }
    use rm::layout::{memory_allocation as m, nvos64 as l};
    static CALL: Shared = Shared([const { AtomicU64::new(0) }; 32]);
    static PARAMS: Shared = Shared([const { AtomicU64::new(0) }; 32]);
    const HUGE: u64 = 40 * GIB;
    const LARGE: u64 = 64 * MIB;
    let (client, device) = raw();
    // SAFETY: takes nothing and cannot fail.
    println!("\nhelper {}", unsafe { libc::getppid() });
    line();
    let over = AtomicBool::new(false);
    let granted = std::thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                for size in [LARGE, HUGE] {
                    PARAMS.0[m::SIZE_FIELD / 8].store(size, Ordering::Relaxed);
                }
            }
        });
        let mut held = Vec::new();
        let mut granted = 0_u32;
        for _ in 0..CALLS {
            let handle = client.fresh();
            let mut params = Device::memory(&client, LARGE);
            let mut call = Block::new(l::SIZE)
                .with32(l::H_ROOT, client.root())
                .with32(l::H_OBJECT_PARENT, device.device)
                .with32(l::H_OBJECT_NEW, handle)
                .with32(l::H_CLASS, rm::class::NV01_MEMORY_LOCAL_USER)
                .with64(l::P_ALLOC_PARMS, PARAMS.0.as_ptr() as u64)
                .with32(l::PARAMS_SIZE, params.len() as u32);
            fill(&PARAMS, &mut params);
            fill(&CALL, &mut call);
            let request = testkit::raw::request(rm::nr::RM_ALLOC, l::SIZE);
            let file = std::os::fd::AsRawFd::as_raw_fd(&client.file().as_fd());
            // SAFETY: the block is as long as the request says, and made of atomics, which others may write.
            let done = unsafe { libc::ioctl(file, request.into(), CALL.0.as_ptr()) };
            let status = CALL.0[l::STATUS / 8].load(Ordering::Relaxed) >> (8 * (l::STATUS % 8));
            if done == 0 && status as u32 == 0 {
                granted += 1;
                held.push(handle);
            }
            if held.len() >= 8 {
                held.drain(..)
                    .for_each(|memory| client.free(memory).expect("free"));
            }
        }
        over.store(true, Ordering::Relaxed);
        granted
    });
    println!("granted {granted}");
    until_told();
}

fn fill(to: &Shared, from: &mut Block) {
    for at in 0..from.len() / 8 {
        to.0[at].store(from.u64(8 * at), Ordering::Relaxed);
    }
}

#[test]
fn b44_a_new_process_with_the_number_of_a_dead_one_inherits_nothing() {
    const TEST: &str = "memory::b44_a_new_process_with_the_number_of_a_dead_one_inherits_nothing";
    const LAST: &str = "/proc/sys/kernel/ns_last_pid";
    match part().as_deref() {
        None => {
            if !is_root() || fs::write(LAST, fs::read(LAST).expect("a number")).is_err() {
                eprintln!("not run: only root may say which number the next process gets");
                return;
            }
            let node = Node::start("1xH200");
            let mut slice = Talker::start(within(&node, &["--memory", "4GiB"], TEST, "slice"));
            loop {
                let said = slice.says("next");
                if said == "done" {
                    break;
                }
                let number: u32 = said.parse().expect("a pid");
                fs::write(LAST, (number - 1).to_string()).expect("written");
                slice.tell("go on");
            }
            slice.ends();
        }
        Some("slice") => {
            let (client, device) = raw();
            let free = || device.free_bytes(&client).expect("an answer");
            let start = free();
            let mut same = 0;
            for _ in 0..200 {
                let mut first = Talker::start(playing(TEST, "hold"));
                first.says("held");
                let number = first.child.id();
                first.child.kill().expect("a child");
                first.child.wait().expect("a child");
                println!("\nnext {number}");
                line();
                // Two in a row must hold the sum of what each asks for, and end with nothing.
                let mut second = Talker::start(playing(TEST, "hold"));
                second.says("held");
                same += u32::from(second.child.id() == number);
                wait_until("only the second holds memory", || {
                    start - free() == 64 * MIB
                });
                second.ends();
                wait_until("nobody holds memory", || free() == start);
                if same == 3 {
                    break;
                }
            }
            assert_eq!(same, 3, "numbers that were given again");
            println!("\nnext done");
            until_told();
        }
        Some(_) => {
            let (client, device) = raw();
            device
                .alloc(&client, 64 * MIB, Pages::Default)
                .expect("memory");
            println!("\nheld");
            until_told();
        }
    }
}
