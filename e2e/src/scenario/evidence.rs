//! Prints what explains a failed scenario: objects, conditions, Events, logs.

use super::namespace::Namespace;
use crds::names::{COMPONENT_AGENT, COMPONENT_OPERATOR, LABEL_COMPONENT};

const OBJECTS: &str = "mooncakeclusters,deployments,daemonsets,pods,services";
/// Events of objects without a namespace are in this one.
const NODE_EVENTS: [&str; 4] = [
    "get",
    "events",
    "--namespace=default",
    "--sort-by=.lastTimestamp",
];
const LOG: [&str; 3] = ["--prefix", "--tail=40", "--ignore-errors"];

/// Prints to standard error. A part that cannot be read is named and skipped.
pub(super) async fn print(namespace: &Namespace) {
    let sections: [(&str, &[&str]); 6] = [
        ("pods", &["get", "pods", "-o", "wide"]),
        ("objects", &["get", OBJECTS, "-o", "wide"]),
        (
            "MooncakeClusters",
            &["get", "mooncakeclusters", "-o", "yaml"],
        ),
        ("MooncakeNodes", &["get", "mooncakenodes", "-o", "yaml"]),
        ("Events", &["get", "events", "--sort-by=.lastTimestamp"]),
        ("Events of MooncakeNodes and Nodes", &NODE_EVENTS),
    ];
    line(&format!(
        "======== evidence from namespace {} ========",
        namespace.name
    ));
    for (title, arguments) in sections {
        section(namespace, title, arguments).await;
    }
    let names = namespace
        .kubectl(&["get", "pods", "-o", "jsonpath={.items[*].metadata.name}"])
        .await
        .unwrap_or_default();
    for pod in names.split_whitespace() {
        let words = ["logs", pod, "--all-containers", "--ignore-errors"];
        let arguments = [&words[..], &LOG].concat();
        section(namespace, &format!("log of {pod}"), &arguments).await;
    }
    for component in [COMPONENT_OPERATOR, COMPONENT_AGENT] {
        let selector = format!("--selector={LABEL_COMPONENT}={component}");
        let logs = ["logs", "--namespace", crate::product::NAMESPACE, &selector];
        let arguments = [&logs[..], &LOG].concat();
        section(namespace, &format!("log of every {component}"), &arguments).await;
    }
    line("======== end of evidence ========");
}

async fn section(namespace: &Namespace, title: &str, arguments: &[&str]) {
    line(&format!("---- {title}"));
    match namespace.kubectl(arguments).await {
        // Stock masters print all their metrics in one line.
        Ok(text) => text
            .lines()
            .for_each(|text| line(&text[..text.floor_char_boundary(400)])),
        Err(error) => line(&format!("cannot be read: {error}")),
    }
}

#[expect(
    clippy::print_stderr,
    reason = "the reader of a failed test reads this"
)]
fn line(text: &str) {
    eprintln!("{text}");
}
