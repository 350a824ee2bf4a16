//! `kubectl-mooncake` against a real API server: output and exit status without Mooncake, on a healthy and on a
//! degraded installation, for an administrator and for a tenant.

mod drain;
#[allow(
    dead_code,
    reason = "shared with the tests of the operator, which use all of it"
)]
#[path = "../../../tests/api_server/harness.rs"]
mod harness;
mod installation;
mod preflight;
#[allow(
    dead_code,
    reason = "shared with the tests of the operator, which use all of it"
)]
#[path = "../../../tests/api_server/server.rs"]
mod server;

use harness::Harness;
use server::Server;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "builds etcd and kube-apiserver where the cache lacks them"]
async fn output_and_exit_status_match_the_installation_and_the_users_permissions()
-> anyhow::Result<()> {
    let server = Server::start().await?;
    installation::absent(&server).await?;
    let harness = Harness::new(&server.client).await?;
    harness.ready().await?;
    installation::complete(&server.client).await?;
    installation::healthy(&server).await?;
    installation::tenant(&server).await?;
    installation::degraded(&server, &harness).await?;
    installation::bundle(&server).await?;
    installation::undecodable_policy(&server).await?;
    drain::changes_one_label_of_the_node(&server).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "builds etcd and kube-apiserver where the cache lacks them"]
async fn preflight_finds_obstacles_before_the_installation_and_stores_nothing() -> anyhow::Result<()>
{
    let server = Server::start().await?;
    preflight::before_the_installation(&server).await
}
