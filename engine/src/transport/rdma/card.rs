//! An opened RDMA device with what all data threads share: protection domain, port, and keys of regions.

use std::collections::HashMap;
use std::fmt;
use std::net::Ipv6Addr;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use proto::rdma::{Device, Link, Side, gid_text};
use sys::mem::Region;
use sys::verbs::{
    self, Class, CompletionQueue, Context, Limits, LinkLayer, MemoryRegion, Path, PortFacts,
    ProtectionDomain, RemoteKey, devices,
};
use tokio::sync::{oneshot, watch};
use tokio::time::Instant;

use super::failures::Failures;
use super::health::Health;
use super::worker::{CardError, Worker};
use crate::transport::RegionId;

/// A registration pins its pages: seconds per 100 GiB of huge pages, more with small ones.
const REGISTRATION: Duration = Duration::from_secs(300);
/// Its end releases them, which takes a part of that time.
const DEREGISTRATION: Duration = Duration::from_secs(60);

/// The call that ends a registration.
const DEREGISTERING: &str = "deregistering memory";

/// Roles of the control threads.
const CONTROL: &str = "card";
const REGISTRAR: &str = "keys";

/// Which port of which device, and which of its addresses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Port {
    /// Name of the device, for example `mlx5_0`.
    pub device: String,
    /// Number of the port, from 1.
    pub number: u8,
    /// Index in the port's GID table.
    pub gid_index: u8,
    /// Of the packets that leave it.
    pub class: Class,
}

/// An opened device. The last handle closes it.
pub struct Card {
    port: Port,
    path: Path,
    gid: Ipv6Addr,
    lid: u16,
    limits: Limits,
    context: Context,
    domain: ProtectionDomain,
    /// Of queue pairs that only serve, which complete nothing.
    silent: CompletionQueue,
    worker: Worker,
    /// Registers only: that takes so long that the handshakes of peers would wait in vain behind it. Ends of
    /// registrations stay behind those of queue pairs.
    registrar: Worker,
    registration: Duration,
    deregistration: Duration,
    /// By region and wire base: a region that gets another base has two for a time.
    keys: Mutex<HashMap<(RegionId, u64), Registered>>,
    refusals: Refusals,
    health: Arc<Health>,
    /// Why registrations failed, until all regions of an endpoint are registered.
    failures: Mutex<Failures>,
}

struct Registered {
    memory: Arc<MemoryRegion>,
    /// Called after the deregistration.
    waiting: Vec<Withdrawn>,
}

/// The calls by which a device was to end an access, and which it has refused. It gets no more memory after the first one.
#[derive(Debug, Clone)]
pub(super) struct Refusals {
    device: String,
    last: watch::Sender<Option<Arc<verbs::Error>>>,
}

impl Refusals {
    fn of(device: &str) -> Self {
        Self {
            device: device.to_owned(),
            last: watch::Sender::new(None),
        }
    }

    /// Adds and logs one.
    pub(super) fn add(&self, error: verbs::Error) {
        self.last.send_replace(Some(Arc::new(error)));
        if let Some(error) = self.last() {
            tracing::error!("{error}");
        }
    }

    fn last(&self) -> Option<CardError> {
        let last = self.last.borrow();
        last.as_ref().map(|source| CardError::Refused {
            device: self.device.clone(),
            source: Arc::clone(source),
        })
    }

    /// Resolves when there is one.
    async fn wait(&self) -> CardError {
        let mut last = self.last.subscribe();
        loop {
            if let Some(error) = self.last() {
                return error;
            }
            if last.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    }
}

/// Reports the end of a registration.
pub(super) type Withdrawn = Box<dyn FnOnce() + Send>;

impl fmt::Debug for Card {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Card")
            .field("port", &self.port)
            .finish_non_exhaustive()
    }
}

/// An opened device without its control threads. A process that opens devices before its sandbox has no thread by then.
pub struct OpenedDevice {
    port: Port,
    opened: Opened,
}

impl fmt::Debug for OpenedDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OpenedDevice")
            .field("port", &self.port)
            .finish_non_exhaustive()
    }
}

impl OpenedDevice {
    /// Opens a device on the calling thread. An unhealthy device may block it for ever.
    ///
    /// # Errors
    /// [`CardError::Missing`]; [`CardError::Down`]; [`CardError::Verbs`] with the call that failed.
    pub fn open(port: Port) -> Result<Self, CardError> {
        // State, MTU and GID of the port are read here once: libibverbs may read a GID from sysfs, which a process in a
        // sandbox has not. What the engine calls later goes to the open device file.
        let opened = open(&port)?;
        Ok(Self { port, opened })
    }

    /// Starts the control threads.
    ///
    /// # Errors
    /// [`CardError::Thread`].
    pub fn start(self) -> Result<Arc<Card>, CardError> {
        let worker = Worker::start(CONTROL, &self.port.device)?;
        Card::of(self, worker)
    }
}

