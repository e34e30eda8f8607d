//! Tenants that want the compute engine: honestly, and with every trick that gets a program more of it than its part.
//!
//! Words are `key=value`, in any order; times are milliseconds and may have a fraction. Each process prints how much it has
//! done ([`Line::Worked`]) a few times a second and when it is done.

use std::time::{Duration, Instant};

use rm::{Status, ctrl, layout};
use serde_json::Value;

use super::cuda::Cuda;
use super::kernels::Spinner;
use super::{Context, Outcome};
use crate::outside::{Finding, Line, Worked, print};
use crate::raw::{Answer, Block, Channel, Client, Device, Fault, Uvm};

/// How often a program tells how far it is.
const TELL: Duration = Duration::from_millis(200);
/// For how long a program that never pauses has work queued, at most.
const AHEAD: Duration = Duration::from_millis(100);
/// Length of a kernel where the words say nothing.
const KERNEL_MS: f64 = 0.37;

impl Context {
    /// The number behind `key=`, or what stands for it where the word is missing.
    pub(super) fn number(&self, key: &str, otherwise: f64) -> Result<f64, String> {
        let found = (self.words.iter()).find_map(|word| word.strip_prefix(key)?.strip_prefix('='));
        let Some(text) = found else {
            return Ok(otherwise);
        };
        let number = text
            .parse()
            .ok()
            .filter(|n: &f64| n.is_finite() && *n >= 0.0);
        number.ok_or_else(|| format!("{key}={text}: no number of 0 or more"))
    }

    pub(super) fn count(&self, key: &str) -> Result<usize, String> {
        Ok((self.number(key, 1.0)? as usize).max(1))
    }

    pub(super) fn milliseconds(&self, key: &str, otherwise: f64) -> Result<Duration, String> {
        Ok(Duration::from_secs_f64(
            self.number(key, otherwise)? / 1000.0,
        ))
    }

    pub(super) fn kernel_ns(&self) -> Result<u64, String> {
        Ok(self.milliseconds("ms", KERNEL_MS)?.as_nanos() as u64)
    }

    pub(super) fn seconds(&self) -> Result<Duration, String> {
        Ok(Duration::from_secs_f64(self.number("seconds", 5.0)?))
    }
}

/// How far a process is, told from time to time.
pub(super) struct Meter {
    start: Instant,
    told: Instant,
    kernels: u64,
    kernel_ns: u64,
}

impl Meter {
    pub(super) fn new(kernel_ns: u64) -> Meter {
        let now = Instant::now();
        Meter {
            start: now,
            told: now,
            kernels: 0,
            kernel_ns,
        }
    }

    pub(super) fn done(&mut self, kernels: u64) {
        self.kernels += kernels;
        if self.told.elapsed() >= TELL {
            self.told = Instant::now();
            self.tell();
        }
    }

    pub(super) fn tell(&self) {
        print(&Line::Worked(Worked {
            pid: std::process::id(),
            kernels: self.kernels,
            virtual_ns: self.kernels * self.kernel_ns,
            wall_ns: self.start.elapsed().as_nanos() as u64,
        }));
    }

    /// The last word of a process, and its milliseconds of work done.
    pub(super) fn end(self, note: String) -> Outcome {
        self.tell();
        self.finding(note)
    }

    fn finding(self, note: String) -> Outcome {
        Ok(Finding {
            name: String::new(),
            held: true,
            measured: Value::from(self.kernels * self.kernel_ns / 1_000_000),
            expected: Value::Null,
            note,
        })
    }
}

/// Keeps the engine busy. Words: `ms` (a kernel), `seconds`, `contexts`, `processes`, `on` and `off` (a duty cycle).
pub(super) fn spin(context: &Context) -> Outcome {
    let processes = context.count("processes")?;
    if processes > 1 {
        return together(context, processes);
    }
    spin_alone(context)?.finding(String::new())
}

