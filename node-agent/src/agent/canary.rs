//! Has each RDMA device do something small again and again, by the program `verbs`: tell its limits,
//! register memory, write to itself. A child for each device; one that is held by its device is left
//! alone, and followed by no other until the kernel lets go of it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use crds::inventory::PortState;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, BufReader};
use tokio::process::{Child, Command};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;
use tokio::time::Instant;
use verbs::{Answer, Question, Rail, Rising, Stage};

use super::assignments::Assignments;
use super::hardware::Known;
use crate::host::hca::Hca;
use crate::host::round::Node;
use crate::host::{Facts, cgroup};

mod growth;

use growth::Growth;

/// Between two questions to one that is not.
const RETRY: Duration = Duration::from_secs(8);

/// Least time between two questions, however often its ports come and go.
const LEAST: Duration = Duration::from_secs(2);

/// How long a device may take. A write over each of its ports may take three seconds.
const PATIENCE: Duration = Duration::from_secs(8);

/// How long a child may take, which loads libraries on an emulated processor.
const DEADLINE: Duration = Duration::from_secs(14);

/// How long one that has answered may take to end.
const END: Duration = Duration::from_secs(1);

/// Children at a time.
const AT_ONCE: usize = 2;

/// Longest line that a child may write.
const LONGEST: u64 = 64 << 10;

/// The program beside this one; none where an agent is run without it.
pub(crate) fn program() -> Option<PathBuf> {
    let program = std::env::current_exe().ok()?.with_file_name("verbs");
    program.is_file().then_some(program)
}

/// The facts, with what each device did. A node that is recorded does nothing.
pub(crate) fn watch(
    program: Option<PathBuf>,
    node: Node,
    assigned: watch::Receiver<Assignments>,
    seen: Known,
) -> Known {
    let recorded = node.root.is_file();
    let Some(program) = program.filter(|_| !recorded) else {
        if !recorded {
            tracing::info!("no program `verbs` beside the agent: no RDMA device is tried");
        }
        return seen;
    };
    let (tell, known) = watch::channel(None);
    tokio::spawn(keep(program, node, assigned, seen, tell));
    known
}

/// What is known of one device.
#[derive(Default)]
struct Device {
    asked: Option<Asked>,
    answer: Option<Answer>,
    /// One that has not ended.
    held: Option<Child>,
    /// A child of its is asking now.
    busy: bool,
    growth: Growth,
}

/// The last question to a device.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Asked {
    at: Instant,
    rails: Vec<Rail>,
    well: bool,
}

impl Device {
    /// True where nothing holds it, now or still.
    fn is_free(&mut self) -> bool {
        let ended = |child: &mut Child| matches!(child.try_wait(), Ok(Some(_)));
        if self.held.as_mut().is_some_and(ended) {
            self.held = None;
            // What it was held by is over: how it is now is not known.
            self.asked = None;
        }
        self.held.is_none() && !self.busy
    }
}

/// True where a device is to be asked; `period` is between two questions to one that is well and has not
/// changed. Pure.
fn is_due(asked: Option<&Asked>, rails: &[Rail], period: Duration, now: Instant) -> bool {
    let Some(asked) = asked else {
        return true;
    };
    let wait = match (asked.rails == rails, asked.well) {
        (false, _) => LEAST,
        (true, false) => RETRY,
        (true, true) => period,
    };
    now.saturating_duration_since(asked.at) >= wait
}

/// The ports of a device that are to carry a write.
fn rails(hca: &Hca) -> Vec<Rail> {
    let active = hca
        .ports
        .iter()
        .filter(|port| port.state == Some(PortState::Active));
    let rails = active.filter_map(|port| {
        let (port, gid) = (port.number, port.chosen.ok()?);
        Some(Rail { port, gid })
    });
    rails.collect()
}

fn is_well(answer: &Answer) -> bool {
    let ports = answer.loops.iter().all(|tried| tried.failed.is_none());
    answer.failed.is_none() && answer.hung.is_none() && ports
}

