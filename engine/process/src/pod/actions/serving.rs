//! Serves a pool to peers: listeners, wire bases, admitted addresses.

use std::collections::BTreeSet;
use std::net::{IpAddr, TcpListener};
use std::sync::Arc;

use crds::reason::Reason;
use engine::{Admission, CardError, Endpoint, EndpointSpec, Error, Targets};
use metadata::{Credentials, Service};

use crate::pod::epoch::WireExtent;
use crate::pod::failure::Failure;
use crate::pod::mover::MountedExtent;
use crate::pod::publication::{self, Publication};
use crate::pod::record::Record;
use crate::pod::registering::{Registered, Registering};
use crate::pod::step::Action;
use crate::pod::{Pod, RDMA, Served};
use pool::handover::{self, message::Request};

impl Pod {
    /// Opens the endpoint, serves peers over TCP, and begins to register the memory; only the last, if it has failed before.
    /// [`Self::serve_registered`] ends it.
    pub(super) async fn serve_peers(&mut self) -> Result<(), Failure> {
        if let Some(registering) = &mut self.registering {
            registering.attempt();
            return Ok(());
        }
        let record = self.recorded()?;
        let answer = self.client()?.descriptors::<2>(Request::Listeners).await;
        let listeners = self.checked_answer(answer)?;
        let attached = self.attached.clone();
        let (Some(attached), Some(name), Some(address)) =
            (attached, self.server_name(), self.address)
        else {
            return Err(Failure::new(
                Reason::PoolPodNotReady,
                "there is no connection to the pool process",
            ));
        };
        let [handshake, data] = listeners.map(TcpListener::from);
        verify_port(&handshake, attached.handshake_port)?;
        verify_port(&data, attached.data_port)?;
        let admitted = self.wanted_admission();
        let service = self.metadata_service()?;
        self.refresh_credentials().await;
        let endpoint = self.context.engine.endpoint(EndpointSpec {
            name: name.clone(),
            data_port: attached.data_port,
            data_host: address.to_string(),
            handshake,
            data,
            // This process is in the pod's network namespace.
            network: None,
            admission: Admission::only(admitted.iter().copied()),
            // The master and its clients choose the peers.
            targets: Targets::Admitted,
            metadata: service.clone(),
        });
        let endpoint = Arc::new(endpoint?);
        let places = record.epoch.wire_extents(self.memory.len());
        let extents = (&self.memory[..], places);
        let registering = Registering::begin(Arc::clone(&endpoint), service, extents)?;
        self.registering = Some(registering);
        let inherited = std::mem::take(&mut *self.context.inherited.lock());
        let connections = endpoint.take_over(inherited)?;
        tracing::info!(
            name,
            connections,
            epoch = record.epoch.number,
            admitted = admitted.len(),
            "serving peers over TCP"
        );
        self.admitted = Some(admitted);
        *self.context.counted.lock() = Some(endpoint);
        Ok(())
    }

    /// Returns the endpoint, also before its memory is registered.
    pub(super) fn endpoint(&self) -> Option<Arc<Endpoint>> {
        let served = self.served.as_ref().map(|served| &served.endpoint);
        let registering = self.registering.as_ref();
        let endpoint = served.or_else(|| registering.map(|registering| &registering.endpoint));
        endpoint.map(Arc::clone)
    }

    /// Serves the memory that is registered, or fails [`Action::ServePeers`]: peers over TCP are served on.
    pub(in crate::pod) fn serve_registered(&mut self, registered: Result<Registered, Error>) {
        // A stopped one is released, or tried again if the pod is listed again.
        let Some(registering) = self.registering.take_if(|one| !one.is_stopped()) else {
            return;
        };
        self.registration_failed = registered.is_err();
        match registered {
            Ok(registered) => {
                self.serve(registering, registered);
                self.clear_failure();
            }
            Err(error) => {
                self.registering = Some(registering);
                let refused = matches!(error, Error::Card(CardError::Refused { .. }));
                let failure = if refused {
                    // Such a device gets no memory from this process again.
                    Failure::unfenced("registering the memory", &error)
                } else {
                    Failure::from(error)
                };
                if self.failure.as_ref().map(|(_, before)| before) != Some(&failure) {
                    tracing::warn!(reason = %failure.reason, "{}", failure.message);
                }
                // It would keep what peers over RDMA cannot read until a later attempt.
                self.session = None;
                self.fail(Action::ServePeers, failure);
            }
        }
    }

    fn serve(&mut self, registering: Registering, registered: Registered) {
        let Registering {
            endpoint,
            service,
            places,
            ..
        } = registering;
        tracing::info!(
            name = self.server_name(),
            protocol = self.context.protocol,
            "serving peers"
        );
        if self.context.protocol == RDMA {
            self.registration_seconds = Some(registered.took.as_secs());
            tracing::info!(
                seconds = registered.took.as_secs(),
                seconds_per_100_gib = registered.seconds_per_unit(),
                "the RDMA devices have registered the memory"
            );
        }
        self.publication = service.map(|service| Publication::start(service, &endpoint));
        self.served = Some(Served {
            endpoint,
            regions: registered.regions,
        });
        self.set_wire_extents(&places);
    }

