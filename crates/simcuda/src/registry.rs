//! Handles: numbers that stand for objects of the library, so that a stale or made-up one is found out.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use cuda::status::CuResult;

/// The objects of one kind.
pub struct Registry<T> {
    inner: Mutex<Inner<T>>,
}

struct Inner<T> {
    next: usize,
    objects: HashMap<usize, Arc<T>>,
}

impl<T> Registry<T> {
    /// An empty registry whose handles start at `first`: different kinds get different ranges, so that a handle of
    /// the wrong kind is not mistaken for a right one.
    pub fn new(first: usize) -> Registry<T> {
        Registry {
            inner: Mutex::new(Inner {
                next: first,
                objects: HashMap::new(),
            }),
        }
    }

    /// Adds the object that `make` builds from its own handle.
    pub fn add(&self, make: impl FnOnce(usize) -> T) -> (usize, Arc<T>) {
        let mut inner = self.lock();
        let handle = inner.next;
        inner.next += 16;
        let object = Arc::new(make(handle));
        inner.objects.insert(handle, Arc::clone(&object));
        (handle, object)
    }

    /// The object; none if the handle is none of this kind.
    pub fn get(&self, handle: usize) -> Option<Arc<T>> {
        self.lock().objects.get(&handle).cloned()
    }

    /// The object, or the error for an invalid handle.
    pub fn find(&self, handle: usize) -> Result<Arc<T>, CuResult> {
        self.get(handle).ok_or(CuResult::ERROR_INVALID_HANDLE)
    }

    /// Takes the object out.
    pub fn remove(&self, handle: usize) -> Result<Arc<T>, CuResult> {
        self.lock()
            .objects
            .remove(&handle)
            .ok_or(CuResult::ERROR_INVALID_HANDLE)
    }

    /// All objects.
    pub fn all(&self) -> Vec<Arc<T>> {
        self.lock().objects.values().cloned().collect()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Inner<T>> {
        // Nothing can panic while the lock is held, so a poisoned one holds good data.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A lock whose holder can't have left things half done.
pub fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
