//! The file that the built-in master reads: lines of `member ADDRESS` and `operator ADDRESS`, each with the UIDs of the pods at that
//! address.

use std::fmt::Write as _;
use std::fs;
use std::io;
use std::path::Path;

use crate::Addresses;

/// Returns the text of the file.
pub fn text(members: &Addresses, operators: &Addresses) -> String {
    let mut text = String::new();
    for (role, addresses) in [("member", members), ("operator", operators)] {
        for (address, pods) in addresses {
            // Writing to a String cannot fail.
            let _ = write!(text, "{role} {address}");
            for pod in pods {
                let _ = write!(text, " {pod}");
            }
            text.push('\n');
        }
    }
    text
}

/// Replaces the file, so that a reader sees the old or the new text and nothing between. It is not synced to the disk: it ends
/// with its pod.
///
/// # Errors
/// The errors of writing and renaming a file in the folder of `path`.
pub fn replace(path: &Path, text: &str) -> io::Result<()> {
    let new = path.with_extension("new");
    fs::write(&new, text)?;
    fs::rename(&new, path)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn addresses(of: &[(&str, &[&str])]) -> Addresses {
        let owned = |pods: &[&str]| pods.iter().map(|pod| (*pod).to_owned()).collect();
        of.iter()
            .map(|(address, pods)| (address.parse().unwrap(), owned(pods)))
            .collect()
    }

    #[test]
    fn each_address_is_a_line_with_its_role_and_a_file_is_replaced_whole() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("addresses");
        replace(&path, "former").unwrap();
        let members = addresses(&[
            ("10.0.0.2", &["b", "c"]),
            ("10.0.0.1", &["a"]),
            ("fd00::1", &["a"]),
            ("10.0.0.3", &[]),
        ]);
        let operators = addresses(&[("10.0.0.9", &["o"])]);
        replace(&path, &text(&members, &operators)).unwrap();
        assert_eq!(
            fs::read_to_string(&path).unwrap(),
            "member 10.0.0.1 a\nmember 10.0.0.2 b c\nmember 10.0.0.3\nmember fd00::1 a\noperator 10.0.0.9 o\n"
        );
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);
    }
}
