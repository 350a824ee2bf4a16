//! The program: writes the files whenever addresses or quotas change.

use anyhow::Context;
use kube::runtime::watcher::DefaultBackoff;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

use crate::args::Args;
use crate::watch::{Admitted, members, operators};
use crate::{file, quotas};

/// Keeps the files up to date until SIGTERM, and takes part in elections. Blocks.
///
/// # Errors
/// No access to the API server, a file cannot be written, or the elector failed.
pub fn run(args: Args) -> anyhow::Result<()> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("starting a runtime")?
        .block_on(follow(args))
}

async fn follow(args: Args) -> anyhow::Result<()> {
    let mut term = signal(SignalKind::terminate())?;
    let client = kube::Client::try_default()
        .await
        .context("cannot find the API server and a token in this pod")?;
    let (stop, stopped) = watch::channel(false);
    let elector = args.elector(&client).await?;
    let elector = elector.map(|elector| tokio::spawn(elector.run(stopped)));
    let watch = |namespace: &str, selector: &str| {
        Admitted::watch(
            client.clone(),
            namespace,
            selector,
            DefaultBackoff::default(),
        )
    };
    // The Service of pods on the host network exists only while they are allowed.
    let selector = members(&args.cluster);
    let mut members = watch(&args.namespace, &selector);
    let mut operators = watch(&args.operator_namespace, &operators());
    let quotas = async {
        match args.quota_file.clone() {
            Some(path) => {
                quotas::follow(client.clone(), &args.namespace, &args.cluster, path).await
            }
            None => std::future::pending().await,
        }
    };
    let mut quotas = std::pin::pin!(quotas);
    let mut written = None;
    loop {
        if let (Some(members), Some(operators)) = (members.with_pods(), operators.with_pods()) {
            let text = file::text(&members, &operators);
            if written.as_ref() != Some(&text) {
                file::replace(&args.file, &text)
                    .with_context(|| format!("cannot write {}", args.file.display()))?;
                tracing::info!(
                    members = members.len(),
                    operators = operators.len(),
                    "addresses written"
                );
                written = Some(text);
            }
        }
        tokio::select! {
            () = members.changed() => {}
            () = operators.changed() => {}
            ended = &mut quotas => return ended,
            _ = term.recv() => break,
        }
    }
    stop.send_replace(true);
    if let Some(elector) = elector {
        elector.await.context("the elector failed")?;
    }
    Ok(())
}
