//! The two keys of one engine in a metadata service: published, compared, published again where they are lost, removed.

use proto::descriptor::Descriptor;
use proto::metadata::RpcMeta;
use serde_json::Value;

use crate::error::{Error, Problem};
use crate::etcd::{Etcd, Write};
use crate::http::HttpService;
use crate::service::{Backend, Service};

/// What a service has to hold of one engine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// The segment descriptor; its name is the server name of the engine.
    pub descriptor: Descriptor,
    /// Where the handshake listener is.
    pub rpc_meta: RpcMeta,
}

/// What a publication has done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Published {
    /// The service had both keys with these values.
    Unchanged,
    /// At least one key was written.
    Written,
}

impl Entry {
    /// Makes the service hold both keys. The name belongs to this engine: it has the address of its host. So another value
    /// is that of a dead engine, and is replaced. In etcd both keys are under a lease of this process, and those of another
    /// process that renews its own are not replaced.
    ///
    /// # Errors
    /// Of the requests; [`Problem::NameTaken`] if another process has the name, or writes it at the same time.
    pub async fn publish(&self, service: &Service) -> Result<Published, Error> {
        match &service.backend {
            Backend::Http(http) => self.publish_by_http(service, http).await,
            Backend::Etcd(etcd) => self.publish_in_etcd(service, etcd).await,
        }
    }

    async fn publish_by_http(
        &self,
        service: &Service,
        http: &HttpService,
    ) -> Result<Published, Error> {
        let name = &self.descriptor.name;
        let key = service.keys.rpc_meta(name);
        let wanted = self.rpc_meta.encode();
        let now = http.get(&key).await?;
        let mut published = Published::Unchanged;
        if !now.as_deref().is_some_and(|now| self.is_rpc_meta(now)) {
            published = Published::Written;
            if now.is_some() {
                // Stock servers do not replace this key.
                http.delete(&key).await?;
            }
            if !http.put(&key, &wanted).await? {
                return Err(service.error(None, Problem::NameTaken(name.as_str().into())));
            }
        }
        if !self.is_described(service).await? {
            published = Published::Written;
            let mut text = self.descriptor.encode();
            // HTTP values of stock engines have no newline.
            text.pop_if(|last| *last == b'\n');
            let key = service.keys.descriptor(name);
            if !http.put(&key, &text).await? {
                return Err(service.error(None, Problem::NameTaken(name.as_str().into())));
            }
        }
        Ok(published)
    }

    async fn publish_in_etcd(&self, service: &Service, etcd: &Etcd) -> Result<Published, Error> {
        let name = &self.descriptor.name;
        let lease = etcd.lease().await?;
        let mut missing = Vec::new();
        let key = service.keys.rpc_meta(name);
        let now = etcd.get(&key).await?;
        let same = now.as_ref().is_some_and(|now| self.is_rpc_meta(&now.bytes));
        if !(same && now.as_ref().is_some_and(|now| now.lease == lease)) {
            let mut value = self.rpc_meta.encode();
            // As stock engines write it to etcd.
            value.push(b'\n');
            missing.push((key, value, now, same));
        }
        let key = service.keys.descriptor(name);
        let now = etcd.get(&key).await?;
        let same = now
            .as_ref()
            .is_some_and(|now| self.is_descriptor(&now.bytes));
        if !(same && now.as_ref().is_some_and(|now| now.lease == lease)) {
            missing.push((key, self.descriptor.encode(), now, same));
        }
        if missing.is_empty() {
            return Ok(Published::Unchanged);
        }
        let taken = || service.error(None, Problem::NameTaken(name.as_str().into()));
        let own = etcd.has_name(name);
        let mut writes = Vec::new();
        for (key, value, now, same) in missing {
            let other = now.as_ref().map_or(0, |now| now.lease);
            // The same value is that of the predecessor of this process: wire bases are drawn at random. A process that
            // replaces the value of a living one is not respected.
            let free = same || own || other == 0 || other == lease;
            if !free && etcd.is_renewed(other).await? {
                return Err(taken());
            }
            let seen = now.map_or(0, |now| now.revision);
            writes.push(Write { key, value, seen });
        }
        if etcd.put(&writes, lease).await? {
            etcd.take_name(name);
            Ok(Published::Written)
        } else {
            Err(taken())
        }
    }

    /// Whether the service holds the descriptor. A check while nothing changes: one request, with etcd three, of which
    /// one renews the lease.
    ///
    /// # Errors
    /// Of the request.
    pub async fn is_described(&self, service: &Service) -> Result<bool, Error> {
        let key = service.keys.descriptor(&self.descriptor.name);
        match &service.backend {
            Backend::Http(http) => {
                let found = http.get(&key).await?;
                Ok(found.is_some_and(|found| self.is_descriptor(&found)))
            }
            Backend::Etcd(etcd) => {
                let lease = etcd.lease().await?;
                let found = etcd.get(&key).await?;
                Ok(found
                    .is_some_and(|found| found.lease == lease && self.is_descriptor(&found.bytes)))
            }
        }
    }

    /// Whether the service holds the address of the handshake listener. The same number of requests.
    ///
    /// # Errors
    /// Of the request.
    pub async fn is_reachable(&self, service: &Service) -> Result<bool, Error> {
        let key = service.keys.rpc_meta(&self.descriptor.name);
        match &service.backend {
            Backend::Http(http) => {
                let found = http.get(&key).await?;
                Ok(found.is_some_and(|found| self.is_rpc_meta(&found)))
            }
            Backend::Etcd(etcd) => {
                let lease = etcd.lease().await?;
                let found = etcd.get(&key).await?;
                Ok(found
                    .is_some_and(|found| found.lease == lease && self.is_rpc_meta(&found.bytes)))
            }
        }
    }

    fn is_rpc_meta(&self, found: &[u8]) -> bool {
        object(found) == object(&self.rpc_meta.encode())
    }

    fn is_descriptor(&self, found: &[u8]) -> bool {
        Descriptor::parse(found).is_ok_and(|found| self.describes(&found))
    }

    /// Compares what peers use; the time of publishing is not.
    fn describes(&self, found: &Descriptor) -> bool {
        let mut found = found.clone();
        found.timestamp.clone_from(&self.descriptor.timestamp);
        found == self.descriptor
    }

    /// Removes both keys, in the order of stock engines; in etcd what this process has published, and nothing that a
    /// successor of the same name has.
    ///
    /// # Errors
    /// Of the requests. The second key is tried where the first one fails.
    pub async fn withdraw(&self, service: &Service) -> Result<(), Error> {
        match &service.backend {
            Backend::Http(http) => {
                let name = &self.descriptor.name;
                let first = http.delete(&service.keys.rpc_meta(name)).await;
                let second = http.delete(&service.keys.descriptor(name)).await;
                first.and(second)
            }
            Backend::Etcd(etcd) => etcd.revoke().await,
        }
    }
}

fn object(bytes: &[u8]) -> Option<Value> {
    serde_json::from_slice(bytes).ok()
}
