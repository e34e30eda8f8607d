//! What a thread does with files: exports, managed memory, descriptors that change under calls, clients, children.

use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};

use rm::{Kind, class, ctrl, layout, nr};

use super::thread::{ADDRESSES, Known, MOST_FILES, MOST_OBJECTS, Opened, Thread};
use crate::raw::{Block, File, SIZES, export_layout, request};

/// A child that hangs ends here; the program that waits for it does not hang then.
const CHILD_SECONDS: u32 = 5;

impl Thread {
    pub(super) fn export_or_import(&mut self) {
        let number = self.file_on(File::Control) as u32;
        let (device, memory) = (self.pair_of(Kind::Device).1, self.pair_of(Kind::Memory));
        if self.may_export_for_good && self.random.once_in(3) {
            use layout::export_to_dmabuf_fd as l;
            let count = self.random.pick(&[1, 1, 1, 2, 128, u32::MAX]);
            let (at, size) = export_layout(self.abi);
            let block = Block::new(size)
                .with32(l::FD, u32::MAX)
                .with32(l::H_CLIENT, memory.0)
                .with32(l::TOTAL_OBJECTS, count)
                .with32(l::NUM_OBJECTS, count)
                .with64(l::TOTAL_SIZE, 1 << 20)
                .with32(at.handles, memory.1)
                .with64(at.status - SIZES, 1 << 20);
            let file = self.file_on(File::Gpu(0));
            let number = request(nr::EXPORT_TO_DMABUF_FD, size);
            if let Some(there) = self.call(self.calm, file, number, &block)
                && self.calm.load(there + at.status as u64) == 0
                && let Ok(new) = i32::try_from(self.calm.load(there + l::FD as u64))
            {
                // SAFETY: the driver has just made this descriptor for us, in memory that nobody else writes.
                drop(unsafe { OwnedFd::from_raw_fd(new) });
            }
            return;
        }
        if self.random.once_in(2) {
            let params = self
                .wild(24)
                .with32(0, 1)
                .with32(4, device)
                .with32(8, device)
                .with32(12, memory.1)
                .with32(16, number);
            self.send_control(ctrl::NV0000_OS_UNIX_EXPORT_OBJECT_TO_FD, &params);
        } else {
            let handle = self.handle();
            let params = self
                .wild(20)
                .with32(0, number)
                .with32(4, 1)
                .with32(8, device)
                .with32(12, device)
                .with32(16, handle);
            if self.send_control(ctrl::NV0000_OS_UNIX_IMPORT_OBJECT_FROM_FD, &params) {
                self.shared.count_made();
                let client = self.client();
                self.made(client, handle, Kind::Memory);
            }
        }
    }

    /// Maps a UVM file (or another) as managed memory is made, or unmaps a part of what was mapped. Offsets are
    /// addresses: the driver takes no other, and a stand-in, which takes all, would show what no driver does.
    pub(super) fn managed(&mut self) {
        let (base, length) = self.range();
        let inside = base >= self.addresses
            && length <= ADDRESSES
            && base - self.addresses <= ADDRESSES - length
            && base.is_multiple_of(1 << 12)
            && length > 0;
        if !inside {
            return;
        }
        let file = self.file_on(File::Uvm);
        let unmap = self.random.once_in(2);
        let (file, flags) = if unmap {
            let empty = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
            (-1, empty)
        } else {
            (
                file,
                self.random
                    .pick(&[libc::MAP_SHARED, libc::MAP_SHARED_VALIDATE]),
            )
        };
        let (protection, offset) = if unmap {
            (libc::PROT_NONE, 0)
        } else {
            (libc::PROT_READ | libc::PROT_WRITE, base)
        };
        // SAFETY: in the place of a part of our own reserved addresses, which nobody has a reference into.
        let mapped = unsafe {
            libc::mmap(
                base as *mut libc::c_void,
                length as usize,
                protection,
                flags | libc::MAP_FIXED,
                file,
                offset as libc::off_t,
            )
        };
        if mapped != libc::MAP_FAILED && !unmap && self.ranges.len() < MOST_OBJECTS {
            self.ranges.push((base, length));
        }
    }

