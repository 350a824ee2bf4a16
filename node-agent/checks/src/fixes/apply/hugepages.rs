//! Reserves hugepages and releases them: all pages of the change, or none.

use std::io::{self, Write};
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::fs::OFlags;

use super::{at, open, read};
use crate::fixes::page_counts::{PageCounts, Place, name};
use crate::fixes::step::Change;

/// Deadline for raising all counts: the kernel searches long where memory is fragmented. The parent process waits longer.
const LIMIT: Duration = Duration::from_secs(120);

/// Most bytes per write, so that the deadline is checked in between.
const AT_ONCE: u64 = 4 << 30;

/// The kernel's interface to hugepages.
trait Kernel {
    fn total(&self, place: Place) -> io::Result<u64>;
    fn free(&self, place: Place) -> io::Result<u64>;
    fn set(&self, place: Place, count: u64) -> io::Result<()>;
    /// Compacts memory. Without it fewer pages are found.
    fn compact(&self, node: Option<u32>);
}

/// True where the counts were set and read back; false where others were present than the change starts from.
///
/// # Errors
/// A file cannot be read or written, the kernel gave too few pages, or the deadline passed.
pub(super) fn set(root: &Path, change: &Change) -> io::Result<bool> {
    let parsed = |text: &str| text.parse::<PageCounts>().map_err(io::Error::other);
    let (before, after) = (parsed(&change.before)?, parsed(&change.after)?);
    set_counts(&Sysfs(root), &before, &after, LIMIT)
}

fn set_counts(
    kernel: &impl Kernel,
    before: &PageCounts,
    after: &PageCounts,
    limit: Duration,
) -> io::Result<bool> {
    for (place, count) in before.iter() {
        if kernel.total(place)? != count {
            return Ok(false);
        }
    }
    let known = |(place, count): (Place, u64)| Some((place, before.get(place)?, count));
    let moves: Vec<(Place, u64, u64)> = after.iter().filter_map(known).collect();
    for (place, before, after) in moves.iter().filter(|(_, before, after)| before > after) {
        if kernel.free(*place)? < before - after {
            return Ok(false);
        }
    }
    // Larger pages first: they are harder to find.
    let rising = moves.iter().filter(|(_, before, after)| before < after);
    let rising: Vec<_> = rising.rev().copied().collect();
    if let Err(error) = raise(kernel, &rising, limit) {
        return Err(restore(kernel, &rising, error));
    }
    for (place, _, after) in moves.iter().filter(|(_, before, after)| before > after) {
        kernel.set(*place, *after)?;
        let present = kernel.total(*place)?;
        if present != *after {
            let place = described(*place);
            let message = format!("{place} was set to {after} but still has {present}");
            return Err(io::Error::other(message));
        }
    }
    Ok(true)
}

fn raise(kernel: &impl Kernel, rising: &[(Place, u64, u64)], limit: Duration) -> io::Result<()> {
    let began = Instant::now();
    let mut nodes: Vec<_> = rising.iter().map(|(place, ..)| place.node).collect();
    nodes.sort_unstable();
    nodes.dedup();
    for node in nodes {
        kernel.compact(node);
    }
    for (place, before, after) in rising {
        let mut present = *before;
        while present < *after {
            if began.elapsed() >= limit {
                let place = described(*place);
                let message =
                    format!("the kernel gave {place} only {present} of {after} in {limit:?}");
                return Err(io::Error::other(message));
            }
            let next = present.saturating_add(AT_ONCE / place.size).min(*after);
            kernel.set(*place, next)?;
            let given = kernel.total(*place)?;
            if given != next {
                let place = described(*place);
                let message = format!("the kernel gave {place} {given} of {after}");
                return Err(io::Error::other(message));
            }
            present = given;
        }
    }
    Ok(())
}

/// Restores the counts from before; returns the error with the result of that.
fn restore(kernel: &impl Kernel, rising: &[(Place, u64, u64)], error: io::Error) -> io::Error {
    // All of them, whatever fails: each keeps memory of the node.
    let failed: Vec<String> = rising
        .iter()
        .filter_map(|(place, before, _)| kernel.set(*place, *before).err())
        .map(|error| error.to_string())
        .collect();
    let result = match failed.as_slice() {
        [] => "the previous counts were restored".to_owned(),
        failed => format!(
            "the previous counts could not be restored: {}",
            failed.join("; ")
        ),
    };
    io::Error::new(error.kind(), format!("{error}; {result}"))
}

