//! Compares the parameters of two ports before queue pairs leave INIT. The device would only answer `EINVAL`, or
//! accept parameters with which no packet arrives.

use alloc::boxed::Box;
use alloc::format;
use alloc::string::String;
use core::fmt;
use core::net::Ipv6Addr;

/// The link layer of a port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Link {
    /// Peers are addressed by GID.
    Ethernet,
    /// Peers are addressed by LID.
    InfiniBand,
}

/// The port of one side.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Side<'a> {
    /// Its NIC path, for messages.
    pub nic_path: &'a str,
    /// `None`: it has sent none, or none that can be parsed.
    pub gid: Option<Ipv6Addr>,
    /// 0: it has none.
    pub lid: u16,
    /// MTU in bytes; `None`: unknown, as of stock engines.
    pub mtu: Option<u32>,
}

/// Why two ports cannot be connected. The text names both sides' values, and who refuses.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{refuser} refuses the connection: {field} here is {here}, and {there} at {peer}. {remedy}"
)]
pub struct Disagreement {
    refuser: Box<str>,
    peer: Box<str>,
    field: &'static str,
    here: Box<str>,
    there: Box<str>,
    remedy: &'static str,
}

/// The kind of a GID: packets to another kind have other headers, or no route.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Ipv4,
    LinkLocal,
    Ipv6,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Ipv4 => "IPv4",
            Self::LinkLocal => "IPv6 link-local",
            Self::Ipv6 => "IPv6",
        })
    }
}

fn kind(gid: Ipv6Addr) -> Kind {
    if gid.to_ipv4_mapped().is_some() {
        Kind::Ipv4
    } else if gid.is_unicast_link_local() {
        Kind::LinkLocal
    } else {
        Kind::Ipv6
    }
}

/// Returns the MTU of the path in bytes, the smaller one of both ports.
///
/// # Errors
/// [`Disagreement`] if one side has no address of the link layer, or GIDs are of different kinds.
pub fn agree(link: Link, ours: &Side<'_>, theirs: &Side<'_>) -> Result<Option<u32>, Disagreement> {
    let refuse = |field, here: String, there: String, remedy| {
        Err(Disagreement {
            refuser: ours.nic_path.into(),
            peer: theirs.nic_path.into(),
            field,
            here: here.into(),
            there: there.into(),
            remedy,
        })
    };
    let shown = |gid: Option<Ipv6Addr>| match gid {
        None => String::from("missing or invalid"),
        Some(gid) if gid.is_unspecified() => String::from("empty"),
        Some(gid) => format!("{gid} ({})", kind(gid)),
    };
    match link {
        Link::Ethernet => {
            let usable = |gid: &Ipv6Addr| !gid.is_unspecified();
            let both = ours.gid.filter(usable).zip(theirs.gid.filter(usable));
            if both.is_none_or(|(ours, theirs)| kind(ours) != kind(theirs)) {
                let remedy =
                    "Choose GIDs of the same kind at both sides (MC_GID_INDEX at a stock engine).";
                return refuse("the GID", shown(ours.gid), shown(theirs.gid), remedy);
            }
        }
        Link::InfiniBand if ours.lid == 0 || theirs.lid == 0 => {
            let remedy = "Wait for the subnet manager, or connect ports of one link layer.";
            return refuse(
                "the LID",
                format!("{}", ours.lid),
                format!("{}", theirs.lid),
                remedy,
            );
        }
        Link::InfiniBand => {}
    }
    Ok([ours.mtu, theirs.mtu].into_iter().flatten().min())
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;

    fn side<'a>(nic_path: &'a str, gid: &str, mtu: Option<u32>) -> Side<'a> {
        Side {
            nic_path,
            gid: gid.parse().ok(),
            lid: 0,
            mtu,
        }
    }

    #[test]
    fn the_smaller_mtu_is_used() {
        let ours = side("a@r0", "::ffff:10.0.0.1", Some(4096));
        for (mtu, wanted) in [(Some(1024), 1024), (Some(8192), 4096), (None, 4096)] {
            let theirs = side("b@r1", "::ffff:10.0.0.2", mtu);
            assert_eq!(agree(Link::Ethernet, &ours, &theirs), Ok(Some(wanted)));
        }
    }

    #[test]
    fn a_refusal_names_both_values_and_who_refuses() {
        let ours = side("a@r0", "::ffff:10.0.0.1", None);
        for (gid, wanted) in [
            ("fe80::7", "fe80::7 (IPv6 link-local) at b@r1"),
            ("fd00::7", "fd00::7 (IPv6) at b@r1"),
            ("::", "empty at b@r1"),
            ("no", "missing or invalid at b@r1"),
        ] {
            let theirs = side("b@r1", gid, None);
            let error = agree(Link::Ethernet, &ours, &theirs).unwrap_err();
            let error = error.to_string();
            assert!(error.starts_with("a@r0 refuses"), "{error}");
            assert!(error.contains("10.0.0.1 (IPv4)"), "{error}");
            assert!(error.contains(wanted), "{error}");
        }
    }

    #[test]
    fn ports_of_infiniband_need_a_lid() {
        let (mut ours, mut theirs) = (side("a@i0", "::", None), side("b@i0", "::", None));
        ours.lid = 5;
        let error = agree(Link::InfiniBand, &ours, &theirs).unwrap_err();
        assert!(
            error
                .to_string()
                .contains("the LID here is 5, and 0 at b@i0")
        );
        theirs.lid = 6;
        assert_eq!(agree(Link::InfiniBand, &ours, &theirs), Ok(None));
    }
}
