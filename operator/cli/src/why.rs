//! `why POD`: why a pod was injected or not, why its gate waits, and which transport it uses, by the functions that
//! the operator decides with. Pure.

use std::collections::BTreeMap;

use crds::{MooncakeCluster, Reason, names};
use k8s_openapi::api::admissionregistration::v1::MutatingWebhookConfiguration;
use k8s_openapi::api::core::v1::{Event, Pod};
use kube::ResourceExt;
use mooncake_operator::admission::{Decision, InjectionContext, InjectionRequest, inject};
use mooncake_operator::cluster::validate::validate;
use mooncake_operator::cluster::{container_compatibility, injection, pod_conditions};
use mooncake_operator::pod::{condition, is_over};
use serde::Serialize;

use crate::doctor;
use crate::read_error::{ReadError, Resources};
use crate::renderer::{Cell, Renderer, Style, cells};
use crate::status::{known_reason, without_remedy};
use crate::webhook;

mod evidence;
mod transport;

pub use evidence::Evidence;
pub use transport::PodTransport;

/// A pod and the objects that decide about its injection.
#[derive(Clone)]
pub struct Inputs {
    pub pod: Pod,
    /// The cluster that the pod names; `None`: it does not exist, or could not be read.
    pub cluster: Option<MooncakeCluster>,
    /// `None`: the namespace could not be read.
    pub namespace_labels: Option<BTreeMap<String, String>>,
    pub webhooks: Vec<MutatingWebhookConfiguration>,
    /// Events of the pod.
    pub events: Vec<Event>,
    pub read_errors: Vec<ReadError>,
}

impl Inputs {
    fn has(&self, resource: Resources) -> bool {
        let mut errors = self.read_errors.iter();
        !errors.any(|error| error.resource == resource)
    }
}

/// The state of a pod's injection.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub enum State {
    /// It has no label.
    NotRequested,
    NotInjected,
    /// It is injected; its gate is not open yet.
    Waiting,
    /// It is injected; its gate gave up, by the policy or with an error.
    TimedOut,
    /// It is injected; its gate is open or has not started.
    Injected,
    /// It was injected; its containers have ended.
    Completed,
}

impl State {
    fn cell(self) -> Cell {
        let (text, style) = match self {
            Self::NotRequested => ("does not request injection", Style::Plain),
            Self::NotInjected => ("was not injected", Style::Bad),
            Self::Waiting => ("was injected; its gate is waiting", Style::Warning),
            Self::TimedOut => ("was injected; its gate timed out", Style::Bad),
            Self::Injected => ("was injected", Style::Good),
            Self::Completed => ("was injected and has completed", Style::Plain),
        };
        Cell::new(text, style)
    }
}

/// The report.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Why {
    pub namespace: String,
    pub pod: String,
    /// `namespace/name` of the MooncakeCluster that the pod names.
    pub cluster: Option<String>,
    pub state: State,
    /// Absent when there is no problem.
    pub reason: Option<Reason>,
    pub message: String,
    pub remedy: Option<&'static str>,
    pub docs: Option<String>,
    /// Absent when the pod is not injected.
    pub transport: Option<PodTransport>,
    pub evidence: Vec<Evidence>,
    pub read_errors: Vec<ReadError>,
}

struct Conclusion {
    state: State,
    reason: Option<Reason>,
    message: String,
    /// Replaces the remedy of the reason.
    remedy: Option<&'static str>,
}

impl Conclusion {
    fn new(state: State, reason: Option<Reason>, message: impl Into<String>) -> Self {
        Self {
            state,
            reason,
            message: message.into(),
            remedy: None,
        }
    }

    fn remedy(self, remedy: &'static str) -> Self {
        Self {
            remedy: Some(remedy),
            ..self
        }
    }
}

