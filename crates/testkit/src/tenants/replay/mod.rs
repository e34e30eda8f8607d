//! Makes the calls of a stream again: the same calls in the same order by as many processes, on objects that stand where the
//! recorded ones stood.

mod hand;
mod places;

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd, RawFd};
use std::time::{Duration, Instant};

use rm::{Abi, layout, nr, uvm};
use serde_json::json;

use self::hand::{Hand, Shared};
use self::places::Places;
use super::{Context, Outcome};
use crate::outside::Finding;
use crate::raw::{Client, Device, File, Node, request};
use crate::stream::{self, Answer, Call, Event, Head, Item, Value, What, fields};

/// Room for one call's blocks and what they point to, in bytes.
const ROOM: usize = 4 << 20;
/// What a pointer leads to whose length nobody knows, in bytes.
const BEHIND: usize = 4096;
/// Two audits come in this time.
const AUDITS: Duration = Duration::from_millis(2500);
/// What the stream left must be back by then.
const BACK: Duration = Duration::from_secs(5);

/// A handle that nothing has.
const NOTHING: u32 = 0x5fff_ffff;
/// First of the handles that are chosen here, and of those for what was not made. The driver takes no client's that does not
/// begin as its own do.
const CHOSEN_CLIENT: u32 = 0xc1df_0000;
const CHOSEN: u32 = 0x5c00_0000;
const FRESH: u32 = 0x5e00_0000;
/// Where programs are said to have moved mappings to.
const MOVED: u64 = 0x6000_0000_0000;

/// A call that was not answered as the recorded one.
struct Difference {
    line: usize,
    key: String,
    recorded: Answer,
    here: Answer,
}

/// Which calls answered otherwise is one line each on standard output: `differs LINE WHAT: RECORDED here HERE`.
pub(super) fn replay(context: &Context) -> Outcome {
    let file = context.word(0)?;
    let text = std::fs::read_to_string(file).map_err(|e| format!("{file}: {e}"))?;
    let (head, events) = stream::parse(&text).map_err(|e| format!("{file}: {e}"))?;
    let mut replay = Replay::new(&context.node, &head, &events)?;
    let observer = Client::open(&context.node)?;
    let devices = observer.devices()?;
    let free = || -> Result<Vec<u64>, Box<dyn std::error::Error>> {
        let free = devices.iter().map(|d| d.free_bytes(&observer));
        Ok(free.collect::<Result<_, _>>()?)
    };
    replay.see_cards(&observer, &devices, &head)?;
    let at_start = free()?;
    for (i, (line, event)) in events.iter().enumerate() {
        replay.event(i, *line, event)?;
    }
    // All that is held now is looked at by two audits, which come while calls are made.
    let until = Instant::now() + AUDITS;
    while Instant::now() < until {
        free()?;
        std::thread::sleep(Duration::from_millis(100));
    }
    // The processes end, and the files are closed.
    let (differences, made) = replay.end();
    let until = Instant::now() + BACK;
    let mut at_end = free()?;
    while at_end != at_start && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(20));
        at_end = free()?;
    }
    let driver = context.driver_memory();
    for d in &differences {
        println!(
            "differs {} {}: {} here {}",
            d.line, d.key, d.recorded, d.here
        );
    }
    let empty = at_end == at_start && driver.iter().flatten().all(|&bytes| bytes == 0);
    let first: Vec<String> = differences
        .iter()
        .take(10)
        .map(|d| format!("line {}, {}: {}, not {}", d.line, d.key, d.here, d.recorded))
        .collect();
    Ok(Finding {
        name: String::new(),
        held: differences.is_empty() && empty,
        measured: json!({"equal": made - differences.len() as u64, "free": at_end, "driver": driver}),
        expected: json!({"equal": made, "free": at_start}),
        note: format!("{} calls answered otherwise: {first:?}", differences.len()),
    })
}

struct Card {
    id: u32,
    uuid: [u8; 16],
    instance: u32,
    minor: u32,
}

