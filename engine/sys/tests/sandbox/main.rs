//! The sandbox: ordinary work succeeds in it, and what an intruder tries does not. Each case runs in a process of its
//! own, which this executable starts from itself. Requires root.

#![allow(
    unsafe_code,
    reason = "an intruder makes the calls that no safe function makes"
)]
#![allow(clippy::unwrap_used, reason = "a test")]

mod child;
mod intrusion;
mod ordinary;
mod outside;
mod steps;

use child::Child;

/// Names a case that this process is to run.
const CASE: &str = "MOONCAKE_SANDBOX_CASE";

/// A case runs in a child process; the check judges it from outside.
struct Case {
    name: String,
    run: Box<dyn Fn()>,
    check: fn(Child),
}

impl Case {
    fn new(name: impl Into<String>, run: impl Fn() + 'static, check: fn(Child)) -> Self {
        Self {
            name: name.into(),
            run: Box::new(run),
            check,
        }
    }
}

fn main() {
    let cases: Vec<Case> = [
        ordinary::cases(),
        intrusion::cases(),
        outside::cases(),
        steps::cases(),
    ]
    .into_iter()
    .flatten()
    .collect();
    if let Ok(name) = std::env::var(CASE) {
        let case = cases.iter().find(|case| case.name == name).unwrap();
        return (case.run)();
    }
    // The arguments of cargo test: a part of the names, and flags of no meaning here.
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    let names: Vec<_> = arguments
        .iter()
        .filter(|one| !one.starts_with('-'))
        .collect();
    let wanted =
        |case: &&Case| names.is_empty() || names.iter().any(|one| case.name.contains(*one));
    if arguments.iter().any(|one| one == "--list") {
        cases
            .iter()
            .for_each(|case| println!("{}: test", case.name));
        return;
    }
    child::adopt_orphans();
    let mut failed = 0;
    let mut passed = 0;
    for case in cases.iter().filter(wanted) {
        let (name, check) = (case.name.as_str(), case.check);
        let checked = std::panic::catch_unwind(|| check(Child::start(name)));
        let outcome = if checked.is_ok() { "ok" } else { "FAILED" };
        println!("test {} ... {outcome}", case.name);
        if checked.is_ok() {
            passed += 1;
        } else {
            failed += 1;
        }
    }
    let outcome = if failed == 0 { "ok" } else { "FAILED" };
    let filtered = cases.len() - passed - failed;
    println!(
        "\ntest result: {outcome}. {passed} passed; {failed} failed; 0 ignored; 0 measured; {filtered} filtered out"
    );
    if failed > 0 {
        std::process::exit(101);
    }
}