/// Computes the report.
pub fn why(inputs: &Inputs) -> Why {
    let pod = &inputs.pod;
    let namespace = pod.namespace().unwrap_or_default();
    let request = InjectionRequest::of(pod, &namespace);
    let conclusion = match &request {
        Err(error) => Conclusion::new(
            State::NotInjected,
            Some(Reason::NotInjected),
            error.to_string(),
        )
        .remedy("Correct the label or annotation and recreate the pod."),
        Ok(None) => {
            let message = format!("it has no label {}", names::LABEL_INJECT);
            Conclusion::new(State::NotRequested, None, message)
                .remedy("To inject it, recreate it with the label mooncake.io/inject: CLUSTER.")
        }
        Ok(Some(request)) => conclude(inputs, &namespace, request),
    };
    let Conclusion { state, reason, .. } = conclusion;
    let request = request.ok().flatten();
    let injected = matches!(state, State::Waiting | State::TimedOut | State::Injected);
    // A tenant may not read the webhook, which matters only when it was not called.
    let matters = |error: &&ReadError| match error.resource {
        Resources::WEBHOOKS | Resources::NAMESPACES => state == State::NotInjected,
        Resources::EVENTS => state == State::Waiting,
        _ => true,
    };
    Why {
        cluster: request
            .as_ref()
            .map(|request| format!("{}/{}", request.namespace, request.cluster)),
        state,
        message: without_remedy(&conclusion.message),
        remedy: conclusion.remedy.or_else(|| reason.map(Reason::remedy)),
        docs: reason.map(Reason::docs_anchor),
        reason,
        transport: request
            .as_ref()
            .filter(|_| injected)
            .map(|request| transport::of(pod, request, inputs.cluster.as_ref())),
        evidence: evidence::of(inputs, &namespace, request.as_ref()),
        read_errors: inputs.read_errors.iter().filter(matters).cloned().collect(),
        pod: pod.name_any(),
        namespace,
    }
}

fn conclude(inputs: &Inputs, namespace: &str, request: &InjectionRequest) -> Conclusion {
    let pod = &inputs.pod;
    let skipped = match inputs.cluster.as_ref().map(validate) {
        Some(Ok(valid)) => injection::problem(&valid, pod),
        Some(Err(_)) | None => doctor::not_injected(pod, &request.cluster),
    };
    if let Some((reason, message)) = skipped {
        return not_injected(inputs, namespace, request, reason, &message);
    }
    if is_over(pod) {
        let phase = pod.status.as_ref().and_then(|status| status.phase.clone());
        let message = format!("its phase is {}", phase.unwrap_or_default());
        return Conclusion::new(State::Completed, None, message);
    }
    match pod_conditions::gate(pod) {
        None => Conclusion::new(State::Injected, None, "its gate has not started yet"),
        Some(gate) if gate.holds => incompatible(pod)
            .unwrap_or_else(|| Conclusion::new(State::Injected, None, gate.message)),
        Some(gate) if gate.reason == Reason::GateWaiting.as_str() => waiting(inputs, request),
        Some(gate) => Conclusion::new(State::TimedOut, known_reason(&gate.reason), gate.message),
    }
}

/// What the agent found in the containers of an injected pod.
fn incompatible(pod: &Pod) -> Option<Conclusion> {
    let condition =
        condition(pod, container_compatibility::CONDITION).filter(|c| c.status == "False")?;
    let reason = condition.reason.as_deref().and_then(known_reason);
    let message = condition.message.as_deref().unwrap_or_default();
    // The remedy is shown separately.
    let short = reason.and_then(|reason| message.strip_suffix(reason.remedy()));
    let message = short.unwrap_or(message).trim_end();
    Some(Conclusion::new(State::Injected, reason, message))
}

/// What the gate waits for. The kubelet repeats it in the events of the startup probe.
fn waiting(inputs: &Inputs, request: &InjectionRequest) -> Conclusion {
    let prefix = format!("{}: ", Reason::GateWaiting);
    let events = inputs.events.iter().filter_map(|event| {
        let (_, cause) = event.message.as_ref()?.split_once(&prefix)?;
        let time = event.last_timestamp.as_ref().map(|time| time.0);
        Some((time, cause.trim()))
    });
    let (reason, message) = match events.max_by_key(|(time, _)| *time) {
        Some((_, cause)) => {
            let parts = cause.split_once(": ");
            let known = parts.and_then(|(reason, rest)| Some((known_reason(reason)?, rest)));
            let (reason, rest) = known.unwrap_or((Reason::GateWaiting, cause));
            (reason, format!("its gate waits: {rest}"))
        }
        None => (
            Reason::GateWaiting,
            "its gate waits; no event of its startup probe has the cause yet".to_owned(),
        ),
    };
    if inputs.cluster.is_none() && inputs.has(Resources::CLUSTERS) {
        let message = format!("{}; {message}", not_found(request));
        return Conclusion::new(State::Waiting, Some(Reason::ClusterMissing), message);
    }
    Conclusion::new(State::Waiting, Some(reason), message)
}

