//! The memory of a ledger: records in cells of 64 bytes. It is valid after each single write, so that the process may be
//! killed at any time. A record is written from its end; its first byte, written last, makes it valid. The same byte
//! removes it.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io;

use proto::store::Uuid;
use proto::store::ledger::{Entry, Stored, Version};
use sha2::{Digest, Sha256};

/// Bytes of a cell.
const CELL: usize = 64;
/// First bytes of the memory: its format. The number of the process that writes follows.
const MAGIC: [u8; 8] = *b"MKLEDGR1";
/// First bytes of cells. The rest of a record never looks like a first cell, whatever a key contains.
const FREE: u8 = 0;
const FIRST: u8 = 1;
const REST: u8 = 2;
/// Payload of a cell after the first.
const PAYLOAD: usize = CELL - 1;
/// Bytes before group and key in the payload: checksum of the object, its soft pin, length of the key.
const FIXED: usize = 20;
/// Bytes of one read of the whole memory.
const READ: usize = 1 << 20;

const HARD_PIN: u8 = 1;
const HAS_CHECKSUM: u8 = 2;
const HAS_GROUP: u8 = 4;

/// Memory that outlives this process.
pub trait Memory: Send {
    /// Returns the number of bytes.
    ///
    /// # Errors
    /// Why the memory cannot be used.
    fn length(&self) -> io::Result<u64>;
    /// # Errors
    /// A range outside, or without memory.
    fn read(&self, at: u64, bytes: &mut [u8]) -> io::Result<()>;
    /// # Errors
    /// The same. A part of the bytes may have been written.
    fn write(&self, at: u64, bytes: &[u8]) -> io::Result<()>;
}

impl Memory for Box<dyn Memory> {
    fn length(&self) -> io::Result<u64> {
        (**self).length()
    }

    fn read(&self, at: u64, bytes: &mut [u8]) -> io::Result<()> {
        (**self).read(at, bytes)
    }

    fn write(&self, at: u64, bytes: &[u8]) -> io::Result<()> {
        (**self).write(at, bytes)
    }
}

/// Why a change is not in the ledger.
#[derive(Debug, thiserror::Error)]
pub enum CellsError {
    #[error("the memory of the ledger cannot be used: {0}")]
    Io(#[from] io::Error),
    #[error("the memory has another format: {0:02x?}")]
    Format([u8; 8]),
    #[error("the ledger has no space for a record of {0} bytes")]
    Full(usize),
    #[error("another process writes the ledger")]
    Superseded,
}

#[derive(Debug, Clone, Copy)]
struct Place {
    cell: u32,
    cells: u16,
    version: Version,
}

/// The records of all extents of a pool.
pub struct Cells<M> {
    memory: M,
    /// Number of the process that writes, counted in the memory.
    writer: u64,
    records: HashMap<(u16, u64), Place>,
    /// Free runs: first cell and length.
    free: BTreeMap<u32, u32>,
    /// The same, length first.
    lengths: BTreeSet<(u32, u32)>,
    corrupt: usize,
}

impl<M: Memory> Cells<M> {
    /// Opens a ledger and excludes earlier processes. New memory is all zero.
    ///
    /// # Errors
    /// [`CellsError::Format`] for memory of another format, [`CellsError::Io`].
    pub fn open(memory: M) -> Result<Self, CellsError> {
        let cells = memory.length()? / CELL as u64;
        let cells = u32::try_from(cells).unwrap_or(u32::MAX);
        let mut head = [0; 16];
        memory.read(0, &mut head)?;
        let magic: [u8; 8] = array(&head, 0);
        if magic != MAGIC && magic != [0; 8] {
            return Err(CellsError::Format(magic));
        }
        let writer = u64::from_le_bytes(array(&head, 8)).wrapping_add(1);
        memory.write(8, &writer.to_le_bytes())?;
        memory.write(0, &MAGIC)?;
        let mut opened = Self {
            memory,
            writer,
            records: HashMap::new(),
            free: BTreeMap::new(),
            lengths: BTreeSet::new(),
            corrupt: 0,
        };
        opened.scan(cells)?;
        Ok(opened)
    }

