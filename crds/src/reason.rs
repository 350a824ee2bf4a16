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
    /// No node matches a pool's node selector and tolerations.
    NoNodeMatches, Cluster, "Label a node as the pool's nodeSelector asks, or change the selector.";
    /// A pool pod cannot be scheduled; the message has the scheduler's own words.
    PoolPodPending, Cluster, "Make room on the named node, or lower the pool's size.";
    /// A pool pod runs but does not serve yet.
    PoolPodNotReady, Node, "See the message of that node's MooncakeNode.";
    /// No transport that the spec allows is proven on every storing node.
    NoUsableTransport, Fabric, "Allow another transport, or repair the named one.";
    /// A Kubernetes API call failed.
    ApiFailed, Cluster, "See the message; the operator tries again by itself.";

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
    /// The pool process could not make its memory.
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

    /// A labelled pod was not injected.
    NotInjected, Cluster, "Recreate the pod; see its annotation mooncake.io/injection-skipped or the webhook.";
    /// The pod's namespace is not in the cluster's allowedNamespaces.
    NamespaceNotAllowed, Cluster, "Add the namespace to spec.access.allowedNamespaces.";
    /// The pod uses the host's network and the cluster does not allow that.
    HostNetworkNotAllowed, Cluster, "Set spec.access.allowHostNetwork, or leave the host's network.";
    /// The gate of an injected pod is still waiting.
    GateWaiting, Cluster, "Wait; the message says for what.";
    /// The gate gave up waiting and let the pod start, or failed it, as the spec says.
    GateTimedOut, Cluster, "See which peer the message names.";
    /// A segment name is not known to the master.
    SegmentUnknown, Engine, "See the near names in the message: the owner is dead, restarted or never existed.";
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
