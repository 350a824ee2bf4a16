//! What a test run reads from the environment.

use local_cluster::{Scale, Settings};

/// Read once, at the start of a test.
#[derive(Debug, Clone)]
pub struct TestSettings {
    pub local: Settings,
    pub scale: Scale,
    /// Name of the shared cluster (`MOONCAKE_K8S_CLUSTER`, else `e2e`).
    pub cluster: String,
    /// Number of clusters that scenarios may use at a time (`MOONCAKE_TEST_CLUSTERS`, else 1).
    pub clusters: usize,
    /// Whether the nodes already have images under the chart's own names (`MOONCAKE_IMAGES=loaded`).
    pub images_loaded: bool,
}

impl TestSettings {
    pub fn read() -> Self {
        let word = |name| std::env::var(name).ok().filter(|value| !value.is_empty());
        Self {
            local: Settings::read(),
            scale: Scale::read(),
            cluster: word("MOONCAKE_K8S_CLUSTER").unwrap_or_else(|| "e2e".to_owned()),
            clusters: word("MOONCAKE_TEST_CLUSTERS")
                .and_then(|count| count.parse().ok())
                .unwrap_or(1),
            images_loaded: word("MOONCAKE_IMAGES").is_some_and(|value| value == "loaded"),
        }
    }
}
