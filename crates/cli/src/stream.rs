//! `gpuslice trace --stream`: a command's calls as text, so that they can be made again without a GPU.
//!
//! The form is `testkit::stream`'s. What is told of a block are the fields that are known to hold no data, and of the others
//! numbers so small that they are flags, counts and indices; names stand for handles, addresses, descriptors and processes.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use guard::backend::Node;
use guard::listener::Reply;
use guard::rmcall::Gpu;
use guard::sys::Tid;
use guard::trace::{Named, Trace, Traced, TracedCall};
use rm::{Abi, layout, nr};
use testkit::raw;
use testkit::stream::fields::{self, Field, Kind};
use testkit::stream::{Answer, Call, Event, Head, Item, Names, Value, What};

use crate::say;

/// Numbers in fields that nobody has described are told below this: no address, no handle that a driver gives, at most
/// one letter of a text.
const SMALL: u32 = 0x1000;
/// Words of ones are told too: they end lists, or mean all of something.
const ALL: [u32; 2] = [u32::MAX, 0xffff];
/// So far into a block fields that nobody has described are looked at, in bytes.
const LOOKED_AT: usize = 64;
/// Numbers of processes that are smaller are not told from flags.
const LEAST_PID: u32 = 64;
/// Addresses nearer to each other than this have one name, in bytes.
const NEAR: u64 = 16 << 30;
/// The file is as good as this old if the helper is killed.
const WRITE_EVERY: Duration = Duration::from_secs(1);

/// Writes a stream, in the helper.
pub struct Recorder {
    abi: &'static Abi,
    driver: String,
    state: Mutex<State>,
}

struct State {
    to: BufWriter<Box<dyn Write + Send>>,
    written: Instant,
    incomplete: bool,
    /// The last call and how often it came: written when another comes.
    last: Option<(Call, u32)>,
    gpus: Vec<Card>,
    processes: Names<Tid>,
    files: Names<u64>,
    exports: Names<u64>,
    clients: HashMap<u32, Client>,
    mappings: Names<(u32, u64)>,
    spaces: Vec<Space>,
    counts: Counts,
}

#[derive(Default)]
struct Counts {
    clients: u32,
    objects: u32,
}

struct Card {
    id: u32,
    uuid: [u8; 16],
    instance: u32,
    minor: u32,
}

struct Client {
    name: u32,
    objects: HashMap<u32, Object>,
}

struct Object {
    name: u32,
    parent: u32,
}

/// Addresses of a process that lie near each other.
struct Space {
    process: u32,
    from: u64,
    low: u64,
    high: u64,
}

impl Recorder {
    /// Opens the file, which must be there.
    ///
    /// # Errors
    /// It cannot be written, or the driver is of an unknown branch.
    pub fn open(path: &Path, driver_version: &str) -> io::Result<Recorder> {
        let file = File::options().append(true).open(path)?;
        Recorder::new(Box::new(file), driver_version)
    }

