//! What is found out once and then remembered.

use std::borrow::Borrow;
use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Mutex, PoisonError};

use crate::error::Result;

#[derive(Debug)]
pub(super) struct Memo<K, V>(Mutex<HashMap<K, V>>);

impl<K, V> Default for Memo<K, V> {
    fn default() -> Self {
        Memo(Mutex::default())
    }
}

impl<K: Eq + Hash, V: Clone> Memo<K, V> {
    /// The value for a key, made where there is none yet. Errors: those of `make`, which are not remembered.
    pub(super) fn get<Q>(&self, key: &Q, make: impl FnOnce() -> Result<V>) -> Result<V>
    where
        K: Borrow<Q>,
        Q: Eq + Hash + ToOwned<Owned = K> + ?Sized,
    {
        let map = || self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(value) = map().get(key) {
            return Ok(value.clone());
        }
        // Unlocked: it may ask for another value. Two threads may make the same one.
        let value = make()?;
        map().insert(key.to_owned(), value.clone());
        Ok(value)
    }
}
