//! Tenants of a built-in master: each stock client reads the keys of its own tenant, puts above a quota are refused, and a changed quota
//! restarts nothing.

use super::agent_restart::none_restarted;
use super::built_in_master::ledgers;
use anyhow::ensure;
use crds::Reason;
use crds::names::MASTER_OPEN_PORT;
use mooncake_e2e::scenario::pool::READY;
use mooncake_e2e::scenario::{CommandPod, Namespace, Pool, Product, Seen, eventually, master};
use serde_json::json;
use std::time::Duration;

const PROGRAM: &str = include_str!("../workload/tenants.py");
const WAIT: Duration = Duration::from_secs(150);
/// Keys of 1 MiB that fit into the first quota of the tenant `a`.
const FIT: u64 = 8;
/// Codes of the stock master.
const OVER_QUOTA: i64 = -1700;
const NOT_REGISTERED: i64 = -1701;

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a local cluster: root and 4 GiB of memory"]
async fn tenants_have_their_own_keys_and_quotas_that_change_without_a_restart() -> anyhow::Result<()>
{
    let product = Product::shared().await?;
    product
        .run("tenants", async move |product, namespace| {
            let pool = with_quota(&namespace, FIT).await?;
            pool.ready(READY).await?;
            ledgers(&pool, 2).await?;
            let client = CommandPod::start(&namespace, "client", "n1", "kv", PROGRAM).await?;
            let put = |tenant, first, keys| {
                json!({"command": "put", "tenant": tenant, "first": first, "keys": keys})
            };
            for tenant in ["default", "a"] {
                let codes = client.run(put(tenant, 0, FIT), WAIT).await?;
                let codes = codes.as_array().cloned().unwrap_or_default();
                ensure!(codes.iter().all(|code| *code == 0), "{tenant}: {codes:?}");
            }
            // The same keys have other values, and no tenant evicts for the other.
            for tenant in ["default", "a"] {
                let verify = json!({"command": "verify", "tenant": tenant, "keys": FIT});
                let found = client.run(verify, WAIT).await?;
                ensure!(found["right"] == FIT, "{tenant}: {found}");
            }
            let exceed = json!({"command": "exceed", "tenant": "a", "keys": FIT});
            let code = client.run(exceed.clone(), WAIT).await?;
            ensure!(code == OVER_QUOTA, "above the quota: {code}");
            let codes = client.run(put("other", 0, 1), WAIT).await?;
            ensure!(codes == json!([NOT_REGISTERED]), "without a quota: {codes}");
            counted(&pool).await?;
            let words = ["keys", "kv", "-n", &namespace.name, "--tenant=a"];
            let found = product.cli(&words).await?;
            ensure!(found.contains(&format!(", tenant a: {FIT} keys, ")), "{found}");
            let doctor = product.doctor().await;
            for finding in [Reason::TenantOverQuota, Reason::TenantUnknown] {
                ensure!(doctor.contains(finding.as_str()), "no {finding}: {doctor}");
            }

            let before = pool.masters().await?;
            with_quota(&namespace, 2 * FIT).await?;
            eventually("the larger quota", READY, || async {
                let code = client.run(exceed.clone(), WAIT).await?;
                Ok(Seen::when((code == 0).then_some(()), code))
            })
            .await?;
            none_restarted(&before, &pool.masters().await?)
        })
        .await
}

/// Applies the cluster `kv` with this quota of the tenant `a`, in MiB.
async fn with_quota(namespace: &Namespace, mebibytes: u64) -> anyhow::Result<Pool> {
    let spec = format!(
        "{{pools: [{{name: default, size: 256Mi, drainSeconds: 2}}], master: {{type: BuiltIn,
            tenants: [{{name: default, quota: 64Mi}}, {{name: a, quota: {mebibytes}Mi}}]}}}}"
    );
    Pool::apply(namespace, "kv", &spec).await
}

/// The master counts refused puts, and charges the tenant what it has put.
async fn counted(pool: &Pool) -> anyhow::Result<()> {
    let metrics = master::get(&pool.master_ip().await?, MASTER_OPEN_PORT, "/metrics").await?;
    let lines: Vec<_> = metrics
        .lines()
        .filter(|line| line.starts_with("mooncake_tenant_"))
        .collect();
    let counts = |name: &str, labels: &[&str], least: u64| {
        lines.iter().any(|line| {
            let value = line.rsplit(' ').next().and_then(|value| value.parse().ok());
            line.starts_with(name)
                && labels.iter().all(|label| line.contains(label))
                && value.is_some_and(|value: u64| value >= least)
        })
    };
    let a = "tenant_id=\"a\"";
    ensure!(
        counts("mooncake_tenant_quota_reject_total{", &[a], 1)
            && counts(
                "mooncake_tenant_quota_reject_total{",
                &["not_registered"],
                1
            )
            && counts("mooncake_tenant_keys{", &[a], FIT),
        "{}",
        lines.join("\n")
    );
    Ok(())
}
