//! Reads the admin port of a stock master: mounted segments and metrics.

use anyhow::{Context, ensure};
use serde::Deserialize;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

const DEADLINE: Duration = Duration::from_secs(5);

/// One segment in the master's index.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
pub struct Segment {
    #[serde(rename = "segment_name")]
    pub name: String,
    pub segment_id: String,
    pub client_id: String,
    /// Base of its wire addresses, in hexadecimal.
    pub base_address: String,
    pub size_bytes: u64,
    /// Address and handshake port of the pool pod.
    pub te_endpoint: String,
}

#[derive(Deserialize)]
struct Details {
    segments: Vec<Segment>,
}

/// The segments that the master at `ip` has mounted, by name.
///
/// # Errors
/// No answer within 5 s, or an answer that cannot be parsed.
pub async fn segments(ip: &str) -> anyhow::Result<Vec<Segment>> {
    let text = get(ip, crds::names::MASTER_ADMIN_PORT, "/get_segments_detail").await?;
    let Details { mut segments } = serde_json::from_str(&text)
        .with_context(|| format!("the master at {ip} answered {text}"))?;
    segments.sort();
    Ok(segments)
}

/// The master's answer to an HTTP GET on its admin port.
///
/// # Errors
/// No answer within 5 s, or a status other than 200.
pub async fn get(ip: &str, port: u16, path: &str) -> anyhow::Result<String> {
    tokio::time::timeout(DEADLINE, exchange(ip, port, path))
        .await
        .with_context(|| format!("{ip}:{port}{path}: no answer in {DEADLINE:?}"))?
        .with_context(|| format!("{ip}:{port}{path}"))
}

async fn exchange(ip: &str, port: u16, path: &str) -> anyhow::Result<String> {
    let mut stream = TcpStream::connect((ip, port)).await?;
    let request = format!("GET {path} HTTP/1.1\r\nHost: {ip}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    let mut answer = Vec::new();
    // The stock master keeps the connection open: Content-Length marks the end of the answer.
    while !complete(&answer) && stream.read_buf(&mut answer).await? > 0 {}
    let answer = String::from_utf8_lossy(&answer).into_owned();
    let (head, body) = answer
        .split_once("\r\n\r\n")
        .context("the answer is not HTTP")?;
    ensure!(head.contains(" 200 "), "answered {head}");
    Ok(body.to_owned())
}

fn complete(answer: &[u8]) -> bool {
    let text = String::from_utf8_lossy(answer);
    let Some((head, body)) = text.split_once("\r\n\r\n") else {
        return false;
    };
    head.lines()
        .filter_map(|line| line.split_once(':'))
        .find(|(name, _)| name.eq_ignore_ascii_case("content-length"))
        .and_then(|(_, length)| length.trim().parse::<usize>().ok())
        .is_some_and(|length| body.len() >= length)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_ends_at_its_content_length() {
        assert!(!complete(b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nab"));
        assert!(complete(b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\nabc"));
    }
}
