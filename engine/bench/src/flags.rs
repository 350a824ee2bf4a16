//! The flags of the stock `transfer_engine_bench` that apply to TCP, with its names and defaults.

use std::fmt;
use std::time::Duration;

use anyhow::ensure;
use clap::{Args, ValueEnum};

/// Peers announce themselves to each other; no metadata service.
const P2P: &str = "P2PHANDSHAKE";
/// What an initiator prints that waits for a line.
pub(crate) const READY: &str = "ready";

#[derive(Debug, Clone, Args)]
#[command(rename_all = "snake_case")]
pub(crate) struct Flags {
    /// `target` serves memory until it is ended; `initiator` reads or writes a target's memory.
    #[arg(long, default_value_t, value_enum)]
    pub(crate) mode: Mode,
    /// Transport.
    #[arg(long, default_value = "tcp", value_parser = ["tcp"])]
    pub(crate) protocol: String,
    /// Metadata service.
    #[arg(long, default_value = P2P, value_parser = [P2P])]
    pub(crate) metadata_server: String,
    /// This end: an IP address, or an address with the handshake port.
    #[arg(long, default_value = "127.0.0.1")]
    pub(crate) local_server_name: String,
    /// The target, as it prints itself. Required by the initiator.
    #[arg(long, default_value = "")]
    pub(crate) segment_id: String,
    /// What the initiator does.
    #[arg(long, default_value_t, value_enum)]
    pub(crate) operation: Operation,
    /// Bytes of memory of each end.
    #[arg(long, default_value_t = 1 << 30)]
    pub(crate) buffer_size: u64,
    /// Bytes of one request.
    #[arg(long, default_value_t = 65_536)]
    pub(crate) block_size: u64,
    /// Requests that are submitted together and awaited together.
    #[arg(long, default_value_t = 128)]
    pub(crate) batch_size: u64,
    /// Batches in progress at a time.
    #[arg(long, default_value_t = 12)]
    pub(crate) threads: u64,
    /// Seconds.
    #[arg(long, default_value_t = 10)]
    pub(crate) duration: u64,
    /// Print `ready` after the set-up, and begin to measure after a line of standard input.
    #[arg(long)]
    pub(crate) wait_for_line: bool,
    /// Unit of the throughput, a second.
    #[arg(long, default_value = "GB", value_enum)]
    pub(crate) report_unit: Unit,
    /// Decimals of the throughput.
    #[arg(long, default_value_t = 2)]
    pub(crate) report_precision: usize,
    /// Process of the target, if it runs on this machine: its processor time is reported too.
    #[arg(long)]
    pub(crate) target_pid: Option<u32>,
    /// Count system calls with `perf` in the middle of the run. Needs root and the packages linux-perf and
    /// iproute2: the requests of the same time are counted by the bytes of the connections.
    #[arg(long)]
    pub(crate) system_calls: bool,
    /// Print one JSON object instead of text.
    #[arg(long)]
    pub(crate) json: bool,
}

impl Default for Flags {
    fn default() -> Self {
        #[derive(clap::Parser)]
        struct Line {
            #[command(flatten)]
            flags: Flags,
        }
        <Line as clap::Parser>::parse_from([""]).flags
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub(crate) enum Mode {
    #[default]
    Initiator,
    Target,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub(crate) enum Operation {
    #[default]
    Read,
    Write,
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Read => "read",
            Self::Write => "write",
        })
    }
}

/// Units of `transfer_engine_bench`: a small `b` is bits, an `i` powers of 1024.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "verbatim")]
pub(crate) enum Unit {
    GB,
    GiB,
    Gb,
    MB,
    MiB,
    Mb,
    KB,
    KiB,
    Kb,
}

impl Unit {
    pub(crate) fn bytes(self) -> f64 {
        match self {
            Self::GB => 1e9,
            Self::GiB => 1_073_741_824.0,
            Self::Gb => 1e9 / 8.0,
            Self::MB => 1e6,
            Self::MiB => 1_048_576.0,
            Self::Mb => 1e6 / 8.0,
            Self::KB => 1e3,
            Self::KiB => 1_024.0,
            Self::Kb => 1e3 / 8.0,
        }
    }
}

