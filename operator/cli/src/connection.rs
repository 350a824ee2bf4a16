//! Reads objects from one API server, each request with a deadline. Errors name the server, the context, the
//! object and what to do.

use std::error::Error as StdError;
use std::fmt;
use std::fmt::Debug;
use std::path::PathBuf;
use std::time::Duration;

use kube::api::ListParams;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::core::DeserializeGuard;
use kube::{Api, Client, Config, Resource};
use serde::de::DeserializeOwned;
use tokio::time::error::Elapsed;
use tokio::time::timeout;

use crate::args::{Flags, proxy_variable};
use crate::read_error::{Cause, ReadError, Resources};

/// Objects in one response: 8 KiB each, so that a slow network transfers one within the deadline.
const LIMIT: u32 = 250;

/// The selected API server.
#[derive(Clone, Debug)]
pub struct Server {
    /// `None`: the cluster of the pod in which this program runs.
    pub context: Option<String>,
    pub url: String,
}

impl fmt::Display for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { context, url } = self;
        match context {
            Some(context) => write!(f, "API server {url} (context {context})"),
            None => write!(f, "API server {url} (in-cluster configuration)"),
        }
    }
}

/// The setting of a proxy, which this program does not use; `None`: there is none.
#[derive(Clone, Copy, Debug)]
pub struct UnusedProxy(Option<&'static str>);

impl fmt::Display for UnusedProxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(setting) = self.0 else {
            return Ok(());
        };
        write!(
            f,
            ". This program uses no proxy, and {setting} is set. If the API server is reached only through it, run \
             `kubectl proxy` and use a kubeconfig with the address that it shows"
        )
    }
}

/// Why no object can be read.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("Cannot read kubeconfig {path}: {cause}. Set --kubeconfig or KUBECONFIG")]
    Kubeconfig { path: String, cause: String },
    #[error(
        "Cannot use context {context}: {cause}. `kubectl config get-contexts` lists all contexts"
    )]
    Context { context: String, cause: String },
    #[error(
        "Cannot create a client for {server}: {cause}. Check its entry in the kubeconfig{proxy}"
    )]
    Client {
        server: Server,
        cause: String,
        proxy: UnusedProxy,
    },
    #[error(
        "The credential plugin for {server} did not end within {} s. Log in, or increase --timeout",
        limit.as_secs_f64()
    )]
    Credentials { server: Server, limit: Duration },
    #[error(
        "Cannot connect to {server}: {cause}. Check the address, or use another --context{proxy}"
    )]
    Unreachable {
        server: Server,
        cause: String,
        proxy: UnusedProxy,
    },
    #[error(
        "{server} did not respond within {} s. Check its health, or increase --timeout{proxy}",
        limit.as_secs_f64()
    )]
    Timeout {
        server: Server,
        limit: Duration,
        proxy: UnusedProxy,
    },
    #[error("{server} rejected the credentials: {cause}. Log in again, or use another --context")]
    Unauthorized { server: Server, cause: String },
    #[error("{server}: {error}")]
    Read { server: Server, error: ReadError },
}

/// A server that has responded.
#[derive(Clone)]
pub struct Connection {
    pub client: Client,
    pub server: Server,
    /// Namespace of the context.
    pub namespace: String,
    deadline: Duration,
}