/// The facts with the answers of the devices that are there.
fn merged(facts: &Facts, devices: &BTreeMap<String, Device>) -> Facts {
    let mut facts = facts.clone();
    for hca in &mut facts.hcas {
        let device = devices.get(&hca.name);
        hca.verbs = device.and_then(|device| device.answer.clone());
    }
    facts
}

async fn keep(
    program: PathBuf,
    node: Node,
    assigned: watch::Receiver<Assignments>,
    mut seen: Known,
    tell: watch::Sender<Option<Arc<Facts>>>,
) {
    let mut devices: BTreeMap<String, Device> = BTreeMap::new();
    let mut asking: JoinSet<(String, Reply)> = JoinSet::new();
    let turns = Arc::new(Semaphore::new(AT_ONCE));
    let mut first = true;
    loop {
        tokio::select! {
            changed = seen.changed() => if changed.is_err() { return },
            Some(Ok((name, reply))) = asking.join_next() => {
                note(&mut devices, &node, name, reply);
                // Told with the next look, of which there is one every few seconds: an answer is none.
                continue;
            }
            () = tell.closed() => return,
        }
        let Some(facts) = seen.borrow_and_update().clone() else {
            continue;
        };
        // Without a device file there is nothing to open; one that hangs in sysfs has none either.
        let open = facts.hcas.iter().filter(|hca| hca.device_file.is_some());
        let open: BTreeMap<&str, Vec<Rail>> =
            open.map(|hca| (hca.name.as_str(), rails(hca))).collect();
        devices.retain(|name, device| {
            open.contains_key(name.as_str()) || device.busy || device.held.is_some()
        });
        let period = assigned.borrow().probe_rates().devices(open.len());
        for (name, rails) in open {
            let device = devices.entry(name.to_owned()).or_default();
            if !device.is_free() || !is_due(device.asked.as_ref(), &rails, period, Instant::now()) {
                continue;
            }
            device.busy = true;
            let question = question(&node, name, rails);
            let (program, turns) = (program.clone(), Arc::clone(&turns));
            asking.spawn(async move {
                let name = question.device.clone();
                let _turn = turns.acquire_owned().await;
                (name, ask(&program, question).await)
            });
        }
        if std::mem::take(&mut first) {
            // An inventory without limits would be written, and one with them a minute later.
            let answers = async {
                while let Some(Ok((name, reply))) = asking.join_next().await {
                    note(&mut devices, &node, name, reply);
                }
            };
            let _ = tokio::time::timeout(DEADLINE, answers).await;
        }
        tell.send_replace(Some(Arc::new(merged(&facts, &devices))));
    }
}

fn question(node: &Node, device: &str, rails: Vec<Rail>) -> Question {
    Question {
        device: device.to_owned(),
        rails,
        patience: u64::try_from(PATIENCE.as_millis()).unwrap_or(u64::MAX),
        root: Some(node.root.clone()),
        network: node.network.clone(),
    }
}

fn note(devices: &mut BTreeMap<String, Device>, node: &Node, name: String, reply: Reply) {
    let device = devices.entry(name).or_default();
    device.busy = false;
    device.held = reply.held;
    device.asked = Some(Asked {
        at: Instant::now(),
        rails: reply.rails,
        well: reply.answer.as_ref().is_some_and(is_well),
    });
    let before = device.answer.take().and_then(|answer| answer.limits);
    device.answer = reply.answer.map(|mut answer| {
        // They do not change while a device is there, and one that is sick now may tell none.
        answer.limits = answer.limits.or(before);
        if let Some((taken, limits)) = answer.taken.as_mut().zip(answer.limits) {
            device.growth.note(taken, Instant::now());
            let soonest = device.growth.soonest(taken, limits.max_qp.into());
            let rising = soonest.map(|(holder, hours)| Rising {
                pid: holder.pid,
                process: holder.process.clone(),
                pod_uid: pod_uid(&node.root, holder.pid),
                hours,
            });
            taken.rising = rising;
        }
        answer
    });
}

/// Of the pod that a process runs in, by a file of the kernel's, which answers at once.
fn pod_uid(root: &Path, pid: u32) -> Option<String> {
    let text = std::fs::read_to_string(root.join(format!("proc/{pid}/cgroup"))).ok()?;
    cgroup::place(&text).map(|place| place.pod_uid)
}

