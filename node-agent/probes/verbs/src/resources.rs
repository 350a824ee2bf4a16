//! Resources of a device in use, as the kernel counts them: queue pairs, registrations, and the processes with the
//! most queue pairs; and whether network namespaces share the devices. Read over netlink (`rdma_netlink.h`), as `rdma resource` does.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::io;
use std::time::Duration;

use rustix::net::netlink::{self, SocketAddrNetlink};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketType};

use crate::{Holder, Usage};

/// Deadline of each part of an answer.
const PART_DEADLINE: Duration = Duration::from_secs(2);

/// Most bytes of a part; the kernel sends whole pages.
const PART: usize = 64 << 10;

/// Most processes in the report.
const HOLDERS: usize = 16;

/// Most parts of an answer, each with about 100 queue pairs.
const PARTS: usize = 16 << 10;

const NLDEV: u16 = 5 << 10;
const GET: u16 = NLDEV + 1;
const SYS_GET: u16 = NLDEV + 6;
const RES_GET: u16 = NLDEV + 9;
const RES_QP_GET: u16 = NLDEV + 10;

const DEV_INDEX: u16 = 1;
const DEV_NAME: u16 = 2;
const SUMMARY: u16 = 15;
const SUMMARY_ENTRY: u16 = 16;
const ENTRY_NAME: u16 = 17;
const ENTRY_COUNT: u16 = 18;
const QP: u16 = 19;
const QP_ENTRY: u16 = 20;
const PID: u16 = 28;
const NAMESPACE_MODE: u16 = 67;

const REQUEST: u16 = 1;
const DUMP: u16 = 0x300;
const ERROR: u16 = 2;
const DONE: u16 = 3;
const HEADER: usize = 16;

/// Resources in use of the device with this name, in the network namespace of this thread.
///
/// # Errors
/// A netlink error; `NotFound` if the device does not exist.
pub(crate) fn taken(device: &str) -> io::Result<Usage> {
    let mut index = None;
    request(GET, DUMP, None, |message| {
        index = index.or_else(|| index_of(message, device))
    })?;
    let index = index.ok_or(io::ErrorKind::NotFound)?;
    let mut taken = Usage::default();
    request(RES_GET, 0, Some(index), |message| sum(message, &mut taken))?;
    let mut held = BTreeMap::new();
    request(RES_QP_GET, DUMP, Some(index), |message| {
        count(message, &mut held)
    })?;
    let mut held: Vec<(u32, u64)> = held.into_iter().collect();
    held.sort_by_key(|(pid, queue_pairs)| (Reverse(*queue_pairs), *pid));
    held.truncate(HOLDERS);
    let holders = held.into_iter().map(|(pid, queue_pairs)| Holder {
        pid,
        process: process(pid),
        queue_pairs,
    });
    taken.holders = holders.collect();
    Ok(taken)
}

/// Whether network namespaces share the devices of the node: `rdma system` shows `netns shared` or `netns exclusive`. `None`
/// if the kernel does not report it.
///
/// # Errors
/// A netlink error.
pub(crate) fn is_shared() -> io::Result<Option<bool>> {
    let mut shared = None;
    request(SYS_GET, 0, None, |message| shared = shared_mode(message))?;
    Ok(shared)
}

fn shared_mode(message: &[u8]) -> Option<bool> {
    let mode = attribute(message, NAMESPACE_MODE)?.first()?;
    Some(*mode != 0)
}

/// Name of the process, or its PID if it has ended.
fn process(pid: u32) -> String {
    let name = std::fs::read_to_string(format!("/proc/{pid}/comm"));
    name.map_or_else(|_| pid.to_string(), |name| name.trim().to_owned())
}

fn index_of(message: &[u8], device: &str) -> Option<u32> {
    let name = attribute(message, DEV_NAME)?;
    let same = name.strip_suffix(&[0]).unwrap_or(name) == device.as_bytes();
    same.then(|| number(attribute(message, DEV_INDEX)?))
        .flatten()
        .and_then(|index| u32::try_from(index).ok())
}