fn spin_alone(context: &Context) -> Result<Meter, Box<dyn std::error::Error>> {
    let contexts = context.count("contexts")?;
    let (on, off) = (
        context.milliseconds("on", 0.0)?,
        context.milliseconds("off", 0.0)?,
    );
    let kernel_ns = context.kernel_ns()?;
    let seconds = context.seconds()?;
    let ahead = if off.is_zero() { AHEAD } else { on / 2 };
    let mut spinners = open(contexts, kernel_ns, ahead)?;
    let mut meter = Meter::new(kernel_ns);
    let until = Instant::now() + seconds;
    while Instant::now() < until {
        let pause = Instant::now() + on;
        while Instant::now() < until && (off.is_zero() || Instant::now() < pause) {
            for spinner in &mut spinners {
                meter.done(spinner.turn()?);
            }
        }
        for spinner in &mut spinners {
            meter.done(spinner.drain()?);
        }
        if !off.is_zero() {
            std::thread::sleep(off);
        }
    }
    meter.tell();
    Ok(meter)
}

/// Keeps a copy engine busy. Words: `seconds`. What it counts as kernels are copies of 8 MiB.
pub(super) fn copier(context: &Context) -> Outcome {
    let bytes = vec![0x5au8; 8 << 20];
    let until = Instant::now() + context.seconds()?;
    let cuda = Cuda::open()?;
    let memory = cuda
        .alloc(bytes.len() as u64)
        .map_err(|code| format!("cuMemAlloc failed with {code}"))?;
    let mut meter = Meter::new(0);
    while Instant::now() < until {
        cuda.copy_to(memory, &bytes)?;
        meter.done(1);
    }
    meter.end(String::new())
}

fn open(contexts: usize, kernel_ns: u64, ahead: Duration) -> Result<Vec<Spinner>, String> {
    (0..contexts)
        .map(|_| Spinner::open(kernel_ns, ahead))
        .collect()
}

/// A process of its own that keeps the engine busy as the words say, and tells how far it is.
pub(super) struct Part(libc::pid_t);

impl Part {
    fn start(context: &Context) -> std::io::Result<Part> {
        Part::that(|| spin_alone(context).map(|_| ()))
    }

    /// A process that does this. The caller has no threads.
    pub(super) fn that(
        does: impl FnOnce() -> Result<(), Box<dyn std::error::Error>>,
    ) -> std::io::Result<Part> {
        // SAFETY: this process has no threads, so its child may do whatever it could itself; it leaves by _exit.
        match unsafe { libc::fork() } {
            -1 => Err(std::io::Error::last_os_error()),
            0 => {
                // Who stops the program stops its parts.
                // SAFETY: prctl(2) with integers.
                unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL, 0, 0, 0) };
                let ended = does();
                if let Err(e) = &ended {
                    eprintln!("part of a program: {e}");
                }
                // SAFETY: ends the process at once.
                unsafe { libc::_exit(i32::from(ended.is_err())) }
            }
            pid => Ok(Part(pid)),
        }
    }

    /// Waits for its end: whether it went well.
    pub(super) fn wait(self) -> bool {
        let mut status = 0;
        // SAFETY: a child that nobody has waited for, and a live status.
        let waited = unsafe { libc::waitpid(self.0, &raw mut status, 0) };
        waited == self.0 && libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0
    }

    pub(super) fn kill(self) {
        // SAFETY: kill(2) takes two numbers; the child has not been waited for, so the first is still its own.
        unsafe { libc::kill(self.0, libc::SIGKILL) };
        self.wait();
    }
}

/// Who only looks after others has done nothing itself.
pub(super) fn looked_after(note: String) -> Outcome {
    Ok(Finding {
        name: String::new(),
        held: true,
        measured: Value::Null,
        expected: Value::Null,
        note,
    })
}

/// The same program in so many processes at once.
fn together(context: &Context, processes: usize) -> Outcome {
    let started: Result<Vec<Part>, _> = (0..processes).map(|_| Part::start(context)).collect();
    let ended: Vec<bool> = started?.into_iter().map(Part::wait).collect();
    let well = ended.iter().filter(|&&well| well).count();
    if well < processes {
        return Err(format!("{} of {processes} processes failed", processes - well).into());
    }
    looked_after(format!("{processes} processes"))
}

