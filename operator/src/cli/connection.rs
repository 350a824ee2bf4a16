//! One API server, asked with a deadline on each request. What goes wrong says which server, context
//! and object, and what to do.

use std::error::Error as StdError;
use std::fmt;
use std::fmt::Debug;
use std::path::PathBuf;
use std::time::Duration;

use kube::api::ListParams;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::core::DeserializeGuard;
use kube::{Api, Client, Config, Resource, ResourceExt};
use serde::de::DeserializeOwned;

use crate::cli::args::Flags;
use crate::cli::unseen::{Cause, Unseen, What};

/// Objects in one answer: at 8 KiB each, one comes within the deadline over a slow line.
const PAGE: u32 = 250;

/// Which API server is meant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// `None`: that of the pod in which this program runs.
    pub context: Option<String>,
    pub server: String,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { context, server } = self;
        match context {
            Some(context) => write!(f, "API server {server} (context {context})"),
            None => write!(f, "API server {server} (this pod's own)"),
        }
    }
}

/// Why nothing at all can be asked.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("kubeconfig {path}: {words}. Give another by --kubeconfig or KUBECONFIG")]
    Kubeconfig { path: String, words: String },
    #[error("context {context}: {words}. `kubectl config get-contexts` lists those that there are")]
    Context { context: String, words: String },
    #[error("{place}: no client can be made: {words}. See its entry in the kubeconfig")]
    Client { place: Place, words: String },
    #[error(
        "{place}: the program that gives the credentials did not end within {} s. Log in, or give \
         more by --timeout", limit.as_secs_f64()
    )]
    Credentials { place: Place, limit: Duration },
    #[error(
        "{place} is not reached: {words}. See the server's address, or choose another by --context"
    )]
    Unreachable { place: Place, words: String },
    #[error("{place} did not answer within {} s. See how it is, or give more by --timeout", limit.as_secs_f64())]
    Silent { place: Place, limit: Duration },
    #[error("{place} does not know you: {words}. Log in anew, or choose another --context")]
    Stranger { place: Place, words: String },
    #[error("{place}: {} {}: {}: {}. {}", unseen.what.as_str(), unseen.place, word(unseen.cause), unseen.message, unseen.remedy)]
    Object { place: Place, unseen: Unseen },
}

fn word(cause: Cause) -> &'static str {
    match cause {
        Cause::Forbidden => "forbidden",
        Cause::NotInstalled => "not installed",
        Cause::NotFound => "not found",
        Cause::Deadline => "no answer in time",
        Cause::Failed => "failed",
        Cause::NotUnderstood => "not understood",
    }
}

/// A server that answers.
#[derive(Clone)]
pub struct Connection {
    pub client: Client,
    pub place: Place,
    /// The context's.
    pub namespace: String,
    deadline: Duration,
}

impl Connection {
    /// Connects and asks for the server's version, which everybody may.
    ///
    /// # Errors
    /// Where nothing at all can be asked.
    pub async fn open(flags: &Flags) -> Result<Self, Error> {
        let limit = flags.timeout;
        let (mut config, context) = config(flags).await?;
        config.connect_timeout = Some(limit);
        config.read_timeout = Some(limit);
        // The deadline is the user's: trying again within it is theirs as well.
        config.default_retry = false;
        let place = Place {
            context,
            server: config.cluster_url.to_string(),
        };
        let namespace = config.default_namespace.clone();
        // A program that gives the credentials runs in here, and may wait for a person.
        let making = tokio::task::spawn_blocking(move || Client::try_from(config));
        let client = match tokio::time::timeout(limit, making).await {
            Err(_) => return Err(Error::Credentials { place, limit }),
            Ok(Err(panic)) => {
                let words = panic.to_string();
                return Err(Error::Client { place, words });
            }
            Ok(Ok(Err(error))) => {
                let words = chain(&error);
                return Err(Error::Client { place, words });
            }
            Ok(Ok(Ok(client))) => client,
        };
        match tokio::time::timeout(limit, client.apiserver_version()).await {
            Err(_) => Err(Error::Silent { place, limit }),
            Ok(Err(kube::Error::Api(status))) if status.code == 401 => {
                let words = status.message.clone();
                Err(Error::Stranger { place, words })
            }
            // It answers, and may keep its version to itself.
            Ok(Ok(_) | Err(kube::Error::Api(_))) => Ok(Self {
                client,
                place,
                namespace,
                deadline: limit,
            }),
            Ok(Err(error)) => {
                let words = chain(&error);
                Err(Error::Unreachable { place, words })
            }
        }
    }