struct Replay {
    node: Node,
    abi: &'static Abi,
    driver: String,
    cards: Vec<Card>,
    hands: Vec<Hand>,
    shared: Shared,
    /// Memory that programs pin.
    host: Shared,
    places: Places,
    kinds: HashMap<u32, File>,
    files: HashMap<u32, OwnedFd>,
    exports: HashMap<u32, OwnedFd>,
    clients: HashMap<u32, u32>,
    objects: HashMap<u32, u32>,
    mappings: HashMap<u32, u64>,
    fresh: u32,
    differences: Vec<Difference>,
    made: u64,
}

impl Replay {
    /// Starts the processes. Nothing is open yet that they would inherit.
    fn new(node: &Node, head: &Head, events: &[(usize, Event)]) -> io::Result<Replay> {
        let abi = rm::for_driver(&head.driver).map_err(|e| io::Error::other(e.to_string()))?;
        let calls = || {
            events.iter().filter_map(|(_, event)| match event {
                Event::Call(call, _) => Some(call),
                _ => None,
            })
        };
        let shared = Shared::new(ROOM)?;
        let pinned = calls().map(pinned).max().unwrap_or(0);
        let host = Shared::new(pinned.max(BEHIND))?;
        let mut hands = Vec::new();
        for _ in 0..calls().map(|call| call.process).max().unwrap_or(0) {
            let hand = Hand::start(node, &hands)?;
            hands.push(hand);
        }
        Ok(Replay {
            node: node.clone(),
            abi: abi.abi,
            driver: head.driver.clone(),
            cards: Vec::new(),
            hands,
            shared,
            host,
            places: Places::of(abi.abi, events),
            kinds: calls().map(|call| (call.file, call.on)).collect(),
            files: HashMap::new(),
            exports: HashMap::new(),
            clients: HashMap::new(),
            objects: HashMap::new(),
            mappings: HashMap::new(),
            fresh: FRESH,
            differences: Vec::new(),
            made: 0,
        })
    }

    fn see_cards(
        &mut self,
        observer: &Client,
        devices: &[Device],
        head: &Head,
    ) -> Result<(), Box<dyn std::error::Error>> {
        for (id, device) in observer.gpu_ids()?.into_iter().zip(devices) {
            self.cards.push(Card {
                id,
                uuid: device.uuid,
                instance: device.instance,
                minor: observer.minor_of(id)?,
            });
        }
        if self.cards.len() != head.gpus as usize {
            let (found, asked) = (self.cards.len(), head.gpus);
            return Err(
                format!("this slice has {found} cards, and the stream is of {asked}").into(),
            );
        }
        Ok(())
    }

    fn end(self) -> (Vec<Difference>, u64) {
        (self.differences, self.made)
    }

    fn event(&mut self, i: usize, line: usize, event: &Event) -> io::Result<()> {
        match event {
            Event::Closed(file) => {
                self.files.remove(file);
                for hand in &mut self.hands {
                    if let Some(number) = hand.numbers.remove(file) {
                        hand.close(number)?;
                    }
                }
            }
            Event::Ended(process) => {
                if let Some(hand) = self.hands.get_mut(*process as usize - 1) {
                    hand.end();
                }
            }
            Event::Unmapped(process, at, length) => {
                if let (Value::Address(name, off), Some(hand)) =
                    (at, self.hands.get(*process as usize - 1))
                {
                    hand.unmap(self.places.at(*name, *off), *length)?;
                }
            }
            // Nobody knows whether it was made.
            Event::Call(call, _) if call.answer == Answer::Gone => {}
            Event::Call(call, times) => {
                self.make_ranges(i, line, call)?;
                for _ in 0..*times {
                    let here = self.call(call)?;
                    self.made += 1;
                    if here != call.answer {
                        self.differences.push(Difference {
                            line,
                            key: key(call),
                            recorded: call.answer,
                            here,
                        });
                    }
                }
            }
        }
        Ok(())
    }

