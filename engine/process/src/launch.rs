//! The start of an engine process: what needs rights or files first, then the sandbox, then everything else.

use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::Arc;

use anyhow::Context as _;
use engine::{Engine, NumaNode, OpenedDevice};
use parking_lot::Mutex;
use rustix::pipe::PipeFlags;
use rustix::process::{Resource, Rlimit};
use sys::net::{Namespace, seqpacket};
use sys::sandbox::{self, Devices};
use sys::verbs;
use tokio::sync::{mpsc, watch};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Layer as _};

use crate::args::{Identity, Serve};
use crate::control::agent::{Agent, Connected};
use crate::control::link::Link;
use crate::control::silence::Silence;
use crate::control::succession::Inherited;
use crate::log::Lines;
use crate::pidfd::Pidfd;
use crate::{pod, start};

/// Most bytes that the process may write into a file: the message of a panic.
const FILE_LIMIT: u64 = 64 << 10;

/// Most descriptors: connections of peers, and few others.
const DESCRIPTORS: u64 = 65_536;

/// Calls of the agent that may wait at once; the tasks of one pod make one or two.
const CALLS: usize = 16;

/// What is read or opened before the sandbox.
struct Opened {
    listener: OwnedFd,
    /// For the message of a panic, or of an error after standard error is closed.
    end_message: Arc<Mutex<File>>,
    pool: Pidfd,
    numa_nodes: Vec<NumaNode>,
    memory_nodes: Vec<u32>,
}

/// Serves a pool pod until its pool process has ended.
///
/// # Errors
/// What cannot be opened or entered. They are written to standard error; later ones go to the agent's log.
pub fn serve(settings: Serve) -> anyhow::Result<()> {
    // A process that was started by its loader has the name of the loader.
    rustix::thread::set_name(c"engine")?;
    let opened = open(&settings)?;
    let (opened_devices, left_out) = sandbox::isolate_after(|| enter_network(&settings))??;
    // The credentials that an agent sees are those of the caller of listen.
    seqpacket::start_listening(&opened.listener, 1).context("cannot listen for agents")?;
    let lines = Lines::default();
    let filter = EnvFilter::try_new(&settings.log)?;
    tracing_subscriber::registry()
        .with(lines.clone().with_filter(filter))
        .init();
    for error in &left_out {
        tracing::error!(
            "the pool is served without an RDMA device until this process is replaced: {error}"
        );
    }
    // The agent reads standard error until it is closed. From then on nothing of the agent is held.
    let stderr = detach_output()?;
    let devices = if opened_devices.is_empty() {
        Devices::None
    } else {
        Devices::Verbs
    };
    let confined = confine(settings.identity, devices);
    if let Err(error) = &confined {
        writeln!(File::from(stderr), "{error:#}")?;
    } else {
        drop(stderr);
    }
    confined?;
    let end_message = Arc::clone(&opened.end_message);
    let ended = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?
        .block_on(run(settings, opened, (opened_devices, left_out), lines));
    if let Err(error) = &ended {
        writeln!(end_message.lock(), "{error:#}")?;
    }
    ended
}

/// Gives up all rights for good.
pub(crate) fn confine(identity: Identity, devices: Devices) -> anyhow::Result<()> {
    let identity = sandbox::Identity {
        uid: identity.uid,
        gid: identity.uid,
    };
    Ok(sandbox::confine(identity, devices)?)
}

/// Replaces the three standard descriptors by the ends of a pipe without a reader; writes fail when it is full. Returns
/// the former standard error.
fn detach_output() -> anyhow::Result<OwnedFd> {
    let stderr = rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stderr(), 3)?;
    let (read, write) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
    rustix::stdio::dup2_stdin(&read)?;
    rustix::stdio::dup2_stdout(&write)?;
    rustix::stdio::dup2_stderr(&write)?;
    Ok(stderr)
}

fn open(settings: &Serve) -> anyhow::Result<Opened> {
    for cgroup in &settings.cgroup {
        let procs = cgroup.join("cgroup.procs");
        std::fs::write(&procs, "0")
            .with_context(|| format!("cannot enter {}", cgroup.display()))?;
    }
    std::fs::write(
        "/proc/self/oom_score_adj",
        settings.oom_score_adj.to_string(),
    )
    .context("cannot set oom_score_adj")?;
    limit(Resource::Nofile, DESCRIPTORS)?;
    let panic_file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(&settings.panic_file)
        .with_context(|| format!("cannot open {}", settings.panic_file.display()))?;
    limit(Resource::Fsize, FILE_LIMIT)?;
    if !settings.rdma.is_empty() {
        // Registered memory counts as locked, and nothing exempts a process without capabilities.
        let unlimited = Rlimit {
            current: None,
            maximum: None,
        };
        if rustix::process::setrlimit(Resource::Memlock, unlimited).is_err() {
            // Without CAP_SYS_RESOURCE. If this is not enough, the device refuses to register the pool.
            limit(Resource::Memlock, u64::MAX)?;
        }
    }
    let end_message = Arc::new(Mutex::new(panic_file));
    report_panics(Arc::clone(&end_message));
    let pool = Pidfd::open(settings.pool_pid).context("the pool process has ended")?;
    let sysfs = Path::new("/sys");
    let numa_nodes = engine::numa_nodes(sysfs);
    let memory_nodes = pod::numa::nodes_with_memory(sysfs);
    let listener = seqpacket::bind_path(&settings.control)
        .with_context(|| format!("cannot bind {}", settings.control.display()))?;
    Ok(Opened {
        listener,
        end_message,
        pool,
        numa_nodes,
        memory_nodes,
    })
}