    /// Every object, a page at a time; `labels` narrows them.
    ///
    /// # Errors
    /// What could not be looked at, and why.
    pub async fn list<K>(
        &self,
        what: What,
        scope: &str,
        api: &Api<K>,
        labels: Option<&str>,
    ) -> Result<Vec<K>, Unseen>
    where
        K: Clone + DeserializeOwned + Debug,
    {
        let mut params = ListParams::default().limit(PAGE);
        params.label_selector = labels.map(ToOwned::to_owned);
        self.pages(what, scope, api, params).await
    }

    /// Every object of one field.
    ///
    /// # Errors
    /// What could not be looked at, and why.
    pub async fn list_by_field<K>(
        &self,
        what: What,
        scope: &str,
        api: &Api<K>,
        fields: &str,
    ) -> Result<Vec<K>, Unseen>
    where
        K: Clone + DeserializeOwned + Debug,
    {
        let params = ListParams::default().limit(PAGE).fields(fields);
        self.pages(what, scope, api, params).await
    }

    async fn pages<K>(
        &self,
        what: What,
        scope: &str,
        api: &Api<K>,
        mut params: ListParams,
    ) -> Result<Vec<K>, Unseen>
    where
        K: Clone + DeserializeOwned + Debug,
    {
        let mut found = Vec::new();
        loop {
            let answer = tokio::time::timeout(self.deadline, api.list(&params)).await;
            let page = self.judge(what, scope, answer, Cause::NotInstalled)?;
            found.extend(page.items);
            match page.metadata.continue_ {
                Some(token) if !token.is_empty() => params = params.continue_token(&token),
                _ => return Ok(found),
            }
        }
    }

    /// As [`Self::list`], for kinds of ours: an object that is not understood hides no other.
    pub async fn list_ours<K>(
        &self,
        what: What,
        scope: &str,
        api: &Api<DeserializeGuard<K>>,
        unseen: &mut Vec<Unseen>,
    ) -> Vec<K>
    where
        K: Clone + DeserializeOwned + Debug + Resource<DynamicType = ()>,
    {
        let listed = match self.list(what, scope, api, None).await {
            Ok(listed) => listed,
            Err(not) => {
                unseen.push(not);
                return Vec::new();
            }
        };
        let mut found = Vec::new();
        for object in listed {
            match object.0 {
                Ok(object) => found.push(object),
                Err(invalid) => {
                    let meta = invalid.metadata;
                    let parts = [meta.namespace, meta.name].into_iter().flatten();
                    let name = parts.collect::<Vec<_>>().join("/");
                    let cause = Cause::NotUnderstood;
                    unseen.push(Unseen::new(what, name, cause, invalid.error));
                }
            }
        }
        found
    }

    /// One object.
    ///
    /// # Errors
    /// Why it could not be had; that there is none is [`Cause::NotFound`].
    pub async fn get<K>(&self, what: What, api: &Api<K>, name: &str) -> Result<K, Unseen>
    where
        K: Clone + DeserializeOwned + Debug,
    {
        let answer = tokio::time::timeout(self.deadline, api.get(name)).await;
        self.judge(what, name, answer, Cause::NotFound)
    }

