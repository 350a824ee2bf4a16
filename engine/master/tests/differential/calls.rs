//! Generates random calls, most of which make sense in the state that the calls before have left.

#[path = "copies.rs"]
mod copies;

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::time::Duration;

use proto::coro_rpc::Failure;
use proto::store::release_0_3_13 as wire;
use proto::store::{BareRpc, ErrorCode, Rpc, Uuid};
use wire::{ObjectMeta, ReplicaDescriptor, ReplicaType, ReplicateConfig, Segment, SoftPinAction};

use crate::client::Client;
use crate::compared::{Compared, found, list};

const KEYS: u64 = 30;
const SEGMENT_BYTES: u64 = 64 << 20;
const SEGMENTS: u64 = 4;
/// Quotas of the tenants. The first one has no objects: it takes most of the capacity, so that the others have tens of KiB for
/// each mounted segment.
pub(crate) const QUOTAS: &str = "version: 1
tenants:
  - {name: idle, quota: 1000GB}
  - {name: default, quota: 1GB}
  - {name: a, quota: 300MB}
  - {name: b, quota: 104857601}
";
const REGISTERED: [&str; 3] = ["default", "a", "b"];
/// Time for the stock master to remove the objects of an unmounted segment; see [`crate::compared::ALLOWED`].
const SWEEP: Duration = Duration::from_millis(20);

pub(crate) struct Generator {
    random: u64,
    /// Which segments are mounted, so that the placement can be named: where it cannot, both masters choose at random.
    mounted: Vec<bool>,
    /// The masters have tenants.
    tenants: bool,
    /// Tasks with their IDs at both masters.
    tasks: Vec<[Uuid; 2]>,
}

/// A function that has no result of its own.
struct Unknown;

impl Rpc for Unknown {
    const METHOD: &'static str = "CalcCacheStats";
    type Arguments = ();
    type Value = ();
}

/// `Ping` with other arguments.
struct OtherPing;

impl Rpc for OtherPing {
    const METHOD: &'static str = "Ping";
    type Arguments = String;
    type Value = ();
}

fn id(number: u64) -> Uuid {
    Uuid {
        first: 7,
        second: number,
    }
}

fn segment(number: u64) -> Segment {
    Segment {
        id: id(100 + number),
        // Stock masters take endpoints for names when they place the objects of a batch together.
        name: format!("10.0.0.{number}:1200{number}"),
        base: (1 << 58) + (number << 30),
        size: SEGMENT_BYTES,
        te_endpoint: format!("10.0.0.{number}:1200{number}"),
        protocol: "tcp".into(),
        host_id: String::new(),
    }
}

type Answer<T> = Result<Result<T, ErrorCode>, Failure>;

fn codes<T>(results: &[Result<T, ErrorCode>]) -> Vec<ErrorCode> {
    results
        .iter()
        .filter_map(|result| result.as_ref().err().copied())
        .collect()
}

impl Generator {
    pub(crate) fn new(seed: u64) -> Self {
        Self {
            random: seed,
            mounted: (0..SEGMENTS).map(|_| false).collect(),
            tenants: false,
            tasks: Vec::new(),
        }
    }

    /// For masters with [`QUOTAS`]. No object can be evicted, and each value of a key has the same size: see
    /// [`crate::compared::ALLOWED`].
    pub(crate) fn with_tenants(seed: u64) -> Self {
        Self {
            tenants: true,
            ..Self::new(seed)
        }
    }

    /// Returns a number below `limit`.
    fn below(&mut self, limit: u64) -> u64 {
        self.random = self.random.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut bits = self.random;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (bits ^ (bits >> 31)) % limit
    }

    /// Is true once in `times`.
    fn once_in(&mut self, times: u64) -> bool {
        self.below(times) == 0
    }

    fn key(&mut self) -> String {
        if self.once_in(60) {
            return String::new();
        }
        format!("key{}", self.below(KEYS))
    }

