//! Reads the lists by which sysfs names processors and NUMA nodes.

/// Parses the kernel's list format, for example `0-1,4`. Skips what is not a number or a range.
#[must_use]
pub fn parse_id_list(text: &str) -> Vec<u32> {
    let ranges = text.trim().split(',').filter_map(|part| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        Some(first.parse::<u32>().ok()?..=last.parse::<u32>().ok()?)
    });
    ranges.flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::parse_id_list;

    #[test]
    fn ranges_and_single_ids_are_parsed() {
        assert_eq!(parse_id_list("0-2,5\n"), [0, 1, 2, 5]);
        assert!(parse_id_list("\n").is_empty());
    }
}
