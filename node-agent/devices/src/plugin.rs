//! Runs the driver: sockets, registration with the kubelet, shutdown. A failed driver is restarted and does not
//! affect the rest of the agent.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use crds::reason::Reason;
use futures::future::{BoxFuture, FutureExt as _};
use hyper::body::Incoming;
use hyper::{Request, Response};
use k8s_openapi::api::resource::v1::ResourceSlice;
use kube::Api;
use kube::api::ListParams;
use tokio::sync::watch;
use tonic::Status;
use tonic::body::Body;

use super::claim_store::{ClaimStore, Paths};
use super::deadline::answered;
use super::driver::Driver;
use super::message::{Empty, PluginInfo, RegistrationStatus};
use super::slice_publisher::{self, Registered};
use super::{DRIVER, Inputs, Settings, Snapshots, memlock_hook, owners, rpc};

/// Time before a failed driver is restarted.
const RESTART: Duration = Duration::from_secs(10);

/// Time between two queries whether the API server supports DRA by now.
const API_UPGRADE: Duration = Duration::from_secs(600);

/// Time after which a missing kubelet is reported.
const KUBELET_MISSING: Duration = Duration::from_secs(60);

/// Time between two trials of the memlock hook while it does not work.
const HOOK_RETRY: Duration = Duration::from_secs(60);

/// Supported services. The kubelet uses the first DRAPlugin version that it knows and the latest DRAResourceHealth
/// version, which kubelets of 1.35 call unconditionally.
const VERSIONS: [&str; 5] = [
    "v1.DRAPlugin",
    "v1beta1.DRAPlugin",
    "v1.DRAResourceHealth",
    "v1beta1.DRAResourceHealth",
    "v1alpha1.DRAResourceHealth",
];

/// The driver's sockets in the kubelet's directories.
#[derive(Debug, Clone)]
struct Sockets {
    registration: PathBuf,
    service: PathBuf,
}

impl Sockets {
    /// Each agent pod has its own paths: the kubelet avoids a path for long after a failed call. Its calls to
    /// the registration socket have the whole path as the authority, with slashes as %2F; hyper accepts that
    /// only with an `@` in it.
    fn of(settings: &Settings) -> Self {
        let uid = &settings.pod_uid;
        Self {
            registration: registry(&settings.kubelet).join(format!("{DRIVER}@{uid}-reg.sock")),
            service: folder(&settings.kubelet).join(format!("dra-{uid}.sock")),
        }
    }
}

fn registry(kubelet: &Path) -> PathBuf {
    kubelet.join("plugins_registry")
}

fn folder(kubelet: &Path) -> PathBuf {
    kubelet.join("plugins").join(DRIVER)
}

/// Publishes the node's devices and prepares claims until it is stopped.
pub async fn keep(inputs: Inputs) {
    let mut stopped = inputs.stopped.clone();
    let ever = async {
        while !supported(&inputs.client).await {
            tokio::time::sleep(API_UPGRADE).await;
        }
        loop {
            // A panic ends only this task.
            match tokio::spawn(drive(inputs.clone())).await {
                Ok(Ok(())) => return,
                Ok(Err(error)) => tracing::error!(
                    reason = %Reason::KubeletRefused,
                    "cannot serve claims for RDMA devices on this node: {error}"
                ),
                Err(error) => tracing::error!(%error, "the DRA driver panicked"),
            }
            tokio::time::sleep(RESTART).await;
        }
    };
    let mut ever = std::pin::pin!(ever);
    tokio::select! {
        () = ever.as_mut() => return,
        () = rpc::ended(&mut stopped) => {}
    }
    // The driver removes its sockets.
    let _ = tokio::time::timeout(Duration::from_secs(4), ever).await;
}

/// Whether the API server supports DRA; waits for its response.
async fn supported(client: &kube::Client) -> bool {
    let api: Api<ResourceSlice> = Api::all(client.clone());
    let one = ListParams::default()
        .limit(1)
        .fields(&format!("spec.driver={DRIVER}"));
    loop {
        match answered(api.list(&one)).await {
            Ok(_) => return true,
            Err(kube::Error::Api(status)) if status.code == 404 => {
                let reason = Reason::DeviceApiMissing;
                tracing::warn!(%reason, "{}. {}", reason.about(), reason.remedy());
                return false;
            }
            Err(error) => {
                tracing::debug!(%error, "cannot list ResourceSlices");
                tokio::time::sleep(RESTART).await;
            }
        }
    }
}

/// Runs the driver once.
///
/// # Errors
/// Sockets, checkpoint or CDI directory cannot be created, or the facts are no longer updated.
async fn drive(inputs: Inputs) -> anyhow::Result<()> {
    let settings = &inputs.settings;
    let sockets = Sockets::of(settings);
    sweep(&settings.kubelet, &sockets)?;
    let hook = installed_hook(settings).await;
    let paths = Paths {
        checkpoint: settings.state.join("devices.json"),
        cdi: settings.cdi.clone(),
    };
    let store = Arc::new(ClaimStore::open(paths, settings.boot_id.clone())?);
    let without_hook = hook.is_none();
    store.set_hook(hook);
    // The kubelet calls the service as soon as it finds the registration socket.
    let service = rpc::bind(&sockets.service).map_err(at(&sockets.service))?;
    let registration = rpc::bind(&sockets.registration).map_err(at(&sockets.registration))?;
    let driver = Driver::new(&inputs, Arc::clone(&store));
    let (publish, registered) = watch::channel(Registered::default());
    let registrar = Registrar {
        endpoint: sockets.service.display().to_string(),
        publish,
    };
    let answers = rpc::serve(service, Arc::new(driver), inputs.stopped.clone());
    // Removed first, so that the kubelet stops calling the service.
    let registers = async {
        rpc::serve(registration, Arc::new(registrar), inputs.stopped.clone()).await;
        rpc::remove(&sockets.registration)
    };
    let asides = async {
        tokio::join!(
            slice_publisher::keep(inputs.clone(), registered.clone()),
            owners::keep(inputs.clone(), Arc::clone(&store)),
            retry_hook(settings, Arc::clone(&store), without_hook),
            restore_files(inputs.snapshots.clone(), store),
            report_missing_kubelet(registered)
        );
    };
    let answered = async { tokio::join!(registers, answers) };
    let (removed, ()) = tokio::select! {
        done = answered => done,
        () = asides => anyhow::bail!("the node's facts are no longer updated"),
    };
    removed?;
    rpc::remove(&sockets.service)?;
    Ok(())
}

