//! Keeps a Secret with a certificate, what its clients trust, and the served certificate consistent. Every replica reads
//! the Secret; the leader also writes.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use http_server::Resolver;
use jiff::Timestamp;
use k8s_openapi::ByteString;
use k8s_openapi::api::admissionregistration::v1::MutatingWebhookConfiguration;
use k8s_openapi::api::core::v1::Secret;
use kube::api::{Patch, PatchParams};
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Client, ResourceExt};
use serde_json::json;
use tokio::sync::watch;
use tracing::{info, warn};

use super::identity::{Identity, IssueError, Stored};
use super::schedule::{Action, Schedule, decide};

/// Owner of what the leader writes.
const FIELD_MANAGER: &str = "mooncake-operator-certificates";
/// Key in the Secret.
const DATA_KEY: &str = "identity.json";
/// Key with the authorities to trust, PEM, by the name that readers of metrics know.
const AUTHORITY_KEY: &str = "ca.crt";
/// Keys with the current leaf and its key for servers that mount the Secret, PEM.
const LEAF_KEYS: [&str; 2] = ["tls.crt", "tls.key"];
/// Delay after a failed write.
const RETRY: Duration = Duration::from_secs(5);
/// Time for a write. Without an answer the watches would not be read either, and no change be seen until a restart.
const WRITE_DEADLINE: Duration = Duration::from_secs(10);
/// Longest interval between two checks of the clock.
const LONGEST_SLEEP: Duration = Duration::from_secs(3600);

/// Why a write of the leader failed. It is retried.
#[derive(Debug, thiserror::Error)]
enum StepError {
    #[error(transparent)]
    Issue(#[from] IssueError),
    #[error("Secret `{name}` could not be written: {cause}")]
    Secret { name: String, cause: kube::Error },
    #[error("the API server did not answer the write of {object} within {WRITE_DEADLINE:?}")]
    Deadline { object: String },
    #[error("caBundle of MutatingWebhookConfiguration `{name}` could not be written: {cause}")]
    Bundle { name: String, cause: kube::Error },
}

/// Who serves the certificate, and who trusts it.
pub enum Endpoint {
    /// This process serves it to API servers, which trust the caBundle of this MutatingWebhookConfiguration.
    Webhooks(String, Arc<Resolver>),
    /// Pods that mount the Secret serve it under this DNS name to clients that read the authorities in the Secret.
    Pods(String),
}

/// The observed objects.
#[derive(Default)]
struct View {
    /// Whether the Secret was read, also if it does not exist.
    secret_seen: bool,
    resource_version: Option<String>,
    stored: Option<Stored>,
    /// The authorities in the Secret.
    authorities: Option<Vec<u8>>,
    configuration: Option<MutatingWebhookConfiguration>,
    /// Since when the configuration contains the stored bundle.
    published: Option<Timestamp>,
}

/// See the documentation of the module.
pub struct Keeper {
    secrets: Api<Secret>,
    configurations: Api<MutatingWebhookConfiguration>,
    secret: String,
    endpoint: Endpoint,
    schedule: Schedule,
}

impl Keeper {
    pub fn new(
        client: Client,
        namespace: &str,
        secret: String,
        endpoint: Endpoint,
        schedule: Schedule,
    ) -> Self {
        Self {
            secrets: Api::namespaced(client.clone(), namespace),
            configurations: Api::all(client),
            secret,
            endpoint,
            schedule,
        }
    }

    /// Reads the Secret and, while `leader` is true, writes it. Never ends.
    pub async fn run(self, mut leader: watch::Receiver<bool>) -> Infallible {
        let mut secrets = watcher::watch_object(self.secrets.clone(), &self.secret)
            .default_backoff()
            .boxed();
        let mut configurations = match &self.endpoint {
            Endpoint::Webhooks(name, _) => watcher::watch_object(self.configurations.clone(), name)
                .default_backoff()
                .boxed(),
            Endpoint::Pods(_) => futures::stream::pending().boxed(),
        };
        let mut view = View::default();
        let mut sleep = LONGEST_SLEEP;
        loop {
            tokio::select! {
                Some(event) = secrets.next() => match event {
                    Ok(secret) => self.take_secret(&mut view, secret),
                    Err(error) => warn!(%error, secret = self.secret, "cannot watch the Secret"),
                },
                Some(event) = configurations.next() => match event {
                    Ok(configuration) => view.configuration = configuration,
                    Err(error) => warn!(%error, "MutatingWebhookConfiguration cannot be watched"),
                },
                Ok(()) = leader.changed() => view.published = None,
                () = tokio::time::sleep(sleep) => {}
            }
            sleep = if *leader.borrow() {
                match self.lead(&mut view).await {
                    Ok(sleep) => sleep,
                    Err(error) => {
                        warn!(%error, secret = self.secret, "certificate: step failed, tried again");
                        RETRY
                    }
                }
            } else {
                LONGEST_SLEEP
            };
        }
    }

