//! What each tenant has in memory, and its quota. The table of objects charges an account whenever the number of replicas of one
//! of its objects changes.

use std::collections::{BTreeMap, HashMap};

use super::scope::DEFAULT_TENANT;

/// Most tenants without a quota that are listed. They have none because a policy named them before, or a ledger does.
const MOST_LISTED: usize = 1000;

/// The number of an account. Numbers of accounts without objects and quota are used again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub(crate) struct AccountId(u32);

impl AccountId {
    pub(crate) fn of(index: u32) -> Self {
        Self(index)
    }

    pub(crate) fn index(self) -> usize {
        self.0 as usize
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Quota {
    requested: u64,
    effective: u64,
}

#[derive(Debug, Default)]
struct Account {
    name: Box<str>,
    objects: u64,
    /// Sizes reported by owners of segments are not limited, so their sum may exceed 64 bits.
    charged: u128,
    /// Without one the tenant cannot put objects.
    quota: Option<Quota>,
    refused_puts: u64,
    evicted_bytes: u64,
}

/// A tenant and what it has in memory.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TenantDetail {
    pub name: String,
    /// Whether the policy names it.
    pub registered: bool,
    pub requested: u64,
    pub effective: u64,
    pub objects: u64,
    /// Bytes of all replicas, those of unfinished puts included.
    pub charged: u64,
    /// Puts that were refused because they exceed the quota.
    pub refused_puts: u64,
    /// Bytes of replicas that were evicted for puts that exceed the quota.
    pub evicted_bytes: u64,
}

/// All tenants.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Tenants {
    /// In the order of their names. Of those without a quota only the first ones.
    pub list: Vec<TenantDetail>,
    /// All tenants without a quota together.
    pub unregistered: TenantDetail,
    /// Puts for tenants without a quota.
    pub unregistered_puts: u64,
    /// Bytes of the segments among which quotas are divided.
    pub capacity: u64,
}

/// The accounts of all tenants. Without [`Self::apply`] there is only the default one, which has no limit.
#[derive(Debug)]
pub(crate) struct Accounts {
    accounts: Vec<Account>,
    by_name: HashMap<Box<str>, AccountId>,
    free: Vec<AccountId>,
    enabled: bool,
    capacity: u64,
    unregistered_puts: u64,
}

impl Default for Accounts {
    fn default() -> Self {
        let default = Account {
            name: DEFAULT_TENANT.into(),
            ..Account::default()
        };
        Self {
            accounts: vec![default],
            by_name: HashMap::from([(DEFAULT_TENANT.into(), AccountId::default())]),
            free: Vec::new(),
            enabled: false,
            capacity: 0,
            unregistered_puts: 0,
        }
    }
}

fn narrow(bytes: u128) -> u64 {
    u64::try_from(bytes).unwrap_or(u64::MAX)
}

impl Account {
    fn detail(&self) -> TenantDetail {
        let quota = self.quota.unwrap_or(Quota {
            requested: 0,
            effective: 0,
        });
        TenantDetail {
            name: self.name.as_ref().into(),
            registered: self.quota.is_some(),
            requested: quota.requested,
            effective: quota.effective,
            objects: self.objects,
            charged: narrow(self.charged),
            refused_puts: self.refused_puts,
            evicted_bytes: self.evicted_bytes,
        }
    }
}

impl Accounts {
    pub(crate) fn is_enabled(&self) -> bool {
        self.enabled
    }

    pub(crate) fn find(&self, tenant: &str) -> Option<AccountId> {
        if tenant == DEFAULT_TENANT {
            return Some(AccountId::default());
        }
        self.by_name.get(tenant).copied()
    }

    /// Returns the account of a tenant that may put objects.
    pub(crate) fn registered(&self, tenant: &str) -> Option<AccountId> {
        if !self.enabled {
            return Some(AccountId::default());
        }
        let id = self.find(tenant)?;
        self.accounts[id.index()].quota.map(|_| id)
    }

    /// Returns the account of a tenant, a new one if it has none.
    pub(crate) fn open(&mut self, tenant: &str) -> AccountId {
        if let Some(id) = self.find(tenant) {
            return id;
        }
        let account = Account {
            name: tenant.into(),
            ..Account::default()
        };
        let id = if let Some(id) = self.free.pop() {
            self.accounts[id.index()] = account;
            id
        } else {
            self.accounts.push(account);
            AccountId(u32::try_from(self.accounts.len() - 1).unwrap_or(u32::MAX))
        };
        self.by_name.insert(tenant.into(), id);
        id
    }

