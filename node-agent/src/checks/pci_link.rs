//! `PciLink`: a card that negotiated fewer or slower lanes than its like. What the card itself could
//! do says nothing: the slot may have fewer.

use crds::inventory::PciLink;
use crds::{CheckId, Reason};

use super::steady::Patience;
use super::{Check, Said, World};
use crate::host::pci::PciDevice;

pub(super) const CHECK: Check = Check {
    id: CheckId::PciLink,
    reasons: &[Reason::PciLinkDegraded],
    patience: Patience::SHORT,
    look,
};

fn look(world: &World<'_>) -> Vec<Said> {
    let linked = || {
        let hcas = world.facts.hcas.iter();
        hcas.filter_map(|hca| {
            let pci = hca.pci.as_ref()?;
            Some((hca, pci, pci.link.as_ref()?))
        })
    };
    let say = |(hca, pci, link): (&crate::host::hca::Hca, &PciDevice, &PciLink)| {
        let like =
            linked().filter(|(_, other, _)| other.model.is_some() && other.model == pci.model);
        let best = like.map(|(_, _, link)| link).max_by_key(|link| rate(link));
        match best {
            Some(best) if rate(best) > rate(link) => {
                let words = format!(
                    "its link is {} x{}, that of its like {} x{}",
                    link.speed, link.width, best.speed, best.width
                );
                Said::warn(&hca.name, Reason::PciLinkDegraded, words)
            }
            _ => Said::pass(&hca.name),
        }
    };
    linked().map(say).collect()
}

/// Speed of all lanes together, in tenths of a GT/s.
fn rate(link: &PciLink) -> u64 {
    let number = link.speed.split(' ').next().unwrap_or_default();
    let (whole, part) = number.split_once('.').unwrap_or((number, "0"));
    let tenths = |text: &str| text.get(..1).and_then(|digit| digit.parse::<u64>().ok());
    let whole: u64 = whole.parse().unwrap_or(0);
    whole
        .saturating_mul(10)
        .saturating_add(tenths(part).unwrap_or(0))
        .saturating_mul(u64::from(link.width))
}