    fn make_ranges(&mut self, i: usize, line: usize, call: &Call) -> io::Result<()> {
        use layout::uvm_create_external_range as l;
        for range in self.places.ranges_before(i).to_vec() {
            let number = self.number(call.process, call.file)?;
            self.shared.clear();
            let block = self.shared.piece(l::SIZE)?;
            self.shared
                .put(block + l::BASE as u64, &range.base.to_le_bytes());
            self.shared
                .put(block + l::LENGTH as u64, &range.length.to_le_bytes());
            let hand = &self.hands[call.process as usize - 1];
            hand.ioctl(number, uvm::CREATE_EXTERNAL_RANGE, block)?;
            let status = self.shared.word(block + l::RM_STATUS as u64);
            if status != 0 {
                self.differences.push(Difference {
                    line,
                    key: "range".to_owned(),
                    recorded: Answer::Status(0),
                    here: Answer::Status(status),
                });
            }
        }
        Ok(())
    }

    /// Makes a call; how it was answered here.
    fn call(&mut self, call: &Call) -> io::Result<Answer> {
        let number = self.number(call.process, call.file)?;
        let mut opened = Vec::new();
        let answer = match call.what {
            What::Map => self.map(call, number),
            What::Escape(nr, size) => self.ioctl(
                call,
                number,
                (request(nr, size as usize), size),
                &mut opened,
            ),
            What::Uvm(word) => {
                let size = self.abi.uvm(word).map_or(0, |entry| entry.size.into());
                self.ioctl(call, number, (word, size), &mut opened)
            }
        };
        // A program closes what it opened for one call, too.
        for number in opened {
            self.hands[call.process as usize - 1].close(number)?;
        }
        answer
    }

    fn map(&mut self, call: &Call, number: RawFd) -> io::Result<Answer> {
        let Some((Value::Address(name, off), length)) = places::interval(call) else {
            return Err(io::Error::other("a mapping without an address"));
        };
        let address = self.places.at(name, off);
        let hand = &self.hands[call.process as usize - 1];
        Ok(match hand.map(number, address, length) {
            Ok(_) => Answer::Native,
            Err(e) => errno(&e)?,
        })
    }

    fn ioctl(
        &mut self,
        call: &Call,
        number: RawFd,
        (request, size): (u32, u32),
        opened: &mut Vec<RawFd>,
    ) -> io::Result<Answer> {
        self.shared.clear();
        let end = |items: &[Item]| {
            items
                .iter()
                .map(|i| usize::from(i.at) + 16)
                .max()
                .unwrap_or(0)
        };
        let block = self.shared.piece((size as usize).max(end(&call.block)))?;
        let params = match &call.params {
            Some((size, items)) => {
                let at = self.shared.piece((*size as usize).max(end(items)))?;
                self.fill(call, at, items, None, opened)?;
                Some(at)
            }
            None => None,
        };
        for (pointer, items) in &call.behind {
            let pointed = params.map(|at| self.shared.quad(at + u64::from(*pointer)));
            if let Some(at) = pointed {
                self.fill(call, at, items, None, opened)?;
            }
        }
        self.fill(call, block, &call.block, params, opened)?;
        let hand = &self.hands[call.process as usize - 1];
        if let (What::Uvm(uvm::FREE), Answer::Status(0)) = (call.what, call.answer)
            && let Some((Value::Address(name, off), length)) = places::interval(call)
        {
            // What a program maps in a range it unmaps with it, which nobody sees.
            hand.unmap(self.places.at(name, off), length)?;
        }
        let answered = hand.ioctl(number, request, block);
        let value = match answered {
            Ok(value) => value,
            Err(e) => return errno(&e),
        };
        let status_at = fields::status_at(self.abi, call.what);
        let status = status_at.map(|at| self.shared.word(block + at as u64));
        if status.unwrap_or(0) == 0 {
            self.learn(block, &call.block);
            if let (Some(at), Some((_, items))) = (params, &call.params) {
                self.learn(at, items);
            }
        }
        Ok(match status {
            // How it was answered was not seen. Here it must have worked.
            Some(0) | None if call.answer == Answer::Native => Answer::Native,
            Some(status) => Answer::Status(status),
            None => Answer::Value(value),
        })
    }