struct Opened {
    context: Context,
    limits: Limits,
    facts: PortFacts,
    gid: Ipv6Addr,
    domain: ProtectionDomain,
    silent: CompletionQueue,
}

impl Card {
    /// Opens a device. Blocks for 10 s at most.
    ///
    /// # Errors
    /// [`CardError::Missing`]; [`CardError::Down`]; [`CardError::Verbs`] with the call that failed;
    /// [`CardError::Hung`].
    pub fn open(port: Port) -> Result<Arc<Self>, CardError> {
        let worker = Worker::start(CONTROL, &port.device)?;
        let opening = move || OpenedDevice::open(port);
        let opened = worker.call_blocking("opening the device", None, opening)??;
        Self::of(opened, worker)
    }

    fn of(
        OpenedDevice { port, opened }: OpenedDevice,
        worker: Worker,
    ) -> Result<Arc<Self>, CardError> {
        let registrar = Worker::start(REGISTRAR, &port.device)?;
        let Opened {
            context,
            limits,
            facts,
            gid,
            domain,
            silent,
        } = opened;
        Ok(Arc::new(Self {
            path: Path {
                port: port.number,
                gid: (!gid.is_unspecified()).then_some(port.gid_index),
                class: port.class,
                link_layer: facts.link_layer,
                mtu: facts.mtu,
            },
            lid: match facts.link_layer {
                LinkLayer::InfiniBand => facts.lid,
                LinkLayer::Ethernet => 0,
            },
            refusals: Refusals::of(&port.device),
            health: Arc::new(Health::new(&port.device, port.number)),
            port,
            gid,
            limits,
            context,
            domain,
            silent,
            worker,
            registrar,
            registration: REGISTRATION,
            deregistration: DEREGISTRATION,
            keys: Mutex::default(),
            failures: Mutex::default(),
        }))
    }

    /// Sets the deadline of deregistrations.
    #[cfg(test)]
    pub(super) fn deregister_within(mut self: Arc<Self>, within: Duration) -> Arc<Self> {
        if let Some(card) = Arc::get_mut(&mut self) {
            card.deregistration = within;
        }
        self
    }

    /// Sets the deadline of registrations.
    #[cfg(test)]
    pub(super) fn register_within(mut self: Arc<Self>, within: Duration) -> Arc<Self> {
        if let Some(card) = Arc::get_mut(&mut self) {
            card.registration = within;
        }
        self
    }

    /// Resolves when a call that ends an access is past its deadline, or was refused.
    pub(super) async fn hung(&self) -> CardError {
        tokio::select! {
            hung = self.worker.hung() => hung,
            refused = self.refusals.wait() => refused,
        }
    }

    /// Fails if the device does not end earlier accesses.
    pub(super) fn check(&self) -> Result<(), CardError> {
        self.worker.check()?;
        self.refusals.last().map_or(Ok(()), Err)
    }

    pub(super) fn refusals(&self) -> &Refusals {
        &self.refusals
    }

