//! The chart: helm accepts it, the schema refuses what is wrong, and what it renders is pinned.
//! `UPDATE=1 cargo test -p mooncake-e2e --test chart` rewrites the pinned files.
#![allow(clippy::unwrap_used, reason = "a test ends where its set-up fails")]

use mooncake_e2e::Settings;
use mooncake_e2e::binaries::Binaries;
use mooncake_e2e::command::Run;
use mooncake_e2e::product::{NAMESPACE, RELEASE, chart, source};
use mooncake_e2e::settings::Environment;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

fn helm() -> Run {
    static HELM: OnceLock<PathBuf> = OnceLock::new();
    Run::new(HELM.get_or_init(|| {
        let settings = Settings::from_environment(Environment::read());
        Binaries::get(&settings).unwrap().helm()
    }))
}

fn render(settings: &[&str]) -> Result<String, mooncake_e2e::Error> {
    helm()
        .args(["template", RELEASE])
        .arg(chart())
        .args(["--namespace", NAMESPACE])
        .args(settings)
        .output()
}

fn check(path: &Path, wanted: &str) {
    if std::env::var_os("UPDATE").is_some() {
        fs::write(path, wanted).unwrap();
    }
    let found = fs::read_to_string(path).unwrap_or_default();
    assert!(
        found == wanted,
        "{} differs from what the chart renders; run with UPDATE=1 and read the diff",
        path.display()
    );
}

/// What `--create-namespace` makes, for those who use no Helm.
fn namespace() -> String {
    format!(
        "# Rendered from charts/mooncake with its default values:\n\
         # kubectl apply --server-side -f charts/install.yaml\n\
         apiVersion: v1\n\
         kind: Namespace\n\
         metadata:\n\
         \x20 name: {NAMESPACE}\n\
         \x20 labels:\n\
         \x20   # The agents are privileged.\n\
         \x20   pod-security.kubernetes.io/enforce: privileged\n"
    )
}

#[test]
fn helm_lint_has_nothing_to_say() {
    helm()
        .args(["lint", "--strict"])
        .arg(chart())
        .done()
        .unwrap();
}

#[test]
fn the_plain_file_equals_the_default_rendering() {
    let wanted = namespace() + &render(&[]).unwrap();
    check(&source().join("charts/install.yaml"), &wanted);
}

#[test]
fn every_case_renders_as_pinned() {
    for case in fs::read_dir(source().join("charts/cases")).unwrap() {
        let case = case.unwrap().path();
        let values = case.join("values.yaml");
        // The CRDs are pinned by their own test and depend on no value.
        let rendered = render(&["--values", values.to_str().unwrap()]).unwrap();
        let without_crds: Vec<_> = rendered
            .split("---\n# Source: ")
            .filter(|document| !document.contains("kind: CustomResourceDefinition"))
            .collect();
        check(
            &case.join("rendered.yaml"),
            &without_crds.join("---\n# Source: "),
        );
    }
}

#[test]
fn the_schema_refuses_what_is_wrong() {
    for (setting, word) in [
        ("operator.replicas=0", "replicas"),
        ("operator.replica=2", "replica"),
        ("images.agent=no_tag", "agent"),
        ("images.pullPolicy=Sometimes", "pullPolicy"),
        ("agent.basePageGiB=-1", "basePageGiB"),
        ("agent.metricsPort=80", "metricsPort"),
        ("agent.stateDir=relative", "stateDir"),
        ("agent.maxUnavailable=0", "maxUnavailable"),
        ("agent.devices.slotsPerHca=0", "slotsPerHca"),
        ("agent.devices.kubeletDir=relative", "kubeletDir"),
        ("agent.devices.slots=1", "slots"),
        ("injection.timeoutSeconds=31", "timeoutSeconds"),
        ("tenantRoles=perhaps", "tenantRoles"),
        ("unknown=1", "unknown"),
    ] {
        let error = render(&["--set", setting]).unwrap_err().to_string();
        assert!(error.contains(word), "{setting}: {error}");
    }
}

#[test]
fn no_role_has_a_wildcard_or_reads_all_secrets() {
    let rendered = render(&[]).unwrap();
    for document in rendered.split("\n---") {
        let kind = |kind: &str| document.contains(&format!("\nkind: {kind}\n"));
        if !kind("ClusterRole") && !kind("Role") {
            continue;
        }
        let role: serde_json::Value = serde_yaml_ng::from_str(document).unwrap();
        let name = &role["metadata"]["name"];
        for rule in role["rules"].as_array().unwrap() {
            let text = rule.to_string();
            assert!(!text.contains("\"*\""), "{name}: {text}");
            let secrets = rule["resources"].to_string().contains("\"secrets\"");
            let named = rule["resourceNames"].as_array().is_some();
            let creates_only = rule["verbs"] == serde_json::json!(["create"]);
            assert!(
                !secrets || (kind("Role") && (named || creates_only)),
                "{name}: {text}"
            );
        }
    }
}