/// Many contexts of which one is active at a time. Words: `ms`, `seconds`, `contexts`, `each` (a context's turn).
pub(super) fn rotate(context: &Context) -> Outcome {
    let (contexts, each) = (
        context.count("contexts")?,
        context.milliseconds("each", 5.0)?,
    );
    let kernel_ns = context.kernel_ns()?;
    let seconds = context.seconds()?;
    let mut spinners = open(contexts, kernel_ns, each / 2)?;
    let mut meter = Meter::new(kernel_ns);
    let until = Instant::now() + seconds;
    let mut turns = 0;
    while Instant::now() < until {
        for spinner in &mut spinners {
            let over = (Instant::now() + each).min(until);
            while Instant::now() < over {
                meter.done(spinner.turn()?);
            }
            meter.done(spinner.drain()?);
            turns += 1;
        }
    }
    meter.end(format!("{contexts} contexts, {turns} turns"))
}

/// A client with one channel, by raw calls.
pub(super) struct Raw {
    pub(super) client: Client,
    device: Device,
    _uvm: Uvm,
    pub(super) channel: Channel,
}

impl Raw {
    pub(super) fn open(
        context: &Context,
        make: impl FnOnce(&Client, &Device, u32) -> Answer<Channel>,
    ) -> Answer<Raw> {
        let client = Client::open(&context.node)?;
        let device = client.first_device()?;
        let uvm = Uvm::open(&context.node)?;
        let space = uvm.add_device(&client, &device)?;
        let channel = make(&client, &device, space.vaspace)?;
        Ok(Raw {
            client,
            device,
            _uvm: uvm,
            channel,
        })
    }

    /// One kernel.
    pub(super) fn run(&self, kernel_ns: u64) -> Answer {
        self.channel.spin(&self.client, kernel_ns).map(|_| ())
    }

    /// Keeps the channel busy until then: two threads, so that there is always a kernel in its queue.
    pub(super) fn spin(&self, meter: &mut Meter, until: Instant) -> Answer {
        let kernel_ns = meter.kernel_ns;
        let (sender, finished) = std::sync::mpsc::channel();
        std::thread::scope(|scope| {
            let running: Vec<_> = (0..2)
                .map(|_| {
                    let sender = sender.clone();
                    scope.spawn(move || {
                        while Instant::now() < until {
                            self.channel.spin(&self.client, kernel_ns)?;
                            // Nobody listens once the other thread has failed.
                            let _sent = sender.send(());
                        }
                        Ok(())
                    })
                })
                .collect();
            drop(sender);
            for () in finished {
                meter.done(1);
            }
            let mut ended = running.into_iter().map(|thread| thread.join());
            ended.try_for_each(|ended| ended.unwrap_or(Err(Fault::Os(libc::EIO))))
        })
    }
}

/// Long kernels in a context that never asks to be stopped inside one. Words: `ms`, `seconds`.
pub(super) fn wfi(context: &Context) -> Outcome {
    let (kernel, seconds) = (context.milliseconds("ms", 200.0)?, context.seconds()?);
    let raw = Raw::open(context, Channel::open)?;
    let mut meter = Meter::new(kernel.as_nanos() as u64);
    raw.spin(&mut meter, Instant::now() + seconds)?;
    meter.end("never asked for instruction-level preemption".into())
}

/// Tries a channel whose parent is the device: its group would have no handle, and so no slice.
pub(super) fn device_channel(context: &Context) -> Outcome {
    let refused = Raw::open(context, Channel::on_device).map(|_| ());
    let told = refused.map_or_else(|fault| fault.to_string(), |()| "taken".to_owned());
    Ok(Finding {
        name: String::new(),
        held: refused == Err(Fault::Status(Status::NOT_SUPPORTED.0)),
        measured: Value::from(told),
        expected: Value::from("status 0x56"),
        note: "a channel in a group that has no handle".into(),
    })
}

/// A process that ends and starts anew, to leave behind what it owes. Words: those of `spin`, `each` (a life).
pub(super) fn restarter(context: &Context) -> Outcome {
    let each = context.milliseconds("each", 1000.0)?;
    let until = Instant::now() + context.seconds()?;
    let mut lives = 0;
    while Instant::now() < until {
        let part = Part::start(context)?;
        std::thread::sleep(each.min(until.saturating_duration_since(Instant::now())));
        part.kill();
        lives += 1;
    }
    looked_after(format!("{lives} lives"))
}

