//! Words of the context-switch timeline, the same in the headers of every branch known.
//!
//! An event buffer (class `0x90cd`) is a ring of records in memory that its reader maps; its blocks are
//! [`layout::event_buffer_header`](crate::layout::event_buffer_header), [`layout::event_record`](crate::layout::event_record)
//! and, behind that, [`layout::fecs_record`](crate::layout::fecs_record).

/// Type of a record of the timeline as `0x20801238` binds it.
pub const RECORD_TYPE: u16 = 2;
/// Bytes of such a record, with what stands before its payload.
pub const RECORD_SIZE: usize = 32;
/// A context has been put on the engine.
pub const START: u8 = 6;
/// A context has been taken off the engine.
pub const END: u8 = 7;
/// Flag of `0x90cd0101`: a full buffer drops what is new, and counts it.
pub const KEEP_OLDEST: u32 = 1;
/// Flag of `0x90cd0101`: a full buffer overwrites what is old, and counts nothing: numbers of records tell.
pub const KEEP_NEWEST: u32 = 2;
/// Process and context of a record that is another user's and whose reader is no administrator.
pub const HIDDEN: u32 = 0;
/// Process and context of a record of the driver itself, or of a channel that was gone when the record was copied.
pub const UNKNOWN: u32 = u32::MAX;
