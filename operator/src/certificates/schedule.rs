//! When certificates change: a pure decision about what is stored, by a clock that is given.

use std::time::Duration;

use jiff::Timestamp;

use super::identity::Stored;

const DAY: Duration = Duration::from_secs(24 * 3600);

/// Lengths of the phases of a rotation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Schedule {
    /// Life of an authority and its leaf.
    pub lifetime: Duration,
    /// A successor is made so long before the end.
    pub renew_before: Duration,
    /// How long a successor's authority is announced before it is used, and its predecessor's is
    /// trusted after it. API servers and replicas learn of a change within seconds.
    pub overlap: Duration,
}

impl Default for Schedule {
    fn default() -> Self {
        Self {
            lifetime: 90 * DAY,
            renew_before: 30 * DAY,
            overlap: Duration::from_secs(600),
        }
    }
}

/// What the leader does now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Make an identity and serve it at once: there is none, or none that clients could accept.
    Create,
    /// Make the successor and announce its authority.
    Prepare,
    /// Serve the successor.
    Promote,
    /// Stop trusting the predecessor.
    Retire,
    /// Nothing before that time.
    Wait(Timestamp),
}

/// Decides. `names` are those that clients ask for; `published` is since when the stored bundle is
/// known to be what clients trust, `None` while it is not.
#[must_use]
pub fn decide(
    now: Timestamp,
    schedule: &Schedule,
    names: &[String],
    stored: Option<&Stored>,
    published: Option<Timestamp>,
) -> Action {
    let Some(stored) = stored else {
        return Action::Create;
    };
    if stored.current.names != names {
        return Action::Create;
    }
    let ended = now >= stored.current.not_after;
    if let Some(next) = &stored.next {
        if now >= next.not_after || next.names != names {
            return if ended {
                Action::Create
            } else {
                Action::Prepare
            };
        }
        return match published {
            _ if ended => Action::Promote,
            Some(since) if now >= since + schedule.overlap => Action::Promote,
            Some(since) => Action::Wait(since + schedule.overlap),
            None => Action::Wait(now + schedule.overlap),
        };
    }
    if ended {
        return Action::Create;
    }
    let renewal = stored.current.not_after - schedule.renew_before;
    if stored.previous_authority.is_some() {
        let retirement = stored.since + schedule.overlap;
        return if now >= retirement {
            Action::Retire
        } else {
            Action::Wait(retirement)
        };
    }
    if now >= renewal {
        return Action::Prepare;
    }
    Action::Wait(renewal)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::certificates::Identity;

    fn names() -> Vec<String> {
        vec!["webhook.mooncake-system.svc".to_owned()]
    }

    fn start() -> Timestamp {
        "2026-01-01T00:00:00Z".parse().unwrap()
    }

    fn issue(now: Timestamp) -> Identity {
        Identity::issue(&names(), now, Schedule::default().lifetime).unwrap()
    }

    fn step(now: Timestamp, stored: Option<&Stored>, published: Option<Timestamp>) -> Action {
        decide(now, &Schedule::default(), &names(), stored, published)
    }

    #[test]
    fn without_a_certificate_one_is_made() {
        assert_eq!(step(start(), None, None), Action::Create);
    }

    #[test]
    fn a_whole_rotation_announces_before_it_serves_and_forgets_last() {
        let Schedule {
            lifetime,
            renew_before,
            overlap,
        } = Schedule::default();
        let first = Stored::first(issue(start()), start(), None);
        let renewal = start() + lifetime - renew_before;
        assert_eq!(
            step(start(), Some(&first), Some(start())),
            Action::Wait(renewal)
        );
        assert_eq!(step(renewal, Some(&first), Some(start())), Action::Prepare);

        let both = first.prepared(issue(renewal));
        let unpublished = step(renewal, Some(&both), None);
        assert!(matches!(unpublished, Action::Wait(_)), "{unpublished:?}");
        let announced = renewal + Duration::from_secs(60);
        let turn = announced + overlap;
        assert_eq!(
            step(announced, Some(&both), Some(announced)),
            Action::Wait(turn)
        );
        assert_eq!(step(turn, Some(&both), Some(announced)), Action::Promote);
        assert!(both.bundle().contains(&first.current.authority));

        let promoted = both.promoted(turn);
        assert!(promoted.bundle().contains(&first.current.authority));
        assert_eq!(
            step(turn, Some(&promoted), Some(announced)),
            Action::Wait(turn + overlap)
        );
        assert_eq!(
            step(turn + overlap, Some(&promoted), Some(announced)),
            Action::Retire
        );
        let retired = promoted.retired();
        assert_eq!(retired.bundle(), promoted.current.authority);
        let calm = step(turn + overlap, Some(&retired), Some(announced));
        assert_eq!(calm, Action::Wait(renewal + lifetime - renew_before));
    }

    #[test]
    fn a_leader_that_slept_through_the_end_starts_anew_or_takes_what_waits() {
        let first = Stored::first(issue(start()), start(), None);
        let late = first.current.not_after;
        assert_eq!(step(late, Some(&first), Some(start())), Action::Create);
        let waiting = first.prepared(issue(late - DAY));
        assert_eq!(step(late, Some(&waiting), None), Action::Promote);
        assert_eq!(step(late + 400 * DAY, Some(&waiting), None), Action::Create);
    }

    #[test]
    fn another_service_name_gets_another_certificate() {
        let first = Stored::first(issue(start()), start(), None);
        let other = vec!["other.mooncake-system.svc".to_owned()];
        let schedule = Schedule::default();
        assert_eq!(
            decide(start(), &schedule, &other, Some(&first), Some(start())),
            Action::Create
        );
    }

    #[test]
    fn a_stored_identity_survives_the_secret_and_hides_its_key_from_logs() {
        let stored = Stored::first(issue(start()), start(), None).prepared(issue(start()));
        assert_eq!(Stored::decode(&stored.encode()).unwrap(), stored);
        assert!(!format!("{stored:?}").contains("PRIVATE KEY"));
        assert!(Stored::decode(b"{}").is_err());
    }
}
