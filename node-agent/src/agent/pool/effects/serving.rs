//! What peers see of a pool: its listeners, its wire bases, and who is admitted.

use std::collections::BTreeSet;
use std::net::{IpAddr, TcpListener};
use std::sync::Arc;

use crds::reason::Reason;
use engine::{Admission, HostSpec};

use crate::agent::admission::Admitted;
use crate::agent::pool::driver::{Pod, Served};
use crate::agent::pool::epoch::Place;
use crate::agent::pool::failure::Failure;
use crate::agent::pool::mover::Mounted;
use crate::agent::pool::record::Record;
use crate::handover::message::Request;

impl Pod {
    pub(super) async fn host(&mut self) -> Result<(), Failure> {
        let record = self.recorded()?;
        let answer = self.client()?.descriptors::<2>(Request::Listeners).await;
        let listeners = self.heard(answer)?;
        let attached = self.attached.clone();
        let (Some(attached), Some(name), Some(address)) =
            (attached, self.server_name(), self.address)
        else {
            return Err(Failure::new(Reason::PoolPodNotReady, "not attached"));
        };
        let [handshake, data] = listeners.map(TcpListener::from);
        checked(&handshake, attached.handshake_port)?;
        checked(&data, attached.data_port)?;
        if self.admission.is_none() {
            let kubernetes = self.context.kubernetes.as_ref();
            self.admission =
                kubernetes.map(|client| Admitted::watch(client.clone(), &self.assignment));
        }
        let admitted = self.wanted_admission();
        let failed = |error: engine::Error| Failure::new(Reason::PoolPodNotReady, error);
        let host = self.context.engine.host(HostSpec {
            name: name.clone(),
            data_port: attached.data_port,
            data_host: address.to_string(),
            handshake,
            data,
            network: Some(Arc::clone(&self.network)),
            admission: Admission::only(admitted.iter().copied()),
        });
        let host = Arc::new(host.map_err(failed)?);
        let places = record.epoch.places(self.memory.len());
        let mut regions = Vec::new();
        for (region, place) in self.memory.iter().zip(&places) {
            let added = host.add_region(Arc::clone(region), place.base);
            regions.push(added.map_err(failed)?);
        }
        tracing::info!(
            pod = self.assignment.pod_name,
            uid = self.uid,
            name,
            epoch = record.epoch.number,
            admitted = admitted.len(),
            "serving peers"
        );
        self.admitted = Some(admitted);
        self.served = Some(Served { host, regions });
        self.note_places(&places);
        Ok(())
    }

    pub(super) fn note_places(&self, places: &[Place]) {
        let Some(served) = &self.served else { return };
        let mounted = self.memory.iter().zip(&served.regions).zip(places);
        let mounted = mounted.map(|((region, id), place)| Mounted {
            base: place.base,
            length: region.length(),
            region: *id,
        });
        self.places.set(mounted.collect());
    }

    /// Everybody who may connect by what is known now.
    fn wanted_admission(&self) -> BTreeSet<IpAddr> {
        let told = self.admission.as_ref().and_then(Admitted::now);
        let kept = || self.record.as_ref().map(Record::admitted);
        let mut wanted = told.or_else(kept).unwrap_or_default();
        let listed = self.assignment.addresses.iter();
        wanted.extend(listed.filter_map(|address| address.parse::<IpAddr>().ok()));
        // Copies between the pool's own extents.
        wanted.extend(self.address);
        wanted
    }

    /// Lets the engine and the record know who is admitted now.
    pub(in crate::agent::pool) async fn refresh_admission(&mut self) {
        let wanted = self.wanted_admission();
        let (Some(served), Some(before)) = (&self.served, &self.admitted) else {
            return;
        };
        if *before == wanted {
            return;
        }
        let admission = Admission::only(wanted.iter().copied());
        if let Err(error) = served.host.admit(admission) {
            return tracing::error!(uid = self.uid, %error, "the engine takes no admission");
        }
        tracing::info!(
            pod = self.assignment.pod_name,
            uid = self.uid,
            peers = wanted.len(),
            "admission changed"
        );
        let Ok(mut record) = self.recorded() else {
            return;
        };
        let left = record.set_admitted(&wanted);
        if left > 0 {
            tracing::warn!(
                uid = self.uid,
                left,
                "admitted peers that the record has no room for"
            );
        }
        record.assignment = self.assignment.clone();
        self.admitted = Some(wanted);
        if let Err(failure) = self.write(record).await {
            tracing::warn!(uid = self.uid, "{}", failure.message);
        }
    }
}

/// A listener must be what the pool says that it is.
fn checked(listener: &TcpListener, port: u16) -> Result<(), Failure> {
    let found = listener.local_addr().map(|address| address.port());
    match found {
        Ok(found) if found == port => Ok(()),
        found => {
            let message = format!("the pool handed over {found:?} as its listener of port {port}");
            Err(Failure::new(Reason::HandoverFailed, message))
        }
    }
}
