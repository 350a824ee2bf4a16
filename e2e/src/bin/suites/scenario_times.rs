//! The times of scenarios in the output of a test run, and the file that keeps those of the last one.

use local_cluster::settings::RAN;

/// The file below `target`.
pub(crate) const FILE: &str = "scenario-times.tsv";

const HEADER: &str = "suite\ttest\tnamespace\tcluster\truns\tdeleted after\n";

/// The fields of a line of [`RAN`], in which marks of quiet tests come first.
pub(crate) fn parsed(line: &str) -> Option<&str> {
    let (marks, fields) = line.split_once(RAN)?;
    let marks_only = marks.chars().all(|mark| ['.', 'i', 'F'].contains(&mark));
    (marks_only && fields.split('\t').count() == 5).then_some(fields)
}

/// The text of the file: a line for each scenario, with its suite.
pub(crate) fn text<'a>(lines: impl Iterator<Item = (&'a str, &'a str)>) -> String {
    let lines = lines.map(|(suite, fields)| format!("{suite}\t{fields}\n"));
    lines.fold(HEADER.to_owned(), |text, line| text + &line)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_found_after_the_marks_of_others_and_get_their_suite() {
        let fields = "scenarios::idle\tidle-1f\tsuites\t71 s\t90 s";
        for marks in ["", "..i."] {
            let line = format!("{marks}scenario: {fields}");
            assert_eq!(parsed(&line), Some(fields));
        }
        assert_eq!(parsed("the slow scenario: a\tb\tc\td\te"), None);
        assert_eq!(parsed("scenario: it failed"), None);
        let text = text([("scenarios", fields)].into_iter());
        let columns: Vec<_> = text.lines().map(|line| line.split('\t').count()).collect();
        assert_eq!(columns, [6, 6]);
        assert!(text.ends_with(&format!("\nscenarios\t{fields}\n")));
    }
}
