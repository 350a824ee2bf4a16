//! The stock `transfer_engine_bench` of the wheel.

use std::path::PathBuf;
use std::process::Command;

use crate::flags::{Flags, Unit};

/// The program, once the wheel is installed.
#[derive(Debug)]
pub(crate) struct StockBench {
    program: PathBuf,
}

impl StockBench {
    /// Installs the wheel into the cache, if it is not there.
    pub(crate) fn installed() -> anyhow::Result<Self> {
        let site = mooncake_stock::MOONCAKE.site()?;
        Ok(Self {
            program: site.join("mooncake/transfer_engine_bench"),
        })
    }

    /// The program with flags that both programs know.
    pub(crate) fn command(&self) -> Command {
        let mut command = Command::new(&self.program);
        // It writes its result to the log. Without a device it would use TCP all the same, after warnings.
        command.arg("--logtostderr").env("MC_FORCE_TCP", "1");
        command
    }
}

/// The address in the line of a target that listens, of any of the programs.
pub(crate) fn listening(printed: &str) -> Option<String> {
    let (_, address) = printed
        .lines()
        .find_map(|line| line.split_once("listening on "))?;
    Some(address.trim().to_owned())
}

/// Bytes a second in the result line of an initiator with this unit, of any of the programs.
pub(crate) fn throughput(printed: &str, unit: Unit) -> Option<f64> {
    let line = printed
        .lines()
        .find(|line| line.contains("Test completed: "))?;
    let (_, figure) = line.split_once("throughput ")?;
    let figure: f64 = figure.split_whitespace().next()?.parse().ok()?;
    Some(figure * unit.bytes())
}

/// The flags of an end, in the words of the stock program.
pub(crate) fn arguments(flags: &Flags) -> Vec<String> {
    vec![
        "--protocol=tcp".to_owned(),
        "--metadata_server=P2PHANDSHAKE".to_owned(),
        format!("--local_server_name={}", flags.local_server_name),
        format!("--buffer_size={}", flags.buffer_size),
        format!("--block_size={}", flags.block_size),
        format!("--batch_size={}", flags.batch_size),
        format!("--threads={}", flags.threads),
        format!("--duration={}", flags.duration),
        format!("--operation={}", flags.operation),
        format!("--report_unit={:?}", flags.report_unit),
        format!("--report_precision={}", flags.report_precision),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_the_stock_program_are_read() {
        let log = "I1123 11:02:14.399894 25465 transfer_engine_impl.cpp:183] Transfer Engine RPC using P2P \
                   handshake, listening on 127.0.0.1:15247\n\
                   I1123 11:02:21.529456 25518 transfer_engine_bench.cpp:569] Test completed: duration 3.06, \
                   batch count 84, throughput 0.46 GB/s\n";
        assert_eq!(listening(log).as_deref(), Some("127.0.0.1:15247"));
        assert_eq!(throughput(log, Unit::GB), Some(0.46e9));
        assert_eq!(listening("nothing"), None);
        assert_eq!(throughput("Test completed: ", Unit::GB), None);
    }
}
