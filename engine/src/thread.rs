//! A data thread: takes commands, asks the schedulers, drives the transport, sleeps until one of
//! them has work.

mod initiator;

use std::collections::HashMap;
use std::io;
use std::os::fd::AsFd as _;
use std::time::{Duration, Instant};

use tokio::sync::oneshot;

use crate::command::{Command, Inbox, Lane};
use crate::settings::Settings;
use crate::transport::{Event, HostId, RegionId, Transport};

use initiator::Initiator;

/// Everything that one data thread owns.
#[derive(Debug)]
pub(crate) struct DataThread {
    inbox: Inbox,
    lane: Lane,
    transport: Box<dyn Transport>,
    settings: Settings,
    hosts: HashMap<HostId, Initiator>,
    withdrawing: Vec<Withdrawing>,
    origin: Instant,
}

/// A region on its way out.
#[derive(Debug)]
struct Withdrawing {
    host: HostId,
    region: RegionId,
    /// Peers cannot touch it any more.
    served_done: bool,
    /// Our own transfers must be over as well.
    own_too: bool,
    done: Option<oneshot::Sender<()>>,
}

impl DataThread {
    pub(crate) fn new(
        inbox: Inbox,
        lane: Lane,
        mut transport: Box<dyn Transport>,
        settings: Settings,
    ) -> io::Result<Self> {
        transport.answer_to(inbox.bell().as_fd())?;
        Ok(Self {
            inbox,
            lane,
            transport,
            settings,
            hosts: HashMap::new(),
            withdrawing: Vec::new(),
            origin: Instant::now(),
        })
    }

    /// Runs until it is told to stop.
    pub(crate) fn run(mut self) {
        let mut events = Vec::with_capacity(256);
        loop {
            let rung = self.sleep();
            let now = Instant::now();
            if rung {
                self.inbox.hush();
            }
            // Commands first: what they withdraw must not be served with the bytes that follow.
            while let Some(command) = self.inbox.next() {
                if matches!(command, Command::Stop) {
                    return;
                }
                self.obey(command, now);
            }
            self.transport.progress(now, &mut events);
            for event in events.drain(..) {
                self.hear(event, now);
            }
            let elapsed = self.elapsed(now);
            for (id, host) in &mut self.hosts {
                host.act(*id, elapsed, &mut *self.transport, &self.lane);
            }
            self.settle();
        }
    }

    fn elapsed(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.origin)
    }

    /// Waits for a command, a socket or the next deadline; says whether the bell rang.
    fn sleep(&mut self) -> bool {
        let timers = self.hosts.values().filter_map(Initiator::next_timeout);
        let due = timers
            .map(|at| self.origin + at)
            .chain(self.transport.next_deadline())
            .min();
        let wait = due.map(|due| due.saturating_duration_since(Instant::now()));
        self.transport.wait(wait).unwrap_or_else(|error| {
            tracing::error!(%error, "a data thread cannot wait");
            true
        })
    }

    fn obey(&mut self, command: Command, now: Instant) {
        match command {
            Command::Open {
                host,
                admission,
                counters,
                outbound,
            } => {
                self.transport.host(host, admission, counters);
                self.hosts
                    .insert(host, Initiator::new(outbound, self.settings));
            }
            Command::Close { host, done } => {
                self.transport.forget(host);
                if let Some(mut initiator) = self.hosts.remove(&host) {
                    initiator.abandon();
                }
                self.withdrawing.retain(|one| one.host != host);
                // The caller may have gone; then nobody waits.
                let _nobody_waits = done.send(());
            }
            Command::Admit { host, admission } => self.transport.admit(host, admission),
            Command::Export {
                host,
                region,
                memory,
                wire_base,
            } => {
                self.transport.export(host, region, &memory, wire_base);
            }
            Command::Remove { host, region, done } => {
                self.begin_withdrawal(host, region, true, done);
                if let Some(initiator) = self.hosts.get_mut(&host) {
                    let elapsed = now.saturating_duration_since(self.origin);
                    initiator.withdraw(region, elapsed);
                }
                self.transport.withdraw(host, region, true);
            }
            Command::Rebase {
                host,
                region,
                memory,
                wire_base,
                done,
            } => {
                self.begin_withdrawal(host, region, false, done);
                self.transport.withdraw(host, region, false);
                self.transport.export(host, region, &memory, wire_base);
            }
            Command::Adopt(incoming) => self.transport.adopt(incoming, now),
            Command::Submit { host, submission } => match self.hosts.get_mut(&host) {
                Some(initiator) => initiator.submit(submission, self.origin),
                None => Initiator::refuse(&submission),
            },
            Command::Resolved { host, peer, answer } => {
                if let Some(initiator) = self.hosts.get_mut(&host) {
                    initiator.resolved(peer, answer);
                }
            }
            Command::Stop => {}
        }
    }

    fn hear(&mut self, event: Event, now: Instant) {
        let elapsed = self.elapsed(now);
        match event {
            Event::Up(id) => self.tell(id.host, |host| host.scheduler().link_up(id.link, elapsed)),
            Event::Done(id) => {
                self.tell(id.host, |host| {
                    host.scheduler().slice_done(id.link, elapsed)
                });
            }
            Event::Down(id, failure) => {
                self.tell(id.host, |host| host.scheduler().link_down(id.link, failure));
            }
            Event::Released(id) => {
                self.tell(id.host, |host| host.scheduler().link_released(id.link));
            }
            Event::Withdrawn(host, region) => {
                for one in &mut self.withdrawing {
                    one.served_done |= one.host == host && one.region == region;
                }
            }
        }
    }

    fn tell(&mut self, host: HostId, what: impl FnOnce(&mut Initiator)) {
        if let Some(initiator) = self.hosts.get_mut(&host) {
            what(initiator);
        }
    }

    fn begin_withdrawal(
        &mut self,
        host: HostId,
        region: RegionId,
        own_too: bool,
        done: oneshot::Sender<()>,
    ) {
        let done = Some(done);
        self.withdrawing.push(Withdrawing {
            host,
            region,
            served_done: false,
            own_too,
            done,
        });
    }

    /// Answers those whose regions nothing can touch any more.
    fn settle(&mut self) {
        let hosts = &self.hosts;
        self.withdrawing.retain_mut(|one| {
            let own = one.own_too && hosts.get(&one.host).is_some_and(|h| h.uses(one.region));
            let over = one.served_done && !own;
            if over && let Some(done) = one.done.take() {
                // The caller may have gone; then nobody waits.
                let _nobody_waits = done.send(());
            }
            !over
        });
    }
}
