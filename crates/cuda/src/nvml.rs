//! NVML: the names its library exports.

#[path = "generated/nvml.rs"]
mod table;

macro_rules! names {
    ($($symbol:ident)*) => {
        &[$(stringify!($symbol)),*]
    };
}

/// Every symbol that `libnvidia-ml.so.1` exports, sorted.
pub static SYMBOLS: &[&str] = crate::for_each_nvml_symbol!(names);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn symbols_are_sorted_and_unique() {
        assert!(SYMBOLS.windows(2).all(|pair| pair[0] < pair[1]));
        assert!(SYMBOLS.iter().all(|name| name.starts_with("nvml")));
    }

    #[test]
    fn both_old_and_new_forms_of_a_function_are_exported() {
        for name in [
            "nvmlInit",
            "nvmlInit_v2",
            "nvmlInitWithFlags",
            "nvmlShutdown",
            "nvmlErrorString",
        ] {
            assert!(SYMBOLS.binary_search(&name).is_ok(), "{name}");
        }
        for name in [
            "nvmlDeviceGetMemoryInfo",
            "nvmlDeviceGetMemoryInfo_v2",
            "nvmlDeviceGetComputeRunningProcesses_v3",
        ] {
            assert!(SYMBOLS.binary_search(&name).is_ok(), "{name}");
        }
    }
}