    /// Logs calls that are past their deadlines, and notices the end of the device, as long as the control threads run.
    pub(crate) fn watch(&self) -> impl Future<Output = ()> + Send + 'static {
        let calls = futures::future::join(self.worker.watch(), self.registrar.watch());
        let health = Arc::clone(&self.health).watch(self.context.clone());
        async move {
            // The events are read no longer than the threads run: they keep the device open.
            let events = async {
                health.await;
                std::future::pending().await
            };
            tokio::select! {
                _ = calls => {}
                () = events => {}
            }
        }
    }

    /// Returns why the device no longer works in this process, if so.
    pub(super) fn lost(&self) -> Option<String> {
        self.health.lost()
    }

    /// Examines the device after a call that has failed.
    pub(super) fn examine(&self, error: &verbs::Error) {
        if error.may_be_gone() && self.lost().is_none() {
            let (health, context) = (Arc::clone(&self.health), self.context.clone());
            let probe = move || health.probe(&context);
            self.worker.start_call("querying the port", probe);
        }
    }

    /// Name of the device.
    #[must_use]
    pub fn device(&self) -> &str {
        &self.port.device
    }

    pub(crate) fn published(&self) -> Device {
        Device {
            gid: gid_text(self.gid),
            lid: self.lid,
            name: self.port.device.clone(),
        }
    }

    pub(super) fn link(&self) -> Link {
        match self.path.link_layer {
            LinkLayer::Ethernet => Link::Ethernet,
            LinkLayer::InfiniBand => Link::InfiniBand,
        }
    }

    /// Returns this end of a connection.
    pub(super) fn side<'a>(&self, nic_path: &'a str) -> Side<'a> {
        Side {
            nic_path,
            gid: Some(self.gid),
            lid: self.lid,
            mtu: Some(mtu_bytes(self.path.mtu)),
        }
    }

    /// Returns the local end with an MTU in bytes that both ends have.
    pub(super) fn path(&self, mtu: Option<u32>) -> Path {
        Path {
            mtu: mtu.map_or(self.path.mtu, |bytes| mtu_code(bytes).min(self.path.mtu)),
            ..self.path
        }
    }

    pub(super) fn limits(&self) -> Limits {
        self.limits
    }

    pub(super) fn context(&self) -> &Context {
        &self.context
    }

    pub(super) fn domain(&self) -> &ProtectionDomain {
        &self.domain
    }

    pub(super) fn silent_queue(&self) -> &CompletionQueue {
        &self.silent
    }

    pub(super) fn worker(&self) -> &Worker {
        &self.worker
    }

    /// Registers a region at a wire base, before the region is published. Blocks while the device pins its pages.
    ///
    /// # Errors
    /// [`CardError::TooLarge`]; [`CardError::Verbs`] with the errno; [`CardError::Hung`].
    pub(crate) fn register(
        &self,
        region: RegionId,
        memory: &Arc<Region>,
        base: u64,
    ) -> Result<(), CardError> {
        let job = self.registration(region, memory, base)?;
        let within = Some(self.registration);
        let made = (self.registrar).call_blocking("registering memory", within, job)?;
        self.keep(region, base, made)
    }

    /// As [`Self::register`], in tokio.
    ///
    /// # Errors
    /// As [`Self::register`].
    pub(crate) async fn register_in_tokio(
        &self,
        region: RegionId,
        memory: &Arc<Region>,
        base: u64,
    ) -> Result<(), CardError> {
        let job = self.registration(region, memory, base)?;
        let made = self
            .registrar
            .call("registering memory", Some(self.registration), job);
        let made = made.await?;
        self.keep(region, base, made)
    }

    /// Returns the call that registers a region. A device that does not end earlier accesses gets no more memory.
    fn registration(
        &self,
        region: RegionId,
        memory: &Arc<Region>,
        base: u64,
    ) -> Result<impl FnOnce() -> Result<MemoryRegion, verbs::Error> + Send + 'static, CardError>
    {
        self.check()?;
        if self.keys.lock().contains_key(&(region, base)) {
            return Err(CardError::Registered {
                device: self.port.device.clone(),
            });
        }
        if memory.length() > self.limits.max_mr_size {
            return Err(CardError::TooLarge {
                device: self.port.device.clone(),
                length: memory.length(),
                most: self.limits.max_mr_size,
            });
        }
        let (domain, memory) = (self.domain.clone(), Arc::clone(memory));
        Ok(move || MemoryRegion::register_at(&domain, memory, base))
    }

    fn keep(
        &self,
        region: RegionId,
        base: u64,
        memory: Result<MemoryRegion, verbs::Error>,
    ) -> Result<(), CardError> {
        let memory = memory.map_err(|error| {
            self.examine(&error);
            CardError::verbs(&self.port.device)(error)
        })?;
        let registered = Registered {
            memory: Arc::new(memory),
            waiting: Vec::new(),
        };
        self.keys.lock().insert((region, base), registered);
        Ok(())
    }

    /// Returns whether it has keys of all these regions at their wire bases.
    pub(super) fn has_all(&self, regions: &[(RegionId, u64)]) -> bool {
        let keys = self.keys.lock();
        regions.iter().all(|one| keys.contains_key(one))
    }

    /// Returns whether it has a region, at whatever wire base.
    pub(super) fn has(&self, region: RegionId) -> bool {
        self.keys.lock().keys().any(|(one, _)| *one == region)
    }

    /// Returns whether the device does not end earlier accesses.
    pub(super) fn is_hung(&self) -> bool {
        self.check().is_err()
    }

    pub(super) fn set_failure(&self, error: Option<&CardError>) {
        self.failures.lock().set(error.map(ToString::to_string));
    }

    /// Returns why it has not registered all regions, if so.
    pub(super) fn failure(&self) -> Option<String> {
        self.failures.lock().last().map(str::to_owned)
    }

    /// Returns whether its last failure is to be logged.
    pub(super) fn has_news(&self) -> bool {
        self.failures.lock().is_to_be_logged(Instant::now())
    }

    /// Returns the key of a region for peers.
    pub(crate) fn key(&self, region: RegionId, base: u64) -> Option<RemoteKey> {
        let keys = self.keys.lock();
        keys.get(&(region, base)).map(|one| one.memory.remote_key())
    }

    /// Returns the registration for the work requests of one data thread, which returns it by
    /// [`Self::give_back`].
    pub(super) fn memory(&self, region: RegionId, base: u64) -> Option<Arc<MemoryRegion>> {
        let keys = self.keys.lock();
        keys.get(&(region, base)).map(|one| Arc::clone(&one.memory))
    }

    /// Takes back a registration and ends it when no data thread has it any more. `withdrawn` is called when the
    /// device has confirmed that, and never if it does not.
    pub(super) fn give_back(
        &self,
        region: RegionId,
        base: u64,
        memory: Arc<MemoryRegion>,
        withdrawn: Withdrawn,
    ) {
        let mut keys = self.keys.lock();
        drop(memory);
        let Some(registered) = keys.get_mut(&(region, base)) else {
            // Another data thread has started it; its call is before this one.
            self.worker.start_call("", withdrawn);
            return;
        };
        registered.waiting.push(withdrawn);
        if Arc::strong_count(&registered.memory) > 1 {
            return;
        }
        let Some(registered) = keys.remove(&(region, base)) else {
            return;
        };
        drop(keys);
        self.deregister(registered);
    }

    /// Ends the registration of a region that no data thread has got. The result is received when the device has confirmed that,
    /// and never if it does not.
    pub(crate) fn forget(&self, region: RegionId, base: u64) -> oneshot::Receiver<()> {
        let (done, confirmed) = oneshot::channel();
        // Nothing waits for it after a change that is given up.
        let done: Withdrawn = Box::new(move || {
            let _given_up = done.send(());
        });
        let removed = self.keys.lock().remove(&(region, base));
        match removed {
            Some(mut registered) => {
                registered.waiting.push(done);
                self.deregister(registered);
            }
            None => done(),
        }
        confirmed
    }

    /// As [`Self::forget`], and waits for the device.
    ///
    /// # Errors
    /// [`CardError::Hung`]; [`CardError::Refused`]: it may access the memory.
    pub(super) async fn forget_in_tokio(
        &self,
        region: RegionId,
        base: u64,
    ) -> Result<(), CardError> {
        let confirmed = self.forget(region, base);
        let refused = || {
            self.refusals.last().unwrap_or_else(|| CardError::Hung {
                device: self.port.device.clone(),
                what: DEREGISTERING,
                within: self.deregistration,
            })
        };
        tokio::select! {
            biased;
            confirmed = confirmed => confirmed.map_err(|_| refused()),
            hung = self.hung() => Err(hung),
        }
    }

    fn deregister(&self, registered: Registered) {
        let refusals = self.refusals.clone();
        let job = move || {
            // Nothing else has it: it was counted under the lock, or no data thread has got it.
            let Some(memory) = Arc::into_inner(registered.memory) else {
                return;
            };
            match memory.deregister() {
                Ok(()) => registered.waiting.into_iter().for_each(|waits| waits()),
                Err(error) => refusals.add(error),
            }
        };
        self.worker
            .start_call_within(DEREGISTERING, self.deregistration, job);
    }
}