    /// Opens, closes, and puts files in the place of others while other threads call on them.
    pub(super) fn juggle_files(&mut self) {
        if self.files.len() < 3 {
            return;
        }
        let (from, to) = (
            self.random.below(self.files.len()),
            self.random.below(self.files.len()),
        );
        match self.random.below(4) {
            0 if self.files.len() < MOST_FILES => {
                let wanted = self.random.pick(&[File::Control, File::Uvm, File::Gpu(0)]);
                if let Ok(fd) = self.node.open(wanted) {
                    let file = Some(wanted);
                    self.files.push(Opened { fd, file });
                }
            }
            1 if self.files.len() > 8 => {
                let closed = self.files.swap_remove(from);
                let number = closed.fd.as_raw_fd();
                self.clients.retain(|known| known.file != number);
            }
            2 if from != to => {
                let number = self.files[to].fd.as_raw_fd();
                // SAFETY: both numbers are ours, and the second stays ours with another file behind it.
                let done = unsafe { libc::dup2(self.files[from].fd.as_raw_fd(), number) };
                if done >= 0 {
                    self.files[to].file = self.files[from].file;
                }
            }
            _ if self.files.len() < MOST_FILES => {
                if let Ok(fd) = self.files[from].fd.as_fd().try_clone_to_owned() {
                    let file = self.files[from].file;
                    self.files.push(Opened { fd, file });
                }
            }
            _ => {}
        }
    }

    pub(super) fn new_client(&mut self) {
        let Ok(fd) = self.node.open(File::Control) else {
            return;
        };
        let wanted = self.handle();
        use layout::nvos64 as l;
        let block = Block::new(l::SIZE)
            .with32(l::H_OBJECT_NEW, wanted)
            .with32(l::H_CLASS, class::NV01_ROOT_CLIENT);
        let number = request(nr::RM_ALLOC, l::SIZE);
        let file = fd.as_raw_fd();
        if let Some(at) = self.call(self.calm, file, number, &block)
            && self.calm.load(at + l::STATUS as u64) == 0
        {
            let handle = self.calm.load(at + l::H_OBJECT_NEW as u64);
            self.clients.push(Known { handle, file });
            let device =
                Block::new(layout::device_alloc::SIZE).with32(layout::device_alloc::VA_MODE, 2);
            let to = self.calm.place(&mut self.random, device.len());
            self.calm.lay(to, &device);
            let wanted = self.handle();
            let block = Block::new(l::SIZE)
                .with32(l::H_ROOT, handle)
                .with32(l::H_OBJECT_PARENT, handle)
                .with32(l::H_OBJECT_NEW, wanted)
                .with32(l::H_CLASS, class::NV01_DEVICE_0)
                .with64(l::P_ALLOC_PARMS, to);
            if let Some(at) = self.call(self.calm, file, number, &block)
                && self.calm.load(at + l::STATUS as u64) == 0
            {
                self.made(handle, wanted, Kind::Device);
            }
        }
        if self.files.len() >= MOST_FILES {
            // The file goes, and its client with it, while other calls may be on them.
            let at = self.random.below(self.files.len());
            let closed = self.files.swap_remove(at).fd.as_raw_fd();
            self.clients.retain(|known| known.file != closed);
        }
        let file = Some(File::Control);
        self.files.push(Opened { fd, file });
    }

    /// A child that calls on what it has inherited, and ends or is killed in the middle of it.
    pub(super) fn child(&mut self) {
        let kill = self.random.once_in(2);
        let calls = 1 + self.random.below(20);
        // SAFETY: the child uses only what this thread has: its arenas, its descriptors, the allocator (which the C
        // library makes usable in a child) and a connection of its own.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: integers; the child ends with the thread that made it, and if it hangs.
            unsafe {
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                libc::alarm(CHILD_SECONDS);
            }
            for _ in 0..calls {
                self.step(false);
            }
            // SAFETY: ends the child at once; nothing of the parent's is written twice.
            unsafe { libc::_exit(0) }
        }
        if child < 0 {
            return;
        }
        if kill {
            std::thread::sleep(std::time::Duration::from_micros(
                self.random.below(4000) as u64
            ));
            // SAFETY: a child of ours that has not been waited for.
            unsafe { libc::kill(child, libc::SIGKILL) };
        }
        let mut status = 0;
        // SAFETY: as above; `status` is live.
        unsafe { libc::waitpid(child, &mut status, 0) };
        if libc::WIFSIGNALED(status) && libc::WTERMSIG(status) == libc::SIGALRM {
            self.shared.count_hung();
        }
    }
}
