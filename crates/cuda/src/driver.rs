//! The CUDA driver API: its functions, their versions, the exported symbols.
//!
//! A program asks for a *function* (`cuMemAlloc`) and the CUDA version it was written for (12000); the driver answers
//! with a *symbol* (`cuMemAlloc_v2`). Functions that take a stream, or work on the default stream, have a second form
//! whose default stream is per thread (`_ptsz`, `_ptds`).

#[path = "generated/driver.rs"]
mod table;

/// The version of the API that the table describes: `1000 * major + 10 * minor`.
pub const VERSION: u32 = 13000;

/// One function of the API.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Function {
    /// Its name in the programming interface, without a version.
    pub name: &'static str,
    /// Its symbols by the version each came with, oldest first.
    pub ladder: &'static [Version],
    /// The same for the form whose default stream is per thread; empty if there is none.
    pub per_thread: &'static [Version],
}

/// One step of a function's ladder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Version {
    /// The CUDA version it came with: `1000 * major + 10 * minor`.
    pub since: u32,
    /// The exported symbol.
    pub symbol: &'static str,
}

macro_rules! names {
    ($($symbol:ident)*) => {
        &[$(stringify!($symbol)),*]
    };
}

/// Every function of the API, sorted by name.
pub static FUNCTIONS: &[Function] = table::FUNCTIONS;

/// Every symbol that `libcuda.so.1` exports, sorted.
pub static SYMBOLS: &[&str] = crate::for_each_driver_symbol!(names);

/// Which default stream a look-up asks for (`CUdriverProcAddress_flags`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flags(pub u64);

impl Flags {
    /// The default: the form whose default stream is the legacy one.
    pub const DEFAULT: Flags = Flags(0);
    /// The legacy form, said explicitly.
    pub const LEGACY_STREAM: Flags = Flags(1);
    /// The per-thread form where there is one, else the legacy form.
    pub const PER_THREAD_DEFAULT_STREAM: Flags = Flags(2);
}

/// Why a look-up found nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Absent {
    /// The API has no function of this name.
    Unknown,
    /// The function came with a later version than the one asked for.
    TooOld,
}

/// The symbol that `name` means for a program written for `version`: the newest that is not newer.
///
/// # Errors
/// [`Absent`] says whether the name or the version was at fault.
pub fn find(name: &str, version: u32, flags: Flags) -> Result<&'static str, Absent> {
    let at = FUNCTIONS
        .binary_search_by_key(&name, |function| function.name)
        .map_err(|_| Absent::Unknown)?;
    let function = &FUNCTIONS[at];
    let newest =
        |ladder: &'static [Version]| ladder.iter().rev().find(|step| step.since <= version);
    let per_thread = (flags.0 & Flags::PER_THREAD_DEFAULT_STREAM.0 != 0)
        .then(|| newest(function.per_thread))
        .flatten();
    per_thread
        .or_else(|| newest(function.ladder))
        .map(|step| step.symbol)
        .ok_or(Absent::TooOld)
}

