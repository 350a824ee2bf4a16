//! `PciLink`: each card has as many and as fast PCIe lanes as the best card of its model on the node. The card's own
//! maximum is no reference: the slot may have fewer lanes.

use crds::inventory::PciLink;
use crds::{CheckId, Reason};

use crate::{Check, CheckInput, Observation};
use host::pci::PciDevice;

pub(crate) const CHECK: Check = Check::new(CheckId::PciLink, &[Reason::PciLinkDegraded], run);

fn run(input: &CheckInput<'_>) -> Vec<Observation> {
    let linked = || {
        let hcas = input.snapshot.facts.hcas.iter();
        hcas.filter_map(|hca| {
            let pci = hca.pci.as_ref()?;
            Some((hca, pci, pci.link.as_ref()?))
        })
    };
    let observe = |(hca, pci, link): (&host::hca::Hca, &PciDevice, &PciLink)| {
        let same_model =
            linked().filter(|(_, other, _)| other.model.is_some() && other.model == pci.model);
        let best = same_model
            .map(|(_, _, link)| link)
            .max_by_key(|link| rate(link));
        match best {
            Some(best) if rate(best) > rate(link) => {
                let message = format!(
                    "its PCIe link is {} x{}; another card of the same model has {} x{}",
                    link.speed, link.width, best.speed, best.width
                );
                Observation::warn(&hca.name, Reason::PciLinkDegraded, message)
            }
            _ => Observation::pass(&hca.name),
        }
    };
    linked().map(observe).collect()
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