    fn take_secret(&self, view: &mut View, secret: Option<Secret>) {
        view.secret_seen = true;
        view.resource_version = secret.as_ref().and_then(ResourceExt::resource_version);
        let data = secret.and_then(|s| s.data);
        let value = |key: &str| data.as_ref().and_then(|data| data.get(key));
        let text = value(DATA_KEY);
        view.authorities = value(AUTHORITY_KEY).map(|ByteString(text)| text.clone());
        let stored = text.and_then(|ByteString(text)| {
            Stored::decode(text)
                .inspect_err(|error| warn!(%error, secret = self.secret, "certificate ignored"))
                .ok()
        });
        let served = view.stored.as_ref().map(|s| &s.current);
        if let Some(stored) = &stored
            && served != Some(&stored.current)
        {
            let loaded = match &self.endpoint {
                Endpoint::Webhooks(_, resolver) => {
                    let Identity {
                        certificate, key, ..
                    } = &stored.current;
                    resolver.load(certificate.as_bytes(), key.as_bytes())
                }
                Endpoint::Pods(_) => Ok(()),
            };
            match loaded {
                Ok(()) => {
                    info!(until = %stored.current.not_after, secret = self.secret, "certificate in use");
                }
                Err(error) => warn!(%error, secret = self.secret, "certificate refused"),
            }
        }
        view.stored = stored;
    }

    /// Performs the next action and returns the time until another one is due.
    async fn lead(&self, view: &mut View) -> Result<Duration, StepError> {
        if !view.secret_seen {
            return Ok(LONGEST_SLEEP);
        }
        let names = match (&self.endpoint, &view.configuration) {
            (Endpoint::Webhooks(..), Some(configuration)) => server_names(configuration),
            (Endpoint::Webhooks(..), None) => return Ok(LONGEST_SLEEP),
            (Endpoint::Pods(name), _) => vec![name.clone()],
        };
        if names.is_empty() {
            warn!(
                secret = self.secret,
                "no webhook names a Service: nothing to certify"
            );
            return Ok(LONGEST_SLEEP);
        }
        let now = Timestamp::now();
        if let Some(stored) = &view.stored {
            let bundle = stored.bundle();
            // A Secret of release 0.1.0 has only the identity.
            if view.authorities.as_deref() != Some(bundle.as_bytes()) {
                let version = view.resource_version.as_deref();
                let secret = self.write(version, stored).await?;
                self.take_secret(view, Some(secret));
                return Ok(Duration::ZERO);
            }
            match &view.configuration {
                Some(configuration) if !carries(configuration, &bundle) => {
                    view.published = None;
                    view.configuration = Some(self.publish(configuration, &bundle).await?);
                    return Ok(Duration::ZERO);
                }
                // Without webhooks, the Secret alone publishes the authorities.
                Some(_) | None => view.published.get_or_insert(now),
            };
        }
        let stored = view.stored.as_ref();
        let issue = || Identity::issue(&names, now, self.schedule.lifetime);
        let action = decide(now, &self.schedule, &names, stored, view.published);
        let changed = match (action, stored) {
            (Action::Wait(until), _) => {
                let left = Duration::try_from(until.duration_since(now)).unwrap_or_default();
                return Ok(left.min(LONGEST_SLEEP));
            }
            (Action::Prepare, Some(stored)) => stored.prepared(issue()?),
            (Action::Promote, Some(stored)) => stored.promoted(now),
            (Action::Retire, Some(stored)) => stored.retired(),
            (Action::Create | Action::Prepare | Action::Promote | Action::Retire, before) => {
                Stored::first(issue()?, now, before)
            }
        };
        info!(?action, secret = self.secret, "certificate changes");
        let secret = self
            .write(view.resource_version.as_deref(), &changed)
            .await?;
        view.published = None;
        self.take_secret(view, Some(secret));
        Ok(Duration::ZERO)
    }

