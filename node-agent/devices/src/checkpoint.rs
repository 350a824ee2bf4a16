//! The checkpoint file: prepared claims and their devices, which outlive the agent. Pure.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use host::hca::DeviceFile;

/// Version of the file format; other versions are rejected.
const VERSION: u32 = 1;

/// Claims by UID.
pub(crate) type Claims = BTreeMap<String, Prepared>;

/// A prepared claim: its pods may use the devices.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Prepared {
    pub(crate) namespace: String,
    pub(crate) name: String,
    pub(crate) devices: Vec<Granted>,
}

/// One device of a claim.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Granted {
    pub(crate) request: String,
    /// Its name in the slice.
    pub(crate) device: String,
    /// Admin access, which does not hold the device.
    pub(crate) admin: bool,
    /// The RDMA device's own name.
    pub(crate) hca: String,
    pub(crate) files: Vec<DeviceFile>,
}

#[derive(Serialize, Deserialize)]
struct File {
    version: u32,
    boot_id: String,
    claims: Claims,
}

/// Why a checkpoint cannot be read.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Unreadable {
    #[error("it is not a checkpoint: {0}")]
    Malformed(#[from] serde_json::Error),
    #[error("it has version {0}; this agent reads version {VERSION}")]
    Version(u32),
}

/// Parses a checkpoint. Claims of an earlier boot are dropped: their pods do not run, device numbers may have
/// changed, and the kubelet prepares each claim again before its pod starts.
///
/// # Errors
/// The text is malformed or has another version.
pub(crate) fn parse(text: &str, boot_id: &str) -> Result<Claims, Unreadable> {
    #[derive(Deserialize)]
    struct Version {
        version: u32,
    }
    let Version { version } = serde_json::from_str(text)?;
    if version != VERSION {
        return Err(Unreadable::Version(version));
    }
    let file: File = serde_json::from_str(text)?;
    Ok(if file.boot_id == boot_id {
        file.claims
    } else {
        Claims::new()
    })
}

/// Renders the checkpoint of these claims.
///
/// # Errors
/// Serialization fails, which claims from [`parse`] never cause.
pub(crate) fn render(claims: &Claims, boot_id: &str) -> Result<Vec<u8>, serde_json::Error> {
    serde_json::to_vec_pretty(&File {
        version: VERSION,
        boot_id: boot_id.to_owned(),
        claims: claims.clone(),
    })
}

/// The claim other than `uid` that holds one of these devices, and that device.
pub(crate) fn holder<'a>(
    claims: &'a Claims,
    uid: &str,
    wanted: &'a [Granted],
) -> Option<(&'a Prepared, &'a str)> {
    let others = claims.iter().filter(|(known, _)| *known != uid);
    others.map(|(_, claim)| claim).find_map(|claim| {
        let held = claim.devices.iter().filter(|held| !held.admin);
        let mut held = held.map(|held| held.device.as_str());
        let device = held.find(|held| {
            let mut wanted = wanted.iter().filter(|wanted| !wanted.admin);
            wanted.any(|wanted| wanted.device == *held)
        })?;
        Some((claim, device))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(crate) fn claim(devices: &[(&str, bool)]) -> Prepared {
        let granted = devices.iter().map(|(device, admin)| Granted {
            request: "hca".to_owned(),
            device: (*device).to_owned(),
            admin: *admin,
            hca: "mlx5_0".to_owned(),
            files: vec![DeviceFile {
                name: "uverbs0".to_owned(),
                major: 231,
                minor: 192,
            }],
        });
        Prepared {
            namespace: "default".to_owned(),
            name: "one-hca".to_owned(),
            devices: granted.collect(),
        }
    }

    #[test]
    fn claims_survive_an_agent_restart_and_not_a_reboot() {
        let claims = Claims::from([("uid".to_owned(), claim(&[("mlx5-0-slot-0", false)]))]);
        let text = String::from_utf8(render(&claims, "boot").unwrap()).unwrap();
        assert_eq!(parse(&text, "boot").unwrap(), claims);
        assert_eq!(parse(&text, "next").unwrap(), Claims::new());
    }

    #[test]
    fn a_malformed_or_later_checkpoint_is_rejected_with_its_cause() {
        let error = |text: &str| parse(text, "boot").unwrap_err().to_string();
        assert!(error("{\"claims\":").contains("not a checkpoint"));
        let later = error("{\"version\": 2, \"owners\": []}");
        assert!(later.contains("version 2"), "{later}");
    }

    #[test]
    fn a_device_is_held_by_another_claim_but_not_by_an_admin_claim() {
        let claims = Claims::from([
            ("one".to_owned(), claim(&[("a", false)])),
            ("admin".to_owned(), claim(&[("b", true)])),
        ]);
        let found = |uid: &str, devices: &[(&str, bool)]| {
            holder(&claims, uid, &claim(devices).devices).is_some()
        };
        assert!(found("two", &[("c", false), ("a", false)]));
        assert!(!found("one", &[("a", false)]), "its own");
        assert!(!found("two", &[("a", true)]), "admin access");
        assert!(!found("two", &[("b", false)]));
    }
}
