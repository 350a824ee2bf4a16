//! A minimal HTTP GET for the master's admin service.

use std::io;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, ToSocketAddrs};

/// Most bytes of a response: a list of about 20,000 segments.
const LIMIT: u64 = 8 << 20;

/// Why a GET failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum GetError {
    #[error("cannot connect: {0}")]
    Connect(io::Error),
    #[error("the connection failed: {0}")]
    Broken(#[from] io::Error),
    #[error("no complete response within {} s", .0.as_secs())]
    Deadline(Duration),
    #[error("the response is not HTTP")]
    Malformed,
    #[error("the status is `{0}`")]
    Status(String),
    #[error("the response is longer than {LIMIT} bytes")]
    TooLong,
    #[error("the response ended after {got} of {announced} bytes")]
    Truncated { got: usize, announced: usize },
}

/// Returns the body of a successful `GET path`.
pub(super) async fn get(
    address: impl ToSocketAddrs,
    host: &str,
    path: &str,
    deadline: Duration,
) -> Result<Vec<u8>, GetError> {
    let exchange = async {
        let mut stream = TcpStream::connect(address)
            .await
            .map_err(GetError::Connect)?;
        let request = format!("GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await?;
        read(stream).await
    };
    tokio::time::timeout(deadline, exchange)
        .await
        .map_err(|_| GetError::Deadline(deadline))?
}

/// Reads head and body. The master announces the length; without one the body ends with the stream.
async fn read(stream: TcpStream) -> Result<Vec<u8>, GetError> {
    let mut stream = stream.take(LIMIT + 1);
    let mut answer = Vec::new();
    loop {
        if let Some((body, announced)) = head(&answer)?
            && announced.is_some_and(|length| answer.len() - body >= length)
        {
            let length = announced.unwrap_or_default();
            answer.drain(..body);
            answer.truncate(length);
            return Ok(answer);
        }
        if stream.read_buf(&mut answer).await? == 0 {
            break;
        }
    }
    if answer.len() as u64 > LIMIT {
        return Err(GetError::TooLong);
    }
    match head(&answer)? {
        None => Err(GetError::Malformed),
        Some((body, Some(announced))) => Err(GetError::Truncated {
            got: answer.len() - body,
            announced,
        }),
        Some((body, None)) => Ok(answer.split_off(body)),
    }
}

/// Offset of the body and its announced length, once the head is complete.
fn head(answer: &[u8]) -> Result<Option<(usize, Option<usize>)>, GetError> {
    let Some(end) = answer
        .windows(4)
        .take(16 << 10)
        .position(|w| w == b"\r\n\r\n")
    else {
        return Ok(None);
    };
    let text = str::from_utf8(&answer[..end]).map_err(|_| GetError::Malformed)?;
    let mut lines = text.split("\r\n");
    let status = lines.next().unwrap_or_default();
    let (version, code) = status.split_once(' ').ok_or(GetError::Malformed)?;
    if !version.starts_with("HTTP/1.") {
        return Err(GetError::Malformed);
    }
    if !code.starts_with("200") {
        return Err(GetError::Status(code.to_owned()));
    }
    let length = lines
        .filter_map(|line| line.split_once(':'))
        .find(|(name, _)| name.eq_ignore_ascii_case("content-length"))
        .map(|(_, value)| value.trim().parse::<usize>())
        .transpose()
        .map_err(|_| GetError::Malformed)?;
    Ok(Some((end + 4, length)))
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn answer_to(text: &'static [u8]) -> Result<Vec<u8>, GetError> {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let server = tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut request = [0; 1024];
            let _ = stream.read(&mut request).await.unwrap();
            stream.write_all(text).await.unwrap();
        });
        let answer = get(address, "here", "/health", Duration::from_secs(5)).await;
        server.await.unwrap();
        answer
    }

    #[tokio::test]
    async fn a_body_is_read_to_its_announced_length_or_to_the_end() {
        let announced = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}rest";
        assert_eq!(answer_to(announced).await.unwrap(), b"{}");
        assert_eq!(
            answer_to(b"HTTP/1.0 200 OK\r\n\r\n{}").await.unwrap(),
            b"{}"
        );
    }

    #[tokio::test]
    async fn each_invalid_response_has_its_own_error() {
        let short = b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{}";
        assert!(matches!(
            answer_to(short).await,
            Err(GetError::Truncated {
                got: 2,
                announced: 9
            })
        ));
        let unavailable = b"HTTP/1.1 503 Service Unavailable\r\n\r\n";
        assert!(matches!(
            answer_to(unavailable).await,
            Err(GetError::Status(_))
        ));
        assert!(matches!(
            answer_to(b"SSH-2.0\r\n\r\n").await,
            Err(GetError::Malformed)
        ));
        assert!(matches!(answer_to(b"").await, Err(GetError::Malformed)));
    }
}