/// Makes all calls before a card is used.
fn open(port: &Port) -> Result<Opened, CardError> {
    let failed = || CardError::verbs(&port.device);
    let devices = devices().map_err(failed())?;
    let Some(device) = devices.iter().find(|one| one.name() == port.device) else {
        return Err(CardError::Missing {
            device: port.device.clone(),
            present: devices.iter().map(|one| one.name().to_owned()).collect(),
        });
    };
    let context = device.open().map_err(failed())?;
    let limits = context.limits().map_err(failed())?;
    let facts = context.port(port.number).map_err(failed())?;
    if !facts.active {
        return Err(CardError::Down {
            device: port.device.clone(),
            port: port.number,
        });
    }
    let gid = match context.gid(port.number, port.gid_index) {
        Ok(gid) => gid,
        // InfiniBand within a subnet needs none.
        Err(_) if facts.link_layer == LinkLayer::InfiniBand => Ipv6Addr::UNSPECIFIED,
        Err(error) => return Err(failed()(error)),
    };
    let domain = ProtectionDomain::new(&context).map_err(failed())?;
    let silent = CompletionQueue::new(&context, 1).map_err(failed())?;
    Ok(Opened {
        context,
        limits,
        facts,
        gid,
        domain,
        silent,
    })
}

/// Converts `enum ibv_mtu`, 1 to 5.
fn mtu_bytes(code: i32) -> u32 {
    128 << code.clamp(1, 5)
}

/// The largest `enum ibv_mtu` of at most so many bytes.
fn mtu_code(bytes: u32) -> i32 {
    (1..=5)
        .rev()
        .find(|code| mtu_bytes(*code) <= bytes)
        .unwrap_or(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_mtu_in_bytes_becomes_the_next_smaller_one_of_the_device() {
        let codes = [256, 1024, 1500, 4096, 9000, 1].map(mtu_code);
        assert_eq!(codes, [1, 3, 3, 5, 5, 1]);
        assert_eq!([1, 3, 5].map(mtu_bytes), [256, 1024, 4096]);
    }
}
