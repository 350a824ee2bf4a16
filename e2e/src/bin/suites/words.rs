//! What failing tests said of why, picked out of thousands of lines of a run: pure.

/// Longest piece that is kept, in lines.
const PIECE: usize = 16;
/// Most pieces that are kept; a run that fails altogether says the same over and over.
const PIECES: usize = 12;

/// Hears a run line by line, and remembers the lines that tell of a failure.
#[derive(Debug, Default)]
pub(crate) struct Listener {
    pieces: Vec<Vec<String>>,
    listens: bool,
}

/// How a piece begins: an error that a test ended with, a panic, what did not compile, the list of the
/// tests that failed.
fn begins(line: &str) -> bool {
    line.starts_with("Error: ")
        || line.starts_with("error: ")
        || line.starts_with("error[")
        || line.trim_end() == "failures:"
        || (line.starts_with("thread '") && line.contains("' (") && line.contains(" panicked at "))
}

/// What is no part of a piece any more. The lines of a backtrace tell nothing at this distance.
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

/// A line without the signs of tests that ended before it: quiet tests put them on one line, and whatever
/// is said next follows them there.
fn without_signs(line: &str) -> &str {
    line.trim_start_matches(['.', 'i', 'F'])
}

impl Listener {
    pub(crate) fn hear(&mut self, line: &str) {
        let line = if begins(without_signs(line)) {
            without_signs(line)
        } else {
            line
        };
        if begins(line) {
            self.listens = self.pieces.len() < PIECES;
            if self.listens {
                self.pieces.push(Vec::new());
            }
        } else if ends(line) {
            self.listens = false;
        }
        if !self.listens {
            return;
        }
        if let Some(piece) = self.pieces.last_mut() {
            piece.push(line.to_owned());
            self.listens = piece.len() < PIECE;
        }
    }

    /// The pieces in the order in which they were heard.
    pub(crate) fn heard(self) -> Vec<String> {
        self.pieces
            .iter()
            .map(|piece| piece.join("\n").trim_end().to_owned())
            .filter(|piece| piece != "failures:")
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn heard(text: &str) -> Vec<String> {
        let mut listener = Listener::default();
        text.lines().for_each(|line| listener.hear(line));
        listener.heard()
    }

    #[test]
    fn an_error_is_heard_with_its_causes_and_without_its_backtrace() {
        let words = heard(
            "quiet-1 on suites: told in 3 s\nError: pod a to end\n\nCaused by:\n    pod a failed\n\nStack backtrace:\n   0: x",
        );
        assert_eq!(words.len(), 1);
        assert!(words[0].starts_with("Error: pod a to end\n\nCaused by:\n    pod a failed"));
    }

    #[test]
    fn an_error_is_heard_behind_the_signs_of_tests_that_passed() {
        assert_eq!(
            heard("..i.Error: it is shut\n.."),
            ["Error: it is shut\n.."]
        );
        assert_eq!(
            heard("..thread 'a_door' (42) panicked at e2e/x.rs:1:2:\nshut"),
            ["thread 'a_door' (42) panicked at e2e/x.rs:1:2:\nshut"]
        );
    }

    #[test]
    fn a_panic_is_heard_with_its_thread_and_the_list_of_failures_with_its_names() {
        let words = heard(
            "thread 'a_door_opens' (42) panicked at e2e/x.rs:1:2:\nit is shut\nstack backtrace:\n   0: y\n\nfailures:\n\n---- a_door_opens stdout ----\n\nfailures:\n    a_door_opens\n",
        );
        assert_eq!(
            words,
            [
                "thread 'a_door_opens' (42) panicked at e2e/x.rs:1:2:\nit is shut",
                "failures:\n    a_door_opens"
            ]
        );
    }

    #[test]
    fn a_run_that_says_the_same_for_ever_is_cut() {
        let text = "error: no\nmore\n".repeat(1000);
        assert_eq!(heard(&text).len(), PIECES);
        let long = format!("error: no\n{}", "more\n".repeat(1000));
        assert_eq!(heard(&long)[0].lines().count(), PIECE);
    }

    #[test]
    fn a_run_without_failure_tells_nothing() {
        assert!(heard("running 3 tests\n...\ntest result: ok. 3 passed; 0 failed\n").is_empty());
    }
}