    fn new(to: Box<dyn Write + Send>, driver_version: &str) -> io::Result<Recorder> {
        let found = rm::for_driver(driver_version).map_err(|e| io::Error::other(e.to_string()))?;
        let state = State {
            to: BufWriter::with_capacity(1 << 16, to),
            written: Instant::now(),
            incomplete: false,
            last: None,
            gpus: Vec::new(),
            processes: Names::default(),
            files: Names::default(),
            exports: Names::default(),
            clients: HashMap::new(),
            mappings: Names::default(),
            spaces: Vec::new(),
            counts: Counts::default(),
        };
        Ok(Recorder {
            abi: found.abi,
            driver: driver_version.to_owned(),
            state: Mutex::new(state),
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A call as it is written. `None`: not one of the driver's, or of a process that is gone.
    fn call(&self, state: &mut State, traced: &Traced<'_>) -> Option<Call> {
        let process = state.processes.of(traced.process?);
        match traced.call {
            TracedCall::Other => None,
            TracedCall::Map {
                file,
                address,
                length,
            } => {
                let address = Item {
                    at: 0,
                    wide: true,
                    value: state.address(process, address),
                };
                let length = Item {
                    at: 8,
                    wide: true,
                    value: Value::Number(length),
                };
                Some(Call {
                    process,
                    file: state.files.of(file),
                    on: raw::File::Uvm,
                    what: What::Map,
                    block: vec![address, length],
                    params: None,
                    behind: Vec::new(),
                    answer: answer(traced.answer, None),
                })
            }
            TracedCall::Ioctl {
                node,
                file,
                request,
                before,
                block,
                params_before,
                params,
                behind,
            } => {
                let (what, known) = match node {
                    Node::Uvm => {
                        let known = fields::of_uvm(self.abi, request, before);
                        (What::Uvm(request), known)
                    }
                    Node::Control | Node::Gpu(_) => {
                        let (number, size) = (request as u8, request >> 16 & 0x3fff);
                        let known = fields::of_escape(self.abi, number, before);
                        (What::Escape(number, size), known)
                    }
                };
                let status = fields::status_at(self.abi, what);
                let answer = answer(traced.answer, status.map(|at| word(block, at)));
                let mut look = Look {
                    abi: self.abi,
                    process,
                    traced,
                    client: word(before, 0),
                    what,
                    made: matches!(answer, Answer::Status(0) | Answer::Native),
                    class: class(what, before),
                };
                let items = look.items(state, &known, before, block);
                let params = (!params_before.is_empty()).then(|| {
                    let known = look.params(params_before);
                    let items = look.items(state, &known, params_before, params);
                    (params_before.len() as u32, items)
                });
                let behind = look.behind(state, behind);
                if answer == Answer::Status(0) {
                    state.forget_freed(what, before);
                }
                Some(Call {
                    process,
                    file: state.files.of(file),
                    on: state.device(node),
                    what,
                    block: items,
                    params,
                    behind,
                    answer,
                })
            }
        }
    }
}

/// The class that an `RM_ALLOC` makes.
fn class(what: What, block: &[u8]) -> Option<u32> {
    matches!(what, What::Escape(nr::RM_ALLOC, _)).then(|| word(block, layout::nvos64::H_CLASS))
}

fn word(block: &[u8], at: usize) -> u32 {
    let bytes = block.get(at..at + 4).and_then(|b| b.try_into().ok());
    bytes.map_or(0, u32::from_le_bytes)
}

fn quad(block: &[u8], at: usize) -> u64 {
    let bytes = block.get(at..at + 8).and_then(|b| b.try_into().ok());
    bytes.map_or(0, u64::from_le_bytes)
}

fn answer(reply: Option<Reply>, status: Option<u32>) -> Answer {
    match (reply, status) {
        (None, _) => Answer::Gone,
        (Some(Reply::Errno(e)), _) => Answer::Errno(e),
        (Some(Reply::Continue), _) => Answer::Native,
        (Some(Reply::Value(_)), Some(status)) => Answer::Status(status),
        (Some(Reply::Value(value)), None) => Answer::Value(value),
    }
}

/// A call whose blocks are looked at.
struct Look<'a> {
    abi: &'static Abi,
    process: u32,
    traced: &'a Traced<'a>,
    client: u32,
    what: What,
    /// What it was to make is there now.
    made: bool,
    class: Option<u32>,
}

impl Look<'_> {
    /// The fields of the call's parameters.
    fn params(&self, params: &[u8]) -> Vec<Field> {
        let TracedCall::Ioctl { before, .. } = self.traced.call else {
            return Vec::new();
        };
        match (self.what, self.class) {
            (_, Some(class)) => fields::of_class(self.abi, class),
            (What::Escape(nr::RM_CONTROL, _), None) => {
                fields::of_control(self.abi, word(before, layout::nvos54::CMD), params)
            }
            _ => Vec::new(),
        }
    }

    /// What a block holds: the fields that are known, then small numbers and names in the rest.
    fn items(
        &mut self,
        state: &mut State,
        known: &[Field],
        before: &[u8],
        after: &[u8],
    ) -> Vec<Item> {
        let mut items = Vec::new();
        for &(at, kind) in known {
            if at + kind.width() > before.len() {
                continue;
            }
            if let Some(value) = self.value(state, (at, kind), before, after) {
                let wide = kind.width() == 8;
                items.push(Item {
                    at: at as u16,
                    wide,
                    value,
                });
            }
        }
        let covered = |at: usize| {
            known
                .iter()
                .any(|&(from, kind)| at + 4 > from && at < from + kind.width())
        };
        for at in (0..before.len().min(LOOKED_AT)).step_by(4) {
            if at + 4 > before.len() || covered(at) {
                continue;
            }
            if let Some(value) = self.anything(state, word(before, at)) {
                items.push(Item {
                    at: at as u16,
                    wide: false,
                    value,
                });
            }
        }
        items.sort_by_key(|item| item.at);
        items
    }

    fn value(
        &self,
        state: &mut State,
        (at, kind): Field,
        before: &[u8],
        after: &[u8],
    ) -> Option<Value> {
        let (word, quad) = (|at| word(before, at), |at| quad(before, at));
        let some = |n: u64| (n != 0).then_some(Value::Number(n));
        match kind {
            Kind::Client => state.client(word(at)),
            Kind::Object => state.object(self.client, word(at)),
            Kind::ObjectOf(client) => state.object(word(client), word(at)),
            Kind::New(parent) => self.new_object(state, word(parent), before, after, at),
            Kind::Word => some(word(at).into()),
            Kind::Quad => some(quad(at)),
            Kind::Address => Some(state.address(self.process, quad(at))),
            Kind::Mapping => state.mapping(self.client, quad(at)),
            Kind::NewMapping(true) => {
                let name = state.mappings.of((self.client, quad(at)));
                Some(Value::NewMapping(name, true))
            }
            Kind::NewMapping(false) => self.made.then(|| {
                let key = (self.client, self::quad(after, at));
                // What was mapped there before is not any more.
                state.mappings.forget(&key);
                Value::NewMapping(state.mappings.of(key), false)
            }),
            Kind::Uuid => state
                .card(|card| before[at..at + 16] == card.uuid)
                .map(Value::Uuid),
            Kind::Instance => state
                .card(|card| card.instance == word(at))
                .map(Value::Instance),
            Kind::Descriptor => Some(self.descriptor(state, word(at) as i32)),
            Kind::WideDescriptor => Some(match i32::try_from(quad(at)) {
                Ok(number) => self.descriptor(state, number),
                Err(_) => Value::Other,
            }),
            Kind::Process => match state.processes.get(&(word(at) as Tid)) {
                Some(name) => Some(Value::Process(name)),
                None => (word(at) != 0).then_some(Value::Unknown),
            },
            Kind::Pointer => (quad(at) != 0).then_some(Value::Pointer),
            Kind::Host => Some(Value::Host),
            Kind::Version => Some(Value::Version),
            Kind::Untold(_) => None,
        }
    }

    /// The handle of what the call was to make.
    fn new_object(
        &self,
        state: &mut State,
        parent: u32,
        before: &[u8],
        after: &[u8],
        at: usize,
    ) -> Option<Value> {
        let (asked, handle) = (word(before, at), word(after, at));
        let chosen = asked != 0;
        if !self.made {
            let known = match state.object(self.client, asked)? {
                Value::Unknown => Value::Fresh,
                known => known,
            };
            return Some(known);
        }
        if self
            .class
            .is_some_and(|class| fields::is_root(self.abi, class))
        {
            return Some(Value::NewClient(state.add_client(handle), chosen));
        }
        let name = state.add_object(self.client, parent, handle);
        Some(Value::NewObject(name, chosen))
    }

    /// What the pointers of a control lead to: of that, which may be data, only the names are told.
    fn behind(&self, state: &State, blocks: &[&[u8]]) -> Vec<(u16, Vec<Item>)> {
        let TracedCall::Ioctl { before, .. } = self.traced.call else {
            return Vec::new();
        };
        let control = match self.what {
            What::Escape(nr::RM_CONTROL, _) => self.abi.control(word(before, layout::nvos54::CMD)),
            _ => None,
        };
        let pointers = control.map_or(&[][..], |c| c.pointers);
        // Those that the driver is not shown are not read.
        let read = pointers.iter().filter(|pointer| pointer.max > 0);
        let mut behind = Vec::new();
        for (pointer, block) in read.zip(blocks) {
            let words = (0..block.len().min(LOOKED_AT) / 4).map(|i| 4 * i);
            let named = words.filter_map(|at| match self.anything(state, word(block, at))? {
                Value::Number(_) => None,
                value => Some(Item {
                    at: at as u16,
                    wide: false,
                    value,
                }),
            });
            let items: Vec<Item> = named.collect();
            if !items.is_empty() {
                behind.push((pointer.offset, items));
            }
        }
        behind
    }

    fn descriptor(&self, state: &mut State, number: i32) -> Value {
        if number < 0 {
            return Value::NoFile;
        }
        match (self.traced.descriptor)(number) {
            Named::File(file) => Value::File(state.files.of(file)),
            Named::Unused(node) => Value::Unused(state.device(node)),
            Named::Export(export) => Value::Export(state.exports.of(export)),
            Named::Other => Value::Other,
        }
    }

    /// A field that nobody has described.
    fn anything(&self, state: &State, word: u32) -> Option<Value> {
        if word == 0 {
            return None;
        }
        if let Some(name) = state.card(|card| card.id == word) {
            return Some(Value::GpuId(name));
        }
        if ALL.contains(&word) {
            return Some(Value::Number(word.into()));
        }
        if word < SMALL {
            let process = state.processes.get(&(word as Tid)).is_some();
            return (!process || word < LEAST_PID).then_some(Value::Number(word.into()));
        }
        if let Some(client) = state.clients.get(&word) {
            return Some(Value::Client(client.name));
        }
        let objects = &state.clients.get(&self.client)?.objects;
        objects.get(&word).map(|object| Value::Object(object.name))
    }
}

impl State {
    fn device(&self, node: Node) -> raw::File {
        match node {
            Node::Control => raw::File::Control,
            Node::Uvm => raw::File::Uvm,
            Node::Gpu(minor) => {
                let index = self.gpus.iter().position(|card| card.minor == minor);
                // A card that is not of the slice comes behind its own.
                raw::File::Gpu(index.unwrap_or(self.gpus.len()) as u32)
            }
        }
    }

