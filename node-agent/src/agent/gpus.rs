//! Asks each GPU who it is and what it can do, and proves RDMA devices against its memory while nobody uses it,
//! by the program `gpu`: rarely, as asking wakes it, and one after the other. A child that is held by its GPU
//! is left alone, and followed by none until the kernel lets go.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use nvidia::{Answer, Pair, Proof, Question, Stage};
use tokio::process::{Child, Command};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::assignments::Assignments;
use super::child::{self, Blind};
use super::hardware::Known;
use crate::host::Facts;
use crate::host::gpu::Gpu;
use crate::host::round::Node;

/// Between two questions to one that is well and has not changed.
const PERIOD: Duration = Duration::from_secs(600);

/// Between two to one that is not.
const RETRY: Duration = Duration::from_secs(60);

/// How long a GPU may take: one that sleeps is set up for seconds, and CUDA after it.
const PATIENCE: Duration = Duration::from_secs(20);

/// How long a child may take, which tells in time what it is held by.
const DEADLINE: Duration = Duration::from_secs(26);

/// How long one that has answered may take to end.
const END: Duration = Duration::from_secs(1);

/// How long what is known of the node is held back for what its GPUs tell first: an inventory without it
/// would be written, and one with it a minute later.
const FIRST: Duration = Duration::from_secs(20);

mod kubelet;
mod pairs;

use pairs::Pairs;

/// What is said of a pair whose GPU somebody else decides on.
const UPGRADING: &str = "an upgrade of the GPU driver is announced on the Node";
const UNTOLD: &str = "the operator has not said yet whether the GPU driver is to be exchanged";
const HELD: &str = "a container holds the GPU, or may, as the kubelet says";

const NOT_HERE: &str =
    "it is tried by the agent that works on the node alone, which knows who uses the GPU";

/// The program beside this one; none where an agent is run without it.
pub(crate) fn program() -> Option<PathBuf> {
    let program = std::env::current_exe().ok()?.with_file_name("gpu");
    program.is_file().then_some(program)
}

/// The facts, with what each GPU told. A node that is recorded is not asked.
pub(crate) fn watch(
    program: Option<PathBuf>,
    node: Node,
    kubelet: &Path,
    assigned: watch::Receiver<Assignments>,
    seen: Known,
) -> Known {
    let recorded = node.root.is_file();
    let Some(program) = program.filter(|_| !recorded) else {
        if !recorded {
            tracing::info!("no program `gpu` beside the agent: no GPU is asked");
        }
        return seen;
    };
    let (tell, known) = watch::channel(None);
    let kubelet = kubelet.strip_prefix("/").unwrap_or(kubelet);
    let socket = node.root.join(kubelet).join(kubelet::SOCKET);
    let asker = Asker {
        program,
        node,
        socket,
        assigned,
    };
    tokio::spawn(keep(asker, seen, tell));
    known
}

/// What asking takes.
struct Asker {
    program: PathBuf,
    node: Node,
    /// The kubelet's, on which it says what containers hold.
    socket: PathBuf,
    assigned: watch::Receiver<Assignments>,
}

impl Asker {
    /// Whether the GPU driver is to be exchanged; none before the operator has spoken.
    fn upgrading(&self) -> Option<bool> {
        let assigned = self.assigned.borrow();
        assigned.spec().map(|spec| spec.gpu_driver_upgrade)
    }
}

/// What is known of all GPUs, by their PCI addresses.
#[derive(Default)]
struct Gpus {
    known: BTreeMap<String, Told>,
    pairs: Pairs,
    /// One that has not ended, and the GPU that holds it.
    held: Option<(Child, String)>,
}

/// What is known of one.
#[derive(Default)]
struct Told {
    asked: Option<Asked>,
    answer: Option<Answer>,
}

/// The last question to a GPU.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Asked {
    at: Instant,
    /// Version of the driver then.
    driver: String,
    well: bool,
}