fn sum(message: &[u8], taken: &mut Usage) {
    let entries = attributes(attribute(message, SUMMARY).unwrap_or_default());
    for (_, entry) in entries.filter(|(kind, _)| *kind == SUMMARY_ENTRY) {
        let name = attribute(entry, ENTRY_NAME).unwrap_or_default();
        let count = attribute(entry, ENTRY_COUNT).and_then(number).unwrap_or(0);
        match name {
            b"qp\0" => taken.queue_pairs = count,
            b"mr\0" => taken.registrations = count,
            _ => {}
        }
    }
}

/// Counts queue pairs per process; those of the kernel have no PID.
fn count(message: &[u8], held: &mut BTreeMap<u32, u64>) {
    let entries = attributes(attribute(message, QP).unwrap_or_default());
    for (_, entry) in entries.filter(|(kind, _)| *kind == QP_ENTRY) {
        let pid = attribute(entry, PID).and_then(number);
        if let Some(pid) = pid.and_then(|pid| u32::try_from(pid).ok()) {
            *held.entry(pid).or_default() += 1;
        }
    }
}

/// Sends a request and passes the body of each message of the answer to `take`.
fn request(
    kind: u16,
    flags: u16,
    index: Option<u32>,
    mut take: impl FnMut(&[u8]),
) -> io::Result<()> {
    let socket = rustix::net::socket(AddressFamily::NETLINK, SocketType::RAW, Some(netlink::RDMA))?;
    set_socket_timeout(&socket, Timeout::Recv, Some(PART_DEADLINE))?;
    let kernel = SocketAddrNetlink::new(0, 0);
    let request = encode(kind, flags, index);
    rustix::net::sendto(&socket, &request, SendFlags::empty(), &kernel)?;
    let mut part = vec![0; PART];
    for _ in 0..PARTS {
        let (length, _) = rustix::net::recv(&socket, &mut part[..], RecvFlags::empty())?;
        let mut rest = &part[..length];
        while let Some((kind, message, after)) = message(rest) {
            match kind {
                DONE => return Ok(()),
                ERROR => return refused(message),
                _ => take(message),
            }
            rest = after;
        }
        if flags & DUMP == 0 {
            return Ok(());
        }
    }
    Err(io::ErrorKind::FileTooLarge.into())
}

fn encode(kind: u16, flags: u16, index: Option<u32>) -> Vec<u8> {
    let mut body = Vec::new();
    if let Some(index) = index {
        body.extend(8_u16.to_ne_bytes());
        body.extend(DEV_INDEX.to_ne_bytes());
        body.extend(index.to_ne_bytes());
    }
    let length = u32::try_from(HEADER + body.len()).unwrap_or(u32::MAX);
    let mut request = length.to_ne_bytes().to_vec();
    request.extend(kind.to_ne_bytes());
    request.extend((REQUEST | flags).to_ne_bytes());
    // No sequence number and port: each socket has one request.
    request.extend([0; 8]);
    request.extend(body);
    request
}

/// Reads an error message: a negative errno, 0 for success.
fn refused(message: &[u8]) -> io::Result<()> {
    let errno = message
        .first_chunk()
        .map_or(0, |bytes| i32::from_ne_bytes(*bytes));
    match errno {
        0 => Ok(()),
        errno => Err(io::Error::from_raw_os_error(errno.saturating_neg())),
    }
}

/// Kind and body of the first message, and the rest.
fn message(bytes: &[u8]) -> Option<(u16, &[u8], &[u8])> {
    let length = u32::from_ne_bytes(*bytes.first_chunk()?);
    let kind = u16::from_ne_bytes(*bytes.get(4..)?.first_chunk()?);
    let length = usize::try_from(length).ok()?;
    let body = bytes.get(HEADER..length)?;
    let after = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
    Some((kind, body, after))
}

