//! Fuzzes the ledger in memory that its pool pod can change at any time: records are applied and removed, bytes and whole cells
//! are overwritten and duplicated, and successors open what is there.
#![no_main]

use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Mutex};

use libfuzzer_sys::fuzz_target;
use mooncake_proto::store::Uuid;
use mooncake_proto::store::ledger::{Entry, Stored, Version};
use mooncake_store::{Cells, CellsError, Memory};

const CELL: usize = 64;
const CELLS: usize = 64;

#[derive(Clone)]
struct Shared(Arc<Mutex<Vec<u8>>>);

impl Shared {
    fn change(&self, change: impl FnOnce(&mut [u8])) {
        change(&mut self.0.lock().expect("one thread"));
    }
}

impl Memory for Shared {
    fn length(&self) -> io::Result<u64> {
        Ok(self.0.lock().expect("one thread").len() as u64)
    }

    // A range outside panics.
    fn read(&self, at: u64, bytes: &mut [u8]) -> io::Result<()> {
        self.change(|all| bytes.copy_from_slice(&all[at as usize..][..bytes.len()]));
        Ok(())
    }

    fn write(&self, at: u64, bytes: &[u8]) -> io::Result<()> {
        self.change(|all| all[at as usize..][..bytes.len()].copy_from_slice(bytes));
        Ok(())
    }
}

fn entry(offset: u8, number: u8, what: u8) -> Entry {
    Entry {
        offset: u64::from(offset % 16) << 12,
        version: Version {
            epoch: 1,
            number: u64::from(number),
        },
        stored: Some(Stored {
            key: "k".repeat(usize::from(what) * 3),
            length: u64::from(what),
            client: Uuid {
                first: 1,
                second: u64::from(what),
            },
            group: (what % 3 == 0).then(|| "g".repeat(usize::from(what % 70))),
            checksum: (what % 5 == 0).then_some(u64::from(number)),
            soft_pin_ms: u64::from(number),
            hard_pin: what % 2 == 0,
        }),
    }
}

/// Opens what is there. `None`: the memory has another format.
fn open(memory: &Shared) -> Option<Cells<Shared>> {
    match Cells::open(memory.clone()) {
        Ok(cells) => Some(cells),
        Err(CellsError::Format(_)) => None,
        Err(error) => panic!("{error}"),
    }
}

/// Returns the records of a ledger. Those that were changed meanwhile are left out.
fn content(cells: &Cells<Shared>) -> HashMap<(u16, u64), Entry> {
    let places = [0, 1].into_iter().flat_map(|extent| {
        let offsets = cells.offsets(extent).into_iter();
        offsets.map(move |offset| (extent, offset))
    });
    let read = |(extent, offset)| {
        let found = cells.read(extent, offset).expect("the memory is there");
        found.map(|entry| ((extent, offset), entry))
    };
    places.filter_map(read).collect()
}

fuzz_target!(|input: &[u8]| {
    let memory = Shared(Arc::new(Mutex::new(vec![0; CELL * CELLS])));
    let Some(mut cells) = open(&memory) else {
        panic!("new memory has no other format");
    };
    // What the ledger has; none from the first change by the pool pod on.
    let mut model = Some(HashMap::new());
    for step in input.chunks_exact(5) {
        let [what, a, b, c, d] = [0, 1, 2, 3, 4].map(|at| step[at]);
        let at = usize::from(u16::from_le_bytes([a, b])) % (CELL * CELLS);
        match what % 8 {
            0..=2 => {
                let (extent, one) = (u16::from(d % 2), entry(a, b, c));
                let before = cells.read(extent, one.offset).expect("the memory is there");
                let newer = before.is_none_or(|before| before.version < one.version);
                match cells.apply(extent, &one) {
                    Ok(()) => {
                        if newer && let Some(model) = &mut model {
                            assert_eq!(
                                cells.read(extent, one.offset).ok(),
                                Some(Some(one.clone()))
                            );
                            model.insert((extent, one.offset), one);
                        }
                    }
                    Err(CellsError::Full(_)) => {}
                    Err(CellsError::Superseded) => assert!(model.is_none()),
                    Err(error) => panic!("{error}"),
                }
            }
            3 => {
                let (extent, one) = (u16::from(d % 2), entry(a, b, c));
                let removal = Entry {
                    stored: None,
                    ..one
                };
                if cells.apply(extent, &removal).is_ok()
                    && let Some(model) = &mut model
                    && let Some(there) = model.get(&(extent, removal.offset))
                    && there.version == removal.version
                {
                    model.remove(&(extent, removal.offset));
                }
            }
            4 => {
                memory.change(|all| all[at] = c);
                model = None;
            }
            5 => {
                // A record of the ledger at another place: its checksum is right.
                let (from, to) = (usize::from(a) % CELLS, usize::from(b) % CELLS);
                let count = usize::from(c % 8).min(CELLS - from.max(to));
                memory.change(|all| all.copy_within(CELL * from..CELL * (from + count), CELL * to));
                model = None;
            }
            6 if d == 0 => {
                cells.clear_all().expect("the memory is there");
                model = model.map(|_| HashMap::new());
            }
            _ => {
                let Some(opened) = open(&memory) else { return };
                cells = opened;
                let found = content(&cells);
                assert_eq!(
                    found.len(),
                    cells.len(),
                    "a record was not whole when it was read"
                );
                if let Some(model) = &model {
                    assert_eq!(&found, model);
                    assert_eq!(cells.corrupt(), 0);
                }
            }
        }
        assert!(cells.len() < CELLS);
    }
    if let Some(model) = model {
        assert_eq!(content(&cells), model);
    }
});
