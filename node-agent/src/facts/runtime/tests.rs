//! A runtime that serves a real socket below its own root folder.

use std::fs;
use std::os::unix::fs::symlink;
use std::sync::{Arc, Mutex};

use futures::FutureExt as _;
use futures::future::BoxFuture;
use hyper::body::Incoming;
use hyper::{Request, Response};
use tokio::sync::watch::{self, Sender};
use tonic::body::Body;

use super::*;
use devices::rpc::{self, serve, unary, unknown};
use host::Snapshot;
use host::runtime::Cdi;

const SOON: Duration = Duration::from_secs(20);

/// Reports this configuration.
struct FakeRuntime(Mutex<&'static str>);

impl rpc::Service for FakeRuntime {
    fn answer(self: Arc<Self>, request: Request<Incoming>) -> BoxFuture<'static, Response<Body>> {
        async move {
            match request.uri().path() {
                "/runtime.v1.RuntimeService/Version" => {
                    let version = |_: VersionRequest| async {
                        Ok(VersionResponse {
                            name: "containerd".to_owned(),
                            version: "2.2.9".to_owned(),
                        })
                    };
                    unary(request, version).await
                }
                "/runtime.v1.RuntimeService/Status" => {
                    let config = (*self.0.lock().unwrap()).to_owned();
                    let status = move |request: StatusRequest| {
                        let config = request
                            .verbose
                            .then(|| ("config".to_owned(), config.clone()));
                        let info = config.into_iter().collect();
                        async { Ok(StatusResponse { info }) }
                    };
                    unary(request, status).await
                }
                path => unknown(path),
            }
        }
        .boxed()
    }
}

const ON: &str = r#"{"enableCDI":true,"cdiSpecDirs":["/etc/cdi","/var/run/cdi"]}"#;
const OFF: &str = r#"{"enableCDI":false,"cdiSpecDirs":["/etc/cdi","/var/run/cdi"]}"#;

fn start(at: &Path, config: &'static str) -> Sender<bool> {
    let listener = rpc::bind(at).unwrap();
    let (end, ended) = watch::channel(false);
    tokio::spawn(serve(
        listener,
        Arc::new(FakeRuntime(Mutex::new(config))),
        ended,
    ));
    end
}

/// A root folder whose kubelet configuration names the runtime's socket; `/var/run` is an absolute link to `/run`.
fn node() -> (tempfile::TempDir, Node) {
    let folder = tempfile::tempdir().unwrap();
    let at = |path: &str| folder.path().join(path);
    for path in ["proc/7", "proc/9", "run/here", "var", "etc"] {
        fs::create_dir_all(at(path)).unwrap();
    }
    symlink("/run", at("var/run")).unwrap();
    let endpoint = "containerRuntimeEndpoint: unix:///var/run/here/runtime.sock\n";
    fs::write(at("etc/kubelet.yaml"), endpoint).unwrap();
    let pod = "0::/kubepods/pod0b7c1a52-3d4e-4f60-8a9b-0c1d2e3f4a5b/c\n";
    for (pid, cgroup, arguments) in [
        (
            7,
            pod,
            "kubelet\0--container-runtime-endpoint=/run/forged\0",
        ),
        (
            9,
            "0::/system.slice/kubelet.service\n",
            "kubelet\0--config=/etc/kubelet.yaml\0",
        ),
    ] {
        fs::write(at(&format!("proc/{pid}/comm")), "kubelet\n").unwrap();
        fs::write(at(&format!("proc/{pid}/cgroup")), cgroup).unwrap();
        fs::write(at(&format!("proc/{pid}/cmdline")), arguments).unwrap();
    }
    let root = folder.path().to_owned();
    let network = None;
    (folder, Node { root, network })
}

#[tokio::test]
async fn the_runtime_of_the_kubelet_is_read_and_read_again_after_its_restart() {
    let (folder, node) = node();
    let socket = folder.path().join("run/here/runtime.sock");
    assert!(once(&node).await.is_err(), "no runtime runs");
    let end = start(&socket, ON);
    let runtime = once(&node).await.unwrap();
    let folders = ["/etc/cdi", "/var/run/cdi"].map(str::to_owned).to_vec();
    let cdi = Cdi {
        enabled: true,
        folders,
    };
    assert_eq!(runtime.cdi, Some(cdi));
    assert_eq!(
        (runtime.name.as_str(), runtime.version.as_str()),
        ("containerd", "2.2.9")
    );

    let (inbox, mut observed) = watch::channel(Snapshot::default());
    let proc = folder.path().join("proc");
    tokio::spawn(poll(
        node.root.clone(),
        proc,
        Duration::from_millis(20),
        inbox,
    ));
    let enabled = |observed: &Snapshot| Some(observed.runtime.as_ref()?.cdi.as_ref()?.enabled);
    let on = observed.wait_for(|observed| enabled(observed) == Some(true));
    tokio::time::timeout(SOON, on).await.unwrap().unwrap();
    end.send_replace(true);
    let _end = start(&socket, OFF);
    let off = observed.wait_for(|observed| enabled(observed) == Some(false));
    tokio::time::timeout(SOON, off).await.unwrap().unwrap();
}

#[tokio::test]
async fn a_runtime_that_does_not_reply_is_a_timeout() {
    let (folder, node) = node();
    let socket = folder.path().join("run/here/runtime.sock");
    let _listener = tokio::net::UnixListener::bind(socket).unwrap();
    let socket = find_socket(&node.root, &node.root.join("proc")).unwrap();
    let error = read(&socket, Duration::from_millis(200)).await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "/var/run/here/runtime.sock: no reply within 200ms"
    );
}