/// True where a GPU is to be asked. Pure.
fn is_due(asked: Option<&Asked>, driver: &str, now: Instant) -> bool {
    let Some(asked) = asked.filter(|asked| asked.driver == driver) else {
        return true;
    };
    let wait = if asked.well { PERIOD } else { RETRY };
    now.saturating_duration_since(asked.at) >= wait
}

fn is_well(answer: &Answer) -> bool {
    answer.failed.is_none() && answer.hung.is_none()
}

fn has_libraries(answer: &Answer) -> bool {
    let failed = answer.failed.as_ref();
    failed.is_none_or(|failed| failed.stage != Stage::Absent)
}

/// Those that NVIDIA's driver holds, with its version.
fn driven(facts: &Facts) -> impl Iterator<Item = (&Gpu, &str)> {
    let driver = facts.gpu_driver.as_ref();
    let gpus = facts.gpus.iter().filter(|gpu| gpu.name.is_some());
    gpus.filter_map(move |gpu| Some((gpu, driver?.version.as_str())))
}

impl Gpus {
    /// The next to be asked; none while a child is held. What is known of those that are gone is forgotten.
    fn next(&mut self, facts: &Facts, node: &Node, now: Instant) -> Option<Order> {
        self.let_go(facts);
        if self.held.is_some() {
            return None;
        }
        let due = driven(facts).find(|(gpu, driver)| {
            let told = self.known.get(&gpu.pci.address);
            is_due(told.and_then(|told| told.asked.as_ref()), driver, now)
        });
        let (gpu, driver) = due?;
        Some(self.order(gpu, driver, question(node, &gpu.pci.address)))
    }

    /// The next pair to be proved, likewise; `facts` are those that GPUs have told.
    fn next_pair(&mut self, facts: &Facts, node: &Node, now: Instant) -> Option<Order> {
        self.let_go(facts);
        if self.held.is_some() {
            return None;
        }
        let (gpu, pair) = self.pairs.next(facts, driven(facts), now)?;
        let driver = facts.gpu_driver.as_ref()?.version.as_str();
        let question = Question {
            pair: Some(pair),
            ..question(node, &gpu.pci.address)
        };
        Some(self.order(gpu, driver, question))
    }

    fn order(&self, gpu: &Gpu, driver: &str, question: Question) -> Order {
        let before = self.known.get(&gpu.pci.address);
        let before = before.and_then(|told| told.answer.as_ref()?.facts.as_ref());
        let uuid = before.map(|facts| facts.uuid.clone());
        Order {
            question,
            uuid: uuid.or_else(|| gpu.uuid.clone()),
            driver: driver.to_owned(),
        }
    }

    /// Looks whether a child that was held has ended, and forgets GPUs that are gone.
    fn let_go(&mut self, facts: &Facts) {
        let ended = |(child, _): &mut (Child, _)| matches!(child.try_wait(), Ok(Some(_)));
        if let Some((_, address)) = self.held.take_if(ended)
            && let Some(told) = self.known.get_mut(&address)
        {
            // What it was held by is over: how it is now is not known.
            told.asked = None;
        }
        self.known
            .retain(|address, _| driven(facts).any(|(gpu, _)| gpu.pci.address == *address));
    }

    fn note(&mut self, mut reply: Reply, now: Instant) {
        if let Some(pair) = reply.pair.take() {
            let proof = reply.answer.as_mut().and_then(|answer| answer.proof.take());
            self.note_pair(&reply, &pair, proof, now);
            if reply.barred.is_some() {
                return;
            }
        }
        let told = self.known.entry(reply.gpu.clone()).or_default();
        let same = told
            .asked
            .as_ref()
            .is_some_and(|asked| asked.driver == reply.driver);
        let before = told.answer.take().and_then(|answer| answer.facts);
        told.asked = Some(Asked {
            at: now,
            driver: reply.driver,
            well: reply.answer.as_ref().is_some_and(is_well),
        });
        told.answer = reply.answer.map(|mut answer| {
            // They stay while GPU and driver do; one that is sick now may tell none, and of one that is in use
            // CUDA is not asked.
            let before = before.filter(|_| same);
            let can = before.as_ref().and_then(|facts| facts.cuda);
            answer.facts = answer.facts.or(before);
            if let Some(facts) = answer.facts.as_mut().filter(|facts| !facts.divided) {
                facts.cuda = facts.cuda.or(can);
            }
            answer
        });
        if let Some(child) = reply.held {
            self.held = Some((child, reply.gpu));
        }
    }

