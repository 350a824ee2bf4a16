//! The suites and their time budgets: the one table.

/// Tests that belong together.
pub(crate) struct Suite {
    pub(crate) name: &'static str,
    /// What it shows, in a few words.
    pub(crate) about: &'static str,
    /// Minutes on 2 cores with reduced counts, compiling from nothing included.
    pub(crate) budget: u32,
    /// It needs root, room and Debian packages, not cargo alone.
    pub(crate) machine: bool,
    pub(crate) kind: Kind,
}

pub(crate) enum Kind {
    /// cargo, once for each line of words.
    Cargo(&'static [&'static str]),
    /// Targets of `engine/proto/fuzz`, one after the other.
    Fuzz(&'static [&'static str]),
    /// A test target of `e2e/tests` on local clusters, so many tests begun at a time.
    Stories(&'static str, u32),
}

pub(crate) const SUITES: &[Suite] = &[
    Suite {
        name: "lint",
        about: "format, clippy without warnings",
        budget: 6,
        machine: false,
        kind: Kind::Cargo(&[
            "fmt --all --check",
            "clippy --quiet --workspace --all-targets --locked -- -D warnings",
        ]),
    },
    Suite {
        name: "unit",
        about: "every crate by itself: units, properties, golden files",
        budget: 10,
        machine: true,
        kind: Kind::Cargo(&["test --quiet --workspace --locked --exclude mooncake-e2e"]),
    },
    Suite {
        name: "fuzz",
        about: "bytes of strangers against every reader of the wire",
        budget: 4,
        machine: true,
        kind: Kind::Fuzz(&["frame", "handshake", "descriptor", "struct_pack"]),
    },
    Suite {
        name: "house",
        about: "house rules, the tools, the chart by helm lint and template",
        budget: 14,
        machine: true,
        kind: Kind::Cargo(&[
            "test --quiet --package mooncake-e2e --locked --lib --bins --test tidy --test chart",
        ]),
    },
    Suite {
        name: "api",
        about: "what a real API server refuses, what the operator writes there and what it does not",
        budget: 6,
        machine: true,
        kind: Kind::Cargo(&[
            "test --quiet --workspace --exclude mooncake-e2e --locked --test api_server -- --include-ignored --test-threads=3",
        ]),
    },
    Suite {
        name: "stock",
        about: "stock pods exchange data with each other",
        budget: 2,
        machine: true,
        kind: Kind::Stories("stock_pods", 1),
    },
    Suite {
        name: "cluster",
        about: "the local Kubernetes survives crashes, cuts and neighbours, and goes without a trace",
        budget: 7,
        machine: true,
        kind: Kind::Stories("local_cluster", 4),
    },
    Suite {
        name: "stories",
        about: "everything that must end well, with stock pods as witnesses",
        budget: 37,
        machine: true,
        // All of them: each waits for its turn on a stage.
        kind: Kind::Stories("stories", 64),
    },
];
