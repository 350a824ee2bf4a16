//! Virtual machine nodes: QEMU guests with Debian's kernel, cgroup v2 and Soft-RoCE.

mod boot;

use super::folder::Node;
use super::{Cluster, NodeKind, Part};
use crate::Error;
use crate::command::{Run, tail};
use boot::Base;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::path::Path;
use std::time::Duration;

/// Time limit to boot: the guest is 10 to 20 times slower.
const BOOT: Duration = Duration::from_secs(600);
const GUEST_PORT: u16 = 7070;
const MEMORY_MIB: u32 = 3072;
/// Hugepages of 2 MiB, part of the memory, reserved at boot.
const HUGE_PAGES: u32 = 96;

impl Cluster {
    /// Creates a guest's disks, starts it, and waits until the node is Ready.
    pub(super) fn start_machine_node(
        &self,
        Node {
            index: node, kind, ..
        }: Node,
    ) -> Result<(), Error> {
        let name = format!("n{node}");
        let cgroup_root = match kind {
            NodeKind::SystemdMachine => "/",
            NodeKind::Machine | NodeKind::Namespace => "/node",
        };
        self.write_node_files(node, kind, cgroup_root)?;
        let folder = self.folder.node(&name);
        let etc = folder.join("etc");
        let (block, network) = (self.block(), self.network());
        for (file, text) in [
            (
                "node.env",
                format!(
                    "NODE={name} IP={} GATEWAY={}\n",
                    block.node(node),
                    block.gateway()
                ),
            ),
            ("routes", network.routes(Some(node)).join("\n")),
        ] {
            let file = etc.join(file);
            fs::write(&file, text).map_err(Error::file("writing", &file))?;
        }
        let base = Base::get(&self.settings, &self.binaries, &self.images)?;
        Run::new("mke2fs")
            .args(["-q", "-t", "ext4", "-d"])
            .arg(&etc)
            .arg(folder.join("etc.img"))
            .arg("16M")
            .done()?;
        // The guest writes only to this file; the base is shared.
        Run::new("qemu-img")
            .args(["create", "-q", "-f", "qcow2", "-F", "raw", "-b"])
            .arg(&base.disk)
            .arg(folder.join("root.qcow2"))
            .done()?;
        network.tap(node)?;
        self.power_on(node)?;
        self.wait_ready(&name, BOOT)
    }

    /// Starts a guest with its existing disks.
    pub(super) fn power_on(&self, node: u8) -> Result<(), Error> {
        let base = Base::get(&self.settings, &self.binaries, &self.images)?;
        let folder = self.folder.node(&format!("n{node}"));
        let part = Part::Node(node);
        let mut argv = ["ip", "netns", "exec", &self.network().switch()]
            .map(str::to_owned)
            .to_vec();
        let systemd = self.node_named(&format!("n{node}"))?.kind == NodeKind::SystemdMachine;
        argv.extend(qemu(&folder, &base, self.record.index, node, systemd));
        tracing::info!(
            node,
            "booting a virtual machine, which takes half a minute or more"
        );
        let process = self.start_detached(part, &argv)?;
        self.folder.save_process(part, process)
    }

    /// Runs a shell command in a guest and returns its output.
    pub(super) fn run_in_guest(
        &self,
        node: u8,
        command: &str,
        input: Option<File>,
        deadline: Duration,
    ) -> Result<String, Error> {
        let address = format!("{}:{GUEST_PORT}", self.block().node(node));
        let failure = |status: String, stderr: String| Error::Command {
            command: format!("in n{node}: {command}"),
            status,
            code: None,
            stderr,
        };
        let broken = |error: std::io::Error| failure(address.clone(), error.to_string());
        let socket: SocketAddr = address
            .parse()
            .map_err(|_| failure(address.clone(), "invalid address".to_owned()))?;
        let mut stream =
            TcpStream::connect_timeout(&socket, Duration::from_secs(10)).map_err(broken)?;
        stream.set_read_timeout(Some(deadline)).map_err(broken)?;
        stream.set_write_timeout(Some(deadline)).map_err(broken)?;
        stream
            .write_all(format!("{command}\n").as_bytes())
            .map_err(broken)?;
        if let Some(mut input) = input {
            std::io::copy(&mut input, &mut stream).map_err(broken)?;
        }
        stream.shutdown(Shutdown::Write).map_err(broken)?;
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).map_err(broken)?;
        let answer = String::from_utf8_lossy(&answer).into_owned();
        match answer.trim_end().rsplit_once("\nstatus=") {
            Some((text, "0")) => Ok(text.to_owned()),
            Some((text, status)) => Err(failure(format!("exit status {status}"), tail(text, 30))),
            None => Err(failure(
                "the connection was closed".to_owned(),
                tail(&answer, 30),
            )),
        }
    }
}

/// QEMU's command line. Software emulation, because nested virtualization may be missing.
fn qemu(folder: &Path, base: &Base, cluster: u8, node: u8, systemd: bool) -> Vec<String> {
    // Read by the initrd.
    let init = if systemd { "systemd" } else { "" };
    let [root, etc] = ["root.qcow2", "etc.img"].map(|file| folder.join(file));
    [
        "qemu-system-x86_64".to_owned(),
        "-accel".to_owned(),
        "tcg,thread=multi".to_owned(),
        "-smp".to_owned(),
        "2".to_owned(),
        "-cpu".to_owned(),
        "max".to_owned(),
        "-m".to_owned(),
        MEMORY_MIB.to_string(),
        "-display".to_owned(),
        "none".to_owned(),
        "-serial".to_owned(),
        "stdio".to_owned(),
        "-no-reboot".to_owned(),
        "-kernel".to_owned(),
        base.kernel.display().to_string(),
        "-initrd".to_owned(),
        base.initrd.display().to_string(),
        "-append".to_owned(),
        format!(
            "console=ttyS0 panic=-1 quiet net.ifnames=0 hugepagesz=2M hugepages={HUGE_PAGES} {init}"
        ),
        "-drive".to_owned(),
        format!("file={},if=virtio,cache=unsafe", root.display()),
        "-drive".to_owned(),
        format!("file={},format=raw,if=virtio,readonly=on", etc.display()),
        "-netdev".to_owned(),
        format!("tap,id=n,ifname=p-n{node},script=no,downscript=no"),
        "-device".to_owned(),
        format!("virtio-net-pci,netdev=n,mac=52:54:00:00:{cluster:02x}:{node:02x}"),
    ]
    .to_vec()
}
