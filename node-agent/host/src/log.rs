//! Events of RDMA devices and GPUs in the kernel log, by patterns; the last of each kind and device. Other lines are neither
//! kept nor recorded.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::pci;
use super::tree::Tree;

/// The device file of the kernel log.
const PATH: &str = "dev/kmsg";

/// Most events and devices that are kept.
const MOST: usize = 64;

/// The event that a line reports.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Sign {
    /// The card has no memory keys left.
    MkeysUsedUp,
    /// A registration was larger than the device supports.
    RegionTooLarge,
    /// The card's firmware does not answer or has stopped.
    FirmwareStuck,
    /// A GPU does not answer any more.
    GpuLost,
}

/// Words that occur together in a line of the log.
#[derive(Debug)]
pub struct Pattern {
    pub sign: Sign,
    words: &'static [&'static str],
    /// An example, and the device that it names.
    pub sample: (&'static str, &'static str),
}

/// All patterns. The samples are from Mooncake's troubleshooting page, openucx/ucx#7738,
/// charmplusplus/charm#2635 and NVIDIA/NVSentinel#155.
pub const PATTERNS: &[Pattern] = &[
    Pattern {
        sign: Sign::MkeysUsedUp,
        words: &["CREATE_MKEY", "status no resources"],
        sample: (
            "mlx5_core 0000:65:01.0: mlx5_cmd_out_err:829:(pid 3958462): CREATE_MKEY(0x200) op_mod(0x0) \
             failed, status no resources(0xf), syndrome (0x2aac7c), err(-11)",
            "0000:65:01.0",
        ),
    },
    Pattern {
        sign: Sign::RegionTooLarge,
        words: &["Out of mr size"],
        sample: (
            "infiniband erdma_0: ERROR: Out of mr size: 0, max 68719476736",
            "erdma_0",
        ),
    },
    Pattern {
        sign: Sign::FirmwareStuck,
        words: &["mlx5_core", "Will cause a leak of a command resource"],
        sample: (
            "mlx5_core 0000:61:00.0: wait_func:1132:(pid 141181): CREATE_DCT(0x710) timeout. Will cause a \
             leak of a command resource",
            "0000:61:00.0",
        ),
    },
    Pattern {
        sign: Sign::FirmwareStuck,
        words: &["mlx5_core", "health compromised"],
        sample: (
            "mlx5_core 0000:5e:00.0: device's health compromised - reached miss count",
            "0000:5e:00.0",
        ),
    },
    Pattern {
        sign: Sign::GpuLost,
        words: &["NVRM:", "allen off the bus"],
        sample: (
            "NVRM: Xid (PCI:0000:44:00): 79, GPU has fallen off the bus.",
            "0000:44:00.0",
        ),
    },
    Pattern {
        sign: Sign::GpuLost,
        words: &["NVRM:", "allen off the bus"],
        sample: (
            "NVRM: The NVIDIA GPU 0000:b3:00.0\\x0aNVRM: (PCI ID: 10de:26b5) installed in this system \
             has\\x0aNVRM: fallen off the bus and is not responding to commands.",
            "0000:b3:00.0",
        ),
    },
];

/// Events in the log.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Log {
    /// Seconds since the kernel started.
    pub uptime: Option<u64>,
    /// The last event of each kind and device.
    pub sightings: Vec<Sighting>,
}

/// When an event was last logged.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sighting {
    pub sign: Sign,
    /// PCI address or name, where the line has one.
    pub device: Option<String>,
    /// In seconds since the kernel started.
    pub at: u64,
}

/// The event that a line of the log reports.
pub fn sign(line: &str) -> Option<Sign> {
    let fits = |pattern: &&Pattern| pattern.words.iter().all(|word| line.contains(word));
    PATTERNS.iter().find(fits).map(|pattern| pattern.sign)
}

