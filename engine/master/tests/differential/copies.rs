//! Random copies and moves of objects, and tasks for them.

use proto::store::release_0_3_13 as wire;
use proto::store::{ErrorCode, Uuid};

use super::{Generator, KEYS, REGISTERED, SEGMENTS, id, segment};
use crate::client::Client;
use crate::compared::{Compared, list};

/// The owners of segments, and other clients.
const CLIENTS: u64 = 8;
/// Tasks that later calls are about.
const MOST_TASKS: usize = 20;

pub(super) async fn next(generator: &mut Generator, at: [&mut Client; 2]) -> Compared {
    let (client, key, tenant) = (generator.client(), generator.key(), generator.tenant());
    let source = name(generator);
    let target = name(generator);
    match generator.below(24) {
        0..5 => {
            let count = generator.below(4);
            let mut targets: Vec<_> = (0..count).map(|_| name(generator)).collect();
            targets.sort();
            targets.dedup();
            let arguments = (client, key, tenant, source, targets);
            generator
                .rpc::<wire::CopyStart>(arguments, at, |answer| {
                    let source = list(std::slice::from_ref(&answer.source));
                    format!("from {source} to {}", list(&answer.targets))
                })
                .await
        }
        5..8 => {
            let arguments = (client, key, tenant);
            generator.plain::<wire::CopyEnd>(arguments, at).await
        }
        8..10 => {
            let arguments = (client, key, tenant);
            generator.plain::<wire::CopyRevoke>(arguments, at).await
        }
        10..14 => {
            let arguments = (client, key, tenant, source, target);
            generator
                .rpc::<wire::MoveStart>(arguments, at, |answer| {
                    let source = list(std::slice::from_ref(&answer.source));
                    format!("from {source} to {}", list(answer.target.as_slice()))
                })
                .await
        }
        14..16 => {
            let arguments = (client, key, tenant);
            generator.plain::<wire::MoveEnd>(arguments, at).await
        }
        16 => {
            let arguments = (client, key, tenant);
            generator.plain::<wire::MoveRevoke>(arguments, at).await
        }
        17 => {
            let count = generator.below(3);
            let targets = (0..count).map(|_| name(generator)).collect();
            create::<wire::CreateCopyTask>(generator, (key, tenant, targets), at).await
        }
        18 => create::<wire::CreateMoveTask>(generator, (key, tenant, source, target), at).await,
        19 => fetched(at).await,
        20 | 21 => ended(generator, at).await,
        _ => state(generator, at).await,
    }
}

/// Ends all copies; see [`crate::compared::ALLOWED`].
pub(super) async fn revoke_all(masters: [&mut Client; 2]) {
    for master in masters {
        for client in (0..CLIENTS).map(id) {
            for (key, tenant) in (0..KEYS).flat_map(|key| REGISTERED.map(|of| (key, of))) {
                let arguments = (client, format!("key{key}"), tenant.to_owned());
                // Most have none.
                let _ = master.call::<wire::CopyRevoke>(&arguments).await;
                let _ = master.call::<wire::MoveRevoke>(&arguments).await;
            }
        }
    }
}

/// The name of a segment, which may not be mounted.
fn name(generator: &mut Generator) -> String {
    segment(generator.below(SEGMENTS + 1)).name
}

/// Requests a task, and notes its IDs.
async fn create<R>(
    generator: &mut Generator,
    arguments: R::Arguments,
    at: [&mut Client; 2],
) -> Compared
where
    R: proto::store::Rpc<Value = Uuid>,
    R::Arguments: std::fmt::Debug,
{
    let [stock, ours] = at;
    let answers = [
        stock.call::<R>(&arguments).await,
        ours.call::<R>(&arguments).await,
    ];
    if let [Ok(stock), Ok(ours)] = answers {
        generator.tasks.push([stock, ours]);
        if generator.tasks.len() > MOST_TASKS {
            generator.tasks.remove(0);
        }
    }
    let [stock, ours] =
        answers.map(|answer| answer.map_or_else(|code| code.to_string(), |_| "a task".into()));
    Compared {
        call: format!("{}({arguments:?})", R::METHOD),
        codes: answers[1].err().into_iter().collect(),
        stock,
        ours,
    }
}

