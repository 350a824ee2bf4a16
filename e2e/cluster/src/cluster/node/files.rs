//! The text of a node's configuration files, with paths as the node sees them.

use crate::cluster::NodeKind;
use crate::cluster::address::Block;
use crate::images;

/// Free memory below which a kubelet evicts pods (its default).
const EVICTION: &str = "100Mi";

/// The same on a virtual machine. The kubelet does not count reserved hugepages and kernel memory there, so with 100Mi
/// the OOM killer would come first.
const EVICTION_OF_MACHINE: &str = "600Mi";

/// Name and content of each file, for `/etc/node`.
pub(crate) fn files(
    block: Block,
    node: u8,
    kind: NodeKind,
    cgroup_root: &str,
) -> [(&'static str, String); 4] {
    let eviction = match kind {
        NodeKind::Namespace => EVICTION,
        NodeKind::Machine => EVICTION_OF_MACHINE,
    };
    [
        ("cni.conflist", cni(block, node)),
        ("containerd.toml", containerd()),
        ("kubelet.yaml", kubelet(block, cgroup_root, eviction)),
        ("proxy.yaml", proxy(block, node)),
    ]
}

fn cni(block: Block, node: u8) -> String {
    let pods = block.pods_of(node);
    format!(
        r#"{{"cniVersion":"1.0.0","name":"pods","plugins":[
 {{"type":"bridge","bridge":"cni0","isGateway":true,"hairpinMode":true,
  "ipam":{{"type":"host-local","ranges":[[{{"subnet":"{pods}"}}]],"routes":[{{"dst":"0.0.0.0/0"}}]}}}},
 {{"type":"portmap","capabilities":{{"portMappings":true}}}}]}}
"#
    )
}

fn containerd() -> String {
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
"#
    )
}

fn kubelet(block: Block, cgroup_root: &str, eviction: &str) -> String {
    let dns = block.dns();
    format!(
        "apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
failCgroupV1: false
failSwapOn: false
cgroupDriver: cgroupfs
cgroupRoot: {cgroup_root}
containerRuntimeEndpoint: unix:///run/containerd/containerd.sock
clusterDNS: [{dns}]
clusterDomain: cluster.local
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

fn proxy(block: Block, node: u8) -> String {
    let pods = block.pods();
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
