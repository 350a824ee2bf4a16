//! What the checks say of what GPUs told when they were asked by NVML and CUDA: one answer changed, and what is
//! found then.

use crds::{CheckId, Reason, Verdict};

use super::verdicts::{Becomes, Case, domain, nothing};

use Becomes::Text;
use Verdict::{Fail, Unknown};

const PATH: &str = "run/mooncake/gpu/0008:01:00.0";
const SUBJECT: &str = "GPU 0008:01:00.0";

pub(crate) const CASES: &[Case] = &[
    Case {
        check: CheckId::GpuAnswers,
        machine: "gb200",
        wanted: nothing,
        path: PATH,
        becomes: Text(r#"{"facts":null,"failed":null,"hung":"Nvml"}"#),
        verdict: Fail,
        reason: Reason::DeviceHung,
        subject: SUBJECT,
    },
    Case {
        check: CheckId::GpuAnswers,
        machine: "gb200",
        wanted: nothing,
        path: PATH,
        becomes: Text(
            r#"{"facts":null,"failed":{"stage":"Find","number":15,"words":"GPU is lost (15)"},"hung":null}"#,
        ),
        verdict: Fail,
        reason: Reason::GpuLost,
        subject: SUBJECT,
    },
    Case {
        check: CheckId::GpuAnswers,
        machine: "gb200",
        wanted: nothing,
        path: PATH,
        becomes: Text(
            r#"{"facts":null,"failed":{"stage":"Cuda","number":802,"words":"system not yet initialized (802)"},"hung":null}"#,
        ),
        verdict: Fail,
        reason: Reason::FabricManagerNotReady,
        subject: SUBJECT,
    },
    Case {
        check: CheckId::GpuAnswers,
        machine: "gb200",
        wanted: nothing,
        path: PATH,
        becomes: Text(
            r#"{"facts":null,"failed":{"stage":"Nvml","number":18,"words":"Driver/library version mismatch (18)"},"hung":null}"#,
        ),
        verdict: Unknown,
        reason: Reason::GpuUnasked,
        subject: SUBJECT,
    },
    Case {
        check: CheckId::GpuDirectProof,
        machine: "dgx-h100",
        wanted: nothing,
        path: "run/mooncake/gpu-rdma/0000:1c:00.0",
        becomes: Text(
            r#"[{"device":"mlx5_0","reached":{"Failed":{"proof":{"device":"mlx5_0","way":"PeerMemory","micros":null,"failed":{"stage":"Compare","number":null,"words":"65536 of 65536 bytes differ"}}}}},{"device":"mlx5_3","reached":{"Unproved":{"why":"a container holds the GPU"}}}]"#,
        ),
        verdict: Fail,
        reason: Reason::GpuDirectFailed,
        subject: "mlx5_0 and GPU 0000:1c:00.0",
    },
    Case {
        check: CheckId::Imex,
        machine: "gb200",
        wanted: domain,
        path: PATH,
        becomes: Text(
            r#"{"facts":{"uuid":"GPU-7","name":"NVIDIA GB200","driver":"570.172.08","fabric":{"state":2,"status":0,"cluster":null,"clique":0},"processes":0,"divided":false,"cuda":null},"failed":null,"hung":null}"#,
        ),
        verdict: Fail,
        reason: Reason::FabricNotJoined,
        subject: SUBJECT,
    },
];