fn not_found(request: &InjectionRequest) -> String {
    format!(
        "MooncakeCluster {}/{} does not exist",
        request.namespace, request.cluster
    )
}

/// Why the pod was not injected, and whether the webhook would inject it now.
fn not_injected(
    inputs: &Inputs,
    namespace: &str,
    request: &InjectionRequest,
    reason: Reason,
    message: &str,
) -> Conclusion {
    let conclusion = |reason, message| Conclusion::new(State::NotInjected, Some(reason), message);
    // Without the cluster's spec the decision would not be the webhook's.
    if inputs.cluster.is_none() && !inputs.has(Resources::CLUSTERS) {
        return conclusion(reason, message.to_owned());
    }
    let decision = inject(
        &inputs.pod,
        namespace,
        inputs.cluster.as_ref(),
        &InjectionContext::default(),
        "",
    );
    if let Decision::Skip {
        skipped: Some(skipped),
        ..
    } = decision
    {
        let message = format!("{message}; now the webhook skips it: {}", skipped.message);
        return conclusion(skipped.reason, message);
    }
    if let Some((reason, cause)) = not_called(inputs, namespace) {
        return conclusion(reason, format!("{message}: {cause}"));
    }
    let annotations = inputs.pod.annotations();
    let cause = if inputs.cluster.is_none() {
        format!("{}; its defaults would apply", not_found(request))
    } else if annotations.contains_key(names::ANNOTATION_SKIPPED) {
        "the cause no longer exists".to_owned()
    } else {
        "it was created before the webhook, or the webhook did not respond in time; such pods start \
         without injection"
            .to_owned()
    };
    conclusion(reason, format!("{message}; {cause}"))
        .remedy("Recreate the pod: the webhook would inject it now.")
}

/// Why the API server does not call the webhook for the pod.
fn not_called(inputs: &Inputs, namespace: &str) -> Option<(Reason, String)> {
    if !inputs.has(Resources::WEBHOOKS) {
        return None;
    }
    let Some(found) = webhook::find(&inputs.webhooks) else {
        let name = webhook::NAME;
        let message = format!("no MutatingWebhookConfiguration has the webhook {name}");
        return Some((Reason::WebhookMissing, message));
    };
    if !found.is_trusted() {
        let name = found.configuration;
        let message = format!("the caBundle of MutatingWebhookConfiguration {name} is empty");
        return Some((Reason::WebhookMissing, message));
    }
    let cause = found.exclusion(&inputs.pod, namespace, inputs.namespace_labels.as_ref())?;
    Some((Reason::NotInjected, cause))
}

impl Why {
    pub(crate) fn show(&self, out: &mut Renderer) {
        let pod = format!("Pod {}/{}", self.namespace, self.pod);
        out.line(cells![Cell::new(pod, Style::Bold), self.state.cell()]);
        let reason = self.reason.map(|reason| format!("{reason}:"));
        let reason = Cell::new(reason.unwrap_or_default(), Style::Bold);
        out.indented(2, cells![reason, &self.message]);
        if let Some(remedy) = self.remedy {
            out.remedy(remedy, self.docs.as_deref().unwrap_or_default());
        }
        if let Some(transport) = &self.transport {
            out.indented(2, cells!["Transport:", &transport.message]);
        }
        let evidence = self.evidence.iter();
        let rows = evidence.map(|one| cells![&one.source, &one.value]);
        out.table(&["SOURCE", "VALUE"], rows);
    }
}