    fn keys(&mut self) -> Vec<String> {
        let count = self.below(6);
        (0..count).map(|_| self.key()).collect()
    }

    fn tenant(&mut self) -> String {
        if self.tenants {
            // Unregistered, none, and no names of tenants.
            let rare = ["other", "", "_a", "a\u{1}"];
            return match usize::try_from(self.below(40)).unwrap() {
                number @ 0..4 => rare[number],
                number => REGISTERED[number % 3],
            }
            .into();
        }
        ["default", "default", "default", "", "other"][usize::try_from(self.below(5)).unwrap()]
            .into()
    }

    fn client(&mut self) -> Uuid {
        // Most often the same one, so that puts end.
        let number = if self.once_in(8) { self.below(4) } else { 1 };
        id(number)
    }

    fn size(&mut self) -> u64 {
        match self.below(40) {
            0 => 0,
            1 => SEGMENT_BYTES + 1,
            2 => u64::MAX / 2,
            _ => [1, 100, 4096][usize::try_from(self.below(3)).unwrap()],
        }
    }

    /// Returns the size of a put of this key.
    fn size_of(&mut self, key: &str) -> u64 {
        let size = self.size();
        self.fixed(key, size)
    }

    /// Where there are tenants, all values of a key have the same size.
    fn fixed(&self, key: &str, size: u64) -> u64 {
        let usual = [1, 100, 4096];
        if self.tenants && usual.contains(&size) {
            return usual[key.bytes().map(usize::from).sum::<usize>() % 3];
        }
        size
    }

    /// Returns key and size of an upsert. One that finds no space has a key of its own: the stock master then removes
    /// the old value, ours keeps it.
    fn upsert(&mut self) -> (String, u64) {
        let size = self.size();
        if size > SEGMENT_BYTES {
            return (format!("fresh{}", self.below(u64::MAX)), size);
        }
        let key = self.key();
        let size = self.fixed(&key, size);
        (key, size)
    }

    fn kind(&mut self) -> ReplicaType {
        match self.below(24) {
            0 => ReplicaType::Disk,
            1 => ReplicaType::LocalDisk,
            2 => ReplicaType::NofSsd,
            3 => ReplicaType::Dfs,
            4..8 => ReplicaType::Memory,
            _ => ReplicaType::All,
        }
    }

    fn meta(&mut self) -> ObjectMeta {
        ObjectMeta {
            key: self.key(),
            object_checksum: if self.once_in(2) {
                Some(self.below(1000))
            } else {
                None
            },
        }
    }

    /// A placement that names a mounted segment for each replica.
    fn config(&mut self, keys: usize) -> ReplicateConfig {
        let mut names: Vec<String> = (0..SEGMENTS)
            .filter(|&number| self.mounted[usize::try_from(number).unwrap()])
            .map(|number| segment(number).name)
            .collect();
        if !names.is_empty() {
            let turn = usize::try_from(self.below(names.len() as u64)).unwrap();
            names.rotate_left(turn);
        }
        // More than there are segments: each gets one.
        let all = self.once_in(30) && !self.tenants;
        let replica_num = if all {
            SEGMENTS + 1
        } else if self.once_in(4) && names.len() > 1 {
            2
        } else {
            1
        };
        let mut config = ReplicateConfig {
            replica_num,
            preferred_segments: names,
            ..ReplicateConfig::default()
        };
        if self.once_in(20) && replica_num == 1 {
            config.preferred_segment = config
                .preferred_segments
                .first()
                .cloned()
                .unwrap_or_default();
        }
        match self.below(60) {
            0 => config.replica_num = 0,
            1 => config.nof_replica_num = 1,
            2 => config.soft_pin_ttl_ms = Some(5),
            3 => config.soft_pin_action = SoftPinAction::Unknown(9),
            4..8 => config.soft_pin_action = SoftPinAction::Enable,
            8 => {
                config.soft_pin_action = SoftPinAction::Enable;
                config.soft_pin_ttl_ms = Some(25 * 3600 * 1000);
            }
            9 => config.soft_pin_action = SoftPinAction::Disable,
            10..13 => config.with_hard_pin = true,
            13 => config.prefer_alloc_in_same_node = config.replica_num == 1,
            14 => config.data_type = 3,
            15..24 => {
                let count = if self.once_in(8) { keys + 1 } else { keys };
                let groups = (0..count).map(|_| format!("group{}", self.below(2)));
                config.group_ids = Some(groups.collect());
            }
            _ => {}
        }
        config.with_hard_pin |= self.tenants;
        config
    }

