//! Probes one RDMA device with verbs: `verbs REQUEST`; see `mooncake_verbs`.

use std::process::ExitCode;

fn main() -> ExitCode {
    harness::run_program("verbs", mooncake_verbs::probe::probe)
}
