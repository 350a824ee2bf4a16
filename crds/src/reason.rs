//! The catalogue of causes. The same word stands in log, Event, condition, metric and CLI.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Who can do something about a cause.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    /// The workload that uses the pool.
    App,
    /// Mooncake itself, stock or ours.
    Engine,
    /// The machine.
    Node,
    /// What lies between machines.
    Fabric,
    /// Kubernetes objects and settings.
    Cluster,
}

macro_rules! reasons {
    ($($(#[doc = $doc:literal])+ $name:ident, $owner:ident, $remedy:literal;)+) => {
        /// Why something is as it is. Closed: a new cause is a new line in this list.
        #[derive(
            Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
        )]
        pub enum Reason {
            $($(#[doc = $doc])+ $name,)+
        }

        impl Reason {
            /// Every reason, in the order of the catalogue.
            pub const ALL: &[Self] = &[$(Self::$name,)+];

            pub fn as_str(self) -> &'static str {
                match self { $(Self::$name => stringify!($name),)+ }
            }

            /// Who can act on it.
            pub fn owner(self) -> Owner {
                match self { $(Self::$name => Owner::$owner,)+ }
            }

            /// What to do, in one line.
            pub fn remedy(self) -> &'static str {
                match self { $(Self::$name => $remedy,)+ }
            }

            /// What it means, in one line.
            pub fn about(self) -> &'static str {
                match self { $(Self::$name => concat!($($doc),+).trim_ascii(),)+ }
            }
        }
    };
}

