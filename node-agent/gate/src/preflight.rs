//! The result of the node's checks, if the cluster requires them: the operator writes it as `Reason: text`, and the
//! kubelet updates the file.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use crds::{Reason, Vocabulary};

use super::gate_state::GateState;

/// Most bytes of the result.
const LONGEST: u64 = 4096;

/// Succeeds if all required checks pass.
pub(super) fn passes(path: &Path, node: &str) -> Result<(), GateState> {
    let mut text = String::new();
    let read = File::open(path).and_then(|file| file.take(LONGEST).read_to_string(&mut text));
    let pending = |text: String| Err(GateState::waiting(Reason::PreflightPending, text));
    match read {
        Ok(_) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return pending(format!("{}: {error}", path.display())),
    }
    let text = text.trim();
    if text.is_empty() {
        return pending(format!(
            "the operator has not yet reported the checks of node {node}"
        ));
    }
    let known = text
        .split_once(": ")
        .and_then(|(reason, details)| Some((Reason::read(reason)?, details)));
    match known {
        Some((Reason::AsExpected, _)) => Ok(()),
        Some((reason, details)) => Err(GateState::waiting(reason, details)),
        None => pending(format!("unknown result: {text}")),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn result(text: Option<&str>) -> Result<(), String> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("word");
        if let Some(text) = text {
            fs::write(&path, text).unwrap();
        }
        passes(&path, "n1").map_err(|state| state.message())
    }

    #[test]
    fn only_passed_checks_allow_the_pod_to_start() {
        assert_eq!(result(Some("AsExpected: nothing found by Clock")), Ok(()));
        let found = result(Some("ClockSkewed: node n1: 7 seconds"));
        assert_eq!(
            found.unwrap_err(),
            "GateWaiting: ClockSkewed: node n1: 7 seconds"
        );
        // The operator writes the words of release 0.1.0.
        let found = result(Some("HugepagesShort: node n1: 0 of 512"));
        assert_eq!(
            found.unwrap_err(),
            "GateWaiting: HugepagesInsufficient: node n1: 0 of 512"
        );
        for pending in [
            None,
            Some(""),
            Some("\n"),
            Some("OfTheNextRelease: x"),
            Some("AsExpected"),
        ] {
            let words = result(pending).unwrap_err();
            assert!(
                words.starts_with("GateWaiting: PreflightPending: "),
                "{words}"
            );
        }
    }
}