    /// Removes an account without objects and quota.
    fn close(&mut self, id: AccountId) {
        let account = &mut self.accounts[id.index()];
        if account.objects == 0 && account.quota.is_none() && id != AccountId::default() {
            self.by_name.remove(&account.name);
            *account = Account::default();
            self.free.push(id);
        }
    }

    pub(crate) fn add_object(&mut self, id: AccountId) {
        self.accounts[id.index()].objects += 1;
    }

    pub(crate) fn remove_object(&mut self, id: AccountId) {
        self.accounts[id.index()].objects -= 1;
        self.close(id);
    }

    /// Charges for replicas of this size.
    pub(crate) fn charge(&mut self, id: AccountId, size: u64, replicas: usize) {
        self.accounts[id.index()].charged += u128::from(size) * replicas as u128;
    }

    pub(crate) fn release(&mut self, id: AccountId, size: u64, replicas: usize) {
        self.accounts[id.index()].charged -= u128::from(size) * replicas as u128;
    }

    /// Returns by how much the quota is exceeded if `more` bytes are charged.
    pub(crate) fn deficit(&self, id: AccountId, more: u128) -> u128 {
        let account = &self.accounts[id.index()];
        let demand = account.charged.saturating_add(more);
        demand.saturating_sub(u128::from(self.effective(id)))
    }

    pub(crate) fn effective(&self, id: AccountId) -> u64 {
        if !self.enabled {
            return u64::MAX;
        }
        let quota = self.accounts[id.index()].quota;
        quota.map_or(0, |quota| quota.effective)
    }

    pub(crate) fn refuse(&mut self, id: AccountId) {
        self.accounts[id.index()].refused_puts += 1;
    }

    pub(crate) fn refuse_unregistered(&mut self, puts: u64) {
        self.unregistered_puts += puts;
    }

    pub(crate) fn add_evicted(&mut self, id: AccountId, bytes: u64) {
        let evicted = &mut self.accounts[id.index()].evicted_bytes;
        *evicted = evicted.saturating_add(bytes);
    }

    /// Gives each tenant the quota that the policy has for it, and none to others.
    pub(crate) fn apply(&mut self, policy: &BTreeMap<Box<str>, u64>) {
        self.enabled = true;
        let former = self
            .by_name
            .iter()
            .filter(|(name, _)| !policy.contains_key(*name));
        let former: Vec<_> = former.map(|(_, id)| *id).collect();
        for id in former {
            self.accounts[id.index()].quota = None;
            self.close(id);
        }
        for (tenant, &requested) in policy {
            let id = self.open(tenant);
            self.accounts[id.index()].quota = Some(Quota {
                requested,
                effective: 0,
            });
        }
        self.scale(self.capacity);
    }

    /// Divides the capacity among the tenants.
    pub(crate) fn scale(&mut self, capacity: u64) {
        self.capacity = capacity;
        if !self.enabled {
            return;
        }
        let accounts = self.accounts.iter().enumerate();
        let mut registered: Vec<(&str, usize, u64)> = accounts
            .filter_map(|(at, account)| Some((&*account.name, at, account.quota?.requested)))
            .collect();
        registered.sort_unstable();
        let requested: Vec<u64> = registered
            .iter()
            .map(|(.., requested)| *requested)
            .collect();
        let at: Vec<usize> = registered.iter().map(|(_, at, _)| *at).collect();
        for (at, share) in at.into_iter().zip(divide(&requested, capacity)) {
            if let Some(quota) = &mut self.accounts[at].quota {
                quota.effective = share;
            }
        }
    }

    #[cfg(test)]
    pub(crate) fn details(&self) -> impl Iterator<Item = TenantDetail> {
        self.accounts.iter().map(Account::detail)
    }

