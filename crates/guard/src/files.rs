//! The tenant's open files of the driver: which is which, and when one is gone.
//!
//! One duplicate of each file is held while some process of the tenant has it. Held, it is recognised with one
//! comparison a call instead of being taken anew; and when the last process is gone it is the helper that closes it
//! last, so that the driver tears down in the process in which everything was made (torn down elsewhere, it cannot undo
//! its mappings and logs failed assertions: seen on an H200, driver 580.159). A client's memory is given back in the
//! ledger only when the kernel says that its file is gone, not when no process seems to have it.

use std::collections::{HashMap, HashSet};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Instant;

use policy::ledger::UvmFile;

use crate::audit::{MAPPING_GRACE, uncovered};
use crate::backend::{FileId, FileWatch, Node};
use crate::sys::{self, Tid};

/// Whether the flags a UVM file was initialised with are known to be the required ones.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Flags {
    /// Not asked yet.
    Unverified,
    /// Verified with the driver.
    Verified,
    /// The file was initialised with other flags: nothing may be done on it.
    Poisoned,
}

/// One open file of the driver that the tenant has.
#[derive(Debug)]
pub struct OpenFile {
    fd: OwnedFd,
    /// Which device file it is.
    pub node: Node,
    /// Its name in the ledger, if it is a UVM file.
    pub uvm: UvmFile,
    /// The process that was first seen using it.
    pub owner: Tid,
    device: u64,
    inode: u64,
    flags: AtomicU8,
}

impl OpenFile {
    /// The held duplicate.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// What is known of its initialisation flags.
    pub fn flags(&self) -> Flags {
        match self.flags.load(Ordering::Acquire) {
            1 => Flags::Verified,
            2 => Flags::Poisoned,
            _ => Flags::Unverified,
        }
    }

    /// The driver has said what the flags are.
    pub fn set_flags(&self, flags: Flags) {
        let value = match flags {
            Flags::Unverified => 0,
            Flags::Verified => 1,
            Flags::Poisoned => 2,
        };
        self.flags.store(value, Ordering::Release);
    }
}

/// Files by (process, descriptor number) as last seen there. A guess: each use compares.
#[derive(Debug, Default)]
pub struct Numbers(RwLock<HashMap<(Tid, RawFd), Arc<OpenFile>>>);

impl Numbers {
    /// What the process had under this number last time.
    pub fn get(&self, process: Tid, number: RawFd) -> Option<Arc<OpenFile>> {
        self.0
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .get(&(process, number))
            .cloned()
    }

    fn set(&self, process: Tid, number: RawFd, file: Arc<OpenFile>) {
        self.0
            .write()
            .unwrap_or_else(PoisonError::into_inner)
            .insert((process, number), file);
    }

    fn retain(&self, keep: impl Fn(Tid, &OpenFile) -> bool) {
        self.0
            .write()
            .unwrap_or_else(PoisonError::into_inner)
            .retain(|&(process, _), file| keep(process, file));
    }
}

/// A managed mapping that was charged and runs in the tenant now.
struct Expected {
    process: Tid,
    thread: Tid,
    base: u64,
    length: u64,
    since: Instant,
    /// It is mapped, or will never be; kept for a look at the mappings that began before.
    done: bool,
}

/// More mappings than that are not remembered while somebody looks; what he sees is of no use then.
const MOST_EXPECTED: usize = 4096;

/// A look at the managed mappings of a process that has begun.
pub struct Look {
    process: Tid,
    since: Instant,
    /// Mappings that may not have appeared yet when it began.
    expected: Vec<(u64, u64)>,
    forgotten: u64,
}

/// The open files of one tenant.
pub struct Files {
    watch: Box<dyn FileWatch>,
    open: Vec<Arc<OpenFile>>,
    next_uvm: u64,
    clients: HashMap<FileId, HashSet<u32>>,
    /// The file on which each client was allocated, and its number there.
    client_files: HashMap<u32, (FileId, RawFd)>,
    exports: HashSet<FileId>,
    /// Ranges of a UVM file that the driver made for itself and that a mapping may cover without taking device memory
    /// (semaphore pools): (file, base, length).
    pools: Vec<(UvmFile, u64, u64)>,
    expected: Vec<Expected>,
    /// Looks that have begun and not ended.
    looks: usize,
    /// How often mappings were forgotten that a look would have had to know.
    forgotten: u64,
    /// What a process had mapped already when it made its first call: it was made by fork, and its parent's mappings
    /// came with it. The driver disables them in the child, so they hold nothing.
    inherited: HashMap<Tid, Vec<(u64, u64)>>,
    managed: bool,
    /// Files under watch.
    seen: HashSet<FileId>,
    /// So many files may be open at once, and so many be watched: the helper needs descriptors for other things.
    most: usize,
}