    /// Finds all valid records. A corrupt one is removed; no other one is lost with it.
    fn scan(&mut self, cells: u32) -> Result<(), CellsError> {
        let mut buffer = Vec::new();
        let (mut begin, mut at, mut free) = (0, 1, 1);
        while at < cells {
            let offset = (at - begin) as usize * CELL;
            if offset + CELL > buffer.len() {
                buffer = self.piece(at, cells, READ)?;
                begin = at;
                continue;
            }
            let mut next = at + 1;
            if buffer[offset] == FIRST {
                let length = usize::from(u16::from_le_bytes(array(&buffer[offset..], 2))) * CELL;
                if offset + length > buffer.len() && begin != at {
                    buffer = self.piece(at, cells, READ.max(length))?;
                    begin = at;
                    continue;
                }
                let whole = buffer.get(offset..offset + length);
                if let Some((extent, entry)) = whole.and_then(decode) {
                    next = at + u32::try_from(length / CELL).unwrap_or(1);
                    let place = Place {
                        cell: at,
                        cells: u16::try_from(length / CELL).unwrap_or(1),
                        version: entry.version,
                    };
                    let known = self.records.get(&(extent, entry.offset)).copied();
                    if known.is_some_and(|known| known.version > place.version) {
                        self.memory.write(at_byte(at), &[FREE])?;
                        at = next;
                        continue;
                    }
                    if free < at {
                        self.add_run(free, at - free);
                    }
                    free = next;
                    self.records.insert((extent, entry.offset), place);
                    if let Some(known) = known {
                        self.clear(known)?;
                    }
                } else {
                    self.corrupt += 1;
                    self.memory.write(at_byte(at), &[FREE])?;
                }
            }
            at = next;
        }
        if free < cells {
            self.release(free, cells - free);
        }
        Ok(())
    }

    fn piece(&self, from: u32, cells: u32, bytes: usize) -> Result<Vec<u8>, CellsError> {
        let left = (cells - from) as usize * CELL;
        let mut piece = vec![0; bytes.min(left)];
        self.memory.read(at_byte(from), &mut piece)?;
        Ok(piece)
    }

    /// Returns the number of records that were removed as corrupt when the ledger was opened.
    #[must_use]
    pub fn corrupt(&self) -> usize {
        self.corrupt
    }

