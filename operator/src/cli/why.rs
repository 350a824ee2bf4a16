//! `why POD`: why it was injected, was not, is held, or uses the transport that it uses, by the same
//! functions that decided. Pure.

use std::collections::BTreeMap;

use crds::{MooncakeCluster, Reason, names};
use k8s_openapi::api::admissionregistration::v1::MutatingWebhookConfiguration;
use k8s_openapi::api::core::v1::{Event, Pod};
use kube::ResourceExt;
use serde::Serialize;

use crate::admission::{Decision, Surroundings, Wish, inject};
use crate::cli::doctor::by_its_labels;
use crate::cli::page::{Cell, Page, Tone};
use crate::cli::status::{self, known};
use crate::cli::unseen::{Unseen, What};
use crate::cli::webhook;
use crate::cluster::observe::is_over;
use crate::cluster::validate::validate;
use crate::cluster::{fit, injected, mirror};

mod evidence;
mod transport;

pub use evidence::Evidence;
pub use transport::Used;

/// What was seen of one pod and of what decides about it.
#[derive(Clone, Debug)]
pub struct Subject {
    pub pod: Pod,
    /// The cluster that it names; `None`: there is none, or it could not be looked at.
    pub cluster: Option<MooncakeCluster>,
    /// Labels of its namespace, where they could be looked at.
    pub labels: Option<BTreeMap<String, String>>,
    pub webhooks: Vec<MutatingWebhookConfiguration>,
    /// Events about it.
    pub events: Vec<Event>,
    pub unseen: Vec<Unseen>,
}

/// What became of a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Fate {
    /// It carries no label.
    NotAsked,
    /// It asks, and does not take part.
    NotInjected,
    /// It takes part; its gate has not opened.
    Held,
    /// It was let go, or failed, without an answer.
    TimedOut,
    /// It takes part, and its gate is open or not yet started.
    Injected,
    /// Its containers will not run again.
    Over,
}

impl Subject {
    fn saw(&self, what: What) -> bool {
        !self.unseen.iter().any(|unseen| unseen.what == what)
    }
}

impl Fate {
    fn words(self) -> &'static str {
        match self {
            Self::NotAsked => "does not ask to be injected",
            Self::NotInjected => "was not injected",
            Self::Held => "was injected and is held",
            Self::TimedOut => "was injected, and its gate gave up waiting",
            Self::Injected => "was injected",
            Self::Over => "is over",
        }
    }

    fn tone(self) -> Tone {
        match self {
            Self::NotAsked | Self::Over => Tone::Plain,
            Self::NotInjected | Self::TimedOut => Tone::Bad,
            Self::Held => Tone::Doubt,
            Self::Injected => Tone::Good,
        }
    }
}

/// The answer.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Why {
    pub namespace: String,
    pub pod: String,
    /// `namespace/name` of the MooncakeCluster that it names.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cluster: Option<String>,
    pub fate: Fate,
    /// Absent where nothing is wrong.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<Reason>,
    pub message: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remedy: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub docs: Option<String>,
    /// What its stock engines use; absent where it is not injected.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub transport: Option<Used>,
    /// What the answer was read from.
    pub evidence: Vec<Evidence>,
    pub unseen: Vec<Unseen>,
}

/// What was found, before it is written down.
struct Finding {
    fate: Fate,
    reason: Option<Reason>,
    message: String,
    /// In place of the reason's own.
    remedy: Option<&'static str>,
}

