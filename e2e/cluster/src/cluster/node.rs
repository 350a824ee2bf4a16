//! Namespace nodes: kubelet, containerd and kube-proxy at their usual paths, in namespaces and a cgroup.

pub(super) mod files;

use super::Cluster;
use super::folder::{Node, NodeKind};
use super::part::Part;
use super::pki::{Authority, Identity};
use crate::Error;
use crate::command::Run;
use crate::process::Recorded;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::Duration;

const ENTER: &str = include_str!("node/enter.sh");
const FOLDERS: [&str; 8] = [
    "etc",
    "kubelet",
    "containerd",
    "mooncake",
    "cni",
    "cni-state",
    "cdi",
    "log",
];
const IMPORT: &str = "ctr -n k8s.io images import --local -";
const IMPORT_IN_GUEST: Duration = Duration::from_secs(600);
const SOCKET: &str = "run/containerd/containerd.sock";

impl Cluster {
    /// Writes a node's configuration into `etc` of its folder.
    pub(super) fn write_node_files(
        &self,
        node: u8,
        kind: NodeKind,
        cgroup_root: &str,
    ) -> Result<(), Error> {
        let name = format!("n{node}");
        let (folder, block) = (&self.folder, self.record.block());
        let ipv6 = self.record.ipv6();
        let etc = folder.node(&name).join("etc");
        fs::create_dir_all(&etc).map_err(Error::file("making", &etc))?;
        Authority::of(folder, &self.record.name)?.enlist(
            folder,
            &self.record.name,
            block,
            &Identity {
                file: &name,
                common_name: &format!("system:node:{name}"),
                organization: "system:nodes",
                names: [block.node(node), name.clone()]
                    .into_iter()
                    .chain(ipv6.map(|ipv6| ipv6.node(node)))
                    .collect(),
            },
        )?;
        // Follows a link, as to systemd-resolved's file, which a node does not have.
        let resolvers = fs::read_to_string("/etc/resolv.conf").ok();
        for (file, text) in files::files((block, ipv6), node, kind, cgroup_root, resolvers) {
            let file = etc.join(file);
            fs::write(&file, text).map_err(Error::file("writing", &file))?;
        }
        for (from, to) in [
            (folder.kubeconfig(&name), "kubelet.kubeconfig"),
            (folder.kubeconfig("proxy"), "proxy.kubeconfig"),
            (folder.pki().join("ca.crt"), "ca.crt"),
            (folder.pki().join(format!("{name}.crt")), "kubelet.crt"),
            (folder.pki().join(format!("{name}.key")), "kubelet.key"),
        ] {
            fs::copy(&from, etc.join(to)).map_err(Error::file("copying", &from))?;
        }
        Ok(())
    }

    /// Starts the parts of a namespace node that is connected to the network.
    pub(super) fn start_namespace_node(&self, node: u8) -> Result<(), Error> {
        let name = format!("n{node}");
        let folder = self.folder.node(&name);
        for part in FOLDERS {
            let part = folder.join(part);
            fs::create_dir_all(&part).map_err(Error::file("making", &part))?;
        }
        let group = format!("/{}/{name}", self.record.cgroup());
        self.write_node_files(node, NodeKind::Namespace, &group)?;
        let (from, to) = (
            folder.join("etc/cni.conflist"),
            folder.join("cni/pods.conflist"),
        );
        fs::copy(&from, to).map_err(Error::file("copying", &from))?;
        self.cgroups.make(&self.record.cgroup(), &name)?;
        self.hold_namespaces(node)?;
        self.start(Part::Containerd(node))?;
        for archive in self.images.all() {
            self.import(self.node_named(&name)?, archive)?;
        }
        self.start(Part::Kubelet(node))?;
        self.start(Part::Proxy(node))
    }

    /// Starts the process that holds a node's namespaces.
    pub(super) fn hold_namespaces(&self, node: u8) -> Result<(), Error> {
        let folder = self.folder.node(&format!("n{node}"));
        let script = folder.join("enter.sh");
        fs::write(&script, ENTER).map_err(Error::file("writing", &script))?;
        let namespace = Path::new("/run/netns").join(self.network().node(node));
        let argv = [
            "nsenter".to_owned(),
            format!("--net={}", namespace.display()),
            "unshare".to_owned(),
            "--mount".to_owned(),
            "--uts".to_owned(),
            "bash".to_owned(),
            script.display().to_string(),
            format!("n{node}"),
            folder.display().to_string(),
            self.binaries.cni().display().to_string(),
        ];
        let part = Part::Node(node);
        let holder = self.start_detached(part, &argv)?;
        self.folder.save_process(part, holder)?;
        self.wait_running(
            part,
            "creating its namespaces",
            Duration::from_secs(60),
            || {
                Ok(inside(holder, "run/ready")
                    .exists()
                    .then_some(())
                    .ok_or_else(|| "mounts are missing".to_owned()))
            },
        )
    }

    /// The command line prefix that runs a command in a namespace node.
    pub(super) fn enter(&self, node: u8) -> Result<Vec<String>, Error> {
        let part = Part::Node(node);
        let holder = self
            .folder
            .process(part)?
            .filter(|holder| holder.alive())
            .ok_or_else(|| self.no_node(node))?;
        Ok([
            "nsenter",
            "-t",
            &holder.pid.to_string(),
            "--mount",
            "--net",
            "--uts",
        ]
        .map(str::to_owned)
        .to_vec())
    }

    /// The socket of a namespace node's containerd, as a path of this machine.
    pub(super) fn containerd_socket(&self, node: u8) -> Result<PathBuf, Error> {
        let holder = self
            .folder
            .process(Part::Node(node))?
            .ok_or_else(|| self.no_node(node))?;
        Ok(inside(holder, SOCKET))
    }

    /// Imports an OCI archive into a node's containerd.
    pub(super) fn import(&self, node: Node, archive: &Path) -> Result<(), Error> {
        // By standard input, because the node does not have the path.
        let file = File::open(archive).map_err(Error::file("opening", archive))?;
        if node.kind.is_machine() {
            return self
                .run_in_guest(node.index, IMPORT, Some(file), IMPORT_IN_GUEST)
                .map(drop);
        }
        let mut words = self.enter(node.index)?;
        words.extend(IMPORT.split(' ').map(str::to_owned));
        let (program, arguments) = words.split_first().expect("it begins with nsenter");
        Run::new(program)
            .args(arguments)
            .env("PATH", self.binaries.path())
            .input_file(file)
            .deadline(Duration::from_secs(300))
            .done()
    }
}

/// A path in the mount namespace of a process, as a path of this machine.
fn inside(process: Recorded, path: &str) -> PathBuf {
    Path::new("/proc")
        .join(process.pid.to_string())
        .join("root")
        .join(path)
}
