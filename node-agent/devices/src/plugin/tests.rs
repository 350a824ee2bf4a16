//! The driver between a kubelet and an API server, both played by the test.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::Mutex;
use std::task::{Context, Poll};

use bytes::Bytes;
use futures::StreamExt as _;
use futures::channel::mpsc;
use http_body_util::{BodyExt, StreamBody};
use hyper::body::Frame;
use hyper::client::conn::http2::{SendRequest, handshake};
use hyper::http::uri::PathAndQuery;
use hyper_util::rt::{TokioExecutor, TokioIo};
use prost::Message;
use serde_json::{Value, json};
use tokio::net::UnixStream;
use tonic::client::Grpc;
use tonic_prost::ProstCodec;
use tower_service::Service;

use super::*;
use crate::UnhealthyDevices;
use crate::message::{
    Claim, Claims, DeviceHealth, HealthReport, HealthStatus, PrepareResponse, UnprepareResponse,
};
use host::{Host, Snapshot};

const SOON: Duration = Duration::from_secs(20);

type Answer = http_body_util::combinators::BoxBody<Bytes, Infallible>;

/// An API server with ResourceSlices and ResourceClaims, by name.
#[derive(Clone, Default)]
struct Server(Arc<Mutex<ServerState>>);

#[derive(Default)]
struct ServerState {
    slices: BTreeMap<String, Value>,
    claims: BTreeMap<String, Value>,
    watchers: Vec<mpsc::UnboundedSender<Bytes>>,
    writes: u64,
    without_devices: bool,
}

impl ServerState {
    fn send_event(&mut self, kind: &str, object: &Value) {
        let line = Bytes::from(format!("{}\n", json!({"type": kind, "object": object})));
        self.watchers
            .retain(|watcher| watcher.unbounded_send(line.clone()).is_ok());
    }

    fn answer(&mut self, method: &str, path: &str, query: &str, body: &[u8]) -> (u16, Answer) {
        let whole = |value: &Value| {
            let bytes = Bytes::from(value.to_string());
            http_body_util::Full::new(bytes).boxed()
        };
        let missing = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure",
                             "reason": "NotFound", "code": 404, "message": "not found"});
        let name = path.rsplit('/').next().unwrap_or_default().to_owned();
        if self.without_devices {
            return (404, whole(&missing));
        }
        if path.contains("/resourceclaims/") {
            return match self.claims.get(&name) {
                Some(claim) => (200, whole(claim)),
                None => (404, whole(&missing)),
            };
        }
        match method {
            "GET" if query.contains("watch=true") => {
                let (events, lines) = mpsc::unbounded();
                self.watchers.push(events);
                let frames = lines.map(|line| Ok(Frame::data(line)));
                (200, BodyExt::boxed(StreamBody::new(frames)))
            }
            "GET" => {
                let items: Vec<&Value> = self.slices.values().collect();
                let list = json!({"kind": "ResourceSliceList", "apiVersion": "resource.k8s.io/v1",
                                  "metadata": {"resourceVersion": "1"}, "items": items});
                (200, whole(&list))
            }
            _ => {
                self.writes += 1;
                let mut slice: Value = serde_json::from_slice(body).unwrap();
                slice["metadata"]["resourceVersion"] = json!((self.writes + 1).to_string());
                let name = slice["metadata"]["name"].as_str().unwrap().to_owned();
                let before = self.slices.insert(name, slice.clone());
                let kind = if before.is_some() {
                    "MODIFIED"
                } else {
                    "ADDED"
                };
                self.send_event(kind, &slice);
                (201, whole(&slice))
            }
        }
    }
}

impl Service<Request<kube::client::Body>> for Server {
    type Response = Response<Answer>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Self::Response, Self::Error>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<kube::client::Body>) -> Self::Future {
        let state = Arc::clone(&self.0);
        async move {
            let (parts, body) = request.into_parts();
            let body = body.collect().await.map(|body| body.to_bytes());
            let (path, query) = (parts.uri.path(), parts.uri.query().unwrap_or_default());
            let (status, answer) = state.lock().unwrap().answer(
                parts.method.as_str(),
                path,
                query,
                &body.unwrap_or_default(),
            );
            Ok(Response::builder().status(status).body(answer).unwrap())
        }
        .boxed()
    }
}

impl Server {
    fn claim(&self, name: &str, uid: &str, device: &str) {
        let claim = json!({
            "metadata": {"name": name, "namespace": "default", "uid": uid},
            "spec": {},
            "status": {
                "allocation": {"devices": {"results": [
                    {"request": "hca", "driver": DRIVER, "pool": "n1", "device": device},
                ]}},
                "reservedFor": [{"resource": "pods", "name": format!("of-{name}"), "uid": format!("of-{uid}")}],
            },
        });
        self.0.lock().unwrap().claims.insert(name.to_owned(), claim);
    }

