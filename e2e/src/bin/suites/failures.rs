//! Excerpts of a test run that explain its failures, without I/O.

/// Longest excerpt, in lines.
const LINES: usize = 16;
/// Number of excerpts that are kept; a run that fails completely repeats itself.
const EXCERPTS: usize = 12;

/// Collects the excerpts from the lines of a run.
#[derive(Debug, Default)]
pub(crate) struct Collector {
    excerpts: Vec<Vec<String>>,
    inside: bool,
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

    /// The excerpts in the order of the output.
    pub(crate) fn excerpts(self) -> Vec<String> {
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
