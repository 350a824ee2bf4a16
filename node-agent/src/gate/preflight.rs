//! What the operator says of the pod's node, where the cluster asks for checks of the node: the kubelet shows it as a
//! file, `Reason: words`, and shows it anew when it changes.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use crds::Reason;

use super::verdict::Verdict;

/// An annotation may be longer; what we write is not.
const LONGEST: u64 = 4096;

/// Nothing where all that is asked for holds.
pub(super) fn passes(path: &Path, node: &str) -> Result<(), Verdict> {
    let mut text = String::new();
    let read = File::open(path).and_then(|file| file.take(LONGEST).read_to_string(&mut text));
    let untold = |words: String| Err(Verdict::waiting(Reason::PreflightUntold, words));
    match read {
        Ok(_) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return untold(format!("{}: {error}", path.display())),
    }
    let text = text.trim();
    if text.is_empty() {
        return untold(format!(
            "the operator has not yet said what the checks of node {node} find"
        ));
    }
    let known = text.split_once(": ").and_then(|(reason, words)| {
        let mut all = Reason::ALL.iter().copied();
        Some((all.find(|known| known.as_str() == reason)?, words))
    });
    match known {
        Some((Reason::AsExpected, _)) => Ok(()),
        Some((reason, words)) => Err(Verdict::waiting(reason, words)),
        None => untold(format!("not understood: {text}")),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn judged(text: Option<&str>) -> Result<(), String> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("word");
        if let Some(text) = text {
            fs::write(&path, text).unwrap();
        }
        passes(&path, "n1").map_err(|verdict| verdict.words())
    }

    #[test]
    fn only_the_word_that_all_is_well_lets_the_pod_start() {
        assert_eq!(judged(Some("AsExpected: nothing found by Clock")), Ok(()));
        let found = judged(Some("ClockSkewed: node n1: 7 seconds"));
        assert_eq!(
            found.unwrap_err(),
            "GateWaiting: ClockSkewed: node n1: 7 seconds"
        );
        for untold in [
            None,
            Some(""),
            Some("\n"),
            Some("OfTheNextRelease: x"),
            Some("AsExpected"),
        ] {
            let words = judged(untold).unwrap_err();
            assert!(
                words.starts_with("GateWaiting: PreflightUntold: "),
                "{words}"
            );
        }
    }
}
