//! Open nodes: a file lives until its last descriptor and mapping is gone.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use super::Rm;
use super::uvm::Uvm;
use crate::client::Node;
use crate::proto::FileId;

/// One open file, as the driver knows it.
pub struct File {
    /// The node it is open on; `None`: an exported buffer (dmabuf).
    pub node: Option<Node>,
    /// The server's own way to the stand-in's pages: another open file of the same inode.
    pub pages: Arc<OwnedFd>,
    /// The control file that a device file is tied to (`REGISTER_FD`).
    pub(super) control: Option<FileId>,
    /// Memory that this file keeps alive, in export order.
    pub(super) exports: Vec<u64>,
    /// Whether `RM_MAP_MEMORY` has tied memory of no device to it.
    pub(super) shows: bool,
    /// What the exporter wrote about them.
    pub(super) metadata: [u8; 64],
    pub(super) uvm: Option<Box<Uvm>>,
}

impl Rm {
    /// A node has been opened.
    pub fn add_file(&mut self, id: FileId, node: Option<Node>, pages: OwnedFd) {
        let uvm = (node == Some(Node::Uvm)).then(Box::default);
        let file = File {
            node,
            pages: Arc::new(pages),
            control: None,
            exports: Vec::new(),
            shows: false,
            metadata: [0; 64],
            uvm,
        };
        self.files.insert(id, file);
    }

    /// The server's own way to a file's pages and lock.
    pub fn pages_of(&self, id: FileId) -> Option<Arc<OwnedFd>> {
        self.files.get(&id).map(|file| Arc::clone(&file.pages))
    }

    /// The last descriptor and mapping of a file is gone: its clients go, and whatever it kept alive.
    pub fn release_file(&mut self, id: FileId) {
        let Some(file) = self.files.remove(&id) else {
            return;
        };
        let clients: Vec<u32> = self
            .clients
            .iter()
            .filter(|(_, client)| client.file == id)
            .map(|(&handle, _)| handle)
            .collect();
        for client in clients {
            self.free_client(client);
        }
        if let Some(uvm) = file.uvm {
            self.release_uvm(*uvm);
        }
        for other in self.files.values_mut() {
            if let Some(uvm) = other.uvm.as_deref_mut() {
                uvm.closed(id);
            }
        }
        self.hide_deviceless(id);
        for memory in file.exports {
            self.put_memory(memory);
        }
        self.stirred = true;
    }

    /// Whether a file is open on a GPU's own node.
    pub(super) fn is_device_file(&self, file: FileId) -> bool {
        let node = self.files.get(&file).and_then(|file| file.node);
        matches!(node, Some(Node::Gpu(_)))
    }

    /// The file that clients of a call hang on: a device file speaks for the control file it is tied to.
    pub(super) fn control_file(&self, file: FileId) -> FileId {
        self.files
            .get(&file)
            .and_then(|file| file.control)
            .unwrap_or(file)
    }
}
