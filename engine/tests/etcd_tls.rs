//! Peers of ours find each other by a real etcd with TLS, client certificates and users; each failure has its name, and
//! each change of the Secret takes effect without a restart.
#![allow(clippy::unwrap_used, reason = "a test")]

#[path = "fixture/rig.rs"]
mod rig;
#[path = "fixture/served.rs"]
mod served;
#[path = "fixture/stock.rs"]
mod stock;

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use local_cluster::Settings;
use local_cluster::binaries::Binaries;
use metadata::{Credentials, Entry, Error, Lookup, Problem, Published, Service, system_lookup};
use mooncake_stock::{Authority, Etcd, ServerTls, Signed, Space};
use proto::descriptor::Descriptor;
use proto::metadata::{RpcMeta, etcd_url};
use served::{OURS, Served, isolated};

/// Limit of a wait for etcd.
const PATIENCE: Duration = Duration::from_secs(120);
const PAUSE: Duration = Duration::from_millis(100);
const CLUSTER: &str = "team/kv";
const HOST: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
const NAME: &str = "10.0.0.1:12001";

fn program() -> PathBuf {
    Binaries::get(&Settings::read()).unwrap().etcd()
}

fn authority() -> Authority {
    Authority::new("test").unwrap()
}

/// What the server shows, and of whom clients need certificates.
fn server(authority: &Authority, clients: Option<&Authority>) -> ServerTls {
    ServerTls {
        own: authority.sign(&["etcd.infra.svc", "127.0.0.1"]).unwrap(),
        clients: clients.map(|clients| clients.certificate().to_owned()),
    }
}

fn start(space: &Space, tls: ServerTls) -> Etcd {
    Etcd::start_tls(space, &program(), HOST, tls).unwrap()
}

type Files = BTreeMap<String, String>;

fn secret(authority: &Authority) -> Files {
    Files::from([("ca.crt".to_owned(), authority.certificate().to_owned())])
}

fn with_certificate(mut files: Files, client: &Signed) -> Files {
    files.insert("tls.crt".to_owned(), client.certificate.clone());
    files.insert("tls.key".to_owned(), client.key.clone());
    files
}

fn with_user(mut files: Files, name: &str, password: &str) -> Files {
    files.insert("username".to_owned(), name.to_owned());
    files.insert("password".to_owned(), password.to_owned());
    files
}

struct Client {
    service: Service,
    credentials: Arc<Credentials>,
}

impl Client {
    fn new(endpoint: &str, files: &Files) -> Self {
        let lookup: Lookup = match endpoint.starts_with("127.") {
            true => system_lookup(),
            false => Arc::new(|_| Box::pin(async { Ok(vec![HOST]) })),
        };
        let credentials = Credentials::new("team/etcd");
        credentials.set(files);
        let service = Service::with_credentials(
            &etcd_url(&[endpoint.to_owned()]),
            Some(CLUSTER),
            lookup,
            Some(Arc::clone(&credentials)),
        );
        Self {
            service: service.unwrap(),
            credentials,
        }
    }

    fn of(etcd: &Etcd, files: &Files) -> Self {
        Self::new(&etcd.endpoints()[0], files)
    }