    /// The number of a card of the slice, from 1 on.
    fn card(&self, is: impl Fn(&Card) -> bool) -> Option<u32> {
        let at = self.gpus.iter().position(is)?;
        Some(at as u32 + 1)
    }

    fn client(&self, handle: u32) -> Option<Value> {
        match self.clients.get(&handle) {
            Some(client) => Some(Value::Client(client.name)),
            None => (handle != 0).then_some(Value::Unknown),
        }
    }

    fn object(&self, client: u32, handle: u32) -> Option<Value> {
        if handle == 0 || handle == client {
            return self.client(handle);
        }
        let object = self
            .clients
            .get(&client)
            .and_then(|c| c.objects.get(&handle));
        Some(object.map_or(Value::Unknown, |object| Value::Object(object.name)))
    }

    fn add_client(&mut self, handle: u32) -> u32 {
        self.counts.clients += 1;
        let client = Client {
            name: self.counts.clients,
            objects: HashMap::new(),
        };
        self.clients.insert(handle, client);
        self.counts.clients
    }

    fn add_object(&mut self, client: u32, parent: u32, handle: u32) -> u32 {
        self.counts.objects += 1;
        let name = self.counts.objects;
        if let Some(client) = self.clients.get_mut(&client) {
            client.objects.insert(handle, Object { name, parent });
        }
        name
    }