/// What came of one question.
struct Reply {
    rails: Vec<Rail>,
    /// None where the program could not be started or told nonsense.
    answer: Option<Answer>,
    held: Option<Child>,
}

async fn ask(program: &Path, question: Question) -> Reply {
    let device = question.device.clone();
    let reply = |answer, held| Reply {
        rails: question.rails.clone(),
        answer,
        held,
    };
    let mut command = Command::new(program);
    command
        .args(serde_json::to_string(&question).ok())
        // The environment of a pod may hold what is not a child's.
        .env_clear()
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        // libibverbs speaks of every device that it has no driver for.
        .stderr(Stdio::null())
        .kill_on_drop(true);
    let mut child = match command.spawn() {
        Ok(child) => child,
        Err(error) => {
            tracing::warn!(%error, program = %program.display(), "the program cannot be started");
            return reply(None, None);
        }
    };
    let mut line = Vec::new();
    let told = match child.stdout.take() {
        Some(out) => {
            let mut out = BufReader::new(out.take(LONGEST));
            tokio::time::timeout(DEADLINE, out.read_until(b'\n', &mut line)).await
        }
        None => Ok(Ok(0)),
    };
    let answer = match told {
        Ok(_) => serde_json::from_slice(&line)
            .inspect_err(|error| tracing::warn!(%error, device, "the program told no answer"))
            .ok(),
        // It tells in time what it is held by; this one did not even come to that.
        Err(_) => Some(Answer {
            hung: Some(Stage::View),
            ..Answer::default()
        }),
    };
    if tokio::time::timeout(END, child.wait()).await.is_ok() {
        return reply(answer, None);
    }
    tracing::warn!(
        device,
        "the device holds who asked it: it is not asked again until it lets go"
    );
    let _ = child.start_kill();
    reply(answer, Some(child))
}

