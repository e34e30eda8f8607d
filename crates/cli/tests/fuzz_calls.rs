//! Hostile driver calls in a slice: whatever a tenant puts into its parameter blocks, its helper stays (its death would
//! end the tenant), and an audit finds no memory that was not charged.
//!
//! The test runs itself inside `gpuslice run`, on a simulated node; there it makes the calls. `PROPTEST_CASES` says how
//! many (eight a case), `GPUSLICE_FUZZ_SEED` which ones.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::process::{Command, Stdio};
use std::time::Duration;

use proptest::test_runner::Config;
use rm::{Abi, layout, nr};
use testkit::raw::{Block, Client, File, Node, request};

const SEED: &str = "GPUSLICE_FUZZ_SEED";
const INSIDE: &str = "GPUSLICE_FUZZ_INSIDE";
const CALLS_PER_CASE: u32 = 8;
/// Two audits in a row condemn a tenant; they are a second apart.
const AUDITS: Duration = Duration::from_millis(2500);

#[test]
fn no_block_ends_the_helper_or_takes_uncharged_memory() {
    let seed = std::env::var(SEED).ok().and_then(|s| s.parse().ok());
    if std::env::var_os(INSIDE).is_some() {
        return make_calls(seed.expect("the outside names a seed"));
    }
    let seed: u64 = seed.unwrap_or(1);
    let test = std::env::current_exe().expect("this program");
    let done = Command::new(env!("CARGO_BIN_EXE_gpuslice"))
        .args(["run", "--sim", "1xH200", "--memory", "2GiB", "--"])
        .arg(test)
        .args([
            "--exact",
            "no_block_ends_the_helper_or_takes_uncharged_memory",
            "--nocapture",
        ])
        .env(INSIDE, "1")
        .env(SEED, seed.to_string())
        .env_remove("CUDA_VISIBLE_DEVICES")
        .env_remove("GPUSLICE_SIM")
        .stdin(Stdio::null())
        .output()
        .expect("start");
    let (out, err) = (
        String::from_utf8_lossy(&done.stdout),
        String::from_utf8_lossy(&done.stderr),
    );
    print!("{out}");
    assert!(
        done.status.success() && out.contains("still served after"),
        "{SEED}={seed}: {:?}\n{out}\n{err}",
        done.status
    );
}

/// splitmix64: the same calls for the same seed.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }

    fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())]
    }
}

/// What the calls are made of.
struct Fuzzer<'n> {
    node: &'n Node,
    abi: &'static Abi,
    random: Random,
    /// Words that mean something: handles, descriptors, classes, controls, edges.
    words: Vec<u32>,
    /// Objects that the driver made for a call that named a class.
    made: u32,
    /// Addresses that may be given away: what the driver writes there is nobody's loss.
    addresses: Vec<u64>,
}

fn make_calls(seed: u64) {
    let node = Node::from_environment();
    let abi = rm::for_driver(simgpu::DRIVER_VERSION)
        .expect("the simulated driver")
        .abi;
    let client = Client::open(&node).expect("a client");
    let device = client.first_device().expect("a device");
    let uvm = node.open(File::Uvm).expect("the uvm file");
    let gpu = node.open(File::Gpu(0)).expect("the card's file");
    let spare = node.open(File::Control).expect("another control file");
    let scratch = scratch();
    let end = scratch + (1 << 16);
    let files = [client.file(), gpu.as_fd(), spare.as_fd(), uvm.as_fd()];
    let mut words = vec![
        0,
        1,
        2,
        3,
        4,
        8,
        71,
        0x40,
        0x1000,
        0xffff,
        1 << 20,
        1 << 31,
        u32::MAX - 1,
        u32::MAX,
    ];
    words.extend([
        client.root(),
        device.device,
        device.subdevice,
        device.instance,
    ]);
    words.extend(files.iter().map(|file| file.as_raw_fd() as u32));
    // Client handles are guessable, and guard has some of its own.
    words.extend((0..8).map(|i| client.root().wrapping_add(i).wrapping_sub(4)));
    words.extend(
        device
            .uuid
            .chunks_exact(4)
            .map(|four| u32::from_le_bytes(four.try_into().expect("four"))),
    );
    let addresses = vec![
        0,
        8,
        0x1000,
        scratch,
        end - 8,
        end - 1,
        1 << 47,
        0xffff_8000_0000_0000,
        u64::MAX,
    ];
    let mut fuzzer = Fuzzer {
        node: &node,
        abi,
        random: Random(seed),
        words,
        made: 0,
        addresses,
    };
    let calls = Config::default().cases * CALLS_PER_CASE;
    for _ in 0..calls {
        match fuzzer.random.below(4) {
            0 => fuzzer.escape(&files),
            1 => fuzzer.alloc(client.file()),
            2 => fuzzer.control(client.file()),
            _ => fuzzer.uvm(uvm.as_fd()),
        }
    }
    std::thread::sleep(AUDITS);
    let fresh = Client::open(&node).expect("calls are served");
    fresh.first_device().expect("as before");
    assert!(
        fuzzer.made > calls / 200,
        "only {} of {calls} calls made an object: they are too wild",
        fuzzer.made
    );
    println!(
        "still served after {calls} calls, {} objects made",
        fuzzer.made
    );
}

