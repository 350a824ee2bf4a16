//! What an engine process stores in a pool pod for its successor: all that it needs to serve without the
//! Kubernetes API. The agent seals it.

use std::collections::BTreeSet;
use std::net::IpAddr;

use crds::node::{MasterInstance, PoolAssignment};
use serde::{Deserialize, Serialize};
use store::Uuid;

use crate::pod::epoch::Epoch;
use pool::handover::RECORD_LIMIT;

const VERSION: u32 = 1;

/// Most earlier epochs in a record.
const FORMER_LIMIT: usize = 8;

/// Leaves space for the seal and for the escaping of quotes in the JSON of the packet.
const TEXT_LIMIT: usize = RECORD_LIMIT - 4096;

/// Written before each change that it records takes effect.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(from = "Text", into = "Text")]
pub(crate) struct Record {
    version: u32,
    /// The last assignment by the operator.
    pub(crate) assignment: PoolAssignment,
    /// Client id at the master, the same while the pod exists.
    pub(crate) client: Uuid,
    pub(crate) epoch: Epoch,
    /// The master instance in which this epoch was, or was about to be, mounted.
    pub(crate) mounted_in: Option<MasterInstance>,
    /// The master at that address did not know this client after a mount: it may be another instance than
    /// `mounted_in`, with this epoch mounted in it.
    pub(crate) renewed: bool,
    /// Earlier epochs of which a master may still have segments, the latest last.
    pub(crate) former: Vec<Epoch>,
    /// The addresses admitted last, separated by commas.
    admitted: String,
}

/// The text of a record. Release 0.1.0 reads it: it knows one former epoch, rejects unknown fields here, and ignores them
/// in the assignment. A pool pod stores one record only, so further data is in the assignment.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Text {
    version: u32,
    assignment: TextAssignment,
    client: Uuid,
    epoch: Epoch,
    mounted_in: Option<MasterInstance>,
    renewed: bool,
    /// The latest former epoch.
    former: Option<Epoch>,
    admitted: String,
}

#[derive(Serialize, Deserialize)]
struct TextAssignment {
    #[serde(flatten)]
    assignment: PoolAssignment,
    /// The former epochs before the latest one.
    #[serde(
        default,
        rename = "earlierEpochs",
        skip_serializing_if = "Vec::is_empty"
    )]
    earlier: Vec<Epoch>,
}

impl From<Record> for Text {
    fn from(record: Record) -> Self {
        let mut earlier = record.former;
        let former = earlier.pop();
        Self {
            version: record.version,
            assignment: TextAssignment {
                assignment: record.assignment,
                earlier,
            },
            client: record.client,
            epoch: record.epoch,
            mounted_in: record.mounted_in,
            renewed: record.renewed,
            former,
            admitted: record.admitted,
        }
    }
}

impl From<Text> for Record {
    fn from(text: Text) -> Self {
        let mut former = text.assignment.earlier;
        former.extend(text.former);
        Self {
            version: text.version,
            assignment: text.assignment.assignment,
            client: text.client,
            epoch: text.epoch,
            mounted_in: text.mounted_in,
            renewed: text.renewed,
            former,
            admitted: text.admitted,
        }
    }
}

