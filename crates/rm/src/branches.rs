//! The driver branches, each as what it changes in another: the deltas, the releases, the offsets of its own.
//!
//! | branch | starts from |
//! |---|---|
//! | 580 | its public headers, and what nvidia-smi and cuBLAS were seen to ask the firmware of it |
//! | 570, 565, 550, 535 | each the one after it; 570 the headers of 580 |
//! | 590, 595 | 590 the headers of 580; 595 is 590 with fewer entries |
//!
//! Only branch 580 has run on a card. The others stand on their public headers: `layouts/` has the numbers of one
//! release of each, and the tests compare them with these tables. A release is listed if its headers give the same
//! numbers for everything that reaches the driver, and `unlike` the branch if they do not.

use crate::abi::Entry;
use crate::row::*;
use crate::table::{Class, Control, Escape, UvmCall};
use crate::varying::{
    ExportToDmabufFd, Layout, Nvos46, Nvos47, UvmAllocSemaphorePool, UvmFree, UvmMapExternal,
    UvmSetPreferredLocation, UvmUnregisterChannel,
};
use crate::{classes, controls, escapes, uvm_calls};

/// What a branch changes in one table of its parent.
pub(crate) struct Delta<T: Entry + 'static> {
    /// Entries it adds, or puts in place of the parent's.
    pub(crate) set: &'static [&'static [T]],
    /// Entries of the parent that only change their size, and with it where the status stands.
    pub(crate) sizes: &'static [(u32, T::Size)],
    /// Entries of the parent that it does not have.
    pub(crate) removed: &'static [u32],
}

impl<T: Entry> Delta<T> {
    /// Nothing changes.
    const NONE: Delta<T> = Delta {
        set: &[],
        sizes: &[],
        removed: &[],
    };
}

/// One driver branch as it is written down.
pub(crate) struct Branch {
    /// Leading number of its releases.
    pub(crate) name: &'static str,
    /// Its numbers as the public headers give them.
    #[cfg(test)]
    pub(crate) facts: &'static str,
    /// What it starts from.
    pub(crate) parent: Option<&'static Branch>,
    /// Releases these tables hold for: their public headers give the same numbers, or the driver was traced.
    pub(crate) releases: &'static [&'static str],
    /// Releases that carry the number of the branch and have other parameter blocks: refused.
    pub(crate) unlike: &'static [&'static str],
    /// Offsets that are not the same on every branch.
    pub(crate) layout: &'static Layout,
    pub(crate) escapes: Delta<Escape>,
    pub(crate) uvm_calls: Delta<UvmCall>,
    pub(crate) classes: Delta<Class>,
    pub(crate) controls: Delta<Control>,
}

const LAYOUT_580: Layout = Layout {
    nvos46: Nvos46 {
        dma_offset: 48,
        status: 56,
    },
    nvos47: Nvos47 { status: 40 },
    export_to_dmabuf_fd: ExportToDmabufFd {
        handles: 36,
        status: 2600,
    },
    uvm_map_external: UvmMapExternal {
        gpu_attributes_count: 9240,
        rm_ctrl_fd: 9248,
        h_client: 9252,
        h_memory: 9256,
        rm_status: 9260,
    },
    uvm_alloc_semaphore_pool: UvmAllocSemaphorePool {
        gpu_attributes_count: 9232,
        rm_status: 9240,
    },
    uvm_set_preferred_location: UvmSetPreferredLocation { rm_status: 36 },
    uvm_free: UvmFree {
        length: Some(8),
        rm_status: 16,
    },
    uvm_unregister_channel: UvmUnregisterChannel {
        gpu_uuid: Some(0),
        h_client: 16,
        h_channel: 20,
        rm_status: 24,
    },
};

const LAYOUT_570: Layout = Layout {
    nvos46: Nvos46 {
        dma_offset: 40,
        status: 48,
    },
    ..LAYOUT_580
};

const LAYOUT_565: Layout = Layout {
    export_to_dmabuf_fd: ExportToDmabufFd {
        handles: 32,
        status: 2592,
    },
    ..LAYOUT_570
};

const LAYOUT_550: Layout = LAYOUT_565;

const LAYOUT_535: Layout = Layout {
    nvos47: Nvos47 { status: 32 },
    uvm_map_external: UvmMapExternal {
        gpu_attributes_count: 1176,
        rm_ctrl_fd: 1184,
        h_client: 1188,
        h_memory: 1192,
        rm_status: 1196,
    },
    uvm_alloc_semaphore_pool: UvmAllocSemaphorePool {
        gpu_attributes_count: 1168,
        rm_status: 1176,
    },
    uvm_set_preferred_location: UvmSetPreferredLocation { rm_status: 32 },
    ..LAYOUT_550
};

