//! How often a story repeats what it provokes: a few rounds in `make test`, all of them in `make soak`.

/// Set by the suites' runner for full counts.
pub const FULL: &str = "MOONCAKE_FULL_COUNTS";

/// The rounds to run of `full`, said aloud.
#[expect(clippy::print_stdout, reason = "a reduced count must be seen")]
pub fn of(what: &str, reduced: u32, full: u32) -> u32 {
    let count = if std::env::var_os(FULL).is_some() {
        full
    } else {
        reduced.min(full)
    };
    println!("{what}: {count} of {full}");
    count
}
