//! Compares a text with the file that was reviewed; `UPDATE=1` rewrites the file.

use std::path::Path;

pub(super) fn check(name: &str, found: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/golden")
        .join(format!("{name}.yaml"));
    if std::env::var_os("UPDATE").is_some() {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, found).unwrap();
    }
    let wanted = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        wanted == found,
        "tests/golden/{name}.yaml differs; look at the difference, then run with UPDATE=1"
    );
}