/// What went with files that are gone.
#[derive(Debug, Default)]
pub struct Gone {
    /// Clients whose file was closed: the driver has freed them.
    pub clients: Vec<u32>,
    /// Exports whose descriptor was closed.
    pub exports: Vec<u64>,
    /// UVM files that no process was seen to have any more, still open here: somebody may have one unseen (a process
    /// that never called, a message between sockets), so what they map is unmapped and not taken for gone.
    pub uvm: Vec<(UvmFile, OwnedFd)>,
    /// Every file that is held no more.
    pub files: Vec<UvmFile>,
}

impl Files {
    /// No file yet; at most `most` of them at once.
    pub fn new(watch: Box<dyn FileWatch>, most: usize) -> Files {
        Files {
            watch,
            seen: HashSet::new(),
            most,
            open: Vec::new(),
            next_uvm: 1,
            clients: HashMap::new(),
            client_files: HashMap::new(),
            exports: HashSet::new(),
            pools: Vec::new(),
            expected: Vec::new(),
            looks: 0,
            forgotten: 0,
            inherited: HashMap::new(),
            managed: false,
        }
    }

    /// The entry of a file that a process has under a number, made if the file is new.
    ///
    /// # Errors
    /// The kernel cannot compare files (kcmp(2)). `EMFILE`: the tenant has more of them than the helper can hold.
    pub fn enter(
        &mut self,
        numbers: &Numbers,
        (process, number): (Tid, RawFd),
        fd: OwnedFd,
        node: Node,
        helper: Tid,
    ) -> io::Result<Arc<OpenFile>> {
        let (device, inode, _, _) = sys::stat_fd(fd.as_fd())?;
        if let Some(file) = self.same(fd.as_fd(), (node, device, inode), helper)? {
            numbers.set(process, number, file.clone());
            return Ok(file);
        }
        if self.open.len() >= self.most {
            return Err(io::Error::from_raw_os_error(libc::EMFILE));
        }
        let uvm = UvmFile(self.next_uvm);
        self.next_uvm += 1;
        let file = Arc::new(OpenFile {
            fd,
            node,
            uvm,
            owner: process,
            device,
            inode,
            flags: AtomicU8::new(0),
        });
        self.open.push(file.clone());
        numbers.set(process, number, file.clone());
        Ok(file)
    }

    /// The entry of this very file.
    fn same(
        &self,
        fd: BorrowedFd<'_>,
        is: (Node, u64, u64),
        helper: Tid,
    ) -> io::Result<Option<Arc<OpenFile>>> {
        let candidates = self.open.iter();
        for file in candidates.filter(|f| (f.node, f.device, f.inode) == is) {
            if sys::same_file(helper, file.fd.as_raw_fd(), helper, fd.as_raw_fd())? {
                return Ok(Some(file.clone()));
            }
        }
        Ok(None)
    }

    /// The entry of a file, if it has one.
    pub fn find(&self, fd: BorrowedFd<'_>, node: Node, helper: Tid) -> Option<Arc<OpenFile>> {
        let (device, inode, _, _) = sys::stat_fd(fd).ok()?;
        self.same(fd, (node, device, inode), helper).ok()?
    }

    /// A root client was allocated on this file, which has this number in its process.
    ///
    /// # Errors
    /// The file cannot be watched; the client must not stay.
    pub fn add_client(&mut self, fd: BorrowedFd<'_>, number: RawFd, client: u32) -> io::Result<()> {
        let id = self.watched(fd)?;
        // A handle is given again only when its client is gone: the file it was on before has it no more.
        self.forget_client(client);
        self.client_files.insert(client, (id, number));
        self.clients.entry(id).or_default().insert(client);
        Ok(())
    }

