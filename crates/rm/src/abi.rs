//! The kernel interface of a driver: which entries it has, found by its version.
//!
//! A branch is data (`branches.rs`): its parent, and what differs from it. [`for_driver`] finds the branch of a version
//! string; an [`Abi`] is a branch with everything it inherits, flattened and sorted for look-ups.

use std::fmt;
use std::sync::LazyLock;

use crate::branches::{BRANCHES, Branch, Delta};
use crate::table::{Class, Control, Escape, UvmCall};
use crate::varying::Layout;

/// [`BRANCHES`], flattened, in the same order.
static ABIS: LazyLock<Vec<Abi>> =
    LazyLock::new(|| BRANCHES.iter().map(|branch| Abi::of(branch)).collect());

/// An entry that a table can be sorted by and a branch can resize.
pub(crate) trait Entry: Copy {
    /// What a branch says of a block that has another size there.
    type Size: Copy;
    fn key(&self) -> u32;
    fn resize(&mut self, size: Self::Size);
}

impl Entry for Escape {
    /// Sizes, and where the status stands in each.
    type Size = (&'static [u16], &'static [Option<u16>]);
    fn key(&self) -> u32 {
        self.nr.into()
    }
    fn resize(&mut self, (sizes, status): Self::Size) {
        self.sizes = sizes;
        self.status = status;
    }
}

impl Entry for UvmCall {
    /// Size, and where the status stands.
    type Size = (u16, u16);
    fn key(&self) -> u32 {
        self.request
    }
    fn resize(&mut self, (size, status): Self::Size) {
        self.size = size;
        self.status = Some(status);
    }
}

impl Entry for Class {
    type Size = u16;
    fn key(&self) -> u32 {
        self.id
    }
    fn resize(&mut self, size: u16) {
        self.size = size;
    }
}

impl Entry for Control {
    type Size = u32;
    fn key(&self) -> u32 {
        self.cmd
    }
    fn resize(&mut self, size: u32) {
        self.size = size;
    }
}

/// One table of a branch: the parent's, then what the branch changes.
fn flatten<T: Entry>(branch: &Branch, pick: fn(&Branch) -> &Delta<T>) -> Vec<T> {
    let delta = pick(branch);
    let own = || delta.set.iter().copied().flatten();
    let mut table = branch
        .parent
        .map_or_else(Vec::new, |parent| flatten(parent, pick));
    table.retain(|entry| {
        !delta.removed.contains(&entry.key()) && own().all(|new| new.key() != entry.key())
    });
    table.extend(own());
    for (key, size) in delta.sizes {
        for entry in table.iter_mut().filter(|entry| entry.key() == *key) {
            entry.resize(*size);
        }
    }
    table.sort_by_key(T::key);
    table
}

fn find<T: Entry>(table: &[T], key: u32) -> Option<&T> {
    table
        .binary_search_by_key(&key, T::key)
        .ok()
        .map(|at| &table[at])
}

/// The kernel interface of one driver branch.
pub struct Abi {
    name: &'static str,
    layout: &'static Layout,
    escapes: Vec<Escape>,
    uvm_calls: Vec<UvmCall>,
    classes: Vec<Class>,
    controls: Vec<Control>,
}

impl Abi {
    fn of(branch: &Branch) -> Abi {
        Abi {
            name: branch.name,
            layout: branch.layout,
            escapes: flatten(branch, |branch| &branch.escapes),
            uvm_calls: flatten(branch, |branch| &branch.uvm_calls),
            classes: flatten(branch, |branch| &branch.classes),
            controls: flatten(branch, |branch| &branch.controls),
        }
    }

    /// The branch: the leading number of its releases, as in `580`.
    pub fn branch(&self) -> &'static str {
        self.name
    }

    /// Offsets that are not the same on every branch.
    pub fn layout(&self) -> &'static Layout {
        self.layout
    }

    /// The frontend ioctl with this number (low 8 bits of the request).
    pub fn escape(&self, nr: u8) -> Option<&Escape> {
        find(&self.escapes, nr.into())
    }

    /// The UVM call with this request: the whole low 32-bit word.
    pub fn uvm(&self, request: u32) -> Option<&UvmCall> {
        find(&self.uvm_calls, request)
    }

    /// The class with this number.
    pub fn class(&self, id: u32) -> Option<&Class> {
        find(&self.classes, id)
    }

    /// The control with this command word.
    pub fn control(&self, cmd: u32) -> Option<&Control> {
        find(&self.controls, cmd)
    }

    /// Every frontend ioctl, by number.
    pub fn escapes(&self) -> impl ExactSizeIterator<Item = &Escape> {
        self.escapes.iter()
    }

    /// Every UVM call, by request.
    pub fn uvm_calls(&self) -> impl ExactSizeIterator<Item = &UvmCall> {
        self.uvm_calls.iter()
    }

    /// Every class, by number.
    pub fn classes(&self) -> impl ExactSizeIterator<Item = &Class> {
        self.classes.iter()
    }

    /// Every control, by command word.
    pub fn controls(&self) -> impl ExactSizeIterator<Item = &Control> {
        self.controls.iter()
    }
}

impl fmt::Debug for Abi {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Abi({})", self.name)
    }
}

/// What [`for_driver`] found.
#[derive(Clone, Copy, Debug)]
pub struct Found {
    /// The interface of the branch.
    pub abi: &'static Abi,
    /// Whether this very release is listed; `false`: a patch release of a known branch that nobody has checked.
    pub listed: bool,
}

/// A driver that has no tables: of no known branch, or a release that is not like its branch.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct UnknownBranch {
    /// The version that was asked for.
    pub asked: String,
    /// The branches that are known.
    pub known: Vec<&'static str>,
    /// The branch it belongs to, whose parameter blocks are not those of this release.
    pub unlike: Option<&'static str>,
}