/// Fetches the tasks of all clients: which of several segments a copy task reads is chosen at random.
async fn fetched(at: [&mut Client; 2]) -> Compared {
    let mut texts = Vec::new();
    for master in at {
        let mut tasks = Vec::new();
        for client in (0..CLIENTS).map(id) {
            let fetched = master.call::<wire::FetchTasks>(&(client, 1000)).await;
            for task in fetched.unwrap() {
                let text = match wire::TaskPayload::parse(&task).unwrap() {
                    wire::TaskPayload::Copy(of) => {
                        assert_eq!(of.dynamic, None);
                        format!("copy {}/{} to {:?}", of.tenant_id, of.key, of.targets)
                    }
                    wire::TaskPayload::Move(of) => {
                        format!("{client:?}: {of:?}")
                    }
                };
                tasks.push(format!("{text}, {} attempts", task.max_retry));
            }
        }
        tasks.sort();
        texts.push(format!("{tasks:?}"));
    }
    let [stock, ours] = texts.try_into().unwrap();
    Compared {
        call: "FetchTasks(of all)".into(),
        stock,
        ours,
        codes: Vec::new(),
    }
}

fn task(generator: &mut Generator) -> [Uuid; 2] {
    let count = generator.tasks.len() as u64;
    if count == 0 {
        return [id(99); 2];
    }
    let at = usize::try_from(generator.below(count)).unwrap();
    generator.tasks[at]
}

/// Reports the end of a task, mostly as the client that is to carry it out.
async fn ended(generator: &mut Generator, at: [&mut Client; 2]) -> Compared {
    let status = wire::TaskStatus::from(i32::try_from(generator.below(5)).unwrap());
    let other = generator.once_in(4);
    let ids = task(generator);
    let mut codes = Vec::new();
    for (master, id) in at.into_iter().zip(ids) {
        let assigned = master.call::<wire::QueryTask>(&id).await;
        let client = match assigned {
            Ok(task) if !other => task.assigned_client,
            _ => self::id(77),
        };
        let request = wire::TaskCompleteRequest {
            id,
            status,
            message: format!("{status:?}"),
        };
        let arguments = (client, request);
        codes.push(master.call::<wire::MarkTaskToComplete>(&arguments).await);
    }
    let [stock, ours]: [Result<(), ErrorCode>; 2] = codes.try_into().unwrap();
    Compared {
        call: format!("MarkTaskToComplete({status:?}, other client: {other})"),
        stock: format!("{stock:?}"),
        ours: format!("{ours:?}"),
        codes: ours.err().into_iter().collect(),
    }
}

async fn state(generator: &mut Generator, at: [&mut Client; 2]) -> Compared {
    let ids = task(generator);
    let mut answers = Vec::new();
    for (master, id) in at.into_iter().zip(ids) {
        answers.push(master.call::<wire::QueryTask>(&id).await);
    }
    let [stock, ours]: [Result<wire::QueryTaskResponse, ErrorCode>; 2] =
        answers.try_into().unwrap();
    if let (Ok(stock), Ok(ours)) = (&stock, &ours) {
        assert!(stock.created_ms.abs_diff(ours.created_ms) < 60_000);
        assert!(stock.updated_ms.abs_diff(ours.updated_ms) < 60_000);
    }
    let codes = ours.as_ref().err().copied().into_iter().collect();
    let text = |answer: Result<wire::QueryTaskResponse, ErrorCode>| match answer {
        Ok(task) if task.kind == wire::TaskKind::Move => format!(
            "{:?} by {:?}: {:?}, {}",
            task.kind, task.assigned_client, task.status, task.message
        ),
        Ok(task) => format!("{:?}: {:?}, {}", task.kind, task.status, task.message),
        Err(code) => code.to_string(),
    };
    Compared {
        call: "QueryTask(of a task)".into(),
        stock: text(stock),
        ours: text(ours),
        codes,
    }
}