    fn judge<T>(
        &self,
        what: What,
        place: &str,
        answer: Result<Result<T, kube::Error>, tokio::time::error::Elapsed>,
        absent: Cause,
    ) -> Result<T, Unseen> {
        let not = |cause, message| Err(Unseen::new(what, place, cause, message));
        match answer {
            Ok(Ok(answer)) => Ok(answer),
            Err(_) => not(
                Cause::Deadline,
                format!(
                    "{} did not answer within {} s",
                    self.place,
                    self.deadline.as_secs_f64()
                ),
            ),
            Ok(Err(kube::Error::Api(status))) => {
                let cause = match status.code {
                    403 => Cause::Forbidden,
                    // The server says `page not found` of a kind that it does not serve.
                    404 if status.details.as_ref().is_none_or(|d| d.name.is_empty()) => {
                        Cause::NotInstalled
                    }
                    404 => absent,
                    _ => Cause::Failed,
                };
                not(cause, status.message.clone())
            }
            Ok(Err(error @ kube::Error::SerdeError(_))) => not(Cause::NotUnderstood, chain(&error)),
            Ok(Err(error)) => not(Cause::Failed, format!("{}: {}", self.place, chain(&error))),
        }
    }
}

async fn config(flags: &Flags) -> Result<(Config, Option<String>), Error> {
    let read = match &flags.kubeconfig {
        Some(path) => Kubeconfig::read_from(path),
        None => Kubeconfig::read(),
    };
    let file = match read {
        Ok(file) => file,
        Err(error) => {
            // In a pod there is none, and none is needed.
            let asked = flags.kubeconfig.is_some() || flags.context.is_some();
            if !asked && let Ok(own) = Config::incluster() {
                return Ok((own, None));
            }
            let path = flags
                .kubeconfig
                .clone()
                .unwrap_or_else(|| PathBuf::from("(default)"));
            let (path, words) = (path.display().to_string(), chain(&error));
            return Err(Error::Kubeconfig { path, words });
        }
    };
    let context = flags
        .context
        .clone()
        .or_else(|| file.current_context.clone())
        .filter(|name| !name.is_empty());
    let options = KubeConfigOptions {
        context: context.clone(),
        ..KubeConfigOptions::default()
    };
    let by_proxy = has_proxy(&file, context.as_deref());
    match Config::from_custom_kubeconfig(file, &options).await {
        Ok(mut config) => {
            // HTTPS_PROXY stands for other programs: without a proxy in the kubeconfig, as most have
            // it in NO_PROXY, the server is asked directly.
            if !by_proxy {
                config.proxy_url = None;
            }
            Ok((config, context))
        }
        Err(error) => {
            let context = context.unwrap_or_else(|| "(none is current)".to_owned());
            let words = chain(&error);
            Err(Error::Context { context, words })
        }
    }
}

/// True where the kubeconfig itself names a proxy for the context.
fn has_proxy(file: &Kubeconfig, context: Option<&str>) -> bool {
    let context = file
        .contexts
        .iter()
        .find(|named| Some(named.name.as_str()) == context);
    let Some(context) = context.and_then(|named| named.context.as_ref()) else {
        return false;
    };
    file.clusters
        .iter()
        .filter(|named| named.name == context.cluster)
        .filter_map(|named| named.cluster.as_ref()?.proxy_url.as_ref())
        .any(|proxy| !proxy.is_empty())
}

/// An error with its causes, what an outer one repeats of an inner one left out.
fn chain(error: &dyn StdError) -> String {
    let mut words = error.to_string();
    let mut inner = error.source();
    while let Some(cause) = inner {
        let said = cause.to_string();
        if !words.contains(&said) {
            words = format!("{words}: {said}");
        }
        inner = cause.source();
    }
    words
}

/// The object's name with its namespace.
pub fn full_name<K: ResourceExt>(object: &K) -> String {
    match object.namespace() {
        Some(namespace) => format!("{namespace}/{}", object.name_any()),
        None => object.name_any(),
    }
}
