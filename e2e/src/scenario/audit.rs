//! The writes of pods to the API server, from its audit log.

use super::test_cluster::TestCluster;
use anyhow::{Context, ensure};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::io::{Read, Seek, SeekFrom};
use std::path::PathBuf;

/// Field of a token's identity that names the pod.
const POD: &str = "authentication.kubernetes.io/pod-name";

const LEASES: &str = "leases";

/// The log from a moment on.
#[derive(Debug, Clone)]
pub struct Audit {
    log: PathBuf,
    from: u64,
}

/// One write request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Write {
    /// Time of arrival at the API server, as text that sorts by time.
    pub at: String,
    /// Service account without its prefix: `namespace:name`.
    pub account: String,
    pub pod: String,
    pub verb: String,
    /// With its subresource, for example `pods/status`.
    pub resource: String,
    pub namespace: String,
    pub name: String,
    pub code: u16,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Line {
    verb: String,
    user: User,
    object_ref: Option<ObjectRef>,
    response_status: Option<Status>,
    request_received_timestamp: String,
}

#[derive(Deserialize)]
struct User {
    username: String,
    #[serde(default)]
    extra: BTreeMap<String, Vec<String>>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct ObjectRef {
    resource: String,
    subresource: String,
    namespace: String,
    name: String,
}

#[derive(Deserialize)]
struct Status {
    #[serde(default)]
    code: u16,
}

impl Audit {
    /// Everything from now on.
    ///
    /// # Errors
    /// When there is no log, because an earlier build created the cluster.
    pub fn from_now(cluster: &TestCluster) -> anyhow::Result<Self> {
        let log = cluster.local.audit_log();
        let from = fs::metadata(&log)
            .with_context(|| {
                format!(
                    "{}: no audit log; remove the cluster and create it again",
                    log.display()
                )
            })?
            .len();
        Ok(Self { log, from })
    }

    /// The writes since then by pods of a namespace, without those to Leases.
    ///
    /// # Errors
    /// When the log cannot be read, or was replaced by a new one.
    pub fn writes(&self, namespace: &str) -> anyhow::Result<Vec<Write>> {
        let mut writes = self.all(namespace)?;
        writes.retain(|write| write.resource != LEASES);
        Ok(writes)
    }

    /// The writes since then to Leases by pods of a namespace.
    ///
    /// # Errors
    /// When the log cannot be read, or was replaced by a new one.
    pub fn lease_writes(&self, namespace: &str) -> anyhow::Result<Vec<Write>> {
        let mut writes = self.all(namespace)?;
        writes.retain(|write| write.resource == LEASES);
        Ok(writes)
    }

    fn all(&self, namespace: &str) -> anyhow::Result<Vec<Write>> {
        let mut log = fs::File::open(&self.log)?;
        let length = log.metadata()?.len();
        ensure!(length >= self.from, "the audit log was replaced");
        log.seek(SeekFrom::Start(self.from))?;
        let mut text = String::new();
        log.take(length - self.from).read_to_string(&mut text)?;
        // The last line may be incomplete.
        let whole = text.rfind('\n').map_or("", |end| &text[..end]);
        let writes: Vec<Write> = whole.lines().map(parse).collect::<Result<_, _>>()?;
        let account = format!("{namespace}:");
        Ok(writes
            .into_iter()
            .filter(|write| write.account.starts_with(&account))
            .collect())
    }
}

fn parse(line: &str) -> anyhow::Result<Write> {
    let line: Line = serde_json::from_str(line).with_context(|| line.to_owned())?;
    let object = line.object_ref.unwrap_or_default();
    let account = line.user.username.strip_prefix("system:serviceaccount:");
    let pod = line.user.extra.get(POD).and_then(|names| names.first());
    Ok(Write {
        at: line.request_received_timestamp,
        account: account.unwrap_or(&line.user.username).to_owned(),
        pod: pod.cloned().unwrap_or_default(),
        verb: line.verb,
        resource: [object.resource, object.subresource]
            .iter()
            .filter(|part| !part.is_empty())
            .map(String::as_str)
            .collect::<Vec<_>>()
            .join("/"),
        namespace: object.namespace,
        name: object.name,
        code: line.response_status.map_or(0, |status| status.code),
    })
}

impl fmt::Display for Write {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            at,
            account: _,
            pod,
            verb,
            resource,
            namespace,
            name,
            code,
        } = self;
        write!(
            f,
            "{at} {pod}: {verb} {resource} {namespace}/{name}: {code}"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_the_log_names_pod_verb_and_object() {
        let line = r#"{"kind":"Event","level":"Metadata","verb":"patch","user":{"username":
            "system:serviceaccount:mooncake-system:mooncake-operator","groups":["a"],"extra":
            {"authentication.kubernetes.io/pod-name":["operator-1"]}},"objectRef":{"resource":"pods",
            "namespace":"team","name":"a","subresource":"status"},"responseStatus":{"metadata":{},
            "code":200},"requestReceivedTimestamp":"2026-01-01T00:00:00.000001Z"}"#
            .replace('\n', "");
        let write = parse(&line).unwrap();
        assert_eq!(write.account, "mooncake-system:mooncake-operator");
        assert_eq!(
            write.to_string(),
            "2026-01-01T00:00:00.000001Z operator-1: patch pods/status team/a: 200"
        );
    }
}