/// Computes the answer.
pub fn why(subject: &Subject) -> Why {
    let pod = &subject.pod;
    let namespace = pod.namespace().unwrap_or_default();
    let wish = Wish::of(pod, &namespace);
    let named = wish.as_ref().ok().cloned().flatten();
    let Finding {
        fate,
        reason,
        message,
        remedy,
    } = match &wish {
        Err(error) => Finding {
            fate: Fate::NotInjected,
            reason: Some(Reason::NotInjected),
            message: error.to_string(),
            remedy: Some("Correct it and recreate the pod."),
        },
        Ok(None) => Finding {
            fate: Fate::NotAsked,
            reason: None,
            message: format!("it has no label {}", names::LABEL_INJECT),
            remedy: Some(
                "To let it take part, recreate it with the label mooncake.io/inject: CLUSTER.",
            ),
        },
        Ok(Some(wish)) => judge(subject, &namespace, wish),
    };
    let takes_part = matches!(fate, Fate::Held | Fate::TimedOut | Fate::Injected);
    Why {
        cluster: named
            .as_ref()
            .map(|wish| format!("{}/{}", wish.namespace, wish.cluster)),
        fate,
        message: status::words(&message),
        remedy: remedy
            .or_else(|| reason.map(Reason::remedy))
            .map(ToOwned::to_owned),
        docs: reason.map(Reason::docs_anchor),
        reason,
        transport: named
            .as_ref()
            .filter(|_| takes_part)
            .map(|wish| transport::used(pod, wish, subject.cluster.as_ref())),
        evidence: evidence::of(subject, &namespace, named.as_ref()),
        unseen: lacking(subject, fate),
        pod: pod.name_any(),
        namespace,
    }
}

/// What the answer lacks: a tenant who may not see the webhook misses it only where the pod was left out.
fn lacking(subject: &Subject, fate: Fate) -> Vec<Unseen> {
    let matters = |unseen: &&Unseen| match unseen.what {
        What::Webhooks | What::Namespaces => fate == Fate::NotInjected,
        What::Events => fate == Fate::Held,
        _ => true,
    };
    subject.unseen.iter().filter(matters).cloned().collect()
}

fn judge(subject: &Subject, namespace: &str, wish: &Wish) -> Finding {
    let pod = &subject.pod;
    let left_out = match subject.cluster.as_ref().map(validate) {
        Some(Ok(valid)) => injected::trouble(&valid, pod),
        Some(Err(_)) | None => by_its_labels(pod, &wish.cluster),
    };
    if let Some((reason, words)) = left_out {
        return not_injected(subject, namespace, wish, reason, &words);
    }
    if is_over(pod) {
        let phase = pod.status.as_ref().and_then(|status| status.phase.clone());
        return Finding {
            fate: Fate::Over,
            reason: None,
            message: format!("it took part; now it is {}", phase.unwrap_or_default()),
            remedy: None,
        };
    }
    match mirror::gate(pod) {
        None => Finding {
            fate: Fate::Injected,
            reason: None,
            message: "its gate has not been started yet".to_owned(),
            remedy: None,
        },
        Some(word) if word.holds => unfit(pod).unwrap_or(Finding {
            fate: Fate::Injected,
            reason: None,
            message: word.message,
            remedy: None,
        }),
        Some(word) if word.reason == Reason::GateWaiting.as_str() => held(subject, wish),
        Some(word) => Finding {
            fate: Fate::TimedOut,
            reason: known(&word.reason),
            message: word.message,
            remedy: None,
        },
    }
}

/// What the agent of its node found in its containers.
fn unfit(pod: &Pod) -> Option<Finding> {
    let said = mirror::condition(pod, fit::FIT).filter(|said| said.status == "False")?;
    let reason = said.reason.as_deref().and_then(known);
    let message = said.message.as_deref().unwrap_or_default();
    // It stands below anyway.
    let again = reason.and_then(|reason| message.strip_suffix(reason.remedy()));
    Some(Finding {
        fate: Fate::Injected,
        reason,
        message: again.unwrap_or(message).trim_end().to_owned(),
        remedy: None,
    })
}

/// The kubelet repeats what the gate says in the events of its startup probe.
fn held(subject: &Subject, wish: &Wish) -> Finding {
    let prefix = format!("{}: ", Reason::GateWaiting);
    let newest = subject
        .events
        .iter()
        .filter_map(|event| {
            let message = event.message.as_ref()?;
            let start = message.find(&prefix)? + prefix.len();
            let words = message.get(start..)?.trim().to_owned();
            let time = event.last_timestamp.as_ref().map(|time| time.0);
            Some((time, words))
        })
        .max_by_key(|(time, _)| *time);
    let no_cluster = subject.cluster.is_none() && subject.saw(What::Clusters);
    let (reason, message) = match newest {
        Some((_, words)) => {
            let inner = words.split_once(": ").and_then(|(word, rest)| {
                let reason = known(word)?;
                Some((reason, rest.to_owned()))
            });
            let (reason, rest) = inner.unwrap_or((Reason::GateWaiting, words));
            (reason, format!("its gate waits: {rest}"))
        }
        None => (
            Reason::GateWaiting,
            "its gate waits; there is no event of its startup probe yet that says for what"
                .to_owned(),
        ),
    };
    if no_cluster {
        return Finding {
            fate: Fate::Held,
            reason: Some(Reason::ClusterMissing),
            message: format!(
                "there is no MooncakeCluster {}/{}; {message}",
                wish.namespace, wish.cluster
            ),
            remedy: None,
        };
    }
    Finding {
        fate: Fate::Held,
        reason: Some(reason),
        message,
        remedy: None,
    }
}