impl Connection {
    /// Connects and requests the server's version, which every user may read.
    ///
    /// # Errors
    /// An invalid kubeconfig or context, a credential plugin that fails, a server that does not respond or
    /// rejects the credentials.
    pub async fn open(flags: &Flags) -> Result<Self, Error> {
        let limit = flags.timeout;
        let (mut config, context) = config(flags).await?;
        config.connect_timeout = Some(limit);
        config.read_timeout = Some(limit);
        // A retry would exceed the deadline that the user chose.
        config.default_retry = false;
        let server = Server {
            context,
            url: config.cluster_url.to_string(),
        };
        let of_kubeconfig = config.proxy_url.is_some().then_some("proxy-url");
        let proxy = UnusedProxy(of_kubeconfig.or_else(proxy_variable));
        let namespace = config.default_namespace.clone();
        // Runs the credential plugin, which may wait for input.
        let client = tokio::task::spawn_blocking(move || Client::try_from(config));
        let client = match timeout(limit, client).await {
            Err(_) => return Err(Error::Credentials { server, limit }),
            Ok(Err(panic)) => Err(panic.to_string()),
            Ok(Ok(client)) => client.map_err(|error| chain(&error)),
        };
        let client = match client {
            Ok(client) => client,
            Err(cause) => {
                return Err(Error::Client {
                    server,
                    cause,
                    proxy,
                });
            }
        };
        match timeout(limit, client.apiserver_version()).await {
            Err(_) => Err(Error::Timeout {
                server,
                limit,
                proxy,
            }),
            Ok(Err(kube::Error::Api(status))) if status.code == 401 => {
                let cause = status.message.clone();
                Err(Error::Unauthorized { server, cause })
            }
            // Any other response will do: a server may forbid its version.
            Ok(Ok(_) | Err(kube::Error::Api(_))) => Ok(Self {
                client,
                server,
                namespace,
                deadline: limit,
            }),
            Ok(Err(error)) => {
                let cause = chain(&error);
                Err(Error::Unreachable {
                    server,
                    cause,
                    proxy,
                })
            }
        }
    }

    /// Deadline of each request.
    pub fn deadline(&self) -> Duration {
        self.deadline
    }

    /// Lists all objects that `params` selects, in chunks.
    ///
    /// # Errors
    /// Every [`Cause`] but `NotFound`.
    pub async fn list<K>(
        &self,
        resource: Resources,
        scope: &str,
        api: &Api<K>,
        params: ListParams,
    ) -> Result<Vec<K>, ReadError>
    where
        K: Clone + DeserializeOwned + Debug,
    {
        let mut params = params.limit(LIMIT);
        let mut found = Vec::new();
        loop {
            let response = timeout(self.deadline, api.list(&params)).await;
            let chunk = self.check(resource, scope, response, Cause::NotInstalled)?;
            found.extend(chunk.items);
            match chunk.metadata.continue_ {
                Some(token) if !token.is_empty() => params = params.continue_token(&token),
                _ => return Ok(found),
            }
        }
    }

    /// Lists all objects of a Mooncake kind; one that cannot be decoded does not hide the others.
    pub async fn list_ours<K>(
        &self,
        resource: Resources,
        scope: &str,
        api: &Api<DeserializeGuard<K>>,
    ) -> (Vec<K>, Vec<ReadError>)
    where
        K: Clone + DeserializeOwned + Debug + Resource<DynamicType = ()>,
    {
        let (mut found, mut errors) = (Vec::new(), Vec::new());
        match self.list(resource, scope, api, ListParams::default()).await {
            Err(error) => errors.push(error),
            Ok(listed) => {
                for object in listed {
                    match object.0 {
                        Ok(object) => found.push(object),
                        Err(invalid) => {
                            let meta = invalid.metadata;
                            let name = [meta.namespace, meta.name].into_iter().flatten();
                            let name = name.collect::<Vec<_>>().join("/");
                            let cause = Cause::DecodeFailed;
                            errors.push(ReadError::new(resource, name, cause, invalid.error));
                        }
                    }
                }
            }
        }
        (found, errors)
    }

    /// Reads one object.
    ///
    /// # Errors
    /// Every [`Cause`].
    pub async fn get<K>(
        &self,
        resource: Resources,
        api: &Api<K>,
        name: &str,
    ) -> Result<K, ReadError>
    where
        K: Clone + DeserializeOwned + Debug,
    {
        let response = timeout(self.deadline, api.get(name)).await;
        self.check(resource, name, response, Cause::NotFound)
    }

