//! The driver's life beside a kubelet: its sockets, its registration, and its end. What breaks here is
//! started again and ends nothing else of the agent's.

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

use super::driver::Driver;
use super::holdings::{Holdings, Places};
use super::message::{Empty, PluginInfo, RegistrationStatus};
use super::publication::{self, Registered};
use super::{DRIVER, Settings, memlock, owners, rpc};
use crate::agent::assignments::Assignments;
use crate::agent::hardware::Known;
use crate::checks::Owner;
use crate::checks::sickness::Sick;

/// Before another try where the driver ended.
const AGAIN: Duration = Duration::from_secs(10);

/// How often an API server is asked whether it has learnt of devices.
const UPGRADE: Duration = Duration::from_secs(600);

/// How long a kubelet may take to call before that is told.
const UNSEEN: Duration = Duration::from_secs(60);

/// Services: of those that prepare claims, the first that the kubelet knows too is used; of those that tell of
/// health, which kubelets of 1.35 call unasked, the latest.
const VERSIONS: [&str; 5] = [
    "v1.DRAPlugin",
    "v1beta1.DRAPlugin",
    "v1.DRAResourceHealth",
    "v1beta1.DRAResourceHealth",
    "v1alpha1.DRAResourceHealth",
];

/// Where the kubelet looks for drivers, and how it finds one.
#[derive(Debug, Clone)]
struct Sockets {
    registration: PathBuf,
    service: PathBuf,
}

