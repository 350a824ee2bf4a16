//! What a story that failed leaves behind for its reader: objects, conditions, events, logs.

use super::namespace::Namespace;
use crds::names::{COMPONENT_AGENT, COMPONENT_OPERATOR, LABEL_COMPONENT};

const OBJECTS: &str = "mooncakeclusters,deployments,daemonsets,pods,services";

/// Prints everything to standard error. What cannot be had is said and skipped.
pub(super) async fn print(namespace: &Namespace) {
    let sections: [(&str, &[&str]); 5] = [
        ("pods", &["get", "pods", "-o", "wide"]),
        ("objects", &["get", OBJECTS, "-o", "wide"]),
        (
            "clusters of ours, with conditions",
            &["get", "mooncakeclusters", "-o", "yaml"],
        ),
        (
            "nodes of ours, with conditions",
            &["get", "mooncakenodes", "-o", "yaml"],
        ),
        ("events", &["get", "events", "--sort-by=.lastTimestamp"]),
    ];
    say(&format!(
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
        section(
            namespace,
            &format!("log of {pod}"),
            &[
                "logs",
                pod,
                "--all-containers",
                "--prefix",
                "--tail=40",
                "--ignore-errors",
            ],
        )
        .await;
    }
    for component in [COMPONENT_OPERATOR, COMPONENT_AGENT] {
        let selector = format!("--selector={LABEL_COMPONENT}={component}");
        let arguments = [
            "logs",
            "--namespace",
            crate::product::NAMESPACE,
            &selector,
            "--prefix",
            "--tail=40",
            "--ignore-errors",
        ];
        section(namespace, &format!("log of every {component}"), &arguments).await;
    }
    say("======== end of evidence ========");
}

async fn section(namespace: &Namespace, title: &str, arguments: &[&str]) {
    say(&format!("---- {title}"));
    match namespace.kubectl(arguments).await {
        Ok(text) => text.lines().for_each(|line| say(cut(line))),
        Err(error) => say(&format!("not to be had: {error}")),
    }
}

/// The start of a line: stock masters print their whole metrics in one.
fn cut(line: &str) -> &str {
    &line[..line.floor_char_boundary(400)]
}

#[expect(
    clippy::print_stderr,
    reason = "the reader of a failed test reads this"
)]
fn say(text: &str) {
    eprintln!("{text}");
}
