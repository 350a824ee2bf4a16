//! Copy and move tasks: what clients request, for the clients of the segments that are read. They fetch them, and carry them out by
//! the calls of [`super::copies`].

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use proto::store::release_0_3_13::{
    CopyPayload, MovePayload, QueryTaskResponse, TaskAssignment, TaskCompleteRequest, TaskKind,
    TaskPayload, TaskStatus,
};
use proto::store::{ErrorCode, Uuid};
use proto::struct_pack::Blob;

use super::random::Random;
use super::scope::split;
use super::segments::MOST_REPLICAS;
use super::{Index, Moment};

/// Limits and times of the stock master.
const MOST_PENDING: usize = 10_000;
const MOST_PROCESSING: usize = 10_000;
const MOST_FINISHED: usize = 10_000;
const PENDING_TIME: Duration = Duration::from_secs(300);
const PROCESSING_TIME: Duration = Duration::from_secs(300);
const ATTEMPTS: u32 = 10;
/// Limits that the stock master has not: bytes of the texts of one request, of the payloads of all tasks that have not ended, and
/// of those of one answer, which engine processes refuse from 256 KiB on; and tasks of one answer.
const MOST_TEXT_BYTES: usize = 32 << 10;
const MOST_BYTES: usize = 64 << 20;
const MOST_FETCHED_BYTES: usize = 192 << 10;
const MOST_FETCHED: usize = 64;
/// Longest message of an ended task that is kept.
const MOST_MESSAGE_BYTES: usize = 1024;
/// Tasks whose time has ended that one call looks at.
const STEPS: usize = 64;

#[derive(Debug)]
struct Task {
    kind: TaskKind,
    status: TaskStatus,
    client: Uuid,
    /// Empty when it has ended.
    payload: Vec<u8>,
    created: Moment,
    created_ms: i64,
    updated: Moment,
    message: String,
}

impl Task {
    fn updated_ms(&self) -> i64 {
        let later = self.updated.0.saturating_sub(self.created.0) / 1000;
        let later = i64::try_from(later).unwrap_or(i64::MAX);
        self.created_ms.saturating_add(later)
    }
}

/// All tasks, those that ended last too.
#[derive(Debug)]
pub(super) struct Tasks {
    random: Random,
    all: HashMap<Uuid, Task>,
    /// Those that no client has fetched, of each client. None is empty.
    pending: HashMap<Uuid, VecDeque<Uuid>>,
    pending_count: usize,
    processing_count: usize,
    bytes: usize,
    /// In the order of their creation and of their first fetch, those that have ended too.
    created: VecDeque<(Moment, Uuid)>,
    fetched: VecDeque<(Moment, Uuid)>,
    finished: VecDeque<Uuid>,
}

impl Tasks {
    pub(super) fn new(seed: u64) -> Self {
        Self {
            random: Random::new(seed),
            all: HashMap::new(),
            pending: HashMap::new(),
            pending_count: 0,
            processing_count: 0,
            bytes: 0,
            created: VecDeque::new(),
            fetched: VecDeque::new(),
            finished: VecDeque::new(),
        }
    }

    /// Returns the number of times that are kept.
    #[cfg(test)]
    pub(super) fn times(&self) -> usize {
        self.created.len() + self.fetched.len()
    }

    /// Returns the bytes that all texts take.
    #[cfg(test)]
    pub(super) fn bytes(&self) -> usize {
        let texts = |task: &Task| task.payload.capacity() + task.message.capacity();
        self.all.values().map(texts).sum()
    }

    fn submit(
        &mut self,
        client: Uuid,
        payload: &TaskPayload,
        created_ms: i64,
        now: Moment,
    ) -> Result<Uuid, ErrorCode> {
        let kind = payload.kind();
        let mut payload = payload.to_json().into_bytes();
        payload.shrink_to_fit();
        let bytes = self.bytes.saturating_add(payload.len());
        if payload.len() > MOST_FETCHED_BYTES {
            return Err(ErrorCode::InvalidParams);
        }
        if self.pending_count >= MOST_PENDING || bytes > MOST_BYTES {
            return Err(ErrorCode::TaskPendingLimitExceeded);
        }
        let id = loop {
            let id = Uuid {
                first: self.random.next(),
                second: self.random.next(),
            };
            if !self.all.contains_key(&id) {
                break id;
            }
        };
        let task = Task {
            kind,
            status: TaskStatus::Pending,
            client,
            payload,
            created: now,
            created_ms,
            updated: now,
            message: String::new(),
        };
        self.bytes = bytes;
        self.pending_count += 1;
        self.pending.entry(client).or_default().push_back(id);
        self.created.push_back((now, id));
        self.all.insert(id, task);
        Ok(id)
    }

