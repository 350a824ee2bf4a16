//! The text of a node's configuration files, with paths as the node sees them.

use crate::cluster::NodeKind;
use crate::cluster::address::{Block, Ipv6Block, list};
use crate::images;

/// Free memory below which a kubelet evicts pods (its default).
const EVICTION: &str = "100Mi";

/// The same on a virtual machine. The kubelet does not count reserved hugepages and kernel memory there, so with 100Mi
/// the OOM killer would come first.
const EVICTION_OF_MACHINE: &str = "600Mi";

/// For a machine without a resolver. The kubelet starts no pod without the file that its `resolvConf` names.
const NO_RESOLVER: &str = "nameserver 127.0.0.1\n";

/// Name and content of each file, for `/etc/node`. `resolvers` is the machine's own resolv.conf, if it can be read.
pub(crate) fn files(
    (block, ipv6): (Block, Option<Ipv6Block>),
    node: u8,
    kind: NodeKind,
    cgroup_root: &str,
    resolvers: Option<String>,
) -> [(&'static str, String); 5] {
    let eviction = match kind {
        NodeKind::Namespace => EVICTION,
        NodeKind::Machine | NodeKind::SystemdMachine => EVICTION_OF_MACHINE,
    };
    let systemd = kind == NodeKind::SystemdMachine;
    [
        ("cni.conflist", cni(block, ipv6, node)),
        ("containerd.toml", containerd(systemd)),
        (
            "kubelet.yaml",
            kubelet(block, cgroup_root, eviction, systemd),
        ),
        ("proxy.yaml", proxy(block, ipv6, node)),
        (
            "resolv.conf",
            resolvers.unwrap_or_else(|| NO_RESOLVER.to_owned()),
        ),
    ]
}

fn cni(block: Block, ipv6: Option<Ipv6Block>, node: u8) -> String {
    let pods = block.pods_of(node);
    let (more_pods, more_routes) = ipv6.map_or_else(Default::default, |ipv6| {
        let pods = ipv6.pods_of(node);
        (format!(r#",[{{"subnet":"{pods}"}}]"#), r#",{"dst":"::/0"}"#)
    });
    format!(
        r#"{{"cniVersion":"1.0.0","name":"pods","plugins":[
 {{"type":"bridge","bridge":"cni0","isGateway":true,"hairpinMode":true,
  "ipam":{{"type":"host-local","ranges":[[{{"subnet":"{pods}"}}]{more_pods}],"routes":[{{"dst":"0.0.0.0/0"}}{more_routes}]}}}},
 {{"type":"portmap","capabilities":{{"portMappings":true}}}}]}}
"#
    )
}

fn containerd(systemd: bool) -> String {
    let pause = images::PAUSE;
    format!(
        r#"version = 3
[plugins.'io.containerd.cri.v1.images'.pinned_images]
  sandbox = "{pause}"
[plugins.'io.containerd.cri.v1.runtime']
  enable_cdi = true
  cdi_spec_dirs = ["/etc/cdi", "/var/run/cdi"]
  # Without CAP_SYS_RESOURCE runc fails to lower oom_score_adj.
  restrict_oom_score_adj = true
  [plugins.'io.containerd.cri.v1.runtime'.cni]
    bin_dirs = ["/opt/cni/bin"]
  [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]
      SystemdCgroup = {systemd}
"#
    )
}

fn kubelet(block: Block, cgroup_root: &str, eviction: &str, systemd: bool) -> String {
    let dns = block.dns();
    let driver = if systemd { "systemd" } else { "cgroupfs" };
    format!(
        "apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
failCgroupV1: false
failSwapOn: false
cgroupDriver: {driver}
cgroupRoot: {cgroup_root}
containerRuntimeEndpoint: unix:///run/containerd/containerd.sock
clusterDNS: [{dns}]
clusterDomain: cluster.local
# /etc/resolv.conf may be a link into /run, where the node has an empty folder of its own.
resolvConf: /etc/node/resolv.conf
authentication:
  anonymous: {{enabled: false}}
  webhook: {{enabled: true}}
  x509: {{clientCAFile: /etc/node/ca.crt}}
authorization: {{mode: Webhook}}
tlsCertFile: /etc/node/kubelet.crt
tlsPrivateKeyFile: /etc/node/kubelet.key
# Images come from archives and cannot be pulled again.
imageGCHighThresholdPercent: 100
imageGCLowThresholdPercent: 99
evictionHard: {{memory.available: {eviction}, nodefs.available: 1%, nodefs.inodesFree: 1%, imagefs.available: 1%}}
nodeStatusUpdateFrequency: 4s
"
    )
}

fn proxy(block: Block, ipv6: Option<Ipv6Block>, node: u8) -> String {
    let pods = list(block.pods(), ipv6.map(Ipv6Block::pods));
    format!(
        "apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
mode: nftables
hostnameOverride: n{node}
clusterCIDR: {pods}
clientConnection: {{kubeconfig: /etc/node/proxy.kubeconfig}}
conntrack: {{maxPerCore: 0}}
"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(name: &str, dual_stack: bool) -> String {
        let block = Block::new(0).unwrap();
        let ipv6 = dual_stack.then(|| block.ipv6());
        let files = files((block, ipv6), 1, NodeKind::Namespace, "/mc/n1", None);
        let found = files.into_iter().find(|(file, _)| *file == name);
        found.unwrap().1
    }

    #[test]
    fn pods_of_a_dual_stack_cluster_have_an_address_and_a_route_of_each_family() {
        let ipv4 = r#""ranges":[[{"subnet":"198.19.128.0/24"}]],"routes":[{"dst":"0.0.0.0/0"}]"#;
        assert!(text("cni.conflist", false).contains(ipv4));
        let both = r#""ranges":[[{"subnet":"198.19.128.0/24"}],[{"subnet":"fd6d:6f6f:6e63:21::/64"}]],"routes":[{"dst":"0.0.0.0/0"},{"dst":"::/0"}]"#;
        assert!(text("cni.conflist", true).contains(both));
    }

    #[test]
    fn the_kubelet_reads_a_resolv_conf_that_the_node_has() {
        assert!(text("kubelet.yaml", false).contains("\nresolvConf: /etc/node/resolv.conf\n"));
        assert_eq!(text("resolv.conf", false), NO_RESOLVER);
    }

    #[test]
    fn the_service_proxy_knows_the_pods_of_both_families() {
        assert!(text("proxy.yaml", false).contains("clusterCIDR: 198.19.128.0/21\n"));
        let both = "clusterCIDR: 198.19.128.0/21,fd6d:6f6f:6e63:20::/60\n";
        assert!(text("proxy.yaml", true).contains(both));
    }
}