    fn pattern(&mut self) -> String {
        let patterns = [
            "^key1$", "key2", "^key1.$", "nothing", "", "[", "(", "*", "key(3|4)", "^k.*7$",
            "\\d9$", "y[56]$",
        ];
        patterns[usize::try_from(self.below(patterns.len() as u64)).unwrap()].into()
    }

    fn force(&mut self) -> bool {
        self.once_in(3)
    }

    /// Calls both masters.
    async fn rpc<R: Rpc>(
        &mut self,
        arguments: R::Arguments,
        masters: [&mut Client; 2],
        text: impl Fn(&R::Value) -> String,
    ) -> Compared
    where
        R::Arguments: Debug,
    {
        let [stock, ours] = masters;
        let answers: [Answer<R::Value>; 2] = [
            stock.try_call::<R>(&arguments).await,
            ours.try_call::<R>(&arguments).await,
        ];
        let codes = match &answers[1] {
            Ok(Err(code)) => vec![*code],
            _ => Vec::new(),
        };
        let write = |answer: &Answer<R::Value>| match answer {
            Ok(Ok(value)) => text(value),
            Ok(Err(code)) => code.to_string(),
            Err(failure) => format!("{failure:?}"),
        };
        let [stock, ours] = answers.each_ref().map(write);
        Compared {
            call: format!("{}({arguments:?})", R::METHOD),
            stock,
            ours,
            codes,
        }
    }

    async fn plain<R: Rpc>(
        &mut self,
        arguments: R::Arguments,
        masters: [&mut Client; 2],
    ) -> Compared
    where
        R::Arguments: Debug,
        R::Value: Debug,
    {
        self.rpc::<R>(arguments, masters, |value| format!("{value:?}"))
            .await
    }

    async fn list<R: Rpc<Value = Vec<ReplicaDescriptor>>>(
        &mut self,
        arguments: R::Arguments,
        masters: [&mut Client; 2],
    ) -> Compared
    where
        R::Arguments: Debug,
    {
        self.rpc::<R>(arguments, masters, |replicas| list(replicas))
            .await
    }

    async fn batch<R, T>(
        &mut self,
        arguments: R::Arguments,
        masters: [&mut Client; 2],
        text: impl Fn(&T) -> String,
    ) -> Compared
    where
        R: BareRpc<Answer = Vec<Result<T, ErrorCode>>>,
        R::Arguments: Debug,
    {
        let [stock, ours] = masters;
        let answers = [
            stock.bare::<R>(&arguments).await,
            ours.bare::<R>(&arguments).await,
        ];
        let write = |answer: &R::Answer| {
            let texts: Vec<String> = answer
                .iter()
                .map(|one| match one {
                    Ok(value) => text(value),
                    Err(code) => code.to_string(),
                })
                .collect();
            format!("{texts:?}")
        };
        let [stock, ours] = answers.each_ref().map(write);
        Compared {
            call: format!("{}({arguments:?})", R::METHOD),
            stock,
            ours,
            codes: codes(&answers[1]),
        }
    }