impl Flags {
    pub(crate) fn duration(&self) -> Duration {
        Duration::from_secs(self.duration)
    }

    /// Blocks the initiator until it may begin to measure.
    ///
    /// # Errors
    /// The standard input ends before a line.
    pub(crate) fn wait_for_start(&self) -> anyhow::Result<()> {
        if self.wait_for_line {
            println!("{READY}");
            let count = std::io::stdin().read_line(&mut String::new())?;
            ensure!(count > 0, "standard input ended before a line");
        }
        Ok(())
    }

    /// Checks what the initiator is about to do.
    ///
    /// # Errors
    /// No target; a flag is 0; the batches in progress do not fit into the buffers.
    pub(crate) fn check_initiator(&self, buffer_of_target: u64) -> anyhow::Result<()> {
        ensure!(!self.segment_id.is_empty(), "--segment_id names no target");
        let factors = [self.block_size, self.batch_size, self.threads];
        ensure!(
            !factors.contains(&0),
            "--block_size, --batch_size and --threads must not be 0"
        );
        let used = factors
            .into_iter()
            .try_fold(1_u64, u64::checked_mul)
            .unwrap_or(u64::MAX);
        let smaller = self.buffer_size.min(buffer_of_target);
        ensure!(
            used <= smaller,
            "block_size * batch_size * threads is {used} bytes, more than the smaller buffer ({smaller} bytes)"
        );
        Ok(())
    }

    /// Where in both buffers a request of a batch lies, as in the stock program.
    pub(crate) fn offset(&self, thread: u64, request: u64) -> u64 {
        self.block_size * (request * self.threads + thread)
    }
}

/// Accepts flags with one dash too, as the stock program does.
pub(crate) fn with_double_dashes(
    arguments: impl Iterator<Item = String>,
) -> impl Iterator<Item = String> {
    arguments.map(|argument| {
        let mut letters = argument.chars();
        let flag = letters.next() == Some('-')
            && letters.next().is_some_and(char::is_alphabetic)
            && letters.next().is_some();
        if flag {
            format!("-{argument}")
        } else {
            argument
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        flags: Flags,
    }

    fn parse(line: &str) -> Result<Flags, clap::Error> {
        let words = line.split(' ').map(str::to_owned);
        Line::try_parse_from(with_double_dashes(words)).map(|line| line.flags)
    }

    #[test]
    fn a_command_line_of_the_stock_program_is_understood() {
        let flags = parse(
            "bench -mode=initiator --protocol=tcp -metadata_server=P2PHANDSHAKE -segment_id=10.0.0.1:1 \
             -operation=write -block_size=4096 --batch_size 4 -threads=2 -duration=1 -report_unit=Gb",
        )
        .unwrap();
        assert_eq!(flags.operation, Operation::Write);
        assert_eq!(flags.segment_id, "10.0.0.1:1");
        assert_eq!((flags.block_size, flags.batch_size), (4096, 4));
        assert_eq!(flags.report_unit, Unit::Gb);
        flags.check_initiator(1 << 20).unwrap();
        assert_eq!(flags.offset(1, 3), 4096 * 7);
    }

    #[test]
    fn what_is_not_supported_is_refused() {
        for line in [
            "bench --protocol=rdma",
            "bench --metadata_server=etcd://10.0.0.1:2379",
            "bench --operation=append",
        ] {
            assert!(parse(line).is_err(), "{line}");
        }
    }

    #[test]
    fn batches_that_do_not_fit_into_the_buffers_are_refused() {
        let flags = parse("bench --segment_id a --block_size 1048576 --threads 1").unwrap();
        flags.check_initiator(128 << 20).unwrap();
        let error = flags.check_initiator(127 << 20).unwrap_err();
        assert!(error.to_string().contains("134217728 bytes"), "{error}");
        let flags = parse("bench --segment_id a --block_size 18446744073709551615").unwrap();
        assert!(flags.check_initiator(u64::MAX).is_err());
        let flags = parse("bench --segment_id a --threads 0").unwrap();
        assert!(flags.check_initiator(u64::MAX).is_err());
    }
}
