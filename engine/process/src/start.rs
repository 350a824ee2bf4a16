//! What an engine process writes to standard error while it starts. The agent reads it until it is closed.

/// Begins the line that names a device before it is opened: an unhealthy one may block that call for ever.
const OPENING: &str = "opening RDMA device ";

/// Returns the line that is written before a device is opened.
#[must_use]
pub fn opening(device: &str) -> String {
    format!("{OPENING}{device}\n")
}

/// Returns why the start has failed, without the lines of its progress. Empty: it has not.
#[must_use]
pub fn failure(written: &str) -> String {
    let lines = written.lines().filter(|line| !line.starts_with(OPENING));
    lines.collect::<Vec<_>>().join("\n").trim().to_owned()
}

/// Returns the device whose opening is the last step of a process that is not ready in time.
#[must_use]
pub fn opens(written: &str) -> Option<&str> {
    let last = written.lines().next_back()?;
    last.strip_prefix(OPENING)
}

/// Returns what a process that is not ready in time was doing last, and its other lines, each after a semicolon.
#[must_use]
pub fn unfinished(written: &str) -> String {
    let last = written.lines().rfind(|line| line.starts_with(OPENING));
    let last = last.map(|line| format!("its last step was {line}"));
    let parts = last.into_iter().chain([failure(written)]);
    let parts = parts.filter(|part| !part.is_empty());
    parts.map(|part| format!("; {part}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_is_no_failure_and_names_the_device_of_a_start_that_hangs() {
        let progress = ["mlx5_0", "mlx5_1"].map(opening).concat();
        assert_eq!(failure(&progress), "");
        assert_eq!(opens(&progress), Some("mlx5_1"));
        assert_eq!(opens("cannot\n"), None);
        assert_eq!(
            unfinished(&progress),
            "; its last step was opening RDMA device mlx5_1"
        );
        let failed = format!("{progress}cannot enter /net\nno such file\n");
        assert_eq!(failure(&failed), "cannot enter /net\nno such file");
        assert_eq!(opens(&failed), None);
        assert_eq!(unfinished("cannot\n"), "; cannot");
        assert_eq!(unfinished(""), "");
    }
}
