//! A data thread: carries out commands, runs the schedulers, drives the transport, and sleeps until one
//! of them has work.

mod heartbeat;
mod initiator;

use std::collections::HashMap;
use std::io;
use std::os::fd::AsFd as _;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::oneshot;

use crate::command::{Command, CommandReceiver, CommandSender};
use crate::settings::Settings;
use crate::transport::reactor::{Reactor, Ready};
use crate::transport::{EndpointId, Event, RegionId, Transport};

pub(crate) use heartbeat::Heartbeat;
pub use heartbeat::{ThreadSnapshot, ThreadStage};
use initiator::Initiator;

/// Everything that one data thread owns.
#[derive(Debug)]
pub(crate) struct DataThread {
    receiver: CommandReceiver,
    sender: CommandSender,
    reactor: Reactor,
    transport: Box<dyn Transport>,
    settings: Settings,
    endpoints: HashMap<EndpointId, Initiator>,
    withdrawals: Vec<Withdrawal>,
    closing: Vec<Closing>,
    origin: Instant,
    heartbeat: Arc<Heartbeat>,
    /// Number of the turn.
    turn: u64,
}

/// An endpoint that is closed, of which something can still access memory.
#[derive(Debug)]
struct Closing {
    endpoint: EndpointId,
    initiator: Option<Initiator>,
    done: oneshot::Sender<()>,
}

/// The removal of a region, or of its wire base, in progress.
#[derive(Debug)]
struct Withdrawal {
    endpoint: EndpointId,
    region: RegionId,
    /// Peers cannot access the region any more.
    served_done: bool,
    /// Own transfers with the region, of the first so many, must be released as well.
    submitted: u64,
    done: Option<oneshot::Sender<()>>,
}

impl DataThread {
    pub(crate) fn new(
        (sender, receiver): (CommandSender, CommandReceiver),
        mut reactor: Reactor,
        transport: Box<dyn Transport>,
        settings: Settings,
        heartbeat: Arc<Heartbeat>,
    ) -> io::Result<Self> {
        reactor.set_wakeup(receiver.wakeup().as_fd())?;
        Ok(Self {
            receiver,
            sender,
            reactor,
            transport,
            settings,
            endpoints: HashMap::new(),
            withdrawals: Vec::new(),
            closing: Vec::new(),
            origin: Instant::now(),
            heartbeat,
            turn: 0,
        })
    }

    /// Runs until [`Command::Stop`].
    pub(crate) fn run(mut self) {
        let mut events = Vec::with_capacity(256);
        let mut ready = Vec::with_capacity(128);
        let mut worked = false;
        self.heartbeat.start();
        loop {
            self.turn += 1;
            self.enter(ThreadStage::Sleeping);
            self.sleep(worked, &mut ready);
            let now = Instant::now();
            self.enter(ThreadStage::Commands);
            // Commands first: what they withdraw must not be served with the bytes that follow.
            while let Some(command) = self.receiver.next() {
                if matches!(command, Command::Stop) {
                    return;
                }
                self.execute(command, now);
            }
            self.enter(ThreadStage::Descriptors);
            self.transport.ready(&ready, now);
            ready.clear();
            self.enter(ThreadStage::Progress);
            self.transport.progress(now, &mut events);
            self.enter(ThreadStage::Transfers);
            worked = !events.is_empty();
            let elapsed = self.elapsed(now);
            for event in events.drain(..) {
                self.handle(event, elapsed);
            }
            for (id, endpoint) in &mut self.endpoints {
                endpoint.act(*id, elapsed, &mut *self.transport, &self.sender);
            }
            self.enter(ThreadStage::Flush);
            self.transport.flush();
            self.enter(ThreadStage::Removals);
            self.finish_withdrawals();
            self.finish_closing();
        }
    }

    fn enter(&self, stage: ThreadStage) {
        self.heartbeat.enter(self.turn, stage);
    }

