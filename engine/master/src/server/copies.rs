//! Copies and moves of objects by clients, and tasks for them.

use std::time::{SystemTime, UNIX_EPOCH};

use proto::store::release_0_3_13 as wire;

use super::functions::Function;

pub(super) fn functions() -> Vec<Function> {
    vec![
        Function::rpc::<wire::CreateCopyTask>(|index, (key, tenant, targets), now| {
            let mut scope = index.scope_of_puts(&tenant, 1)?;
            index.create_copy_task(scope.key(&key)?, targets, since_1970(), now)
        }),
        Function::rpc::<wire::CreateMoveTask>(|index, (key, tenant, source, target), now| {
            let mut scope = index.scope_of_puts(&tenant, 1)?;
            index.create_move_task(scope.key(&key)?, source, target, since_1970(), now)
        }),
        Function::rpc::<wire::QueryTask>(|index, id, _| index.task(id)),
        Function::rpc::<wire::FetchTasks>(|index, (client, most), now| {
            Ok(index.fetch_tasks(client, most, now))
        }),
        Function::rpc::<wire::MarkTaskToComplete>(|index, (client, request), now| {
            index.complete_task(client, request, now)
        }),
        Function::rpc::<wire::CopyStart>(|index, (client, key, tenant, source, targets), now| {
            let mut scope = index.scope_of_puts(&tenant, 1)?;
            index.copy_start(client, scope.key(&key)?, &source, &targets, now)
        }),
        Function::rpc::<wire::CopyEnd>(|index, (client, key, tenant), now| {
            let mut scope = index.scope(&tenant)?;
            index.copy_end(client, scope.key(&key)?, now)
        }),
        Function::rpc::<wire::CopyRevoke>(|index, (client, key, tenant), now| {
            let mut scope = index.scope(&tenant)?;
            index.copy_revoke(client, scope.key(&key)?, now)
        }),
        Function::rpc::<wire::MoveStart>(|index, (client, key, tenant, source, target), now| {
            let mut scope = index.scope_of_puts(&tenant, 1)?;
            index.move_start(client, scope.key(&key)?, &source, &target, now)
        }),
        Function::rpc::<wire::MoveEnd>(|index, (client, key, tenant), now| {
            let mut scope = index.scope(&tenant)?;
            index.move_end(client, scope.key(&key)?, now)
        }),
        Function::rpc::<wire::MoveRevoke>(|index, (client, key, tenant), now| {
            let mut scope = index.scope(&tenant)?;
            index.move_revoke(client, scope.key(&key)?, now)
        }),
    ]
}

/// Milliseconds since 1970.
fn since_1970() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    let milliseconds = since.map_or(0, |since| since.as_millis());
    i64::try_from(milliseconds).unwrap_or(i64::MAX)
}
