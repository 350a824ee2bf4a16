//! A runtime that answers on a real socket, below a root folder of its own.

use std::fs;
use std::os::unix::fs::symlink;
use std::sync::Mutex;

use futures::FutureExt as _;
use futures::future::BoxFuture;
use hyper::body::Incoming;
use hyper::{Request, Response};
use tokio::sync::watch::Sender;
use tonic::body::Body;

use super::*;
use crate::devices::rpc::{self, serve, unary, unknown};
use crate::host::runtime::Cdi;

const SOON: Duration = Duration::from_secs(20);

/// Says of itself what it is told to.
struct Fake(Mutex<&'static str>);

impl rpc::Service for Fake {
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
                        let said = request
                            .verbose
                            .then(|| ("config".to_owned(), config.clone()));
                        let info = said.into_iter().collect();
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

fn started(at: &Path, says: &'static str) -> Sender<bool> {
    let listener = rpc::bind(at).unwrap();
    let (end, ended) = watch::channel(false);
    tokio::spawn(serve(listener, Arc::new(Fake(Mutex::new(says))), ended));
    end
}

/// A root folder whose kubelet says where its runtime is; `/var/run` leads to `/run`, from the root on.
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
async fn the_runtime_of_the_nodes_kubelet_is_asked_and_asked_anew_when_it_begins_anew() {
    let (folder, node) = node();
    let socket = folder.path().join("run/here/runtime.sock");
    assert!(once(&node).await.is_err(), "nobody answers");
    let end = started(&socket, ON);
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

    let (answer, mut answered) = watch::channel(None);
    let proc = folder.path().join("proc");
    tokio::spawn(inquire(
        node.root.clone(),
        proc,
        Duration::from_millis(20),
        answer,
    ));
    let enabled = |runtime: &Option<Runtime>| Some(runtime.as_ref()?.cdi.as_ref()?.enabled);
    let on = answered.wait_for(|said| enabled(said) == Some(true));
    tokio::time::timeout(SOON, on).await.unwrap().unwrap();
    end.send_replace(true);
    let _end = started(&socket, OFF);
    let off = answered.wait_for(|said| enabled(said) == Some(false));
    tokio::time::timeout(SOON, off).await.unwrap().unwrap();
}

#[tokio::test]
async fn a_runtime_that_takes_connections_and_says_nothing_is_not_waited_for() {
    let (folder, node) = node();
    let socket = folder.path().join("run/here/runtime.sock");
    let _listener = tokio::net::UnixListener::bind(socket).unwrap();
    let socket = found(&node.root, &node.root.join("proc")).unwrap();
    let error = asked(&socket, Duration::from_millis(200))
        .await
        .unwrap_err();
    assert_eq!(
        error.to_string(),
        "/var/run/here/runtime.sock: no answer in 200ms"
    );
}
