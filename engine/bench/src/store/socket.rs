//! The upper limit: the same bytes over a plain loopback socket, one request at a time.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context;

/// Returns the rate in MB/s (10^6 bytes) of values sent one by one, each acknowledged by a byte.
pub(crate) fn megabytes_per_second(value_bytes: u64, volume_bytes: u64) -> anyhow::Result<f64> {
    let count = volume_bytes / value_bytes;
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    let receiver = thread::spawn(move || -> std::io::Result<()> {
        let (mut stream, _) = listener.accept()?;
        prepare(&stream)?;
        let mut value = buffer(value_bytes);
        for _ in 0..count {
            stream.read_exact(&mut value)?;
            stream.write_all(&[0])?;
        }
        Ok(())
    });
    let mut stream = TcpStream::connect(address)?;
    prepare(&stream)?;
    let value = buffer(value_bytes);
    let start = Instant::now();
    for _ in 0..count {
        stream.write_all(&value)?;
        stream.read_exact(&mut [0])?;
    }
    let seconds = start.elapsed().as_secs_f64();
    receiver.join().ok().context("the receiver panicked")??;
    #[expect(clippy::cast_precision_loss, reason = "the rate is only displayed")]
    Ok((count * value_bytes) as f64 / seconds / 1e6)
}

fn prepare(stream: &TcpStream) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(Duration::from_secs(30)))?;
    stream.set_write_timeout(Some(Duration::from_secs(30)))
}

fn buffer(bytes: u64) -> Vec<u8> {
    vec![7; usize::try_from(bytes).expect("a value fits in memory")]
}
