//! Judges the node whenever it is looked at or something else is wanted of it, and says on the board
//! what came of it, and to who lends devices which of them are sick.

use std::path::{Path, PathBuf};
use std::time::Duration;

use crds::check::{CheckCounts, CheckFinding, FINDINGS_LIMIT};
use crds::condition::{ConditionType, Finding};
use crds::node::InjectedPod;
use crds::reason::Reason;
use crds::{FixReport, MooncakeNodeSpec, Verdict};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use tokio::sync::watch;
use tokio::time::Instant;

use super::assignments::Assignments;
use super::proof::{Ways, way};
use super::report::Board;
use super::{clock, containers, fixing, hardware, name_service};
use crate::checks::policy::govern;
use crate::checks::sickness::{self, Sick};
use crate::checks::steady::{Health, Moment, Steady, Told};
use crate::checks::{CATALOG, Judged, Name, Owner, Way, World, host_readable, judge, pod};
use crate::host::Facts;
use crate::host::container::Container;

/// Longest message of a finding and name of its subject; the schema has the same.
const MESSAGE: usize = 512;
const SUBJECT: usize = 128;

/// A node that nobody could look at for so long is not known to be healthy; on a machine where a look
/// is slow they are 40 seconds apart.
const UNSEEN: Duration = Duration::from_secs(90);

/// How long the first look into containers is waited for.
const FIRST_LOOK: Duration = Duration::from_secs(10);

/// Who tells what is known beside the node's own facts.
pub(crate) struct Beside {
    pub(crate) ways: watch::Receiver<Ways>,
    pub(crate) fixes: fixing::Said,
    pub(crate) owners: watch::Receiver<Vec<Owner>>,
    pub(crate) containers: containers::Known,
    pub(crate) names: name_service::Known,
    pub(crate) clock: clock::Known,
    /// Where what claims give is written, if devices are offered.
    pub(crate) cdi: Option<PathBuf>,
}

/// Judges for as long as anybody looks.
pub(crate) async fn keep(
    mut known: hardware::Known,
    mut assigned: watch::Receiver<Assignments>,
    beside: Beside,
    board: Board,
    sick: watch::Sender<Sick>,
) {
    let Beside {
        mut ways,
        mut fixes,
        mut owners,
        mut containers,
        mut names,
        mut clock,
        cdi,
    } = beside;
    let began = Instant::now();
    let mut seen = began;
    let mut steady = Steady::default();
    loop {
        let facts = known.borrow_and_update().clone();
        let node = assigned.borrow_and_update().node.clone();
        let tried = tried(&ways.borrow_and_update());
        let owners_known = owners.borrow_and_update().clone();
        let fixes_said = fixes.borrow_and_update().clone();
        let inside = containers.borrow_and_update().clone();
        let names_said = names.borrow_and_update().clone();
        let ahead = *clock.borrow_and_update();
        let is_assigned = node.is_some();
        let spec = node.map_or_else(MooncakeNodeSpec::default, |node| node.spec);
        let unseen = seen.elapsed() >= UNSEEN;
        // What the agent before this one found in a container stands until we have looked as well.
        let early = inside.is_none() && began.elapsed() < FIRST_LOOK;
        if (facts.is_some() && !early) || unseen {
            let now = Moment {
                up: began.elapsed(),
                wall: Timestamp::now(),
            };
            let heard = Heard {
                ways: &tried,
                fixes: &fixes_said,
                owners: &owners_known,
                containers: inside.as_deref().map_or(&[], Vec::as_slice),
                names: &names_said,
                ahead,
                cdi: cdi.as_deref(),
            };
            let round = round(facts.as_deref(), &spec, heard, unseen);
            let health = steady.note(&round, now);
            let health = govern(health, &round, spec.policy.as_ref());
            // Until the policy is known nobody knows what counts.
            if let (Some(facts), true) = (&facts, is_assigned) {
                let now = sickness::of(&health, facts);
                board.set_devices(sickness::summary(&now, facts));
                sick.send_if_modified(|sick| std::mem::replace(sick, now.clone()) != now);
            }
            board.set_health(health, owners_known);
        }
        // What is to be told later is told by a later look, of which there is one every few seconds.
        tokio::select! {
            changed = known.changed() => match changed {
                Ok(()) => seen = Instant::now(),
                Err(_) => return,
            },
            changed = assigned.changed() => if changed.is_err() { return },
            changed = ways.changed() => if changed.is_err() { return },
            changed = fixes.changed() => if changed.is_err() { return },
            // Where nothing is lent nobody tells.
            Ok(()) = owners.changed() => {}
            changed = containers.changed() => if changed.is_err() { return },
            changed = names.changed() => if changed.is_err() { return },
            changed = clock.changed() => if changed.is_err() { return },
            () = tokio::time::sleep_until(seen + UNSEEN), if !unseen => {}
        }
    }
}