/// [`find`] for callers who need no reason.
pub fn resolve(name: &str, version: u32, flags: Flags) -> Option<&'static str> {
    find(name, version, flags).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn legacy(name: &str, version: u32) -> Option<&'static str> {
        resolve(name, version, Flags::DEFAULT)
    }

    #[test]
    fn functions_and_symbols_are_sorted_and_unique() {
        assert!(FUNCTIONS.windows(2).all(|pair| pair[0].name < pair[1].name));
        assert!(SYMBOLS.windows(2).all(|pair| pair[0] < pair[1]));
    }

    #[test]
    fn ladders_rise_and_name_exported_symbols() {
        let mut named = 0;
        for function in FUNCTIONS {
            assert!(!function.ladder.is_empty(), "{}", function.name);
            for ladder in [function.ladder, function.per_thread] {
                assert!(
                    ladder.windows(2).all(|pair| pair[0].since < pair[1].since),
                    "{}",
                    function.name
                );
                for step in ladder {
                    assert!(
                        SYMBOLS.binary_search(&step.symbol).is_ok(),
                        "{}",
                        step.symbol
                    );
                    assert!(step.since <= VERSION, "{}", step.symbol);
                    assert!(step.symbol.starts_with(function.name), "{}", step.symbol);
                    named += 1;
                }
            }
        }
        assert_eq!(
            named,
            SYMBOLS.len(),
            "every symbol stands on exactly one ladder"
        );
    }

    #[test]
    fn each_step_answers_from_its_version_to_the_next() {
        for function in FUNCTIONS {
            for (ladder, flags) in [
                (function.ladder, Flags::LEGACY_STREAM),
                (function.per_thread, Flags::PER_THREAD_DEFAULT_STREAM),
            ] {
                for (at, step) in ladder.iter().enumerate() {
                    assert_eq!(resolve(function.name, step.since, flags), Some(step.symbol));
                    let last = ladder.get(at + 1).map_or(VERSION, |next| next.since - 1);
                    assert_eq!(resolve(function.name, last, flags), Some(step.symbol));
                }
            }
            let first = function.ladder[0].since;
            assert_eq!(
                find(function.name, first - 1, Flags::DEFAULT),
                Err(Absent::TooOld)
            );
        }
    }

    #[test]
    fn known_boundaries() {
        assert_eq!(legacy("cuMemAlloc", 3010), Some("cuMemAlloc"));
        assert_eq!(legacy("cuMemAlloc", 3020), Some("cuMemAlloc_v2"));
        assert_eq!(legacy("cuMemAlloc", VERSION), Some("cuMemAlloc_v2"));
        assert_eq!(legacy("cuCtxCreate", 2000), Some("cuCtxCreate"));
        assert_eq!(legacy("cuCtxCreate", 11030), Some("cuCtxCreate_v2"));
        assert_eq!(legacy("cuCtxCreate", 11040), Some("cuCtxCreate_v3"));
        assert_eq!(legacy("cuCtxCreate", 12040), Some("cuCtxCreate_v3"));
        assert_eq!(legacy("cuCtxCreate", 13000), Some("cuCtxCreate_v4"));
        assert_eq!(legacy("cuGetProcAddress", 11080), Some("cuGetProcAddress"));
        assert_eq!(
            legacy("cuGetProcAddress", 12000),
            Some("cuGetProcAddress_v2")
        );
        assert_eq!(legacy("cuCtxSynchronize", 12090), Some("cuCtxSynchronize"));
        assert_eq!(
            legacy("cuCtxSynchronize", 13000),
            Some("cuCtxSynchronize_v2")
        );
    }

    #[test]
    fn per_thread_form_is_taken_where_there_is_one() {
        let per_thread = |name, version| resolve(name, version, Flags::PER_THREAD_DEFAULT_STREAM);
        assert_eq!(
            per_thread("cuMemcpyHtoD", 12000),
            Some("cuMemcpyHtoD_v2_ptds")
        );
        assert_eq!(
            per_thread("cuLaunchKernel", 12000),
            Some("cuLaunchKernel_ptsz")
        );
        assert_eq!(per_thread("cuLaunchKernel", 6050), Some("cuLaunchKernel"));
        assert_eq!(per_thread("cuInit", 12000), Some("cuInit"));
    }

    #[test]
    fn names_with_a_version_and_unknown_names_are_no_functions() {
        assert_eq!(
            find("cuMemAlloc_v2", VERSION, Flags::DEFAULT),
            Err(Absent::Unknown)
        );
        assert_eq!(find("", VERSION, Flags::DEFAULT), Err(Absent::Unknown));
        assert_eq!(
            find("cuNoSuchThing", VERSION, Flags::DEFAULT),
            Err(Absent::Unknown)
        );
    }
}
