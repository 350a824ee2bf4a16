//! What an agent leaves with a pool pod for its successor: everything needed to serve on without
//! the Kubernetes API.

use std::collections::BTreeSet;
use std::net::IpAddr;

use crds::node::{MasterInstance, PoolAssignment};
use serde::{Deserialize, Serialize};
use store::Uuid;

use super::epoch::Epoch;
use crate::handover::RECORD_LIMIT;
use crate::handover::record::Key;

const VERSION: u32 = 1;

/// Room for the seal, and for the quotes that the packet's JSON puts a backslash before.
const TEXT_LIMIT: usize = RECORD_LIMIT - 4096;

/// Rewritten before each change that it tells takes effect.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Record {
    version: u32,
    /// As the operator wrote it last.
    pub(crate) assignment: PoolAssignment,
    /// Client id at the master, for the pod's whole life.
    pub(crate) client: Uuid,
    pub(crate) epoch: Epoch,
    /// The instance in which this epoch was, or was about to be, mounted.
    pub(crate) mounted_in: Option<MasterInstance>,
    /// The master at that address did not know us after we had mounted there: it may be another
    /// instance than the one noted, and this epoch is mounted in it.
    pub(crate) renewed: bool,
    /// The epoch before this one, which the next master may have as well.
    pub(crate) former: Option<Epoch>,
    /// Addresses admitted last, with commas between.
    admitted: String,
}

/// Why a record cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Unusable {
    #[error("its seal is not this node's: somebody else wrote it, or the node's key was lost")]
    Forged,
    #[error("it is sealed but unreadable ({0}); was the agent rolled back to an older release?")]
    Unreadable(String),
}

impl Record {
    pub(crate) fn new(assignment: PoolAssignment, client: Uuid, epoch: Epoch) -> Self {
        Self {
            version: VERSION,
            assignment,
            client,
            epoch,
            mounted_in: None,
            renewed: false,
            former: None,
            admitted: String::new(),
        }
    }

    /// The sealed text to be kept.
    pub(crate) fn seal(&self, key: &Key) -> String {
        let text = serde_json::to_string(self).expect("a record has only string keys");
        key.seal(&self.assignment.pod_uid, &text)
    }

    /// Reads what a pool pod kept.
    pub(crate) fn open(key: &Key, pod_uid: &str, sealed: &str) -> Result<Self, Unusable> {
        let text = key.open(pod_uid, sealed).ok_or(Unusable::Forged)?;
        let record: Self =
            serde_json::from_str(text).map_err(|error| Unusable::Unreadable(error.to_string()))?;
        if record.version == VERSION && record.assignment.pod_uid == pod_uid {
            Ok(record)
        } else {
            Err(Unusable::Unreadable(format!("version {}", record.version)))
        }
    }

    pub(crate) fn admitted(&self) -> BTreeSet<IpAddr> {
        let addresses = self.admitted.split(',');
        addresses
            .filter_map(|address| address.parse().ok())
            .collect()
    }

    /// Notes who is admitted; returns how many addresses found no room (a successor then learns
    /// those from the API).
    pub(crate) fn set_admitted(&mut self, addresses: &BTreeSet<IpAddr>) -> usize {
        self.admitted.clear();
        let taken = serde_json::to_string(self).map_or(0, |text| text.len());
        let room = TEXT_LIMIT.saturating_sub(taken);
        let mut left = addresses.len();
        for address in addresses {
            let text = address.to_string();
            if self.admitted.len() + text.len() + 1 > room {
                break;
            }
            if !self.admitted.is_empty() {
                self.admitted.push(',');
            }
            self.admitted.push_str(&text);
            left -= 1;
        }
        left
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crds::ByteSize;

    fn record() -> Record {
        let assignment = PoolAssignment {
            pod_uid: "u".to_owned(),
            pod_name: "p".to_owned(),
            namespace: "n".to_owned(),
            cluster: "c".to_owned(),
            cluster_uid: "cu".to_owned(),
            pool: "default".to_owned(),
            size: ByteSize(1 << 30),
            page_size: crds::cluster::PageSize::Base,
            numa_policy: crds::cluster::NumaPolicy::Spread,
            drain_seconds: 5,
            master: None,
            allow_host_network: false,
            addresses: Vec::new(),
        };
        let epoch = Epoch::draw(0, &[1 << 30]).unwrap();
        Record::new(assignment, store::random_id().unwrap(), epoch)
    }

    #[test]
    fn a_record_comes_back_whole_and_only_for_its_pod() {
        let key = Key::new([1; 32]);
        let mut record = record();
        let addresses: BTreeSet<IpAddr> = ["198.18.0.1", "2001:db8::1"]
            .map(|address| address.parse().unwrap())
            .into();
        assert_eq!(record.set_admitted(&addresses), 0);
        let sealed = record.seal(&key);
        let back = Record::open(&key, "u", &sealed).unwrap();
        assert_eq!(back, record);
        assert_eq!(back.admitted(), addresses);
        assert!(matches!(
            Record::open(&key, "other", &sealed),
            Err(Unusable::Forged)
        ));
        assert!(matches!(
            Record::open(&key, "u", &key.seal("u", "{}")),
            Err(Unusable::Unreadable(_))
        ));
    }

    #[test]
    fn two_thousand_peers_fit_a_record_and_any_number_keeps_its_bound() {
        let key = Key::new([1; 32]);
        let mut record = record();
        let many = |count: u32| -> BTreeSet<IpAddr> {
            (0..count)
                .map(|n| IpAddr::from((0xc612_0000_u32 + n).to_be_bytes()))
                .collect()
        };
        assert_eq!(record.set_admitted(&many(2_000)), 0);
        assert!(record.set_admitted(&many(20_000)) > 0);
        assert!(record.seal(&key).len() <= RECORD_LIMIT);
    }
}
