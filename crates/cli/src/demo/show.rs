//! What the demo prints for people.

use std::fmt::Write;

use policy::units::Bytes;
use serde_json::Value;

use super::Outcome;

/// The tenants and the walls, as a table.
pub fn table(outcome: &Outcome) -> String {
    let mut text = String::new();
    // Writing to a string cannot fail.
    let _ = writeln!(text, "\n{}\n", outcome.device);
    let _ = writeln!(text, "{:<9} {:>9}  what it did and got", "tenant", "quota");
    for tenant in &outcome.tenants {
        let _ = writeln!(
            text,
            "{:<9} {:>9}  {}",
            tenant.name,
            Bytes(tenant.quota).to_string(),
            tenant.note
        );
    }
    let _ = writeln!(text, "\n{:<25} held  {:<26} expected", "wall", "measured");
    for check in &outcome.checks {
        let held = if check.held { "yes" } else { "NO" };
        let (measured, expected) = (number(&check.measured), number(&check.expected));
        let _ = writeln!(
            text,
            "{:<25} {held:<5} {measured:<26} {expected}",
            check.name
        );
        let _ = writeln!(text, "    {}", check.note);
    }
    text.push('\n');
    text
}

/// The one line at the end.
pub fn closing(outcome: &Outcome, without: Option<&str>) -> String {
    let fallen: Vec<&str> = outcome
        .checks
        .iter()
        .filter(|c| !c.held)
        .map(|c| c.name.as_str())
        .collect();
    let unserved: Vec<&str> = outcome
        .tenants
        .iter()
        .filter(|t| !t.served)
        .map(|t| t.name)
        .collect();
    let taken = without
        .map(|wall| format!(" (the wall {wall} was taken away)"))
        .unwrap_or_default();
    if !fallen.is_empty() {
        return format!(
            "{} of {} walls fell: {}{taken}",
            fallen.len(),
            outcome.checks.len(),
            fallen.join(", ")
        );
    }
    if !unserved.is_empty() {
        return format!(
            "every wall held, but {} did not get what was granted{taken}",
            unserved.join(" and ")
        );
    }
    format!("all {} walls held{taken}", outcome.checks.len())
}

/// Bytes in their unit, words as they are.
fn number(value: &Value) -> String {
    match value {
        Value::Number(n) => n
            .as_u64()
            .map_or_else(|| n.to_string(), |bytes| Bytes(bytes).to_string()),
        Value::String(words) => words.clone(),
        Value::Null => "nothing".into(),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::demo::Tenant;
    use testkit::outside::Finding;

    fn outcome(held: bool, served: bool) -> Outcome {
        let finding = Finding {
            name: "quota_exact".into(),
            held,
            measured: Value::from(20u64 << 30),
            expected: Value::from(10u64 << 30),
            note: "allocated 20 GiB".into(),
        };
        let alice = Tenant {
            name: "alice",
            quota: 6 << 30,
            honest: true,
            served,
            note: "asked".into(),
        };
        Outcome {
            device: "1xH200".into(),
            tenants: vec![alice],
            checks: vec![finding],
        }
    }

    #[test]
    fn a_fallen_wall_is_named_and_an_unserved_tenant_is_no_success() {
        assert_eq!(closing(&outcome(true, true), None), "all 1 walls held");
        assert_eq!(
            closing(&outcome(false, true), Some("quota_exact")),
            "1 of 1 walls fell: quota_exact (the wall quota_exact was taken away)"
        );
        assert!(closing(&outcome(true, false), None).contains("alice did not get"));
        assert!(outcome(true, true).all_well());
        assert!(!outcome(false, true).all_well() && !outcome(true, false).all_well());
    }

    #[test]
    fn the_table_shows_bytes_in_their_unit() {
        let table = table(&outcome(false, true));
        assert!(table.contains("alice         6 GiB  asked"), "{table}");
        assert!(
            table.contains("NO    20 GiB                     10 GiB"),
            "{table}"
        );
    }
}
