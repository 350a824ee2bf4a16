//! Scrubs a recording: GUIDs, addresses and UUIDs that identify the machine become invented ones of the same kind, equal
//! ones the same.

use std::collections::HashMap;
use std::net::{Ipv4Addr, Ipv6Addr};

use crds::inventory::GidScope;

use super::gid;
use super::recording::Recording;
use super::snapshot;

/// The replacements so far.
#[derive(Debug, Default)]
pub struct Scrub {
    /// Lower half of an address, GUID or MAC address: all derive from one another.
    halves: HashMap<u64, u64>,
    v4: HashMap<Ipv4Addr, Ipv4Addr>,
    uuids: HashMap<String, usize>,
}

impl Scrub {
    /// The recording without identifiers.
    #[must_use]
    pub fn recording(&mut self, recording: &Recording) -> Recording {
        recording.map_texts(|path, text| match path {
            path if path.ends_with("/net/route") => default_routes(text, 1, 2),
            path if path.ends_with("/net/ipv6_route") => default_routes(text, 0, 4),
            path if path.starts_with(snapshot::GPU_REPORTS) => {
                let text = self.text(text);
                self.fabrics(&text)
            }
            _ => self.text(text),
        })
    }

    /// The answer of a GPU probe without the UUID of its fabric.
    fn fabrics(&mut self, text: &str) -> String {
        let words = text.split('"').map(|word| {
            if is_uuid(word) {
                let next = self.uuids.len() + 1;
                let number = *self.uuids.entry(word.to_owned()).or_insert(next);
                return format!("00000000-0000-4000-8000-{number:012x}");
            }
            word.to_owned()
        });
        words.collect::<Vec<_>>().join("\"")
    }

    /// A text with every identifier replaced.
    pub fn text(&mut self, text: &str) -> String {
        let mut out = String::with_capacity(text.len());
        let mut word = String::new();
        for sign in text.chars() {
            if sign.is_ascii_alphanumeric() || ":.-_".contains(sign) {
                word.push(sign);
            } else {
                out += &self.word(&word);
                word.clear();
                out.push(sign);
            }
        }
        out + &self.word(&word)
    }

    fn word(&mut self, word: &str) -> String {
        if let Some(uuid) = word.strip_prefix("GPU-").filter(|uuid| is_uuid(uuid)) {
            let next = self.uuids.len() + 1;
            let number = *self.uuids.entry(uuid.to_owned()).or_insert(next);
            return format!("GPU-00000000-0000-4000-8000-{number:012x}");
        }
        match groups(word).as_deref() {
            Some(groups) if groups.len() == 8 && word.len() == 39 => {
                let gid: [u16; 8] = std::array::from_fn(|at| groups[at]);
                words(&self.gid(gid.into()).segments())
            }
            Some(groups) if groups.len() == 4 && word.len() == 19 => {
                let half = groups
                    .iter()
                    .fold(0, |half, group| half << 16 | u64::from(*group));
                let half = self.half(half);
                let segments: [u16; 4] = std::array::from_fn(|at| low(half >> (48 - 16 * at)));
                words(&segments)
            }
            _ => self.address(word),
        }
    }

    /// Addresses in their short forms, as facts show them; anything else stays.
    fn address(&mut self, word: &str) -> String {
        if word.contains("::")
            && let Ok(address) = word.parse()
        {
            return self.gid(address).to_string();
        }
        word.to_owned()
    }

    fn gid(&mut self, gid: Ipv6Addr) -> Ipv6Addr {
        if let Some(v4) = gid.to_ipv4_mapped() {
            return self.v4(v4).to_ipv6_mapped();
        }
        let bits = gid.to_bits();
        #[expect(clippy::cast_possible_truncation, reason = "the lower half is meant")]
        let half = u128::from(self.half(bits as u64));
        let prefix = match gid::scope(gid) {
            GidScope::Unusable => return gid,
            // A link-local prefix identifies nothing.
            GidScope::LinkLocal => bits >> 64,
            _ => 0x2001_0db8 << 32,
        };
        (prefix << 64 | half).into()
    }

    fn half(&mut self, half: u64) -> u64 {
        if half == 0 {
            return 0;
        }
        let next = 0x0200_00ff_fe00_0000 + self.halves.len() as u64 + 1;
        *self.halves.entry(half).or_insert(next)
    }

    fn v4(&mut self, address: Ipv4Addr) -> Ipv4Addr {
        // Unusable addresses identify nothing.
        let base = match gid::scope(address.to_ipv6_mapped()) {
            GidScope::Unusable => return address,
            GidScope::LinkLocal => Ipv4Addr::new(169, 254, 1, 0),
            _ => Ipv4Addr::new(198, 18, 0, 0),
        };
        let next = u32::try_from(self.v4.len() + 1).unwrap_or(u32::MAX);
        let next = Ipv4Addr::from_bits(base.to_bits().wrapping_add(next));
        *self.v4.entry(address).or_insert(next)
    }
}

