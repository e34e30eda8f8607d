use super::*;
use proptest::prelude::*;

/// Random numbers as the kernel's, but the same each time.
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}

/// Polls a card for a while: who is on it is told by the microsecond.
fn polled(seed: u64, us: u64, on: impl Fn(u64) -> u32) -> Tally {
    let (mut tally, mut numbers) = (Tally::default(), Numbers(seed));
    let mut at = 0;
    loop {
        at += gap(GAP, numbers.next()).as_micros() as u64;
        if at >= us {
            return tally;
        }
        tally.add(Some(on(at)));
    }
}

fn part(tally: &Tally, of: u32) -> f64 {
    let us = 1_000_000;
    let divided = tally.divide(us).unwrap();
    let found = divided.iter().find(|(owner, _)| *owner == of);
    found.map_or(0.0, |(_, part)| *part as f64 / us as f64)
}

#[test]
fn gaps_are_as_long_as_they_are_said_to_be() {
    let mut numbers = Numbers(1);
    let gaps: Vec<f64> = (0..100_000)
        .map(|_| gap(GAP, numbers.next()).as_secs_f64() / GAP.as_secs_f64())
        .collect();
    let mean = gaps.iter().sum::<f64>() / gaps.len() as f64;
    assert!((0.98..1.02).contains(&mean), "{mean}");
    // Whoever has waited for a mean gap in vain waits as long again as at first.
    let later: Vec<f64> = gaps.iter().filter(|&&g| g > 1.0).map(|g| g - 1.0).collect();
    let mean = later.iter().sum::<f64>() / later.len() as f64;
    assert!((0.97..1.03).contains(&mean), "{mean}");
    assert_eq!(gap(GAP, 0), GAP.mul_f64(LONGEST));
    assert!(gap(GAP, u64::MAX) < Duration::from_micros(1));
}

/// Whoever takes the card in bursts shorter than a poll's gap has them counted, whatever their rhythm.
#[test]
fn bursts_between_polls_are_caught() {
    for period in [500, 2500, 5000, 20_000, 7919] {
        let burst = period / 5;
        let tally = polled(period, 60_000_000, |at| u32::from(at % period < burst));
        let part = part(&tally, 1);
        // 24,000 polls: three standard errors.
        assert!((part - 0.2).abs() < 0.008, "{period} us: {part}");
    }
}

/// The error that is stated is the error that there is.
#[test]
fn a_second_is_within_the_stated_error() {
    // Three quarters and a quarter, changing faster than polls come, so that each poll is one of its own.
    let on = |at: u64| if at % 97 < 73 { 1 } else { 2 };
    let truth = 73.0 / 97.0;
    let (mut squares, mut stated) = (0.0, 0.0);
    const SECONDS: u64 = 400;
    for seed in 0..SECONDS {
        let tally = polled(seed, 1_000_000, on);
        squares += (part(&tally, 1) - truth).powi(2);
        stated += f64::from(tally.error_ppm()) / 1e6;
    }
    let (real, stated) = ((squares / SECONDS as f64).sqrt(), stated / SECONDS as f64);
    assert!((0.019..0.025).contains(&stated), "{stated}");
    assert!((0.85..1.15).contains(&(real / stated)), "{real} {stated}");
}

#[test]
fn what_no_poll_has_seen_is_not_divided() {
    let mut tally = Tally::default();
    assert_eq!(tally.divide(1000), None);
    tally.add(None);
    assert_eq!(tally.divide(1000), Some(vec![]), "nobody was on it");
    tally.add(Some(7));
    assert_eq!(tally.divide(1000), Some(vec![(7, 500)]));
}

proptest! {
    /// Nobody is given more time than there was, and all is given away but for the fractions.
    #[test]
    fn time_is_divided_and_not_made(
        polls in prop::collection::vec(prop::option::of(0u32..5), 1..300),
        us in any::<u64>(),
    ) {
        let mut tally = Tally::default();
        polls.iter().for_each(|&owner| tally.add(owner));
        let divided = tally.divide(us).unwrap();
        let sum: u128 = divided.iter().map(|&(_, part)| u128::from(part)).sum();
        let seen = polls.iter().flatten().count() as u128;
        let due = u128::from(us) * seen / polls.len() as u128;
        prop_assert!(sum <= due && sum + divided.len() as u128 >= due, "{sum} of {due}");
        let worst = tally.error_ppm();
        prop_assert!((1..=1_000_000).contains(&worst));
        prop_assert!(u64::from(worst) * polls.len() as u64 >= 1_000_000);
    }

    /// Tallies of parts are the tally of the whole.
    #[test]
    fn parts_make_the_whole(
        one in prop::collection::vec(prop::option::of(0u32..5), 0..50),
        other in prop::collection::vec(prop::option::of(0u32..5), 0..50),
    ) {
        let tally = |polls: &[&Vec<Option<u32>>]| {
            let mut tally = Tally::default();
            polls.iter().copied().flatten().for_each(|&owner| tally.add(owner));
            tally
        };
        let mut joined = tally(&[&one]);
        joined.join(&tally(&[&other]));
        prop_assert_eq!(joined, tally(&[&one, &other]));
    }
}