fn described(place: Place) -> String {
    let size = crds::ByteSize(place.size);
    format!("{} in pages of {size}", name(place.node))
}

/// The kernel of the node with this root folder.
struct Sysfs<'a>(&'a Path);

impl Sysfs<'_> {
    fn path(place: Place, file: &str) -> String {
        let kibibytes = place.size >> 10;
        let folder = match place.node {
            Some(id) => format!("sys/devices/system/node/node{id}"),
            None => "sys/kernel/mm".to_owned(),
        };
        format!("{folder}/hugepages/hugepages-{kibibytes}kB/{file}")
    }

    fn count(&self, place: Place, file: &str) -> io::Result<u64> {
        let path = Self::path(place, file);
        let text = read(self.0, &path)?;
        let not_a_number = |_| io::Error::other(format!("/{path} is not a number: {text}"));
        text.parse().map_err(not_a_number)
    }

    fn write(&self, path: &str, text: &str) -> io::Result<()> {
        open(self.0, path, OFlags::WRONLY | OFlags::TRUNC)
            .and_then(|mut file| file.write_all(text.as_bytes()))
            .map_err(|error| at(&format!("cannot write /{path}"), &error))
    }
}

impl Kernel for Sysfs<'_> {
    fn total(&self, place: Place) -> io::Result<u64> {
        self.count(place, "nr_hugepages")
    }

    fn free(&self, place: Place) -> io::Result<u64> {
        self.count(place, "free_hugepages")
    }

    fn set(&self, place: Place, count: u64) -> io::Result<()> {
        self.write(&Self::path(place, "nr_hugepages"), &format!("{count}\n"))
    }

    fn compact(&self, node: Option<u32>) {
        let path = match node {
            Some(id) => format!("sys/devices/system/node/node{id}/compact"),
            None => "proc/sys/vm/compact_memory".to_owned(),
        };
        if let Err(error) = self.write(&path, "1\n") {
            tracing::debug!(%error, "memory cannot be compacted");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::collections::BTreeMap;
    use std::fs;

    use crds::FixId;

    use super::*;
    use crate::fixes::apply::{ApplyResult, apply_changes};
    use crate::fixes::plan::tests::change;
    use host::live::Node;

    /// A simulated kernel with a limit of pages for each NUMA node, which records the calls.
    #[derive(Default)]
    struct FakeKernel {
        most: BTreeMap<u32, u64>,
        present: RefCell<BTreeMap<Place, u64>>,
        used: u64,
        /// A NUMA node whose count cannot be lowered.
        stuck: Option<u32>,
        calls: RefCell<Vec<String>>,
    }

    impl Kernel for FakeKernel {
        fn total(&self, place: Place) -> io::Result<u64> {
            Ok(self.present.borrow().get(&place).copied().unwrap_or(0))
        }

        fn free(&self, place: Place) -> io::Result<u64> {
            Ok(self.total(place)? - self.used)
        }

        fn set(&self, place: Place, count: u64) -> io::Result<()> {
            let node = place.node.unwrap_or(0);
            if self.stuck == Some(node) && count < self.total(place)? {
                return Err(io::Error::other("EIO"));
            }
            let most = self.most.get(&node).copied().unwrap_or(u64::MAX);
            self.present.borrow_mut().insert(place, count.min(most));
            let call = format!("{} {count}", described(place));
            self.calls.borrow_mut().push(call);
            Ok(())
        }

        fn compact(&self, node: Option<u32>) {
            self.calls
                .borrow_mut()
                .push(format!("compact {}", name(node)));
        }
    }

    fn pages(text: &str) -> PageCounts {
        text.parse().unwrap()
    }

    fn fake(present: &str) -> FakeKernel {
        let present = RefCell::new(pages(present).0);
        FakeKernel {
            present,
            ..FakeKernel::default()
        }
    }

    #[test]
    fn memory_is_compacted_first_and_large_pages_come_before_small_ones() {
        let none = "2Mi: node0 0, node1 7; 1Gi: node0 0";
        let all = "2Mi: node0 3000, node1 7; 1Gi: node0 1";
        let kernel = fake(none);
        assert!(set_counts(&kernel, &pages(none), &pages(all), LIMIT).unwrap());
        let calls = kernel.calls.into_inner();
        assert_eq!(
            calls,
            [
                "compact node0",
                "node0 in pages of 1Gi 1",
                "node0 in pages of 2Mi 2048",
                "node0 in pages of 2Mi 3000",
            ]
        );
    }

    #[test]
    fn all_pages_are_released_where_the_kernel_gives_too_few() {
        let (none, all) = ("2Mi: node0 5, node1 0", "2Mi: node0 512, node1 512");
        let mut kernel = fake(none);
        kernel.most = BTreeMap::from([(1, 100)]);
        let refused = set_counts(&kernel, &pages(none), &pages(all), LIMIT);
        assert_eq!(
            refused.unwrap_err().to_string(),
            "the kernel gave node1 in pages of 2Mi 100 of 512; the previous counts were restored"
        );
        assert_eq!(PageCounts(kernel.present.into_inner()), pages(none));
        let mut kernel = fake(none);
        kernel.most = BTreeMap::from([(0, 100)]);
        kernel.stuck = Some(1);
        let refused = set_counts(&kernel, &pages(none), &pages(all), LIMIT);
        let words = refused.unwrap_err().to_string();
        assert!(words.ends_with("could not be restored: EIO"), "{words}");
        let rest = pages("2Mi: node0 5, node1 512");
        assert_eq!(
            PageCounts(kernel.present.into_inner()),
            rest,
            "the others are"
        );
        let slow = fake(none);
        let refused = set_counts(&slow, &pages(none), &pages(all), Duration::ZERO);
        let words = refused.unwrap_err().to_string();
        assert!(words.contains("only 0 of 512 in 0ns"), "{words}");
        assert_eq!(PageCounts(slow.present.into_inner()), pages(none));
    }

    #[test]
    fn pages_that_came_into_use_are_not_released() {
        let mut kernel = fake("2Mi: node0 512");
        kernel.used = 300;
        let lower = |to: &str| set_counts(&kernel, &pages("2Mi: node0 512"), &pages(to), LIMIT);
        assert!(!lower("2Mi: node0 100").unwrap());
        assert!(kernel.calls.borrow().is_empty());
        assert!(lower("2Mi: node0 300").unwrap());
        assert!(!lower("2Mi: node0 300").unwrap(), "no longer 512");
    }

    #[test]
    fn pages_are_reserved_on_each_numa_node_and_released_again() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        let write = |path: &str, text: &str| {
            let path = root.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        let of = |node: u8, file: &str| {
            format!("sys/devices/system/node/node{node}/hugepages/hugepages-2048kB/{file}")
        };
        for node in [0, 1] {
            write(&of(node, "nr_hugepages"), "0\n");
            write(&of(node, "free_hugepages"), "512\n");
            write(&format!("sys/devices/system/node/node{node}/compact"), "");
        }
        let node = Node {
            root: root.to_owned(),
            network: None,
        };
        let there = ("2Mi: node0 0, node1 0", "2Mi: node0 512, node1 256");
        for (before, after) in [there, (there.1, there.0)] {
            let change = change(FixId::Hugepages, before, after);
            assert_eq!(
                apply_changes(&node, std::slice::from_ref(&change)),
                [(FixId::Hugepages, ApplyResult::Done)]
            );
            let again = apply_changes(&node, &[change]);
            assert_eq!(again, [(FixId::Hugepages, ApplyResult::Conflict)]);
            let present =
                [0, 1].map(|node| fs::read_to_string(root.join(of(node, "nr_hugepages"))));
            let present = present.map(|text| text.unwrap().trim().to_owned());
            let present = format!("2Mi: node0 {}, node1 {}", present[0], present[1]);
            assert_eq!(present, after);
        }
        let compact = root.join("sys/devices/system/node/node1/compact");
        assert_eq!(fs::read_to_string(compact).unwrap(), "1\n");
        let foreign = change(FixId::Hugepages, "64Ki: node0 0", "64Ki: node0 1");
        let results = apply_changes(&node, &[foreign]);
        assert!(
            matches!(&results[0].1, ApplyResult::Refused(why) if why.contains("not a list of hugepages"))
        );
    }
}
