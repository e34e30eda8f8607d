//! The planner against a model of the device: honest tenants get their share, and no strategy gains.

mod booking;
mod cheats;
mod honest;
mod latency;
mod rules;
mod runlist;
mod told;
