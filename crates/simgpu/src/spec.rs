//! What hardware a simulated node has.

use std::fmt;
use std::str::FromStr;

use crate::DRIVER_VERSION;

/// The devices of one simulated node.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NodeSpec {
    /// The GPUs, in the order of their minor numbers.
    pub devices: Vec<DeviceSpec>,
    /// Version of the driver. It has the kernel interface of its branch, or [`DRIVER_VERSION`]'s if nobody knows that
    /// branch, and behaves as [`DRIVER_VERSION`] in all else.
    pub driver: String,
    /// What its cards lack.
    pub lacks: Lacks,
}

/// What some cards or drivers lack, for whoever has to do without.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Lacks {
    /// Slices are taken and not kept: every group runs for the one it began with.
    pub slices: bool,
    /// Nobody can bind the context-switch timeline.
    pub timeline: bool,
    /// Nobody is told which channel is on the compute engine.
    pub residency: bool,
}

impl Lacks {
    /// The word for something that is lacking.
    fn add(&mut self, word: &str) -> Option<()> {
        let lack = match word {
            "slices" => &mut self.slices,
            "timeline" => &mut self.timeline,
            "residency" => &mut self.residency,
            _ => return None,
        };
        *lack = true;
        Some(())
    }
}

/// One simulated GPU.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DeviceSpec {
    /// Product name as the driver reports it.
    pub name: &'static str,
    /// Size of the memory chips, KiB.
    pub ram_kib: u64,
    /// What the driver can give out, KiB.
    pub heap_kib: u64,
    /// Memory left after the firmware's reservation, KiB.
    pub usable_kib: u64,
    /// Streaming multiprocessors.
    pub sm_count: u32,
    /// Compute capability, major and minor.
    pub compute_capability: (u32, u32),
    /// Maximum clock of the multiprocessors, kHz.
    pub sm_clock_khz: u32,
    /// Maximum clock of the memory, kHz.
    pub memory_clock_khz: u32,
    /// Width of the memory bus, bits.
    pub memory_bus_bits: u32,
    /// Size of the L2 cache, bytes.
    pub l2_bytes: u32,
    /// PCI device and vendor, as in configuration space (device in the high half).
    pub pci_device: u32,
    /// Universally unique id; the 16 bytes that UVM calls carry.
    pub uuid: [u8; 16],
    /// PCI slot on bus 0 of domain 0; also the driver's gpu id.
    pub slot: u8,
}

impl DeviceSpec {
    /// An H200 as the `index`-th GPU of a node. Memory sizes: measured on an H200, driver 580.159.
    #[must_use]
    pub fn h200(index: u8) -> DeviceSpec {
        let mut uuid = *b"\x53\x49\x4d\x00\x48\x32\x40\x00\x80\x00\x67\x70\x75\x73\x6c\x00";
        uuid[15] = index;
        DeviceSpec {
            name: "NVIDIA H200",
            ram_kib: 147_221_504,
            heap_kib: 146_591_680,
            usable_kib: 146_941_632,
            sm_count: 132,
            compute_capability: (9, 0),
            sm_clock_khz: 1_980_000,
            memory_clock_khz: 3_201_000,
            memory_bus_bits: 6144,
            l2_bytes: 60 << 20,
            pci_device: 0x2335_10de,
            uuid,
            slot: 6 + index,
        }
    }

    /// The driver's id of this GPU: derived from its place on the PCI bus.
    #[must_use]
    pub fn gpu_id(&self) -> u32 {
        u32::from(self.slot)
    }

    /// The id as `nvidia-smi -L` prints it: `GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx`.
    #[must_use]
    pub fn uuid_text(&self) -> String {
        let mut text = String::from("GPU-");
        for (at, byte) in self.uuid.iter().enumerate() {
            if matches!(at, 4 | 6 | 8 | 10) {
                text.push('-');
            }
            text.push_str(&format!("{byte:02x}"));
        }
        text
    }
}

/// Why a node could not be made of a text.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SpecError {
    asked: String,
}

impl fmt::Display for SpecError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "no simulated node is called {:?}: write COUNTxMODEL, COUNT 1 to {MAX_DEVICES}, MODEL H200 (2xH200), \
             -no-slices, -no-timeline or -no-residency for cards that lack it (1xH200-no-timeline), and @VERSION for a \
             driver of another version (2xH200@570.133.20)",
            self.asked
        )
    }
}

impl std::error::Error for SpecError {}

/// Most GPUs of one node: what `CARD_INFO` of an ordinary server shows, with room.
const MAX_DEVICES: u8 = 16;
/// What `CHECK_VERSION_STR` has room for, with the NUL.
const LONGEST_VERSION: usize = 63;

impl FromStr for NodeSpec {
    type Err = SpecError;

    fn from_str(text: &str) -> Result<NodeSpec, SpecError> {
        let error = || SpecError {
            asked: text.to_owned(),
        };
        let (cards, driver) = text.split_once('@').unwrap_or((text, DRIVER_VERSION));
        let mut parts = cards.split("-no-");
        let cards = parts.next().unwrap_or_default();
        let mut lacks = Lacks::default();
        for word in parts {
            lacks.add(word).ok_or_else(error)?;
        }
        let (count, model) = cards.split_once(['x', 'X']).ok_or_else(error)?;
        let count: u8 = count.parse().map_err(|_| error())?;
        let is_version = (1..=LONGEST_VERSION).contains(&driver.len())
            && driver.bytes().all(|b| b.is_ascii_digit() || b == b'.');
        if !(1..=MAX_DEVICES).contains(&count) || !model.eq_ignore_ascii_case("H200") || !is_version
        {
            return Err(error());
        }
        Ok(NodeSpec {
            devices: (0..count).map(DeviceSpec::h200).collect(),
            driver: driver.to_owned(),
            lacks,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spec_counts_devices_and_names_the_model() {
        let node: NodeSpec = "2xH200".parse().unwrap();
        assert_eq!(node.devices.len(), 2);
        assert_ne!(node.devices[0].uuid, node.devices[1].uuid);
        assert_ne!(node.devices[0].gpu_id(), node.devices[1].gpu_id());
        assert_eq!(
            node.devices[1].uuid_text(),
            "GPU-53494d00-4832-4000-8000-677075736c01"
        );
        assert_eq!(node.driver, DRIVER_VERSION);
        assert_eq!("1xH200@999.1".parse::<NodeSpec>().unwrap().driver, "999.1");
        assert_eq!(node.lacks, Lacks::default());
        let lacking: NodeSpec = "1xH200-no-timeline-no-slices@999.1".parse().unwrap();
        assert_eq!(
            lacking.lacks,
            Lacks {
                slices: true,
                timeline: true,
                residency: false
            }
        );
    }

    #[test]
    fn what_is_no_node_is_refused_with_the_text_in_the_message() {
        for text in [
            "",
            "H200",
            "0xH200",
            "17xH200",
            "2xA100",
            "-1xH200",
            "2x",
            "1xH200@",
            "1xH200@x",
            "1xH200-no-",
            "1xH200-no-memory",
            "1xH200-slices",
        ] {
            let error = text.parse::<NodeSpec>().unwrap_err().to_string();
            assert!(error.contains(&format!("{text:?}")), "{error}");
            assert!(!error.contains('\n'));
        }
    }
}
