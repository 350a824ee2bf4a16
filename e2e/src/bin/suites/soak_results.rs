//! The text of docs/soak.md, which keeps the last result of each suite.

use crate::suite::SUITES;
use std::collections::BTreeMap;

const NOT_RUN: &str = "not run | - | -";

/// The text after a run. `ran` holds the cells of the suites that ran; others keep their result.
pub(crate) fn updated(before: &str, ran: &BTreeMap<&str, String>) -> String {
    let mut page = String::from(
        "# Soak

The last result of each suite at full counts (`make soak`), with the tested commit.
The line coverage of the parsers by their tests is in [figures.md](figures.md#line-coverage-of-the-decoders).

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

/// The result, minutes and commit in a suite's row.
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
    fn a_suite_keeps_its_last_result_and_is_marked_until_its_first_run() {
        let first = updated(
            "",
            &BTreeMap::from([("lint", "passed | 3.0 | abc".to_owned())]),
        );
        let about = SUITES[0].about;
        assert!(first.contains(&format!("| lint | {about} | passed | 3.0 | abc |\n")));
        assert_eq!(
            first.matches("| not run | - | - |").count(),
            SUITES.len() - 1
        );
        let second = updated(
            &first,
            &BTreeMap::from([("unit", "FAILED | 1.0 | def".to_owned())]),
        );
        assert!(second.contains("| passed | 3.0 | abc |"));
        assert!(second.contains("| FAILED | 1.0 | def |"));
        assert_eq!(
            second.matches("| not run | - | - |").count(),
            SUITES.len() - 2
        );
        assert_eq!(updated(&second, &BTreeMap::new()), second);
    }
}
