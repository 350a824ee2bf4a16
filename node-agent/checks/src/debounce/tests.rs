//! Findings of one port over time.

use super::super::Observation;
use super::*;
use crds::Reason;

const PORT: &str = "mlx5_0 port 1";

fn at(second: u64) -> Moment {
    let wall = i64::try_from(second).unwrap() + 1_000_000;
    Moment {
        up: Duration::from_secs(second),
        wall: Timestamp::from_millisecond(wall * 1000 + 123).unwrap(),
    }
}

fn runs(delays: Delays, observation: Observation) -> Vec<CheckRun> {
    vec![CheckRun {
        check: CheckId::PortActive,
        delays,
        observations: vec![observation],
        panicked: false,
    }]
}

fn good() -> Observation {
    Observation::pass(PORT)
}

fn down() -> Observation {
    Observation::fail(PORT, Reason::PortNotActive, "down")
}

fn off() -> Observation {
    Observation::warn(PORT, Reason::PortNotActive, "switched off")
}

/// The reported verdicts as runs: each verdict, and in how many rounds it was reported. A round is five seconds.
fn reported(delays: Delays, history: &[(u64, Observation)]) -> Vec<(Option<Verdict>, u64)> {
    let mut debounce = Debounce::default();
    let mut verdicts: Vec<(Option<Verdict>, u64)> = Vec::new();
    let mut second = 0;
    for (rounds, observation) in history {
        for _ in 0..*rounds {
            second += 5;
            let health = debounce.update(&runs(delays, observation.clone()), at(second));
            let verdict = health.findings.first().map(|of| of.finding.verdict);
            match verdicts.last_mut() {
                Some((last, count)) if *last == verdict => *count += 1,
                _ => verdicts.push((verdict, 1)),
            }
        }
    }
    verdicts
}

const FAIL: Option<Verdict> = Some(Verdict::Fail);
const WARN: Option<Verdict> = Some(Verdict::Warn);
const UNKNOWN: Option<Verdict> = Some(Verdict::Unknown);

#[test]
fn a_finding_is_reported_at_once_and_cleared_after_15_seconds() {
    let history = [(2, good()), (4, down()), (6, good())];
    let verdicts = reported(Delays::SHORT, &history);
    assert_eq!(verdicts, [(None, 2), (FAIL, 4 + 3), (None, 3)]);
}

#[test]
fn a_finding_with_long_delays_is_reported_after_a_minute_and_a_burst_is_not() {
    let busy = Observation::warn(PORT, Reason::EphemeralPortsBusy, "busy");
    let verdicts = reported(
        Delays::LONG,
        &[(2, good()), (11, busy.clone()), (2, good())],
    );
    assert_eq!(verdicts, [(None, 15)]);
    let verdicts = reported(Delays::LONG, &[(20, busy), (30, good())]);
    assert_eq!(verdicts, [(None, 12), (WARN, 8 + 24), (None, 6)]);
}

#[test]
fn a_flapping_link_stays_reported_until_it_is_up_for_five_minutes() {
    // Down for 5 seconds, up for 20: it clears each time.
    let mut history = Vec::new();
    for _ in 0..3 {
        history.extend([(1, down()), (4, good())]);
    }
    history.push((80, good()));
    let verdicts = reported(Delays::SHORT, &history);
    let last = &verdicts[verdicts.len() - 2..];
    assert_eq!(
        verdicts
            .iter()
            .filter(|(verdict, _)| *verdict == FAIL)
            .count(),
        3
    );
    assert_eq!(last[0], (FAIL, 1 + 60), "{verdicts:?}");
    let mut debounce = Debounce::default();
    for second in (0..).step_by(25).take(3) {
        debounce.update(&runs(Delays::SHORT, down()), at(second));
        debounce.update(&runs(Delays::SHORT, good()), at(second + 5));
        let health = debounce.update(&runs(Delays::SHORT, good()), at(second + 20));
        assert_eq!(health.findings.is_empty(), second < 50);
        assert!(health.findings.iter().all(|of| of.flapping));
    }
}