/// Asks each device of the facts once.
pub(crate) async fn once(program: &Path, node: &Node, facts: &mut Facts) {
    for hca in &mut facts.hcas {
        if hca.device_file.is_none() {
            continue;
        }
        let question = question(node, &hca.name, rails(hca));
        hca.verbs = ask(program, question).await.answer;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::Host;
    use crate::host::recording::Recording;
    use crds::policy::ProbeRates;

    const SOFT_ROCE: &str = include_str!("../../tests/machines/vm-soft-roce.txt");

    fn facts() -> Facts {
        Host::recorded(Recording::parse(SOFT_ROCE).unwrap()).facts()
    }

    /// A program that says this, whatever it is asked, and writes down each question.
    fn saying(words: &str) -> (tempfile::TempDir, PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let program = folder.path().join("verbs");
        let asked = folder.path().join("asked");
        let text = format!("#!/bin/sh\necho \"$1\" >>{}\n{words}\n", asked.display());
        // Written by another process: what another test forks while this one had it open for writing
        // would keep it from being run.
        let write = ["-c", "printf %s \"$1\" >\"$0\" && chmod 755 \"$0\""];
        let mut shell = std::process::Command::new("sh");
        shell.args(write).arg(&program).arg(text);
        assert!(shell.status().unwrap().success());
        (folder, program)
    }

    fn node() -> Node {
        Node {
            root: "/".into(),
            network: None,
        }
    }

    #[test]
    fn a_device_is_asked_when_it_is_new_or_changed_or_sick_or_its_time_has_come() {
        let at = Instant::now();
        let rail = |gid| vec![Rail { port: 1, gid }];
        let asked = |well| Asked {
            at,
            rails: rail(1),
            well,
        };
        let period = ProbeRates::default().devices(1);
        assert!(is_due(None, &rail(1), period, at));
        for (well, rails, wait) in [
            (true, rail(1), period),
            (false, rail(1), RETRY),
            (true, rail(2), LEAST),
            (true, Vec::new(), LEAST),
        ] {
            let asked = Some(asked(well));
            let before = at + wait.saturating_sub(Duration::from_millis(1));
            let is_due = |now| is_due(asked.as_ref(), &rails, period, now);
            assert!(!is_due(before), "{wait:?}");
            assert!(is_due(at + wait), "{wait:?}");
        }
    }

    #[test]
    fn limits_that_a_device_told_stay_when_it_is_sick_and_tells_none() {
        let well = facts().hcas[0].verbs.clone().unwrap();
        let sick = Answer {
            hung: Some(Stage::Open),
            ..Answer::default()
        };
        let mut devices = BTreeMap::new();
        for answer in [well.clone(), sick] {
            let reply = Reply {
                rails: Vec::new(),
                answer: Some(answer),
                held: None,
            };
            note(&mut devices, &node(), "rxe0".to_owned(), reply);
        }
        let told = merged(&facts(), &devices);
        let answer = told.hcas[0].verbs.as_ref().unwrap();
        assert_eq!(
            (answer.limits, answer.hung),
            (well.limits, Some(Stage::Open))
        );
        assert!(!is_well(answer) && told.hcas[1].verbs.is_none());
    }

    #[tokio::test]
    async fn what_each_device_did_stands_in_the_facts_and_each_is_asked_once_a_period() {
        let (folder, program) = saying(
            r#"echo '{"limits":{"max_mr_size":7,"max_mr":1,"max_qp":2,"max_cqe":3},"registered":null,"loops":[],"failed":null,"hung":null}'"#,
        );
        let (look, seen) = watch::channel(None);
        let (_assign, assigned) = watch::channel(Assignments::default());
        let mut known = watch(Some(program), node(), assigned, seen);
        for _ in 0..2 {
            look.send_replace(Some(Arc::new(facts())));
            let told = tokio::time::timeout(Duration::from_secs(30), known.changed()).await;
            told.unwrap().unwrap();
            let facts = known.borrow_and_update().clone().unwrap();
            for hca in &facts.hcas {
                let limits = hca.verbs.as_ref().unwrap().limits.unwrap();
                assert_eq!(limits.max_mr_size, 7);
            }
        }
        // Nobody looked since: whether the node is seen at all is told by looks alone.
        assert!(!known.has_changed().unwrap());
        let asked = std::fs::read_to_string(folder.path().join("asked")).unwrap();
        let asked: Vec<Question> = asked
            .lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect();
        assert_eq!(asked.len(), 2, "{asked:?}");
        for question in asked {
            assert_eq!(question.rails, [Rail { port: 1, gid: 1 }]);
        }
    }

    #[tokio::test]
    async fn a_device_that_holds_who_asked_it_gets_no_second_until_it_lets_go() {
        let (_folder, program) = saying(
            r#"echo '{"limits":null,"registered":null,"loops":[],"failed":null,"hung":"Open"}'; exec sleep 1000"#,
        );
        let question = Question {
            device: "rxe0".to_owned(),
            rails: Vec::new(),
            patience: 100,
            root: None,
            network: None,
        };
        let mut devices = BTreeMap::new();
        let reply = ask(&program, question).await;
        assert_eq!(reply.answer.as_ref().unwrap().hung, Some(Stage::Open));
        let mut child = reply.held.unwrap();
        // What the kernel holds ends no sooner than it lets go; this one ends when it is killed.
        child.wait().await.unwrap();
        let mut stuck = Command::new("sleep")
            .arg("1000")
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let reply = Reply {
            rails: Vec::new(),
            answer: reply.answer,
            held: Some(stuck),
        };
        note(&mut devices, &node(), "rxe0".to_owned(), reply);
        let device = devices.get_mut("rxe0").unwrap();
        assert!(!device.is_free());
        stuck = device.held.take().unwrap();
        stuck.kill().await.unwrap();
        device.held = Some(stuck);
        let period = ProbeRates::default().devices(1);
        assert!(device.is_free());
        assert!(is_due(device.asked.as_ref(), &[], period, Instant::now()));
    }

    #[tokio::test]
    async fn a_program_that_is_not_there_or_tells_nonsense_tells_nothing_of_the_device() {
        let (folder, program) = saying("echo nonsense");
        for program in [program, folder.path().join("absent")] {
            let mut facts = facts();
            once(&program, &node(), &mut facts).await;
            assert!(facts.hcas.iter().all(|hca| hca.verbs.is_none()));
        }
    }
}
