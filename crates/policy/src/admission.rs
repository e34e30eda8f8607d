//! Whether a node can grant a new slice: quotas on a card never sum above its size unless
//! overcommit is asked for. Shares of a card (`25%`) are amounts by the time they come here, see
//! [`crate::units::Size::of`].

use std::collections::BTreeSet;
use std::fmt;

use crate::objects::{LEAST_CHANNELS, SLICED_CHANNELS, channels_for};
use crate::units::Bytes;

/// A card of the node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Card {
    /// The name that the driver gives it for good.
    pub uuid: String,
    /// What its slices can share.
    pub total: Bytes,
}

/// A live or requested slice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grant {
    /// The tenant's name.
    pub name: String,
    /// The quota on each of its cards, by uuid.
    pub memory: Vec<(String, Bytes)>,
    /// The channels on each of its cards, by uuid; of a request: none yet, see [`channels`].
    pub channels: Vec<(String, u32)>,
}

/// Why a slice is not granted: one line with what was asked, what is there and what to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// A live tenant has the name.
    NameTaken {
        /// The name.
        name: String,
    },
    /// The request names no card.
    NoCard {
        /// The tenant asked for.
        name: String,
    },
    /// The request names a card that the node has not got.
    UnknownCard {
        /// The uuid asked for.
        uuid: String,
        /// Those that the node has.
        known: Vec<String>,
    },
    /// The request names a card twice.
    CardTwice {
        /// The uuid asked for.
        uuid: String,
    },
    /// The request is for no memory.
    Nothing {
        /// The card.
        uuid: String,
    },
    /// One quota is more than the whole card: refused with overcommit too, as it could never be
    /// used.
    LargerThanCard {
        /// The card.
        uuid: String,
        /// The quota asked for.
        asked: Bytes,
        /// The card's size.
        total: Bytes,
    },
    /// What is not granted yet is not enough.
    NotEnough {
        /// The card.
        uuid: String,
        /// The quota asked for.
        asked: Bytes,
        /// What is not granted.
        free: Bytes,
        /// The card's size.
        total: Bytes,
        /// The tenants that have the rest.
        tenants: Vec<String>,
    },
    /// The card's channels are granted: there may be memory left, but a program could not start.
    NoChannels {
        /// The card.
        uuid: String,
        /// Channels that are not granted.
        free: u32,
        /// The tenants that have the rest.
        tenants: Vec<String>,
    },
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Names and uuids are quoted by Debug, so that a line break in one does not break the line.
        match self {
            Refusal::NameTaken { name } => {
                write!(
                    f,
                    "name {name:?} is in use by a live tenant; choose another --name or stop that tenant"
                )
            }
            Refusal::NoCard { name } => write!(
                f,
                "tenant {name:?} asks for no GPU; name at least one with --gpu"
            ),
            Refusal::UnknownCard { uuid, known } if known.is_empty() => {
                write!(
                    f,
                    "GPU {uuid:?} is asked for, but this node has none; run it on a node with GPUs or use --sim"
                )
            }
            Refusal::UnknownCard { uuid, known } => {
                write!(
                    f,
                    "GPU {uuid:?} is asked for, but this node has {}; choose one of them",
                    list(known)
                )
            }
            Refusal::CardTwice { uuid } => {
                write!(f, "GPU {uuid:?} is asked for twice; name each GPU once")
            }
            Refusal::Nothing { uuid } => {
                write!(
                    f,
                    "a quota of 0 B is asked for on GPU {uuid:?}; ask for some memory with --memory"
                )
            }
            Refusal::LargerThanCard { uuid, asked, total } => {
                write!(
                    f,
                    "{asked} is asked for on GPU {uuid:?}, which has {}; ask for at most {}",
                    total.about(),
                    total.to_type()
                )
            }
            Refusal::NoChannels {
                uuid,
                free,
                tenants,
            } => write!(
                f,
                "a slice needs {LEAST_CHANNELS} channels, but {free} of {SLICED_CHANNELS} on GPU {uuid:?} are free \
                 (the rest is granted to {}); stop a tenant or allow it with --overcommit",
                list(tenants)
            ),
            Refusal::NotEnough {
                uuid,
                asked,
                free,
                total,
                tenants,
            } => {
                write!(
                    f,
                    "{asked} is asked for on GPU {uuid:?}, but {} of {} is free (",
                    free.about(),
                    total.about()
                )?;
                write!(f, "the rest is granted to {}); ", list(tenants))?;
                if free.0 > 0 {
                    write!(
                        f,
                        "ask for at most {}, stop a tenant or allow it with --overcommit",
                        free.to_type()
                    )
                } else {
                    f.write_str("stop a tenant or allow it with --overcommit")
                }
            }
        }
    }
}