    /// A call succeeded: what it freed has its name no more.
    fn forget_freed(&mut self, what: What, block: &[u8]) {
        use layout::{nvos00, nvos32, nvos32_free, nvos34};
        let freed = match what {
            What::Escape(nr::RM_FREE, _) => word(block, nvos00::H_OBJECT_OLD),
            What::Escape(nr::RM_VID_HEAP_CONTROL, _) if word(block, nvos32::FUNCTION) == 3 => {
                word(block, nvos32_free::H_MEMORY)
            }
            What::Escape(nr::RM_UNMAP_MEMORY, _) => {
                let at = quad(block, nvos34::P_LINEAR_ADDRESS);
                self.mappings.forget(&(word(block, 0), at));
                return;
            }
            _ => return,
        };
        let root = word(block, 0);
        if freed == root {
            self.clients.remove(&root);
            return;
        }
        let Some(client) = self.clients.get_mut(&root) else {
            return;
        };
        // With everything below it.
        let mut gone = vec![freed];
        while let Some(handle) = gone.pop() {
            client.objects.remove(&handle);
            let below = client.objects.iter().filter(|(_, o)| o.parent == handle);
            gone.extend(below.map(|(&handle, _)| handle));
        }
    }

    fn mapping(&self, client: u32, address: u64) -> Option<Value> {
        match self.mappings.get(&(client, address)) {
            Some(name) => Some(Value::Mapping(name)),
            None => (address != 0).then_some(Value::Unknown),
        }
    }