#[test]
fn a_finding_that_flaps_is_reported_so_until_it_clears() {
    let mut debounce = Debounce::default();
    let mut second = 0;
    let mut round = |debounce: &mut Debounce, observation: Observation| {
        second += 5;
        debounce.update(&runs(Delays::SHORT, observation), at(second))
    };
    let mut flapping = Health::default();
    for _ in 0..3 {
        for _ in 0..4 {
            round(&mut debounce, good());
        }
        flapping = round(&mut debounce, down());
    }
    assert!(flapping.findings[0].flapping);
    // Nothing happens for longer than the span of the raises.
    for _ in 0..140 {
        assert_eq!(round(&mut debounce, down()), flapping);
    }
    let cleared = (0..100).find(|_| round(&mut debounce, good()).findings.is_empty());
    assert_eq!(cleared, Some(60), "five minutes");
    // The raises are long ago.
    assert!(!round(&mut debounce, down()).findings[0].flapping);
}

#[test]
fn a_severer_finding_is_reported_at_once_and_a_milder_one_after_the_clear_delay() {
    let verdicts = reported(Delays::SHORT, &[(3, off()), (3, down()), (6, off())]);
    assert_eq!(verdicts, [(WARN, 3), (FAIL, 3 + 3), (WARN, 3)]);
}

#[test]
fn unknown_is_reported_after_30_seconds_and_replaces_a_failure_after_its_clear_delay() {
    let unread = Observation::unknown(PORT, Reason::HostUnreadable, "EIO");
    let verdicts = reported(
        Delays::SHORT,
        &[(3, good()), (1, unread.clone()), (3, good())],
    );
    assert_eq!(verdicts, [(None, 7)]);
    let verdicts = reported(Delays::SHORT, &[(9, unread.clone())]);
    assert_eq!(verdicts, [(None, 6), (UNKNOWN, 3)]);
    let verdicts = reported(Delays::SHORT, &[(2, down()), (5, unread)]);
    assert_eq!(verdicts, [(FAIL, 2 + 3), (UNKNOWN, 2)]);
}

#[test]
fn an_unchanged_finding_keeps_its_message_and_time() {
    let mut debounce = Debounce::default();
    let first = debounce.update(&runs(Delays::SHORT, down()), at(5));
    for second in [10, 100, 10_000] {
        assert_eq!(
            debounce.update(&runs(Delays::SHORT, down()), at(second)),
            first
        );
    }
    assert_eq!(
        first.findings[0].since,
        Timestamp::from_second(1_000_005).unwrap()
    );
    assert_eq!(first.counts.failed, 1);
}

#[test]
fn a_message_changes_once_a_minute_at_most() {
    let mut debounce = Debounce::default();
    let mut messages = BTreeSet::new();
    for second in (0..300).step_by(5) {
        let observation =
            Observation::fail(PORT, Reason::PortNotActive, format!("down for {second} s"));
        let health = debounce.update(&runs(Delays::SHORT, observation), at(second));
        messages.insert(health.findings[0].finding.message.clone());
    }
    assert_eq!(messages.len(), 5, "{messages:?}");
}

#[test]
fn a_subject_that_is_gone_is_cleared_and_forgotten() {
    let mut debounce = Debounce::default();
    debounce.update(&runs(Delays::SHORT, down()), at(0));
    let nothing = || {
        let mut runs = runs(Delays::SHORT, good());
        runs[0].observations.clear();
        runs
    };
    assert_eq!(debounce.update(&nothing(), at(5)).counts.failed, 1);
    let health = debounce.update(&nothing(), at(30));
    assert_eq!(
        (health.findings.len(), health.counts.not_applicable),
        (0, 1)
    );
    debounce.update(&nothing(), at(700));
    assert!(debounce.0.is_empty());
}

#[test]
fn findings_of_a_check_that_panics_stay_reported() {
    let mut debounce = Debounce::default();
    debounce.update(&runs(Delays::SHORT, down()), at(0));
    let mut panicked = runs(
        Delays::SHORT,
        Observation::unknown("the check itself", Reason::CheckPanicked, "panicked"),
    );
    panicked[0].panicked = true;
    for second in [5, 60, 600] {
        let health = debounce.update(&panicked, at(second));
        assert_eq!(health.findings[0].subject, PORT, "at {second} s");
        assert_eq!(health.findings.len(), if second < 60 { 1 } else { 2 });
    }
}

#[test]
fn a_wall_clock_that_is_set_back_changes_nothing() {
    let mut debounce = Debounce::default();
    let first = debounce.update(&runs(Delays::SHORT, down()), at(500));
    let back = Moment {
        up: Duration::from_secs(505),
        wall: Timestamp::UNIX_EPOCH,
    };
    assert_eq!(debounce.update(&runs(Delays::SHORT, down()), back), first);
}