    /// Makes one call.
    #[allow(clippy::too_many_lines, reason = "one arm for each function")]
    pub(crate) async fn next(&mut self, stock: &mut Client, ours: &mut Client) -> Compared {
        let at = [stock, ours];
        if self.once_in(8) {
            return copies::next(self, at).await;
        }
        let tenant = self.tenant();
        match self.below(100) {
            0..12 => {
                let key = self.key();
                let size = self.size_of(&key);
                let arguments = (self.client(), key, size, self.config(1), tenant);
                self.list::<wire::PutStart>(arguments, at).await
            }
            12..22 => {
                let arguments = (self.client(), self.meta(), self.kind(), tenant);
                self.plain::<wire::PutEnd>(arguments, at).await
            }
            22..25 => {
                let arguments = (self.client(), self.key(), self.kind(), tenant);
                self.plain::<wire::PutRevoke>(arguments, at).await
            }
            25..29 => {
                let (key, size) = self.upsert();
                let arguments = (self.client(), key, size, self.config(1), tenant);
                self.list::<wire::UpsertStart>(arguments, at).await
            }
            29..32 => {
                let arguments = (self.client(), self.meta(), self.kind(), tenant);
                self.plain::<wire::UpsertEnd>(arguments, at).await
            }
            32 => {
                let arguments = (self.client(), self.key(), self.kind(), tenant);
                self.plain::<wire::UpsertRevoke>(arguments, at).await
            }
            33..37 => {
                let keys = self.keys();
                let count = keys.len() + usize::from(self.once_in(20));
                let keys_and_one = keys.iter().cloned().chain([String::new()]);
                let sizes = keys_and_one.take(count).map(|key| self.size_of(&key));
                let sizes = sizes.collect();
                let arguments = (
                    self.client(),
                    keys.clone(),
                    sizes,
                    self.config(keys.len()),
                    tenant,
                );
                self.batch::<wire::BatchPutStart, _>(arguments, at, |replicas| list(replicas))
                    .await
            }
            37..40 => {
                let count = self.below(6);
                let metas = (0..count).map(|_| self.meta()).collect();
                let arguments = (self.client(), metas, self.kind(), tenant);
                self.batch::<wire::BatchPutEnd, _>(arguments, at, |()| "done".into())
                    .await
            }
            40 => {
                let arguments = (self.client(), self.keys(), self.kind(), tenant);
                self.batch::<wire::BatchPutRevoke, _>(arguments, at, |()| "done".into())
                    .await
            }
            41 => {
                let count = self.below(6);
                let (keys, sizes): (Vec<_>, _) = (0..count).map(|_| self.upsert()).unzip();
                let arguments = (
                    self.client(),
                    keys.clone(),
                    sizes,
                    self.config(keys.len()),
                    tenant,
                );
                self.batch::<wire::BatchUpsertStart, _>(arguments, at, |replicas| list(replicas))
                    .await
            }
            42 => {
                let count = self.below(6);
                let metas = (0..count).map(|_| self.meta()).collect();
                let arguments = (self.client(), metas, tenant);
                self.batch::<wire::BatchUpsertEnd, _>(arguments, at, |()| "done".into())
                    .await
            }
            43 => {
                let arguments = (self.client(), self.keys(), tenant);
                self.batch::<wire::BatchUpsertRevoke, _>(arguments, at, |()| "done".into())
                    .await
            }
            44..48 => {
                let arguments = (self.key(), tenant);
                self.plain::<wire::ExistKey>(arguments, at).await
            }
            48..50 => {
                let arguments = (self.keys(), tenant);
                self.batch::<wire::BatchExistKey, _>(arguments, at, |exists| exists.to_string())
                    .await
            }
            50..56 => {
                let arguments = (self.key(), tenant);
                self.rpc::<wire::GetReplicaList>(arguments, at, found).await
            }
            56..60 => {
                let arguments = (self.keys(), tenant);
                self.batch::<wire::BatchGetReplicaList, _>(arguments, at, found)
                    .await
            }
            60..62 => {
                let arguments = (self.pattern(), tenant);
                self.rpc::<wire::GetReplicaListByRegex>(
                    arguments,
                    at,
                    |found: &BTreeMap<String, Vec<ReplicaDescriptor>>| {
                        let texts: Vec<_> = found
                            .iter()
                            .map(|(key, replicas)| format!("{key}: {}", list(replicas)))
                            .collect();
                        texts.join(", ")
                    },
                )
                .await
            }
            62..72 => {
                let arguments = (self.key(), self.force(), tenant);
                self.plain::<wire::Remove>(arguments, at).await
            }
            72..75 => {
                let arguments = (self.keys(), self.force(), tenant);
                self.batch::<wire::BatchRemove, _>(arguments, at, |()| "done".into())
                    .await
            }
            75..78 => {
                let arguments = (self.pattern(), self.force(), tenant);
                self.plain::<wire::RemoveByRegex>(arguments, at).await
            }
            78 => {
                let arguments = (self.force(), tenant);
                let [stock, ours] = at;
                let text = async |client: &mut Client| {
                    client.bare::<wire::RemoveAll>(&arguments).await.to_string()
                };
                Compared {
                    stock: text(stock).await,
                    ours: text(ours).await,
                    call: format!("RemoveAll({arguments:?})"),
                    codes: Vec::new(),
                }
            }
            79..82 => {
                let name = if self.once_in(3) || self.tenants {
                    String::new()
                } else {
                    segment(self.below(SEGMENTS + 1)).name
                };
                let arguments = (self.keys(), self.client(), name);
                self.plain::<wire::BatchReplicaClear>(arguments, at).await
            }
            82..90 => self.segments(at).await,
            90..93 => {
                let client = self.client();
                self.plain::<wire::Ping>(client, at).await
            }
            _ => self.small(at).await,
        }
    }

