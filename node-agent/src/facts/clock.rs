//! Compares the node's clock with the API server's clock, by the `Date` header of a response.

use std::time::Duration;

use axum::http::{Request, header};
use jiff::fmt::rfc2822::DateTimeParser;
use jiff::{SignedDuration, Timestamp};
use kube::client::Body;

use super::inbox::Inbox;
use crate::watched;

/// Time between two comparisons; shorter while the clocks differ, and before the first result, without which the check `Clock` does
/// not apply.
const PERIOD: Duration = Duration::from_secs(60);
const SHORT_PERIOD: Duration = Duration::from_secs(15);
const FIRST_PERIOD: Duration = Duration::from_secs(5);

/// Deadline of the API server's response.
const DEADLINE: Duration = Duration::from_secs(5);

/// Difference in seconds from which on [`SHORT_PERIOD`] applies.
const DIFFERENT: i64 = 5;

/// Compares the clocks for as long as the gatherer runs. Without a response the last result stays.
pub(super) async fn run(client: kube::Client, inbox: Inbox) {
    let mut last = None;
    while !inbox.is_closed() {
        if let Ok(Some(ahead)) = tokio::time::timeout(DEADLINE, compare(&client)).await {
            watched::set(&inbox, |observed| &mut observed.clock_ahead, Some(ahead));
            last = Some(ahead);
        }
        tokio::time::sleep(period(last)).await;
    }
}

/// The time until the next comparison, by the last result.
fn period(last: Option<i64>) -> Duration {
    match last {
        None => FIRST_PERIOD,
        Some(ahead) if ahead.abs() >= DIFFERENT => SHORT_PERIOD,
        Some(_) => PERIOD,
    }
}

/// Returns the least number of seconds by which the node's clock is ahead; `None` if the response has no date.
async fn compare(client: &kube::Client) -> Option<i64> {
    // Every authenticated client may read this path.
    let request = Request::get("/version").body(Body::empty()).ok()?;
    let sent = Timestamp::now();
    let answer = client.send(request).await.ok()?;
    let received = Timestamp::now();
    let date = answer.headers().get(header::DATE)?.to_str().ok()?;
    let date = DateTimeParser::new().parse_timestamp(date).ok()?;
    Some(ahead(sent, date, received))
}

/// The least possible difference: the server wrote its date, in whole seconds, between `sent` and `received`.
fn ahead(sent: Timestamp, date: Timestamp, received: Timestamp) -> i64 {
    let second = SignedDuration::from_secs(1);
    let ahead = sent.duration_since(date) - second;
    let behind = date.duration_since(received);
    if ahead.is_positive() {
        ahead.as_secs()
    } else if behind.is_positive() {
        -behind.as_secs()
    } else {
        0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_difference_that_a_date_in_whole_seconds_proves_is_reported() {
        let at = |millis: i64| Timestamp::from_millisecond(millis).unwrap();
        for (sent, date, received, expected) in [
            (10_000, 10_000, 10_010, 0),
            // The request starts late in the API server's second, and the response is slow.
            (10_990, 10_000, 14_000, 0),
            (9_000, 10_000, 9_900, 0),
            (17_500, 10_000, 17_600, 6),
            (3_000, 10_000, 3_100, -6),
            (3_000, 10_000, 9_100, 0),
        ] {
            let found = ahead(at(sent), at(date), at(received));
            assert_eq!(found, expected, "{sent} {date} {received}");
        }
    }

    #[test]
    fn a_comparison_without_a_first_result_is_repeated_soon() {
        assert_eq!(period(None), Duration::from_secs(5));
        assert_eq!(period(Some(-5)), Duration::from_secs(15));
        assert_eq!(period(Some(4)), Duration::from_secs(60));
    }

    #[test]
    fn an_http_date_is_parsed() {
        let date = DateTimeParser::new().parse_timestamp("Sun, 06 Nov 1994 08:49:37 GMT");
        assert_eq!(date.unwrap().as_second(), 784_111_777);
    }
}
