//! One HTTP/1.1 request on one connection, and its answer. Engine processes and gates do without an HTTP stack.

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::error::Problem;

/// Longest head of an answer in bytes.
const HEAD_LIMIT: usize = 16 << 10;

/// Most header fields of an answer.
const FIELDS_LIMIT: usize = 64;

/// Longest body in bytes: the limit of stock engines for a descriptor.
const BODY_LIMIT: usize = 1 << 20;

/// A complete answer.
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) body: Vec<u8>,
}

/// How the end of a body is marked.
enum End {
    Length(usize),
    Chunks,
    Close,
}

struct Head {
    status: u16,
    /// Where the body begins.
    length: usize,
    end: End,
}

/// Sends a request and returns its answer.
pub(crate) async fn exchange(mut stream: TcpStream, request: &[u8]) -> Result<Answer, Problem> {
    let failed = |error: std::io::Error| closed(&error.to_string());
    stream.write_all(request).await.map_err(failed)?;
    let mut bytes = Vec::with_capacity(4096);
    let head = loop {
        if let Some(head) = head(&bytes)? {
            break head;
        }
        if bytes.len() > HEAD_LIMIT {
            return Err(Problem::WrongScheme("the header does not end".into()));
        }
        if stream.read_buf(&mut bytes).await.map_err(failed)? == 0 {
            return Err(closed("before the end of the header"));
        }
    };
    let mut body = bytes.split_off(head.length);
    loop {
        if let Some(body) = complete(&head.end, &body)? {
            return Ok(Answer {
                status: head.status,
                body,
            });
        }
        if body.len() > 2 * BODY_LIMIT {
            return Err(too_long());
        }
        if stream.read_buf(&mut body).await.map_err(failed)? == 0 {
            if matches!(head.end, End::Close) && body.len() <= BODY_LIMIT {
                return Ok(Answer {
                    status: head.status,
                    body,
                });
            }
            return Err(closed("within the answer"));
        }
    }
}

fn closed(cause: &str) -> Problem {
    Problem::Closed(cause.into())
}

fn too_long() -> Problem {
    closed("the answer is longer than 1 MiB")
}

/// Parses the head; `None` while it is incomplete.
fn head(bytes: &[u8]) -> Result<Option<Head>, Problem> {
    let wrong = |cause: &str| Problem::WrongScheme(cause.into());
    let mut fields = [httparse::EMPTY_HEADER; FIELDS_LIMIT];
    let mut response = httparse::Response::new(&mut fields);
    let length = match response.parse(bytes) {
        Ok(httparse::Status::Complete(length)) => length,
        Ok(httparse::Status::Partial) => return Ok(None),
        Err(error) => return Err(wrong(&error.to_string())),
    };
    let field = |name: &str| {
        let found = response.headers.iter();
        let mut found = found.filter(|field| field.name.eq_ignore_ascii_case(name));
        found
            .next()
            .map(|field| String::from_utf8_lossy(field.value).trim().to_owned())
    };
    let end = match (field("transfer-encoding"), field("content-length")) {
        (Some(coding), _) if coding.eq_ignore_ascii_case("chunked") => End::Chunks,
        (Some(coding), _) => return Err(wrong(&format!("transfer encoding {coding}"))),
        (None, Some(length)) => match length.parse() {
            Ok(length) if length <= BODY_LIMIT => End::Length(length),
            Ok(_) => return Err(too_long()),
            Err(_) => return Err(wrong(&format!("content length {length:?}"))),
        },
        (None, None) => End::Close,
    };
    Ok(Some(Head {
        status: response.code.unwrap_or_default(),
        length,
        end,
    }))
}

/// Returns the body once all of it is there.
fn complete(end: &End, bytes: &[u8]) -> Result<Option<Vec<u8>>, Problem> {
    match end {
        End::Close => Ok(None),
        End::Length(length) => Ok(bytes.get(..*length).map(<[u8]>::to_vec)),
        End::Chunks => chunks(bytes),
    }
}

fn chunks(mut bytes: &[u8]) -> Result<Option<Vec<u8>>, Problem> {
    let mut body = Vec::new();
    loop {
        let (start, size) = match httparse::parse_chunk_size(bytes) {
            Ok(httparse::Status::Complete(chunk)) => chunk,
            Ok(httparse::Status::Partial) => return Ok(None),
            Err(_) => return Err(Problem::WrongScheme("an invalid chunk".into())),
        };
        if size == 0 {
            return Ok(Some(body));
        }
        let size = usize::try_from(size).map_err(|_| too_long())?;
        if body.len().saturating_add(size) > BODY_LIMIT {
            return Err(too_long());
        }
        let Some(chunk) = bytes.get(start..start + size) else {
            return Ok(None);
        };
        body.extend_from_slice(chunk);
        // After each chunk follows a line end.
        let Some(rest) = bytes.get(start + size + 2..) else {
            return Ok(None);
        };
        bytes = rest;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_body_in_chunks_is_joined_when_its_last_chunk_is_there() {
        let whole = b"4\r\nmeta\r\n5;x=y\r\n data\r\n0\r\n\r\n";
        for cut in 0..whole.len() - 2 {
            assert_eq!(chunks(&whole[..cut]).unwrap(), None, "{cut} bytes");
        }
        assert_eq!(chunks(whole).unwrap().unwrap(), b"meta data");
        assert!(chunks(b"x\r\n").is_err());
        assert!(chunks(b"ffffffffffffffff\r\n").is_err());
    }

    #[test]
    fn heads_that_are_not_http_or_announce_too_much_are_errors() {
        assert!(head(b"HTTP/1.1 200 OK\r\nContent-Le").unwrap().is_none());
        for wrong in [
            &b"\x15\x03\x01"[..],
            b"SSH-2.0-OpenSSH_9.2\r\n",
            b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n",
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\n",
        ] {
            assert!(matches!(head(wrong), Err(Problem::WrongScheme(_))));
        }
        let long = b"HTTP/1.1 200 OK\r\nContent-Length: 1048577\r\n\r\n";
        assert!(matches!(head(long), Err(Problem::Closed(_))));
    }
}
