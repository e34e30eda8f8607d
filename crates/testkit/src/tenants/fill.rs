//! Filling a slice to its last byte.

use crate::raw::{Client, Device, Fault, Pages};
use crate::{GIB, KIB, MIB};

/// How far an allocation went.
#[derive(Debug, Default)]
pub struct Filled {
    /// Handles of what was allocated.
    pub handles: Vec<u32>,
    /// Their bytes, as the driver rounds.
    pub bytes: u64,
    /// How the last step, the smallest, was refused; `None`: it never was.
    pub refused: Option<Fault>,
}

/// The largest step first, so that a slice is full after few calls; the last is the driver's smallest page.
const STEPS: [u64; 5] = [GIB, 64 * MIB, 2 * MIB, 256 * KIB, 64 * KIB];

/// Allocates until the smallest step is refused, at most `limit` bytes: a missing wall is plain long before the card is
/// full.
pub fn fill(client: &Client, device: &Device, limit: u64) -> Filled {
    let mut filled = Filled::default();
    for step in STEPS {
        filled.refused = None;
        while filled.bytes + step <= limit {
            match device.alloc(client, step, Pages::Default) {
                Ok(handle) => {
                    filled.handles.push(handle);
                    filled.bytes += step;
                }
                Err(fault) => {
                    filled.refused = Some(fault);
                    break;
                }
            }
        }
    }
    filled
}

/// How a refusal reads.
pub fn refusal(fault: Option<Fault>) -> String {
    fault.map_or_else(
        || "never refused".into(),
        |fault| format!("refused with {fault}"),
    )
}

/// Bytes in the unit that suits them, for people.
pub fn human(bytes: u64) -> String {
    const UNITS: [(u64, &str); 3] = [(GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")];
    match UNITS.iter().find(|(unit, _)| bytes >= *unit) {
        Some((unit, name)) if bytes.is_multiple_of(*unit) => format!("{} {name}", bytes / unit),
        Some((unit, name)) => format!("{:.2} {name}", bytes as f64 / *unit as f64),
        None => format!("{bytes} B"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_read_in_their_unit() {
        assert_eq!(human(0), "0 B");
        assert_eq!(human(64 * KIB), "64 KiB");
        assert_eq!(human(10 * GIB), "10 GiB");
        assert_eq!(human(GIB + GIB / 2), "1.50 GiB");
        assert_eq!(human(50_000 * MIB), "48.83 GiB");
    }
}