impl std::error::Error for Refusal {}

/// A few names in a line, quoted; the rest is counted.
fn list(names: &[String]) -> String {
    const SHOWN: usize = 4;
    let shown: Vec<String> = names
        .iter()
        .take(SHOWN)
        .map(|name| format!("{name:?}"))
        .collect();
    match names.len().saturating_sub(SHOWN) {
        0 => shown.join(", "),
        more => format!("{} and {more} more", shown.join(", ")),
    }
}

/// What of a card is not granted; zero where grants with overcommit sum above its size.
pub fn free_on(card: &Card, grants: &[Grant]) -> Bytes {
    card.total.saturating_sub(granted_on(&card.uuid, grants))
}

/// Decides a new slice beside the live ones. To change a live slice, leave it out of `grants`.
///
/// # Errors
/// The [`Refusal`]; the first card that is in the way is named.
pub fn admit(
    cards: &[Card],
    grants: &[Grant],
    request: &Grant,
    overcommit: bool,
) -> Result<(), Refusal> {
    if grants.iter().any(|grant| grant.name == request.name) {
        return Err(Refusal::NameTaken {
            name: request.name.clone(),
        });
    }
    if request.memory.is_empty() {
        return Err(Refusal::NoCard {
            name: request.name.clone(),
        });
    }
    let mut named = BTreeSet::new();
    for (uuid, asked) in &request.memory {
        let uuid = uuid.clone();
        let Some(card) = cards.iter().find(|card| card.uuid == uuid) else {
            return Err(Refusal::UnknownCard {
                uuid,
                known: cards.iter().map(|card| card.uuid.clone()).collect(),
            });
        };
        if !named.insert(uuid.clone()) {
            return Err(Refusal::CardTwice { uuid });
        }
        if *asked == Bytes::ZERO {
            return Err(Refusal::Nothing { uuid });
        }
        if *asked > card.total {
            return Err(Refusal::LargerThanCard {
                uuid,
                asked: *asked,
                total: card.total,
            });
        }
        let free = free_on(card, grants);
        if *asked > free && !overcommit {
            return Err(Refusal::NotEnough {
                asked: *asked,
                free,
                total: card.total,
                tenants: tenants_of(&uuid, grants),
                uuid,
            });
        }
    }
    Ok(())
}

/// The channels that a request gets on each of its cards, once it is admitted: its share of the
/// card's, at least enough for a few contexts, and never more than what is not granted. With
/// overcommit they may sum above the pool, as memory may.
///
/// # Errors
/// [`Refusal::NoChannels`]: not even the least is left.
pub fn channels(
    cards: &[Card],
    grants: &[Grant],
    request: &Grant,
    overcommit: bool,
) -> Result<Vec<(String, u32)>, Refusal> {
    let mut granted = Vec::with_capacity(request.memory.len());
    for (uuid, memory) in &request.memory {
        let total = cards.iter().find(|card| card.uuid == *uuid);
        let share = channels_for(*memory, total.map_or(Bytes::ZERO, |card| card.total));
        let taken: u64 = grants
            .iter()
            .flat_map(|grant| &grant.channels)
            .filter(|(on, _)| on == uuid)
            .map(|(_, channels)| u64::from(*channels))
            .sum();
        let free = u64::from(SLICED_CHANNELS).saturating_sub(taken);
        // At most the pool, which fits.
        let free = free as u32;
        if free < LEAST_CHANNELS && !overcommit {
            return Err(Refusal::NoChannels {
                uuid: uuid.clone(),
                free,
                tenants: tenants_of(uuid, grants),
            });
        }
        let channels = if overcommit { share } else { share.min(free) };
        granted.push((uuid.clone(), channels));
    }
    Ok(granted)
}

/// The tenants that have something of a card.
fn tenants_of(uuid: &str, grants: &[Grant]) -> Vec<String> {
    let on_it = |grant: &&Grant| grant.memory.iter().any(|(on, _)| on == uuid);
    grants
        .iter()
        .filter(on_it)
        .map(|grant| grant.name.clone())
        .collect()
}

