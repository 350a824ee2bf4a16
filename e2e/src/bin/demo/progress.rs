//! Prints one line per step, with the seconds since the start.

use std::time::Instant;

pub(crate) struct Progress {
    started: Instant,
    last: String,
}

impl Progress {
    pub(crate) fn start() -> Self {
        Self {
            started: Instant::now(),
            last: String::new(),
        }
    }

    #[expect(clippy::print_stdout, reason = "this is what the user watches")]
    pub(crate) fn report(&mut self, text: &str) {
        println!("[{:6.1} s] {text}", self.started.elapsed().as_secs_f64());
        text.clone_into(&mut self.last);
    }

    /// As [`Progress::report`], unless it repeats the last line.
    pub(crate) fn report_change(&mut self, text: &str) {
        if text != self.last {
            self.report(text);
        }
    }
}
