//! The page of checks in the docs, written from the catalogue.

use std::fmt::Write;

use super::CATALOG;

/// The whole page.
pub fn page() -> String {
    let mut page = String::from(
        "# Checks\n\nWhat an agent looks at on its node. What does not pass stands in the status of the \
         MooncakeNode (`kubectl describe mooncakenode NODE`), in the metric \
         `mooncake_agent_check_findings`, and is shown by `agent checks` on the node itself. A check says \
         nothing of what a node does not have. What is wrong is told when it has been seen for \
         the first time below, its end when it has held for the second; what begins three times in ten \
         minutes must be away for five. \
         `Fail`: something that the node has cannot be used. `Warn`: it works, and is slower or nearer to \
         its end than it should be. `Unknown`: it could not be told for half a minute. A \
         [MooncakeNodePolicy](policy.md) has a check warn at most, or be ignored.\n\n\
         This page is written from `crds/src/check.rs` and `node-agent/src/checks.rs`.\n\n\
         | Check | what holds where it passes | what it can find | told after, gone after | seed rows |\n\
         |---|---|---|---|---|\n",
    );
    for check in CATALOG {
        let reasons: Vec<String> = check
            .reasons
            .iter()
            .map(|reason| {
                let anchor = reason.as_str().to_ascii_lowercase();
                format!("[`{reason}`](reasons.md#{anchor})")
            })
            .collect();
        let id = check.id.as_str();
        let _ = writeln!(
            page,
            "| <a id=\"{}\"></a>`{id}` | {} | {} | {} s, {} s | {} |",
            id.to_ascii_lowercase(),
            check.id.about(),
            reasons.join(", "),
            check.patience.grace.as_secs(),
            check.patience.hold.as_secs(),
            check.id.rows().join(", "),
        );
    }
    page
}