const LAYOUT_590: Layout = Layout {
    uvm_free: UvmFree {
        length: None,
        rm_status: 8,
    },
    uvm_unregister_channel: UvmUnregisterChannel {
        gpu_uuid: None,
        h_client: 0,
        h_channel: 4,
        rm_status: 8,
    },
    ..LAYOUT_580
};

controls! {
    CONTROLS_570;
    0x2080_1358 "NV2080_CTRL_CMD_FB_QUERY_DRAM_ENCRYPTION_INFOROM_SUPPORT" 4 EXECUTE READS;
    0x2080_1359 "NV2080_CTRL_CMD_FB_QUERY_DRAM_ENCRYPTION_STATUS" 4 EXECUTE READS;
}

controls! {
    CONTROLS_550;
    // CUDA asks this of a channel where newer branches have 0x906f0101.
    0xc36f_0101 "NVC36F_CTRL_GET_CLASS_ENGINEID" 16 EXECUTE READS;
}

controls! {
    CONTROLS_535;
    0x0000_0127 "NV0000_CTRL_CMD_SYSTEM_GET_P2P_CAPS" 168 EXECUTE
        "which devices reach which; a square array" { pointers: &[square(128, 160, 4, 4096)] };
}

uvm_calls! {
    UVM_CALLS_535;
    33 "UVM_MAP_EXTERNAL_ALLOCATION" 1200 1196 EXECUTE SHARES [client(1188)]
        "keeps the memory alive after its handle is freed, until the last of its ranges is gone";
}

uvm_calls! {
    UVM_CALLS_590;
    28 "UVM_UNREGISTER_CHANNEL" 12 8 EXECUTE FREE [client(0)]
        "names a channel of its own client";
}

/// What the public headers say of branch 580: the root of the tree.
static COMMON: Branch = Branch {
    name: "580, by its headers",
    #[cfg(test)]
    facts: include_str!("../layouts/580.txt"),
    parent: None,
    releases: &[],
    unlike: &[],
    layout: &LAYOUT_580,
    escapes: Delta {
        set: &[escapes::ESCAPES],
        sizes: &[],
        removed: &[],
    },
    uvm_calls: Delta {
        set: &[uvm_calls::UVM_CALLS],
        sizes: &[],
        removed: &[],
    },
    classes: Delta {
        set: &[classes::CLASSES],
        sizes: &[],
        removed: &[],
    },
    controls: Delta {
        set: &[
            controls::client::CLIENT,
            controls::device::DEVICE,
            controls::subdevice::SUBDEVICE,
            controls::engine::ENGINE,
        ],
        sizes: &[],
        removed: &[],
    },
};

/// Branch 580. Its tables are checked against the headers of release 580.105.08.
static R580: Branch = Branch {
    name: "580",
    #[cfg(test)]
    facts: include_str!("../layouts/580.txt"),
    parent: Some(&COMMON),
    releases: &[
        "580.65.06",
        "580.76.05",
        "580.82.07",
        "580.82.09",
        "580.94.02",
        "580.94.03",
        "580.94.06",
        "580.94.10",
        "580.94.11",
        "580.94.13",
        "580.94.16",
        "580.94.17",
        "580.94.18",
        "580.95.05",
        "580.105.08",
        "580.119.02",
        "580.126.09",
        "580.126.16",
        "580.126.18",
        "580.126.20",
        "580.142",
        "580.159.03",
        "580.159.04",
    ],
    unlike: &[],
    layout: &LAYOUT_580,
    escapes: Delta::NONE,
    uvm_calls: Delta::NONE,
    classes: Delta::NONE,
    controls: Delta {
        set: &[controls::firmware::FIRMWARE],
        sizes: &[],
        removed: &[],
    },
};

