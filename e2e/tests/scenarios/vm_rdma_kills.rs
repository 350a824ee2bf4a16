//! SIGKILLs of stock clients and of the engine process during transfers over RDMA: what the kernel counts for the device
//! afterwards, and whether the data is right. `vm_rdma_pool` runs this on its machine.

use anyhow::{Context, ensure};
use mooncake_e2e::scenario::{Pool, Seen, StockPod, StockWork, eventually};
use std::time::{Duration, Instant};

use super::vm_node::{SLOW, VmNode};

const PROGRAM: &str = include_str!("../workload/rdma_clients.py");
const KEYS: u32 = 4;
const BYTES: u64 = 1 << 20;
/// Equal values of both kinds of keys that a client has got before it or the engine process is killed.
const VERIFIED: u32 = 4;
/// Queue pairs of a connection of a stock engine, on each side.
const PAIRS: u32 = 2;
/// Time limit for the device to have the expected objects again, also those of the next engine process.
const RETURNED: Duration = Duration::from_secs(90);
/// The pod of the clients.
const POD: &str = "clients";

/// What the kernel counts for the device, and the process that serves the pool.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Device {
    /// As in `pd 2 cq 3 qp 1 cm_id 0 mr 1 ctx 1 srq 0`.
    objects: String,
    engine: String,
}

/// Kills engine processes of the pool, then clients, and deletes the pod of the clients.
pub(super) async fn kill_engines_and_clients(vm: &VmNode, pool: &Pool) -> anyhow::Result<()> {
    let scale = vm.product.scale;
    let engines = scale.of("SIGKILLs of an engine process during RDMA", 2, 200);
    let clients = scale.of("SIGKILLs of a client during RDMA", 2, 200);
    // One queue pair is the kernel's own. A connection of a deleted pod has ended when its address is not admitted any more.
    let idle = device(vm, "a device without connections", SLOW, |now| {
        now.objects.contains(" qp 1 ")
    })
    .await?;
    let work = StockWork::Program {
        text: PROGRAM,
        arguments: vec![KEYS.to_string(), BYTES.to_string()],
    };
    let pod = StockPod::new(POD, work).inject(&pool.name);
    pod.node(&vm.node.name).start(&vm.namespace).await?;
    eventually("the pod of the clients to run", SLOW, || async {
        vm.run("pgrep -x rdma-clients").await.map(Seen::Done)
    })
    .await?;

    let mut engine = idle.engine.clone();
    let (mut busy, started) = (String::new(), Instant::now());
    for round in 1..=engines {
        busy = client(vm).await?;
        // On Soft-RoCE a stock client does not notice the end of its peer (docs/decisions/verbs-transport.md).
        vm.run(&format!("kill -9 {engine} $(pgrep -x rdma-client)"))
            .await?;
        let what = format!(
            "{} after {busy} and kill {round} of an engine",
            idle.objects
        );
        let next = |now: &Device| now.objects == idle.objects && now.engine != engine;
        engine = device(vm, &what, RETURNED, next).await?.engine;
    }
    println!(
        "{engines} engine processes with {busy} killed in {:?}, after each {}",
        started.elapsed(),
        idle.objects
    );
    let (mut left, started) = (idle.objects.clone(), Instant::now());
    let mut ports = 0;
    for round in 1..=clients {
        busy = client(vm).await?;
        vm.run("kill -9 $(pgrep -x rdma-client)").await?;
        // The device of the pool gets no sign of a peer's end: it keeps the connection as long as the address is admitted. A
        // client whose random port another one had replaces the connection of that one.
        let pairs = format!(" qp {} ", 1 + PAIRS * (ports + 1));
        let more = idle.objects.replace(" qp 1 ", &pairs);
        let what = format!("{left} or {more} after {busy} and kill {round} of a client");
        let after = device(vm, &what, RETURNED, |now| {
            (now.objects == left || now.objects == more) && now.engine == engine
        })
        .await?;
        ports += u32::from(after.objects == more);
        left = after.objects;
    }
    ensure!(ports > 0, "no client had a connection");
    println!(
        "{clients} clients with {busy}, with {ports} different ports, killed in {:?}, after the last {left}",
        started.elapsed()
    );
    vm.namespace
        .kubectl(&["delete", "pod", POD, "--grace-period=1"])
        .await?;
    let what = format!("{} without the pod of the clients", idle.objects);
    device(vm, &what, RETURNED, |now| {
        now.objects == idle.objects && now.engine == engine
    })
    .await?;
    Ok(())
}

/// Starts the next client, waits until it has compared the keys of its predecessors and transfers, and returns the objects of the
/// device.
async fn client(vm: &VmNode) -> anyhow::Result<String> {
    vm.run("pid=$(pgrep -x rdma-clients) && rm -f /proc/$pid/root/tmp/verified && kill -USR1 $pid")
        .await?;
    let script = "cat /proc/$(pgrep -x rdma-clients)/root/tmp/verified && rdma resource show rxe0";
    eventually("a client to get its values", SLOW, || async {
        let text = vm.run(script).await?;
        let (verified, objects) = text.split_once("0: rxe0: ").with_context(|| text.clone())?;
        let enough = verified.trim().parse::<u32>()? >= VERIFIED;
        Ok(Seen::when(enough.then(|| objects.trim().to_owned()), &text))
    })
    .await
}

/// Waits until the device `is` as expected while no check of the agent has it open.
async fn device(
    vm: &VmNode,
    what: &str,
    deadline: Duration,
    is: impl Fn(&Device) -> bool,
) -> anyhow::Result<Device> {
    let script =
        "! pgrep -x verbs && rdma resource show rxe0 && pgrep -x engine && ! pgrep -x verbs";
    eventually(what, deadline, || async {
        let text = vm.run(script).await?;
        let now = text.split_once("0: rxe0: ").and_then(|(_, text)| {
            let (objects, engine) = text.trim().split_once('\n')?;
            Some(Device {
                objects: objects.trim().to_owned(),
                engine: engine.trim().to_owned(),
            })
        });
        let now = now.with_context(|| text.clone())?;
        Ok(Seen::when(is(&now).then(|| now.clone()), &text))
    })
    .await
}