    fn elapsed(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.origin)
    }

    /// Waits for a command, a descriptor or the next deadline; shortly, if a transport must be polled.
    fn sleep(&mut self, worked: bool, ready: &mut Vec<Ready>) {
        let timers = self.endpoints.values().filter_map(Initiator::next_timeout);
        let due = timers
            .map(|at| self.origin + at)
            .chain(self.transport.next_deadline())
            .min();
        let now = Instant::now();
        let wait = due.map(|due| due.saturating_duration_since(now));
        let attention = self.transport.attention();
        let mut wait = self.reactor.bound(attention, worked, wait, now);
        // A thread that only looks for events needs no signal.
        if wait != Some(Duration::ZERO) && !self.receiver.may_sleep() {
            wait = Some(Duration::ZERO);
        }
        if let Err(error) = self.reactor.wait(wait, ready) {
            tracing::error!(%error, "a data thread cannot wait for events");
        }
        self.receiver.is_awake();
    }

    fn execute(&mut self, command: Command, now: Instant) {
        match command {
            Command::Open {
                endpoint,
                admission,
                counters,
                resolver,
            } => {
                self.transport.add_endpoint(endpoint, admission, counters);
                let initiator = Initiator::new(resolver, self.settings);
                self.endpoints.insert(endpoint, initiator);
            }
            Command::Close { endpoint, done } => {
                self.transport.remove_endpoint(endpoint);
                self.withdrawals.retain(|one| one.endpoint != endpoint);
                let initiator = self.endpoints.remove(&endpoint);
                self.closing.push(Closing {
                    endpoint,
                    initiator,
                    done,
                });
                self.finish_closing();
            }
            Command::SetAdmission {
                endpoint,
                admission,
            } => self.transport.set_admission(endpoint, admission),
            Command::AddRegion {
                endpoint,
                region,
                memory,
                wire_base,
            } => self
                .transport
                .add_region(endpoint, region, &memory, wire_base),
            #[cfg(feature = "rdma")]
            Command::AddUnregistered {
                endpoint,
                region,
                memory,
                wire_base,
            } => self
                .transport
                .add_unregistered(endpoint, region, &memory, wire_base),
            #[cfg(feature = "rdma")]
            Command::Registered {
                endpoint,
                region,
                memory,
                wire_base,
            } => self
                .transport
                .registered(endpoint, region, &memory, wire_base),
            Command::RemoveRegion {
                endpoint,
                region,
                done,
            } => self.begin_withdrawal(endpoint, region, true, done, now),
            Command::RebaseRegion {
                endpoint,
                region,
                memory,
                wire_base,
                done,
            } => {
                self.begin_withdrawal(endpoint, region, false, done, now);
                self.transport
                    .add_region(endpoint, region, &memory, wire_base);
            }
            Command::AddSocket(socket) => self.transport.add_socket(socket, now),
            Command::PassOn { endpoint, to } => self.transport.pass_on(endpoint, to),
            Command::Submit {
                endpoint,
                batch,
                deadline,
                thread,
            } => {
                let [deadline, elapsed] = [deadline, now].map(|at| self.elapsed(at));
                match self.endpoints.get_mut(&endpoint) {
                    Some(initiator) => initiator.submit(&batch, thread, deadline, elapsed),
                    None => batch.refuse(thread),
                }
            }
            Command::Cancel {
                endpoint,
                completion,
            } => {
                if let Some(initiator) = self.endpoints.get_mut(&endpoint) {
                    initiator.cancel(&completion);
                }
            }
            Command::Resolved {
                endpoint,
                peer,
                answer,
            } => {
                let elapsed = self.elapsed(now);
                if let Some(initiator) = self.endpoints.get_mut(&endpoint) {
                    initiator.resolved(peer, answer, elapsed);
                }
            }
            Command::Stop => {}
        }
    }

    fn handle(&mut self, event: Event, elapsed: Duration) {
        let id = match &event {
            Event::Up(id, _)
            | Event::Done(id, _)
            | Event::Returned(id, _)
            | Event::Down(id, _)
            | Event::Released(id) => *id,
            Event::Withdrawn(endpoint, region) => {
                // The transport answers in the order of the requests.
                let mut pending = self.withdrawals.iter_mut();
                let first = pending.find(|one| {
                    one.endpoint == *endpoint && one.region == *region && !one.served_done
                });
                if let Some(first) = first {
                    first.served_done = true;
                }
                return;
            }
        };
        let Some(initiator) = self.endpoints.get_mut(&id.endpoint) else {
            return;
        };
        let scheduler = &mut initiator.scheduler;
        match event {
            Event::Up(_, window) => scheduler.link_up(id.link, window, elapsed),
            Event::Done(_, piece) => scheduler.slice_done(id.link, piece, elapsed),
            Event::Returned(_, piece) => scheduler.slice_returned(id.link, piece),
            Event::Down(_, failure) => scheduler.link_down(id.link, failure, elapsed),
            Event::Released(_) => scheduler.link_released(id.link),
            Event::Withdrawn(..) => {}
        }
    }

    /// Cuts all access to a region: peers' requests and own transfers, which would otherwise write bytes of an
    /// ended epoch.
    fn begin_withdrawal(
        &mut self,
        endpoint: EndpointId,
        region: RegionId,
        forget: bool,
        done: oneshot::Sender<()>,
        now: Instant,
    ) {
        let elapsed = self.elapsed(now);
        let initiator = self.endpoints.get_mut(&endpoint);
        let submitted =
            initiator.map_or(0, |initiator| initiator.scheduler.withdraw(region, elapsed));
        self.withdrawals.push(Withdrawal {
            endpoint,
            region,
            served_done: false,
            submitted,
            done: Some(done),
        });
        self.transport.withdraw(endpoint, region, forget);
    }

    /// Ends the transfers of closed endpoints of which nothing can access memory any more.
    fn finish_closing(&mut self) {
        let transport = &self.transport;
        for closed in self
            .closing
            .extract_if(.., |one| !transport.is_removing(one.endpoint))
        {
            if let Some(mut initiator) = closed.initiator {
                initiator.abandon();
            }
            // Fails if the caller does not wait.
            let _not_waiting = closed.done.send(());
        }
    }

    /// Answers the withdrawals whose regions nothing can access any more.
    fn finish_withdrawals(&mut self) {
        let endpoints = &self.endpoints;
        self.withdrawals.retain_mut(|one| {
            let in_use = endpoints
                .get(&one.endpoint)
                .is_some_and(|initiator| initiator.scheduler.uses(one.region, one.submitted));
            let finished = one.served_done && !in_use;
            if finished && let Some(done) = one.done.take() {
                // Fails if the caller does not wait.
                let _not_waiting = done.send(());
            }
            !finished
        });
    }
}
