//! Quotas of tenants: which puts are admitted, and what is evicted for them. The rules are those of the stock master, except
//! for the differences that docs/master.md lists.

use std::collections::BTreeMap;

use proto::store::ErrorCode;

use super::accounts::{AccountId, Tenants};
use super::object::ObjectId;
use super::scope::{DEFAULT_TENANT, Scope, is_tenant_name, split};
use super::{Index, Moment};

/// Evictions for one put, and the entries that each looks at. One costs about a microsecond.
const ATTEMPTS: usize = 2;
const STEPS: usize = 4096;

/// No tenant can be charged for more.
const MOST_BYTES: u128 = i64::MAX as u128;

/// A put that needs space.
#[derive(Debug, Clone, Copy)]
pub(super) struct Demand {
    pub(super) account: AccountId,
    /// Bytes of the new replicas.
    pub(super) bytes: u128,
    /// Bytes that the put replaces, and the object that has them.
    pub(super) replaced: u128,
    pub(super) keep: Option<ObjectId>,
}

impl Index {
    /// Gives each tenant its quota in bytes; all others have none. From now on keys belong to tenants.
    pub fn set_quotas(&mut self, quotas: &BTreeMap<Box<str>, u64>) {
        self.objects.accounts.apply(quotas);
    }

    /// Returns all tenants; `None` while there are none.
    #[must_use]
    pub fn tenants(&self) -> Option<Tenants> {
        self.objects.accounts.list()
    }

    /// Divides the capacity of the mounted segments among the tenants.
    pub(super) fn scale_quotas(&mut self) {
        let capacity = u64::try_from(self.segments.capacity()).unwrap_or(u64::MAX);
        self.objects.accounts.scale(capacity);
    }

    /// Returns the keys of the tenant that a request names, for every call but the start of a put. While there are no tenants,
    /// the name has no meaning.
    ///
    /// # Errors
    /// `InvalidParams` for a name that no tenant can have.
    pub fn scope(&self, tenant: &str) -> Result<Scope, ErrorCode> {
        if !self.objects.accounts.is_enabled() || tenant.is_empty() || tenant == DEFAULT_TENANT {
            return Ok(Scope::default());
        }
        if !is_tenant_name(tenant) {
            return Err(ErrorCode::InvalidParams);
        }
        Ok(Scope::of(tenant))
    }

    /// The same for the start of this many puts, which must name a tenant.
    ///
    /// # Errors
    /// `TenantNotRegistered` for a name that no tenant can have. Whether it has a quota is checked by each put.
    pub fn scope_of_puts(&mut self, tenant: &str, puts: usize) -> Result<Scope, ErrorCode> {
        let accounts = &mut self.objects.accounts;
        if !accounts.is_enabled() {
            return Ok(Scope::default());
        }
        if !is_tenant_name(tenant) {
            accounts.refuse_unregistered(puts as u64);
            return Err(ErrorCode::TenantNotRegistered);
        }
        Ok(Scope::of(tenant))
    }

    /// Returns the account of the tenant that puts this key.
    ///
    /// # Errors
    /// `TenantNotRegistered` if it has no quota.
    pub(super) fn writer(&mut self, key: &str) -> Result<AccountId, ErrorCode> {
        let accounts = &mut self.objects.accounts;
        let account = accounts.registered(split(key).0);
        if account.is_none() {
            accounts.refuse_unregistered(1);
        }
        account.ok_or(ErrorCode::TenantNotRegistered)
    }

    /// Checks that the quota of a tenant suffices, and evicts objects of this tenant if that helps.
    ///
    /// # Errors
    /// `TenantQuotaExceeded`; `InvalidParams` for more bytes than a tenant can have.
    pub(super) fn admit(&mut self, demand: Demand, now: Moment) -> Result<(), ErrorCode> {
        let Demand {
            account,
            bytes,
            replaced,
            keep,
        } = demand;
        if !self.objects.accounts.is_enabled() {
            return Ok(());
        }
        if bytes > MOST_BYTES {
            return Err(ErrorCode::InvalidParams);
        }
        let more = bytes.saturating_sub(replaced);
        // An eviction is in vain if the whole quota is less. After a restart the quota grows with each ledger that is loaded: an
        // eviction would remove what the ledgers have just brought back.
        let fits = bytes <= u128::from(self.objects.accounts.effective(account));
        let mut deficit = self.objects.accounts.deficit(account, more);
        let exceeds = more > 0 && deficit > 0;
        // All segments are looked at only where it matters.
        let attempts = if exceeds && fits && !self.segments.is_loading() {
            ATTEMPTS
        } else {
            0
        };
        for _ in 0..attempts {
            if deficit == 0 {
                break;
            }
            let evicted = self.evict_of(account, deficit, keep, now, STEPS);
            self.objects.accounts.add_evicted(account, evicted);
            deficit = self.objects.accounts.deficit(account, more);
        }
        if more > 0 && deficit > 0 {
            self.objects.accounts.refuse(account);
            return Err(ErrorCode::TenantQuotaExceeded);
        }
        Ok(())
    }
}