impl Sockets {
    /// A kubelet that was refused at a path does not come back to it for long, so that each agent's pod
    /// has paths of its own. It names the registration socket's whole path as the authority of its calls,
    /// slashes written as %2F, which is one only where an `@` follows: hyper refuses others unheard.
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

/// Offers the node's devices and gives them to claims until the end is told.
pub(crate) async fn keep(
    settings: Settings,
    client: kube::Client,
    known: Known,
    assigned: watch::Receiver<Assignments>,
    sick: watch::Receiver<Sick>,
    owners: watch::Sender<Vec<Owner>>,
    end: watch::Receiver<bool>,
) {
    let mut ended = end.clone();
    let ever = async {
        while !supported(&client).await {
            tokio::time::sleep(UPGRADE).await;
        }
        loop {
            let driver = drive(
                settings.clone(),
                client.clone(),
                known.clone(),
                assigned.clone(),
                sick.clone(),
                owners.clone(),
                end.clone(),
            );
            // A panic is this task's and nobody else's.
            match tokio::spawn(driver).await {
                Ok(Ok(())) => return,
                Ok(Err(error)) => tracing::error!(
                    reason = %Reason::KubeletRefused,
                    "RDMA devices cannot be claimed on this node: {error}"
                ),
                Err(error) => tracing::error!(%error, "the driver of RDMA devices broke off"),
            }
            tokio::time::sleep(AGAIN).await;
        }
    };
    let mut ever = std::pin::pin!(ever);
    tokio::select! {
        () = ever.as_mut() => return,
        () = rpc::told(&mut ended) => {}
    }
    // It takes its sockets away by itself.
    let _ = tokio::time::timeout(Duration::from_secs(4), ever).await;
}

/// Whether the API server has devices at all; until it answers that is not known.
async fn supported(client: &kube::Client) -> bool {
    let api: Api<ResourceSlice> = Api::all(client.clone());
    let one = ListParams::default()
        .limit(1)
        .fields(&format!("spec.driver={DRIVER}"));
    loop {
        match api.list(&one).await {
            Ok(_) => return true,
            Err(kube::Error::Api(status)) if status.code == 404 => {
                let reason = Reason::DeviceApiMissing;
                tracing::warn!(%reason, "{}. {}", reason.about(), reason.remedy());
                return false;
            }
            Err(error) => {
                tracing::debug!(%error, "whether the API server has devices is not known");
                tokio::time::sleep(AGAIN).await;
            }
        }
    }
}

/// # Errors
/// If sockets or records cannot be made.
async fn drive(
    settings: Settings,
    client: kube::Client,
    known: Known,
    assigned: watch::Receiver<Assignments>,
    sick: watch::Receiver<Sick>,
    owners: watch::Sender<Vec<Owner>>,
    end: watch::Receiver<bool>,
) -> anyhow::Result<()> {
    let sockets = Sockets::of(&settings);
    sweep(&settings.kubelet, &sockets)?;
    let hook = memlock::install(&folder(&settings.kubelet)).await;
    if let Err(error) = &hook {
        let reason = Reason::MemlockTooLow;
        tracing::warn!(
            %reason, %error,
            "pods that claim RDMA devices may lock no more memory than others on this node"
        );
    }
    let places = Places {
        checkpoint: settings.state.join("devices.json"),
        cdi: settings.cdi.clone(),
        hook: hook.ok(),
    };
    let holdings = Arc::new(Holdings::open(places, settings.boot_id.clone())?);
    // A kubelet that has found us calls at once: everything that it calls stands before it can.
    let service = rpc::bind(&sockets.service).map_err(at(&sockets.service))?;
    let registration = rpc::bind(&sockets.registration).map_err(at(&sockets.registration))?;
    let driver = Driver::new(
        &settings,
        client.clone(),
        known.clone(),
        sick.clone(),
        Arc::clone(&holdings),
        end.clone(),
    );
    let (tell, registered) = watch::channel(Registered::default());
    let registrar = Registrar {
        endpoint: sockets.service.display().to_string(),
        tell,
    };
    let answers = rpc::serve(service, Arc::new(driver), end.clone());
    // The kubelet is to leave before what it calls is gone.
    let registers = async {
        rpc::serve(registration, Arc::new(registrar), end.clone()).await;
        rpc::remove(&sockets.registration)
    };
    let asides = async {
        let owners = owners::keep(client.clone(), Arc::clone(&holdings), sick.clone(), owners);
        let publication = publication::keep(
            &settings,
            client,
            known.clone(),
            assigned,
            registered.clone(),
            sick,
        );
        tokio::join!(
            publication,
            owners,
            tend(known, holdings),
            notice(registered)
        );
    };
    let answered = async { tokio::join!(registers, answers) };
    let (removed, ()) = tokio::select! {
        done = answered => done,
        () = asides => anyhow::bail!("nobody looks at the node any more"),
    };
    removed?;
    rpc::remove(&sockets.service)?;
    Ok(())
}

fn at(path: &Path) -> impl FnOnce(io::Error) -> anyhow::Error {
    move |error| anyhow::anyhow!("{}: {error}", path.display())
}

/// Takes away sockets of agents that were killed; a kubelet calls at each of them for ever. This agent
/// holds the node, so that no other lives.
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

/// Looks after the files that containers need at each of their starts.
async fn tend(mut known: Known, holdings: Arc<Holdings>) {
    let mut told = false;
    loop {
        let facts = known.borrow_and_update().clone();
        if let Some(facts) = facts {
            let holdings = Arc::clone(&holdings);
            let tended = tokio::task::spawn_blocking(move || holdings.tend(&facts)).await;
            let failed = tended.ok().and_then(Result::err);
            if let (Some(refusal), false) = (&failed, told) {
                tracing::warn!(reason = %refusal.reason, "{refusal}");
            }
            told = failed.is_some();
        }
        if known.changed().await.is_err() {
            return;
        }
    }
}

/// Says so where no kubelet comes. It may still come.
async fn notice(mut registered: watch::Receiver<Registered>) {
    let came = registered.wait_for(|registered| registered.asked);
    if tokio::time::timeout(UNSEEN, came).await.is_err() {
        tracing::warn!(
            reason = %Reason::KubeletRefused,
            "no kubelet has called in {UNSEEN:?}. {}", Reason::KubeletRefused.remedy()
        );
    }
    std::future::pending().await
}

/// Tells the kubelet where the driver is, and hears whether it is taken.
struct Registrar {
    endpoint: String,
    tell: watch::Sender<Registered>,
}

impl Registrar {
    fn info(&self) -> PluginInfo {
        self.tell.send_modify(|registered| registered.asked = true);
        PluginInfo {
            kind: "DRAPlugin".to_owned(),
            name: DRIVER.to_owned(),
            endpoint: self.endpoint.clone(),
            supported_versions: VERSIONS.map(str::to_owned).to_vec(),
        }
    }

    fn status(&self, status: &RegistrationStatus) {
        if status.plugin_registered {
            tracing::info!("the kubelet has taken the driver of RDMA devices");
        } else {
            let reason = Reason::KubeletRefused;
            tracing::error!(%reason, "{}: {}. {}", reason.about(), status.error, reason.remedy());
        }
        // Each time anew: a kubelet that has started takes away what was published before.
        self.tell.send_modify(|registered| {
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
                    let heard = |status: RegistrationStatus| async move {
                        registrar.status(&status);
                        Ok::<_, Status>(Empty {})
                    };
                    rpc::unary(request, heard).await
                }
                _ => rpc::unknown(&path),
            }
        }
        .boxed()
    }
}

#[cfg(test)]
mod tests;
