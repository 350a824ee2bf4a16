//! The deadline of calls to the API server. The client has none: a server or a proxy that keeps a connection open without
//! an answer would hold the caller.

use std::time::Duration;

/// Time for one call.
const DEADLINE: Duration = Duration::from_secs(10);

/// The answer of the API server.
///
/// # Errors
/// The errors of the call, and [`kube::Error::Service`] if it is not answered in time.
pub async fn answered<T>(call: impl Future<Output = kube::Result<T>>) -> kube::Result<T> {
    within(DEADLINE, call).await
}

async fn within<T>(
    deadline: Duration,
    call: impl Future<Output = kube::Result<T>>,
) -> kube::Result<T> {
    let unanswered = |_| {
        let message = format!("the API server did not answer within {deadline:?}");
        Err(kube::Error::Service(message.into()))
    };
    tokio::time::timeout(deadline, call)
        .await
        .unwrap_or_else(unanswered)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_call_without_an_answer_is_an_error() {
        let never = std::future::pending::<kube::Result<()>>();
        let error = within(Duration::from_millis(5), never).await.unwrap_err();
        let error = format!("{error:?}");
        assert!(error.contains("did not answer within 5ms"), "{error}");
        within(DEADLINE, async { Ok(()) }).await.unwrap();
    }
}
