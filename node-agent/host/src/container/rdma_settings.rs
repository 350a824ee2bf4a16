//! RDMA settings in the environment of a stock engine. Other variables are not kept. Pure.

use crds::text::clip_chars;
use serde::{Deserialize, Serialize};

/// Most devices, and most characters of a name or value, that are kept.
const DEVICES: usize = 64;
const LONGEST: usize = 64;

/// The variable with the port of each device.
pub const PORT: &str = "MC_IB_PORT";

/// The variable with the path of a topology matrix, and the longest path that is read.
pub const MATRIX: &str = "MC_CUSTOM_TOPO_JSON";
const PATH: usize = 512;

/// Variables with the ports on which the engine listens, each with its older spelling.
pub const FIRST_RPC_PORT: [&str; 2] = ["MC_MIN_RPC_PORT", "MC_MIN_PRC_PORT"];
pub const LAST_RPC_PORT: [&str; 2] = ["MC_MAX_RPC_PORT", "MC_MAX_PRC_PORT"];

/// Settings by variables of the stock wheel, which otherwise chooses itself.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RdmaSettings {
    /// Each variable with a device that it names.
    pub devices: Vec<(String, String)>,
    /// The port of each device that is used.
    pub port: Option<String>,
    /// The variable with the index into the port's GID table, and the index.
    pub gid: Option<(String, String)>,
    /// The path MTU.
    pub mtu: Option<String>,
    /// Path of the topology matrix.
    pub matrix: Option<String>,
    /// First and last port on which the engine may listen.
    pub rpc_ports: (Option<String>, Option<String>),
}

impl RdmaSettings {
    /// Reads the settings from variables. An empty variable counts as unset, as for the wheel.
    pub(super) fn of<'a>(variable: impl Fn(&str) -> Option<&'a str>) -> Self {
        let set = |name: &'static str| {
            let value = variable(name)?.trim();
            let value_kept = clip_chars(value, LONGEST);
            (!value.is_empty()).then_some((name, value_kept))
        };
        let named = |name: &'static str| {
            let value = variable(name).unwrap_or_default();
            let devices = devices(value).into_iter();
            devices.map(move |device| (name.to_owned(), device))
        };
        let either = |names: [&'static str; 2]| {
            let mut values = names.into_iter().filter_map(set);
            values.next().map(|(_, value)| value)
        };
        let owned = |(name, value): (&str, String)| (name.to_owned(), value);
        Self {
            devices: ["MOONCAKE_DEVICE", "MC_TE_FILTERS"]
                .into_iter()
                .flat_map(named)
                .take(DEVICES)
                .collect(),
            port: set(PORT).map(|(_, port)| port),
            gid: set("MC_GID_INDEX")
                .or_else(|| set("NCCL_IB_GID_INDEX"))
                .map(owned),
            mtu: set("MC_MTU").map(|(_, mtu)| mtu),
            matrix: variable(MATRIX)
                .filter(|path| (1..=PATH).contains(&path.len()))
                .map(str::to_owned),
            rpc_ports: (either(FIRST_RPC_PORT), either(LAST_RPC_PORT)),
        }
    }
}

/// Parses a list with commas, or SGLang's map from each GPU to a list. A path of a file of SGLang is ignored.
fn devices(value: &str) -> Vec<String> {
    let value = value.trim();
    let lists: Vec<String> = if value.starts_with('{') {
        let map: serde_json::Value = serde_json::from_str(value).unwrap_or_default();
        let values = map.as_object().into_iter().flat_map(|map| map.values());
        values
            .filter_map(|list| list.as_str().map(str::to_owned))
            .collect()
    } else if value.contains('/') || value.ends_with(".json") {
        Vec::new()
    } else {
        vec![value.to_owned()]
    };
    let mut devices: Vec<String> = Vec::new();
    for name in lists.iter().flat_map(|list| list.split(',')) {
        let name = clip_chars(name.trim(), LONGEST);
        if !name.is_empty() && !devices.contains(&name) {
            devices.push(name);
        }
    }
    devices
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_are_named_by_a_list_or_for_each_gpu_and_a_file_is_not_opened() {
        for (value, wanted) in [
            ("mlx5_0", vec!["mlx5_0"]),
            (" mlx5_0, mlx5_1,,mlx5_0", vec!["mlx5_0", "mlx5_1"]),
            (
                r#"{"0": "mlx5_0,mlx5_1", "1": "mlx5_2"}"#,
                vec!["mlx5_0", "mlx5_1", "mlx5_2"],
            ),
            ("{broken", vec![]),
            ("/etc/devices.json", vec![]),
            ("devices.json", vec![]),
            ("", vec![]),
        ] {
            assert_eq!(devices(value), wanted, "{value}");
        }
    }

    #[test]
    fn the_wheels_own_variable_goes_before_that_of_another_library_and_an_empty_one_is_none() {
        let of = |set: &[(&'static str, &'static str)]| {
            RdmaSettings::of(|name| {
                set.iter()
                    .find(|(known, _)| *known == name)
                    .map(|(_, value)| *value)
            })
        };
        let gid = |set| of(set).gid.map(|(name, value)| format!("{name}={value}"));
        let both = [("NCCL_IB_GID_INDEX", "5"), ("MC_GID_INDEX", "3")];
        assert_eq!(gid(&both).as_deref(), Some("MC_GID_INDEX=3"));
        assert_eq!(gid(&both[..1]).as_deref(), Some("NCCL_IB_GID_INDEX=5"));
        assert_eq!(
            of(&[("MC_IB_PORT", ""), ("HOME", "/root")]),
            RdmaSettings::default()
        );
        let both = of(&[("MOONCAKE_DEVICE", "a"), ("MC_TE_FILTERS", "b")]).devices;
        let both: Vec<String> = both
            .iter()
            .map(|(by, name)| format!("{by}={name}"))
            .collect();
        assert_eq!(both, ["MOONCAKE_DEVICE=a", "MC_TE_FILTERS=b"]);
    }
}