    fn fetch(&mut self, client: Uuid, most: usize, now: Moment) -> Vec<TaskAssignment> {
        let Some(queue) = self.pending.get_mut(&client) else {
            return Vec::new();
        };
        let room = MOST_PROCESSING.saturating_sub(self.processing_count);
        let count = queue.len().min(most).min(room).min(MOST_FETCHED);
        let mut bytes = 0;
        let fits = |id: &&Uuid| {
            bytes += self.all.get(id).map_or(0, |task| task.payload.len());
            bytes <= MOST_FETCHED_BYTES
        };
        let count = queue.iter().take(count).take_while(fits).count();
        let fetched: Vec<Uuid> = queue.drain(..count).collect();
        if queue.is_empty() {
            self.pending.remove(&client);
        }
        let mut assignments = Vec::with_capacity(fetched.len());
        for id in fetched {
            let Some(task) = self.all.get_mut(&id) else {
                continue;
            };
            (task.status, task.updated) = (TaskStatus::Processing, now);
            self.pending_count -= 1;
            self.processing_count += 1;
            self.fetched.push_back((now, id));
            assignments.push(TaskAssignment {
                id,
                kind: task.kind,
                payload: Blob(task.payload.clone()),
                created_at_ms: task.created_ms,
                max_retry: ATTEMPTS,
            });
        }
        assignments
    }

    fn complete(
        &mut self,
        client: Uuid,
        request: TaskCompleteRequest,
        now: Moment,
    ) -> Result<(), ErrorCode> {
        let TaskCompleteRequest {
            id,
            status,
            mut message,
        } = request;
        if !matches!(status, TaskStatus::Failed | TaskStatus::Success) {
            return Err(ErrorCode::InvalidParams);
        }
        let task = self.all.get(&id).ok_or(ErrorCode::TaskNotFound)?;
        if task.client != client {
            return Err(ErrorCode::IllegalClient);
        }
        message.truncate(message.floor_char_boundary(MOST_MESSAGE_BYTES));
        message.shrink_to_fit();
        self.finish(id, status, message, now);
        Ok(())
    }

    /// Ends a task, unless it has ended.
    fn finish(&mut self, id: Uuid, status: TaskStatus, message: String, now: Moment) {
        let Some(task) = self.all.get_mut(&id) else {
            return;
        };
        match task.status {
            TaskStatus::Pending => {
                self.pending_count -= 1;
                if let Some(queue) = self.pending.get_mut(&task.client) {
                    if queue.front() == Some(&id) {
                        queue.pop_front();
                    } else {
                        queue.retain(|other| *other != id);
                    }
                    if queue.is_empty() {
                        self.pending.remove(&task.client);
                    }
                }
            }
            TaskStatus::Processing => self.processing_count -= 1,
            _ => return,
        }
        self.bytes -= task.payload.len();
        task.payload = Vec::new();
        (task.status, task.message, task.updated) = (status, message, now);
        self.finished.push_back(id);
        self.forget_times();
        if self.finished.len() > MOST_FINISHED
            && let Some(oldest) = self.finished.pop_front()
        {
            self.all.remove(&oldest);
        }
    }

    /// Keeps no more times than there are tasks in progress, apart from a factor.
    fn forget_times(&mut self) {
        let all = &self.all;
        let is = |id: &Uuid, status| all.get(id).is_some_and(|task: &Task| task.status == status);
        if self.created.len() > 2 * self.pending_count + STEPS {
            self.created.retain(|(_, id)| is(id, TaskStatus::Pending));
        }
        if self.fetched.len() > 2 * self.processing_count + STEPS {
            self.fetched
                .retain(|(_, id)| is(id, TaskStatus::Processing));
        }
    }

    /// Ends tasks that no client fetches, and those whose client reports no end.
    pub(super) fn expire(&mut self, now: Moment) {
        for _ in 0..STEPS {
            let due = |queue: &VecDeque<(Moment, Uuid)>, time| {
                let front = queue.front().copied();
                front.filter(|(since, _): &(Moment, _)| since.after(time) < now)
            };
            if let Some((_, id)) = due(&self.created, PENDING_TIME) {
                self.created.pop_front();
                self.time_out(id, TaskStatus::Pending, "pending timeout", now);
            } else if let Some((_, id)) = due(&self.fetched, PROCESSING_TIME) {
                self.fetched.pop_front();
                self.time_out(id, TaskStatus::Processing, "processing timeout", now);
            } else {
                return;
            }
        }
    }

    fn time_out(&mut self, id: Uuid, status: TaskStatus, message: &str, now: Moment) {
        if self.all.get(&id).is_some_and(|task| task.status == status) {
            self.finish(id, TaskStatus::Failed, message.into(), now);
        }
    }
}

