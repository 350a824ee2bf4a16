//! Switches IPv6 of interfaces: of all in the change, or of none.

use std::io;
use std::path::Path;

use super::super::ipv6::Switches;
use super::super::step::Change;
use super::{read, write};

/// True where all were switched; false where one has another value than the change starts from.
///
/// # Errors
/// A file cannot be read or written: the interface is gone, or the kernel refuses the value.
pub(super) fn set(root: &Path, change: &Change) -> io::Result<bool> {
    let parsed = |text: &str| text.parse::<Switches>().map_err(io::Error::other);
    let (before, after) = (parsed(&change.before)?, parsed(&change.after)?);
    if !before.0.keys().eq(after.0.keys()) {
        let message = "the change has different interfaces before and after";
        return Err(io::Error::other(message));
    }
    for (name, value) in &before.0 {
        if read(root, &path(name))? != value.to_string() {
            return Ok(false);
        }
    }
    let all = || before.0.iter().zip(after.0.values());
    for (done, ((name, from), to)) in all().enumerate() {
        let written = write(root, &path(name), &from.to_string(), &to.to_string());
        if let Ok(true) = written {
            continue;
        }
        for ((name, from), to) in all().take(done) {
            // The first error is reported. An interface that cannot be reverted counts as the agent's.
            let _ = write(root, &path(name), &to.to_string(), &from.to_string());
        }
        return written;
    }
    Ok(true)
}

fn path(interface: &str) -> String {
    format!("proc/sys/net/ipv6/conf/{interface}/disable_ipv6")
}

#[cfg(test)]
mod tests {
    use std::fs;

    use crds::FixId;

    use super::*;
    use crate::fixes::plan::tests::change;

    fn node(values: &[(&str, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for (name, value) in values {
            let path = root.path().join(path(name));
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, value).unwrap();
        }
        root
    }

    fn value(root: &tempfile::TempDir, name: &str) -> String {
        fs::read_to_string(root.path().join(path(name))).unwrap()
    }

    const ID: FixId = FixId::InterfaceIpv6;

    #[test]
    fn all_named_interfaces_are_switched_and_no_other() {
        let root = node(&[("a", "1\n"), ("b", "1\n"), ("c", "1\n")]);
        let on = change(ID, "a 1, b 1", "a 0, b 0");
        assert!(set(root.path(), &on).unwrap());
        assert_eq!(
            ["a", "b", "c"].map(|name| value(&root, name)),
            ["0\n", "0\n", "1\n"]
        );
        assert!(!set(root.path(), &on).unwrap(), "another value is present");
    }

    #[test]
    fn no_interface_is_switched_where_one_is_gone_or_has_another_value() {
        let root = node(&[("a", "1\n"), ("b", "0\n")]);
        assert!(!set(root.path(), &change(ID, "a 1, b 1", "a 0, b 0")).unwrap());
        let gone = set(root.path(), &change(ID, "a 1, z 1", "a 0, z 0"));
        assert!(
            gone.unwrap_err()
                .to_string()
                .contains("conf/z/disable_ipv6")
        );
        let odd = set(root.path(), &change(ID, "a 1", "b 0"));
        assert!(odd.is_err());
        assert_eq!(value(&root, "a"), "1\n");
    }
}
