//! Everything a program can ask about memory.

use super::fill::human;
use super::{Context, Outcome, bytes, cuda};
use crate::GIB;
use crate::raw::{Client, Pages};

/// Indices of frame-buffer information that say how large the memory is: RAM, all RAM, heap, usable.
const TOTALS: [u32; 4] = [0x07, 0x08, 0x09, 0x20];
/// Indices that say how much is free: the largest block, all.
const FREES: [u32; 2] = [0x12, 0x16];

/// Asks every way there is; with 1 GiB allocated, every answer must be the slice's.
pub(super) fn visible_limit(context: &Context) -> Outcome {
    let client = Client::open(&context.node)?;
    let device = client.first_device()?;
    let memory = device.alloc(&client, GIB, Pages::Default)?;
    let mut totals: Vec<(String, u64)> = Vec::new();
    let mut frees: Vec<(String, u64)> = Vec::new();
    for (name, answers) in [
        (
            "FB_GET_INFO_V2",
            device.fb_info(&client, &[TOTALS.as_slice(), &FREES].concat())?,
        ),
        (
            "FB_GET_INFO",
            device.fb_info_v1(&client, &[TOTALS.as_slice(), &FREES].concat())?,
        ),
    ] {
        let (total, free) = answers.split_at(TOTALS.len());
        totals.extend(total.iter().map(|&b| (name.to_owned(), b)));
        frees.extend(free.iter().map(|&b| (name.to_owned(), b)));
    }
    let heap = device.heap_info(&client)?;
    totals.push(("RM_VID_HEAP_CONTROL".into(), heap.total));
    frees.extend([
        ("RM_VID_HEAP_CONTROL".into(), heap.free),
        ("its largest block".into(), heap.largest),
    ]);
    client.free(memory)?;

    let context_free = context.quota;
    let gpu = cuda::Cuda::open()?;
    totals.push(("cuDeviceTotalMem".into(), gpu.total()?));
    let (free, total) = gpu.info()?;
    totals.push(("cuMemGetInfo".into(), total));
    let held = gpu
        .alloc(GIB)
        .map_err(|code| format!("cuMemAlloc of 1 GiB failed with {code}"))?;
    frees.push(("cuMemGetInfo".into(), gpu.info()?.0));
    let [v1, v2] = cuda::nvml_memory()?;
    totals.extend([("NVML v1".into(), v1.0), ("NVML v2".into(), v2.0)]);
    frees.extend([("NVML v1".into(), v1.1), ("NVML v2".into(), v2.1)]);
    gpu.free(held)?;

    let wrong_total = totals.iter().find(|(_, b)| *b != context.quota);
    // A gigabyte is in use, and a context takes its own part of the slice.
    let wrong_free = frees.iter().find(|(_, b)| *b > context_free - GIB);
    let told = wrong_total
        .map_or(context.quota, |(_, b)| *b)
        .max(frees.iter().map(|(_, b)| b + GIB).max().unwrap_or(0));
    let note = match (wrong_total, wrong_free) {
        (Some((who, b)), _) => format!("{who} says {} in all", human(*b)),
        (None, Some((who, b))) => format!("{who} says {} free with 1 GiB in use", human(*b)),
        (None, None) => format!(
            "{} answers about the size and {} about what is free (RM, CUDA, NVML) are the slice's",
            totals.len(),
            frees.len()
        ),
    };
    let right = wrong_total.is_none() && wrong_free.is_none() && free < context.quota;
    Ok(bytes(told, context.quota, right, note))
}

/// Asks for the regions of the frame buffer: the slice has one, no larger than itself, and nothing of the others shows.
pub(super) fn regions(context: &Context) -> Outcome {
    let client = Client::open(&context.node)?;
    let device = client.first_device()?;
    let (count, told) = device.fb_regions(&client)?;
    let first = told.first().map_or(0, |&(base, limit)| limit - base + 1);
    let others = told.iter().skip(1).filter(|&&region| region != (0, 0));
    let others: Vec<_> = others.collect();
    let held = count == 1 && first <= context.quota && others.is_empty();
    let note = format!(
        "{count} regions, the first of {}; further: {others:?}",
        human(first)
    );
    Ok(bytes(first.max(context.quota), context.quota, held, note))
}
