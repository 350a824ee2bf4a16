//! The values of the metadata server: who may change which, what each address may store, and when the keys of a pod that is gone
//! are removed. Pure.

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use axum::body::Bytes;
use proto::metadata::address_of;

use crate::admission::{Addresses, Owner};

/// Memory of a pair beside its bytes.
pub(super) const PAIR_BYTES: usize = 256;

/// Limits of the metadata server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of one value.
    pub value_bytes: usize,
    /// Bytes of one key.
    pub key_bytes: usize,
    /// Bytes of all keys and values together, with what each pair costs beside them.
    pub bytes: usize,
    /// The same for the pairs that one member has written.
    pub member_bytes: usize,
    /// Keys that one member has written.
    pub member_keys: usize,
    /// Time from the end of a pod's admission to the removal of its keys.
    pub grace: Duration,
    /// Time between two looks at keys of pods that are gone.
    pub period: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            value_bytes: 1 << 20,
            key_bytes: 4096,
            bytes: 256 << 20,
            member_bytes: 16 << 20,
            member_keys: 4096,
            grace: Duration::from_secs(60),
            period: Duration::from_secs(5),
        }
    }
}

/// Who sends a request.
#[derive(Debug, Clone, Copy)]
pub(super) enum Writer<'a> {
    /// An operator, or each peer of a server without admission. Its keys have no owner.
    Operator,
    /// A member by its address, with the list that admits it.
    Member(&'a Owner, &'a Addresses),
}

/// Why a request is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum Refused {
    /// The key names an address of another admitted pod.
    #[error(
        "not permitted: {0} is the address of another pod. Use the pod's own address or a host name as server name"
    )]
    AddressOfAnother(IpAddr),
    /// Another pod has written the key.
    #[error("not permitted: the pod at {0} has written this key. Use another server name")]
    OwnedByAnother(IpAddr),
    /// The peer is no longer admitted.
    #[error("not permitted: the address is no longer admitted")]
    NotAdmitted,
    /// The keys of the member.
    #[error("too much metadata: this address has {0} keys, which is the limit")]
    MemberKeys(usize),
    /// The bytes of the member.
    #[error("too much metadata: this address would have more than {0} bytes")]
    MemberBytes(usize),
    /// The bytes of all.
    #[error("too much metadata: the service would have more than {0} bytes")]
    Bytes(usize),
}

impl Refused {
    /// Whether a limit is the cause.
    pub(super) fn is_full(&self) -> bool {
        match self {
            Self::AddressOfAnother(_) | Self::OwnedByAnother(_) | Self::NotAdmitted => false,
            Self::MemberKeys(_) | Self::MemberBytes(_) | Self::Bytes(_) => true,
        }
    }
}

#[derive(Debug)]
struct Value {
    bytes: Bytes,
    owner: Option<Owner>,
    /// When a look first found that its owner is gone.
    gone: Option<Instant>,
}

/// What is stored, of all or of one address.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) struct Usage {
    pub(super) keys: usize,
    pub(super) bytes: usize,
}

impl Usage {
    fn add(&mut self, bytes: usize) {
        self.keys += 1;
        self.bytes += bytes;
    }

    fn subtract(&mut self, bytes: usize) {
        self.keys -= 1;
        self.bytes -= bytes;
    }
}

#[derive(Debug)]
pub(super) struct Values {
    limits: Limits,
    values: HashMap<Vec<u8>, Value>,
    all: Usage,
    /// By the address of the owner.
    members: HashMap<IpAddr, Usage>,
}

fn size(key: &[u8], value: &[u8]) -> usize {
    PAIR_BYTES + key.len() + value.len()
}

impl Writer<'_> {
    /// Checks that the peer may change a key.
    fn check(self, key: &[u8], owner: Option<&Owner>) -> Result<(), Refused> {
        let Self::Member(own, list) = self else {
            return Ok(());
        };
        if let Some(named) = address_of(key) {
            if list.is_of(named, own) {
                // Its own name, whoever has written it.
                return Ok(());
            }
            if list.role(named).is_some() {
                return Err(Refused::AddressOfAnother(named));
            }
        }
        match owner {
            Some(owner) if list.has(owner) && !list.is_of(own.address, owner) => {
                Err(Refused::OwnedByAnother(owner.address))
            }
            _ => Ok(()),
        }
    }
}

