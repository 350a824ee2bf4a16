//! `ContainerRuntime`: the runtime reads the CDI files of the agent, which hold devices and lock limits of claims. A
//! runtime that does not read them starts containers without both, and reports no error.

use std::path::Path;

use crds::{CheckId, Reason};

use crate::{Check, CheckInput, Observation, pod};

const SUBJECT: &str = "container runtime";

/// Most folders in the message.
const LISTED: usize = 4;

pub(crate) const CHECK: Check = Check::new(CheckId::ContainerRuntime, &[Reason::CdiDisabled], run);

fn run(input: &CheckInput<'_>) -> Vec<Observation> {
    let hcas = &input.snapshot.facts.hcas;
    let offers = hcas.iter().any(|hca| hca.device_file.is_some());
    let Some(own) = input.cdi_folder.filter(|_| offers) else {
        return Vec::new();
    };
    // A runtime that does not report its CDI settings may be set up well.
    let Some((runtime, cdi)) = input
        .snapshot
        .runtime
        .as_ref()
        .and_then(|runtime| Some((runtime, runtime.cdi.as_ref()?)))
    else {
        return Vec::new();
    };
    let who = format!("{} {}", runtime.name, runtime.version);
    let read = cdi
        .folders
        .iter()
        .any(|folder| below_run(Path::new(folder)) == below_run(own));
    let message = if !cdi.enabled {
        format!(
            "CDI is disabled in {who}: containers that claim RDMA devices of this node start without them"
        )
    } else if !read {
        format!(
            "{who} reads CDI files from {}; the agent writes them to {}",
            pod::first_names_or_none(&cdi.folders, LISTED),
            own.display()
        )
    } else {
        return vec![Observation::pass(SUBJECT)];
    };
    vec![Observation::fail(SUBJECT, Reason::CdiDisabled, message)]
}

/// The path without `/run` or `/var/run`, which are the same folder.
fn below_run(folder: &Path) -> &Path {
    let run = folder.strip_prefix("/var/run");
    run.or_else(|_| folder.strip_prefix("/run"))
        .unwrap_or(folder)
}