    /// Repeats a lookup of a key that is not there until it ends as wanted.
    async fn until(&self, what: &str, wanted: impl Fn(&Problem) -> bool) -> Error {
        let end = Instant::now() + PATIENCE;
        loop {
            let error = self.service.descriptor("absent").await.unwrap_err();
            if wanted(&error.problem) {
                println!("{error}");
                return error;
            }
            assert!(Instant::now() < end, "{what}: {error}");
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// Waits until etcd answers.
    async fn answers(&self) {
        self.until("etcd does not answer", |problem| {
            matches!(problem, Problem::NoKey(_))
        })
        .await;
    }

    /// The cause of a lookup, which has to fail at once.
    async fn fails(&self) -> Problem {
        let error = self.service.descriptor("absent").await.unwrap_err();
        println!("{error}");
        error.problem
    }
}

/// What an engine without memory publishes.
fn entry() -> Entry {
    let text = format!(
        r#"{{"buffers":[],"name":"{NAME}","protocol":"tcp","tcp_data_port":1,"tcp_proto_version":2}}"#
    );
    Entry {
        descriptor: Descriptor::parse(text.as_bytes()).unwrap(),
        rpc_meta: RpcMeta {
            ip_or_host_name: "127.0.0.1".to_owned(),
            rpc_port: 1,
        },
    }
}

/// Publishes, finds it as another peer does, and removes it.
async fn publishes_and_finds(client: &Client, peer: &Client) {
    let entry = entry();
    assert_eq!(
        entry.publish(&client.service).await.unwrap(),
        Published::Written
    );
    assert!(entry.is_described(&client.service).await.unwrap());
    assert!(entry.is_reachable(&client.service).await.unwrap());
    assert_eq!(peer.service.descriptor(NAME).await.unwrap().name, NAME);
    assert_eq!(peer.service.rpc_meta(NAME).await.unwrap().rpc_port, 1);
    entry.withdraw(&client.service).await.unwrap();
    let gone = peer.service.descriptor(NAME).await.unwrap_err();
    assert!(matches!(gone.problem, Problem::NoKey(_)), "{gone}");
}

#[test]
#[ignore = "needs etcd, which is built from Go modules"]
fn peers_find_each_other_by_an_etcd_that_requires_client_certificates() {
    isolated(|space| async move {
        let (servers, clients) = (authority(), authority());
        let etcd = start(&space, server(&servers, Some(&clients)));
        let files = |name| with_certificate(secret(&servers), &clients.sign(&[name]).unwrap());
        let client = Client::of(&etcd, &files("one"));
        client.answers().await;
        let peer = Client::new("etcd.infra.svc:2379", &files("another"));
        publishes_and_finds(&client, &peer).await;

        // Two engines of ours, each with a certificate of its own.
        let (one, other) = (
            Served::new(client.service.clone()),
            Served::on(12011, peer.service.clone()),
        );
        let published = one.endpoint.metadata_entry().unwrap();
        published.publish(&client.service).await.unwrap();
        other.copies_with(&one, OURS).await;
        published.withdraw(&client.service).await.unwrap();

        // Without a certificate, and with one that another authority signed.
        let problem = Client::of(&etcd, &secret(&servers)).fails().await;
        assert!(
            matches!(problem, Problem::CertificateRequired(_)),
            "{problem}"
        );
        let foreign = with_certificate(secret(&servers), &servers.sign(&["one"]).unwrap());
        let problem = Client::of(&etcd, &foreign).fails().await;
        assert!(
            matches!(problem, Problem::CertificateRefused { .. }),
            "{problem}"
        );
        let old = clients.sign_until(&["one"], 2001).unwrap();
        let problem = Client::of(&etcd, &with_certificate(secret(&servers), &old))
            .fails()
            .await;
        assert!(
            matches!(problem, Problem::CertificateRefused { .. }),
            "{problem}"
        );
        // A stock engine has no TLS at all.
        let plain = Service::new(&etcd_url(&etcd.endpoints()), None, system_lookup()).unwrap();
        let error = plain.descriptor("absent").await.unwrap_err();
        assert!(matches!(error.problem, Problem::Tls), "{error}");
    });
}

#[test]
#[ignore = "needs etcd, which is built from Go modules"]
fn each_certificate_of_etcd_that_is_not_accepted_has_its_own_name() {
    isolated(|space| async move {
        let servers = authority();
        let mut etcd = start(&space, server(&servers, None));
        let client = Client::of(&etcd, &secret(&servers));
        client.answers().await;

        let problem = Client::of(&etcd, &Files::new()).fails().await;
        assert!(matches!(problem, Problem::Secret { .. }), "{problem}");
        let problem = Client::of(&etcd, &secret(&authority())).fails().await;
        assert!(matches!(problem, Problem::NotTrusted(_)), "{problem}");
        let problem = Client::new("other.infra.svc:2379", &secret(&servers));
        let problem = problem.fails().await;
        assert!(matches!(problem, Problem::WrongName(_)), "{problem}");
        assert!(problem.to_string().contains("other.infra.svc"), "{problem}");

        etcd.set_tls(ServerTls {
            own: servers.sign_until(&["127.0.0.1"], 2001).unwrap(),
            clients: None,
        })
        .unwrap();
        // The connection that exists goes on.
        client.answers().await;
        let problem = Client::of(&etcd, &secret(&servers)).fails().await;
        assert!(matches!(problem, Problem::NotValidNow(_)), "{problem}");
        let text = problem.to_string();
        assert!(
            text.contains("it expired at 2001-12-31T00:00:00Z."),
            "{text}"
        );
        etcd.set_tls(server(&servers, None)).unwrap();
        Client::of(&etcd, &secret(&servers)).answers().await;
        drop(etcd);

        let plain = Etcd::start(&space, &program(), HOST, 1, &[]).unwrap();
        Client::of(&plain, &secret(&servers))
            .until("an etcd without TLS is not named", |problem| {
                matches!(problem, Problem::NoTls(_))
            })
            .await;
    });
}

#[test]
#[ignore = "needs etcd, which is built from Go modules"]
fn a_rotation_of_all_certificates_is_named_until_the_secret_has_the_new_ones() {
    isolated(|space| async move {
        let (servers, clients) = (authority(), authority());
        let mut etcd = start(&space, server(&servers, Some(&clients)));
        let files = |servers: &Authority, clients: &Authority| {
            with_certificate(secret(servers), &clients.sign(&["pool"]).unwrap())
        };
        let client = Client::of(&etcd, &files(&servers, &clients));
        client.answers().await;
        let entry = entry();
        entry.publish(&client.service).await.unwrap();

        let (new_servers, new_clients) = (authority(), authority());
        etcd.set_tls(server(&new_servers, Some(&new_clients)))
            .unwrap();
        etcd.kill_member(0).await.unwrap();
        etcd.start_member(&space, 0).unwrap();
        client
            .until("the new certificate of etcd is not named", |problem| {
                matches!(problem, Problem::NotTrusted(_))
            })
            .await;
        // Half of the change.
        assert!(client.credentials.set(&files(&new_servers, &clients)));
        let problem = client.fails().await;
        assert!(
            matches!(problem, Problem::CertificateRefused { .. }),
            "{problem}"
        );
        assert!(client.credentials.set(&files(&new_servers, &new_clients)));
        client.answers().await;
        // The lease is that of the process, not that of the connection.
        assert!(entry.is_described(&client.service).await.unwrap());

        // A connection that works is replaced by one with what the Secret has now.
        assert!(client.credentials.set(&files(&new_servers, &servers)));
        let problem = client.fails().await;
        assert!(
            matches!(problem, Problem::CertificateRefused { .. }),
            "{problem}"
        );
    });
}

#[test]
#[ignore = "needs etcd, which is built from Go modules"]
fn peers_find_each_other_by_an_etcd_with_users_and_each_refusal_is_named() {
    isolated(|space| async move {
        let servers = authority();
        let etcd = start(&space, server(&servers, None));
        let user = |name, password| with_user(secret(&servers), name, password);
        let client = Client::of(&etcd, &user("pool", "first\n"));
        // Before it has users, an etcd takes each.
        client.answers().await;
        publishes_and_finds(&client, &client).await;

        let grant = [
            ("name", "mooncake"),
            (
                "perm",
                r#"{"permType":"READWRITE","key":"bW9vbmNha2Uv","range_end":"bW9vbmNha2Uw"}"#,
            ),
        ];
        for (path, fields) in [
            (
                "auth/user/add",
                &[("name", "root"), ("password", "secret")][..],
            ),
            ("auth/role/add", &[("name", "root")]),
            ("auth/user/grant", &[("user", "root"), ("role", "root")]),
            ("auth/user/add", &[("name", "pool"), ("password", "first")]),
            ("auth/user/add", &[("name", "guest"), ("password", "guest")]),
            ("auth/role/add", &[("name", "mooncake")]),
            ("auth/role/grant", &grant),
            ("auth/user/grant", &[("user", "pool"), ("role", "mooncake")]),
            ("auth/enable", &[]),
        ] {
            etcd.request(&space, path, fields).await.unwrap();
        }
        let client = Client::of(&etcd, &user("pool", "first\n"));
        publishes_and_finds(&client, &client).await;

        for files in [
            secret(&servers),
            user("pool", "wrong"),
            user("absent", "first"),
            user("guest", "guest"),
        ] {
            let problem = Client::of(&etcd, &files).fails().await;
            assert!(
                matches!(problem, Problem::LoginRefused { .. }),
                "{files:?}: {problem}"
            );
            assert!(!problem.to_string().contains("wrong"), "{problem}");
        }

        // The password changes in the Secret while a process runs.
        assert!(client.credentials.set(&user("pool", "wrong")));
        let problem = client.fails().await;
        assert!(matches!(problem, Problem::LoginRefused { .. }), "{problem}");
        assert!(client.credentials.set(&user("pool", "first")));
        publishes_and_finds(&client, &client).await;
    });
}