    /// A client was freed: its handle may be another's soon, on another file.
    pub fn forget_client(&mut self, client: u32) {
        if let Some((file, _)) = self.client_files.remove(&client)
            && let Some(clients) = self.clients.get_mut(&file)
        {
            clients.remove(&client);
        }
    }

    /// Watches a file, if that leaves descriptors for everything else.
    fn watched(&mut self, fd: BorrowedFd<'_>) -> io::Result<FileId> {
        let id = self.watch.identify(fd)?;
        self.seen.insert(id);
        if self.seen.len() > self.most {
            return Err(io::Error::from_raw_os_error(libc::EMFILE));
        }
        Ok(id)
    }

    /// The number that the file of a client had in its process. A program may have closed it and put another file
    /// there: whether it is the client's file, the driver says.
    pub fn client_number(&self, client: u32) -> Option<RawFd> {
        self.client_files.get(&client).map(|&(_, number)| number)
    }

    /// An object was exported to this file: its name for the ledger.
    ///
    /// # Errors
    /// The file cannot be watched.
    pub fn add_export(&mut self, fd: BorrowedFd<'_>) -> io::Result<u64> {
        let id = self.watched(fd)?;
        self.exports.insert(id);
        Ok(id.0)
    }

    /// The export behind a descriptor, if this tenant made it.
    ///
    /// # Errors
    /// The file cannot be asked.
    pub fn export(&mut self, fd: BorrowedFd<'_>) -> io::Result<Option<u64>> {
        let id = self.watched(fd)?;
        Ok(self.exports.contains(&id).then_some(id.0))
    }

    /// As [`Files::export`]; where nothing was exported yet, nothing is looked at.
    pub fn known_export(&mut self, fd: BorrowedFd<'_>) -> Option<u64> {
        if self.exports.is_empty() {
            return None;
        }
        self.export(fd).ok()?
    }

    /// The driver made a range of a UVM file for itself.
    pub fn add_pool(&mut self, file: UvmFile, base: u64, length: u64) {
        self.pools.push((file, base, length));
    }

    /// A range of a UVM file was freed.
    pub fn remove_pool(&mut self, file: UvmFile, base: u64) {
        self.pools.retain(|&(f, b, _)| (f, b) != (file, base));
    }

    /// Ranges of a process's UVM files that the driver made for itself: (base, length).
    pub fn pools_of(&self, process: Tid) -> Vec<(u64, u64)> {
        let own: Vec<UvmFile> = self
            .open
            .iter()
            .filter(|f| f.owner == process)
            .map(|f| f.uvm)
            .collect();
        self.pools
            .iter()
            .filter(|(f, _, _)| own.contains(f))
            .map(|&(_, b, l)| (b, l))
            .collect()
    }

    /// Bytes of all ranges that the driver made for itself in a process's UVM files.
    pub fn pool_bytes(&self, process: Tid) -> u64 {
        let bytes = self.pools_of(process).into_iter().map(|(_, l)| l);
        bytes.fold(0, u64::saturating_add)
    }

    /// Whether a mapping of a UVM file lies in a range that the driver made for itself in this very file.
    pub fn in_pool(&self, file: UvmFile, base: u64, length: u64) -> bool {
        let mut pools = self.pools.iter().filter(|&&(f, _, _)| f == file);
        pools.any(|&(_, b, l)| base >= b && length <= l && base - b <= l - length)
    }

    /// A managed mapping is about to be charged; it will appear soon.
    pub fn expect_mapping(
        &mut self,
        (process, thread): (Tid, Tid),
        base: u64,
        length: u64,
        now: Instant,
    ) {
        self.managed = true;
        if self.expected.len() >= MOST_EXPECTED {
            self.expected.retain(|e| !e.done);
            self.forgotten += 1;
        }
        self.expected.push(Expected {
            process,
            thread,
            base,
            length,
            since: now,
            done: false,
        });
    }

    /// No process of this tenant ever made managed memory.
    pub fn nothing_managed(&self) -> bool {
        !self.managed
    }

