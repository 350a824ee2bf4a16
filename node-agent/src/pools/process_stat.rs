//! What the kernel reports of a process or of a thread in its file `stat`.

use std::path::Path;

/// Fields of `/proc/PID/stat` or of `/proc/PID/task/TID/stat` (proc_pid_stat(5)).
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Stat {
    /// The letter of its state.
    pub(crate) state: char,
    /// The ID of its process group; 0 for threads of the kernel.
    pub(crate) group: i32,
    flags: u64,
    /// When it was started, in ticks since the boot.
    pub(crate) started: u64,
}

impl Stat {
    /// Reads the file in the folder of a process or thread; `None` if that has ended. A process cannot delay the reading, as it
    /// can that of its arguments.
    pub(crate) fn read(folder: &Path) -> Option<Self> {
        Self::parse(&std::fs::read_to_string(folder.join("stat")).ok()?)
    }

    fn parse(text: &str) -> Option<Self> {
        // The name, in parentheses, may contain anything.
        let (_, fields) = text.rsplit_once(')')?;
        let fields: Vec<&str> = fields.split_whitespace().collect();
        Some(Self {
            state: fields.first()?.chars().next()?,
            group: fields.get(2)?.parse().ok()?,
            flags: fields.get(6)?.parse().ok()?,
            started: fields.get(19)?.parse().ok()?,
        })
    }

    /// Whether the kernel ends it: it has begun to exit (`PF_EXITING`).
    pub(crate) fn is_exiting(&self) -> bool {
        const EXITING: u64 = 0x4;
        self.flags & EXITING != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_counted_from_the_end_of_the_name() {
        let text = |flags: u64| {
            format!("42 (data) 0) t 1 41 40 0 -1 {flags} 10 0 0 0 7 3 0 0 20 0 3 0 900 5 6\n")
        };
        let stat = Stat::parse(&text(0x0040_0140)).unwrap();
        assert_eq!((stat.state, stat.group, stat.started), ('t', 41, 900));
        assert!(!stat.is_exiting());
        assert!(Stat::parse(&text(0x0040_0144)).unwrap().is_exiting());
        for cut in ["", "42 (data", "42 (data) S 1 41 40 0 -1 0 10\n"] {
            assert_eq!(Stat::parse(cut), None, "{cut}");
        }
    }
}