reasons! {
    /// Everything is as the spec asks.
    AsExpected, Cluster, "Nothing to do.";
    /// The change is being carried out.
    Progressing, Cluster, "Wait; the message says for what.";
    /// The object is being deleted.
    Deleting, Cluster, "Wait; memory is drained and unmounted first.";

    /// The spec contradicts itself in a way that the API server cannot see.
    InvalidSpec, Cluster, "Change the spec as the message says.";
    /// Another MooncakeNodePolicy of the same priority asks something else of the same node; the oldest of them holds there.
    PolicyConflict, Cluster, "Give one of the policies another priority, or keep their node selectors apart.";
    /// No node matches a pool's node selector and tolerations.
    NoNodeMatches, Cluster, "Label a node as the pool's nodeSelector asks, or change the selector.";
    /// A pool pod cannot be scheduled; the message has the scheduler's own words.
    PoolPodPending, Cluster, "Make room on the named node, or lower the pool's size.";
    /// A pool pod runs but does not serve yet.
    PoolPodNotReady, Node, "See the message of that node's MooncakeNode.";
    /// The node's kubelet evicted a pool pod; the message has the kubelet's own words.
    PoolPodEvicted, Node, "Free what the message names on the node, or give the pool a priorityClassName that outranks others.";
    /// No transport that the spec allows is proven on every storing node.
    NoUsableTransport, Fabric, "Allow another transport, or repair the named one.";
    /// A Kubernetes API call failed.
    ApiFailed, Cluster, "See the message; the operator tries again by itself.";

    /// What the checks of the pod's node find, which its MooncakeCluster asks for, was not told yet.
    PreflightUntold, Cluster, "Wait; if it stays, see that the operator and the agent of the pod's node run.";
    /// A check that a MooncakeCluster asks for before its pods start is ignored on the node by its MooncakeNodePolicy: what it would find is not known.
    CheckIgnored, Cluster, "Take the check out of spec.preflight.checks, or have the MooncakeNodePolicy of the node Warn or Enforce it.";

    /// The master pod is not there or does not say that it serves.
    MasterNotReady, Cluster, "See the master pod's events and log.";
    /// The master does not answer on its RPC port.
    MasterUnreachable, Fabric, "Check the master pod and the NetworkPolicies between it and the pool pod.";
    /// Master, engines and segments are of different generations, which do not understand each other.
    EngineVersionSkew, Engine, "Use one Mooncake minor version for master, pods and spec.master.version.";
    /// The master forgot this node; its segments are mounted anew under new addresses and old keys are gone.
    MasterLostIndex, Engine, "Nothing to do; see why the master restarted or why the agent was away.";
    /// The master refused to mount a segment.
    MountRefused, Engine, "See the error code in the message.";

    /// The node is not Ready.
    NodeNotReady, Node, "Repair the node.";
    /// No agent pod runs on the node.
    AgentMissing, Node, "Let the agent's DaemonSet run on this node.";
    /// The agent pod runs but is not ready.
    AgentNotReady, Node, "See the agent pod's log.";
    /// Another agent holds this node; the second waits.
    AnotherAgentActive, Node, "Delete the other agent pod.";
    /// The status is of an earlier life of this node.
    StaleStatus, Node, "Wait for the agent to report.";

    /// The pool pod waits for the agent to grant it its memory.
    WaitingForGrant, Node, "Wait; the agent of the node must be there first.";
    /// Memory of an earlier pool pod on this node is still mapped.
    PreviousPoolNotReleased, Node, "See which earlier pod the message names; restart the agent if it stays.";
    /// The pool pod is touching its memory.
    TouchingMemory, Node, "Wait; progress stands in the message.";
    /// The segments are being mounted in the master.
    Mounting, Engine, "Wait.";
    /// The pool pod was told to end; its segments leave the master first.
    Draining, Cluster, "Wait.";
    /// The pool pod ended.
    PoolPodGone, Cluster, "Wait for its replacement.";
    /// The node lacks the memory for a pool pod, or the pool process could not make it.
    MemoryUnavailable, Node, "Free memory or hugepages of that size on the node; see the message.";
    /// The kernel gave pages of another size than the spec asks.
    PageSizeMismatch, Node, "Provide hugepages of the asked size on the node.";
    /// The pool pod's address is not an address of its network namespace, or is loopback.
    AddressNotOwn, Node, "See the pod's status.podIP; restart the pod.";

    /// The pool process did not speak in time.
    PoolSilent, Node, "Delete the pool pod; if it comes again, see its log.";
    /// The process at the pool's socket is not of the pool pod that it claims to be.
    ForeignProcess, App, "Somebody imitates a pool pod: see who made it.";
    /// The pool handed over memory that can shrink or grow.
    DescriptorNotSealed, App, "Somebody imitates a pool pod: see who made it.";
    /// The pool handed over memory of another size than declared.
    DescriptorWrongSize, App, "Somebody imitates a pool pod: see who made it.";
    /// The record that the pool keeps for the agent was changed by somebody else.
    RecordForged, App, "Delete the pool pod; its keys are lost.";
    /// The pool spoke another hand-over protocol, or nonsense.
    HandoverFailed, Node, "Use pool and agent images of one release; see the message.";

    /// No operator runs, so that nothing that is asked for is carried out.
    OperatorMissing, Cluster, "Install the chart, or see why its Deployment is gone.";
    /// The operator's Deployment has fewer ready pods than it wants.
    OperatorNotReady, Cluster, "See the pods that the message names, their events and log.";
    /// The API server does not call the webhook, so that labelled pods start as they are.
    WebhookMissing, Cluster, "Install the chart with its MutatingWebhookConfiguration; its caBundle is the operator's to write.";
    /// Operator, agents or this program are of different releases.
    ReleaseSkew, Cluster, "Let the upgrade end, or use images and kubectl-mooncake of one release.";
    /// A pod names a MooncakeCluster that does not exist.
    ClusterMissing, App, "Create the MooncakeCluster, or write the name of one that exists in the pod's label.";

    /// A labelled pod was not injected.
    NotInjected, Cluster, "Recreate the pod; see its annotation mooncake.io/injection-skipped or the webhook.";
    /// The pod's namespace is not in the cluster's allowedNamespaces.
    NamespaceNotAllowed, Cluster, "Add the namespace to spec.access.allowedNamespaces.";
    /// The pod uses the host's network and the cluster does not allow that.
    HostNetworkNotAllowed, Cluster, "Set spec.access.allowHostNetwork, or leave the host's network.";
    /// A pod of a cluster that requires RDMA was injected without a claim of an RDMA device.
    DeviceUnclaimed, App, "Do as the message says, or claim a device by the pod itself (docs/devices.md); then make the pod anew.";
    /// The gate of an injected pod is still waiting.
    GateWaiting, Cluster, "Wait; the message says for what.";
    /// The gate gave up waiting and let the pod start, or failed it, as the spec says.
    GateTimedOut, Cluster, "See which peer the message names.";
    /// A segment name is not known to the master.
    SegmentUnknown, Engine, "See the near names in the message: the owner is dead, restarted or never existed.";
    /// The API server does not serve the NVIDIA driver's ComputeDomains, or not in a version that is understood.
    ComputeDomainCrdMissing, Cluster, "Install the DRA driver dra-driver-nvidia-gpu with ComputeDomains, or remove spec.mnnvl; nothing else waits for it.";
    /// The ComputeDomain that spec.mnnvl.reference names does not exist.
    ComputeDomainMissing, Cluster, "Create it in the cluster's namespace, or let the operator by spec.mnnvl.create.";
    /// A ComputeDomain of the name that the operator would give is there and belongs to somebody else.
    ComputeDomainNameTaken, Cluster, "Delete or rename it, or use it by spec.mnnvl.reference.";
    /// The name of the domain's ResourceClaimTemplate is taken by another object: a pod that uses the name joins another domain, or none.
    TemplateNameClash, Cluster, "Delete the other template or its domain, or give this domain another template name.";
    /// No pod holds a channel of the ComputeDomain, whatever its own status says.
    DomainEmpty, App, "Give a pod a ResourceClaim from the template that status.mnnvl.claimTemplate names.";
    /// The node's IMEX daemon is not ready in the ComputeDomain.
    DomainNotReady, Node, "Wait; if it stays, see the daemon pod that the message names and the log of the driver's kubelet plugin on that node.";
    /// The ComputeDomain was deleted while pods hold channels of it: they keep a device without a domain, or never start.
    DomainDeletedInUse, Cluster, "Delete the pods that the message names; a new domain of the same name does not help them.";
    /// The node's IMEX daemon runs but finds no place in its clique's IMEX domain.
    DomainFull, Fabric, "Use at most 18 nodes of one clique in a ComputeDomain, or as many as the driver's setting allows.";
    /// The node is in another NVLink clique than the members, so that they cannot reach each other.
    CliqueMismatch, Fabric, "Keep the pods of one domain in one clique: required affinity on the node label nvidia.com/gpu.clique.";
    /// The node's GPUs are not in an NVLink fabric: a claim is prepared there, but gives no channel.
    NodeWithoutFabric, Fabric, "Keep the domain's pods off this node, or see why the fabric manager did not register its GPUs.";
    /// The node is labelled for another ComputeDomain, and can be in one only.
    DomainLabelConflict, Node, "Let the other domain's pods leave the node, or remove the label resource.nvidia.com/computeDomain if a hand has set it.";
    /// The node's one IMEX channel is held by another claim.
    ChannelBusy, Node, "Let the pod of the other claim end, share its claim, or use another node.";
    /// No pod that could use NVLink on the node holds a channel: memory cannot be exported (cuMemCreate fails with 800).
    ChannelNotInPod, App, "Add a resource claim from status.mnnvl.claimTemplate to the pod and to its container.";
    /// The claim is of another namespace than its ComputeDomain: the driver never prepares it.
    ChannelNotPermitted, App, "Delete the claim and its pod; make the claim in the ComputeDomain's namespace.";
    /// The ComputeDomain kubelet plugin does not offer its channel on the node.
    ComputeDomainPluginMissing, Node, "See the driver's kubelet plugin pod on this node; a plugin whose NVLink fabric is not attached refuses to start.";
    /// IMEX is managed by the hosts, and nothing in the API proves that it is ready.
    HostImexUnproven, Node, "See nvidia-imex.service on the node.";

    /// A port of an RDMA device is not ACTIVE.
    PortNotActive, Fabric, "Look at cable, switch port and, on InfiniBand, the subnet manager; set the interface up where it is switched off.";
    /// A port of an RDMA device has no GID that peers can reach.
    NoRoutableGid, Node, "Give the interface of the port an IPv4 or global IPv6 address, and let the driver speak RoCE version 2.";
    /// The interface of a RoCE port is too small for any RDMA packet.
    MtuTooLow, Node, "Set the interface's MTU to 4200 or 9000, and that of the switch too.";
    /// RoCE ports of one node carry packets of different sizes.
    MtuMismatch, Node, "Give the interfaces of all rails one MTU, on every node.";
    /// An InfiniBand port is in no partition as a full member: limited members do not reach each other.
    PartitionLimited, Fabric, "Make the port a full member in the subnet manager's partitions.";
    /// The kernel does not answer when it is asked about an RDMA device or a GPU.
    DeviceHung, Node, "Take the device out of use; reload its driver or reboot the node.";
    /// The kernel refuses to tell what an RDMA device is like.
    DeviceFault, Node, "See the kernel's log for the device; reload its driver or reboot the node if it stays.";
    /// The card has no memory keys left: killed programs leak them in its firmware, and registration fails with EAGAIN.
    MkeyExhausted, Node, "Move pods off the node, then reload the driver (mlx5_ib, mlx5_core) or reboot.";
    /// A program registered more memory in one piece than the device takes: registration fails with EIO.
    MrTooLarge, App, "Let the program register smaller pieces, see max_mr_size in ibv_devinfo -v.";
    /// An RDMA device registers less memory in one piece than a pool of the node has.
    MrLimitLow, App, "Let programs register smaller pieces with it, or take RDMA from them: see limits.maxMrSize of the device in the node's MooncakeInventory; pools are cut into extents by themselves.";
    /// An RDMA device cannot be opened or registers no memory, and the kernel names no cause that is better known.
    RegistrationFailed, Node, "See the kernel's log for the device; reload its driver or reboot the node if it stays.";
    /// What an RDMA device writes to itself over an active port does not arrive.
    LoopbackFailed, Node, "See the stage in the message: up to RTR it is GID, address or routing of the port's interface, after that the device; see the kernel's log, reload the driver.";
    /// An RDMA device has few queue pairs left: soon a new connection fails with ENOMEM.
    QueuePairsLow, App, "Restart the program that the message names; stock engines make fewer with MC_ENABLE_DEST_DEVICE_AFFINITY=1.";
    /// A process takes ever more queue pairs of an RDMA device: within a day no program of the node connects any more.
    QueuePairsLeaking, App, "Restart the pod that the message names before that; engines that keep the queue pairs of failed transfers have later releases.";
    /// An RDMA device could not be tried by verbs, for a cause that is not the device's.
    VerbsUntried, Node, "See the message: use the agent image of this release, which has libibverbs and its drivers.";
    /// The firmware of an RDMA device does not answer its driver.
    FirmwareStuck, Node, "Take the device out of use; reset it (mlxfwreset) or reboot the node.";
    /// A GPU has fallen off the bus.
    GpuLost, Node, "Drain the node and reboot it; if it happens again, have power, heat and the card looked at.";
    /// A GPU could not be asked by NVML or CUDA, for a cause that is not known to be the GPU's.
    GpuUnasked, Node, "See the message: driver and libraries of one version are needed (a driver that was exchanged takes a reboot, or its module loaded anew), and /dev/nvidiactl and /dev/nvidia-uvm on the node.";
    /// CUDA says that GPUs which share memory by NVLink switches are not set up: no program can use them.
    FabricManagerNotReady, Node, "See nvidia-fabricmanager.service on the node: it runs in the driver's version, and before any program that uses a GPU.";
    /// A GPU of a node that takes part in a ComputeDomain has not joined the NVLink fabric of its rack.
    FabricNotJoined, Fabric, "See the Fabric section of nvidia-smi -q on the node, and the fabric manager of the rack (NMX-C); a GPU that was joined and is no more takes a reset.";
    /// No device file leads to an RDMA device, so that no program can open it.
    DeviceFileMissing, Node, "Load the module ib_uverbs; see /dev/infiniband on the node.";
    /// Something that the agent reads of the node cannot be read.
    HostUnreadable, Node, "See the path in the message: what hangs on it is not known.";
    /// A module is not loaded without which a device that is there cannot be used.
    ModuleMissing, Node, "Load it with modprobe, and name it in /etc/modules-load.d.";
    /// Programs cannot use the RDMA connection manager.
    RdmaCmMissing, Node, "Load the module rdma_ucm; see /dev/infiniband/rdma_cm.";
    /// The PCI Express link of an RDMA device is slower than that of its like on the node.
    PciLinkDegraded, Node, "Seat the card anew, or see the BIOS setting of its slot.";
    /// A container may lock less memory than RDMA needs: registration fails with ENOMEM.
    MemlockTooLow, Node, "Let the pod claim its RDMA devices, which lifts the limit; or set LimitMEMLOCK=infinity for the container runtime, and restart it.";
    /// The node has RDMA devices, and a container that may use them can open none: its engine silently takes another way.
    HcaNotInPod, App, "Give the container a ResourceClaim of the DeviceClass hca.mooncake.io (docs/devices.md), or set spec.transports.rdma of its MooncakeCluster to Forbid.";
    /// A container names an RDMA device that the node does not have, or that the container cannot open.
    DeviceNameUnknown, App, "Unset the variable that the message names, so that devices are chosen by themselves; or name devices that the message lists.";
    /// What a container sets of RDMA by hand is not what the node's devices have.
    ByHandUnfit, App, "Unset the variable that the message names: what fits is chosen by itself, for each device.";
    /// A process may have too few mappings for registering much memory.
    MapCountTooLow, Node, "Run sysctl -w vm.max_map_count=16777216, and write it to /etc/sysctl.d.";
    /// Fewer hugepages are set aside than the pools of the node take.
    HugepagesShort, Node, "Set aside as many as the message says (vm.nr_hugepages), restart the kubelet, or make the pool smaller.";
    /// An engine asks by its own variables for more hugepages than its container may take, or than the node has beside its pools.
    PodHugepagesShort, App, "Give the container a limit of that resource (resources.limits), and the node as many; or lower or unset the variable that the message names. Then make the pod anew.";
    /// An engine asks by its own variables for hugepages, and holds none though they are there.
    HugepagesNotTaken, App, "Make the pod anew: an engine asks once in its life. Where the message names a variable that is missing, set it, or unset the one that it names beside it.";
    /// A NUMA node has fewer hugepages than its share of the pools.
    HugepagesUneven, Node, "Set them aside per NUMA node: /sys/devices/system/node/node*/hugepages.";
    /// The range of ephemeral ports is small.
    EphemeralPortsLow, Node, "Run sysctl -w net.ipv4.ip_local_port_range='1024 65535', leaving out what services listen on; in a pod, by its securityContext.sysctls.";
    /// Ended connections hold most of the ephemeral ports.
    EphemeralPortsBusy, Node, "Find who opens so many connections; sysctl -w net.ipv4.tcp_tw_reuse=1 helps who connects; each pod has its own.";
    /// RDMA devices cannot reach the memory of the node's GPUs.
    GpuDirectUnavailable, Node, "Load nvidia_peermem, or install the open kernel modules of the GPU driver.";
    /// An RDMA device could not register a GPU's memory, or bytes did not come there and back.
    GpuDirectFailed, Node, "See stage and way in the message: registering takes nvidia_peermem, or drivers of GPU and device that know dma-buf; after that see the kernel's log, PCIe access control (ACS) and IOMMU.";
    /// The RDMA device nearest to a GPU cannot be used.
    GpuRailLost, Node, "Repair the device that the message names; until then traffic of the GPU takes a longer way.";
    /// The GPU driver has no IMEX channels, so that memory cannot be shared with other nodes.
    ImexUnsupported, Node, "Install a GPU driver with IMEX, or keep ComputeDomains off the node.";
    /// The host runs an IMEX service of its own, which excludes that of a ComputeDomain.
    HostImexConfigured, Node, "Stop and disable nvidia-imex.service, and remove /etc/nvidia-imex/nodes_config.cfg.";
    /// The container runtime does not read the files by which pods get the RDMA devices that they claim: they start without them.
    CdiUnread, Node, "Set enable_cdi = true in the runtime's configuration, have the agent's folder (agent.devices.cdiDir) stand among its cdi_spec_dirs, and restart it.";
    /// The API server does not serve resource.k8s.io/v1, so that no RDMA device can be claimed.
    DeviceApiMissing, Cluster, "Use Kubernetes 1.34 or later, or set agent.devices.enabled to false.";
    /// The kubelet does not take the agent's offer of RDMA devices.
    KubeletRefused, Node, "See the kubelet's words in the agent's log, and agent.devices.kubeletDir.";
    /// A ResourceClaim asks for what the agent does not give, or is not the one that the kubelet named.
    ClaimInvalid, App, "Change the claim as the message says, and make the pod anew.";
    /// An RDMA device that was allocated to a claim is not on the node, or cannot be opened there.
    DeviceMissing, Node, "See the node's MooncakeInventory; delete the pod, so that another device is allocated.";
    /// An RDMA device that was allocated to a claim is still held by another that has not been let go.
    DeviceBusy, Node, "See why the pod of the other claim does not end on the node.";
    /// An RDMA device that was allocated to a claim is sick by a check of the agent's: it is not given anew, and whoever has it keeps it.
    DeviceSick, Node, "See what is told of the device (kubectl describe mooncakenode); delete the pod, so that another device is allocated.";
    /// The agent cannot write down which devices it gave, or where the container runtime looks for them.
    DeviceRecordFailed, Node, "See the path in the message: the disk is full, read-only or broken.";
    /// A check of the agent broke off: a fault of the agent's, not of the node's.
    CheckBroken, Engine, "Report it with the message and a recording (agent record).";
    /// The agent would set something right on the node, and the policy has it shown only.
    FixProposed, Cluster, "Set the fix's mode to Apply in the MooncakeNodePolicy, or do it by hand.";
    /// The agent has set something right on the node, as the policy asks.
    FixApplied, Cluster, "Nothing to do; it is undone when the policy no longer asks for it.";
    /// A fix is no more: the policy no longer asks for it, or the node is in order without it.
    FixEnded, Cluster, "Nothing to do.";
    /// The node refuses a fix that the policy asks for.
    FixRefused, Node, "See the error in the message: do it by hand on the node, or remove the fix from the MooncakeNodePolicy.";
    /// How much memory the pods of the node leave is not known yet, and hugepages are taken from nothing else.
    PodRequestsUnknown, Cluster, "Wait; if it stays, see the operator's log: it counts what the node's pods ask for.";
    /// The agent has set hugepages aside, and the kubelet, which counts them only when it starts, gives none of them to pods yet.
    KubeletRestartRequired, Node, "Restart the kubelet on the node: systemctl restart kubelet; pods go on running.";
    /// Hugepages that no policy asks for any more are in use; they go as soon as they are free.
    HugepagesInUse, App, "Let the pods that use them end, or leave them be.";
    /// IPv6 of an interface that no policy asks for any more stays on while processes hold queue pairs of its RDMA device.
    Ipv6InUse, App, "Let the processes that use the device end, or leave it be.";
    /// The engine of a pod in the node's own network listens on ports that the node's MooncakeNodePolicy does not have for that: a firewall may drop who connects.
    HostPortsDiffer, App, "Set MC_MIN_RPC_PORT and MC_MAX_RPC_PORT in the container as the message says, or leave them to the webhook.";
    /// What the agent has set right was set back by somebody else; it is set right again once a minute.
    FixSetBack, Node, "Find who sets it back (tuned, a boot script, another DaemonSet), or remove the fix from the MooncakeNodePolicy.";
    /// The operator has cordoned a node, because a MooncakeNodePolicy asks so where RDMA devices are sick.
    NodeCordoned, Node, "Repair the devices that the message names: the node is uncordoned when they are well. Remove the annotation mooncake.io/cordoned to keep it as it is.";
    /// The operator has uncordoned a node that it had cordoned.
    NodeUncordoned, Cluster, "Nothing to do.";
    /// Other tools are asked to make the RDMA devices of a cordoned node well.
    RepairRequested, Node, "Have a tool of yours follow the annotation mooncake.io/repair-requested, or do by hand what it says.";
    /// A node with sick RDMA devices is not cordoned, because as many are as the MooncakeNodePolicy allows at a time.
    CordonBudgetSpent, Cluster, "Repair the nodes that are cordoned, or raise spec.sickDevices.maxNodes.";
    /// More than half of a policy's nodes have sick RDMA devices, so that none more is cordoned: what they suffer from is hardly their own.
    MostNodesSick, Fabric, "Look for what they share: fabric, driver, firmware, or the agent's release; cordon by hand what must be.";
    /// The way to a peer works and is much slower than a network is.
    TransportDegraded, Fabric, "Look for loss on the way (ip -s link, ethtool -S), for another MTU in between, or for a link that is full.";
    /// The name by which pods find their master does not resolve on the node.
    NameNotResolved, Cluster, "See the cluster's DNS pods and the way from this node to their Service: the message names resolver, name and error.";
    /// The node's clock differs from the API server's.
    ClockSkewed, Node, "Let NTP keep the node's clock (chronyc tracking, timedatectl); where every node is told this, the API server's.";
    /// A peer could not be reached.
    PeerUnreachable, Fabric, "Check the named address, port and the NetworkPolicies between.";
}

impl Reason {
    /// Where the documentation explains it.
    pub fn docs_anchor(self) -> String {
        format!("docs/reasons.md#{}", self.as_str().to_ascii_lowercase())
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