    /// A thread makes another call: what it was mapping is mapped, or will never be.
    pub fn mapping_done(&mut self, thread: Tid) {
        for mapping in self.expected.iter_mut().filter(|e| e.thread == thread) {
            mapping.done = true;
        }
        self.forget_done();
    }

    fn forget_done(&mut self) {
        if self.looks == 0 {
            self.expected.retain(|e| !e.done);
        }
    }

    /// Somebody begins to compare what a process is charged for with what it maps.
    pub fn begin_look(&mut self, process: Tid, now: Instant) -> Look {
        for mapping in &mut self.expected {
            mapping.done |= now.duration_since(mapping.since) >= MAPPING_GRACE;
        }
        self.forget_done();
        self.looks += 1;
        let of_process = self.expected.iter().filter(|e| e.process == process);
        Look {
            process,
            since: now,
            expected: of_process
                .filter(|e| !e.done)
                .map(|e| (e.base, e.length))
                .collect(),
            forgotten: self.forgotten,
        }
    }

    /// He has seen the mappings: those that may have come and gone unseen meanwhile, of which he can say nothing; `None`:
    /// he can say nothing at all.
    pub fn end_look(&mut self, look: Look) -> Option<Vec<(u64, u64)>> {
        let mut unseen = look.expected;
        let since = self
            .expected
            .iter()
            .filter(|e| e.process == look.process && e.since >= look.since);
        unseen.extend(since.map(|e| (e.base, e.length)));
        self.looks -= 1;
        self.forget_done();
        (self.forgotten == look.forgotten).then_some(unseen)
    }

    /// What a process had mapped when it made its first call.
    pub fn set_inherited(&mut self, process: Tid, mapped: Vec<(u64, u64)>) {
        // A process of the same number may have ended just now.
        self.inherited.remove(&process);
        if !mapped.is_empty() {
            self.inherited.insert(process, mapped);
        }
    }

    /// What a process inherited and still has.
    pub fn inherited(&self, process: Tid) -> &[(u64, u64)] {
        self.inherited.get(&process).map_or(&[], Vec::as_slice)
    }

    /// A process maps something here, or was seen to have nothing here: what it had inherited is gone. Whatever it maps
    /// from now on is judged as its own.
    pub fn cut_inherited(&mut self, process: Tid, gone: &[(u64, u64)]) {
        if let Some(inherited) = self.inherited.get_mut(&process) {
            *inherited = inherited
                .iter()
                .flat_map(|&interval| uncovered(interval, gone))
                .collect();
        }
    }

    /// A process has ended.
    pub fn forget_process(&mut self, process: Tid) {
        self.inherited.remove(&process);
    }

    /// Gives up files that no process has any more and tells what went with them. `alive` are the tenant's processes
    /// that still run.
    pub fn sweep(&mut self, numbers: &Numbers, alive: &[Tid], helper: Tid) -> Gone {
        let mut gone = Gone::default();
        let held = self.held_by(alive, helper);
        // A UVM file is bound to its first user's address space: while that process runs its mappings can live, so
        // nothing is given back even if no descriptor is left.
        let keeps = |f: &OpenFile| {
            held.contains(&f.uvm) || (f.node == Node::Uvm && alive.contains(&f.owner))
        };
        numbers.retain(|process, file| alive.contains(&process) && keeps(file));
        let (keep, leave): (Vec<_>, Vec<_>) = std::mem::take(&mut self.open)
            .into_iter()
            .partition(|f| keeps(f));
        self.open = keep;
        for file in leave {
            match Arc::try_unwrap(file) {
                Ok(file) => {
                    gone.files.push(file.uvm);
                    if file.node == Node::Uvm {
                        self.pools.retain(|&(f, _, _)| f != file.uvm);
                        gone.uvm.push((file.uvm, file.fd));
                    }
                }
                // A call is on it just now: the next sweep.
                Err(file) => self.open.push(file),
            }
        }
        // Where the kernel cannot tell, nothing is taken for gone.
        for id in self.watch.gone().unwrap_or_default() {
            self.seen.remove(&id);
            let clients = self.clients.remove(&id).unwrap_or_default();
            self.client_files.retain(|c, _| !clients.contains(c));
            gone.clients.extend(clients);
            if self.exports.remove(&id) {
                gone.exports.push(id.0);
            }
        }
        gone
    }

