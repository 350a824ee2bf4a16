//! What the output of a test run states about its failures, without I/O.

use crate::scenario_times;
use local_cluster::settings::SKIPPED;
use std::collections::BTreeSet;

/// Longest excerpt, in lines.
const LINES: usize = 16;
/// Number of excerpts that are kept; a run that fails completely repeats itself.
const EXCERPTS: usize = 12;

/// The exit code of cargo when tests failed, or a program of them did. Another one, a signal or a deadline also ended tests
/// that had not run.
const TESTS_FAILED: i32 = 101;

/// Collects the excerpts, the names of the failed tests, the number of skipped ones and the times of scenarios from the lines of
/// a run.
#[derive(Debug, Default)]
pub(crate) struct Collector {
    excerpts: Vec<Vec<String>>,
    inside: bool,
    tests: BTreeSet<String>,
    listing: bool,
    /// Programs that cargo reports as failed, those whose summary counts failed tests, and the sum of these counts.
    failed_programs: usize,
    summaries: usize,
    counted: usize,
    skipped: usize,
    times: Vec<String>,
}

/// The number of failed tests in a summary of libtest, `test result: FAILED. 3 passed; 1 failed; …`.
fn failed_count(line: &str) -> Option<usize> {
    let (counts, _) = line
        .strip_prefix("test result: FAILED. ")?
        .split_once(" failed;")?;
    counts.rsplit(' ').next()?.parse().ok()
}

/// The name in a line of libtest's list of failed tests. Documentation tests have names with spaces, which no filter of
/// `cargo test` selects.
fn listed_test(line: &str) -> Option<&str> {
    line.strip_prefix("    ")
        .filter(|name| !name.is_empty() && !name.contains(' '))
}

/// Whether an excerpt begins: the error of a test, a panic, a compiler error, or the list of failed tests.
fn begins(line: &str) -> bool {
    line.starts_with("Error: ")
        || line.starts_with("error: ")
        || line.starts_with("error[")
        || line.trim_end() == "failures:"
        || (line.starts_with("thread '") && line.contains("' (") && line.contains(" panicked at "))
}

/// Whether an excerpt ends. Backtraces are left out.
fn ends(line: &str) -> bool {
    [
        "stack backtrace:",
        "Stack backtrace:",
        "note: ",
        "test ",
        "----",
    ]
    .iter()
    .any(|other| line.starts_with(other))
}

/// A line without the progress marks of quiet tests, which the next output follows on the same line.
fn without_marks(line: &str) -> &str {
    line.trim_start_matches(['.', 'i', 'F'])
}

impl Collector {
    pub(crate) fn add(&mut self, line: &str) {
        self.note_failed_test(line);
        // The marks of quiet tests may come first.
        if without_marks(line).starts_with(SKIPPED) {
            self.skipped += 1;
        }
        let times = scenario_times::parsed(line);
        self.times.extend(times.map(str::to_owned));
        let line = if begins(without_marks(line)) {
            without_marks(line)
        } else {
            line
        };
        if begins(line) {
            self.inside = self.excerpts.len() < EXCERPTS;
            if self.inside {
                self.excerpts.push(Vec::new());
            }
        } else if ends(line) {
            self.inside = false;
        }
        if !self.inside {
            return;
        }
        if let Some(excerpt) = self.excerpts.last_mut() {
            excerpt.push(line.to_owned());
            self.inside = excerpt.len() < LINES;
        }
    }

    fn note_failed_test(&mut self, line: &str) {
        if line.starts_with("error: test failed") || line.starts_with("error: doctest failed") {
            self.failed_programs += 1;
        }
        if let Some(count) = failed_count(line) {
            self.summaries += 1;
            self.counted += count;
        }
        if line.trim_end() == "failures:" {
            self.listing = true;
        } else if self.listing {
            match listed_test(line) {
                Some(name) => {
                    self.tests.insert(name.to_owned());
                }
                None => self.listing = false,
            }
        }
    }

    /// Takes the times of the scenarios.
    pub(crate) fn times(&mut self) -> Vec<String> {
        std::mem::take(&mut self.times)
    }

    /// The number of tests that did nothing, because only the soak runs them.
    pub(crate) fn skipped(&self) -> usize {
        self.skipped
    }

    /// The names of the failed tests, if these explain the whole failure: a program that a signal ended, or one that was
    /// not built, lists no tests, and where `code` is not cargo's own for failed tests, some have not run.
    pub(crate) fn tests(&self, code: Option<i32>) -> BTreeSet<String> {
        let whole = self.summaries == self.failed_programs && self.counted == self.tests.len();
        if code == Some(TESTS_FAILED) && whole {
            self.tests.clone()
        } else {
            BTreeSet::new()
        }
    }

