//! The memory that the container may take.

use std::fs;

/// Where a container sees its own limit: cgroup 2, and cgroup 1.
const FILES: [&str; 2] = [
    "/sys/fs/cgroup/memory.max",
    "/sys/fs/cgroup/memory/memory.limit_in_bytes",
];

/// Returns the limit in bytes, if there is one.
pub(crate) fn limit() -> Option<u64> {
    let texts = FILES
        .iter()
        .filter_map(|file| fs::read_to_string(file).ok());
    texts.filter_map(|text| parse(&text)).min()
}

/// Cgroup 2 has the word `max` without a limit, cgroup 1 a number above all memories.
fn parse(text: &str) -> Option<u64> {
    let bytes = text.trim().parse().ok();
    bytes.filter(|bytes| *bytes < 1 << 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_limit_is_one() {
        assert_eq!(parse("1073741824\n"), Some(1 << 30));
        for none in ["max\n", "9223372036854771712\n", ""] {
            assert_eq!(parse(none), None, "{none:?}");
        }
    }
}