    fn address(&mut self, process: u32, address: u64) -> Value {
        let near = |space: &Space| {
            space.process == process
                && address >= space.low.saturating_sub(NEAR)
                && address <= space.high.saturating_add(NEAR)
        };
        let at = self.spaces.iter().position(near).unwrap_or_else(|| {
            self.spaces.push(Space {
                process,
                // Where in a large page it lies is no secret, and matters.
                from: address & !((2 << 20) - 1),
                low: address,
                high: address,
            });
            self.spaces.len() - 1
        });
        let space = &mut self.spaces[at];
        space.low = space.low.min(address);
        space.high = space.high.max(address);
        Value::Address(at as u32 + 1, address.wrapping_sub(space.from) as i64)
    }

    fn push(&mut self, call: Call) {
        match &mut self.last {
            Some((last, times)) if *last == call => *times += 1,
            _ => {
                self.put_last();
                self.last = Some((call, 1));
            }
        }
        if self.written.elapsed() >= WRITE_EVERY {
            self.flush();
        }
    }

    fn put_last(&mut self) {
        if let Some((call, times)) = self.last.take() {
            self.line(&Event::Call(call, times).to_string());
        }
    }

    fn put(&mut self, event: &Event) {
        self.put_last();
        self.line(&event.to_string());
    }

    fn line(&mut self, text: &str) {
        let written = writeln!(self.to, "{text}");
        self.said(written);
    }

    fn flush(&mut self) {
        self.written = Instant::now();
        let flushed = self.to.flush();
        self.said(flushed);
    }

    /// A stream that cannot be written ends nothing, but nobody shall take it for whole.
    fn said(&mut self, result: io::Result<()>) {
        if let Err(e) = result
            && !std::mem::replace(&mut self.incomplete, true)
        {
            say::note(format_args!(
                "gpuslice: the stream cannot be written: {e}; lines are missing"
            ));
        }
    }
}

impl Trace for Recorder {
    fn begin(&self, gpus: &[&Gpu]) {
        let mut state = self.state();
        let head = Head {
            driver: self.driver.clone(),
            gpus: gpus.len() as u32,
        };
        let cards = gpus.iter().map(|gpu| Card {
            id: gpu.gpu_id,
            uuid: gpu.uuid_bytes,
            instance: gpu.instance,
            minor: gpu.minor,
        });
        state.gpus = cards.collect();
        state.line(&head.to_string());
    }

    fn note(&self, traced: &Traced<'_>) {
        let mut state = self.state();
        if let Some(call) = self.call(&mut state, traced) {
            state.push(call);
        }
    }

    fn unmapped(&self, process: Tid, address: u64, length: u64) {
        let mut state = self.state();
        if let Some(process) = state.processes.get(&process) {
            let at = state.address(process, address);
            state.put(&Event::Unmapped(process, at, length));
        }
    }

    fn closed(&self, file: u64) {
        let mut state = self.state();
        if let Some(name) = state.files.forget(&file) {
            state.put(&Event::Closed(name));
        }
    }

    fn process_ended(&self, process: Tid) {
        let mut state = self.state();
        if let Some(name) = state.processes.forget(&process) {
            state
                .spaces
                .iter_mut()
                .filter(|s| s.process == name)
                .for_each(|s| s.process = 0);
            state.put(&Event::Ended(name));
            state.flush();
        }
    }

    fn end(&self) {
        let mut state = self.state();
        state.put_last();
        state.flush();
    }
}