    /// Calls that mount, unmount and query segments.
    async fn segments(&mut self, at: [&mut Client; 2]) -> Compared {
        let number = self.below(SEGMENTS);
        let [stock, ours] = at;
        let compared = self.segment(number, [stock, ours]).await;
        if compared.call.starts_with("UnmountSegment") {
            tokio::time::sleep(SWEEP).await;
        }
        let status = stock
            .call::<wire::QuerySegmentStatusById>(&segment(number).id)
            .await;
        self.mounted[usize::try_from(number).unwrap()] = status == Ok(wire::SegmentStatus::Ok);
        compared
    }

    async fn segment(&mut self, number: u64, at: [&mut Client; 2]) -> Compared {
        let mut mine = segment(number);
        let owner = id(number);
        match self.below(12) {
            0..4 => {
                match self.below(20) {
                    0 => mine.size = 0,
                    1 => mine.base = 0,
                    _ => {}
                }
                self.plain::<wire::MountSegment>((mine, owner), at).await
            }
            4 => {
                if !self.once_in(4) {
                    return self.plain::<wire::QuerySegmentStatus>(mine.name, at).await;
                }
                let [stock, ours] = at;
                for (client, tenant) in
                    (0..4).flat_map(|client| REGISTERED.map(|tenant| (client, tenant)))
                {
                    // See ALLOWED: no put is in progress.
                    let keys = (0..KEYS).map(|number| format!("key{number}")).collect();
                    let arguments = (id(client), keys, ReplicaType::All, tenant.into());
                    stock.bare::<wire::BatchPutRevoke>(&arguments).await;
                    ours.bare::<wire::BatchPutRevoke>(&arguments).await;
                }
                copies::revoke_all([&mut *stock, &mut *ours]).await;
                let at = [stock, ours];
                self.plain::<wire::UnmountSegment>((mine.id, owner), at)
                    .await
            }
            5..7 => {
                let name = segment(self.below(SEGMENTS + 1)).name;
                self.plain::<wire::QuerySegmentStatus>(name, at).await
            }
            7..9 => {
                let id = segment(self.below(SEGMENTS + 1)).id;
                self.plain::<wire::QuerySegmentStatusById>(id, at).await
            }
            9 => {
                let client = if self.once_in(2) {
                    owner
                } else {
                    self.client()
                };
                if self.mounted[usize::try_from(number).unwrap()] && client == owner {
                    // An upsert of its objects would go elsewhere; see ALLOWED.
                    return self.plain::<wire::Ping>(client, at).await;
                }
                self.plain::<wire::GracefulUnmountSegment>((mine.id, client, 36_000_000), at)
                    .await
            }
            10 => {
                let clients = (0..3).map(|_| id(self.below(6))).collect();
                let compared = self.plain::<wire::BatchQueryIp>(clients, at).await;
                Compared {
                    codes: Vec::new(),
                    ..compared
                }
            }
            _ => {
                let (mut segments, mut owner) = (vec![mine], owner);
                if self.once_in(6) {
                    segments.clear();
                } else if self.once_in(6) {
                    segments[0].size += 1;
                    segments[0].id = id(999);
                    segments[0].base = 0;
                    // Nothing is checked for a confirmed client.
                    owner = id(1000 + self.below(1_000_000));
                }
                self.plain::<wire::ReMountSegment>((segments, owner), at)
                    .await
            }
        }
    }