/// Devices, and the errors of those that could not be opened.
type OpenedDevices = (Vec<OpenedDevice>, Vec<String>);

/// Opens the devices, if any, and enters the network of the pool pod.
fn enter_network(settings: &Serve) -> anyhow::Result<OpenedDevices> {
    let enter = |network: &Path| {
        Namespace::open(network)
            .and_then(|network| network.enter())
            .with_context(|| format!("cannot enter {}", network.display()))
    };
    // The root changes while the devices are opened, and the namespace of the pod is a path of the present one.
    let pod = Namespace::open(&settings.network)
        .with_context(|| format!("cannot open {}", settings.network.display()))?;
    let mut devices = (Vec::new(), Vec::new());
    if let (Some(libraries), Some(node)) = (&settings.libraries, &settings.host_root) {
        if let Some(network) = &settings.host_network {
            enter(network)?;
        }
        let open = || {
            let ports = settings.rdma.iter().map(|port| engine::Port {
                device: port.device.clone(),
                number: port.number,
                gid_index: port.gid,
                class: engine::Class {
                    traffic_class: port.traffic_class,
                    service_level: port.service_level,
                },
            });
            open_each(ports)
        };
        let opened = verbs::in_root(libraries, node, open)
            .with_context(|| format!("cannot use {} as the root", libraries.display()))?;
        devices = opened?;
    }
    pod.enter()
        .with_context(|| format!("cannot enter {}", settings.network.display()))?;
    Ok(devices)
}

/// Opens devices one after the other. Those that cannot be opened are left out.
///
/// # Errors
/// Why none could be opened.
fn open_each(ports: impl Iterator<Item = engine::Port>) -> anyhow::Result<OpenedDevices> {
    let (mut devices, mut left_out) = (Vec::new(), Vec::new());
    for port in ports {
        // It is for the agent only if this call blocks.
        let _ = std::io::stderr().write_all(start::opening(&port.device).as_bytes());
        match OpenedDevice::open(port) {
            Ok(device) => devices.push(device),
            Err(error) => left_out.push(error.to_string()),
        }
    }
    anyhow::ensure!(
        !devices.is_empty() || left_out.is_empty(),
        "no RDMA device could be opened: {}",
        left_out.join("; ")
    );
    Ok((devices, left_out))
}

/// Sets soft and hard limit, or the highest that is allowed.
fn limit(resource: Resource, wanted: u64) -> anyhow::Result<()> {
    let now = rustix::process::getrlimit(resource);
    let value = now.maximum.map_or(wanted, |most| most.min(wanted));
    let limit = Rlimit {
        current: Some(value),
        maximum: Some(value),
    };
    Ok(rustix::process::setrlimit(resource, limit)?)
}

/// A panic ends the process: half of a pool served by threads that are left is worse than a restart.
fn report_panics(file: Arc<Mutex<File>>) {
    std::panic::set_hook(Box::new(move |panic| {
        let thread = std::thread::current();
        let name = thread.name().unwrap_or("unnamed").to_owned();
        // An error of this write cannot be reported.
        let _ = writeln!(file.lock(), "thread {name}: {panic}");
        std::process::abort();
    }));
}

/// Ends the process at once: devices give up its memory keys with it, and a device that hangs would delay any other end.
fn end(file: &Mutex<File>, cause: &str) -> ! {
    // An error of this write cannot be reported.
    let _ = writeln!(file.lock(), "{cause}");
    std::process::abort();
}

async fn run(
    settings: Serve,
    opened: Opened,
    (devices, left_out): OpenedDevices,
    lines: Lines,
) -> anyhow::Result<()> {
    let of_engine = engine::Settings {
        data_threads: settings.data_threads.max(1),
        ..engine::Settings::default()
    };
    let nodes = &opened.numa_nodes;
    let (engine, protocol) = if devices.is_empty() {
        (Engine::start_on(nodes, of_engine)?, "tcp")
    } else {
        let cards = devices.into_iter().map(OpenedDevice::start);
        let cards = cards.collect::<Result<Vec<_>, _>>()?;
        (Engine::start_rdma_on(nodes, of_engine, &cards)?, pod::RDMA)
    };
    let (calls, called) = mpsc::channel(CALLS);
    let (report, reported) = watch::channel(None);
    let (assignment, assigned) = watch::channel(None);
    let (admitted, admission) = watch::channel(None);
    let connected = Connected::default();
    let counted = Arc::new(Mutex::new(None));
    let inherited = Inherited::default();
    let link = Link {
        listener: opened.listener,
        calls: called,
        report: reported,
        assignment,
        admitted,
        connected: Arc::clone(&connected),
        counted: Arc::clone(&counted),
        silence: Silence::default(),
        lines,
        engine: engine.clone(),
        inherited: Arc::clone(&inherited),
        rdma: settings.rdma,
    };
    let context = pod::Context {
        node_name: settings.node_name,
        uid: settings.pod_uid,
        memory_nodes: opened.memory_nodes,
        pool: opened.pool,
        engine,
        protocol,
        left_out,
        agent: Agent::new(calls, report, connected),
        counted,
        inherited,
    };
    let end_message = opened.end_message;
    let serve = async move {
        if let Err(failure) = pod::run(context, assigned, admission).await {
            end(&end_message, &failure.message);
        }
    };
    tokio::select! {
        linked = link.run() => linked.context("the control socket failed"),
        () = serve => Ok(()),
    }
}