/// The sum of the grants on a card. Saturating: a sum beyond 64 bits leaves nothing free, as it
/// should.
fn granted_on(uuid: &str, grants: &[Grant]) -> Bytes {
    grants
        .iter()
        .flat_map(|grant| &grant.memory)
        .filter(|(on, _)| on == uuid)
        .map(|(_, quota)| *quota)
        .sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const GIB: u64 = 1 << 30;

    fn cards() -> Vec<Card> {
        let total = Bytes(140 * GIB);
        vec![
            Card {
                uuid: "GPU-a".to_owned(),
                total,
            },
            Card {
                uuid: "GPU-b".to_owned(),
                total,
            },
        ]
    }

    fn grant(name: &str, memory: &[(&str, u64)]) -> Grant {
        let memory = memory
            .iter()
            .map(|(uuid, amount)| ((*uuid).to_owned(), Bytes(*amount)))
            .collect();
        Grant {
            name: name.to_owned(),
            memory,
            channels: Vec::new(),
        }
    }

    fn refused(grants: &[Grant], request: &Grant) -> String {
        admit(&cards(), grants, request, false)
            .expect_err("is refused")
            .to_string()
    }

    #[test]
    fn a_card_is_granted_to_the_last_byte_and_no_further() {
        let live = [grant("one", &[("GPU-a", 100 * GIB)])];
        assert_eq!(
            admit(
                &cards(),
                &live,
                &grant("two", &[("GPU-a", 40 * GIB)]),
                false
            ),
            Ok(())
        );
        assert_eq!(
            refused(&live, &grant("two", &[("GPU-a", 40 * GIB + 1)])),
            "42949672961 B is asked for on GPU \"GPU-a\", but 40 GiB of 140 GiB is free (the rest is granted to \"one\"); \
             ask for at most 40960MiB, stop a tenant or allow it with --overcommit"
        );
        // The other card is untouched.
        assert_eq!(
            admit(
                &cards(),
                &live,
                &grant("two", &[("GPU-b", 140 * GIB)]),
                false
            ),
            Ok(())
        );
        // One card too full refuses the whole slice.
        let both = grant("two", &[("GPU-b", GIB), ("GPU-a", 41 * GIB)]);
        assert!(
            matches!(admit(&cards(), &live, &both, false), Err(Refusal::NotEnough { uuid, .. }) if uuid == "GPU-a")
        );
    }

    #[test]
    fn overcommit_stops_at_the_size_of_the_card() {
        let live = [
            grant("one", &[("GPU-a", 140 * GIB)]),
            grant("two", &[("GPU-a", 140 * GIB)]),
        ];
        assert_eq!(
            admit(
                &cards(),
                &live,
                &grant("three", &[("GPU-a", 140 * GIB)]),
                true
            ),
            Ok(())
        );
        assert_eq!(
            admit(
                &cards(),
                &[],
                &grant("three", &[("GPU-a", 140 * GIB + 1)]),
                true
            ),
            Err(Refusal::LargerThanCard {
                uuid: "GPU-a".to_owned(),
                asked: Bytes(140 * GIB + 1),
                total: Bytes(140 * GIB)
            })
        );
        // With nothing left the line does not advise to ask for nothing.
        let line = refused(&live, &grant("three", &[("GPU-a", 1)]));
        assert!(
            line.ends_with("\"one\", \"two\"); stop a tenant or allow it with --overcommit"),
            "{line}"
        );
    }

    #[test]
    fn requests_that_make_no_sense() {
        let live = [grant("one", &[("GPU-a", GIB)])];
        for (request, line) in [
            (
                grant("one", &[("GPU-b", GIB)]),
                "name \"one\" is in use by a live tenant; choose another --name or stop that tenant",
            ),
            (
                grant("two", &[]),
                "tenant \"two\" asks for no GPU; name at least one with --gpu",
            ),
            (
                grant("two", &[("GPU-c", GIB)]),
                "GPU \"GPU-c\" is asked for, but this node has \"GPU-a\", \"GPU-b\"; choose one of them",
            ),
            (
                grant("two", &[("GPU-b", 1), ("GPU-b", 1)]),
                "GPU \"GPU-b\" is asked for twice; name each GPU once",
            ),
            (
                grant("two", &[("GPU-b", 0)]),
                "a quota of 0 B is asked for on GPU \"GPU-b\"; ask for some memory with --memory",
            ),
            (
                grant("two", &[("GPU-b", u64::MAX)]),
                "18446744073709551615 B is asked for on GPU \"GPU-b\", which has 140 GiB; ask for at most 143360MiB",
            ),
        ] {
            assert_eq!(refused(&live, &request), line);
        }
        assert_eq!(
            admit(&[], &[], &grant("two", &[("GPU-c", 1)]), false)
                .expect_err("no card")
                .to_string(),
            "GPU \"GPU-c\" is asked for, but this node has none; run it on a node with GPUs or use --sim"
        );
    }

    #[test]
    fn channels_follow_memory_and_the_last_slice_gets_what_is_left() {
        let mut live = Vec::new();
        let mut ask = |memory: u64, overcommit| {
            let mut request = grant(&format!("t{}", live.len()), &[("GPU-a", memory)]);
            let got = channels(&cards(), &live, &request, overcommit)?;
            request.channels = got.clone();
            live.push(request);
            Ok::<u32, Refusal>(got[0].1)
        };
        assert_eq!(ask(70 * GIB, false), Ok(960));
        assert_eq!(ask(GIB, false), Ok(LEAST_CHANNELS));
        // Its share would be 946: the small slice's least comes from those that are left.
        assert_eq!(ask(69 * GIB, false), Ok(900));
        let refusal = ask(1, false).expect_err("no channel is left").to_string();
        assert_eq!(
            refusal,
            "a slice needs 60 channels, but 0 of 1920 on GPU \"GPU-a\" are free (the rest is granted to \"t0\", \
             \"t1\", \"t2\"); stop a tenant or allow it with --overcommit"
        );
        assert_eq!(ask(70 * GIB, true), Ok(960));
    }

    #[test]
    fn a_hostile_name_stays_in_its_line_and_many_are_counted() {
        let live: Vec<Grant> = (0..7)
            .map(|n| grant(&format!("t\n{n}"), &[("GPU-a", 20 * GIB)]))
            .collect();
        let line = refused(&live, &grant("new", &[("GPU-a", GIB)]));
        assert_eq!(line.lines().count(), 1);
        assert!(line.contains("and 3 more"), "{line}");
    }

    #[test]
    fn grants_beyond_64_bits_leave_nothing() {
        let live = [
            grant("one", &[("GPU-a", u64::MAX)]),
            grant("two", &[("GPU-a", u64::MAX)]),
        ];
        assert_eq!(free_on(&cards()[0], &live), Bytes::ZERO);
    }

    proptest! {
        /// However requests come, what is admitted without overcommit fits, and what is refused
        /// would not have.
        #[test]
        fn grants_never_sum_above_a_card(requests in prop::collection::vec((1..=60u64, 0..=60u64), 1..40)) {
            let cards = cards();
            let mut live: Vec<Grant> = Vec::new();
            for (index, (on_a, on_b)) in requests.into_iter().enumerate() {
                let mut request = grant(&format!("t{index}"), &[("GPU-a", on_a * GIB)]);
                if on_b > 0 {
                    request.memory.push(("GPU-b".to_owned(), Bytes(on_b * GIB)));
                }
                let mut after = live.clone();
                after.push(request.clone());
                let fits = cards.iter().all(|card| {
                    let quotas = after.iter().flat_map(|grant| &grant.memory);
                    let on_card = quotas.filter(|(uuid, _)| *uuid == card.uuid);
                    on_card.map(|(_, quota)| quota.0).sum::<u64>() <= card.total.0
                });
                prop_assert_eq!(admit(&cards, &live, &request, false).is_ok(), fits);
                if fits {
                    live = after;
                }
            }
        }

        /// Without overcommit the channels of all slices of a card never sum above those for slices, and nobody has
        /// fewer than a slice needs.
        #[test]
        fn channels_never_sum_above_the_pool(requests in prop::collection::vec((0..=140 * GIB, 0..=140 * GIB), 1..60)) {
            let mut live: Vec<Grant> = Vec::new();
            for (on_a, on_b) in requests {
                let mut request = grant("t", &[("GPU-a", on_a), ("GPU-b", on_b)]);
                let Ok(got) = channels(&cards(), &live, &request, false) else {
                    continue;
                };
                prop_assert!(got.iter().all(|(_, channels)| *channels >= LEAST_CHANNELS));
                request.channels = got;
                live.push(request);
                for card in cards() {
                    let all = live.iter().flat_map(|grant| &grant.channels);
                    let on_card = all.filter(|(uuid, _)| *uuid == card.uuid);
                    prop_assert!(on_card.map(|(_, channels)| channels).sum::<u32>() <= SLICED_CHANNELS);
                }
            }
        }
    }
}