    fn slice(&self) -> Option<Value> {
        self.0.lock().unwrap().slices.values().next().cloned()
    }

    fn writes(&self) -> u64 {
        self.0.lock().unwrap().writes
    }

    /// As a kubelet that starts.
    fn delete_slices(&self) {
        let mut state = self.0.lock().unwrap();
        let slices = std::mem::take(&mut state.slices);
        for slice in slices.values() {
            state.send_event("DELETED", slice);
        }
    }
}

/// A node with two devices, and the driver on it.
struct Stage {
    folder: tempfile::TempDir,
    server: Server,
    end: watch::Sender<bool>,
    task: tokio::task::JoinHandle<()>,
    // What is known of the node stays known while they are there.
    _sources: (
        watch::Sender<Option<Arc<Snapshot>>>,
        watch::Sender<Option<String>>,
    ),
    unhealthy: watch::Sender<UnhealthyDevices>,
    observed: watch::Receiver<Snapshot>,
}

impl Stage {
    fn new() -> Self {
        Self::on(tempfile::tempdir().unwrap(), Server::default())
    }

    fn on(folder: tempfile::TempDir, server: Server) -> Self {
        let text = include_str!("../../../host/machines/vm-soft-roce.txt");
        let snapshot = Host::parse(text).unwrap().snapshot();
        let (publish, snapshots) = watch::channel(Some(Arc::new(snapshot)));
        let (assign, node_uid) = watch::channel(Some("node-uid".to_owned()));
        let settings = Settings {
            node_name: "n1".to_owned(),
            pod_uid: "pod".to_owned(),
            kubelet: folder.path().join("kubelet"),
            cdi: folder.path().join("cdi"),
            state: folder.path().to_owned(),
            boot_id: "boot".to_owned(),
            slots_per_hca: 2,
        };
        let client = kube::Client::new(server.clone(), "default");
        let (end, ended) = watch::channel(false);
        let (unhealthy, unhealthy_devices) = watch::channel(UnhealthyDevices::new());
        let (inbox, observed) = watch::channel(Snapshot::default());
        Self {
            folder,
            server,
            end,
            task: tokio::spawn(keep(Inputs {
                settings,
                client,
                snapshots,
                node_uid,
                unhealthy: unhealthy_devices,
                inbox,
                stopped: ended,
            })),
            _sources: (publish, assign),
            unhealthy,
            observed,
        }
    }

    fn registration(&self) -> PathBuf {
        registry(&self.folder.path().join("kubelet")).join("hca.mooncake.io@pod-reg.sock")
    }

    /// The driver's socket, from its registration.
    async fn registered(&self) -> PathBuf {
        let path = self.registration();
        until("the registration socket", || path.exists().then_some(())).await;
        let info: PluginInfo =
            call(&path, "/pluginregistration.Registration/GetInfo", Empty {}).await;
        assert_eq!(
            (info.kind.as_str(), info.name.as_str()),
            ("DRAPlugin", DRIVER)
        );
        assert_eq!(info.supported_versions, VERSIONS);
        self.notify(true).await;
        PathBuf::from(info.endpoint)
    }

    async fn notify(&self, plugin_registered: bool) {
        let status = RegistrationStatus {
            plugin_registered,
            error: String::new(),
        };
        let path = "/pluginregistration.Registration/NotifyRegistrationStatus";
        let _: Empty = call(&self.registration(), path, status).await;
    }

    async fn leave(self) -> (tempfile::TempDir, Server) {
        self.end.send_replace(true);
        tokio::time::timeout(SOON, self.task)
            .await
            .unwrap()
            .unwrap();
        (self.folder, self.server)
    }
}

async fn until<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let end = tokio::time::Instant::now() + SOON;
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(
            tokio::time::Instant::now() < end,
            "{what}: not within {SOON:?}"
        );
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// A connection as a kubelet's, with the authority that grpc-go gives its calls.
struct Caller(SendRequest<Body>, String);

impl Service<Request<Body>> for Caller {
    type Response = Response<Incoming>;
    type Error = hyper::Error;
    type Future = BoxFuture<'static, Result<Self::Response, Self::Error>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.0.poll_ready(context)
    }

    fn call(&mut self, mut request: Request<Body>) -> Self::Future {
        let path = request.uri().path().to_owned();
        *request.uri_mut() = format!("http://{}{path}", self.1).parse().unwrap();
        self.0.send_request(request).boxed()
    }
}

