//! Findings from answers of the GPU probe: one answer changed in each case.

use crds::{CheckId, Reason, Verdict};

use super::findings::{Becomes, Case, domain, no_inputs};

use Becomes::Text;
use Verdict::{Fail, Unknown};

const PATH: &str = "run/mooncake/gpu/0008:01:00.0";
const SUBJECT: &str = "GPU 0008:01:00.0";

pub(crate) const CASES: &[Case] = &[
    Case {
        check: CheckId::GpuResponsive,
        machine: "gb200",
        inputs: no_inputs,
        path: PATH,
        becomes: Text(r#"{"facts":null,"failed":null,"hung":"Nvml"}"#),
        verdict: Fail,
        reason: Reason::DeviceHung,
        subject: SUBJECT,
    },
    Case {
        check: CheckId::GpuResponsive,
        machine: "gb200",
        inputs: no_inputs,
        path: PATH,
        becomes: Text(
            r#"{"facts":null,"failed":{"stage":"Find","number":15,"words":"GPU is lost (15)"},"hung":null}"#,
        ),
        verdict: Fail,
        reason: Reason::GpuLost,
        subject: SUBJECT,
    },
    Case {
        check: CheckId::GpuResponsive,
        machine: "gb200",
        inputs: no_inputs,
        path: PATH,
        becomes: Text(
            r#"{"facts":null,"failed":{"stage":"Cuda","number":802,"words":"system not yet initialized (802)"},"hung":null}"#,
        ),
        verdict: Fail,
        reason: Reason::FabricManagerNotReady,
        subject: SUBJECT,
    },
    Case {
        check: CheckId::GpuResponsive,
        machine: "gb200",
        inputs: no_inputs,
        path: PATH,
        becomes: Text(
            r#"{"facts":null,"failed":{"stage":"Nvml","number":18,"words":"Driver/library version mismatch (18)"},"hung":null}"#,
        ),
        verdict: Unknown,
        reason: Reason::GpuProbeFailed,
        subject: SUBJECT,
    },
    Case {
        check: CheckId::GpuDirectProof,
        machine: "dgx-h100",
        inputs: no_inputs,
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
        inputs: domain,
        path: PATH,
        becomes: Text(
            r#"{"facts":{"uuid":"GPU-7","name":"NVIDIA GB200","driver":"570.172.08","fabric":{"state":2,"status":0,"cluster":null,"clique":0},"processes":0,"divided":false,"cuda":null},"failed":null,"hung":null}"#,
        ),
        verdict: Fail,
        reason: Reason::FabricNotJoined,
        subject: SUBJECT,
    },
];
