//! Tests of the cells: content, corruption, and a kill between any two writes.

use std::sync::Arc;

use parking_lot::Mutex;
use proptest::prelude::*;

use super::*;

/// Memory that outlives its ledger. After `left` writes it takes no more, as if the process were killed.
#[derive(Clone)]
struct Shared(Arc<Mutex<(Vec<u8>, usize)>>);

impl Shared {
    fn new(bytes: usize) -> Self {
        Self(Arc::new(Mutex::new((vec![0; bytes], usize::MAX))))
    }

    fn kill_after(&self, writes: usize) {
        self.0.lock().1 = writes;
    }
}

impl Memory for Shared {
    fn length(&self) -> io::Result<u64> {
        Ok(self.0.lock().0.len() as u64)
    }

    fn read(&self, at: u64, bytes: &mut [u8]) -> io::Result<()> {
        let at = usize::try_from(at).unwrap();
        bytes.copy_from_slice(&self.0.lock().0[at..at + bytes.len()]);
        Ok(())
    }

    fn write(&self, at: u64, bytes: &[u8]) -> io::Result<()> {
        let mut inner = self.0.lock();
        let left = inner.1.checked_sub(1).ok_or(io::ErrorKind::Interrupted)?;
        inner.1 = left;
        let at = usize::try_from(at).unwrap();
        // The last write is torn.
        let whole = if left == 0 {
            bytes.len() / 2
        } else {
            bytes.len()
        };
        inner.0[at..at + whole].copy_from_slice(&bytes[..whole]);
        Ok(())
    }
}

fn entry(key: &str, offset: u64, number: u64) -> Entry {
    Entry {
        offset,
        version: Version { epoch: 7, number },
        stored: Some(Stored {
            key: key.into(),
            length: 100,
            client: Uuid {
                first: 1,
                second: 2,
            },
            group: (number.is_multiple_of(2)).then(|| "a group".into()),
            checksum: (number.is_multiple_of(3)).then_some(number),
            soft_pin_ms: number * 10,
            hard_pin: number.is_multiple_of(5),
        }),
    }
}

fn removal(offset: u64, number: u64) -> Entry {
    Entry {
        stored: None,
        ..entry("", offset, number)
    }
}

fn content<M: Memory>(cells: &Cells<M>) -> BTreeMap<(u16, u64), Entry> {
    let places = cells.records.keys();
    let read = |&(extent, offset)| {
        let entry = cells.read(extent, offset).unwrap();
        ((extent, offset), entry.expect("a record is valid"))
    };
    places.map(read).collect()
}

#[test]
fn records_are_read_as_they_were_written_also_by_a_successor() {
    let memory = Shared::new(1 << 16);
    let mut cells = Cells::open(memory.clone()).unwrap();
    let long = "k".repeat(300);
    let mut expected = BTreeMap::new();
    for (number, key) in ["a", "ä\0", "", &long].into_iter().enumerate() {
        let extent = u16::try_from(number % 2).unwrap();
        let one = entry(key, number as u64 * 100, number as u64 + 1);
        cells.apply(extent, &one).unwrap();
        expected.insert((extent, one.offset), one);
    }
    assert_eq!(content(&cells), expected);
    let mut successor = Cells::open(memory).unwrap();
    assert_eq!(content(&successor), expected);
    assert_eq!((successor.corrupt(), successor.highest_epoch()), (0, 7));
    assert!(matches!(
        cells.apply(0, &entry("late", 0, 9)),
        Err(CellsError::Superseded)
    ));
    // A removal of another version has no effect.
    successor.apply(0, &removal(0, 99)).unwrap();
    assert_eq!(content(&successor), expected);
    successor.apply(0, &removal(0, 1)).unwrap();
    expected.remove(&(0, 0));
    assert_eq!(content(&successor), expected);
    successor.clear_all().unwrap();
    assert!(successor.is_empty());
    assert!(Cells::open(successor.memory).unwrap().is_empty());
}

#[test]
fn a_key_that_looks_like_a_record_is_none() {
    let memory = Shared::new(1 << 14);
    let mut cells = Cells::open(memory.clone()).unwrap();
    let forged = encode(
        0,
        &entry("forged", 5000, 1),
        &entry("forged", 5000, 1).stored.unwrap(),
    );
    let forged: String = forged
        .unwrap()
        .iter()
        .map(|byte| char::from(byte % 128))
        .collect();
    for shift in 0..CELL {
        let key = format!("{}{forged}", "x".repeat(shift));
        cells.apply(0, &entry(&key, 1, 1)).unwrap();
        cells.apply(0, &removal(1, 1)).unwrap();
        assert!(Cells::open(memory.clone()).unwrap().is_empty());
        cells = Cells::open(memory.clone()).unwrap();
    }
}