impl Values {
    pub(super) fn new(limits: Limits) -> Self {
        Self {
            limits,
            values: HashMap::new(),
            all: Usage::default(),
            members: HashMap::new(),
        }
    }

    /// Returns the number of keys and their bytes.
    pub(super) fn usage(&self) -> Usage {
        self.all
    }

    pub(super) fn get(&self, key: &[u8]) -> Option<Bytes> {
        Some(self.values.get(key)?.bytes.clone())
    }

    /// Stores a value. The writer becomes its owner.
    ///
    /// # Errors
    /// A key of another pod, or a limit. Nothing has changed then.
    pub(super) fn put(
        &mut self,
        key: Vec<u8>,
        bytes: Bytes,
        writer: Writer<'_>,
    ) -> Result<(), Refused> {
        let before = self.values.get(&key);
        writer.check(&key, before.and_then(|before| before.owner.as_ref()))?;
        let added = size(&key, &bytes);
        let removed = before.map_or(0, |before| size(&key, &before.bytes));
        if self.all.bytes - removed + added > self.limits.bytes {
            return Err(Refused::Bytes(self.limits.bytes));
        }
        let owner = match writer {
            Writer::Operator => None,
            Writer::Member(own, _) => {
                let owner_before = before.and_then(|before| before.owner.as_ref());
                let same = owner_before.is_some_and(|owner| owner.address == own.address);
                let usage = self.members.get(&own.address).copied();
                let mut usage = usage.unwrap_or_default();
                if same {
                    usage.subtract(removed);
                }
                if usage.keys >= self.limits.member_keys {
                    return Err(Refused::MemberKeys(self.limits.member_keys));
                }
                if usage.bytes + added > self.limits.member_bytes {
                    return Err(Refused::MemberBytes(self.limits.member_bytes));
                }
                Some(own.clone())
            }
        };
        self.take(&key);
        self.all.add(added);
        if let Some(owner) = &owner {
            self.members.entry(owner.address).or_default().add(added);
        }
        let value = Value {
            bytes,
            owner,
            gone: None,
        };
        self.values.insert(key, value);
        Ok(())
    }

    /// Removes a key. Returns false if it is not there.
    ///
    /// # Errors
    /// A key of another pod.
    pub(super) fn remove(&mut self, key: &[u8], writer: Writer<'_>) -> Result<bool, Refused> {
        let Some(value) = self.values.get(key) else {
            return Ok(false);
        };
        writer.check(key, value.owner.as_ref())?;
        self.take(key);
        Ok(true)
    }

    /// Removes a key with its share of the counts.
    fn take(&mut self, key: &[u8]) {
        let Some(value) = self.values.remove(key) else {
            return;
        };
        let bytes = size(key, &value.bytes);
        self.all.subtract(bytes);
        let Some(owner) = value.owner else { return };
        if let Some(usage) = self.members.get_mut(&owner.address) {
            usage.subtract(bytes);
            if usage.keys == 0 {
                self.members.remove(&owner.address);
            }
        }
    }

    /// Removes the keys whose owner has been gone for the grace, and returns their number. An owner that is admitted again keeps
    /// its keys.
    pub(super) fn expire(&mut self, list: &Addresses, now: Instant) -> usize {
        let grace = self.limits.grace;
        let mut expired = Vec::new();
        for (key, value) in &mut self.values {
            let Some(owner) = &value.owner else { continue };
            if list.has(owner) {
                value.gone = None;
                continue;
            }
            let gone = *value.gone.get_or_insert(now);
            if now.saturating_duration_since(gone) >= grace {
                expired.push(key.clone());
            }
        }
        for key in &expired {
            self.take(key);
        }
        expired.len()
    }
}

#[cfg(test)]
mod tests;