    /// Writes the fields of a block.
    fn fill(
        &mut self,
        call: &Call,
        block: u64,
        items: &[Item],
        params: Option<u64>,
        opened: &mut Vec<RawFd>,
    ) -> io::Result<()> {
        for item in items {
            let at = block + u64::from(item.at);
            let bytes = match item.value {
                Value::Uuid(n) => self.card(n)?.uuid.to_vec(),
                Value::Version => self.driver.clone().into_bytes(),
                value => {
                    let is_params = usize::from(item.at) == layout::nvos64::P_ALLOC_PARMS;
                    let number = match (value, params) {
                        (Value::Pointer, Some(at)) if is_params => at,
                        (Value::Pointer, _) => self.behind(call)?,
                        _ => self.number_for(call, value, opened)?,
                    };
                    let width = if item.wide { 8 } else { 4 };
                    number.to_le_bytes()[..width].to_vec()
                }
            };
            self.shared.put(at, &bytes);
        }
        Ok(())
    }

    /// Something for a pointer to lead to: as much as any call reads there.
    fn behind(&mut self, call: &Call) -> io::Result<u64> {
        let control = match call.what {
            What::Escape(nr::RM_CONTROL, _) => {
                self.abi.control(number_at(call, layout::nvos54::CMD))
            }
            _ => None,
        };
        let most = control.and_then(|c| c.pointers.iter().map(|p| p.max as usize).max());
        self.shared.piece(most.unwrap_or(0).max(BEHIND))
    }

    /// What stands in a field for a name.
    fn number_for(
        &mut self,
        call: &Call,
        value: Value,
        opened: &mut Vec<RawFd>,
    ) -> io::Result<u64> {
        let known = |names: &HashMap<u32, u32>, name: u32| names.get(&name).copied();
        let handle = match value {
            Value::Number(n) => return Ok(n),
            Value::Client(n) => known(&self.clients, n).unwrap_or(NOTHING),
            Value::NewClient(n, true) => CHOSEN_CLIENT + n,
            Value::Object(n) => known(&self.objects, n).unwrap_or(NOTHING),
            Value::NewObject(n, true) => {
                self.objects.insert(n, CHOSEN + n);
                CHOSEN + n
            }
            Value::NewClient(_, false) | Value::NewObject(_, false) => 0,
            Value::Unknown => NOTHING,
            Value::Fresh => {
                self.fresh += 1;
                self.fresh
            }
            Value::GpuId(n) => self.card(n)?.id,
            Value::Instance(n) => self.card(n)?.instance,
            Value::File(file) => self.number(call.process, file)? as u32,
            Value::NoFile => u32::MAX,
            Value::Unused(file) => {
                let file = self.open(file)?;
                self.lend(call, file, opened)?
            }
            Value::Other => {
                let null: OwnedFd = std::fs::File::open("/dev/null")?.into();
                self.lend(call, null, opened)?
            }
            Value::Export(n) => {
                if !self.exports.contains_key(&n) {
                    let file = self.node.open(File::Control)?;
                    self.exports.insert(n, file);
                }
                let number =
                    self.hands[call.process as usize - 1].take(self.exports[&n].as_fd())?;
                opened.push(number);
                number as u32
            }
            Value::Process(n) => {
                let hand = self.hands.get((n as usize).wrapping_sub(1));
                hand.map_or(NOTHING, |hand| hand.pid as u32)
            }
            Value::Host => return Ok(self.host.address()),
            Value::Address(name, off) => return Ok(self.places.at(name, off)),
            Value::Mapping(n) => {
                return Ok(self.mappings.get(&n).copied().unwrap_or(NOTHING.into()));
            }
            Value::NewMapping(n, true) => {
                let address = MOVED + (u64::from(n) << 12);
                self.mappings.insert(n, address);
                return Ok(address);
            }
            Value::NewMapping(_, false) => 0,
            Value::Pointer | Value::Uuid(_) | Value::Version => {
                return Err(io::Error::other(format!(
                    "{value} stands where a number does"
                )));
            }
        };
        Ok(handle.into())
    }