/// Tries to have its slice changed, and those of others, then spins. Words: `ms`, `seconds`.
///
/// What the driver takes from a program for its own context (slice, preemption, scheduling) may be answered with success:
/// whether it changed anything the shares tell. Attaching and detaching must be refused, its own channels and others'.
pub(super) fn slice_thief(context: &Context) -> Outcome {
    const SECOND_US: u64 = 1_000_000;
    const HIGH: u32 = 2;
    let (kernel_ns, seconds) = (context.kernel_ns()?, context.seconds()?);
    let raw = Raw::open(context, Channel::open)?;
    let Raw {
        client,
        device,
        channel,
        ..
    } = &raw;
    let ask = |object: u32, command: u32, mut params: Block| {
        let answer = client.control(object, command, &mut params);
        answer.map_or_else(|fault| fault.to_string(), |()| "taken".to_owned())
    };
    let schedule = |on: u8| -> Answer<Block> {
        let entry = client.node().abi()?.control(ctrl::NVA06C_GPFIFO_SCHEDULE);
        let params = Block::new(entry.map_or(0, |entry| entry.size as usize));
        Ok(params.with(layout::gpfifo_schedule::B_ENABLE, &[on]))
    };
    let wfi = Block::new(layout::preemption_mode::SIZE)
        .with32(layout::preemption_mode::FLAGS, 1)
        .with32(layout::preemption_mode::H_CHANNEL, channel.channel);
    let slice = Block::new(8).with64(layout::timeslice::TIMESLICE_US, SECOND_US);
    let mut answers = vec![
        (
            "slice",
            ask(channel.group, ctrl::NVA06C_SET_TIMESLICE, slice),
        ),
        (
            "level",
            ask(
                channel.group,
                ctrl::NVA06C_SET_INTERLEAVE_LEVEL,
                Block::new(4).with32(0, HIGH),
            ),
        ),
        (
            "preemption",
            ask(
                device.subdevice,
                ctrl::NV2080_GR_SET_CTXSW_PREEMPTION_MODE,
                wfi,
            ),
        ),
        (
            "off",
            ask(channel.group, ctrl::NVA06C_GPFIFO_SCHEDULE, schedule(0)?),
        ),
        (
            "on",
            ask(channel.group, ctrl::NVA06C_GPFIFO_SCHEDULE, schedule(1)?),
        ),
    ];
    let own = set_attached(client, device, client.root(), channel.channel, true);
    answers.push((
        "attach itself",
        own.map_or_else(|f| f.to_string(), |()| "taken".into()),
    ));
    let others = detach_others(client, device);
    let mut meter = Meter::new(kernel_ns);
    raw.spin(&mut meter, Instant::now() + seconds)?;
    meter.tell();
    Ok(Finding {
        name: String::new(),
        held: own == Err(Fault::NOT_PERMITTED) && others == 0,
        measured: Value::from(format!("{} others detached", others)),
        expected: Value::from("0 others detached"),
        note: answers
            .iter()
            .map(|(what, answer)| format!("{what}: {answer}"))
            .collect::<Vec<_>>()
            .join(", "),
    })
}

fn set_attached(client: &Client, device: &Device, of: u32, channel: u32, attached: bool) -> Answer {
    use layout::disable_channels as l;
    let mut params = Block::new(l::SIZE)
        .with(l::B_DISABLE, &[u8::from(!attached)])
        .with32(l::NUM_CHANNELS, 1)
        .with32(l::H_CLIENT_LIST, of)
        .with32(l::H_CHANNEL_LIST, channel);
    client.control(
        device.subdevice,
        ctrl::NV2080_FIFO_DISABLE_CHANNELS,
        &mut params,
    )
}

/// Detaches whatever channel of other clients it can guess: handles are counters of the driver and of programs. How many
/// there were.
fn detach_others(client: &Client, device: &Device) -> usize {
    /// Handles of clients as the driver makes them.
    const CLIENTS: u32 = 0xc1d0_0001;
    /// Handles of objects as libcuda and the programs of this crate make them.
    const OBJECTS: u32 = 0x5c00_0001;
    let clients = (CLIENTS..CLIENTS + 48).filter(|&other| other != client.root());
    clients
        .flat_map(|other| (OBJECTS..OBJECTS + 48).map(move |object| (other, object)))
        .filter(|&(other, object)| set_attached(client, device, other, object, false).is_ok())
        .count()
}