    /// Runs one request of another kind.
    ///
    /// # Errors
    /// Every [`Cause`].
    pub async fn request<T>(
        &self,
        resource: Resources,
        scope: &str,
        request: impl Future<Output = kube::Result<T>>,
    ) -> Result<T, ReadError> {
        let response = timeout(self.deadline, request).await;
        self.check(resource, scope, response, Cause::NotFound)
    }

    fn check<T>(
        &self,
        resource: Resources,
        scope: &str,
        response: Result<Result<T, kube::Error>, Elapsed>,
        absent: Cause,
    ) -> Result<T, ReadError> {
        let (cause, message) = match response {
            Ok(Ok(object)) => return Ok(object),
            Err(_) => {
                let limit = self.deadline.as_secs_f64();
                let message = format!("{} did not respond within {limit} s", self.server);
                (Cause::Timeout, message)
            }
            Ok(Err(kube::Error::Api(status))) => {
                let cause = match status.code {
                    403 => Cause::Forbidden,
                    // `page not found`, without an object's name, means that the kind is not served.
                    404 if status.details.as_ref().is_none_or(|d| d.name.is_empty()) => {
                        Cause::NotInstalled
                    }
                    404 => absent,
                    _ => Cause::Failed,
                };
                (cause, status.message.clone())
            }
            Ok(Err(error @ kube::Error::SerdeError(_))) => (Cause::DecodeFailed, chain(&error)),
            Ok(Err(error)) => (Cause::Failed, format!("{}: {}", self.server, chain(&error))),
        };
        Err(ReadError::new(resource, scope, cause, message))
    }
}

async fn config(flags: &Flags) -> Result<(Config, Option<String>), Error> {
    let file = match &flags.kubeconfig {
        Some(path) => Kubeconfig::read_from(path),
        None => Kubeconfig::read(),
    };
    let file = match file {
        Ok(file) => file,
        Err(error) => {
            // A pod needs no kubeconfig.
            let explicit = flags.kubeconfig.is_some() || flags.context.is_some();
            if !explicit && let Ok(own) = Config::incluster() {
                return Ok((own, None));
            }
            let path = flags.kubeconfig.clone();
            let path = path.unwrap_or_else(|| PathBuf::from("(default)"));
            return Err(Error::Kubeconfig {
                path: path.display().to_string(),
                cause: chain(&error),
            });
        }
    };
    let context = flags
        .context
        .clone()
        .or_else(|| file.current_context.clone());
    let context = context.filter(|name| !name.is_empty());
    let options = KubeConfigOptions {
        context: context.clone(),
        ..KubeConfigOptions::default()
    };
    let has_proxy = has_proxy(&file, context.as_deref()).unwrap_or(false);
    match Config::from_custom_kubeconfig(file, &options).await {
        Ok(mut config) => {
            // HTTPS_PROXY is meant for other programs; most users exclude the API server by NO_PROXY.
            if !has_proxy {
                config.proxy_url = None;
            }
            Ok((config, context))
        }
        Err(error) => Err(Error::Context {
            context: context.unwrap_or_else(|| "(no current context)".to_owned()),
            cause: chain(&error),
        }),
    }
}

/// True when the kubeconfig sets `proxy-url` for the context's cluster.
fn has_proxy(file: &Kubeconfig, context: Option<&str>) -> Option<bool> {
    let mut contexts = file.contexts.iter();
    let context = contexts.find(|named| Some(named.name.as_str()) == context)?;
    let cluster = &context.context.as_ref()?.cluster;
    let mut clusters = file.clusters.iter();
    let cluster = clusters.find(|named| named.name == *cluster)?;
    let proxy = cluster.cluster.as_ref()?.proxy_url.as_ref()?;
    Some(!proxy.is_empty())
}

/// An error with its causes, without those that the outer message repeats.
fn chain(error: &dyn StdError) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let message = cause.to_string();
        if !text.contains(&message) {
            text = format!("{text}: {message}");
        }
        source = cause.source();
    }
    text
}
