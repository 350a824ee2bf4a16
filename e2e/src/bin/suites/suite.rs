//! The test suites and their time budgets.

/// A group of tests with a time budget.
pub(crate) struct Suite {
    pub(crate) name: &'static str,
    /// What it tests.
    pub(crate) about: &'static str,
    /// Minutes on 2 cores with reduced counts, with a build from scratch.
    pub(crate) budget: u32,
    /// Whether it needs root, disk space and Debian packages.
    pub(crate) machine: bool,
    /// Whether it needs the product's images. They are built beside the suites before it.
    pub(crate) product: bool,
    pub(crate) kind: Kind,
}

pub(crate) enum Kind {
    /// Runs cargo once per line of arguments, each for the whole workspace: for one package, what it depends on would be built with other
    /// features, a second time. With several test programs a line needs `--no-fail-fast`, because a second
    /// attempt runs the failed tests only.
    Cargo(&'static [&'static str]),
    /// Runs these targets of `engine/proto/fuzz`, at full counts with so many inputs.
    Fuzz(&'static [(&'static str, u32)]),
    /// Runs a test target of `e2e/tests` on local clusters.
    Scenarios {
        target: &'static str,
        threads: u32,
        /// Tests that run afterwards, one by one: others beside them would take the processors from a virtual machine.
        alone: &'static [&'static str],
    },
}

/// Inputs of a fuzz target that parses single messages.
const INPUTS: u32 = 10_000_000;
/// Inputs of one that needs system calls or several steps: as long.
const SESSIONS: u32 = 1_000_000;

pub(crate) const SUITES: &[Suite] = &[
    Suite {
        name: "lint",
        about: "format, lock files that match their manifests, clippy without warnings",
        budget: 6,
        machine: false,
        product: false,
        kind: Kind::Cargo(&[
            "fmt --all --check",
            // The fuzz targets are a workspace of their own: its lock file must follow the crates of this one.
            "fetch --quiet --locked --manifest-path engine/proto/fuzz/Cargo.toml",
            "clippy --quiet --workspace --all-targets --locked -- -D warnings",
        ]),
    },
    Suite {
        name: "unit",
        about: "tests of every crate: units, properties, golden files, house rules, the chart",
        budget: 14,
        machine: true,
        product: false,
        kind: Kind::Cargo(&["test --quiet --workspace --locked --no-fail-fast"]),
    },
    Suite {
        name: "fuzz",
        about: "fuzzing of every parser of wire data",
        budget: 7,
        machine: true,
        product: false,
        kind: Kind::Fuzz(&[
            ("frame", INPUTS),
            ("handshake", INPUTS),
            ("descriptor", INPUTS),
            ("rdma", INPUTS),
            ("store_calls", INPUTS),
            ("struct_pack", INPUTS),
            ("agent_messages", SESSIONS),
            ("ledger_memory", SESSIONS),
            ("store_session", SESSIONS / 20),
            ("data_session", SESSIONS / 5),
        ]),
    },
    Suite {
        name: "api",
        about: "operator and webhook against a real API server, engines against a real etcd",
        budget: 6,
        machine: true,
        product: false,
        kind: Kind::Cargo(&[
            // Also programs of packages without a test here.
            "test --quiet --workspace --locked --no-run",
            "test --quiet --workspace --locked --no-fail-fast --test api_server --test etcd --test etcd_tls -- --include-ignored --test-threads=3",
        ]),
    },
    Suite {
        name: "stock",
        about: "stock pods exchange data with each other",
        budget: 2,
        machine: true,
        product: false,
        kind: scenarios("stock_pods", 1),
    },
    Suite {
        name: "cluster",
        about: "the local Kubernetes: crashes, partitions, several clusters, complete removal",
        budget: 7,
        machine: true,
        product: false,
        kind: scenarios("local_cluster", 4),
    },
    Suite {
        name: "rdma",
        about: "RDMA on Soft-RoCE in a virtual machine",
        budget: 4,
        machine: true,
        product: false,
        kind: scenarios("soft_roce", 1),
    },
    Suite {
        name: "install",
        about: "README's installation into a bare IPv4 and a bare dual-stack cluster that pull from a registry",
        budget: 6,
        machine: true,
        product: true,
        kind: scenarios("install", 1),
    },
    Suite {
        name: "scenarios",
        about: "the product on a real cluster, with stock pods as clients",
        budget: 37,
        machine: true,
        product: true,
        // All scenarios at once: each waits for its cluster.
        kind: Kind::Scenarios {
            target: "scenarios",
            threads: 64,
            alone: &[
                "scenarios::vm_rdma_pool::a_required_rdma_pool_serves_a_stock_pod_with_a_device_of_its_own_machine",
            ],
        },
    },
];

const fn scenarios(target: &'static str, threads: u32) -> Kind {
    Kind::Scenarios {
        target,
        threads,
        alone: &[],
    }
}