/// None where the log cannot be read.
pub(super) fn read(tree: &Tree) -> Option<Log> {
    let text = tree.lines(PATH, |line| sign(line).is_some())?;
    let mut last: BTreeMap<(Sign, Option<String>), u64> = BTreeMap::new();
    for line in text.lines() {
        let Some((sign, at)) = sign(line).zip(time(line)) else {
            continue;
        };
        let key = (sign, device(line));
        if last.len() < MOST || last.contains_key(&key) {
            last.insert(key, at);
        }
    }
    let sightings = last
        .into_iter()
        .map(|((sign, device), at)| Sighting { sign, device, at });
    let uptime = tree.text("proc/uptime").and_then(|text| {
        tree.parsed("proc/uptime", text, |text| {
            text.split(['.', ' ']).next()?.parse().ok()
        })
    });
    Some(Log {
        uptime,
        sightings: sightings.collect(),
    })
}

/// `6,1234,5678901,-;text`: the third number is microseconds.
fn time(line: &str) -> Option<u64> {
    let (head, _) = line.split_once(';')?;
    let micros: u64 = head.split(',').nth(2)?.parse().ok()?;
    Some(micros / 1_000_000)
}

/// The PCI address in a line, or the name of its RDMA device.
fn device(line: &str) -> Option<String> {
    let (_, text) = line.split_once(';').unwrap_or(("", line));
    // The kernel escapes line ends within a message like this.
    let text = text.replace("\\x0a", " ");
    let words: Vec<&str> = text
        .split_ascii_whitespace()
        .map(|word| word.trim_matches(|sign: char| !sign.is_ascii_alphanumeric()))
        .collect();
    let address = words.iter().find_map(|word| {
        let word = word.strip_prefix("PCI:").unwrap_or(word);
        // The GPU driver omits the function.
        [word.to_owned(), format!("{word}.0")]
            .into_iter()
            .find(|address| pci::is_address(address))
    });
    let named = || {
        let mut pairs = words.windows(2);
        let pair = pairs.find(|pair| pair[0] == "infiniband")?;
        let sound = |sign: char| sign.is_ascii_alphanumeric() || sign == '_';
        (pair[1].len() < 64 && pair[1].chars().all(sound)).then(|| pair[1].to_owned())
    };
    address.or_else(named)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recording::{Entry, Recording};

    fn log_of(text: String) -> Log {
        let mut recording = Recording::default();
        recording.insert(PATH, Entry::Text(text));
        read(&Tree::recording(recording)).unwrap()
    }

    #[test]
    fn each_pattern_is_found_in_its_sample_and_names_its_device() {
        for pattern in PATTERNS {
            let (line, device) = pattern.sample;
            let log = log_of(format!(
                "6,339,5140900,-;NET: Registered PF_INET\n3,2001,61000123,-;{line}"
            ));
            let expected = Sighting {
                sign: pattern.sign,
                device: Some(device.to_owned()),
                at: 61,
            };
            assert_eq!(log.sightings, [expected], "{line}");
        }
    }

    #[test]
    fn the_log_of_this_machine_is_read_to_its_end_without_blocking() {
        let here = Tree::folder(std::path::Path::new("/")).unwrap();
        // Reading it may need privileges.
        if std::fs::File::open("/dev/kmsg").is_ok() {
            assert!(here.lines(PATH, |_| true).is_some());
            assert_eq!(here.lines(PATH, |_| false).as_deref(), Some(""));
            assert_eq!(here.faults(), []);
        }
    }

    #[test]
    fn of_many_lines_the_last_of_each_device_is_kept() {
        let line = |at: u64, device: u64| {
            let text = "device's health compromised - reached miss count";
            format!("3,1,{at},-;mlx5_core 0000:{device:02x}:00.0: {text}\n")
        };
        let log = log_of((0..500).map(|at| line(at * 1_000_000, at % 100)).collect());
        assert_eq!(log.sightings.len(), MOST);
        assert_eq!(log.sightings[0].at, 400);
    }

    #[test]
    fn a_line_without_a_pattern_is_no_event() {
        for line in [
            "6,1,5,-;mlx5_core 0000:65:01.0: CREATE_MKEY(0x200) failed, status bad parameter(0x3)",
            "6,1,5,-;mlx5_core 0000:65:01.0: Port module event: module 0, Cable plugged",
            "CREATE_MKEY status no resources without a head",
            "",
        ] {
            assert_eq!(log_of(line.to_owned()).sightings, [], "{line}");
        }
    }
}
