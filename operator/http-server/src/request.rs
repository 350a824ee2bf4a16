//! One request: its body is read whole before the routes get it, within a deadline and a bound of memory.

use std::sync::Arc;
use std::time::Instant;

use axum::body::{Body, Bytes, HttpBody, to_bytes};
use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::http::header::CONNECTION;
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::timeout;

use crate::connections::{Activity, Phase};
use crate::serve::Deadlines;

/// Longest body, in bytes, that every connection may send at a time.
const SMALL_BODY: usize = 64 << 10;
/// Requests with a longer body at a time.
pub(crate) const LARGE_BODIES: usize = 8;

/// What the requests of a connection need.
#[derive(Clone)]
pub(crate) struct Bounds {
    pub(crate) activity: Arc<Activity>,
    /// Longest body in bytes.
    pub(crate) body: usize,
    /// Places for requests with a body over [`SMALL_BODY`]: of all connections.
    pub(crate) large: Arc<Semaphore>,
    pub(crate) deadlines: Deadlines,
}

/// The connection is idle again, also if the request is cut off.
struct Busy<'a>(&'a Activity);

impl Drop for Busy<'_> {
    fn drop(&mut self) {
        self.0.enter(Phase::Idle, Instant::now());
    }
}

/// Receives the request, and passes it on.
pub(crate) async fn pass(State(bounds): State<Bounds>, request: Request, next: Next) -> Response {
    bounds.activity.enter(Phase::Receiving, Instant::now());
    let _busy = Busy(&bounds.activity);
    let (head, body) = request.into_parts();
    let Deadlines {
        body: of_body,
        call,
        ..
    } = bounds.deadlines;
    let received = timeout(of_body, receive(body, bounds.body, &bounds.large)).await;
    let (body, _place) = match received {
        Ok(Ok(received)) => received,
        Ok(Err(refusal)) => return refusal,
        Err(_) => {
            let text = format!("the request was not here whole within {of_body:?}\n");
            return closing(StatusCode::REQUEST_TIMEOUT, text);
        }
    };
    bounds.activity.enter(Phase::Answering, Instant::now());
    let request = Request::from_parts(head, Body::from(body));
    match timeout(call, next.run(request)).await {
        Ok(response) => response,
        Err(_) => closing(
            StatusCode::SERVICE_UNAVAILABLE,
            format!("the request was not answered within {call:?}\n"),
        ),
    }
}

/// The body, and its place if it is large.
async fn receive(
    body: Body,
    limit: usize,
    large: &Semaphore,
) -> Result<(Bytes, Option<SemaphorePermit<'_>>), Response> {
    let too_large = || {
        let text = format!("the body of the request is longer than {limit} bytes\n");
        closing(StatusCode::PAYLOAD_TOO_LARGE, text)
    };
    let announced = body.size_hint().upper();
    if announced.is_some_and(|length| length > limit as u64) {
        return Err(too_large());
    }
    // Of a body without a length any length is possible.
    let is_small = limit.min(SMALL_BODY) == limit
        || announced.is_some_and(|length| length <= SMALL_BODY as u64);
    let place = if is_small {
        None
    } else {
        // It is never closed.
        large.acquire().await.ok()
    };
    match to_bytes(body, limit).await {
        Ok(body) => Ok((body, place)),
        Err(_) => Err(too_large()),
    }
}

/// The rest of the body is not read.
fn closing(status: StatusCode, text: String) -> Response {
    (status, [(CONNECTION, "close")], text).into_response()
}
