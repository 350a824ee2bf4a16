//! Asks one GPU by NVML and CUDA: `gpu QUESTION`, both question and answer as one line of JSON; see
//! `mooncake_gpu`.

use std::io::Write;
use std::process::ExitCode;

use mooncake_gpu::{Question, asking};

fn main() -> ExitCode {
    let asked = std::env::args().nth(1).unwrap_or_default();
    let question: Question = match serde_json::from_str(&asked) {
        Ok(question) => question,
        Err(error) => {
            eprintln!("gpu QUESTION, which the agent writes as JSON: {error}");
            return ExitCode::from(2);
        }
    };
    // Where memory is short this is to end, and not the agent beside it.
    let _ = std::fs::write("/proc/self/oom_score_adj", "1000");
    let told = serde_json::to_string(&asking::ask(question))
        .map_err(std::io::Error::other)
        .and_then(|line| writeln!(std::io::stdout().lock(), "{line}"));
    match told {
        // Ends all threads: one that a driver holds is left to the kernel.
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}
