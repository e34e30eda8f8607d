//! Channels of a card are granted with its slices, as memory is.

use guard::registry::{Ask, Lease, Registry};
use guard::rmcall::Gpu;
use policy::objects::{LEAST_CHANNELS, SLICED_CHANNELS};
use policy::units::Bytes;

const CARD: Bytes = Bytes::from_gib(140);

fn card() -> Gpu {
    Gpu {
        index: 0,
        uuid: "GPU-a".into(),
        uuid_bytes: [0; 16],
        name: "a card".into(),
        gpu_id: 1,
        instance: 0,
        minor: 0,
        memory: CARD,
    }
}

fn grant(registry: &Registry, name: &str, memory: Bytes) -> std::io::Result<Lease> {
    let ask = Ask {
        name: name.into(),
        uid: 1,
        memory: vec![("GPU-a".into(), memory)],
        command: String::new(),
        overcommit: false,
        helper_user: false,
        weight: 100,
        cap: None,
        latency: None,
    };
    registry.grant(&ask, &[card()])
}

#[test]
fn threat_28_channels_of_all_slices_never_sum_above_the_card() {
    let folder = std::env::temp_dir().join(format!("gpuslice-channels-{}", std::process::id()));
    let registry = Registry::in_folder(&folder).unwrap();
    let channels = |lease: &Lease| lease.entry.channels[0].1;
    // Slices of one MiB, as many as there are: each has what a few contexts need.
    let mut leases = Vec::new();
    let refusal = loop {
        match grant(&registry, &format!("t{}", leases.len()), Bytes::from_mib(1)) {
            Ok(lease) => leases.push(lease),
            Err(refusal) => break refusal.to_string(),
        }
    };
    assert!(leases.iter().all(|lease| channels(lease) == LEAST_CHANNELS));
    assert_eq!(leases.len() as u32, SLICED_CHANNELS / LEAST_CHANNELS);
    assert!(
        refusal.contains("needs 60 channels, but 0 of 1920"),
        "{refusal}"
    );
    // Two end, and one with all the memory that is left gets what these had.
    leases.truncate(30);
    let large = grant(&registry, "large", Bytes::from_gib(100)).unwrap();
    assert_eq!(channels(&large), 2 * LEAST_CHANNELS);
    drop((large, leases));
    std::fs::remove_dir_all(&folder).unwrap();
}
