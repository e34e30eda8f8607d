//! `CUDA_VISIBLE_DEVICES`: which GPUs a program sees, and in which order.

/// The GPUs that the variable's `value` leaves visible, as indices into `uuids` (all GPUs, in the node's order).
///
/// The driver's rules: without the variable all are visible; entries are read from the left, each an index or a GPU's
/// UUID (`GPU-` and as many of its digits as make it unique); the first entry that names no GPU ends the list; a GPU
/// named twice makes the whole list invalid, and so leaves none.
pub fn visible(value: Option<&str>, uuids: &[[u8; 16]]) -> Vec<usize> {
    let Some(value) = value else {
        return (0..uuids.len()).collect();
    };
    let mut list = Vec::new();
    for entry in value.split(',') {
        let Some(index) = index_of(entry.trim(), uuids) else {
            break;
        };
        if list.contains(&index) {
            return Vec::new();
        }
        list.push(index);
    }
    list
}

fn index_of(entry: &str, uuids: &[[u8; 16]]) -> Option<usize> {
    if let Some(prefix) = entry.strip_prefix("GPU-") {
        let prefix = prefix.to_ascii_lowercase();
        let named = |index: &usize| {
            !prefix.is_empty() && uuid_text(&uuids[*index])[4..].starts_with(&prefix)
        };
        let mut matching = (0..uuids.len()).filter(named);
        let index = matching.next()?;
        return matching.next().is_none().then_some(index);
    }
    // As the C library reads a number: digits from the start, whatever follows is ignored; "+1" and "-1" are numbers.
    let unsigned = entry.strip_prefix('+').unwrap_or(entry);
    let digits = unsigned.len()
        - unsigned
            .trim_start_matches(|c: char| c.is_ascii_digit())
            .len();
    unsigned[..digits]
        .parse()
        .ok()
        .filter(|index| *index < uuids.len())
}

/// A UUID as tools print it: `GPU-` and 36 characters.
pub fn uuid_text(uuid: &[u8; 16]) -> String {
    let mut text = String::from("GPU-");
    for (at, byte) in uuid.iter().enumerate() {
        if [4, 6, 8, 10].contains(&at) {
            text.push('-');
        }
        text.push(char::from_digit(u32::from(byte >> 4), 16).unwrap_or('0'));
        text.push(char::from_digit(u32::from(byte & 15), 16).unwrap_or('0'));
    }
    text
}
