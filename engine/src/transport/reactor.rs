//! The epoll set of a data thread, which its transports share, and how long the thread may sleep while a transport
//! has work that no descriptor signals.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

pub use rustix::event::epoll::EventFlags;
use rustix::event::{Timespec, epoll};

/// Most events per `epoll_wait`.
const BATCH: usize = 128;
/// The epoll data of the wakeup eventfd; no token has this value.
const WAKEUP: u64 = u64::MAX;
/// A thread polls without sleeping for this time after the last work that it found so.
const BUSY: Duration = Duration::from_micros(50);
/// Then it sleeps this long between polls.
const PAUSE: Duration = Duration::from_micros(200);

/// Chosen by a transport for one of its descriptors; any number except `u64::MAX`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Token(pub u64);

/// A descriptor that has work.
#[derive(Debug, Clone, Copy)]
pub struct Ready {
    /// The descriptor.
    pub token: Token,
    /// What epoll reported.
    pub flags: EventFlags,
}

/// How a transport learns of its work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Attention {
    /// Its descriptors and its next deadline signal all of it.
    Signalled,
    /// It has work in progress whose completion nothing signals.
    Poll,
}

/// The epoll set of a data thread.
#[derive(Debug)]
pub struct Reactor {
    epoll: Arc<OwnedFd>,
    /// Start of the time without work that was found by polling.
    quiet_since: Option<Instant>,
}

/// Adds descriptors of a transport to the set.
#[derive(Debug, Clone)]
pub struct Watcher(Arc<OwnedFd>);

impl Reactor {
    /// Creates an empty set.
    ///
    /// # Errors
    /// From `epoll_create`.
    pub fn new() -> io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        Ok(Self {
            epoll: Arc::new(epoll),
            quiet_since: None,
        })
    }

    /// Returns a handle for a transport.
    #[must_use]
    pub fn watcher(&self) -> Watcher {
        Watcher(Arc::clone(&self.epoll))
    }

    /// Sets an eventfd of which each write ends [`Self::wait`] and which is never read. It is in this set, not in an outer one: the
    /// scheduler of the kernel then recognises that sender and receiver wake each other, and runs them in turn on
    /// one processor if there is no other.
    ///
    /// # Errors
    /// From `epoll_ctl`.
    pub fn set_wakeup(&mut self, eventfd: BorrowedFd<'_>) -> io::Result<()> {
        let data = epoll::EventData::new_u64(WAKEUP);
        // Edge-triggered: each write is one event.
        let events = EventFlags::IN.union(EventFlags::ET);
        Ok(epoll::add(&self.epoll, eventfd, data, events)?)
    }

    /// Bounds a sleep by what a transport needs. `worked`: it has found work since the last call.
    pub fn bound(
        &mut self,
        attention: Attention,
        worked: bool,
        longest: Option<Duration>,
        now: Instant,
    ) -> Option<Duration> {
        if attention == Attention::Signalled {
            self.quiet_since = None;
            return longest;
        }
        if worked {
            self.quiet_since = None;
        }
        let since = *self.quiet_since.get_or_insert(now);
        let most = if now.saturating_duration_since(since) < BUSY {
            Duration::ZERO
        } else {
            PAUSE
        };
        Some(longest.map_or(most, |longest| longest.min(most)))
    }

    /// Blocks until a descriptor has work, the eventfd was written, or `longest` has passed. Appends the descriptors.
    ///
    /// # Errors
    /// From `epoll_wait`.
    pub fn wait(&mut self, longest: Option<Duration>, found: &mut Vec<Ready>) -> io::Result<()> {
        let longest = longest.and_then(|longest| Timespec::try_from(longest).ok());
        let mut ready = [const { MaybeUninit::uninit() }; BATCH];
        let ready = match epoll::wait(&*self.epoll, &mut ready[..], longest.as_ref()) {
            Ok((ready, _)) => ready,
            Err(rustix::io::Errno::INTR) => return Ok(()),
            Err(errno) => return Err(errno.into()),
        };
        let descriptors = ready.iter().filter(|event| event.data.u64() != WAKEUP);
        found.extend(descriptors.map(|event| Ready {
            token: Token(event.data.u64()),
            flags: event.flags,
        }));
        Ok(())
    }
}

impl Watcher {
    /// Watches a descriptor, level-triggered.
    ///
    /// # Errors
    /// From `epoll_ctl`.
    pub fn add(&self, descriptor: impl AsFd, token: Token, events: EventFlags) -> io::Result<()> {
        let data = epoll::EventData::new_u64(token.0);
        Ok(epoll::add(&*self.0, descriptor, data, events)?)
    }

    /// Changes the events of a descriptor that is watched.
    ///
    /// # Errors
    /// From `epoll_ctl`.
    pub fn change(
        &self,
        descriptor: impl AsFd,
        token: Token,
        events: EventFlags,
    ) -> io::Result<()> {
        let data = epoll::EventData::new_u64(token.0);
        Ok(epoll::modify(&*self.0, descriptor, data, events)?)
    }

    /// Watches a descriptor no more. Closing alone does not remove it if another process shares the open file
    /// description.
    pub fn remove(&self, descriptor: impl AsFd) {
        // Fails only if it is not in the set.
        let _already_removed = epoll::delete(&*self.0, descriptor);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_polls_busily_for_a_bounded_time_after_the_last_work() {
        let mut reactor = Reactor::new().unwrap();
        let start = Instant::now();
        let mut bound = |worked, after: u64| {
            let now = start + Duration::from_micros(after);
            reactor.bound(Attention::Poll, worked, None, now)
        };
        assert_eq!(bound(false, 0), Some(Duration::ZERO));
        assert_eq!(bound(false, 49), Some(Duration::ZERO));
        assert_eq!(bound(false, 50), Some(PAUSE));
        assert_eq!(bound(true, 1000), Some(Duration::ZERO));
        assert_eq!(bound(false, 1050), Some(PAUSE));
    }

    #[test]
    fn a_deadline_bounds_the_pause_and_nothing_else_bounds_a_signalled_transport() {
        let mut reactor = Reactor::new().unwrap();
        let start = Instant::now();
        let later = start + Duration::from_secs(1);
        let (short, long) = (Duration::from_micros(7), Duration::from_secs(9));
        reactor.bound(Attention::Poll, false, None, start);
        let polled = |reactor: &mut Reactor, longest| {
            reactor.bound(Attention::Poll, false, Some(longest), later)
        };
        assert_eq!(polled(&mut reactor, short), Some(short));
        assert_eq!(polled(&mut reactor, long), Some(PAUSE));
        let signalled = reactor.bound(Attention::Signalled, false, None, later);
        assert_eq!(signalled, None);
    }
}