    /// Calls whose answer does not depend on the state, or that are refused.
    async fn small(&mut self, at: [&mut Client; 2]) -> Compared {
        let client = self.client();
        let key = self.key();
        let tenant = self.tenant();
        let other = || tenant.clone();
        match self.below(24) {
            0 => self.plain::<wire::ServiceReady>((), at).await,
            1 => self.plain::<wire::GetStorageConfig>((), at).await,
            2 => self.plain::<wire::GetFsdir>((), at).await,
            3 => self.plain::<wire::FetchTasks>((client, 0), at).await,
            4 => self.plain::<wire::QueryTask>(client, at).await,
            5 => {
                let request = wire::TaskCompleteRequest {
                    id: client,
                    status: wire::TaskStatus::from(i32::try_from(self.below(5)).unwrap()),
                    message: String::new(),
                };
                self.plain::<wire::MarkTaskToComplete>((client, request), at)
                    .await
            }
            6 => self.plain::<wire::GetAllNoFSegments>((), at).await,
            7 => self.plain::<wire::GetNoFSegmentsByName>(key, at).await,
            8 => {
                let segment = wire::NofSegment {
                    id: client,
                    name: other(),
                    base: 1,
                    size: 1,
                    te_endpoint: other(),
                };
                self.plain::<wire::MountNoFSegment>((segment, client), at)
                    .await
            }
            9 => {
                self.plain::<wire::ReMountNoFSegment>((Vec::new(), client), at)
                    .await
            }
            10 => {
                self.plain::<wire::UnmountNoFSegment>((client, client), at)
                    .await
            }
            11 => {
                self.plain::<wire::MountLocalDiskSegment>((client, true), at)
                    .await
            }
            12 => {
                self.plain::<wire::UnmountLocalDiskSegment>(client, at)
                    .await
            }
            13 => {
                self.plain::<wire::OffloadObjectHeartbeat>((client, true), at)
                    .await
            }
            14 => self.plain::<wire::ReportSsdCapacity>((client, 5), at).await,
            15 => {
                self.plain::<wire::NotifyOffloadSuccess>((client, Vec::new(), Vec::new()), at)
                    .await
            }
            16 => {
                self.plain::<wire::PromotionObjectHeartbeat>(client, at)
                    .await
            }
            17 => {
                self.rpc::<wire::PromotionAllocStart>(
                    (client, key, other(), 5, Vec::new()),
                    at,
                    |value| format!("{value:?}"),
                )
                .await
            }
            18 => {
                self.plain::<wire::NotifyPromotionSuccess>((client, key, other()), at)
                    .await
            }
            19 => {
                self.plain::<wire::NotifyPromotionFailure>((client, key, other()), at)
                    .await
            }
            20 => self.plain::<wire::PollRemoveAll>(client, at).await,
            21 => self.plain::<OtherPing>(key, at).await,
            22 => self.plain::<Unknown>((), at).await,
            _ => {
                let kind = self.kind();
                self.plain::<wire::EvictDiskReplica>((client, key, other(), kind), at)
                    .await
            }
        }
    }
}