    pub(super) fn set_wire_extents(&self, places: &[WireExtent]) {
        let Some(served) = &self.served else { return };
        let mounted = self.memory.iter().zip(&served.regions).zip(places);
        let mounted = mounted.map(|((region, id), place)| MountedExtent {
            base: place.base,
            length: region.length(),
            region: *id,
        });
        self.mounted.set(mounted.collect());
        if let Some(publication) = &self.publication {
            publication.refresh();
        }
    }

    /// Returns the cluster's metadata service; `None` with P2P.
    fn metadata_service(&mut self) -> Result<Option<Service>, Failure> {
        let Some(assigned) = &self.assignment.metadata else {
            return Ok(None);
        };
        let lookup = publication::lookup(self.context.agent.clone());
        let cluster = assigned.cluster_id.as_deref();
        let secret = assigned.secret_name.as_ref();
        let credentials = secret
            .map(|secret| Credentials::new(&format!("{}/{secret}", self.assignment.namespace)));
        let endpoint = &assigned.endpoint;
        let service = Service::with_credentials(endpoint, cluster, lookup, credentials.clone())
            .map_err(|error| {
                let message = format!("metadata service {endpoint:?}: {error}");
                Failure::new(Reason::MetadataUnreachable, message)
            })?;
        self.credentials = credentials;
        Ok(Some(service))
    }

    /// Reads the Secret of the etcd again, of which the kubelet does not notify. A change takes effect at once.
    pub(in crate::pod) async fn refresh_credentials(&mut self) {
        let (Some(credentials), Some(client)) = (self.credentials.clone(), &mut self.client) else {
            return;
        };
        match client.secret().await {
            Ok(Some(files)) => {
                if credentials.set(&files) {
                    tracing::info!(?credentials, keys = ?files.keys(), "read the Secret of the etcd");
                    if let Some(publication) = &self.publication {
                        publication.refresh();
                    }
                }
            }
            Ok(None) => credentials.fail(
                "the pool pod is of an earlier release, which does not hand over a Secret: delete the pod",
            ),
            Err(error @ handover::Error::Refused { .. }) => credentials.fail(&error.to_string()),
            Err(error) => self.detach(&error),
        }
    }

    /// Removes the descriptor from the metadata service.
    pub(super) async fn withdraw(&mut self) {
        let (Some(publication), Some(served)) = (self.publication.take(), &self.served) else {
            return;
        };
        if let Some(entry) = served.endpoint.metadata_entry() {
            publication.withdraw(&entry).await;
        }
    }

    /// Returns the addresses that may connect now.
    fn wanted_admission(&mut self) -> BTreeSet<IpAddr> {
        let watched = self.admission.borrow_and_update().clone();
        let recorded = || self.record.as_ref().map(Record::admitted);
        let mut wanted = watched.or_else(recorded).unwrap_or_default();
        let listed = self.assignment.addresses.iter();
        wanted.extend(listed.filter_map(|address| address.parse::<IpAddr>().ok()));
        // For copies between the pool's own extents.
        wanted.extend(self.address);
        wanted
    }

    /// Updates the admitted addresses in the engine and in the record.
    pub(in crate::pod) async fn refresh_admission(&mut self) {
        let wanted = self.wanted_admission();
        let (Some(endpoint), Some(before)) = (self.endpoint(), &self.admitted) else {
            return;
        };
        if *before == wanted {
            return;
        }
        let admission = Admission::only(wanted.iter().copied());
        if let Err(error) = endpoint.admit(admission) {
            return tracing::error!(%error, "the engine rejected the admitted addresses");
        }
        tracing::info!(peers = wanted.len(), "admission changed");
        let Ok(mut record) = self.recorded() else {
            return;
        };
        let left = record.set_admitted(&wanted);
        if left > 0 {
            tracing::warn!(left, "the record has no space for some admitted peers");
        }
        record.assignment = self.assignment.clone();
        self.admitted = Some(wanted);
        if let Err(failure) = self.write(record).await {
            tracing::warn!("{}", failure.message);
        }
    }
}

/// Verifies that the listener has the reported port.
fn verify_port(listener: &TcpListener, port: u16) -> Result<(), Failure> {
    let found = listener.local_addr().map(|address| address.port());
    match found {
        Ok(found) if found == port => Ok(()),
        found => {
            let message =
                format!("the pool process handed over {found:?} as its listener on port {port}");
            Err(Failure::new(Reason::HandoverFailed, message))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_keys_that_a_pool_pod_mounts_are_those_that_are_used() {
        assert_eq!(crds::names::ETCD_SECRET_KEYS, Credentials::KEYS);
    }
}