fn tried(ways: &Ways) -> Vec<Way> {
    let ways = ways.iter();
    ways.filter_map(|(node, way)| {
        let broken = match &way.verdict {
            way::Verdict::Unproven => return None,
            way::Verdict::Proven => None,
            way::Verdict::Broken(why) => Some(why.clone()),
        };
        let slow = way.slow.then_some(way::SLOW);
        let node = node.clone();
        Some(Way { node, broken, slow })
    })
    .collect()
}

/// What is known beside the node's own facts.
#[derive(Clone, Copy, Default)]
struct Heard<'a> {
    ways: &'a [Way],
    fixes: &'a [FixReport],
    owners: &'a [Owner],
    containers: &'a [Container],
    names: &'a [Name],
    ahead: Option<i64>,
    cdi: Option<&'a Path>,
}

/// What the checks say; where nobody has seen the node of late, that first of all.
fn round(
    facts: Option<&Facts>,
    spec: &MooncakeNodeSpec,
    heard: Heard<'_>,
    unseen: bool,
) -> Vec<Judged> {
    let world = facts.map(|facts| World {
        facts,
        pools: &spec.pools,
        domains: &spec.domains,
        injected: &spec.injected,
        containers: heard.containers,
        owners: heard.owners,
        ways: heard.ways,
        fixes: heard.fixes,
        host_ports: spec.policy.as_ref().and_then(|policy| policy.host_ports),
        names: heard.names,
        ahead: heard.ahead,
        cdi: heard.cdi,
    });
    let mut round = world.map_or_else(Vec::new, |world| judge(CATALOG, &world));
    if unseen {
        let word = host_readable::unseen(UNSEEN.as_secs());
        round.retain(|judged| judged.check != word.check);
        round.push(word);
    }
    round
}

/// What was told, as the API has it. A finding that stood there before keeps its time.
pub(crate) fn findings(
    health: &Health,
    before: &[CheckFinding],
    injected: &[InjectedPod],
    owners: &[Owner],
) -> Vec<CheckFinding> {
    let told = health.told.iter().take(FINDINGS_LIMIT);
    let findings = told.map(|told| {
        let mut finding = CheckFinding {
            check: told.check,
            verdict: told.trouble.verdict,
            reason: told.trouble.reason,
            subject: short(&told.subject, SUBJECT),
            message: short(&message(told), MESSAGE),
            pod_uid: pod::of(injected, owners, told.check, &told.subject).map(str::to_owned),
            since: Time(told.since),
        };
        let same = |before: &&CheckFinding| {
            (before.check, before.reason, &before.subject)
                == (finding.check, finding.reason, &finding.subject)
        };
        if let Some(before) = before.iter().find(same) {
            finding.since.0 = finding.since.0.min(before.since.0);
        }
        finding
    });
    findings.collect()
}

fn message(told: &Told) -> String {
    let flaps = if told.flaps { " (comes and goes)" } else { "" };
    let remedy = told.trouble.reason.remedy();
    format!("{}{flaps}. {remedy}", told.trouble.words)
}

/// Whether the node is healthy: nothing fails. A warning is named and no failure.
pub(crate) fn condition(health: &Health) -> Finding {
    let kind = ConditionType::NodeHealthy;
    let counts = summary(&health.counts);
    match health.told.first() {
        None => Finding::new(kind, true, Reason::AsExpected, counts),
        Some(worst) => Finding::new(
            kind,
            worst.trouble.verdict != Verdict::Fail,
            worst.trouble.reason,
            format!("{}: {}; {counts}", worst.subject, message(worst)),
        ),
    }
}

fn summary(counts: &CheckCounts) -> String {
    let told = [
        (counts.failed, "fail"),
        (counts.unknown, "unknown"),
        (counts.warned, "warn"),
    ];
    let told = told.iter().filter(|(count, _)| *count > 0);
    let told: Vec<String> = told
        .map(|(count, word)| format!("{count} {word}"))
        .collect();
    let looked = counts.passed + counts.failed + counts.unknown + counts.warned;
    let ignored = match counts.ignored {
        0 => String::new(),
        ignored => format!(", {ignored} ignored by policy"),
    };
    if told.is_empty() {
        format!("{looked} checks passed{ignored}")
    } else {
        format!("of {looked} checks {}{ignored}", told.join(", "))
    }
}

