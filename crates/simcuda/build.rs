//! Gives the library the name that programs look for, and keeps it loaded.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libcuda.so.1");
    // Its threads outlive a dlclose, as those of the real library do.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
}