    pub(crate) fn list(&self) -> Option<Tenants> {
        if !self.enabled {
            return None;
        }
        let mut tenants = Tenants {
            unregistered_puts: self.unregistered_puts,
            capacity: self.capacity,
            ..Tenants::default()
        };
        let mut charged = 0;
        let mut unregistered = 0;
        for account in self
            .accounts
            .iter()
            .filter(|account| !account.name.is_empty())
        {
            if account.quota.is_none() {
                if account.objects == 0 {
                    continue;
                }
                tenants.unregistered.objects += account.objects;
                charged += account.charged;
                unregistered += 1;
                if unregistered > MOST_LISTED {
                    continue;
                }
            }
            tenants.list.push(account.detail());
        }
        tenants.unregistered.charged = narrow(charged);
        tenants.list.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        Some(tenants)
    }
}

/// Returns what is granted of each request: all of it if the capacity suffices, else a part in proportion. What remains after
/// rounding goes to the largest remainders, and to the first ones among equal ones.
fn divide(requested: &[u64], capacity: u64) -> Vec<u64> {
    let sum: u128 = requested.iter().copied().map(u128::from).sum();
    if sum <= u128::from(capacity) {
        return requested.to_vec();
    }
    let products = requested
        .iter()
        .map(|&one| u128::from(one) * u128::from(capacity));
    let (mut shares, remainders): (Vec<u64>, Vec<u128>) = products
        .map(|product| (narrow(product / sum), product % sum))
        .unzip();
    let mut order: Vec<usize> = (0..requested.len()).collect();
    order.sort_by_key(|&at| std::cmp::Reverse(remainders[at]));
    let granted: u128 = shares.iter().copied().map(u128::from).sum();
    let rest = u128::from(capacity) - granted;
    for &at in order
        .iter()
        .take(usize::try_from(rest).unwrap_or(usize::MAX))
    {
        shares[at] += 1;
    }
    shares
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn policy(quotas: &[(&str, u64)]) -> BTreeMap<Box<str>, u64> {
        quotas
            .iter()
            .map(|(name, quota)| ((*name).into(), *quota))
            .collect()
    }

    #[test]
    fn quotas_that_exceed_the_capacity_are_scaled_by_the_largest_remainder() {
        assert_eq!(divide(&[30, 20], 50), [30, 20]);
        assert_eq!(divide(&[30, 20], 49), [29, 20]);
        assert_eq!(divide(&[1, 1, 1], 2), [1, 1, 0]);
        assert_eq!(divide(&[7, 2, 1], 3), [2, 1, 0]);
        assert_eq!(divide(&[5, 5], 0), [0, 0]);
        assert_eq!(divide(&[], 7), [0_u64; 0]);
        assert_eq!(
            divide(&[i64::MAX as u64; 3], u64::MAX).iter().sum::<u64>(),
            u64::MAX
        );
    }

    #[test]
    fn accounts_without_objects_and_quota_are_used_again() {
        let mut accounts = Accounts::default();
        accounts.scale(100);
        accounts.apply(&policy(&[("a", 10), ("b", 10)]));
        let [a, b] = ["a", "b"].map(|name| accounts.open(name));
        accounts.add_object(a);
        accounts.charge(a, 4, 2);
        accounts.apply(&policy(&[("c", 200)]));
        assert_eq!(accounts.open("c"), b);
        assert_eq!(
            (accounts.registered("a"), accounts.registered("c")),
            (None, Some(b))
        );
        assert_eq!(accounts.effective(b), 100);
        let list = accounts.list().unwrap();
        let names: Vec<_> = list
            .list
            .iter()
            .map(|one| (&*one.name, one.charged))
            .collect();
        assert_eq!(names, [("a", 8), ("c", 0)]);
        assert_eq!(
            (list.unregistered.charged, list.unregistered.objects),
            (8, 1)
        );
        accounts.release(a, 4, 2);
        accounts.remove_object(a);
        assert_eq!(accounts.find("a"), None);
        assert_eq!(accounts.open("d"), a);
    }

    proptest! {
        #[test]
        fn all_capacity_is_granted_and_no_tenant_gets_more_than_requested(
            requested in prop::collection::vec(1..=i64::MAX as u64, 1..20), capacity in any::<u64>(),
        ) {
            let shares = divide(&requested, capacity);
            let sum = |all: &[u64]| all.iter().copied().map(u128::from).sum::<u128>();
            prop_assert_eq!(sum(&shares), sum(&requested).min(capacity.into()));
            prop_assert!(shares.iter().zip(&requested).all(|(share, requested)| share <= requested));
        }
    }
}