impl Index {
    /// Requests a copy of an object to these segments, from one of those that it is in. `created_ms` is the time since 1970.
    ///
    /// # Errors
    /// `ObjectNotFound`; `InvalidParams` without targets, if one is not mounted, or if they are too long; `Internal` without a replica to read;
    /// `TaskPendingLimitExceeded`; `TenantNotRegistered`.
    pub fn create_copy_task(
        &mut self,
        key: &str,
        targets: Vec<String>,
        created_ms: i64,
        now: Moment,
    ) -> Result<Uuid, ErrorCode> {
        self.writer(key)?;
        let text = targets.iter().fold(key.len(), |sum, name| sum + name.len());
        if targets.is_empty() || targets.len() > MOST_REPLICAS || text > MOST_TEXT_BYTES {
            return Err(ErrorCode::InvalidParams);
        }
        let names = self.segments_with(key)?;
        if targets
            .iter()
            .any(|name| self.segments.named(name).is_empty())
        {
            return Err(ErrorCode::InvalidParams);
        }
        let at = self.tasks.random.below(names.len());
        let (source, client) = names.into_iter().nth(at).ok_or(ErrorCode::Internal)?;
        let (tenant_id, key) = named(key);
        let payload = TaskPayload::Copy(CopyPayload {
            tenant_id,
            key,
            source,
            targets,
            dynamic: None,
        });
        self.tasks.submit(client, &payload, created_ms, now)
    }

    /// Requests that an object moves from one segment to another.
    ///
    /// # Errors
    /// `ObjectNotFound`; `InvalidParams` if both are the same, if the target is not mounted, or if the object is not in the
    /// source; `TaskPendingLimitExceeded`; `TenantNotRegistered`.
    pub fn create_move_task(
        &mut self,
        key: &str,
        source: String,
        target: String,
        created_ms: i64,
        now: Moment,
    ) -> Result<Uuid, ErrorCode> {
        self.writer(key)?;
        if key.len() + source.len() + target.len() > MOST_TEXT_BYTES {
            return Err(ErrorCode::InvalidParams);
        }
        let names = self.segments_with(key)?;
        if source == target || self.segments.named(&target).is_empty() {
            return Err(ErrorCode::InvalidParams);
        }
        let mut names = names.into_iter();
        let found = names.find(|(name, _)| *name == source);
        let (_, client) = found.ok_or(ErrorCode::InvalidParams)?;
        let (tenant_id, key) = named(key);
        let payload = TaskPayload::Move(MovePayload {
            tenant_id,
            key,
            source,
            target,
        });
        self.tasks.submit(client, &payload, created_ms, now)
    }

    /// Returns the names of the segments that an object is in, or is being copied to, with their clients; the former first.
    fn segments_with(&mut self, key: &str) -> Result<Vec<(String, Uuid)>, ErrorCode> {
        let id = self.find(key).ok_or(ErrorCode::ObjectNotFound)?;
        let replicas = self.objects[id].replicas.iter();
        let replicas = replicas.chain(self.copies.targets(id));
        let mounted = replicas.filter_map(|replica| self.segments.get(replica.segment));
        let names = mounted.map(|mounted| (mounted.segment.name.clone(), mounted.client));
        Ok(names.collect())
    }

    /// Returns tasks of a client, which is to carry them out.
    pub fn fetch_tasks(&mut self, client: Uuid, most: u64, now: Moment) -> Vec<TaskAssignment> {
        let most = usize::try_from(most).unwrap_or(usize::MAX);
        self.tasks.fetch(client, most, now)
    }

    /// Ends a task as its client reports. Repeating it is no error.
    ///
    /// # Errors
    /// `InvalidParams` for a status that is no end; `TaskNotFound`; `IllegalClient` for the task of another client.
    pub fn complete_task(
        &mut self,
        client: Uuid,
        request: TaskCompleteRequest,
        now: Moment,
    ) -> Result<(), ErrorCode> {
        self.tasks.complete(client, request, now)
    }

    /// Returns the state of a task.
    ///
    /// # Errors
    /// `TaskNotFound`, also for one that ended 10,000 tasks ago.
    pub fn task(&self, id: Uuid) -> Result<QueryTaskResponse, ErrorCode> {
        let task = self.tasks.all.get(&id).ok_or(ErrorCode::TaskNotFound)?;
        Ok(QueryTaskResponse {
            id,
            kind: task.kind,
            status: task.status,
            created_ms: task.created_ms,
            updated_ms: task.updated_ms(),
            assigned_client: task.client,
            message: task.message.clone(),
        })
    }
}

/// The tenant of a key of the index, and its key.
fn named(key: &str) -> (String, String) {
    let (tenant, key) = split(key);
    (tenant.into(), key.into())
}
