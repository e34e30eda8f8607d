//! `gpuslice doctor --shares`: whether slices hold on a card.

use serde_json::Value;

use crate::alone;
use crate::common::{Done, Node, gpuslice};

/// What a report says of the first card.
fn tried(done: &Done) -> Value {
    done.json()["shares"][0].clone()
}

fn ratio(tried: &Value, by: &str) -> f64 {
    tried[by]
        .as_f64()
        .unwrap_or_else(|| panic!("{by}: {tried}"))
}

#[test]
fn doctor_says_that_slices_hold() {
    let _alone = alone();
    let done = gpuslice(&["doctor", "--shares", "--json", "--sim", "1xH200"]).ended(0);
    let tried = tried(&done);
    assert_eq!(
        (&tried["verdict"], &tried["sensor"]),
        (&"hold".into(), &"timeline".into())
    );
    assert_eq!(tried["asked"], 3.0);
    assert!((2.4..3.75).contains(&ratio(&tried, "by_sensor")), "{tried}");
    // What is done where a program was late to queue its work is its loss.
    assert!(ratio(&tried, "by_kernels") > 1.25, "{tried}");
    let found = tried["found"].as_str().unwrap();
    assert!(found.starts_with("slices hold on this card: "), "{found}");
}

#[test]
fn doctor_says_that_slices_are_inert() {
    let _alone = alone();
    let done = gpuslice(&["doctor", "--shares", "--sim", "1xH200-no-slices"]).ended(1);
    let line = done
        .out
        .lines()
        .find(|line| line.contains("compute shares"));
    let line = line.unwrap_or_else(|| panic!("{}", done.out));
    assert!(
        line.starts_with("weak ")
            && line.contains("slices are inert on this card (")
            && line.contains("weights cannot be enforced by slices here"),
        "{line}"
    );
}

/// The kernels tell it where no sensor does.
#[test]
fn doctor_tells_slices_without_a_sensor() {
    let _alone = alone();
    let spec = "1xH200-no-timeline-no-residency";
    let tried = tried(&gpuslice(&["doctor", "--shares", "--json", "--sim", spec]).ended(0));
    assert_eq!(
        (&tried["verdict"], &tried["by_sensor"]),
        (&"hold".into(), &Value::Null)
    );
}

#[test]
fn doctor_does_not_try_shares_beside_another_slice_nor_unasked() {
    let _alone = alone();
    let node = Node::start("1xH200");
    let unasked = gpuslice(&["doctor", "--json", "--sim", &node.socket])
        .ended(0)
        .json();
    assert_eq!(unasked["shares"], Value::Null);
    let checks = unasked["checks"].as_array().unwrap();
    let check = checks
        .iter()
        .find(|c| c["name"] == "compute shares")
        .unwrap();
    assert!(
        check["found"]
            .as_str()
            .unwrap()
            .contains("gpuslice doctor --shares")
    );
    let _slice = node.slice(&["--memory", "10GiB", "--name", "ten"]);
    let tried = tried(&gpuslice(&["doctor", "--shares", "--json", "--sim", &node.socket]).ended(1));
    assert_eq!(tried["verdict"], "unknown");
    assert!(
        tried["found"].as_str().unwrap().contains("\"ten\""),
        "{tried}"
    );
}