    /// What the driver gave to what was made.
    fn learn(&mut self, block: u64, items: &[Item]) {
        for item in items {
            let at = block + u64::from(item.at);
            match item.value {
                Value::NewClient(n, _) => {
                    self.clients.insert(n, self.shared.word(at));
                }
                Value::NewObject(n, _) => {
                    self.objects.insert(n, self.shared.word(at));
                }
                Value::NewMapping(n, false) => {
                    self.mappings.insert(n, self.shared.quad(at));
                }
                _ => {}
            }
        }
    }

    fn card(&self, n: u32) -> io::Result<&Card> {
        let card = self.cards.get((n as usize).wrapping_sub(1));
        card.ok_or_else(|| io::Error::other(format!("the stream has no card {n}")))
    }

    fn open(&self, file: File) -> io::Result<OwnedFd> {
        let file = match file {
            File::Gpu(index) => File::Gpu(self.card(index + 1)?.minor),
            other => other,
        };
        self.node.open(file)
    }

    /// The number of a file of the stream in a process, opened where it is not yet.
    fn number(&mut self, process: u32, file: u32) -> io::Result<RawFd> {
        if !self.files.contains_key(&file) {
            let kind = self.kinds.get(&file).copied();
            let kind = kind.ok_or_else(|| io::Error::other(format!("f{file} is nowhere used")))?;
            let opened = self.open(kind)?;
            self.files.insert(file, opened);
        }
        let hand = &mut self.hands[process as usize - 1];
        if let Some(&number) = hand.numbers.get(&file) {
            return Ok(number);
        }
        let number = hand.take(self.files[&file].as_fd())?;
        hand.numbers.insert(file, number);
        Ok(number)
    }

    /// Gives a process a file for one call.
    fn lend(&self, call: &Call, file: OwnedFd, opened: &mut Vec<RawFd>) -> io::Result<u32> {
        let number = self.hands[call.process as usize - 1].take(file.as_fd())?;
        opened.push(number);
        Ok(number as u32)
    }
}

/// An error number as an answer.
fn errno(e: &io::Error) -> io::Result<Answer> {
    let number = e.raw_os_error();
    number
        .map(Answer::Errno)
        .ok_or_else(|| io::Error::other("a process of the replay is gone"))
}

/// A number that stands in a call's block.
fn number_at(call: &Call, at: usize) -> u32 {
    let item = call.block.iter().find(|item| usize::from(item.at) == at);
    match item.map(|item| item.value) {
        Some(Value::Number(n)) => n as u32,
        _ => 0,
    }
}

/// Bytes of host memory that a call pins.
fn pinned(call: &Call) -> usize {
    let host = call.block.iter().any(|item| item.value == Value::Host);
    let limit = call
        .block
        .iter()
        .find(|item| usize::from(item.at) == layout::nvos02::LIMIT);
    match limit.map(|item| item.value) {
        Some(Value::Number(limit)) if host => limit as usize + 1,
        _ => 0,
    }
}

/// What a call is: the row of the tables that decides about it.
pub fn key(call: &Call) -> String {
    match call.what {
        What::Escape(nr::RM_CONTROL, _) => {
            format!("control {:#010x}", number_at(call, layout::nvos54::CMD))
        }
        What::Escape(nr::RM_ALLOC, _) => {
            format!("class {:#06x}", number_at(call, layout::nvos64::H_CLASS))
        }
        What::Escape(number, _) => format!("escape {number:#04x}"),
        What::Uvm(request) => format!("uvm {request}"),
        What::Map => "map".to_owned(),
    }
}
