//! Sets hugepages aside and gives them back: all that were asked for, or as many as stood there before.

use std::io::{self, Write};
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::fs::OFlags;

use super::{at, open, read};
use crate::fixes::pages::{Pages, Place, name};
use crate::fixes::plan::Change;

/// After this nothing more is asked for: the kernel searches long where memory is in pieces. Whoever
/// waits for this process waits longer.
const LIMIT: Duration = Duration::from_secs(120);

/// Most bytes asked for in one write, so that the time is looked at in between.
const AT_ONCE: u64 = 4 << 30;

/// What the kernel does with hugepages.
trait Kernel {
    fn total(&self, place: Place) -> io::Result<u64>;
    fn free(&self, place: Place) -> io::Result<u64>;
    fn set(&self, place: Place, count: u64) -> io::Result<()>;
    /// Moves memory together. Without it there is no more than less to be found.
    fn compact(&self, node: Option<u32>);
}

/// True where it was done and read back, false where something else stands there than the change begins
/// with.
pub(super) fn set(root: &Path, change: &Change) -> io::Result<bool> {
    let pages = |text: &str| text.parse::<Pages>().map_err(io::Error::other);
    let (before, after) = (pages(&change.before)?, pages(&change.after)?);
    carry_out(&Sysfs(root), &before, &after, LIMIT)
}

