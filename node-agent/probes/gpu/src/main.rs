//! Probes one GPU with NVML and CUDA: `gpu REQUEST`; see `mooncake_gpu`.

use std::process::ExitCode;

fn main() -> ExitCode {
    // If memory is short, the kernel kills this program, not the agent.
    let _ = std::fs::write("/proc/self/oom_score_adj", "1000");
    harness::run_program("gpu", mooncake_gpu::probe::probe)
}