    /// The excerpts in the order of the output.
    pub(crate) fn excerpts(&self) -> Vec<String> {
        self.excerpts
            .iter()
            .map(|excerpt| excerpt.join("\n").trim_end().to_owned())
            .filter(|excerpt| excerpt != "failures:")
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn excerpts(text: &str) -> Vec<String> {
        let mut collector = Collector::default();
        text.lines().for_each(|line| collector.add(line));
        collector.excerpts()
    }

    #[test]
    fn an_error_is_kept_with_its_causes_and_without_its_backtrace() {
        let found = excerpts(
            "quiet-1 on suites: ran 3 s\nError: pod a to end\n\nCaused by:\n    pod a failed\n\nStack backtrace:\n   0: x",
        );
        assert_eq!(found.len(), 1);
        assert!(found[0].starts_with("Error: pod a to end\n\nCaused by:\n    pod a failed"));
    }

    #[test]
    fn an_error_is_found_after_the_marks_of_passed_tests() {
        assert_eq!(excerpts("..i.Error: closed\n.."), ["Error: closed\n.."]);
        assert_eq!(
            excerpts("..thread 'a_door' (42) panicked at e2e/x.rs:1:2:\nclosed"),
            ["thread 'a_door' (42) panicked at e2e/x.rs:1:2:\nclosed"]
        );
    }

    #[test]
    fn a_panic_and_the_list_of_failed_tests_are_kept() {
        let found = excerpts(
            "thread 'a_door_opens' (42) panicked at e2e/x.rs:1:2:\nclosed\nstack backtrace:\n   0: y\n\nfailures:\n\n---- a_door_opens stdout ----\n\nfailures:\n    a_door_opens\n",
        );
        assert_eq!(
            found,
            [
                "thread 'a_door_opens' (42) panicked at e2e/x.rs:1:2:\nclosed",
                "failures:\n    a_door_opens"
            ]
        );
    }

    fn tests_of(text: &str, code: Option<i32>) -> Vec<String> {
        let mut collector = Collector::default();
        text.lines().for_each(|line| collector.add(line));
        collector.tests(code).into_iter().collect()
    }

    fn tests(text: &str) -> Vec<String> {
        tests_of(text, Some(TESTS_FAILED))
    }

    const TWO: &str = "failures:\n\n---- a::x stdout ----\n    not_a_test\n\nfailures:\n    a::x\n    b\n\ntest result: FAILED. 3 passed; 2 failed; 0 ignored\n\nerror: test failed, to rerun pass `--lib`\n";

    #[test]
    fn failed_tests_are_collected_from_the_lists_of_all_programs() {
        let other = "failures:\n    c\n\ntest result: FAILED. 0 passed; 1 failed; 0 ignored\nerror: test failed, to rerun pass `--test x`\n";
        assert_eq!(tests(TWO), ["a::x", "b"]);
        assert_eq!(tests(&format!("{TWO}{other}")), ["a::x", "b", "c"]);
    }

    #[test]
    fn failed_tests_are_not_named_when_they_do_not_explain_the_failure() {
        let killed = "error: test failed, to rerun pass `--test x`\n\nCaused by:\n  process didn't exit successfully (signal: 6)\n";
        assert!(tests(&format!("{TWO}{killed}")).is_empty());
        let documentation = "failures:\n    src/lib.rs - f (line 3)\n\ntest result: FAILED. 0 passed; 1 failed;\nerror: doctest failed\n";
        assert!(tests(&format!("{TWO}{documentation}")).is_empty());
    }

    #[test]
    fn failed_tests_do_not_explain_a_run_that_did_not_end_by_itself() {
        // The next program waited for ever.
        assert_eq!(tests(TWO).len(), 2);
        for code in [None, Some(124), Some(137), Some(1)] {
            assert!(tests_of(TWO, code).is_empty(), "{code:?}");
        }
    }

    #[test]
    fn skipped_tests_are_counted_also_after_the_marks_of_others() {
        let mut collector = Collector::default();
        for line in [
            "skipped: 0 of 1 virtual machines",
            "..i.skipped: 0 of 2 virtual machines",
            "4 of 20 kills",
        ] {
            collector.add(line);
        }
        assert_eq!(collector.skipped(), 2);
    }

    #[test]
    fn repeated_and_long_output_is_limited() {
        let text = "error: no\nmore\n".repeat(1000);
        assert_eq!(excerpts(&text).len(), EXCERPTS);
        let long = format!("error: no\n{}", "more\n".repeat(1000));
        assert_eq!(excerpts(&long)[0].lines().count(), LINES);
    }

    #[test]
    fn a_run_without_failure_has_no_excerpt() {
        assert!(excerpts("running 3 tests\n...\ntest result: ok. 3 passed; 0 failed\n").is_empty());
    }
}
