//! The page that keeps the last result of `make soak`, suite by suite: text, and nothing done with it.

use crate::suite::SUITES;
use std::collections::BTreeMap;

const NOT_RUN: &str = "not run | - | -";

/// The page after a run. `ran` has the cells of those suites that ran, the others keep what they had.
pub(crate) fn page(before: &str, ran: &BTreeMap<&str, String>) -> String {
    let mut page = String::from(
        "# Soak

The last result of each suite at full counts (`make soak`), and the commit that it was run at. A suite that
is not run yet says so.

| suite | shows | result | minutes | commit |
|---|---|---|---|---|
",
    );
    for suite in SUITES {
        let cells = ran
            .get(suite.name)
            .cloned()
            .or_else(|| kept(before, suite.name))
            .unwrap_or_else(|| NOT_RUN.to_owned());
        page.push_str(&format!("| {} | {} | {cells} |\n", suite.name, suite.about));
    }
    page
}

/// The last three cells of a suite's row.
fn kept(page: &str, name: &str) -> Option<String> {
    let row = page
        .lines()
        .find(|line| line.starts_with(&format!("| {name} | ")))?;
    let cells: Vec<_> = row.strip_suffix(" |")?.rsplitn(4, " | ").collect();
    let [commit, minutes, result, _] = cells[..] else {
        return None;
    };
    Some(format!("{result} | {minutes} | {commit}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_suite_that_was_not_run_says_so_and_one_that_was_keeps_its_result() {
        let first = page(
            "",
            &BTreeMap::from([("lint", "passed | 3.0 | abc".to_owned())]),
        );
        assert!(
            first.contains("| lint | format, clippy without warnings | passed | 3.0 | abc |\n")
        );
        assert_eq!(
            first.matches("| not run | - | - |").count(),
            SUITES.len() - 1
        );
        let second = page(
            &first,
            &BTreeMap::from([("unit", "FAILED | 1.0 | def".to_owned())]),
        );
        assert!(second.contains("| passed | 3.0 | abc |"));
        assert!(second.contains("| FAILED | 1.0 | def |"));
        assert_eq!(
            second.matches("| not run | - | - |").count(),
            SUITES.len() - 2
        );
        assert_eq!(page(&second, &BTreeMap::new()), second);
    }
}