/// Branch 570. Its tables are checked against the headers of release 570.133.20.
static R570: Branch = Branch {
    name: "570",
    #[cfg(test)]
    facts: include_str!("../layouts/570.txt"),
    parent: Some(&COMMON),
    releases: &[
        "570.86.15",
        "570.86.16",
        "570.123.01",
        "570.123.06",
        "570.123.07",
        "570.123.10",
        "570.123.11",
        "570.123.14",
        "570.123.18",
        "570.123.19",
        "570.124.04",
        "570.124.06",
        "570.133.07",
        "570.133.20",
        "570.144",
        "570.148.08",
        "570.153.02",
        "570.158.01",
        "570.169",
        "570.172.08",
        "570.181",
        "570.190",
        "570.195.03",
        "570.207",
        "570.211.01",
    ],
    unlike: &[],
    layout: &LAYOUT_570,
    escapes: Delta {
        set: &[],
        sizes: &[(0x57, (&[56], &[Some(48)]))],
        removed: &[],
    },
    uvm_calls: Delta {
        set: &[],
        sizes: &[],
        removed: &[80],
    },
    classes: Delta {
        set: &[],
        sizes: &[(0x90f1, 48)],
        removed: &[],
    },
    controls: Delta {
        set: &[CONTROLS_570],
        sizes: &[
            (0x0000_0214, 256),
            (0x0080_0292, 404),
            (0x00f1_0001, 8200),
            (0x2080_0102, 524),
            (0x2080_01a3, 48),
            (0x2080_121b, 6168),
            (0x2080_1303, 460),
            (0x2080_1320, 776),
            (0x2080_3001, 32),
            (0x2080_3002, 13320),
            (0x2080_3083, 37),
            (0xa06c_0101, 2),
            (0xa06f_0103, 2),
            (0xc56f_010b, 128),
        ],
        removed: &[
            0x2080_019f,
            0x2080_0513,
            0x2080_123c,
            0x2080_1357,
            0x2080_3404,
        ],
    },
};

/// Branch 565. Its tables are checked against the headers of release 565.57.01.
static R565: Branch = Branch {
    name: "565",
    #[cfg(test)]
    facts: include_str!("../layouts/565.txt"),
    parent: Some(&R570),
    releases: &["565.57.01", "565.77"],
    unlike: &[],
    layout: &LAYOUT_565,
    escapes: Delta {
        set: &[],
        sizes: &[
            (0x5f, (&[4024], &[Some(4)])),
            (217, (&[2600], &[Some(2592)])),
        ],
        removed: &[],
    },
    uvm_calls: Delta::NONE,
    classes: Delta {
        set: &[],
        sizes: &[
            (0xc36f, 360),
            (0xc46f, 360),
            (0xc56f, 360),
            (0xc86f, 360),
            (0xc96f, 360),
        ],
        removed: &[0xc761, 0xca6f, 0xcab5, 0xcec0],
    },
    controls: Delta {
        set: &[],
        sizes: &[(0x2080_2096, 50704), (0x2080_3001, 16), (0x2080_3002, 6152)],
        removed: &[0x2080_1123, 0x2080_1124, 0x2080_1358, 0x2080_1359],
    },
};

/// Branch 550. Its tables are checked against the headers of release 550.100.
static R550: Branch = Branch {
    name: "550",
    #[cfg(test)]
    facts: include_str!("../layouts/550.txt"),
    parent: Some(&R565),
    releases: &[
        "550.40.53",
        "550.40.55",
        "550.40.59",
        "550.40.61",
        "550.40.63",
        "550.40.65",
        "550.40.67",
        "550.40.70",
        "550.40.71",
        "550.40.75",
        "550.40.76",
        "550.40.79",
        "550.40.80",
        "550.40.81",
        "550.40.82",
        "550.40.83",
        "550.40.85",
        "550.54.14",
        "550.54.15",
        "550.67",
        "550.76",
        "550.78",
        "550.90.07",
        "550.90.12",
        "550.100",
        "550.107.02",
        "550.120",
        "550.127.05",
        "550.127.08",
        "550.135",
        "550.142",
        "550.144.03",
        "550.163.01",
    ],
    unlike: &["550.40.07"],
    layout: &LAYOUT_550,
    escapes: Delta::NONE,
    uvm_calls: Delta {
        set: &[],
        sizes: &[(56, (64, 48)), (64, (24, 12))],
        removed: &[76, 77, 78, 79],
    },
    classes: Delta {
        set: &[],
        sizes: &[],
        removed: &[0xb1cc, 0xc96f, 0xc9b5, 0xcdc0],
    },
    controls: Delta {
        set: &[CONTROLS_550],
        sizes: &[
            (0x0000_0102, 104),
            (0x0080_0289, 4),
            (0x0080_0292, 700),
            (0x00da_0002, 24),
            (0x2080_012f, 1024),
            (0x2080_0170, 260),
            (0x2080_1211, 104),
            (0x2080_1303, 444),
            (0x2080_1829, 4),
            (0x2080_182a, 104),
            (0x2080_206f, 8),
            (0x2080_3002, 5896),
        ],
        removed: &[0x00da_0006, 0x2080_01b2, 0x2080_1830, 0x2080_3083],
    },
};

