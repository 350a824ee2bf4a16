//! Decides when certificates are replaced, from the stored identities and the time. Pure.

use std::time::Duration;

use jiff::Timestamp;

use super::identity::{CLOCK_SKEW, Identity, Stored};

const DAY: Duration = Duration::from_secs(24 * 3600);

/// Lengths of the phases of a rotation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Schedule {
    /// Validity period of an authority and its leaf.
    pub lifetime: Duration,
    /// How long before the end a successor is created.
    pub renew_before: Duration,
    /// How long the authority of a successor is published before it is used, and that of the predecessor is
    /// trusted afterwards. API servers and replicas observe a change within seconds.
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

/// The next action of the leader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Create an identity and serve it at once: there is none, or none that is valid now.
    Create,
    /// Create the successor and publish its authority.
    Prepare,
    /// Serve the successor.
    Promote,
    /// Stop trusting the predecessor.
    Retire,
    /// Wait until that time.
    Wait(Timestamp),
}

/// Decides the next action. `names`: the server names that clients use. `published`: since when clients trust the stored
/// bundle; `None` if they do not yet.
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
    // One of a leader whose clock was ahead is not valid yet, for as long as the clock was.
    let premature = |identity: &Identity| identity.not_after > now + schedule.lifetime + CLOCK_SKEW;
    let ended = now >= stored.current.not_after || premature(&stored.current);
    if let Some(next) = &stored.next {
        if now >= next.not_after || next.names != names || premature(next) {
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
    fn an_expired_identity_is_replaced_by_the_prepared_or_a_new_one() {
        let first = Stored::first(issue(start()), start(), None);
        let late = first.current.not_after;
        assert_eq!(step(late, Some(&first), Some(start())), Action::Create);
        let waiting = first.prepared(issue(late - DAY));
        assert_eq!(step(late, Some(&waiting), None), Action::Promote);
        assert_eq!(step(late + 400 * DAY, Some(&waiting), None), Action::Create);
    }

    #[test]
    fn an_identity_of_a_leader_whose_clock_was_ahead_is_replaced() {
        let ahead = start() + 7 * DAY;
        let premature = Stored::first(issue(ahead), ahead, None);
        assert_eq!(
            step(start(), Some(&premature), Some(start())),
            Action::Create
        );
        // It is valid by then.
        let calm = step(ahead - CLOCK_SKEW, Some(&premature), Some(start()));
        assert!(matches!(calm, Action::Wait(_)), "{calm:?}");
        let valid = Stored::first(issue(start()), start(), None);
        let prepared = valid.prepared(issue(ahead));
        assert_eq!(
            step(start(), Some(&prepared), Some(start())),
            Action::Prepare
        );
        let saved = premature.prepared(issue(start()));
        assert_eq!(step(start(), Some(&saved), None), Action::Promote);
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