fn carry_out(
    kernel: &impl Kernel,
    before: &Pages,
    after: &Pages,
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
    // The larger pages first: they are harder to find.
    let rising = moves.iter().filter(|(_, before, after)| before < after);
    let rising: Vec<_> = rising.rev().copied().collect();
    if let Err(error) = raise(kernel, &rising, limit) {
        return Err(give_back(kernel, &rising, error));
    }
    for (place, _, after) in moves.iter().filter(|(_, before, after)| before > after) {
        kernel.set(*place, *after)?;
        let stands = kernel.total(*place)?;
        if stands != *after {
            let words = format!(
                "{} was set to {after} and still has {stands}",
                words(*place)
            );
            return Err(io::Error::other(words));
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
        let mut stands = *before;
        while stands < *after {
            if began.elapsed() >= limit {
                let words = format!(
                    "the kernel gave {} only {stands} of {after} in {limit:?}",
                    words(*place)
                );
                return Err(io::Error::other(words));
            }
            let next = stands.saturating_add(AT_ONCE / place.size).min(*after);
            kernel.set(*place, next)?;
            let given = kernel.total(*place)?;
            if given != next {
                let words = format!("the kernel gave {} {given} of {after}", words(*place));
                return Err(io::Error::other(words));
            }
            stands = given;
        }
    }
    Ok(())
}

/// The error, and what became of what there was until then.
fn give_back(kernel: &impl Kernel, rising: &[(Place, u64, u64)], error: io::Error) -> io::Error {
    let back = rising
        .iter()
        .try_for_each(|(place, before, _)| kernel.set(*place, *before));
    let words = match back {
        Ok(()) => "what stood there before was set back".to_owned(),
        Err(back) => format!("what stood there before could not be set back: {back}"),
    };
    io::Error::new(error.kind(), format!("{error}; {words}"))
}

fn words(place: Place) -> String {
    let size = crds::ByteSize(place.size);
    format!("{} in pages of {size}", name(place.node))
}

/// The node with this root folder.
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
        let no_count = |_| io::Error::other(format!("/{path} says {text}"));
        text.parse().map_err(no_count)
    }

    fn write(&self, path: &str, text: &str) -> io::Result<()> {
        open(self.0, path, OFlags::WRONLY | OFlags::TRUNC)
            .and_then(|mut file| file.write_all(text.as_bytes()))
            .map_err(|error| at(&format!("writing /{path}"), &error))
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
            tracing::debug!(%error, "memory is as much in pieces as it was");
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
    use crate::fixes::hand::{Outcome, carry_out as by_hand};
    use crate::fixes::plan::tests::change;
    use crate::host::round::Node;

    /// A kernel that has so many pages for each NUMA node, and remembers what it was asked.
    #[derive(Default)]
    struct Played {
        most: BTreeMap<u32, u64>,
        stand: RefCell<BTreeMap<Place, u64>>,
        used: u64,
        asked: RefCell<Vec<String>>,
    }

    impl Kernel for Played {
        fn total(&self, place: Place) -> io::Result<u64> {
            Ok(self.stand.borrow().get(&place).copied().unwrap_or(0))
        }

        fn free(&self, place: Place) -> io::Result<u64> {
            Ok(self.total(place)? - self.used)
        }

        fn set(&self, place: Place, count: u64) -> io::Result<()> {
            let node = place.node.unwrap_or(0);
            let most = self.most.get(&node).copied().unwrap_or(u64::MAX);
            self.stand.borrow_mut().insert(place, count.min(most));
            let words = format!("{} {count}", words(place));
            self.asked.borrow_mut().push(words);
            Ok(())
        }

        fn compact(&self, node: Option<u32>) {
            self.asked
                .borrow_mut()
                .push(format!("compact {}", name(node)));
        }
    }

    fn pages(text: &str) -> Pages {
        text.parse().unwrap()
    }

    fn played(stand: &str) -> Played {
        let stand = RefCell::new(pages(stand).0);
        Played {
            stand,
            ..Played::default()
        }
    }

    #[test]
    fn memory_is_moved_together_first_and_large_pages_are_taken_before_small_ones() {
        let none = "2Mi: node0 0, node1 7; 1Gi: node0 0";
        let all = "2Mi: node0 3000, node1 7; 1Gi: node0 1";
        let kernel = played(none);
        assert!(carry_out(&kernel, &pages(none), &pages(all), LIMIT).unwrap());
        let asked = kernel.asked.into_inner();
        assert_eq!(
            asked,
            [
                "compact node0",
                "node0 in pages of 1Gi 1",
                "node0 in pages of 2Mi 2048",
                "node0 in pages of 2Mi 3000",
            ]
        );
    }

    #[test]
    fn s26_where_the_kernel_gives_fewer_all_of_it_is_given_back() {
        let (none, all) = ("2Mi: node0 5, node1 0", "2Mi: node0 512, node1 512");
        let mut kernel = played(none);
        kernel.most = BTreeMap::from([(1, 100)]);
        let refused = carry_out(&kernel, &pages(none), &pages(all), LIMIT);
        assert_eq!(
            refused.unwrap_err().to_string(),
            "the kernel gave node1 in pages of 2Mi 100 of 512; what stood there before was set back"
        );
        assert_eq!(Pages(kernel.stand.into_inner()), pages(none));
        let slow = played(none);
        let refused = carry_out(&slow, &pages(none), &pages(all), Duration::ZERO);
        let words = refused.unwrap_err().to_string();
        assert!(words.contains("only 0 of 512 in 0ns"), "{words}");
        assert_eq!(Pages(slow.stand.into_inner()), pages(none));
    }

    #[test]
    fn pages_that_came_into_use_meanwhile_are_not_taken() {
        let mut kernel = played("2Mi: node0 512");
        kernel.used = 300;
        let lower = |to: &str| carry_out(&kernel, &pages("2Mi: node0 512"), &pages(to), LIMIT);
        assert!(!lower("2Mi: node0 100").unwrap());
        assert!(kernel.asked.borrow().is_empty());
        assert!(lower("2Mi: node0 300").unwrap());
        assert!(!lower("2Mi: node0 300").unwrap(), "no longer 512");
    }

    #[test]
    fn s26_on_a_node_it_is_done_below_each_numa_node_and_set_back() {
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
                by_hand(&node, std::slice::from_ref(&change)),
                [(FixId::Hugepages, Outcome::Done)]
            );
            let again = by_hand(&node, &[change]);
            assert_eq!(again, [(FixId::Hugepages, Outcome::Moved)]);
            let stands = [0, 1].map(|node| fs::read_to_string(root.join(of(node, "nr_hugepages"))));
            let stands = stands.map(|text| text.unwrap().trim().to_owned());
            let stands = format!("2Mi: node0 {}, node1 {}", stands[0], stands[1]);
            assert_eq!(stands, after);
        }
        let compact = root.join("sys/devices/system/node/node1/compact");
        assert_eq!(fs::read_to_string(compact).unwrap(), "1\n");
        let foreign = change(FixId::Hugepages, "64Ki: node0 0", "64Ki: node0 1");
        let told = by_hand(&node, &[foreign]);
        assert!(matches!(&told[0].1, Outcome::Refused(why) if why.contains("not understood")));
    }
}