/// Where the driver may write, far beyond 64 KiB: a debugger's copy is as long as it says, and what lies behind must not be
/// the heap of this program.
fn scratch() -> u64 {
    const BYTES: usize = 8 << 30;
    // SAFETY: a new mapping at an address of the kernel's choice. Nothing in this program reads or writes it.
    let at = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            BYTES,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
            -1,
            0,
        )
    };
    assert_ne!(at, libc::MAP_FAILED);
    at as u64
}

impl Fuzzer<'_> {
    /// A block of hostile words; `address`: where the driver would look for a pointer.
    fn block(&mut self, len: usize) -> Block {
        let mut block = Block::new(len);
        for at in (0..len / 4).map(|i| 4 * i) {
            let word = match self.random.below(8) {
                0 => self.random.next() as u32,
                1..=3 => self.random.pick(&self.words),
                _ => continue,
            };
            block.put(at, &word.to_le_bytes());
        }
        for at in (0..len / 8).map(|i| 8 * i).take(16) {
            if self.random.below(4) == 0 {
                let address = self.random.pick(&self.addresses);
                block.put(at, &address.to_le_bytes());
            }
        }
        block
    }

    /// Every answer is a good one but none.
    fn call(&self, file: BorrowedFd<'_>, request: u32, block: &mut Block) {
        let _answered = self.node.ioctl(file, request, block);
    }

    fn escape(&mut self, files: &[BorrowedFd<'_>]) {
        let entries: Vec<_> = self.abi.escapes().collect();
        let entry = self.random.pick(&entries);
        let size = match entry.sizes {
            [] => 8 * self.random.below(64),
            sizes => self.random.pick(sizes).into(),
        };
        let mut block = self.block(size);
        let file = self.random.pick(files);
        self.call(file, request(entry.nr, size), &mut block);
    }

    fn alloc(&mut self, file: BorrowedFd<'_>) {
        use layout::nvos64 as l;
        let classes: Vec<(u32, u16)> = self
            .abi
            .classes()
            .map(|class| (class.id, class.size))
            .collect();
        let (class, size) = self.random.pick(&classes);
        let mut params = self.block(size.into());
        let mut block = self
            .block(l::SIZE)
            .with32(l::H_CLASS, class)
            .with64(l::P_ALLOC_PARMS, params.address());
        self.own_parents(&mut block, l::H_ROOT, l::H_OBJECT_PARENT);
        self.call(file, request(nr::RM_ALLOC, l::SIZE), &mut block);
        if block.u32(l::STATUS) == 0 {
            // What was made can be named by what comes.
            self.words.push(block.u32(l::H_OBJECT_NEW));
            self.made += 1;
        }
    }

    fn control(&mut self, file: BorrowedFd<'_>) {
        use layout::nvos54 as l;
        let controls: Vec<(u32, u32)> = self
            .abi
            .controls()
            .map(|control| (control.cmd, control.size))
            .collect();
        let (command, size) = self.random.pick(&controls);
        let size = match self.random.below(8) {
            0 => self.random.below(512),
            _ => size as usize,
        };
        let mut params = self.block(size);
        let mut block = self
            .block(l::SIZE)
            .with32(l::CMD, command)
            .with64(l::PARAMS, params.address())
            .with32(l::PARAMS_SIZE, size as u32);
        self.own_parents(&mut block, l::H_CLIENT, l::H_OBJECT);
        self.call(file, request(nr::RM_CONTROL, l::SIZE), &mut block);
    }

    /// More often than not the call gets past "no such client".
    fn own_parents(&mut self, block: &mut Block, client: usize, object: usize) {
        const ROOT: usize = 14;
        if self.random.below(4) > 0 {
            block.put(client, &self.words[ROOT].to_le_bytes());
            let parent = ROOT + self.random.below(3);
            block.put(object, &self.words[parent].to_le_bytes());
        }
    }

    fn uvm(&mut self, file: BorrowedFd<'_>) {
        let calls: Vec<(u32, u16)> = self
            .abi
            .uvm_calls()
            .map(|call| (call.request, call.size))
            .collect();
        let (request, size) = self.random.pick(&calls);
        let mut block = self.block(usize::from(size).max(8));
        self.call(file, request, &mut block);
    }
}
