//! How a row of a table is written: the macros, and the words they use.
//!
//! ```text
//! escapes    number "name" [sizes] decision account [foreign] [status, by size] descriptor "why";
//! uvm_calls  request "name" size status decision account [foreign] "why";
//! classes    number "name" size kind decision account [foreign] "why";
//! controls   command "name" size decision why { account, foreign, pointers, fd, answer: where not the usual };
//! ```
//!
//! Status and descriptor are byte offsets, `-` where there is none.

use crate::table::{
    Account, Answer, Charge, Control, Count, Decision, Foreign, Names, Pointer, Status,
};

pub(crate) const EXECUTE: Decision = Decision::Execute;
pub(crate) const IN_TENANT: Decision = Decision::InTenant;
pub(crate) const PASS: Decision = Decision::Pass;
pub(crate) const ABSORB: Decision = Decision::Absorb;
/// Refused as if the driver did not know it: programs take that for an older driver and go on.
pub(crate) const UNSUPPORTED: Decision = Decision::Refuse(Status::NOT_SUPPORTED);
/// Refused as the driver refuses an unprivileged caller.
pub(crate) const DENIED: Decision = Decision::Refuse(Status::INSUFFICIENT_PERMISSIONS);

pub(crate) const FREE: Account = Account::Free;
pub(crate) const SHARES: Account = Account::Shares;
pub(crate) const RELEASES: Account = Account::Releases;
pub(crate) const BY_BLOCK: Account = Account::Charges(Charge::MemoryAllocation);
pub(crate) const VID_HEAP: Account = Account::Charges(Charge::VidHeap);
pub(crate) const MEASURED: Account = Account::Charges(Charge::Measured);

/// Why the most common sort of control is executed.
pub(crate) const READS: &str = "reads properties of the device or the driver; changes nothing";

/// One client handle at `offset`.
pub(crate) const fn client(offset: u16) -> Foreign {
    Foreign {
        offset,
        names: Names::Client,
    }
}

/// At most `max` client handles at `offset`, how many at `count`.
pub(crate) const fn clients(offset: u16, count: u16, max: u16) -> Foreign {
    Foreign {
        offset,
        names: Names::ClientArray { count, max },
    }
}

/// One process id at `offset`.
pub(crate) const fn process(offset: u16) -> Foreign {
    Foreign {
        offset,
        names: Names::Process,
    }
}

/// A pointer at `offset` to as many elements as the `u32` at `count` says, together at most `max` bytes.
pub(crate) const fn list(count: u16, offset: u16, element: u16, max: u32) -> Pointer {
    Pointer {
        offset,
        count: Count::Field(count),
        element,
        max,
    }
}

/// A pointer at `offset` to a square of elements, its side at `count`, together at most `max` bytes.
pub(crate) const fn square(count: u16, offset: u16, element: u16, max: u32) -> Pointer {
    Pointer {
        offset,
        count: Count::Square(count),
        element,
        max,
    }
}

/// A pointer at `offset` that the driver is never shown: it gets null.
pub(crate) const fn null(offset: u16) -> Pointer {
    Pointer {
        offset,
        count: Count::Fixed(0),
        element: 1,
        max: 0,
    }
}

/// A control with nothing special about it.
pub(crate) const fn control(
    cmd: u32,
    name: &'static str,
    size: u32,
    decision: Decision,
    why: &'static str,
) -> Control {
    Control {
        cmd,
        name,
        size,
        decision,
        account: FREE,
        foreign: &[],
        pointers: &[],
        fd: None,
        answer: Answer::AsIs,
        why,
    }
}

macro_rules! constants {
    ($type:ty, $what:literal; $($name:ident = $value:literal;)*) => {
        $(
            #[doc = concat!($what, " `", stringify!($name), "` (", stringify!($value), ").")]
            pub const $name: $type = $value;
        )*
    };
}

macro_rules! escapes {
    ($vis:vis $table:ident; $(
        $nr:literal $name:literal [$($size:literal),*] $decision:ident $account:ident [$($foreign:expr),*]
            [$($status:tt),*] $fd:tt $why:literal;
    )*) => {
        $vis const $table: &[$crate::Escape] = &[$($crate::Escape {
            nr: $nr,
            name: $name,
            sizes: &[$($size),*],
            decision: $decision,
            account: $account,
            foreign: &[$($foreign),*],
            status: &[$(at!($status)),*],
            fd: at!($fd),
            why: $why,
        }),*];
    };
}

macro_rules! uvm_calls {
    ($vis:vis $table:ident; $(
        $request:literal $name:literal $size:literal $status:tt $decision:ident $account:ident
            [$($foreign:expr),*] $why:literal;
    )*) => {
        $vis const $table: &[$crate::UvmCall] = &[$($crate::UvmCall {
            request: $request,
            name: $name,
            size: $size,
            status: at!($status),
            decision: $decision,
            account: $account,
            foreign: &[$($foreign),*],
            why: $why,
        }),*];
    };
}

macro_rules! classes {
    ($vis:vis $table:ident; $(
        $id:literal $name:literal $size:literal $kind:ident $decision:ident $account:ident
            [$($foreign:expr),*] $why:literal;
    )*) => {
        $vis const $table: &[$crate::Class] = &[$($crate::Class {
            id: $id,
            name: $name,
            size: $size,
            kind: $crate::Kind::$kind,
            decision: $decision,
            account: $account,
            foreign: &[$($foreign),*],
            why: $why,
        }),*];
    };
}

macro_rules! controls {
    ($vis:vis $table:ident; $(
        $cmd:literal $name:literal $size:literal $decision:ident $why:tt $({ $($field:ident: $value:expr),* })?;
    )*) => {
        $vis const $table: &[$crate::Control] = &[$($crate::Control {
            $($($field: $value,)*)?
            ..$crate::row::control($cmd, $name, $size, $decision, $why)
        }),*];
    };
}

/// `-` for nothing there, else a byte offset.
macro_rules! at {
    (-) => {
        None
    };
    ($offset:literal) => {
        Some($offset)
    };
}