/// Branch 535. Its tables are checked against the headers of release 535.183.01.
static R535: Branch = Branch {
    name: "535",
    #[cfg(test)]
    facts: include_str!("../layouts/535.txt"),
    parent: Some(&R550),
    releases: &[
        "535.43.08",
        "535.43.09",
        "535.43.10",
        "535.43.11",
        "535.43.13",
        "535.43.15",
        "535.43.16",
        "535.43.19",
        "535.43.20",
        "535.43.22",
        "535.43.23",
        "535.43.24",
        "535.43.25",
        "535.43.28",
        "535.86.05",
        "535.86.10",
        "535.98",
        "535.104.05",
        "535.104.12",
        "535.113.01",
        "535.129.03",
        "535.146.02",
        "535.154.05",
        "535.161.07",
        "535.161.08",
        "535.171.04",
        "535.179",
        "535.183.01",
        "535.183.06",
        "535.216.01",
        "535.216.03",
        "535.230.02",
        "535.247.01",
        "535.261.03",
        "535.274.02",
        "535.288.01",
    ],
    unlike: &["535.43.02", "535.54.03"],
    layout: &LAYOUT_535,
    escapes: Delta {
        set: &[],
        sizes: &[(0x58, (&[40], &[Some(32)]))],
        removed: &[0x5f, 218],
    },
    uvm_calls: Delta {
        set: &[UVM_CALLS_535],
        sizes: &[
            (42, (40, 32)),
            (56, (56, 48)),
            (64, (16, 12)),
            (68, (1184, 1176)),
        ],
        removed: &[],
    },
    classes: Delta {
        set: &[],
        sizes: &[
            (0x003e, 120),
            (0x0040, 120),
            (0x0042, 120),
            (0x0050, 16),
            (0x00de, 4),
            (0x00fd, 40),
            (0x50a0, 120),
            (0x90ce, 120),
        ],
        removed: &[0x00e0, 0x00f1, 0x00f9, 0x00fb],
    },
    controls: Delta {
        set: &[CONTROLS_535],
        sizes: &[
            (0x0000_012b, 4252),
            (0x0000_3d08, 76),
            (0x0080_0292, 644),
            (0x2080_0102, 516),
            (0x2080_012f, 984),
            (0x2080_0170, 252),
            (0x2080_0174, 264),
            (0x2080_01a3, 40),
            (0x2080_1303, 436),
            (0x2080_2096, 34000),
            (0x2080_2a0a, 68),
            (0x906f_0102, 12),
            (0xc56f_010b, 124),
            (0xcb33_0101, 5),
        ],
        removed: &[
            0x0000_0288,
            0x0000_0289,
            0x0000_0290,
            0x0080_1909,
            0x00de_0001,
            0x00f1_0001,
            0x2080_111a,
            0x2080_123a,
            0x2080_2068,
            0xcb33_010c,
        ],
    },
};

/// Branch 590. Its tables are checked against the headers of release 590.48.01.
static R590: Branch = Branch {
    name: "590",
    #[cfg(test)]
    facts: include_str!("../layouts/590.txt"),
    parent: Some(&COMMON),
    releases: &["590.44.01", "590.48.01"],
    unlike: &[],
    layout: &LAYOUT_590,
    escapes: Delta {
        set: &[],
        sizes: &[],
        removed: &[213],
    },
    uvm_calls: Delta {
        set: &[UVM_CALLS_590],
        sizes: &[
            (10, (8, 4)),
            (12, (904, 900)),
            (13, (40, 32)),
            (14, (40, 36)),
            (15, (8, 4)),
            (17, (16, 12)),
            (34, (16, 8)),
        ],
        removed: &[9, 11, 18, 19],
    },
    classes: Delta {
        set: &[],
        sizes: &[(0x503b, 88)],
        removed: &[0x00f3],
    },
    controls: Delta {
        set: &[],
        sizes: &[
            (0x00f1_0001, 11272),
            (0x2080_012f, 1664),
            (0x2080_019f, 400),
            (0x2080_3002, 13864),
            (0x2080_3083, 38),
        ],
        removed: &[],
    },
};

/// Branch 595. Its tables are checked against the headers of release 595.45.04.
static R595: Branch = Branch {
    name: "595",
    #[cfg(test)]
    facts: include_str!("../layouts/595.txt"),
    parent: Some(&R590),
    releases: &["595.44.02", "595.44.03", "595.45.04"],
    unlike: &[],
    layout: &LAYOUT_590,
    escapes: Delta::NONE,
    uvm_calls: Delta {
        set: &[],
        sizes: &[],
        removed: &[54, 55],
    },
    classes: Delta {
        set: &[],
        sizes: &[],
        removed: &[0x0042],
    },
    controls: Delta {
        set: &[],
        sizes: &[(0x2080_0110, 68), (0x2080_3083, 39)],
        removed: &[],
    },
};

/// Every branch this build knows, the oldest first.
pub(crate) static BRANCHES: &[&Branch] = &[&R535, &R550, &R565, &R570, &R580, &R590, &R595];
