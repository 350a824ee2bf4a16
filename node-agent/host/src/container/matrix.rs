//! The topology matrix that a stock engine reads from a file instead of discovering devices. Only names of devices are
//! kept of the file.

use crds::text::clip_chars;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::super::fault::Problem;
use super::super::tree::Tree;

/// Most bytes that are read; the file of a node with 16 GPUs and 16 devices has 6 KiB.
pub const LONGEST: usize = 64 << 10;

/// Most devices that are kept, and most characters of a name.
const DEVICES: usize = 64;
const NAME: usize = 64;

/// The devices in the matrix, each once; or why the file is not a matrix.
pub type Matrix = Result<Vec<String>, Flaw>;

/// What is wrong with the file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Flaw {
    Unread(Problem),
    Empty,
    NotJson,
    /// Valid JSON that is not a matrix.
    Misshapen,
}

/// Reads the matrix; the path is the container's.
pub(super) fn read(root: &Tree, path: &str) -> Matrix {
    let text = root.named_file(path.trim_start_matches('/'), LONGEST);
    parse(&text.map_err(Flaw::Unread)?)
}

/// Each location has its preferred devices, and others: `{"cpu:0": [["mlx5_0"], ["mlx5_1"]]}`.
fn parse(text: &str) -> Matrix {
    if text.trim().is_empty() {
        return Err(Flaw::Empty);
    }
    let value: Value = serde_json::from_str(text).map_err(|_| Flaw::NotJson)?;
    let locations = value.as_object().ok_or(Flaw::Misshapen)?;
    let mut devices: Vec<String> = Vec::new();
    for location in locations.values() {
        let lists = location.as_array().filter(|lists| lists.len() == 2);
        for list in lists.ok_or(Flaw::Misshapen)? {
            for name in list.as_array().ok_or(Flaw::Misshapen)? {
                let name = name.as_str().ok_or(Flaw::Misshapen)?;
                let name = clip_chars(name, NAME);
                if devices.len() < DEVICES && !devices.contains(&name) {
                    devices.push(name);
                }
            }
        }
    }
    Ok(devices)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_of_a_matrix_are_listed_once_and_invalid_files_are_recognised() {
        let both = r#"{"cpu:0": [["a", "b"], ["c"]], "cuda:0": [["b"], []]}"#;
        assert_eq!(parse(both).unwrap(), ["a", "b", "c"]);
        // Without devices a stock engine uses TCP.
        assert_eq!(parse("{}"), Ok(Vec::new()));
        for (text, flaw) in [
            ("", Flaw::Empty),
            (" \n", Flaw::Empty),
            ("cpu:0 mlx5_0", Flaw::NotJson),
            (r#"{"cpu:0": [["a"], []]"#, Flaw::NotJson),
            (r#"["a"]"#, Flaw::Misshapen),
            (r#"{"cpu:0": ["a"]}"#, Flaw::Misshapen),
            (r#"{"cpu:0": [["a"]]}"#, Flaw::Misshapen),
            (r#"{"cpu:0": ["a", "b"]}"#, Flaw::Misshapen),
            (r#"{"cpu:0": [["a"], [7]]}"#, Flaw::Misshapen),
            (r#"{"cpu:0": [["a"], [], []]}"#, Flaw::Misshapen),
        ] {
            assert_eq!(parse(text), Err(flaw), "{text}");
        }
        let deep = "[".repeat(LONGEST);
        assert_eq!(parse(&deep), Err(Flaw::NotJson));
    }

    #[test]
    fn names_and_devices_of_a_huge_matrix_are_limited() {
        let names: Vec<String> = (0..1000).map(|n| format!("{n:0>300}")).collect();
        let kept = parse(&serde_json::json!({"*": [names, []]}).to_string()).unwrap();
        assert!(kept.len() == 1 && kept[0].len() == NAME, "{kept:?}");
        let names: Vec<String> = (0..1000).map(|n| n.to_string()).collect();
        let kept = parse(&serde_json::json!({"*": [names, []]}).to_string()).unwrap();
        assert_eq!(kept.len(), DEVICES);
    }
}
