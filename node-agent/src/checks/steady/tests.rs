//! Lives of one port, second by second.

use super::super::Said;
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

fn round(patience: Patience, said: Said) -> Vec<Judged> {
    vec![Judged {
        check: CheckId::PortActive,
        patience,
        said: vec![said],
        broken: false,
    }]
}

fn good() -> Said {
    Said::pass(PORT)
}

fn down() -> Said {
    Said::fail(PORT, Reason::PortNotActive, "down")
}

fn off() -> Said {
    Said::warn(PORT, Reason::PortNotActive, "switched off")
}

/// The verdicts that are told, asked every five seconds, as runs of verdict and rounds.
fn told(patience: Patience, life: &[(u64, Said)]) -> Vec<(Option<Verdict>, u64)> {
    let mut steady = Steady::default();
    let mut runs: Vec<(Option<Verdict>, u64)> = Vec::new();
    let mut second = 0;
    for (rounds, said) in life {
        for _ in 0..*rounds {
            second += 5;
            let health = steady.note(&round(patience, said.clone()), at(second));
            let verdict = health.told.first().map(|told| told.trouble.verdict);
            match runs.last_mut() {
                Some((last, count)) if *last == verdict => *count += 1,
                _ => runs.push((verdict, 1)),
            }
        }
    }
    runs
}

const FAIL: Option<Verdict> = Some(Verdict::Fail);
const WARN: Option<Verdict> = Some(Verdict::Warn);
const UNKNOWN: Option<Verdict> = Some(Verdict::Unknown);

#[test]
fn trouble_is_told_at_once_and_its_end_after_15_seconds() {
    let life = [(2, good()), (4, down()), (6, good())];
    let runs = told(Patience::SHORT, &life);
    assert_eq!(runs, [(None, 2), (FAIL, 4 + 3), (None, 3)]);
}

#[test]
fn what_moves_by_itself_is_told_after_a_minute_and_a_burst_is_not() {
    let busy = Said::warn(PORT, Reason::EphemeralPortsBusy, "busy");
    let runs = told(
        Patience::LONG,
        &[(2, good()), (11, busy.clone()), (2, good())],
    );
    assert_eq!(runs, [(None, 15)]);
    let runs = told(Patience::LONG, &[(20, busy), (30, good())]);
    assert_eq!(runs, [(None, 12), (WARN, 8 + 24), (None, 6)]);
}

#[test]
fn a_link_that_comes_and_goes_is_told_as_one_trouble_until_it_stays_for_five_minutes() {
    // Down for 5 seconds, up for 20: each time its end is told.
    let mut life = Vec::new();
    for _ in 0..3 {
        life.extend([(1, down()), (4, good())]);
    }
    life.push((80, good()));
    let runs = told(Patience::SHORT, &life);
    let last = &runs[runs.len() - 2..];
    assert_eq!(
        runs.iter().filter(|(verdict, _)| *verdict == FAIL).count(),
        3
    );
    assert_eq!(last[0], (FAIL, 1 + 60), "{runs:?}");
    let mut steady = Steady::default();
    for second in (0..).step_by(25).take(3) {
        steady.note(&round(Patience::SHORT, down()), at(second));
        steady.note(&round(Patience::SHORT, good()), at(second + 5));
        let health = steady.note(&round(Patience::SHORT, good()), at(second + 20));
        assert_eq!(health.told.is_empty(), second < 50);
        assert!(health.told.iter().all(|told| told.flaps));
    }
}

#[test]
fn worse_is_told_at_once_and_better_after_the_hold() {
    let runs = told(Patience::SHORT, &[(3, off()), (3, down()), (6, off())]);
    assert_eq!(runs, [(WARN, 3), (FAIL, 3 + 3), (WARN, 3)]);
}

#[test]
fn what_cannot_be_told_once_is_not_told_and_never_hides_what_failed() {
    let unread = Said::unknown(PORT, Reason::HostUnreadable, "EIO");
    let runs = told(
        Patience::SHORT,
        &[(3, good()), (1, unread.clone()), (3, good())],
    );
    assert_eq!(runs, [(None, 7)]);
    let runs = told(Patience::SHORT, &[(9, unread.clone())]);
    assert_eq!(runs, [(None, 6), (UNKNOWN, 3)]);
    let runs = told(Patience::SHORT, &[(2, down()), (5, unread)]);
    assert_eq!(runs, [(FAIL, 2 + 3), (UNKNOWN, 2)]);
}

#[test]
fn an_unchanged_world_is_told_in_the_same_words_and_since_the_same_second() {
    let mut steady = Steady::default();
    let first = steady.note(&round(Patience::SHORT, down()), at(5));
    for second in [10, 100, 10_000] {
        assert_eq!(
            steady.note(&round(Patience::SHORT, down()), at(second)),
            first
        );
    }
    assert_eq!(
        first.told[0].since,
        Timestamp::from_second(1_000_005).unwrap()
    );
    assert_eq!(first.counts.failed, 1);
}

#[test]
fn words_that_move_change_once_a_minute_and_no_more() {
    let mut steady = Steady::default();
    let mut words = BTreeSet::new();
    for second in (0..300).step_by(5) {
        let said = Said::fail(PORT, Reason::PortNotActive, format!("down for {second} s"));
        let health = steady.note(&round(Patience::SHORT, said), at(second));
        words.insert(health.told[0].trouble.words.clone());
    }
    assert_eq!(words.len(), 5, "{words:?}");
}

#[test]
fn a_thing_that_is_gone_is_told_no_more_and_nothing_of_it_is_kept() {
    let mut steady = Steady::default();
    steady.note(&round(Patience::SHORT, down()), at(0));
    let nothing = || {
        let mut round = round(Patience::SHORT, good());
        round[0].said.clear();
        round
    };
    assert_eq!(steady.note(&nothing(), at(5)).counts.failed, 1);
    let health = steady.note(&nothing(), at(30));
    assert_eq!((health.told.len(), health.counts.not_applicable), (0, 1));
    steady.note(&nothing(), at(700));
    assert!(steady.0.is_empty());
}

#[test]
fn what_was_told_stands_while_its_check_breaks_off() {
    let mut steady = Steady::default();
    steady.note(&round(Patience::SHORT, down()), at(0));
    let mut broken = round(
        Patience::SHORT,
        Said::unknown("the check itself", Reason::CheckBroken, "broke off"),
    );
    broken[0].broken = true;
    for second in [5, 60, 600] {
        let health = steady.note(&broken, at(second));
        assert_eq!(health.told[0].subject, PORT, "at {second} s");
        assert_eq!(health.told.len(), if second < 60 { 1 } else { 2 });
    }
}

#[test]
fn a_clock_that_is_set_back_moves_nothing() {
    let mut steady = Steady::default();
    let first = steady.note(&round(Patience::SHORT, down()), at(500));
    let back = Moment {
        up: Duration::from_secs(505),
        wall: Timestamp::UNIX_EPOCH,
    };
    assert_eq!(steady.note(&round(Patience::SHORT, down()), back), first);
}
