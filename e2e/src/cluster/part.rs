//! The processes of a cluster, and the command line of each.

use super::address::Block;
use super::folder::Folder;
use std::fmt;
use std::str::FromStr;

/// One process that can be killed and started by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Part {
    Etcd,
    ApiServer,
    Controllers,
    Scheduler,
    Containerd(u8),
    Kubelet(u8),
    Proxy(u8),
    /// Holds a namespace node's namespaces, or is a guest's QEMU.
    Node(u8),
}

const SINGLE: [(Part, &str); 4] = [
    (Part::Etcd, "etcd"),
    (Part::ApiServer, "apiserver"),
    (Part::Controllers, "controllers"),
    (Part::Scheduler, "scheduler"),
];

type OfNode = (fn(u8) -> Part, &'static str);

const OF_NODE: [OfNode; 4] = [
    (Part::Containerd, "containerd"),
    (Part::Kubelet, "kubelet"),
    (Part::Proxy, "proxy"),
    (Part::Node, "node"),
];

/// In the order in which they are started.
pub(super) const CONTROL_PLANE: [Part; 4] = [
    Part::Etcd,
    Part::ApiServer,
    Part::Controllers,
    Part::Scheduler,
];

impl Part {
    /// The node that it runs on, if it is a node's.
    pub fn node(self) -> Option<u8> {
        match self {
            Self::Containerd(node) | Self::Kubelet(node) | Self::Proxy(node) | Self::Node(node) => {
                Some(node)
            }
            Self::Etcd | Self::ApiServer | Self::Controllers | Self::Scheduler => None,
        }
    }

    /// Those that would start others again die first.
    pub fn kill_order(self) -> u8 {
        match self {
            Self::Kubelet(_) | Self::Controllers => 0,
            Self::Containerd(_) => 1,
            Self::Etcd | Self::ApiServer | Self::Scheduler | Self::Proxy(_) | Self::Node(_) => 2,
        }
    }
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some((_, name)) = SINGLE.iter().find(|(part, _)| part == self) {
            return f.write_str(name);
        }
        OF_NODE
            .iter()
            .filter_map(|(make, name)| self.node().map(|node| (make(node), name, node)))
            .find(|(part, _, _)| part == self)
            .map_or(Err(fmt::Error), |(_, name, node)| {
                write!(f, "{name}-n{node}")
            })
    }
}

impl FromStr for Part {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Some((part, _)) = SINGLE.iter().find(|(_, name)| *name == text) {
            return Ok(*part);
        }
        text.rsplit_once("-n")
            .and_then(|(kind, node)| {
                let (make, _) = OF_NODE.iter().find(|(_, name)| *name == kind)?;
                node.parse().ok().map(make)
            })
            .ok_or_else(|| {
                format!(
                    "{text} is no part; parts are etcd, apiserver, controllers, scheduler, and \
                     containerd-n1, kubelet-n1, proxy-n1 of node n1"
                )
            })
    }
}

/// What a part is called and told: one of the control plane from this machine's point of view, one of
/// a node from the node's own. Nothing for [`Part::Node`], which is made otherwise.
pub(super) fn command_line(part: Part, folder: &Folder, block: Block) -> Vec<String> {
    let pki = |name: &str| folder.pki().join(name).display().to_string();
    let kubeconfig = |user| folder.kubeconfig(user).display().to_string();
    match part {
        Part::Etcd => vec![
            "etcd".to_owned(),
            format!("--data-dir={}", folder.etcd().display()),
            "--listen-client-urls=http://127.0.0.1:2379".to_owned(),
            "--advertise-client-urls=http://127.0.0.1:2379".to_owned(),
            "--listen-peer-urls=http://127.0.0.1:2380".to_owned(),
            // Otherwise the disk decides how fast tests are; what is lost with the machine is lost.
            "--unsafe-no-fsync".to_owned(),
            "--log-level=warn".to_owned(),
        ],
        Part::ApiServer => vec![
            "kube-apiserver".to_owned(),
            "--etcd-servers=http://127.0.0.1:2379".to_owned(),
            "--secure-port=6443".to_owned(),
            format!("--advertise-address={}", block.api_server()),
            format!("--service-cluster-ip-range={}", block.services()),
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
            // There is no kube-proxy beside it: webhooks are called at their endpoints.
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
            // Half the default, so that stories about nodes that are cut off take half as long.
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
            format!("--node-ip={}", block.node(node)),
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

    #[test]
    fn every_part_reads_back_from_its_name() {
        let nodes = OF_NODE.iter().map(|(make, _)| make(7));
        for part in SINGLE.iter().map(|(part, _)| *part).chain(nodes) {
            assert_eq!(part.to_string().parse(), Ok(part));
        }
    }

    #[test]
    fn an_unknown_part_is_answered_with_those_there_are() {
        let error = "kubelet".parse::<Part>().unwrap_err();
        assert!(error.contains("kubelet-n1"), "{error}");
    }
}
