//! Memory and processor time of a pod from its cgroups and processes, on nodes of either kind.

use super::TestCluster;
use anyhow::{Context, ensure};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use std::time::Duration;

const SCRIPT: &str = include_str!("charges.sh");
/// A virtual machine is slow.
const DEADLINE: Duration = Duration::from_secs(180);

/// What a pod uses at one moment.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Charges {
    /// Bytes charged to the pod's cgroup: with page cache, shared memory and page tables, without hugepages.
    pub memory: u64,
    /// Bytes of 2 MiB hugepages charged to it.
    pub huge: u64,
    /// Processor time since the pod's start, with its probes.
    pub processor: Duration,
    /// `RssAnon` and `RssFile` of the first container's processes.
    pub private: u64,
    /// `VmRSS` of the same processes.
    pub resident: u64,
}

impl Charges {
    /// Reads the figures on the pod's node.
    ///
    /// # Errors
    /// When the pod does not run.
    pub async fn of(cluster: &TestCluster, pod: &Pod) -> anyhow::Result<Self> {
        let (name, node) = (pod.name_any(), pod.spec.as_ref());
        let node = node
            .and_then(|spec| spec.node_name.clone())
            .with_context(|| format!("pod {name} is on no node"))?;
        let uid = pod.uid().context("the pod has no UID")?;
        let container = pod
            .status
            .iter()
            .flat_map(|status| status.container_statuses.iter().flatten())
            .find_map(|container| container.container_id.as_deref()?.split("://").nth(1))
            .with_context(|| format!("pod {name} has no container yet"))?;
        let command = ["sh", "-c", SCRIPT, "charges", &uid, container].map(str::to_owned);
        let output = cluster
            .with(move |cluster| cluster.run_on(&node, &command, DEADLINE))
            .await?;
        let charges = read(&output);
        ensure!(
            charges.memory > 0 && charges.resident > 0,
            "pod {name} has no cgroup or no process: {output:?}"
        );
        Ok(charges)
    }
}

fn read(output: &str) -> Charges {
    let sum = |figure: &str| -> u64 {
        output
            .lines()
            .filter_map(|line| line.split_once(' '))
            .filter(|(name, _)| *name == figure)
            .filter_map(|(_, value)| value.trim().parse::<u64>().ok())
            .sum()
    };
    Charges {
        memory: sum("memory"),
        huge: sum("huge"),
        processor: Duration::from_micros(sum("processor")),
        private: sum("private"),
        resident: sum("resident"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_figures_of_a_containers_processes_are_added() {
        let output = "memory 4096\nprocessor 1500\nprivate 1024\nresident 2048\nprivate 1024\nresident 2048\n";
        let expected = Charges {
            memory: 4096,
            huge: 0,
            processor: Duration::from_micros(1500),
            private: 2048,
            resident: 4096,
        };
        assert_eq!(read(output), expected);
    }
}