/// Asks the webhook's own decision what it would do with the pod now.
fn not_injected(
    subject: &Subject,
    namespace: &str,
    wish: &Wish,
    reason: Reason,
    words: &str,
) -> Finding {
    let finding = |reason, message, remedy| Finding {
        fate: Fate::NotInjected,
        reason: Some(reason),
        message,
        remedy,
    };
    let blind = subject.cluster.is_none() && !subject.saw(What::Clusters);
    // Without the cluster's own words the decision would be about another one.
    if blind {
        return finding(reason, words.to_owned(), None);
    }
    match inject(
        &subject.pod,
        namespace,
        subject.cluster.as_ref(),
        &Surroundings::default(),
        "",
    ) {
        Decision::Skip {
            skipped: Some(skipped),
            ..
        } => {
            let message = format!("{words}; now the webhook would say: {}", skipped.message);
            return finding(skipped.reason, message, None);
        }
        Decision::Skip { skipped: None, .. } | Decision::Patch { .. } => {}
    }
    let again = Some("Recreate the pod: made now, it would be injected.");
    if let Some((reason, why)) = uncalled(subject, namespace) {
        return finding(reason, format!("{words}: {why}"), None);
    }
    if subject.cluster.is_none() {
        let message = format!(
            "{words}; there is no MooncakeCluster {}/{} yet, with which its defaults would apply",
            wish.namespace, wish.cluster
        );
        return finding(reason, message, again);
    }
    let why = if subject
        .pod
        .annotations()
        .contains_key(names::ANNOTATION_SKIPPED)
    {
        "what stood in its way then does not any more"
    } else {
        "it was made before the webhook was there, or the webhook did not answer in time; pods then \
         start as they are"
    };
    finding(reason, format!("{words}; {why}"), again)
}

/// Why the API server does not call the webhook for the pod.
fn uncalled(subject: &Subject, namespace: &str) -> Option<(Reason, String)> {
    if !subject.saw(What::Webhooks) {
        return None;
    }
    let Some(found) = webhook::find(&subject.webhooks) else {
        let words = format!(
            "no MutatingWebhookConfiguration has a webhook {}",
            webhook::NAME
        );
        return Some((Reason::WebhookMissing, words));
    };
    if !found.is_trusted() {
        let words = format!(
            "the caBundle of MutatingWebhookConfiguration {} is empty",
            found.configuration
        );
        return Some((Reason::WebhookMissing, words));
    }
    let why = found.passes_by(&subject.pod, namespace, subject.labels.as_ref())?;
    Some((Reason::NotInjected, why))
}

impl Why {
    /// For people.
    pub fn show(&self, page: &mut Page) {
        let who = format!("Pod {}/{}", self.namespace, self.pod);
        page.line([
            Cell::new(who, Tone::Head),
            Cell::new(self.fate.words(), self.fate.tone()),
        ]);
        let reason = self.reason.map(|reason| format!("{reason}:"));
        let reason = Cell::new(reason.unwrap_or_default(), Tone::Head);
        page.indented(2, [reason, self.message.clone().into()]);
        if let Some(remedy) = &self.remedy {
            let docs = self.docs.as_deref().unwrap_or_default();
            status::remedy(page, 2, remedy, docs);
        }
        if let Some(used) = &self.transport {
            page.indented(2, [Cell::from("Transport:"), used.message.clone().into()]);
        }
        page.gap();
        let rows: Vec<Vec<Cell>> = self
            .evidence
            .iter()
            .map(|Evidence { what, says }| vec![what.clone().into(), says.clone().into()])
            .collect();
        page.table(&["LOOKED AT", "SAYS"], &rows);
    }
}
