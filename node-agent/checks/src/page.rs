//! Generates docs/checks.md from the catalogue.

use std::fmt::Write;

use super::CATALOG;

/// The whole page.
pub fn page() -> String {
    let mut page = String::from(
        "# Checks\n\nThe agent runs these checks on its node. Findings are reported in the status of the MooncakeNode \
         (`kubectl describe mooncakenode NODE`) and in the metric `mooncake_agent_check_findings`; \
         `kubectl -n mooncake-system exec AGENT_POD -- /agent checks --root=/host --network=/proc/1/ns/net` (on the \
         local cluster without `--network`) shows them as the agent reads them now. A check reports nothing about hardware that the node does not have.\n\n\
         `Fail`: something that the node has cannot be used. `Warn`: it works, but slower or closer to a limit \
         than it should. `Unknown`: the state could not be read for 30 seconds. A \
         [MooncakeNodePolicy](policy.md) can make the findings of a check warnings, or ignore the check.\n\n\
         A finding is reported when it was observed for the raise delay, and cleared when it was not observed for \
         the clear delay. A finding that was raised three times within ten minutes is cleared after five \
         minutes.\n\n\
         This page is generated from `crds/src/check.rs` and `node-agent/checks/src/catalog`.\n\n\
         | Check | passes if | findings | raise delay, clear delay |\n\
         |---|---|---|---|\n",
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
            "| <a id=\"{}\"></a>`{id}` | {} | {} | {} s, {} s |",
            id.to_ascii_lowercase(),
            check.id.about(),
            reasons.join(", "),
            check.delays.raise.as_secs(),
            check.delays.clear.as_secs(),
        );
    }
    page
}
