//! One connection to one member of an etcd, which has answered and has a leader.

use std::net::SocketAddr;

use etcd_client::{Client, ConnectOptions};
use proto::metadata::HostPort;
use tokio::time::timeout;

use super::{REQUEST_DEADLINE, failure};
use crate::connect::{CONNECT_DEADLINE, Lookup, connect};
use crate::error::Problem;

pub(super) struct Member {
    pub(super) client: Client,
    pub(super) address: SocketAddr,
}

impl Member {
    /// Connects, and requests the member's status: without a leader it answers nothing else.
    pub(super) async fn connect(
        endpoint: &HostPort,
        lookup: &Lookup,
    ) -> Result<Self, (Option<SocketAddr>, Problem)> {
        let mut last = None;
        // A connection of its own has the error of the system, which the client hides.
        let reached = connect(lookup, &endpoint.host, endpoint.port, &mut last).await;
        let (address, stream) = reached.map_err(|problem| (last, problem))?;
        drop(stream);
        let options = ConnectOptions::new().with_connect_timeout(CONNECT_DEADLINE);
        let failed = |problem| (Some(address), problem);
        // An address: this process may have no resolver. Nothing is sent yet.
        let client = Client::connect([format!("http://{address}")], Some(options)).await;
        let mut client = match client {
            Ok(client) => client,
            Err(error) => {
                return Err(failed(failure::of_request("Status", error, address).await));
            }
        };
        let status = match timeout(REQUEST_DEADLINE, client.status()).await {
            Ok(Ok(status)) => status,
            Ok(Err(error)) => {
                return Err(failed(failure::of_request("Status", error, address).await));
            }
            Err(_) => return Err(failed(Problem::Slow(REQUEST_DEADLINE))),
        };
        if status.leader() == 0 {
            return Err(failed(Problem::NoQuorum("".into())));
        }
        Ok(Self { client, address })
    }
}