    /// Returns the number of records.
    #[must_use]
    pub fn len(&self) -> usize {
        self.records.len()
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    /// Returns the highest epoch of a record.
    #[must_use]
    pub fn highest_epoch(&self) -> u64 {
        let epochs = self.records.values().map(|place| place.version.epoch);
        epochs.max().unwrap_or(0)
    }

    /// Returns the offsets of an extent's records.
    #[must_use]
    pub fn offsets(&self, extent: u16) -> Vec<u64> {
        let there = self.records.keys();
        there
            .filter(|(of, _)| *of == extent)
            .map(|(_, offset)| *offset)
            .collect()
    }

    /// Reads a record. `None` if there is none, or it is corrupt meanwhile.
    ///
    /// # Errors
    /// [`CellsError::Io`].
    pub fn read(&self, extent: u16, offset: u64) -> Result<Option<Entry>, CellsError> {
        let Some(place) = self.records.get(&(extent, offset)) else {
            return Ok(None);
        };
        let mut bytes = vec![0; usize::from(place.cells) * CELL];
        self.memory.read(at_byte(place.cell), &mut bytes)?;
        Ok(decode(&bytes)
            .filter(|(of, entry)| *of == extent && entry.offset == offset)
            .map(|(_, entry)| entry))
    }

    /// Applies a change. Applying it again has no effect.
    ///
    /// # Errors
    /// [`CellsError::Full`]: the object is not recorded, and nothing else has changed. [`CellsError::Superseded`],
    /// [`CellsError::Io`].
    pub fn apply(&mut self, extent: u16, entry: &Entry) -> Result<(), CellsError> {
        let mut writer = [0; 8];
        self.memory.read(8, &mut writer)?;
        if u64::from_le_bytes(writer) != self.writer {
            return Err(CellsError::Superseded);
        }
        let key = (extent, entry.offset);
        let known = self.records.get(&key).copied();
        let Some(stored) = &entry.stored else {
            if let Some(known) = known.filter(|known| known.version == entry.version) {
                self.clear(known)?;
                self.records.remove(&key);
            }
            return Ok(());
        };
        if known.is_some_and(|known| known.version >= entry.version) {
            return Ok(());
        }
        let bytes = encode(extent, entry, stored).ok_or(CellsError::Full(stored.key.len()))?;
        let cells = u16::try_from(bytes.len() / CELL).map_err(|_| CellsError::Full(bytes.len()))?;
        let cell = self
            .take(u32::from(cells))
            .ok_or(CellsError::Full(bytes.len()))?;
        let at = at_byte(cell);
        let written = self
            .memory
            .write(at + 1, &bytes[1..])
            .and_then(|()| self.memory.write(at, &[FIRST]));
        if let Err(error) = written {
            self.release(cell, u32::from(cells));
            return Err(error.into());
        }
        let place = Place {
            cell,
            cells,
            version: entry.version,
        };
        self.records.insert(key, place);
        if let Some(known) = known {
            self.clear(known)?;
        }
        Ok(())
    }

    /// Removes all records.
    ///
    /// # Errors
    /// [`CellsError::Io`]: records may be left.
    pub fn clear_all(&mut self) -> Result<(), CellsError> {
        let places: Vec<_> = self.records.keys().copied().collect();
        for key in places {
            if let Some(place) = self.records.get(&key).copied() {
                self.clear(place)?;
                self.records.remove(&key);
            }
        }
        Ok(())
    }

    fn clear(&mut self, place: Place) -> Result<(), CellsError> {
        self.memory.write(at_byte(place.cell), &[FREE])?;
        self.release(place.cell, u32::from(place.cells));
        Ok(())
    }

    /// Takes cells from the shortest run that is long enough.
    fn take(&mut self, cells: u32) -> Option<u32> {
        let &(length, cell) = self.lengths.range((cells, 0)..).next()?;
        self.take_run(cell);
        if length > cells {
            self.add_run(cell + cells, length - cells);
        }
        Some(cell)
    }

    /// Returns cells, joined with their free neighbours.
    fn release(&mut self, mut cell: u32, mut cells: u32) {
        if let Some(after) = self.take_run(cell + cells) {
            cells += after;
        }
        if let Some((&before, &length)) = self.free.range(..cell).next_back()
            && before + length == cell
        {
            self.take_run(before);
            cell = before;
            cells += length;
        }
        self.add_run(cell, cells);
    }

    fn add_run(&mut self, cell: u32, cells: u32) {
        self.free.insert(cell, cells);
        self.lengths.insert((cells, cell));
    }

    /// Removes the run that begins with a cell, and returns its length.
    fn take_run(&mut self, cell: u32) -> Option<u32> {
        let length = self.free.remove(&cell)?;
        self.lengths.remove(&(length, cell));
        Some(length)
    }
}

fn at_byte(cell: u32) -> u64 {
    u64::from(cell) * CELL as u64
}

/// Bytes `at..at + N`, zero beyond the end.
fn array<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    let mut part = [0; N];
    for (to, from) in part.iter_mut().zip(bytes.iter().skip(at)) {
        *to = *from;
    }
    part
}

/// Of everything but the first byte and the sum itself.
fn checksum(cells: &[u8]) -> [u8; 8] {
    let mut hash = Sha256::new();
    hash.update(&cells[1..8]);
    hash.update(&cells[16..]);
    let digest: [u8; 32] = hash.finalize().into();
    array(&digest, 0)
}

/// The first cell: state, flags, number of cells, extent, length of the group, checksum, version, offset, length, client.
fn encode(extent: u16, entry: &Entry, stored: &Stored) -> Option<Vec<u8>> {
    let group = stored.group.as_deref().unwrap_or_default();
    let mut payload = Vec::with_capacity(FIXED + stored.key.len() + group.len());
    payload.extend(stored.checksum.unwrap_or_default().to_le_bytes());
    payload.extend(stored.soft_pin_ms.to_le_bytes());
    payload.extend(u32::try_from(stored.key.len()).ok()?.to_le_bytes());
    payload.extend(group.as_bytes());
    payload.extend(stored.key.as_bytes());
    let cells = 1 + payload.len().div_ceil(PAYLOAD);
    let mut bytes = vec![0; CELL];
    bytes[0] = FIRST;
    for (flag, is_set) in [
        (HARD_PIN, stored.hard_pin),
        (HAS_CHECKSUM, stored.checksum.is_some()),
        (HAS_GROUP, stored.group.is_some()),
    ] {
        bytes[1] |= if is_set { flag } else { 0 };
    }
    bytes[2..4].copy_from_slice(&u16::try_from(cells).ok()?.to_le_bytes());
    bytes[4..6].copy_from_slice(&extent.to_le_bytes());
    bytes[6..8].copy_from_slice(&u16::try_from(group.len()).ok()?.to_le_bytes());
    bytes[16..24].copy_from_slice(&entry.version.epoch.to_le_bytes());
    bytes[24..32].copy_from_slice(&entry.version.number.to_le_bytes());
    bytes[32..40].copy_from_slice(&entry.offset.to_le_bytes());
    bytes[40..48].copy_from_slice(&stored.length.to_le_bytes());
    bytes[48..56].copy_from_slice(&stored.client.first.to_le_bytes());
    bytes[56..64].copy_from_slice(&stored.client.second.to_le_bytes());
    for part in payload.chunks(PAYLOAD) {
        bytes.push(REST);
        bytes.extend(part);
    }
    bytes.resize(cells * CELL, 0);
    let sum = checksum(&bytes);
    bytes[8..16].copy_from_slice(&sum);
    Some(bytes)
}

/// Returns extent and content of a record, if it is whole and right.
fn decode(bytes: &[u8]) -> Option<(u16, Entry)> {
    if bytes.len() < 2 * CELL || bytes[0] != FIRST || checksum(bytes) != array(bytes, 8) {
        return None;
    }
    let number = |at| u64::from_le_bytes(array(bytes, at));
    let half = |at| u16::from_le_bytes(array(bytes, at));
    let rest = bytes[CELL..].chunks(CELL);
    let payload: Vec<u8> = rest.flat_map(|cell| &cell[1..]).copied().collect();
    let flags = bytes[1];
    let texts = payload.get(FIXED..)?;
    let (group, key) = texts.split_at_checked(usize::from(half(6)))?;
    let end = usize::try_from(u32::from_le_bytes(array(&payload, 16))).ok()?;
    let key = key.get(..end)?;
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).ok();
    let stored = Stored {
        key: text(key)?,
        length: number(40),
        client: Uuid {
            first: number(48),
            second: number(56),
        },
        group: if flags & HAS_GROUP != 0 {
            Some(text(group)?)
        } else {
            None
        },
        checksum: (flags & HAS_CHECKSUM != 0).then(|| u64::from_le_bytes(array(&payload, 0))),
        soft_pin_ms: u64::from_le_bytes(array(&payload, 8)),
        hard_pin: flags & HARD_PIN != 0,
    };
    let entry = Entry {
        offset: number(32),
        version: Version {
            epoch: number(16),
            number: number(24),
        },
        stored: Some(stored),
    };
    Some((half(4), entry))
}

#[cfg(test)]
mod tests;