fn at(path: &Path) -> impl FnOnce(io::Error) -> anyhow::Error {
    move |error| anyhow::anyhow!("{}: {error}", path.display())
}

/// Removes the sockets of killed agents, which the kubelet would call forever. No other agent runs: this one holds
/// the node.
fn sweep(kubelet: &Path, own: &Sockets) -> anyhow::Result<()> {
    for folder in [registry(kubelet), folder(kubelet)] {
        fs::create_dir_all(&folder).map_err(at(&folder))?;
        for entry in fs::read_dir(&folder).map_err(at(&folder))?.flatten() {
            let name = entry.file_name();
            let name = name.to_string_lossy();
            let ours = folder.ends_with(DRIVER) || name.starts_with(DRIVER);
            let other = entry.path() != own.registration && entry.path() != own.service;
            if ours && other && name.ends_with(".sock") {
                rpc::remove(&entry.path()).map_err(at(&entry.path()))?;
            }
        }
    }
    Ok(())
}

/// The hook that lifts the memlock limit; `None` while it does not work on this node.
async fn installed_hook(settings: &Settings) -> Option<PathBuf> {
    let installed = memlock_hook::install(&folder(&settings.kubelet)).await;
    installed
        .inspect_err(|error| {
            let reason = Reason::MemlockTooLow;
            tracing::warn!(
                %reason, %error,
                "claims for RDMA devices do not lift the memlock limit on this node; retrying"
            );
        })
        .ok()
}

/// Tries the hook again while claims have none.
async fn retry_hook(settings: &Settings, store: Arc<ClaimStore>, mut without: bool) {
    while without {
        tokio::time::sleep(HOOK_RETRY).await;
        let hook = installed_hook(settings).await;
        without = hook.is_none();
        store.set_hook(hook);
    }
    std::future::pending().await
}

/// Restores lost CDI files after each reading of the facts.
async fn restore_files(mut snapshots: Snapshots, store: Arc<ClaimStore>) {
    let mut reported = false;
    loop {
        let snapshot = snapshots.borrow_and_update().clone();
        if let Some(snapshot) = snapshot {
            let store = Arc::clone(&store);
            let restored = move || store.restore_files(&snapshot.facts);
            let restored = tokio::task::spawn_blocking(restored).await;
            let failed = restored.ok().and_then(Result::err);
            if let (Some(refusal), false) = (&failed, reported) {
                tracing::warn!(reason = %refusal.reason, "{refusal}");
            }
            reported = failed.is_some();
        }
        if snapshots.changed().await.is_err() {
            return;
        }
    }
}

/// Reports a missing kubelet once.
async fn report_missing_kubelet(mut registered: watch::Receiver<Registered>) {
    let came = registered.wait_for(|registered| registered.called);
    if tokio::time::timeout(KUBELET_MISSING, came).await.is_err() {
        tracing::warn!(
            reason = %Reason::KubeletRefused,
            "no kubelet has called within {KUBELET_MISSING:?}. {}", Reason::KubeletRefused.remedy()
        );
    }
    std::future::pending().await
}

/// The registration service of the kubelet.
struct Registrar {
    endpoint: String,
    publish: watch::Sender<Registered>,
}

impl Registrar {
    fn info(&self) -> PluginInfo {
        self.publish
            .send_modify(|registered| registered.called = true);
        PluginInfo {
            kind: "DRAPlugin".to_owned(),
            name: DRIVER.to_owned(),
            endpoint: self.endpoint.clone(),
            supported_versions: VERSIONS.map(str::to_owned).to_vec(),
        }
    }

    fn status(&self, status: &RegistrationStatus) {
        if status.plugin_registered {
            tracing::info!("the kubelet has registered the DRA driver");
        } else {
            let reason = Reason::KubeletRefused;
            tracing::error!(%reason, "{}: {}. {}", reason.about(), status.error, reason.remedy());
        }
        // Counted: a restarted kubelet registers again and deletes the ResourceSlice.
        self.publish.send_modify(|registered| {
            registered.times += u64::from(status.plugin_registered);
            registered.now = status.plugin_registered;
        });
    }
}

impl rpc::Service for Registrar {
    fn answer(self: Arc<Self>, request: Request<Incoming>) -> BoxFuture<'static, Response<Body>> {
        let path = request.uri().path().to_owned();
        async move {
            let registrar = &self;
            match path.as_str() {
                "/pluginregistration.Registration/GetInfo" => {
                    let info = |_: Empty| async move { Ok::<_, Status>(registrar.info()) };
                    rpc::unary(request, info).await
                }
                "/pluginregistration.Registration/NotifyRegistrationStatus" => {
                    let notify = |status: RegistrationStatus| async move {
                        registrar.status(&status);
                        Ok::<_, Status>(Empty {})
                    };
                    rpc::unary(request, notify).await
                }
                _ => rpc::unknown(&path),
            }
        }
        .boxed()
    }
}

#[cfg(test)]
mod tests;