/// Keeps only the default routes, without gateways: other routes identify networks. An IPv4 table begins with a header.
fn default_routes(text: &str, destination: usize, gateway: usize) -> String {
    let zeros = |word: &str| word.bytes().all(|byte| byte == b'0');
    let lines = text.lines().enumerate().filter_map(|(number, line)| {
        let words: Vec<&str> = line.split_ascii_whitespace().collect();
        if number == 0 && destination == 1 {
            return Some(words.join("\t"));
        }
        let default = words.get(destination).is_some_and(|word| zeros(word));
        let hidden = words.get(gateway)?.replace(|_| true, "0");
        let shown =
            words.iter().enumerate().map(
                |(at, word)| {
                    if at == gateway { hidden.as_str() } else { word }
                },
            );
        default.then(|| shown.collect::<Vec<_>>().join("\t"))
    });
    lines.collect::<Vec<_>>().join("\n")
}

#[expect(
    clippy::cast_possible_truncation,
    reason = "the lowest 16 bits are meant"
)]
fn low(bits: u64) -> u16 {
    bits as u16
}

fn words(segments: &[u16]) -> String {
    let words: Vec<_> = segments.iter().map(|word| format!("{word:04x}")).collect();
    words.join(":")
}

/// Groups of four hexadecimal digits between colons.
fn groups(word: &str) -> Option<Vec<u16>> {
    let group = |group: &str| (group.len() == 4).then(|| u16::from_str_radix(group, 16).ok())?;
    word.split(':').map(group).collect()
}

fn is_uuid(text: &str) -> bool {
    text.len() == 36
        && text
            .bytes()
            .all(|byte| byte == b'-' || byte.is_ascii_hexdigit())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recording::Entry;

    #[test]
    fn identifiers_become_invented_ones_of_the_same_kind() {
        let mut scrub = Scrub::default();
        let table = "fe80:0000:0000:0000:0ac0:ebff:feda:1cfb\n\
                     0000:0000:0000:0000:0000:ffff:c800:d106\n\
                     fd93:16d3:59b6:012e:0ac0:ebff:feda:1cfb\n\
                     0000:0000:0000:0000:0000:ffff:a9fe:0307\n\
                     0000:0000:0000:0000:0000:0000:0000:0000\n\
                     58a2:e103:002a:0bd8 GPU-cb2fd7b9-a1d8-b47e-b331-2abe34b99a02";
        assert_eq!(
            scrub.text(table),
            "fe80:0000:0000:0000:0200:00ff:fe00:0001\n\
             0000:0000:0000:0000:0000:ffff:c612:0001\n\
             2001:0db8:0000:0000:0200:00ff:fe00:0001\n\
             0000:0000:0000:0000:0000:ffff:a9fe:0102\n\
             0000:0000:0000:0000:0000:0000:0000:0000\n\
             0200:00ff:fe00:0002 GPU-00000000-0000-4000-8000-000000000001"
        );
        assert_eq!(
            scrub.text("fe80::ac0:ebff:feda:1cfb"),
            "fe80::200:ff:fe00:1"
        );
        assert_eq!(scrub.text("::ffff:200.0.209.6"), "::ffff:198.18.0.1");
    }

    #[test]
    fn only_default_routes_are_kept_without_gateways() {
        let v4 = "Iface\tDestination\tGateway\tFlags\n\
                  eth0\t00000000\t0100000A\t0003\n\
                  eth1\t0000A8C0\t00000000\t0001";
        let kept = "Iface\tDestination\tGateway\tFlags\neth0\t00000000\t00000000\t0003";
        assert_eq!(default_routes(v4, 1, 2), kept);
    }

    #[test]
    fn the_answer_of_a_gpu_probe_has_no_uuid_of_gpu_or_fabric() {
        let uuid = "cb2fd7b9-a1d8-b47e-b331-2abe34b99a02";
        let mut recording = Recording::default();
        for address in ["0008:01:00.0", "0009:01:00.0"] {
            let answer = format!(r#"{{"uuid":"GPU-{uuid}","cluster":"{uuid}","clique":7}}"#);
            recording.insert(&snapshot::gpu_report_file(address), Entry::Text(answer));
        }
        let scrubbed = Scrub::default().recording(&recording);
        let texts: Vec<_> = scrubbed.entries().map(|(_, entry)| entry.clone()).collect();
        let [Entry::Text(one), Entry::Text(other)] = &texts[..] else {
            panic!("{texts:?}");
        };
        assert_eq!(one, other);
        assert!(
            !one.contains("cb2f") && one.contains(r#""clique":7"#),
            "{one}"
        );
    }

    #[test]
    fn names_of_models_and_versions_are_kept() {
        let mut scrub = Scrub::default();
        for text in [
            "28.41.1000",
            "6.8.0-1030-aws",
            "MT_0000000838",
            "400 Gb/sec (4X NDR)",
            "0x15b3",
            "4: ACTIVE",
            "0000:18:00.0",
            "2 of 570.133.20",
        ] {
            assert_eq!(scrub.text(text), text);
        }
    }
}
