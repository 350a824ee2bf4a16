//! The program `agent`; see the library `mooncake_node_agent`.

use clap::Parser;
use mooncake_node_agent::args::Args;

fn main() -> anyhow::Result<()> {
    mooncake_node_agent::run(Args::parse())
}
