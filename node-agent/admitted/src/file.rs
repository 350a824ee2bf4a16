//! The file that the built-in master reads: lines of `member ADDRESS` and `operator ADDRESS`.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::io;
use std::net::IpAddr;
use std::path::Path;

/// Returns the text of the file.
pub fn text(members: &BTreeSet<IpAddr>, operators: &BTreeSet<IpAddr>) -> String {
    let mut text = String::new();
    for (role, addresses) in [("member", members), ("operator", operators)] {
        for address in addresses {
            // Writing to a String cannot fail.
            let _ = writeln!(text, "{role} {address}");
        }
    }
    text
}

/// Replaces the file, so that a reader sees the old or the new text and nothing between.
///
/// # Errors
/// Those of writing and renaming a file in the folder of `path`.
pub fn replace(path: &Path, text: &str) -> io::Result<()> {
    let new = path.with_extension("new");
    fs::write(&new, text)?;
    fs::rename(&new, path)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(addresses: &[&str]) -> BTreeSet<IpAddr> {
        addresses.iter().map(|a| a.parse().unwrap()).collect()
    }

    #[test]
    fn each_address_is_a_line_with_its_role_and_a_file_is_replaced_whole() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("addresses");
        replace(&path, "former").unwrap();
        let members = set(&["10.0.0.2", "10.0.0.1", "fd00::1"]);
        replace(&path, &text(&members, &set(&["10.0.0.9"]))).unwrap();
        assert_eq!(
            fs::read_to_string(&path).unwrap(),
            "member 10.0.0.1\nmember 10.0.0.2\nmember fd00::1\noperator 10.0.0.9\n"
        );
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);
    }
}