/// Iterates over netlink attributes.
fn attributes(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let length = usize::from(u16::from_ne_bytes(*bytes.first_chunk()?));
        let kind = u16::from_ne_bytes(*bytes.get(2..)?.first_chunk()?);
        let value = bytes.get(4..length)?;
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
        // The two highest bits are flags.
        Some((kind & 0x3fff, value))
    })
}

fn attribute(bytes: &[u8], wanted: u16) -> Option<&[u8]> {
    attributes(bytes)
        .find(|(kind, _)| *kind == wanted)
        .map(|(_, value)| value)
}

fn number(value: &[u8]) -> Option<u64> {
    match value.len() {
        4 => Some(u32::from_ne_bytes(*value.first_chunk()?).into()),
        8 => Some(u64::from_ne_bytes(*value.first_chunk()?)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attribute_of(kind: u16, value: &[u8]) -> Vec<u8> {
        let length = u16::try_from(value.len() + 4).unwrap_or(u16::MAX);
        let mut bytes = length.to_ne_bytes().to_vec();
        bytes.extend(kind.to_ne_bytes());
        bytes.extend(value);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        bytes
    }

    #[test]
    fn counts_are_read_from_kernel_messages() {
        let entry = |name: &[u8], count: u64| {
            let name = attribute_of(ENTRY_NAME, name);
            let count = attribute_of(ENTRY_COUNT, &count.to_ne_bytes());
            attribute_of(SUMMARY_ENTRY | 0x8000, &[name, count].concat())
        };
        let entries = [entry(b"pd\0", 3), entry(b"qp\0", 17), entry(b"mr\0", 9)].concat();
        let mut taken = Usage::default();
        sum(&attribute_of(SUMMARY | 0x8000, &entries), &mut taken);
        assert_eq!((taken.queue_pairs, taken.registrations), (17, 9));

        let held_by = |pid: u32| attribute_of(QP_ENTRY, &attribute_of(PID, &pid.to_ne_bytes()));
        let of_kernel = attribute_of(QP_ENTRY, &attribute_of(29, b"ib_core\0"));
        let entries = [held_by(7), of_kernel, held_by(8), held_by(7)].concat();
        let mut held = BTreeMap::new();
        count(&attribute_of(QP, &entries), &mut held);
        assert_eq!(held.into_iter().collect::<Vec<_>>(), [(7, 2), (8, 1)]);
    }

    #[test]
    fn the_mode_of_namespaces_is_one_octet() {
        let mode = |value: &[u8]| shared_mode(&attribute_of(NAMESPACE_MODE, value));
        assert_eq!((mode(&[1]), mode(&[0])), (Some(true), Some(false)));
        // Of a kernel before the mode, and of one with further attributes.
        let other = attribute_of(NAMESPACE_MODE + 6, &[0]);
        assert_eq!((mode(&[]), shared_mode(&other)), (None, None));
        let message = [other, attribute_of(NAMESPACE_MODE, &[0])].concat();
        assert_eq!(shared_mode(&message), Some(false));
    }

    #[test]
    fn a_device_is_found_by_its_exact_name() {
        let name = attribute_of(DEV_NAME, b"mlx5_1\0");
        let message = [attribute_of(DEV_INDEX, &4_u32.to_ne_bytes()), name].concat();
        assert_eq!(index_of(&message, "mlx5_1"), Some(4));
        assert_eq!(index_of(&message, "mlx5_"), None);
    }

    #[test]
    fn a_truncated_message_ends_the_reading() {
        let whole = encode(GET, DUMP, Some(1));
        for length in 0..whole.len() {
            assert!(message(&whole[..length]).is_none(), "{length}");
        }
        let (kind, body, after) = message(&whole).expect("it is whole");
        assert_eq!((kind, after.len()), (GET, 0));
        assert_eq!(attribute(body, DEV_INDEX).and_then(number), Some(1));
        assert_eq!(attributes(&[0, 0, 0, 0, 1]).count(), 0);
        assert_eq!(attributes(&[200, 0, 1, 0]).count(), 0);
    }
}
