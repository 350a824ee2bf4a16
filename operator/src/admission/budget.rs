//! The memory that reviews take at a time. Anyone may send one: the port is open to every pod, and the decoded form of a
//! small text is large, as each `{}` becomes a whole container or volume.

use std::sync::Arc;

use axum::body::{Body, to_bytes};
use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use tokio::sync::Semaphore;

use super::review::BODY_LIMIT;

/// KiB that all reviews together may take. The container has 256 MiB.
const TOTAL: u32 = 64 << 10;
/// Bytes that an object or a list may take: the largest types of a pod, twice, as lists grow by doubling.
const OBJECT: usize = 8 << 10;
/// Bytes that a number, or another value without characters of its own, may take, with its copies.
const VALUE: usize = 192;
/// Copies of the text.
const COPIES: usize = 4;

/// KiB that reviews may still take.
#[derive(Clone)]
pub(super) struct Budget(Arc<Semaphore>);

impl Default for Budget {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(TOTAL as usize)))
    }
}

/// Passes a review on while there is room for it.
pub(super) async fn reserve(
    State(Budget(budget)): State<Budget>,
    request: Request,
    next: Next,
) -> Response {
    let (head, body) = request.into_parts();
    let Ok(body) = to_bytes(body, BODY_LIMIT).await else {
        return StatusCode::PAYLOAD_TOO_LARGE.into_response();
    };
    let weight = weight(&body);
    let reserved = match u32::try_from(weight) {
        Ok(weight) if weight <= TOTAL => budget.acquire_many(weight).await,
        Ok(_) | Err(_) => {
            let text = format!(
                "the review may take {weight} KiB of memory, of {TOTAL} KiB at most: its object has too many lists, \
                 objects or values"
            );
            tracing::warn!(bytes = body.len(), "refused a review: {text}");
            return (StatusCode::PAYLOAD_TOO_LARGE, text).into_response();
        }
    };
    let response = next.run(Request::from_parts(head, Body::from(body))).await;
    drop(reserved);
    response
}

/// Most KiB that the review takes when it is decoded. Counts without decoding.
fn weight(json: &[u8]) -> usize {
    let (mut objects, mut values) = (0_usize, 0_usize);
    let (mut in_text, mut escaped) = (false, false);
    for byte in json {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if in_text => escaped = true,
            b'"' => in_text = !in_text,
            b'{' | b'[' if !in_text => objects += 1,
            b',' if !in_text => values += 1,
            _ => {}
        }
    }
    (objects * OBJECT + values * VALUE + json.len() * COPIES).div_ceil(1 << 10)
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::{Container, EphemeralContainer, Volume};

    use super::*;

    #[test]
    fn the_largest_types_of_a_pod_fit_their_share() {
        for size in [
            size_of::<Container>(),
            size_of::<EphemeralContainer>(),
            size_of::<Volume>(),
        ] {
            assert!(2 * size <= OBJECT, "{size}");
        }
        assert!(3 * 2 * size_of::<serde_json::Value>() <= VALUE);
    }

    #[test]
    fn text_counts_by_its_length_and_structure_by_what_it_becomes() {
        assert_eq!(weight(b"{}"), 9);
        assert_eq!(weight(br#""{[,\"{[,""#), 1);
        assert_eq!(weight(br#"["\\",{}]"#), 17);
        // A pod with 100 containers of 20 settings each.
        let settings = r#"{"name":"NCCL_DEBUG","value":"{\"a\": [1, 2, {}]}"},"#.repeat(20);
        let pod = format!(
            r#"{{"containers":[{}]}}"#,
            format!(r#"{{"env":[{settings}]}},"#).repeat(100)
        );
        assert!(
            weight(pod.as_bytes()) < TOTAL as usize,
            "{}",
            weight(pod.as_bytes())
        );
        for unit in ["{},", "[],", "0,"] {
            let crowd = unit.repeat(BODY_LIMIT / unit.len());
            assert!(weight(crowd.as_bytes()) > TOTAL as usize, "{unit}");
        }
    }
}