/// At most so many characters, which is what the schema counts.
fn short(text: &str, most: usize) -> String {
    text.chars().take(most).collect()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use crds::policy::{CheckAction, CheckRule, PolicyInForce};
    use crds::{CheckId, MooncakeNode, State};
    use verbs::{Answer, Failure, Stage};

    use super::*;
    use crate::host::Host;
    use crate::host::recording::Recording;

    #[test]
    fn a_policy_decides_whether_a_finding_makes_the_node_unhealthy_and_nothing_stays_of_it() {
        let text = "[proc/sys/net/ipv4]\nip_local_port_range = 60000\t60099";
        let facts = Host::recorded(Recording::parse(text).unwrap()).facts();
        let spec = MooncakeNodeSpec::default();
        let mut steady = Steady::default();
        let mut told = |action: Option<CheckAction>, second: u64| {
            let policy = action.map(|action| PolicyInForce {
                name: "p".to_owned(),
                checks: vec![CheckRule {
                    id: CheckId::EphemeralPorts,
                    action,
                }],
                ..PolicyInForce::default()
            });
            let now = Moment {
                up: Duration::from_secs(second),
                wall: Timestamp::UNIX_EPOCH,
            };
            let round = round(Some(&facts), &spec, Heard::default(), false);
            let health = steady.note(&round, now);
            let health = govern(health, &round, policy.as_ref());
            let said = condition(&health);
            (said.state, said.reason, said.message.contains("1 ignored"))
        };
        let low = Reason::EphemeralPortsLow;
        assert_eq!(told(None, 0), (State::False, low, false));
        assert_eq!(told(Some(CheckAction::Warn), 1), (State::True, low, false));
        let (state, reason, ignored) = told(Some(CheckAction::Ignore), 2);
        assert_eq!((state, ignored), (State::True, true));
        assert_ne!(reason, low);
        assert_eq!(told(None, 3), (State::False, low, false));
    }

    /// A node on which the check MemoryKey is so.
    fn assigned(action: CheckAction) -> Assignments {
        let rule = CheckRule {
            id: CheckId::MemoryKey,
            action,
        };
        let spec = MooncakeNodeSpec {
            policy: Some(PolicyInForce {
                name: "p".to_owned(),
                checks: vec![rule],
                ..PolicyInForce::default()
            }),
            ..MooncakeNodeSpec::default()
        };
        Assignments {
            node: Some(MooncakeNode::new("n1", spec)),
            read: true,
        }
    }

    #[tokio::test]
    async fn who_lends_devices_hears_of_a_sick_one_once_it_is_known_what_the_policy_says() {
        const SOON: Duration = Duration::from_secs(10);
        let text = include_str!("../../tests/machines/vm-soft-roce.txt");
        let mut facts = Host::recorded(Recording::parse(text).unwrap()).facts();
        let device = facts.hcas.iter_mut().find(|hca| hca.name == "rxe1");
        device.unwrap().verbs = Some(Answer {
            failed: Some(Failure {
                stage: Stage::Open,
                errno: Some(5),
                words: String::new(),
                means: None,
            }),
            ..Answer::default()
        });
        let (_seen, known) = watch::channel(Some(Arc::new(facts)));
        let (assign, assignments) = watch::channel(Assignments::default());
        let (_ways, ways) = watch::channel(Ways::new());
        let (_fixes, fixes) = watch::channel(Vec::new());
        let (_owners, owners) = watch::channel(Vec::new());
        let (_containers, containers) = watch::channel(Some(Arc::new(Vec::new())));
        let (_names, names) = watch::channel(Vec::new());
        let (_clock, clock) = watch::channel(None);
        let beside = Beside {
            ways,
            fixes,
            owners,
            containers,
            names,
            clock,
            cdi: None,
        };
        let board = Board::default();
        let (tell, mut sick) = watch::channel(Sick::new());
        tokio::spawn(keep(known, assignments, beside, board.clone(), tell));
        let judged = async {
            while board.health().is_none() {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::time::timeout(SOON, judged).await.unwrap();
        assert!(sick.borrow().is_empty(), "what counts is not known yet");

        assign.send_replace(assigned(CheckAction::Enforce));
        let told = sick.wait_for(|sick| !sick.is_empty());
        let told = tokio::time::timeout(SOON, told).await.unwrap();
        let ails = Sick::from([("rxe1".to_owned(), Reason::RegistrationFailed)]);
        assert_eq!(*told.unwrap(), ails);
        assign.send_replace(assigned(CheckAction::Warn));
        let well = sick.wait_for(Sick::is_empty);
        let well = tokio::time::timeout(SOON, well).await.unwrap();
        assert!(well.unwrap().is_empty());
    }

    #[test]
    fn a_node_that_nobody_has_seen_of_late_is_not_healthy_and_is_when_it_is_seen() {
        let text = "[proc/sys/vm]\nmax_map_count = 65530";
        let facts = Host::recorded(Recording::parse(text).unwrap()).facts();
        let spec = MooncakeNodeSpec::default();
        let mut steady = Steady::default();
        let mut told = |facts: Option<&Facts>, unseen: bool, second: u64| {
            let now = Moment {
                up: Duration::from_secs(second),
                wall: Timestamp::UNIX_EPOCH,
            };
            let health = steady.note(&round(facts, &spec, Heard::default(), unseen), now);
            let said = condition(&health);
            (said.state, said.reason)
        };
        let lost = (State::False, Reason::HostUnreadable);
        assert_eq!(told(None, true, 90), lost, "not even once");
        assert_eq!(told(Some(&facts), false, 95), lost);
        assert_eq!(told(Some(&facts), false, 110).0, State::True);
        assert_eq!(told(Some(&facts), true, 300), lost);
    }
}
