//! One connection to one member of an etcd, which has answered and has a leader.

use std::net::SocketAddr;
use std::sync::Arc;

use etcd_client::{Channel, Client, ConnectOptions};
use proto::metadata::HostPort;
use tokio::time::timeout;
use tonic::transport::Endpoint;

use super::credentials::{Credentials, Identity};
use super::tls::Connector;
use super::{REQUEST_DEADLINE, failure};
use crate::connect::{CONNECT_DEADLINE, Lookup, connect};
use crate::error::Problem;

/// With which connections are made: nothing, or what a Secret had at one time.
#[derive(Clone, Default)]
pub(super) struct Login(Option<Secured>);

#[derive(Clone)]
struct Secured {
    secret: Arc<str>,
    /// Of the credentials.
    version: u64,
    identity: Identity,
}

impl Login {
    pub(super) fn new(secret: Arc<str>, version: u64, identity: Identity) -> Self {
        Self(Some(Secured {
            secret,
            version,
            identity,
        }))
    }

    /// Whether these are what the Secret has now.
    pub(super) fn is_current(&self, credentials: Option<&Credentials>) -> bool {
        self.0.as_ref().map(|secured| secured.version) == credentials.map(Credentials::version)
    }

    /// The cause that another member would report too; `None`: another one may work.
    pub(super) fn of_cluster(
        &self,
        operation: &'static str,
        error: &etcd_client::Error,
    ) -> Option<Problem> {
        let problem = failure::of_cluster(operation, error)?;
        Some(match (problem, &self.0) {
            (Problem::Denied(message), Some(secured)) => Problem::LoginRefused {
                secret: Arc::clone(&secured.secret),
                message,
            },
            (problem, _) => problem,
        })
    }
}

pub(super) struct Member {
    pub(super) client: Client,
    pub(super) address: SocketAddr,
    pub(super) login: Login,
    /// `None` without TLS.
    connector: Option<Connector>,
}

impl Member {
    /// Connects, and requests the member's status: without a leader it answers nothing else.
    pub(super) async fn connect(
        endpoint: &HostPort,
        lookup: &Lookup,
        login: &Login,
    ) -> Result<Self, (Option<SocketAddr>, Problem)> {
        let mut last = None;
        // A connection of its own has the error of the system, which the client hides.
        let reached = connect(lookup, &endpoint.host, endpoint.port, &mut last).await;
        let (address, stream) = reached.map_err(|problem| (last, problem))?;
        drop(stream);
        let failed = |problem| (Some(address), problem);
        let opened = timeout(REQUEST_DEADLINE, Self::open(endpoint, address, login)).await;
        let member = opened
            .unwrap_or(Err(Problem::Slow(REQUEST_DEADLINE)))
            .map_err(failed)?;
        let status = match timeout(REQUEST_DEADLINE, member.client.clone().status()).await {
            Ok(Ok(status)) => status,
            // The user is accepted, and each of its requests fails at a member without a leader.
            Ok(Err(error)) if login.0.is_some() && failure::is_forbidden(&error) => {
                return Ok(member);
            }
            Ok(Err(error)) => return Err(failed(member.failure("Status", error).await)),
            Err(_) => return Err(failed(Problem::Slow(REQUEST_DEADLINE))),
        };
        if status.leader() == 0 {
            return Err(failed(Problem::NoQuorum("".into())));
        }
        Ok(member)
    }

    async fn open(
        endpoint: &HostPort,
        address: SocketAddr,
        login: &Login,
    ) -> Result<Self, Problem> {
        let options = ConnectOptions::new().with_connect_timeout(CONNECT_DEADLINE);
        let member = |client, connector| Self {
            client,
            address,
            login: login.clone(),
            connector,
        };
        let Some(Secured {
            secret, identity, ..
        }) = &login.0
        else {
            // An address: this process may have no resolver. Nothing is sent yet.
            let client = Client::connect([format!("http://{address}")], Some(options)).await;
            return match client {
                Ok(client) => Ok(member(client, None)),
                Err(error) => Err(failure::of_request("Status", error, address).await),
            };
        };
        let connector = Connector::new(&endpoint.host, address, secret, identity)?;
        let channel = match Endpoint::from_shared(format!("https://{}", endpoint.authority)) {
            Ok(to) => to
                .connect_timeout(CONNECT_DEADLINE)
                .connect_with_connector(connector.clone())
                .await
                .map_err(etcd_client::Error::from),
            Err(error) => Err(error.into()),
        };
        let channel = match channel {
            Ok(channel) => channel,
            Err(error) => return Err(connector.failure(&error).await),
        };
        let options = options.with_require_leader(true);
        let open = |user: Option<&(String, String)>| {
            let options = match user {
                Some((name, password)) => options.clone().with_user(name, password),
                None => options.clone(),
            };
            Client::from_channel(Channel::Tonic(channel.clone()), Some(options))
        };
        let mut client = open(identity.user.as_ref()).await;
        // An etcd without users needs none, as for etcdctl.
        if client.as_ref().is_err_and(failure::is_without_users) {
            client = open(None).await;
        }
        match client {
            Ok(client) => Ok(member(client, Some(connector))),
            Err(error) => Err(match login.of_cluster("Authenticate", &error) {
                Some(problem) => problem,
                None => connector.failure(&error).await,
            }),
        }
    }

    /// The cause of a request that failed on this connection, which is new.
    pub(super) async fn failure(
        &self,
        operation: &'static str,
        error: etcd_client::Error,
    ) -> Problem {
        if let Some(problem) = self.login.of_cluster(operation, &error) {
            return problem;
        }
        match &self.connector {
            Some(connector) if !failure::is_answered(&error) => connector.failure(&error).await,
            _ => failure::of_request(operation, error, self.address).await,
        }
    }
}
