//! `libcuda.so.1` and `libnvidia-ml.so.1` of the simulated GPU, in one library.
//!
//! A program that speaks the CUDA driver API or NVML finds this library by its name and never learns that there is no
//! card: the library opens the device files of a simulated node (crate `simgpu`, found by the environment variable
//! `GPUSLICE_SIM`) and makes the ioctls that the real one makes on a real card (recorded on an H200, driver 580.159),
//! so that a guard between the two meets what it would meet there.
//!
//! Read [`exports`] for what exists, [`api`] for what a function does with its arguments, [`driver`] for the state
//! behind them, and [`node`] and [`hardware`] for the ioctls of `cuInit` and of a context.

mod api;
mod block;
mod driver;
mod exports;
mod ffi;
mod gateway;
mod graph;
mod hardware;
mod heap;
mod memory;
mod module;
mod node;
mod nvml;
mod pool;
mod ptx;
mod registry;
mod resource_manager;
mod stream;
mod va;
mod virtual_memory;
mod visible;