/// Why a record cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RecordError {
    #[error("its seal is not of this node: another process wrote it, or the node's key was lost")]
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
            former: Vec::new(),
            admitted: String::new(),
        }
    }

    /// Begins an epoch. Of the earlier ones, [`FORMER_LIMIT`] are kept.
    pub(crate) fn begin(&mut self, epoch: Epoch) {
        self.former.push(std::mem::replace(&mut self.epoch, epoch));
        if self.former.len() > FORMER_LIMIT {
            let dropped = self.former.remove(0);
            tracing::warn!(
                epoch = dropped.number,
                "too many epochs are not unmounted: segments of the earliest stay until the master's client TTL ends"
            );
        }
    }

    /// Returns the segments of the first `count` extents that a master may have.
    pub(crate) fn segments(&self, count: usize) -> Vec<Uuid> {
        let epochs = std::iter::once(&self.epoch).chain(&self.former);
        let places = epochs.flat_map(|epoch| epoch.wire_extents(count));
        places.map(|place| place.segment).collect()
    }

    /// Returns the text to seal and store.
    pub(crate) fn text(&self) -> String {
        serde_json::to_string(self).expect("a record has only string keys")
    }

    /// Reads the text of a record that was sealed for this pod.
    ///
    /// # Errors
    /// `Unreadable`: another version, pod or format.
    pub(crate) fn read(pod_uid: &str, text: &str) -> Result<Self, RecordError> {
        let record: Self = serde_json::from_str(text)
            .map_err(|error| RecordError::Unreadable(error.to_string()))?;
        if record.version == VERSION && record.assignment.pod_uid == pod_uid {
            Ok(record)
        } else {
            Err(RecordError::Unreadable(format!(
                "version {}",
                record.version
            )))
        }
    }

    pub(crate) fn admitted(&self) -> BTreeSet<IpAddr> {
        let addresses = self.admitted.split(',');
        addresses
            .filter_map(|address| address.parse().ok())
            .collect()
    }

    /// Stores the admitted addresses. Returns how many did not fit; a successor reads those from the API.
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
    use pool::handover::record::Key;

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
            metadata: None,
            transport: None,
            allow_host_network: false,
            addresses: Vec::new(),
        };
        let epoch = Epoch::draw(0, &[1 << 30]).unwrap();
        Record::new(assignment, store::random_id().unwrap(), epoch)
    }

    #[test]
    fn a_record_is_restored_completely_and_only_for_its_pod() {
        let mut record = record();
        let addresses: BTreeSet<IpAddr> = ["198.18.0.1", "2001:db8::1"]
            .map(|address| address.parse().unwrap())
            .into();
        assert_eq!(record.set_admitted(&addresses), 0);
        let text = record.text();
        let back = Record::read("u", &text).unwrap();
        assert_eq!(back, record);
        assert_eq!(back.admitted(), addresses);
        for (pod_uid, text) in [("other", text.as_str()), ("u", "{}")] {
            let read = Record::read(pod_uid, text);
            assert!(matches!(read, Err(RecordError::Unreadable(_))), "{text}");
        }
    }

    #[test]
    fn earlier_epochs_are_kept_and_the_latest_is_written_where_release_0_1_0_reads_it() {
        let mut record = record();
        let mut numbers = Vec::new();
        for round in 0..FORMER_LIMIT + 2 {
            let text: serde_json::Value =
                serde_json::from_str(&serde_json::to_string(&record).unwrap()).unwrap();
            match round {
                0 => assert!(text["former"].is_null()),
                _ => assert_eq!(text["former"]["number"], round),
            }
            // What release 0.1.0 ignores.
            let earlier = &text["assignment"]["earlierEpochs"];
            let count = earlier.as_array().map_or(0, Vec::len);
            assert_eq!(count, round.min(FORMER_LIMIT).saturating_sub(1));
            let back = Record::read("u", &record.text()).unwrap();
            assert_eq!(back, record);
            numbers.push(record.epoch.number);
            let kept = &numbers[..round];
            let kept = &kept[kept.len().saturating_sub(FORMER_LIMIT)..];
            assert!(
                record
                    .former
                    .iter()
                    .map(|epoch| epoch.number)
                    .eq(kept.iter().copied())
            );
            assert_eq!(record.segments(2).len(), 2 * (1 + kept.len()));
            record.begin(Epoch::draw(record.epoch.number, &[1 << 30]).unwrap());
        }
    }

    #[test]
    fn a_record_holds_two_thousand_peers_and_never_exceeds_its_limit() {
        let key = Key::new([1; 32]);
        let mut record = record();
        let many = |count: u32| -> BTreeSet<IpAddr> {
            (0..count)
                .map(|n| IpAddr::from((0xc612_0000_u32 + n).to_be_bytes()))
                .collect()
        };
        assert_eq!(record.set_admitted(&many(2_000)), 0);
        assert!(record.set_admitted(&many(20_000)) > 0);
        assert!(key.seal("u", &record.text()).len() <= RECORD_LIMIT);
    }

    /// Written by the code of release 0.1.0 (`record.v0.1.0`). Its agent reads what this release seals, as both
    /// have the same bytes.
    #[test]
    fn a_record_of_release_0_1_0_is_read_and_sealed_as_it_was() {
        let key = Key::new([1; 32]);
        let recorded = include_str!("record.v0.1.0");
        let record = Record::read("u", key.open("u", recorded).unwrap()).unwrap();
        assert!(record.renewed && record.former.len() == 1);
        assert_eq!(record.mounted_in, record.assignment.master);
        let addresses: BTreeSet<IpAddr> = ["198.18.0.1", "2001:db8::1"]
            .map(|address| address.parse().unwrap())
            .into();
        assert_eq!(record.admitted(), addresses);
        assert_eq!(key.seal("u", &record.text()), recorded);
    }
}