    /// Writes the Secret. The resource version prevents that it overwrites the write of another leader.
    async fn write(
        &self,
        resource_version: Option<&str>,
        stored: &Stored,
    ) -> Result<Secret, StepError> {
        let mut metadata = json!({ "name": self.secret });
        if let Some(version) = resource_version {
            metadata["resourceVersion"] = json!(version);
        }
        let mut data = json!({
            DATA_KEY: ByteString(stored.encode()),
            AUTHORITY_KEY: ByteString(stored.bundle().into_bytes()),
        });
        if let Endpoint::Pods(_) = self.endpoint {
            let Identity {
                certificate, key, ..
            } = &stored.current;
            for (name, text) in LEAF_KEYS.into_iter().zip([certificate, key]) {
                data[name] = json!(ByteString(text.clone().into_bytes()));
            }
        }
        let secret = json!({
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": metadata,
            "data": data,
        });
        let params = PatchParams::apply(FIELD_MANAGER).force();
        let name = self.secret.clone();
        let secret = Patch::Apply(secret);
        let write = self.secrets.patch(&self.secret, &params, &secret);
        match tokio::time::timeout(WRITE_DEADLINE, write).await {
            Ok(written) => written.map_err(|cause| StepError::Secret { name, cause }),
            Err(_) => Err(StepError::Deadline {
                object: format!("Secret `{name}`"),
            }),
        }
    }

    /// Writes the caBundle of every webhook of the configuration, and no other field.
    async fn publish(
        &self,
        configuration: &MutatingWebhookConfiguration,
        bundle: &str,
    ) -> Result<MutatingWebhookConfiguration, StepError> {
        let name = configuration.name_any();
        let bundle = ByteString(bundle.as_bytes().to_vec());
        let webhooks: Vec<_> = configuration
            .webhooks
            .iter()
            .flatten()
            .map(|webhook| json!({ "name": webhook.name, "clientConfig": { "caBundle": bundle } }))
            .collect();
        let patch = json!({
            "apiVersion": "admissionregistration.k8s.io/v1",
            "kind": "MutatingWebhookConfiguration",
            "metadata": { "name": name },
            "webhooks": webhooks,
        });
        let params = PatchParams::apply(FIELD_MANAGER).force();
        let patch = Patch::Apply(patch);
        let write = self.configurations.patch(&name, &params, &patch);
        let written = match tokio::time::timeout(WRITE_DEADLINE, write).await {
            Ok(Ok(written)) => written,
            Ok(Err(cause)) => return Err(StepError::Bundle { name, cause }),
            Err(_) => {
                return Err(StepError::Deadline {
                    object: format!("MutatingWebhookConfiguration `{name}`"),
                });
            }
        };
        info!(configuration = name, "caBundle written");
        Ok(written)
    }
}

/// The names by which API servers call the webhooks.
fn server_names(configuration: &MutatingWebhookConfiguration) -> Vec<String> {
    let mut names: Vec<String> = configuration
        .webhooks
        .iter()
        .flatten()
        .filter_map(|webhook| webhook.client_config.service.as_ref())
        .map(|service| format!("{}.{}.svc", service.name, service.namespace))
        .collect();
    names.sort();
    names.dedup();
    names
}

/// Whether every webhook of the configuration trusts exactly this bundle.
fn carries(configuration: &MutatingWebhookConfiguration, bundle: &str) -> bool {
    let mut webhooks = configuration.webhooks.iter().flatten();
    webhooks.all(|webhook| {
        let present = webhook.client_config.ca_bundle.as_ref();
        present.is_some_and(|ByteString(present)| present == bundle.as_bytes())
    })
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;

    #[tokio::test]
    async fn a_write_without_an_answer_fails_so_that_changes_are_still_read() {
        // Connections are accepted by the kernel, and nothing reads them.
        let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", silent.local_addr().unwrap());
        let client = Client::try_from(kube::Config::new(url.parse().unwrap())).unwrap();
        let (endpoint, schedule) = (Endpoint::Pods("a.team.svc".to_owned()), Schedule::default());
        let keeper = Keeper::new(client, "team", "tls".to_owned(), endpoint, schedule);
        let now = Timestamp::now();
        let identity = Identity::issue(&["a.team.svc".to_owned()], now, schedule.lifetime).unwrap();
        let stored = Stored::first(identity, now, None);
        let configuration = MutatingWebhookConfiguration::default();
        let writes = async {
            tokio::join!(
                keeper.write(None, &stored),
                keeper.publish(&configuration, "")
            )
        };
        let (secret, bundle) = tokio::time::timeout(Duration::from_secs(60), writes)
            .await
            .expect("it waits for ever");
        let [secret, bundle] = [secret.unwrap_err(), bundle.unwrap_err()].map(|e| e.to_string());
        assert!(
            secret.contains("write of Secret `tls` within 10s"),
            "{secret}"
        );
        assert!(bundle.contains("MutatingWebhookConfiguration"), "{bundle}");
    }
}
