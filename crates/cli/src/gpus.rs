//! Which cards a slice is on: `--gpu` and `CUDA_VISIBLE_DEVICES`.

use guard::rmcall::Gpu;

/// The cards that were asked for, in the driver's order, each once.
///
/// # Errors
/// One line: what was asked, what the node has.
pub fn choose<'a>(
    asked: &[String],
    visible: Option<&str>,
    gpus: &'a [Gpu],
) -> Result<Vec<&'a Gpu>, String> {
    if gpus.is_empty() {
        return Err("the driver shows no GPU on this node; see `gpuslice doctor`".into());
    }
    let mut chosen: Vec<&Gpu> = Vec::new();
    if asked.is_empty() {
        chosen = match visible {
            Some(list) => visible_devices(list, gpus),
            None => gpus.iter().collect(),
        };
        if chosen.is_empty() {
            return Err(format!(
                "CUDA_VISIBLE_DEVICES={} names no GPU of this node ({}); unset it or use --gpu",
                visible.unwrap_or(""),
                list(gpus)
            ));
        }
    }
    for name in asked.iter().flat_map(|a| a.split(',')).map(str::trim) {
        let gpu = find(name, gpus)?;
        if chosen.iter().any(|g| g.uuid == gpu.uuid) {
            return Err(format!(
                "--gpu {name} names {} a second time; name each GPU once",
                gpu.uuid
            ));
        }
        chosen.push(gpu);
    }
    chosen.sort_by_key(|g| g.index);
    Ok(chosen)
}

fn list(gpus: &[Gpu]) -> String {
    gpus.iter()
        .map(|g| format!("{}: {}", g.index, g.uuid))
        .collect::<Vec<_>>()
        .join(", ")
}

fn find<'a>(name: &str, gpus: &'a [Gpu]) -> Result<&'a Gpu, String> {
    let found: Vec<&Gpu> = match name.parse::<u32>() {
        Ok(index) => gpus.iter().filter(|g| g.index == index).collect(),
        Err(_) => gpus.iter().filter(|g| is_prefix(name, &g.uuid)).collect(),
    };
    match found[..] {
        [gpu] => Ok(gpu),
        [] => Err(format!(
            "--gpu {name}: no such GPU; this node has {}",
            list(gpus)
        )),
        _ => Err(format!(
            "--gpu {name} fits more than one GPU ({}); give more of the UUID",
            list(gpus)
        )),
    }
}

/// A UUID may be shortened as long as it names one card.
fn is_prefix(name: &str, uuid: &str) -> bool {
    name.len() > "GPU-".len()
        && uuid
            .to_ascii_lowercase()
            .starts_with(&name.to_ascii_lowercase())
}

/// As the CUDA driver reads the variable: indices or (shortened) UUIDs; it stops at the first word that names no card,
/// and a card named twice makes the whole list void. A program would read the list so, whatever `--gpu` accepts.
pub fn visible_devices<'a>(list: &str, gpus: &'a [Gpu]) -> Vec<&'a Gpu> {
    let mut chosen: Vec<&Gpu> = Vec::new();
    for word in list.split(',').map(str::trim) {
        let Some(gpu) = visible_device(word, gpus) else {
            break;
        };
        if chosen.iter().any(|g| g.uuid == gpu.uuid) {
            return Vec::new();
        }
        chosen.push(gpu);
    }
    chosen
}

/// One word of the variable. A number is read as the C library reads it: digits from the start, whatever follows.
fn visible_device<'a>(word: &str, gpus: &'a [Gpu]) -> Option<&'a Gpu> {
    if word.starts_with("GPU-") {
        return find(word, gpus).ok();
    }
    let number = word.strip_prefix('+').unwrap_or(word);
    let end = number
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(number.len());
    let index: u32 = number[..end].parse().ok()?;
    gpus.iter().find(|g| g.index == index)
}

#[cfg(test)]
mod tests {
    use super::*;
    use policy::units::Bytes;

    fn node() -> Vec<Gpu> {
        [
            "GPU-aaaa0000-0000-0000-0000-000000000001",
            "GPU-aaab0000-0000-0000-0000-000000000002",
        ]
        .iter()
        .enumerate()
        .map(|(i, uuid)| Gpu {
            index: i as u32,
            uuid: (*uuid).into(),
            uuid_bytes: [i as u8; 16],
            name: "NVIDIA H200".into(),
            gpu_id: 6 + i as u32,
            instance: i as u32,
            minor: i as u32,
            memory: Bytes::from_gib(140),
        })
        .collect()
    }

    fn indices(asked: &[&str], visible: Option<&str>) -> Result<Vec<u32>, String> {
        let asked: Vec<String> = asked.iter().map(|s| (*s).into()).collect();
        let node = node();
        choose(&asked, visible, &node).map(|g| g.iter().map(|g| g.index).collect())
    }

    #[test]
    fn a_gpu_is_named_by_index_uuid_or_unique_prefix() {
        assert_eq!(indices(&["1"], None), Ok(vec![1]));
        assert_eq!(indices(&["1", "0"], None), Ok(vec![0, 1]));
        assert_eq!(indices(&["0,1"], None), Ok(vec![0, 1]));
        assert_eq!(
            indices(&["GPU-aaab0000-0000-0000-0000-000000000002"], None),
            Ok(vec![1])
        );
        assert_eq!(indices(&["gpu-AAAB"], None), Ok(vec![1]));
        assert_eq!(indices(&[], None), Ok(vec![0, 1]));
    }

    #[test]
    fn what_names_no_card_or_two_is_one_line() {
        assert!(
            indices(&["2"], None)
                .unwrap_err()
                .contains("no such GPU; this node has 0: GPU-aaaa")
        );
        assert!(
            indices(&["GPU-aaa"], None)
                .unwrap_err()
                .contains("more than one")
        );
        assert!(
            indices(&["0", "GPU-aaaa"], None)
                .unwrap_err()
                .contains("second time")
        );
        assert!(indices(&["GPU-"], None).is_err());
    }

    #[test]
    fn cuda_visible_devices_is_read_as_the_driver_reads_it() {
        assert_eq!(indices(&[], Some("1")), Ok(vec![1]));
        assert_eq!(indices(&[], Some("1,0")), Ok(vec![0, 1]));
        assert_eq!(
            indices(&[], Some("0,7,1")),
            Ok(vec![0]),
            "it stops at the first invalid word"
        );
        assert_eq!(indices(&[], Some(" GPU-aaab , 0")), Ok(vec![0, 1]));
        assert!(
            indices(&[], Some("0,0")).is_err(),
            "a card named twice voids the list"
        );
        assert!(indices(&[], Some("")).is_err());
        assert!(indices(&[], Some("-1")).is_err());
        assert!(indices(&[], Some("MIG-aaab")).is_err());
        assert!(
            indices(&[], Some("gpu-aaab")).is_err(),
            "the driver takes capitals only"
        );
        assert_eq!(indices(&[], Some("1x,0")), Ok(vec![0, 1]));
        assert_eq!(indices(&[], Some("0x1")), Ok(vec![0]));
        assert_eq!(indices(&["1"], Some("0")), Ok(vec![1]), "--gpu comes first");
    }
}