#[test]
fn a_full_ledger_refuses_a_record_and_all_space_returns() {
    let memory = Shared::new(64 * 16);
    let mut cells = Cells::open(memory).unwrap();
    let mut count = 0;
    while cells.apply(0, &entry("k", count * 100, count + 1)).is_ok() {
        count += 1;
    }
    assert_eq!(count, 7);
    assert_eq!(cells.len(), 7);
    for number in 0..count {
        cells.apply(0, &removal(number * 100, number + 1)).unwrap();
    }
    assert!(cells.is_empty());
    let long = "k".repeat(13 * PAYLOAD);
    cells.apply(0, &entry(&long, 0, 100)).unwrap();
    assert!(matches!(
        cells.apply(0, &entry(&"k".repeat(1 << 23), 1, 101)),
        Err(CellsError::Full(_))
    ));
}

#[test]
fn a_corrupt_byte_loses_no_other_record() {
    let memory = Shared::new(1 << 13);
    let mut cells = Cells::open(memory.clone()).unwrap();
    for number in 0..10 {
        let key = format!(
            "key-{number}-{}",
            "x".repeat(usize::try_from(number * 13).unwrap())
        );
        cells
            .apply(0, &entry(&key, number * 100, number + 1))
            .unwrap();
    }
    let whole = content(&cells);
    let pristine = memory.0.lock().0.clone();
    // Beside the head.
    for at in (CELL..pristine.len()).step_by(7) {
        let damaged = Shared::new(0);
        damaged.0.lock().0.clone_from(&pristine);
        damaged.0.lock().0[at] ^= 0x55;
        let mut opened = Cells::open(damaged.clone()).unwrap();
        let left = content(&opened);
        assert!(left.len() + 1 >= whole.len(), "byte {at}");
        assert!(
            left.iter().all(|(place, entry)| whole[place] == *entry),
            "byte {at}"
        );
        opened.apply(0, &entry("next", 5000, 50)).unwrap();
        assert_eq!(
            content(&Cells::open(damaged).unwrap()).len(),
            left.len() + 1
        );
    }
    assert!(matches!(
        Cells::open(Shared(Arc::new(Mutex::new((vec![1; 4096], usize::MAX))))),
        Err(CellsError::Format(_))
    ));
}

#[derive(Debug, Clone)]
enum Step {
    Record(u64, usize),
    Remove(u64),
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]
    /// The process is killed in the midst of any write. All earlier changes are there, and the cut one is whole or absent.
    #[test]
    fn a_kill_in_any_write_leaves_a_valid_ledger(
        steps in prop::collection::vec(
            prop_oneof![
                2 => (0..6_u64, 1..200_usize).prop_map(|(slot, length)| Step::Record(slot, length)),
                1 => (0..6_u64).prop_map(Step::Remove),
            ],
            1..40,
        ),
        kill in 1..60_usize,
    ) {
        let memory = Shared::new(1 << 14);
        let mut cells = Cells::open(memory.clone()).unwrap();
        memory.kill_after(kill);
        let mut model: BTreeMap<(u16, u64), Entry> = BTreeMap::new();
        let mut next = model.clone();
        for (number, step) in (1..).zip(&steps) {
            let change = match step {
                Step::Record(slot, length) => entry(&"k".repeat(*length), slot * 100, number),
                Step::Remove(slot) => {
                    let version = model.get(&(0, slot * 100)).map_or(0, |entry| entry.version.number);
                    removal(slot * 100, version)
                }
            };
            if change.stored.is_some() {
                next.insert((0, change.offset), change.clone());
            } else {
                next.remove(&(0, change.offset));
            }
            let applied = cells.apply(0, &change);
            let is_dead = memory.0.lock().1 == 0;
            if applied.is_err() || is_dead {
                break;
            }
            model = next.clone();
        }
        memory.kill_after(usize::MAX);
        let found = content(&Cells::open(memory).unwrap());
        prop_assert!(found == model || found == next, "{found:?}\n{model:?}\n{next:?}");
    }
}

/// The search takes no step for each hole: this one would take minutes.
#[test]
fn a_full_ledger_with_many_short_holes_refuses_at_once() {
    const RECORDS: u32 = 1 << 16;
    let mut cells = Cells::open(Shared::new((2 * RECORDS as usize + 1) * CELL)).unwrap();
    for number in 0..u64::from(RECORDS) {
        cells.apply(0, &entry("k", number, 1)).unwrap();
    }
    for number in (0..u64::from(RECORDS)).step_by(2) {
        cells.apply(0, &removal(number, 1)).unwrap();
    }
    let long = "k".repeat(60);
    let begin = std::time::Instant::now();
    for number in 0..100_000 {
        let full = cells.apply(1, &entry(&long, number, 1));
        assert!(matches!(full, Err(CellsError::Full(_))));
    }
    assert!(begin.elapsed() < std::time::Duration::from_secs(30));
    cells.apply(1, &entry("k", 0, 1)).unwrap();
}
