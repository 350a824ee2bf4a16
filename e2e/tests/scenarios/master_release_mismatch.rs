//! A stock master of another Mooncake release, which reports the same protocol version.

use anyhow::{Context, ensure};
use crds::Reason;
use crds::names::MASTER_ADMIN_PORT;
use local_cluster::{Settings, images};
use mooncake_e2e::scenario::pool::READY;
use mooncake_e2e::scenario::{Effort, Load, Pool, Product, is_ready, master};
use mooncake_stock::MOONCAKE_BEFORE;
use std::fs;
use std::path::{Path, PathBuf};

const POOLS: &str = "pools: [{name: default, size: 256Mi, drainSeconds: 2}]";
const OLDER: &str = "localhost/mooncake-before:0.3.11";
/// Links the binary itself, because the wheel's start script writes to its own folder, which is read-only in the pod.
const OLDER_FILE: &str = "FROM localhost/debian:bookworm
COPY . /opt/mooncake
RUN ln -s /opt/mooncake/mooncake/mooncake_master /usr/local/bin/mooncake_master
";

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a local cluster: root and 4 GiB of memory"]
async fn a_master_of_another_release_is_reported_with_both_versions_and_mounts_nothing()
-> anyhow::Result<()> {
    let product = Product::shared().await?;
    let settings = product.settings.clone();
    let folder = tempfile::tempdir()?;
    let path = folder.path().to_owned();
    let archive = tokio::task::spawn_blocking(move || older(&settings, &path)).await??;
    product
        .cluster
        .with(move |cluster| cluster.load_image(&archive))
        .await?;
    product
        .run("skew", async move |_, namespace| {
            let spec = format!("{{{POOLS}, master: {{image: '{OLDER}'}}}}");
            let pool = Pool::apply(&namespace, "kv", &spec).await?;
            let message = pool.unready(Some(Reason::EngineVersionSkew), READY).await?;
            println!("{message}");
            for version in ["0.3.11", "0.3.13"] {
                ensure!(message.contains(version), "no {version} in {message}");
            }
            let master = pool.master_ip().await?;
            let metrics = master::get(&master, MASTER_ADMIN_PORT, "/metrics").await?;
            for gauge in [
                "master_total_capacity_bytes",
                "master_mount_segment_requests_total",
            ] {
                let line = metrics.lines().find_map(|line| line.strip_prefix(gauge));
                let value: f64 = line
                    .with_context(|| format!("no {gauge} in {metrics}"))?
                    .trim()
                    .parse()?;
                ensure!(value == 0.0, "{gauge} is {value}: something was mounted");
            }
            ensure!(
                !pool.pods().await?.iter().any(is_ready),
                "a pool pod is Ready without a mounted segment"
            );
            // Removing the field restores the cluster.
            Pool::apply(&namespace, "kv", &format!("{{{POOLS}}}")).await?;
            pool.ready(READY).await?;
            let load = Load::start(&namespace, "n1", "kv", Effort::default()).await?;
            load.finish(&namespace).await?.nothing_failed()
        })
        .await
}

/// The archive of an image with the older master, made in `folder`.
fn older(settings: &Settings, folder: &Path) -> anyhow::Result<PathBuf> {
    let file = folder.join("Containerfile");
    fs::write(&file, OLDER_FILE)?;
    let archive = folder.join("image.tar");
    images::build(settings, &MOONCAKE_BEFORE.site()?, &file, OLDER, &archive)?;
    Ok(archive)
}