    /// The files that some process has in its descriptor table. What cannot be looked into counts as having all.
    fn held_by(&self, alive: &[Tid], helper: Tid) -> HashSet<UvmFile> {
        use std::os::unix::fs::MetadataExt;
        let all = || self.open.iter().map(|f| f.uvm).collect::<HashSet<_>>();
        let mut held = HashSet::new();
        for &process in alive {
            let entries = match std::fs::read_dir(format!("/proc/{process}/fd")) {
                Ok(entries) => entries,
                Err(e) if e.kind() == io::ErrorKind::NotFound => continue,
                Err(_) => return all(),
            };
            for entry in entries.flatten() {
                let Ok(meta) = std::fs::metadata(entry.path()) else {
                    continue;
                };
                let Some(number) = entry
                    .file_name()
                    .to_str()
                    .and_then(|n| n.parse::<RawFd>().ok())
                else {
                    continue;
                };
                for file in self
                    .open
                    .iter()
                    .filter(|f| (f.device, f.inode) == (meta.dev(), meta.ino()))
                {
                    // Closed in this moment: not held. Not comparable: held.
                    match sys::same_file(helper, file.fd.as_raw_fd(), process, number) {
                        Ok(false) => {}
                        Err(e) if e.raw_os_error() == Some(libc::EBADF) => {}
                        Ok(true) | Err(_) => {
                            held.insert(file.uvm);
                        }
                    }
                }
            }
        }
        held
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    struct NoWatch;

    impl FileWatch for NoWatch {
        fn identify(&mut self, _fd: BorrowedFd<'_>) -> io::Result<FileId> {
            Ok(FileId(0))
        }

        fn gone(&mut self) -> io::Result<Vec<FileId>> {
            Ok(Vec::new())
        }
    }

    const WHO: (Tid, Tid) = (10, 11);

    fn files() -> Files {
        Files::new(Box::new(NoWatch), 8)
    }

    #[test]
    fn threat_07_a_mapping_that_came_during_a_look_is_not_judged_by_it() {
        let (mut files, now) = (files(), Instant::now());
        let look = files.begin_look(WHO.0, now);
        // Charged, mapped and answered after the look at the maps, before its end.
        files.expect_mapping(WHO, 0x1000, 0x2000, now);
        files.mapping_done(WHO.1);
        assert_eq!(files.end_look(look), Some(vec![(0x1000, 0x2000)]));
        let next = files.begin_look(WHO.0, now);
        assert_eq!(files.end_look(next), Some(Vec::new()));
    }

    #[test]
    fn a_mapping_that_was_under_way_is_not_judged_even_if_it_ends_meanwhile() {
        let (mut files, now) = (files(), Instant::now());
        files.expect_mapping(WHO, 0x1000, 0x2000, now);
        let look = files.begin_look(WHO.0, now + Duration::from_millis(1));
        files.mapping_done(WHO.1);
        assert_eq!(files.end_look(look), Some(vec![(0x1000, 0x2000)]));
        // One that has not appeared for long will not.
        files.expect_mapping(WHO, 0x1000, 0x2000, now);
        let late = files.begin_look(WHO.0, now + MAPPING_GRACE);
        assert_eq!(files.end_look(late), Some(Vec::new()));
    }

    #[test]
    fn a_look_that_takes_too_long_says_nothing() {
        let (mut files, now) = (files(), Instant::now());
        let look = files.begin_look(WHO.0, now);
        for _ in 0..=MOST_EXPECTED {
            files.expect_mapping(WHO, 0x1000, 0x2000, now);
            files.mapping_done(WHO.1);
        }
        assert!(files.expected.len() <= MOST_EXPECTED);
        assert_eq!(files.end_look(look), None);
    }

    #[test]
    fn what_is_mapped_over_is_inherited_no_more() {
        let mut files = files();
        files.set_inherited(WHO.0, vec![(0x1000, 0x3000)]);
        files.cut_inherited(WHO.0, &[(0x2000, 0x1000)]);
        assert_eq!(files.inherited(WHO.0), [(0x1000, 0x1000), (0x3000, 0x1000)]);
        files.forget_process(WHO.0);
        assert!(files.inherited(WHO.0).is_empty());
    }
}