    /// What came of one pair.
    fn note_pair(&mut self, reply: &Reply, pair: &Pair, proof: Option<Proof>, now: Instant) {
        let (gpu, driver) = (&reply.gpu, &reply.driver);
        if let Some(proof) = proof {
            self.pairs.proved(gpu, driver, proof, now);
            return;
        }
        let answer = reply.answer.as_ref();
        let hung = answer.and_then(|answer| answer.hung);
        let failed = answer.and_then(|answer| answer.failed.as_ref());
        let why = match (&reply.barred, hung, failed) {
            (Some(why), ..) => why.clone(),
            (None, Some(stage), _) => format!("{} does not end", stage.words()),
            (None, None, Some(failed)) => format!("{}: {}", failed.stage.words(), failed.words),
            (None, None, None) => "the program that tries it told nothing".to_owned(),
        };
        self.pairs.barred(gpu, driver, &pair.device, &why, now);
    }

    /// The facts with what the GPUs told that are there, and which RDMA devices reached them.
    fn merged(&self, facts: &Facts) -> Facts {
        let mut facts = facts.clone();
        for gpu in &mut facts.gpus {
            let told = self.known.get(&gpu.pci.address);
            gpu.answer = told.and_then(|told| told.answer.clone());
        }
        let paths = facts.gpus.iter().map(|gpu| {
            let driver = driven(&facts).find(|(driven, _)| driven.pci.address == gpu.pci.address);
            let driver = driver.map(|(_, driver)| driver);
            // Where no GPU was asked, or the node has not the libraries, there is nothing to try it by.
            let driver = driver.filter(|_| gpu.answer.as_ref().is_some_and(has_libraries));
            driver.map_or_else(Vec::new, |driver| self.pairs.of(&facts, gpu, driver))
        });
        let paths: Vec<_> = paths.collect();
        for (gpu, paths) in facts.gpus.iter_mut().zip(paths) {
            gpu.paths = paths;
        }
        facts
    }
}

async fn keep(asker: Asker, mut seen: Known, tell: watch::Sender<Option<Arc<Facts>>>) {
    let mut gpus = Gpus::default();
    let mut asking: JoinSet<Reply> = JoinSet::new();
    let mut first = true;
    loop {
        let looked = tokio::select! {
            changed = seen.changed() => match changed {
                Ok(()) => true,
                Err(_) => return,
            },
            Some(Ok(reply)) = asking.join_next() => {
                gpus.note(reply, Instant::now());
                // Told with the next look, of which there is one every few seconds: an answer is none.
                false
            }
            () = tell.closed() => return,
        };
        let Some(facts) = seen.borrow_and_update().clone() else {
            continue;
        };
        let upgrading = asker.upgrading();
        let start = |gpus: &mut Gpus, asking: &mut JoinSet<Reply>| {
            // Who has opened a GPU keeps its driver from being unloaded.
            if upgrading == Some(true) || !asking.is_empty() {
                return;
            }
            if let Some(order) = gpus.next(&facts, &asker.node, Instant::now()) {
                let program = asker.program.clone();
                asking.spawn(async move { ask(&program, order).await });
            }
        };
        start(&mut gpus, &mut asking);
        if looked && std::mem::take(&mut first) {
            let answers = async {
                while let Some(Ok(reply)) = asking.join_next().await {
                    gpus.note(reply, Instant::now());
                    start(&mut gpus, &mut asking);
                }
            };
            let _ = tokio::time::timeout(FIRST, answers).await;
        }
        // One with a look at most, so that GPUs of which many fail are not busy with proofs.
        if looked && asking.is_empty() && upgrading == Some(false) {
            let told = gpus.merged(&facts);
            if let Some(order) = gpus.next_pair(&told, &asker.node, Instant::now()) {
                asking.spawn(prove(
                    asker.program.clone(),
                    asker.socket.clone(),
                    told,
                    order,
                ));
            }
        }
        gpus.pairs.bar_all(match upgrading {
            Some(true) => Some(UPGRADING),
            Some(false) => None,
            None => Some(UNTOLD),
        });
        if looked {
            tell.send_replace(Some(Arc::new(gpus.merged(&facts))));
        }
    }
}