impl fmt::Display for UnknownBranch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let asked = self.asked.escape_default();
        if let Some(branch) = self.unlike {
            return write!(
                f,
                "driver version \"{asked}\" has other parameter blocks than the rest of branch {branch}; install \
                 another release of the branch"
            );
        }
        write!(
            f,
            "driver version \"{asked}\" is of no known branch (known: {}); install a driver of a known branch, or a \
             gpuslice that knows this one",
            self.known.join(", "),
        )
    }
}

impl std::error::Error for UnknownBranch {}

/// The branches that are known, the oldest first.
pub fn branches() -> impl ExactSizeIterator<Item = &'static Abi> {
    ABIS.iter()
}

/// The interface of the driver with this version, as in `580.159.04`.
///
/// # Errors
///
/// [`UnknownBranch`] if the version is not digits between dots, if its first number is no known branch, or if it is one
/// of the few releases whose public headers give other numbers than those of their branch.
pub fn for_driver(version: &str) -> Result<Found, UnknownBranch> {
    let numbers: Vec<&str> = version.split('.').collect();
    let well_formed = matches!(numbers.len(), 2 | 3)
        && numbers
            .iter()
            .all(|number| !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit()));
    let at = BRANCHES
        .iter()
        .position(|branch| well_formed && branch.name == numbers[0]);
    let refused = |unlike| UnknownBranch {
        asked: version.to_owned(),
        known: BRANCHES.iter().map(|branch| branch.name).collect(),
        unlike,
    };
    let at = at.ok_or_else(|| refused(None))?;
    let branch = BRANCHES[at];
    if branch.unlike.contains(&version) {
        return Err(refused(Some(branch.name)));
    }
    Ok(Found {
        abi: &ABIS[at],
        listed: branch.releases.contains(&version),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::row::{EXECUTE, FREE, UNSUPPORTED};
    use crate::table::Decision;

    fn r580() -> &'static Branch {
        let branch = BRANCHES.iter().find(|branch| branch.name == "580");
        branch.expect("branch 580")
    }

    /// A branch that differs from 580 in some sizes, two removed entries and one changed decision.
    static CHILD: LazyLock<Branch> = LazyLock::new(|| Branch {
        name: "999",
        facts: "",
        parent: Some(r580()),
        releases: &[],
        unlike: &[],
        layout: r580().layout,
        escapes: Delta {
            set: &[],
            sizes: &[(0x57, (&[56], &[Some(48)]))],
            removed: &[],
        },
        uvm_calls: Delta {
            set: &[],
            sizes: &[(34, (16, 8))],
            removed: &[80],
        },
        classes: Delta {
            set: &[CHILD_CLASSES],
            sizes: &[],
            removed: &[],
        },
        controls: Delta {
            set: &[],
            sizes: &[(0x2080_1303, 460)],
            removed: &[0x2080_2096],
        },
    });

    classes! {
        CHILD_CLASSES;
        0x0042 "NV_MEMORY_EXTENDED_USER" 120 Memory UNSUPPORTED FREE []
            "changed for the test";
        0xffff "NEW" 4 Other EXECUTE FREE []
            "added for the test";
    }

    #[test]
    fn a_branch_is_its_parent_and_its_differences() {
        let (parent, child) = (Abi::of(r580()), Abi::of(&CHILD));
        assert_eq!(parent.escape(0x57).unwrap().sizes, [64]);
        assert_eq!(child.escape(0x57).unwrap().sizes, [56]);
        assert_eq!(child.escape(0x57).unwrap().status, [Some(48)]);
        assert_eq!(parent.uvm(34).unwrap().size, 24);
        assert_eq!(child.uvm(34).unwrap().size, 16);
        assert_eq!(child.uvm(34).unwrap().status, Some(8));
        assert!(parent.uvm(80).is_some() && child.uvm(80).is_none());
        assert_eq!(parent.control(0x2080_1303).unwrap().size, 1028);
        assert_eq!(child.control(0x2080_1303).unwrap().size, 460);
        assert_eq!(
            child.control(0x2080_1303).unwrap().answer,
            crate::Answer::FbInfoInline
        );
        assert!(parent.control(0x2080_2096).is_some() && child.control(0x2080_2096).is_none());
        assert_eq!(parent.class(0x42).unwrap().decision, Decision::Execute);
        assert_eq!(child.class(0x42).unwrap().decision, UNSUPPORTED);
        assert!(parent.class(0xffff).is_none() && child.class(0xffff).is_some());
        assert_eq!(child.classes().len(), parent.classes().len() + 1);
        assert_eq!(child.controls().len(), parent.controls().len() - 1);
        assert!(child.classes().is_sorted_by(|a, b| a.id < b.id));
    }

    #[test]
    fn every_difference_is_of_an_entry_of_the_parent() {
        fn check<T: Entry>(branch: &Branch, pick: fn(&Branch) -> &Delta<T>) {
            let inherited = branch
                .parent
                .map_or_else(Vec::new, |parent| flatten(parent, pick));
            let delta = pick(branch);
            for key in delta.sizes.iter().map(|(key, _)| key).chain(delta.removed) {
                assert!(
                    find(&inherited, *key).is_some(),
                    "{} changes {key:#x}, which is not there",
                    branch.name
                );
            }
        }
        for branch in BRANCHES.iter().copied().chain([&*CHILD]) {
            check(branch, |branch| &branch.escapes);
            check(branch, |branch| &branch.uvm_calls);
            check(branch, |branch| &branch.classes);
            check(branch, |branch| &branch.controls);
        }
    }
}
