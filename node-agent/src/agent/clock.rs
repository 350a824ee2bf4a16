//! Compares the node's clock with that of the API server, which stamps each of its answers.

use std::time::Duration;

use axum::http::{Request, header};
use jiff::fmt::rfc2822::DateTimeParser;
use jiff::{SignedDuration, Timestamp};
use kube::client::Body;
use tokio::sync::watch;

/// Between two questions; a clock that was found wrong is looked at sooner.
const PERIOD: Duration = Duration::from_secs(60);
const SOONER: Duration = Duration::from_secs(15);

/// How long the API server may take.
const DEADLINE: Duration = Duration::from_secs(5);

/// Apart by so many seconds is worth another look soon.
const APART: i64 = 5;

/// By how many seconds at least the node's clock is ahead of the API server's, or behind where
/// negative. None before the first answer, and where answers have no date.
pub(crate) type Known = watch::Receiver<Option<i64>>;

/// Asks for as long as anybody listens.
pub(crate) fn watch(client: kube::Client) -> Known {
    let (tell, known) = watch::channel(None);
    tokio::spawn(async move {
        while !tell.is_closed() {
            // With the API away what was known holds.
            if let Ok(Some(ahead)) = tokio::time::timeout(DEADLINE, ask(&client)).await {
                tell.send_if_modified(|known| {
                    let news = *known != Some(ahead);
                    *known = Some(ahead);
                    news
                });
            }
            let apart = tell.borrow().is_some_and(|ahead| ahead.abs() >= APART);
            tokio::time::sleep(if apart { SOONER } else { PERIOD }).await;
        }
    });
    known
}

async fn ask(client: &kube::Client) -> Option<i64> {
    // Everybody who is known may read this.
    let request = Request::get("/version").body(Body::empty()).ok()?;
    let sent = Timestamp::now();
    let answer = client.send(request).await.ok()?;
    let received = Timestamp::now();
    let date = answer.headers().get(header::DATE)?.to_str().ok()?;
    let date = DateTimeParser::new().parse_timestamp(date).ok()?;
    Some(ahead(sent, date, received))
}

/// The answer was stamped between its question and its arrival, in whole seconds: no more is claimed
/// than that proves.
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
    fn no_more_is_claimed_than_a_stamp_in_whole_seconds_proves() {
        let at = |millis: i64| Timestamp::from_millisecond(millis).unwrap();
        for (sent, date, received, expected) in [
            (10_000, 10_000, 10_010, 0),
            // The API server's second is over almost, and the answer is long on its way.
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
    fn a_date_of_http_is_understood() {
        let date = DateTimeParser::new().parse_timestamp("Sun, 06 Nov 1994 08:49:37 GMT");
        assert_eq!(date.unwrap().as_second(), 784_111_777);
    }
}