/// A question to be asked.
struct Order {
    question: Question,
    uuid: Option<String>,
    driver: String,
}

fn question(node: &Node, address: &str) -> Question {
    Question {
        gpu: address.to_owned(),
        pair: None,
        patience: u64::try_from(PATIENCE.as_millis()).unwrap_or(u64::MAX),
        root: Some(node.root.clone()),
        network: node.network.clone(),
    }
}

/// What came of one question.
struct Reply {
    gpu: String,
    driver: String,
    /// None where the program could not be started or told nonsense.
    answer: Option<Answer>,
    held: Option<Child>,
    /// What was to be proved.
    pair: Option<Pair>,
    /// Why the program was not even started for it.
    barred: Option<String>,
}

/// Proves a pair, if no container holds the GPU.
async fn prove(program: PathBuf, socket: PathBuf, facts: Facts, order: Order) -> Reply {
    let uuids = facts.gpus.iter().filter_map(Gpu::known_uuid);
    let others: Vec<&str> = uuids
        .filter(|uuid| Some(*uuid) != order.uuid.as_deref())
        .collect();
    let barred = match (kubelet::pods(&socket).await, &order.uuid) {
        (Ok(pods), Some(uuid)) if !pods.hold(uuid, &others) => None,
        (Ok(_), Some(_)) => Some(HELD.to_owned()),
        (Ok(_), None) => Some("the GPU's UUID is not known".to_owned()),
        (Err(why), _) => Some(format!(
            "the kubelet does not say which GPUs containers hold: {why}"
        )),
    };
    match barred {
        None => ask(&program, order).await,
        Some(why) => Reply {
            gpu: order.question.gpu,
            driver: order.driver,
            answer: None,
            held: None,
            pair: order.question.pair,
            barred: Some(why),
        },
    }
}

async fn ask(program: &Path, order: Order) -> Reply {
    let gpu = order.question.gpu.clone();
    let mut command = Command::new(program);
    command
        .args(serde_json::to_string(&order.question).ok())
        // The environment of a pod may hold what is not a child's. CUDA opens no GPU but this one.
        .env_clear()
        .envs(order.uuid.map(|uuid| ("CUDA_VISIBLE_DEVICES", uuid)));
    let (answer, child) = match child::told::<Answer>(&mut command, DEADLINE).await {
        Ok((answer, child)) => (Some(answer), Some(child)),
        // It tells in time what it is held by; this one did not even come to that.
        Err((Blind::Late(_), child)) => {
            let hung = Answer {
                hung: Some(Stage::View),
                ..Answer::default()
            };
            (Some(hung), child)
        }
        Err((error, child)) => {
            tracing::warn!(%error, gpu, "a GPU could not be asked");
            (None, child)
        }
    };
    let mut held = None;
    if let Some(mut child) = child
        && tokio::time::timeout(END, child.wait()).await.is_err()
    {
        tracing::warn!(
            gpu,
            "the GPU holds who asked it: no GPU is asked until it lets go"
        );
        let _ = child.start_kill();
        held = Some(child);
    }
    Reply {
        gpu,
        driver: order.driver,
        answer,
        held,
        pair: order.question.pair,
        barred: None,
    }
}

/// Asks each GPU of the facts once.
pub(crate) async fn once(program: &Path, node: &Node, facts: &mut Facts) {
    let mut gpus = Gpus::default();
    while let Some(order) = gpus.next(facts, node, Instant::now()) {
        gpus.note(ask(program, order).await, Instant::now());
    }
    gpus.pairs.bar_all(Some(NOT_HERE));
    *facts = gpus.merged(facts);
}

#[cfg(test)]
mod tests;