async fn call<Q, R>(socket: &Path, path: &'static str, message: Q) -> R
where
    Q: Message + Default + 'static,
    R: Message + Default + 'static,
{
    let stream = UnixStream::connect(socket).await.unwrap();
    let io = TokioIo::new(stream);
    let (sender, connection) = handshake(TokioExecutor::new(), io).await.unwrap();
    tokio::spawn(connection);
    // The registration socket by its path, the driver's as `unix:` and its path.
    let authority = if socket.to_string_lossy().ends_with("-reg.sock") {
        socket.to_string_lossy().replace('/', "%2F")
    } else {
        "localhost".to_owned()
    };
    let mut grpc = Grpc::new(Caller(sender, authority));
    grpc.ready().await.unwrap();
    let request = tonic::Request::new(message);
    let path = PathAndQuery::from_static(path);
    let answer = grpc.unary(request, path, ProstCodec::<Q, R>::default());
    answer.await.unwrap().into_inner()
}

/// Opens a health stream as a kubelet does.
async fn listen(socket: &Path, path: &'static str) -> tonic::Streaming<HealthReport> {
    let stream = UnixStream::connect(socket).await.unwrap();
    let io = TokioIo::new(stream);
    let (sender, connection) = handshake(TokioExecutor::new(), io).await.unwrap();
    tokio::spawn(connection);
    let mut grpc = Grpc::new(Caller(sender, "localhost".to_owned()));
    grpc.ready().await.unwrap();
    let codec = ProstCodec::<Empty, HealthReport>::default();
    let path = PathAndQuery::from_static(path);
    let request = tonic::Request::new(Empty {});
    let answer = grpc.server_streaming(request, path, codec).await;
    answer.unwrap().into_inner()
}

/// Each device of the next report of the pool `n1`, with its status and why.
async fn next_report(reports: &mut tonic::Streaming<HealthReport>) -> Vec<(String, i32, String)> {
    let report = tokio::time::timeout(SOON, reports.message()).await.unwrap();
    let devices = report.unwrap().unwrap().devices.into_iter();
    let device = |values: DeviceHealth| {
        let device = values.device.unwrap();
        assert_eq!(device.pool_name, "n1");
        (device.device_name, values.health, values.message)
    };
    devices.map(device).collect()
}

fn claims(name: &str, uid: &str) -> Claims {
    Claims {
        claims: vec![Claim {
            namespace: "default".to_owned(),
            uid: uid.to_owned(),
            name: name.to_owned(),
        }],
    }
}

const PREPARE: &str = "/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin/NodePrepareResources";
const PREPARE_BEFORE: &str = "/k8s.io.kubelet.pkg.apis.dra.v1beta1.DRAPlugin/NodePrepareResources";
const UNPREPARE: &str = "/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin/NodeUnprepareResources";

#[tokio::test]
async fn the_slice_is_published_at_each_registration() {
    let stage = Stage::new();
    until("the socket", || stage.registration().exists().then_some(())).await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!(stage.server.writes(), 0, "offered before the kubelet came");
    stage.registered().await;
    let slice = until("the slice", || stage.server.slice()).await;
    assert_eq!(slice["spec"]["devices"].as_array().map(Vec::len), Some(4));
    assert_eq!(slice["metadata"]["ownerReferences"][0]["uid"], "node-uid");
    stage.server.delete_slices();
    stage.notify(true).await;
    until("the slice after the kubelet's start", || {
        stage.server.slice()
    })
    .await;
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert_eq!(stage.server.writes(), 2, "written at rest");
    let (_, server) = stage.leave().await;
    assert!(server.slice().is_some(), "a successor takes it over");
}

#[tokio::test]
async fn prepare_is_idempotent_and_unprepare_needs_no_object() {
    let stage = Stage::new();
    let driver = stage.registered().await;
    stage.server.claim("one", "uid-1", "rxe1-slot-0");
    let first: PrepareResponse = call(&driver, PREPARE, claims("one", "uid-1")).await;
    let device = &first.claims["uid-1"].devices[0];
    assert_eq!(device.request_names, ["hca"]);
    assert_eq!(
        (device.pool_name.as_str(), device.device_name.as_str()),
        ("n1", "rxe1-slot-0")
    );
    assert_eq!(device.cdi_device_ids, ["mooncake.io/hca=uid-1-rxe1-slot-0"]);
    let file = stage.folder.path().join("cdi/mooncake.io-hca-uid-1.json");
    let text = fs::read_to_string(&file).unwrap();
    assert!(
        text.contains("uverbs1") && !text.contains("uverbs0"),
        "{text}"
    );
    // The claim and the agent are gone: what was given is still known.
    stage.server.0.lock().unwrap().claims.clear();
    let (folder, server) = stage.leave().await;
    fs::remove_file(&file).unwrap();
    let stage = Stage::on(folder, server);
    let driver = stage.registered().await;
    until("the lost file", || file.exists().then_some(())).await;
    let again: PrepareResponse = call(&driver, PREPARE_BEFORE, claims("one", "uid-1")).await;
    assert_eq!(again, first);
    for _ in 0..2 {
        let done: UnprepareResponse = call(&driver, UNPREPARE, claims("one", "uid-1")).await;
        assert_eq!(done.claims["uid-1"].error, "");
    }
    assert!(!file.exists());
}

/// Lists for each slot of a device whether it is usable and why it is unhealthy.
fn health_attributes(slice: &Value, device: &str) -> Vec<(bool, Option<String>)> {
    let devices = slice["spec"]["devices"].as_array().unwrap().iter();
    let slots = devices
        .map(|slot| &slot["attributes"])
        .filter(|slot| slot["rdmaDevice"]["string"] == device);
    let values = slots.map(|slot| {
        let unhealthy = slot["unhealthy"]["string"].as_str().map(str::to_owned);
        (slot["usable"]["bool"] == true, unhealthy)
    });
    values.collect()
}

#[tokio::test]
async fn an_unhealthy_device_is_published_at_once_and_not_prepared_for_new_claims() {
    let stage = Stage::new();
    let driver = stage.registered().await;
    let slice = until("the slice", || stage.server.slice()).await;
    let well = vec![(true, None), (true, None)];
    assert_eq!(health_attributes(&slice, "rxe0"), well);
    stage.server.claim("one", "uid-1", "rxe0-slot-0");
    stage.server.claim("two", "uid-2", "rxe0-slot-1");
    stage.server.claim("three", "uid-3", "rxe1-slot-0");
    let first: PrepareResponse = call(&driver, PREPARE, claims("one", "uid-1")).await;
    assert_eq!(first.claims["uid-1"].error, "");

    let unhealthy = UnhealthyDevices::from([("rxe0".to_owned(), Reason::MkeyExhausted)]);
    stage.unhealthy.send_replace(unhealthy);
    let mut observed = stage.observed.clone();
    let holders = async {
        let affected = |observed: &Snapshot| !observed.affected_pods.is_empty();
        let observed = observed.wait_for(affected).await.unwrap();
        let holders = observed.affected_pods.iter();
        holders
            .map(|of| (of.pod.clone(), of.pod_uid.clone()))
            .collect::<Vec<_>>()
    };
    let holders = tokio::time::timeout(SOON, holders).await.unwrap();
    assert_eq!(
        holders,
        [("of-one".to_owned(), "of-uid-1".to_owned())],
        "it alone holds it"
    );
    let ails = Some("MkeyExhausted".to_owned());
    let slice = until("the unhealthy device", || {
        stage
            .server
            .slice()
            .filter(|slice| health_attributes(slice, "rxe0")[0].1 == ails)
    })
    .await;
    assert_eq!(
        health_attributes(&slice, "rxe0"),
        [(false, ails.clone()), (false, ails.clone())]
    );
    assert_eq!(health_attributes(&slice, "rxe1"), well);

    let again: PrepareResponse = call(&driver, PREPARE, claims("one", "uid-1")).await;
    assert_eq!(again, first, "who has it keeps it");
    let refused = call::<_, PrepareResponse>(&driver, PREPARE, claims("two", "uid-2"));
    let refused = tokio::time::timeout(SOON, refused).await.unwrap();
    let error = &refused.claims["uid-2"].error;
    assert!(
        error.starts_with("DeviceUnhealthy: rxe0 is unhealthy: MkeyExhausted"),
        "{error}"
    );
    let other: PrepareResponse = call(&driver, PREPARE, claims("three", "uid-3")).await;
    assert_eq!(other.claims["uid-3"].error, "");

    // Well again, it is given at once, and offered when it has stayed so.
    let writes = stage.server.writes();
    stage.unhealthy.send_replace(UnhealthyDevices::new());
    let mut observed = stage.observed.clone();
    let none = observed.wait_for(|observed| observed.affected_pods.is_empty());
    tokio::time::timeout(SOON, none).await.unwrap().unwrap();
    let given: PrepareResponse = call(&driver, PREPARE, claims("two", "uid-2")).await;
    assert_eq!(given.claims["uid-2"].error, "");
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert_eq!(stage.server.writes(), writes, "it is offered at once");
}

#[tokio::test]
async fn the_kubelet_receives_health_reports_until_the_driver_ends() {
    let stage = Stage::new();
    let driver = stage.registered().await;
    let mut streams = Vec::new();
    for path in [
        "/v1.DRAResourceHealth/NodeWatchResources",
        "/v1beta1.DRAResourceHealth/NodeWatchResources",
        "/v1alpha1.DRAResourceHealth/NodeWatchResources",
    ] {
        streams.push(listen(&driver, path).await);
    }
    let unknown = i32::from(HealthStatus::Unknown);
    for reports in &mut streams {
        let first = next_report(reports).await;
        assert_eq!(first.len(), 4, "{first:?}");
        // A successor of one that had judged has not yet.
        assert!(first.iter().all(|(_, health, _)| *health == unknown));
    }
    let unhealthy = UnhealthyDevices::from([("rxe1".to_owned(), Reason::MkeyExhausted)]);
    stage.unhealthy.send_replace(unhealthy);
    for reports in &mut streams {
        let unhealthy: Vec<_> = next_report(reports).await;
        let unhealthy: Vec<_> = unhealthy
            .iter()
            .filter(|(_, health, _)| *health == i32::from(HealthStatus::Unhealthy))
            .map(|(device, _, why)| (device.as_str(), why.starts_with("MkeyExhausted: ")))
            .collect();
        assert_eq!(unhealthy, [("rxe1-slot-0", true), ("rxe1-slot-1", true)]);
    }
    stage.leave().await;
    for reports in &mut streams {
        let end = tokio::time::timeout(SOON, reports.message()).await;
        assert_eq!(end.unwrap().unwrap(), None);
    }
}

#[tokio::test]
async fn preparation_waits_for_a_held_device() {
    let stage = Stage::new();
    let driver = stage.registered().await;
    stage.server.claim("one", "uid-1", "rxe0-slot-1");
    stage.server.claim("two", "uid-2", "rxe0-slot-1");
    let one: PrepareResponse = call(&driver, PREPARE, claims("one", "uid-1")).await;
    assert_eq!(one.claims["uid-1"].error, "");
    let waits = {
        let driver = driver.clone();
        tokio::spawn(async move {
            call::<_, PrepareResponse>(&driver, PREPARE, claims("two", "uid-2")).await
        })
    };
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert!(!waits.is_finished(), "given twice, or refused at once");
    let _: UnprepareResponse = call(&driver, UNPREPARE, claims("one", "uid-1")).await;
    let two = tokio::time::timeout(SOON, waits).await.unwrap().unwrap();
    assert_eq!(two.claims["uid-2"].error, "");
    assert_eq!(two.claims["uid-2"].devices.len(), 1);
}

#[tokio::test]
async fn a_missing_claim_is_rejected_with_its_name() {
    let stage = Stage::new();
    let driver = stage.registered().await;
    let refused: PrepareResponse = call(&driver, PREPARE, claims("none", "uid-9")).await;
    let error = &refused.claims["uid-9"].error;
    assert!(
        error.starts_with("ClaimInvalid: ") && error.contains("default/none"),
        "{error}"
    );
    stage.server.claim("none", "uid-10", "rxe0-slot-0");
    let another: PrepareResponse = call(&driver, PREPARE, claims("none", "uid-9")).await;
    assert!(
        another.claims["uid-9"].error.contains("uid-10"),
        "{another:?}"
    );
}

#[tokio::test]
async fn stale_sockets_are_removed_and_own_sockets_at_the_end() {
    let folder = tempfile::tempdir().unwrap();
    let registry = registry(&folder.path().join("kubelet"));
    fs::create_dir_all(&registry).unwrap();
    for name in ["hca.mooncake.io-before-reg.sock", "other.example-reg.sock"] {
        fs::write(registry.join(name), "").unwrap();
    }
    let stage = Stage::on(folder, Server::default());
    let driver = stage.registered().await;
    assert!(!registry.join("hca.mooncake.io-before-reg.sock").exists());
    assert!(
        registry.join("other.example-reg.sock").exists(),
        "it is another driver's"
    );
    let own = stage.registration();
    assert!(own.exists() && driver.exists());
    let _folder = stage.leave().await;
    assert!(!own.exists() && !driver.exists());
}

#[tokio::test]
async fn nothing_is_published_if_the_api_server_does_not_support_dra() {
    let server = Server::default();
    server.0.lock().unwrap().without_devices = true;
    let stage = Stage::on(tempfile::tempdir().unwrap(), server);
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert!(!stage.registration().exists());
    stage.leave().await;
}
