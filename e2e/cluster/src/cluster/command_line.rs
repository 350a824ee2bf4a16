//! The command line of each part of a cluster.

use super::address::{Block, Ipv6Block, list};
use super::folder::Folder;
use super::part::Part;

/// Program and arguments of a part. Paths are those of this machine for the control plane, and those of the node
/// for its parts. Empty for [`Part::Node`], which is not a program of Kubernetes.
pub(super) fn command_line(
    part: Part,
    folder: &Folder,
    (block, ipv6): (Block, Option<Ipv6Block>),
) -> Vec<String> {
    let pki = |name: &str| folder.pki().join(name).display().to_string();
    let kubeconfig = |user| folder.kubeconfig(user).display().to_string();
    match part {
        Part::Etcd => vec![
            "etcd".to_owned(),
            format!("--data-dir={}", folder.etcd().display()),
            "--listen-client-urls=http://127.0.0.1:2379".to_owned(),
            "--advertise-client-urls=http://127.0.0.1:2379".to_owned(),
            "--listen-peer-urls=http://127.0.0.1:2380".to_owned(),
            // Faster tests; data need not survive a crash of the machine.
            "--unsafe-no-fsync".to_owned(),
            "--log-level=warn".to_owned(),
        ],
        Part::ApiServer => vec![
            "kube-apiserver".to_owned(),
            "--etcd-servers=http://127.0.0.1:2379".to_owned(),
            "--secure-port=6443".to_owned(),
            format!("--advertise-address={}", block.api_server()),
            format!(
                "--service-cluster-ip-range={}",
                list(block.services(), ipv6.map(Ipv6Block::services))
            ),
            format!("--tls-cert-file={}", pki("apiserver.crt")),
            format!("--tls-private-key-file={}", pki("apiserver.key")),
            format!("--client-ca-file={}", pki("ca.crt")),
            format!("--cert-dir={}", pki("")),
            "--authorization-mode=Node,RBAC".to_owned(),
            "--enable-admission-plugins=NodeRestriction".to_owned(),
            "--allow-privileged=true".to_owned(),
            "--service-account-issuer=https://kubernetes.default.svc".to_owned(),
            format!("--service-account-key-file={}", pki("sa.pub")),
            format!("--service-account-signing-key-file={}", pki("sa.key")),
            format!("--kubelet-client-certificate={}", pki("admin.crt")),
            format!("--kubelet-client-key={}", pki("admin.key")),
            "--kubelet-preferred-address-types=InternalIP".to_owned(),
            // Without kube-proxy in its namespace, the API server calls webhooks at their endpoints.
            "--enable-aggregator-routing=true".to_owned(),
            format!("--audit-policy-file={}", folder.audit_policy().display()),
            format!("--audit-log-path={}", folder.audit().display()),
            format!("--requestheader-client-ca-file={}", pki("ca.crt")),
            "--requestheader-allowed-names=front-proxy-client".to_owned(),
            "--requestheader-username-headers=X-Remote-User".to_owned(),
            "--requestheader-group-headers=X-Remote-Group".to_owned(),
            "--requestheader-extra-headers-prefix=X-Remote-Extra-".to_owned(),
            format!("--proxy-client-cert-file={}", pki("front.crt")),
            format!("--proxy-client-key-file={}", pki("front.key")),
        ],
        Part::Controllers => vec![
            "kube-controller-manager".to_owned(),
            format!("--kubeconfig={}", kubeconfig("controllers")),
            format!("--authentication-kubeconfig={}", kubeconfig("controllers")),
            format!("--authorization-kubeconfig={}", kubeconfig("controllers")),
            "--use-service-account-credentials".to_owned(),
            format!("--service-account-private-key-file={}", pki("sa.key")),
            format!("--root-ca-file={}", pki("ca.crt")),
            format!("--cluster-signing-cert-file={}", pki("ca.crt")),
            format!("--cluster-signing-key-file={}", pki("ca.key")),
            "--leader-elect=false".to_owned(),
            // Half the default, so that tests with disconnected nodes are faster.
            "--node-monitor-grace-period=20s".to_owned(),
            format!("--cert-dir={}", pki("")),
        ],
        Part::Scheduler => vec![
            "kube-scheduler".to_owned(),
            format!("--kubeconfig={}", kubeconfig("scheduler")),
            format!("--authentication-kubeconfig={}", kubeconfig("scheduler")),
            format!("--authorization-kubeconfig={}", kubeconfig("scheduler")),
            "--leader-elect=false".to_owned(),
            format!("--cert-dir={}", pki("")),
        ],
        Part::Containerd(_) => vec![
            "containerd".to_owned(),
            "--config=/etc/node/containerd.toml".to_owned(),
        ],
        Part::Kubelet(node) => vec![
            "kubelet".to_owned(),
            "--config=/etc/node/kubelet.yaml".to_owned(),
            "--kubeconfig=/etc/node/kubelet.kubeconfig".to_owned(),
            format!("--hostname-override=n{node}"),
            format!(
                "--node-ip={}",
                list(block.node(node), ipv6.map(|ipv6| ipv6.node(node)))
            ),
        ],
        Part::Proxy(_) => vec![
            "kube-proxy".to_owned(),
            "--config=/etc/node/proxy.yaml".to_owned(),
        ],
        Part::Node(_) => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    fn words(part: Part, dual_stack: bool) -> Vec<String> {
        let folder = Folder::new(Path::new("/state"), "mc");
        let block = Block::new(0).unwrap();
        let ipv6 = dual_stack.then(|| block.ipv6());
        command_line(part, &folder, (block, ipv6))
    }

    fn has(words: &[String], word: &str) -> bool {
        words.iter().any(|own| own == word)
    }

    #[test]
    fn a_dual_stack_cluster_has_ranges_of_both_families_with_ipv4_first() {
        let range = "--service-cluster-ip-range=198.19.0.0/21";
        assert!(has(&words(Part::ApiServer, false), range));
        let both = format!("{range},fd6d:6f6f:6e63:10::/112");
        assert!(has(&words(Part::ApiServer, true), &both));
        let address = "--node-ip=198.18.0.12";
        assert!(has(&words(Part::Kubelet(2), false), address));
        let both = format!("{address},fd6d:6f6f:6e63::c");
        assert!(has(&words(Part::Kubelet(2), true), &both));
    }
}
