//! Reasons: the closed list of causes. Logs, Events, conditions, metrics and kubectl-mooncake use the same names.

use self::Owner::{App, Cluster, Engine, Fabric, Node};
use crate::catalog::catalog;

/// The area whose owner can remove a cause.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    /// The workload that uses the pool.
    App,
    /// Mooncake itself: a stock engine or master, or this project.
    Engine,
    /// The machine.
    Node,
    /// The network between machines.
    Fabric,
    /// Kubernetes objects and settings.
    Cluster,
}

catalog! {
    /// The cause of a state. The list is closed: a new cause is a new entry.
    Reason: (Owner, &'static str);

    /// The state is as specified.
    AsExpected = (Cluster, "Nothing to do.");
    /// The change is in progress.
    Progressing = (Cluster, "Wait. The message names what is pending.");
    /// The user paused the object, or an administrator paused the operator. Nothing is changed.
    Paused nearest "Progressing" = (Cluster, "Nothing to do. To continue, remove spec.paused, or install the chart without operator.paused.");
    /// A pool pod that a rollout replaced does not serve within drainSeconds + spec.update.progressDeadlineSeconds. No further pod is replaced.
    RolloutStopped nearest "PoolPodNotReady" = (Cluster, "Repair the named pool pod, or change the spec. The rollout then continues.");
    /// The object is being deleted.
    Deleting = (Cluster, "Wait. Its pool pods end at once, and its keys are lost.");

    /// The spec contradicts itself in a point that the API server cannot check.
    InvalidSpec = (Cluster, "Change the spec as the message describes.");
    /// Another MooncakeNodePolicy with the same priority has different rules for the same node. The oldest of them applies.
    PolicyConflict = (Cluster, "Give one of the policies another priority, or make their node selectors disjoint.");
    /// No node matches a pool's node selector and tolerations.
    NoNodeMatches = (Cluster, "Add the labels of the pool's nodeSelector to a node, or change the selector.");
    /// A pool pod cannot be scheduled. The message contains the scheduler's message.
    PoolPodPending = (Cluster, "Remove the cause in the message or in the events of the DaemonSet. Where the node lacks memory or hugepages, free them, or reduce the size of the pool.");
    /// The guard of a node does not run, so `kubectl drain` does not wait there until the keys of the pool pods have moved.
    GuardNotRunning nearest "PoolPodPending" = (Cluster, "Remove the cause in the message (pod limit of the node, taint, image) before you drain the node, or drain it with kubectl mooncake drain NODE first.");
    /// A pool pod runs but does not serve yet.
    PoolPodNotReady = (Node, "Read the message of the node's MooncakeNode.");
    /// The node's kubelet evicted a pool pod. The message contains the kubelet's message.
    PoolPodEvicted = (Node, "Free the named resource on the node, or set a priorityClassName with a higher priority for the pool.");
    /// No transport that the spec allows is served by a pool pod, or injected pods cannot claim the devices for it.
    NoUsableTransport = (Fabric, "Repair the named transport (kubectl mooncake node NAME shows RDMA ports), select another device in rdmaDevices of the node's MooncakeNodePolicy, allow another transport in the spec, or exclude the named node by the nodeSelector of the pool.");
    /// A Kubernetes API call failed.
    ApiFailed = (Cluster, "Read the message. The operator retries the call.");
    /// The API server forbids a write of the operator: a permission, a quota or an admission policy is in the way.
    ApiForbidden nearest "ApiFailed" = (Cluster, "Grant what the message names. The operator retries at intervals of up to five minutes, and at once after a change of the spec.");

    /// The results of the checks that spec.preflight of the MooncakeCluster requires on the pod's node are not reported yet.
    PreflightPending formerly "PreflightUntold" = (Cluster, "Wait. If this continues, check that the operator and the agent of the pod's node run.");
    /// The node's MooncakeNodePolicy ignores a check that spec.preflight of the MooncakeCluster requires, so its result is unknown.
    CheckIgnored = (Cluster, "Remove the check from spec.preflight.checks, or set its action to Warn or Enforce in the node's MooncakeNodePolicy.");

    /// The master pod is missing or does not report that it serves.
    MasterNotReady = (Cluster, "Read the events and the log of the master pod.");
    /// The master does not respond on its RPC port.
    MasterUnreachable = (Fabric, "Check the master pod and the NetworkPolicies between it and the pool pod.");
    /// The metadata service of the cluster cannot be used from a pool pod's network. Stock pods do not find the pod's segments when they start, or at all.
    MetadataUnreachable nearest "MasterUnreachable" = (Fabric, "Follow the message: it names endpoint, address and error. Check the service, its port and the NetworkPolicies between it and the pool pods.");
    /// Master, engines or segments belong to different Mooncake releases whose protocols are incompatible.
    EngineVersionSkew = (Engine, "Use one minor release of Mooncake for master, pods and spec.master.version.");
    /// The master lost its index entries of this node. The segments are mounted again at new addresses, and earlier keys are lost.
    MasterLostIndex = (Engine, "Nothing to do now. Find out why the master restarted, or why the pool pod had no engine process for two minutes (log of the node's agent).");
    /// The master rejected the mount of a segment.
    MountRefused = (Engine, "Look up the error code in the message.");

    /// No pod of a built-in master answers on its admin port.
    MasterNotResponding nearest "MasterUnreachable" = (Engine, "Read the log of the master pods, and check the kubelets of their nodes. While another master takes over, wait and repeat the command.");
    /// Lookups in a built-in master find no key.
    NoCacheHits nearest "MasterLostIndex" = (App, "Compare the keys that pods look up with the stored ones (kubectl mooncake keys NAME -n NAMESPACE). Model, parallelism, page size and PYTHONHASHSEED of all pods must be equal.");
    /// A pool pod does not acknowledge changes of keys, or its ledger is still being loaded. No new objects are placed in it.
    LedgerLate nearest "PoolPodNotReady" = (Node, "Wait. If this continues, check the load of the node and of its network, and read the log of its agent.");
    /// The ledger of a pool pod is missing: the pod is away, or keeps none.
    LedgerAbsent nearest "PoolPodNotReady" = (Node, "For a pod that is away: repair its node or the pod. For one without a ledger: delete the pod, its keys move to others within drainSeconds.");
    /// A pool pod has keys that are not in its ledger. A restart of the master loses them.
    LedgerFull nearest "MasterLostIndex" = (Cluster, "Store larger objects, spread them over more pool pods, or keep keys shorter: a record has 128 to 256 bytes, and keys with their group above 8 KiB have none. A ledger has 1/64 of a pool up to 32 MiB, and 1/2048 of a pool above 64 GiB, at most 512 MiB. A pod of an earlier release has at most 32 MiB: replace it.");
    /// Keys were removed or replaced while a pool pod was away, without a note for it. Their former values can return after a restart of the master.
    TombstonesMissing nearest "MasterLostIndex" = (Engine, "Let the pool pods that are away come back before the master restarts, or delete them: new ones have no former values.");
    /// Puts found no space in the pools of a cluster.
    PoolFull nearest "MemoryUnavailable" = (Cluster, "Add pool pods or a larger size, or store smaller objects.");
    /// Puts of a tenant were refused because of its quota: none of its own objects could be evicted for them.
    TenantOverQuota nearest "MemoryUnavailable" = (Cluster, "Raise the quota of the tenant in spec.master.tenants. If its objects are pinned or read all the time, store fewer.");
    /// Puts were refused because they name a tenant without a quota.
    TenantUnknown nearest "InvalidSpec" = (Cluster, "List the tenant in spec.master.tenants, or correct tenant_id (MOONCAKE_TENANT_ID) of the client. Clients that name none are the tenant default.");

    /// The node is not Ready.
    NodeNotReady = (Node, "Repair the node.");
    /// No agent pod runs on the node.
    AgentMissing = (Node, "Let the DaemonSet of the agent schedule a pod on the node: check its nodeSelector, tolerations and events.");
    /// The agent pod runs but is not ready.
    AgentNotReady = (Node, "Read the log of the agent pod.");
    /// Another agent is active on the node. This agent waits.
    AnotherAgentActive = (Node, "Delete the other agent pod.");
    /// The status was written before the last boot or re-creation of the node.
    StaleStatus = (Node, "Wait until the agent reports.");

    /// The pool pod waits until the agent grants its memory.
    WaitingForGrant = (Node, "Wait. If this continues, check that the agent of the node runs.");
    /// Memory of an earlier pool pod on the node is still mapped.
    PreviousPoolNotReleased = (Node, "Wait. If this continues, check why the earlier pod that the message names does not end; its processes hold the memory. Delete it.");
    /// The pool pod is touching its memory.
    TouchingMemory = (Node, "Wait. The message shows the progress.");
    /// The segments are being mounted in the master.
    Mounting = (Engine, "Wait.");
    /// The pool pod is terminating. Its segments are removed from the master first.
    Draining = (Cluster, "Wait.");
    /// The keys of pool pods that end do not fit into the other pool pods of the cluster. Those that were used longest ago are evicted. On a cordoned node the pool pods stay instead.
    DrainExceedsSpace nearest "Draining" = (Cluster, "Add pool pods or a larger size before pool pods end. Undo a drain with kubectl mooncake undrain. For a cordoned node, kubectl mooncake drain NODE --lose-keys confirms the loss.");
    /// The pool pod has terminated.
    PoolPodGone = (Cluster, "Wait for its replacement.");
    /// The node has too little memory for a pool pod, or the pool process could not allocate it.
    MemoryUnavailable = (Node, "Free memory or hugepages of the size that the message names on the node.");
    /// The kernel allocated pages of another size than the spec requires.
    PageSizeMismatch = (Node, "Provide hugepages of the specified size on the node.");
    /// The pool pod's address is a loopback address or not an address of its network namespace.
    AddressNotOwn = (Node, "Check status.podIP of the pod, then restart the pod.");

    /// The pool process did not respond before its deadline.
    PoolNotResponding formerly "PoolSilent" = (Node, "Delete the pool pod. If it happens again, read the log of the pod.");
    /// No engine process serves the pool pod: it does not start, or has ended and is being replaced.
    EngineNotRunning nearest "PoolPodNotReady" = (Engine, "Wait: the agent starts it again. If it happens again, read the message and the log of the node's agent, which has that of the engine process, and report it.");
    /// The engine process of the pool pod, or one of its data threads, is hung: it makes no progress although it is not waiting for a processor. The agent kills and replaces it.
    EngineHung nearest "PoolPodNotReady" = (Engine, "Wait: the agent replaces it. If it happens again, report it with the message, which has thread, stage and kernel stack, and with the agent's log. A process in state D ends when the kernel lets it go: check devices and the kernel log of the node.");
    /// The engine process of a pool pod does not get the processor time that it needs: transfers with this pool pod are slow. It is not replaced.
    EngineThrottled nearest "TransportDegraded" = (Node, "Raise spec.pools[].cpu, so that the pool pod gets a larger share of the node's processors, or move other pods off the node. Where the message names a CPU limit: the operator sets none, so change the LimitRange or the policy of the namespace that sets it.");
    /// The process at the pool's socket does not belong to the pool pod.
    ForeignProcess = (App, "Find the process that imitates a pool pod, and its owner.");
    /// The pool passed a memory descriptor that can shrink or grow.
    DescriptorNotSealed = (App, "Find the process that imitates a pool pod, and its owner.");
    /// The pool passed a memory descriptor of another size than declared.
    DescriptorWrongSize = (App, "Find the process that imitates a pool pod, and its owner.");
    /// A process other than the agent changed the record that the pool keeps for the agent.
    RecordForged = (App, "Delete the pool pod. Its keys are lost.");
    /// The pool sent an invalid message or uses another version of the hand-over protocol.
    HandoverFailed = (Node, "Use pool and agent images of one release. The message has the details.");

    /// No operator runs, so no spec is reconciled.
    OperatorMissing = (Cluster, "Install the chart, or find out why the operator's Deployment is missing.");
    /// The operator's Deployment has fewer ready pods than specified.
    OperatorNotReady = (Cluster, "Read the events and logs of the pods that the message names.");
    /// The API server does not call the webhook, so labelled pods start without injection.
    WebhookMissing = (Cluster, "Where the MutatingWebhookConfiguration does not exist, install the chart with it. Where its caBundle is empty, read the log of the operator that leads (docs/operations.md), which writes it.");
    /// Operator, agents or kubectl-mooncake belong to different releases.
    ReleaseSkew = (Cluster, "Wait until the upgrade ends, or use images and kubectl-mooncake of one release.");
    /// A pod names a MooncakeCluster that does not exist.
    ClusterMissing = (App, "Create the MooncakeCluster, or set the pod's label to the name of an existing one.");

    /// A labelled pod was not injected.
    NotInjected = (Cluster, "Read the pod's annotation mooncake.io/injection-skipped, or check the webhook. Then re-create the pod.");
    /// The pod's namespace is not in the cluster's allowedNamespaces.
    NamespaceNotAllowed = (Cluster, "Add the namespace to spec.access.allowedNamespaces.");
    /// The pod uses the host network, which the cluster does not allow.
    HostNetworkNotAllowed = (Cluster, "Set spec.access.allowHostNetwork, or remove hostNetwork from the pod.");
    /// A pod of a cluster on RDMA was injected without a claim for an RDMA device.
    DeviceClaimMissing formerly "DeviceUnclaimed" = (App, "Follow the message, or add a device claim to the pod spec (docs/devices.md). Then re-create the pod.");
    /// The gate of an injected pod is still waiting.
    GateWaiting = (Cluster, "Wait. The message names what is pending.");
    /// The gate reached its deadline. With spec.injection.onDeadline Start it let the pod start; with Fail the pod still waits.
    GateTimedOut = (Cluster, "Check the peer that the message names.");
    /// The master does not know the segment name.
    SegmentUnknown = (Engine, "Compare with the similar names in the message: the owner has terminated, has restarted or never existed.");
    /// The API server does not serve the NVIDIA driver's ComputeDomains in a supported version.
    ComputeDomainCrdMissing = (Cluster, "Install the DRA driver dra-driver-nvidia-gpu with ComputeDomains, or remove spec.mnnvl. Nothing else waits for it.");
    /// The ComputeDomain in spec.mnnvl.reference does not exist.
    ComputeDomainMissing = (Cluster, "Create it in the cluster's namespace, or set spec.mnnvl.create to let the operator create one.");
    /// A ComputeDomain with the name that the operator uses exists and has another owner.
    ComputeDomainNameTaken = (Cluster, "Delete or rename it, or use it with spec.mnnvl.reference.");
    /// Another object uses the name of the ComputeDomain's ResourceClaimTemplate. A pod that uses the name joins another ComputeDomain, or none.
    TemplateNameClash = (Cluster, "Delete the other template or its ComputeDomain, or change the template name of this ComputeDomain.");
    /// No pod has allocated a channel of the ComputeDomain, although its status may be Ready.
    ComputeDomainEmpty formerly "DomainEmpty" = (App, "Add a ResourceClaim from the template in status.mnnvl.claimTemplate to a pod.");
    /// The node's IMEX daemon is not ready in the ComputeDomain.
    ComputeDomainNotReady formerly "DomainNotReady" = (Node, "Wait. If this continues, check the daemon pod that the message names and the log of the driver's kubelet plugin on the node.");
    /// The ComputeDomain was deleted while pods have channels of it allocated. These pods keep an unusable device or never start.
    ComputeDomainDeletedInUse formerly "DomainDeletedInUse" = (Cluster, "Delete the pods that the message names. A new ComputeDomain with the same name does not repair them.");
    /// The node's IMEX daemon runs, but the IMEX domain of its clique has no free place.
    ImexDomainFull formerly "DomainFull" = (Fabric, "Use at most 18 nodes of one clique in a ComputeDomain, or the limit in the driver's configuration.");
    /// The node is in another NVLink clique than the members, so they cannot reach each other over NVLink.
    CliqueMismatch = (Fabric, "Keep the pods of one ComputeDomain in one clique: set required affinity on the node label nvidia.com/gpu.clique.");
    /// The node's GPUs are not in an NVLink fabric. A claim is prepared on the node but has no channel.
    NodeWithoutFabric = (Fabric, "Keep the pods of the ComputeDomain off the node, or find out why the fabric manager did not register its GPUs.");
    /// The node is labelled for another ComputeDomain. A node can be in one ComputeDomain only.
    ComputeDomainLabelConflict formerly "DomainLabelConflict" = (Node, "Wait until the pods of the other ComputeDomain leave the node, or remove the label resource.nvidia.com/computeDomain if it was set manually.");
    /// The node's only IMEX channel is allocated to another claim.
    ChannelBusy = (Node, "Wait until the pod of the other claim ends, share its claim, or use another node.");
    /// No pod on the node that could use NVLink has a channel, so memory cannot be exported (cuMemCreate fails with 800).
    ChannelNotInPod = (App, "Add a resource claim from status.mnnvl.claimTemplate to the pod and to its container.");
    /// The claim is in another namespace than its ComputeDomain, so the driver never prepares it.
    ChannelNotPermitted = (App, "Delete the claim and its pod, then create the claim in the namespace of the ComputeDomain.");
    /// The ComputeDomain kubelet plugin does not publish a channel on the node.
    ComputeDomainPluginMissing = (Node, "Check the driver's kubelet plugin pod on the node. The plugin does not start while the NVLink fabric is not attached.");
    /// The hosts manage IMEX, and the API has no evidence that it is ready.
    HostImexUnverified formerly "HostImexUnproven" = (Node, "Check nvidia-imex.service on the node.");

    /// A port of an RDMA device is not ACTIVE.
    PortNotActive = (Fabric, "Check cable, switch port and, on InfiniBand, the subnet manager. Set the interface up if it is down.");
    /// A port of an RDMA device has no GID that peers can reach.
    NoRoutableGid = (Node, "Give the port's interface an IPv4 or a global IPv6 address, and enable RoCE version 2 in the driver.");
    /// The MTU of a RoCE port's interface is too small for any RDMA packet.
    MtuTooLow = (Node, "Set the MTU of the interface and of the switch to 4200 or 9000.");
    /// The RoCE ports of a node, or the RDMA ports of the nodes of a cluster, have different MTUs.
    MtuMismatch = (Node, "Set one MTU on the interfaces of all RoCE rails, on every node, and one path MTU for InfiniBand ports in the subnet manager.");
    /// An InfiniBand port is not a full member of any partition. Limited members cannot reach each other.
    PartitionLimited = (Fabric, "Make the port a full member in the partition configuration of the subnet manager.");
    /// The kernel or driver does not respond to a query or a registration of an RDMA device, or to a query of a GPU.
    DeviceHung = (Node, "Take the device out of use, then reload its driver or reboot the node.");
    /// The kernel returns an error for a query of an RDMA device, or the device has failed, was reset or removed.
    DeviceFault = (Node, "Read the kernel log of the device. If the error continues, reload its driver or reboot the node.");
    /// The RDMA device has no memory keys left: its firmware leaks keys of killed programs, and registration fails with EAGAIN.
    MkeyExhausted = (Node, "Move the pods off the node, then reload the driver (mlx5_ib, mlx5_core) or reboot.");
    /// A program registers more memory in one piece than the device allows: registration fails with EIO.
    MrTooLarge = (App, "Configure the program to register smaller pieces. The limit is max_mr_size in ibv_devinfo -v.");
    /// The RDMA device cannot register the size of a pool of the node in one piece.
    MrLimitLow = (App, "Configure programs to register smaller pieces, or not to use RDMA. The limit is limits.maxMrSize of the device in the node's MooncakeInventory. A pool is registered in extents of at most 16Gi: where the limit is lower, use pools of at most the limit, or exclude the device by rdmaDevices of a MooncakeNodePolicy.");
    /// The RDMA device cannot be opened or cannot register memory, and no more specific cause is known.
    RegistrationFailed = (Node, "Read the kernel log of the device. If the error continues, reload its driver or reboot the node.");
    /// A loopback write or read of an RDMA device over an active port fails.
    LoopbackFailed = (Node, "Read the stage in the message. Up to RTR: check GID, address and routing of the port's interface. Later: read the kernel log and reload the driver.");
    /// The RDMA device has few queue pairs left. New connections will soon fail with ENOMEM.
    QueuePairsLow = (App, "Restart the program that the message names. Set MC_ENABLE_DEST_DEVICE_AFFINITY=1 so that stock engines create fewer queue pairs.");
    /// A process allocates more and more queue pairs of an RDMA device. Within a day no program on the node can connect.
    QueuePairsLeaking = (App, "Restart the pod that the message names before then. If its engine keeps the queue pairs of failed transfers, use a later release of the engine.");
    /// The agent cannot probe an RDMA device through verbs, and the cause is not the device.
    VerbsProbeFailed formerly "VerbsUntried" = (Node, "Use the agent image of this release, which contains libibverbs and its drivers. The message has the error.");
    /// The firmware of an RDMA device does not respond to its driver.
    FirmwareStuck = (Node, "Take the device out of use, then reset it (mlxfwreset) or reboot the node.");
    /// A GPU has fallen off the bus.
    GpuLost = (Node, "Drain and reboot the node. If it happens again, check power, temperature and the card.");
    /// The agent cannot query a GPU through NVML or CUDA, and the cause is not known to be the GPU.
    GpuProbeFailed formerly "GpuUnasked" = (Node, "Check that the driver and its libraries have one version (after a driver update: reboot or reload the module) and that /dev/nvidiactl and /dev/nvidia-uvm exist on the node.");
    /// CUDA reports that GPUs connected by NVLink switches are not initialized. No program can use them.
    FabricManagerNotReady = (Node, "Check nvidia-fabricmanager.service on the node: it must have the driver's version and start before any program that uses a GPU.");
    /// A GPU of a node in a ComputeDomain has not joined the NVLink fabric of its rack.
    FabricNotJoined = (Fabric, "Check the Fabric section of nvidia-smi -q on the node, and the fabric manager of the rack (NMX-C). Reset a GPU that has left the fabric.");
    /// No device file exists for an RDMA device, so no program can open it.
    DeviceFileMissing = (Node, "Load the module ib_uverbs, then check /dev/infiniband on the node.");
    /// The agent cannot read a file of the node.
    HostUnreadable = (Node, "Check the path in the message. Facts that depend on it are unknown.");
    /// A kernel module that an existing device requires is not loaded.
    ModuleMissing = (Node, "Load the module with modprobe, and add it to /etc/modules-load.d.");
    /// Programs cannot use the RDMA connection manager.
    RdmaCmMissing = (Node, "Load the module rdma_ucm, then check /dev/infiniband/rdma_cm.");
    /// The PCI Express link of an RDMA device is slower than that of identical devices on the node.
    PciLinkDegraded = (Node, "Reseat the card, or check the BIOS setting of its slot.");
    /// The locked-memory limit of a container is lower than RDMA requires: registration fails with ENOMEM.
    MemlockTooLow = (Node, "Let the pod claim its RDMA devices, which raises the limit. Or set LimitMEMLOCK=infinity for the container runtime and restart it.");
    /// The node has RDMA devices, but a container that may use RDMA can open none. Its engine silently uses another transport.
    HcaNotInPod = (App, "Give the container a ResourceClaim of the DeviceClass hca.mooncake.io (docs/devices.md). If the pod needs no RDMA, set its annotation mooncake.io/transport to tcp and re-create it.");
    /// A container names an RDMA device that the node does not have or that the container cannot open.
    DeviceNameUnknown = (App, "Unset the variable that the message names, so that devices are selected automatically. Or set it to devices that the message lists.");
    /// RDMA settings in a container's environment do not match the node's devices.
    RdmaSettingMismatch formerly "ByHandUnfit" = (App, "Unset the variable that the message names. The correct value is selected automatically for each device.");
    /// The limit of memory mappings per process is too low to register much memory.
    MapCountTooLow = (Node, "Run sysctl -w vm.max_map_count=1048576, and add it to /etc/sysctl.d, or let the fix MaxMapCount raise it.");
    /// The node has fewer hugepages than its pools require.
    HugepagesInsufficient formerly "HugepagesShort" = (Node, "Reserve the number in the message (vm.nr_hugepages) and restart the kubelet, or reduce the size of the pool.");
    /// The environment of an engine configures more hugepages than its container's limit, or than the node has besides its pools.
    PodHugepagesInsufficient formerly "PodHugepagesShort" = (App, "Set the container's limit for the hugepage resource (resources.limits) and reserve as many on the node, or reduce or unset the variable that the message names. Then re-create the pod.");
    /// The environment of an engine configures hugepages, and the engine uses none although they are free.
    HugepagesUnused formerly "HugepagesNotTaken" = (App, "Set or unset the variables that the message names, if any, and re-create the pod: an engine requests hugepages only when it starts.");
    /// A NUMA node has fewer hugepages than its share of the pools.
    HugepagesUneven = (Node, "Reserve hugepages per NUMA node in /sys/devices/system/node/node*/hugepages.");
    /// The range of ephemeral ports is small.
    EphemeralPortsLow = (Node, "Run sysctl -w net.ipv4.ip_local_port_range='1024 65535', without the ports that services listen on. For a pod, use its securityContext.sysctls.");
    /// Closed connections in TIME_WAIT occupy most of the ephemeral ports.
    EphemeralPortsBusy = (Node, "Find the program that opens so many connections. For the connecting side, set sysctl -w net.ipv4.tcp_tw_reuse=1 in its network namespace.");
    /// RDMA devices cannot access the memory of the node's GPUs.
    GpuDirectUnavailable = (Node, "Load nvidia_peermem, or install the open kernel modules of the GPU driver.");
    /// An RDMA device cannot register GPU memory, or a transfer to GPU memory and back fails.
    GpuDirectFailed = (Node, "Read stage and method in the message. Registration requires nvidia_peermem, or GPU and RDMA drivers that support dma-buf. For later stages, check the kernel log, PCIe access control (ACS) and the IOMMU.");
    /// The RDMA device nearest to a GPU cannot be used.
    GpuRailLost = (Node, "Repair the device that the message names. Until then, traffic of the GPU takes a longer PCIe path.");
    /// The GPU driver has no IMEX channels, so memory cannot be shared with other nodes.
    ImexUnsupported = (Node, "Install a GPU driver with IMEX, or keep ComputeDomains off the node.");
    /// The host runs its own IMEX service, which conflicts with that of a ComputeDomain.
    HostImexConfigured = (Node, "Stop and disable nvidia-imex.service, and remove /etc/nvidia-imex/nodes_config.cfg.");
    /// The container runtime does not read CDI specifications, so pods start without the RDMA devices that they claim.
    CdiDisabled formerly "CdiUnread" = (Node, "Set enable_cdi = true in the runtime's configuration, add the agent's directory (agent.devices.cdiDir) to its cdi_spec_dirs, and restart the runtime.");
    /// The RDMA subsystem of the node's kernel is in exclusive network namespace mode, so a device that a pod claims is not visible in the pod.
    RdmaNetnsExclusive nearest "HcaNotInPod" = (Node, "Add options ib_core netns_mode=1 to /etc/modprobe.d, remove what sets the mode (rdma system set netns exclusive), and reboot the node: rdma system set netns shared is rejected while pods have network namespaces.");
    /// The API server does not serve resource.k8s.io/v1, so RDMA devices cannot be claimed.
    DeviceApiMissing = (Cluster, "Use Kubernetes 1.35 or later, or set agent.devices.enabled to false.");
    /// The kubelet does not register the agent's DRA plugin.
    KubeletRefused = (Node, "Read the kubelet's message in the agent's log, and check agent.devices.kubeletDir.");
    /// A ResourceClaim requests something that the agent does not provide, or is not the claim that the kubelet named.
    ClaimInvalid = (App, "Change the claim as the message describes, and re-create the pod.");
    /// An RDMA device that is allocated to a claim does not exist on the node, or cannot be opened.
    DeviceMissing = (Node, "Check the node's MooncakeInventory. Delete the pod, so that another device is allocated.");
    /// An RDMA device that is allocated to a claim is still prepared for another claim.
    DeviceBusy = (Node, "Find out why the pod of the other claim does not terminate on the node.");
    /// A check of the agent reports that an RDMA device allocated to a claim is unhealthy. It is not prepared for new claims. Pods that have it keep it.
    DeviceUnhealthy formerly "DeviceSick" = (Node, "Read the findings of the device (kubectl describe mooncakenode). Delete the pod, so that another device is allocated.");
    /// The agent cannot write its record of prepared devices or the CDI specification.
    DeviceRecordFailed = (Node, "Check the path in the message: the disk is full, read-only or broken.");
    /// A check of the agent panicked. This is a defect of the agent, not of the node.
    CheckPanicked formerly "CheckBroken" = (Engine, "Report the defect with the message and a recording (kubectl -n mooncake-system exec AGENT_POD -- /agent record --help).");
    /// The agent would apply a fix on the node, and the policy allows a dry run only.
    FixProposed = (Cluster, "Set the mode of the fix to Apply in the MooncakeNodePolicy, or apply the fix manually.");
    /// The agent has applied a fix on the node, as the policy specifies.
    FixApplied = (Cluster, "Nothing to do. The fix is reverted when the policy no longer contains it.");
    /// A fix has ended: the policy no longer contains it, or the node no longer needs it.
    FixEnded = (Cluster, "Nothing to do.");
    /// The node rejects a fix that the policy contains.
    FixRefused = (Node, "Read the error in the message. Apply the fix manually on the node, or remove it from the MooncakeNodePolicy.");
    /// The memory that the requests of the node's pods leave free is not known yet. Hugepages are reserved from that memory only.
    PodRequestsUnknown = (Cluster, "Wait. If this continues, read the log of the operator, which sums the requests of the node's pods.");
    /// The agent has reserved hugepages, but the kubelet, which counts them only when it starts, does not allocate them to pods yet.
    KubeletRestartRequired = (Node, "Restart the kubelet on the node: systemctl restart kubelet. Pods keep running.");
    /// Hugepages that no policy requires any more are in use. They are released when they become free.
    HugepagesInUse = (App, "End the pods that use them, or leave them reserved.");
    /// IPv6 stays enabled on an interface although no policy requires it any more, because processes have queue pairs of its RDMA device.
    Ipv6InUse = (App, "End the processes that use the device, or leave IPv6 enabled.");
    /// The engine of a hostNetwork pod listens on ports outside hostPorts of the node's MooncakeNodePolicy. A firewall may drop connections to it.
    HostPortMismatch formerly "HostPortsDiffer" = (App, "Set MC_MIN_RPC_PORT and MC_MAX_RPC_PORT in the container as the message describes, or let the webhook set them.");
    /// Another program reverted a fix of the agent. The agent applies it again once a minute.
    FixReverted formerly "FixSetBack" = (Node, "Find the program that reverts it (tuned, a boot script, another DaemonSet), or remove the fix from the MooncakeNodePolicy.");
    /// The operator has cordoned a node with unhealthy RDMA devices, as a MooncakeNodePolicy specifies.
    NodeCordoned = (Node, "Repair the devices that the message names. The node is uncordoned when they are healthy. To keep it cordoned, remove the annotation mooncake.io/cordoned.");
    /// The operator has uncordoned a node that it had cordoned.
    NodeUncordoned = (Cluster, "Nothing to do.");
    /// The operator requests a repair of the RDMA devices of a cordoned node from other tools.
    RepairRequested = (Node, "Run a tool that watches the annotation mooncake.io/repair-requested, or do the named repair manually.");
    /// A node with unhealthy RDMA devices is not cordoned, because the MooncakeNodePolicy's limit of cordoned nodes is reached.
    CordonLimitReached formerly "CordonBudgetSpent" = (Cluster, "Repair the cordoned nodes, or increase spec.unhealthyDevices.maxNodes.");
    /// More than half of a policy's nodes have unhealthy RDMA devices, so no further node is cordoned: the cause is probably common to them.
    MostNodesUnhealthy formerly "MostNodesSick" = (Fabric, "Check what the nodes share: fabric, driver, firmware, or the agent's release. Cordon nodes manually where necessary.");
    /// A transport works, but less well than expected: the path to a peer is much slower than a network is, or RDMA that a cluster prefers is not proved on every storing node.
    TransportDegraded = (Fabric, "For a path: check it for packet loss (ip -s link, ethtool -S), for a different MTU, and for a saturated link. For a cluster: repair RDMA on the nodes that the message names, exclude them by the nodeSelector of the pools, or set spec.transports.rdma to Forbid.");
    /// The DNS name of a master does not resolve on the node.
    NameNotResolved = (Cluster, "Check the cluster's DNS pods and the path from this node to their Service. The message names resolver, name and error.");
    /// The node's clock differs from the API server's.
    ClockSkewed = (Node, "Synchronize the node's clock with NTP (chronyc tracking, timedatectl). If every node reports this, check the API server's clock.");
    /// A peer could not be reached.
    PeerUnreachable = (Fabric, "Check the named address, its port and the NetworkPolicies on the path.");
}

impl Reason {
    /// Returns who can remove the cause.
    pub fn owner(self) -> Owner {
        self.row().0
    }

    /// Returns what to do, in one line.
    pub fn remedy(self) -> &'static str {
        self.row().1
    }

    /// Returns the link to the documentation.
    pub fn docs_anchor(self) -> String {
        format!("docs/reasons.md#{}", self.as_str().to_ascii_lowercase())
    }
}
