//! Finds the kubelet's container runtime endpoint in its command line and its configuration file. Pure.

use serde_json::Value;

/// The kubelet's default.
const DEFAULT: &str = "unix:///run/containerd/containerd.sock";

const FLAG: &str = "--container-runtime-endpoint";
const FIELD: &str = "containerRuntimeEndpoint";

/// The configuration file that the command line names.
pub(super) fn file<'a>(arguments: &[&'a str]) -> Option<&'a str> {
    flag(arguments, "--config")
}

/// Path of the runtime's Unix socket; `None` for another kind of endpoint. The command line overrides the file.
pub(super) fn socket(arguments: &[&str], file: Option<&str>) -> Option<String> {
    let endpoint = flag(arguments, FLAG).map(str::to_owned);
    let endpoint = endpoint
        .or_else(|| field(file?))
        .filter(|endpoint| !endpoint.is_empty())
        .unwrap_or_else(|| DEFAULT.to_owned());
    let path = endpoint.strip_prefix("unix://").unwrap_or(&endpoint);
    path.starts_with('/').then(|| path.to_owned())
}

fn flag<'a>(arguments: &[&'a str], name: &str) -> Option<&'a str> {
    let mut rest = arguments.iter();
    while let Some(argument) = rest.next() {
        match argument.strip_prefix(name) {
            Some("") => return rest.next().copied(),
            Some(value) if value.starts_with('=') => return value.get(1..),
            _ => {}
        }
    }
    None
}

/// The endpoint at the top level of the file, which is YAML or JSON.
fn field(file: &str) -> Option<String> {
    if file.trim_start().starts_with('{') {
        let file: Value = serde_json::from_str(file).ok()?;
        return Some(file.get(FIELD)?.as_str()?.to_owned());
    }
    let value = file.lines().find_map(|line| {
        let rest = line.strip_prefix(FIELD)?.trim_start();
        rest.strip_prefix(':')
    })?;
    let value = value.split(" #").next()?.trim();
    Some(value.trim_matches(['"', '\'']).to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_socket_is_taken_from_the_command_line_then_the_file_then_the_default() {
        let default = Some("/run/containerd/containerd.sock");
        let of = |arguments: &str, file| {
            let arguments: Vec<&str> = arguments.split(' ').collect();
            socket(&arguments, file)
        };
        let yaml = "kind: KubeletConfiguration\ncontainerRuntimeEndpoint: \"unix:///var/run/crio/crio.sock\" # a\n";
        let json = r#"{"containerRuntimeEndpoint": "unix:///x.sock"}"#;
        for (arguments, file, expected) in [
            ("kubelet", None, default),
            (
                "kubelet",
                Some("kind: KubeletConfiguration\n  containerRuntimeEndpoint: /nested"),
                default,
            ),
            ("kubelet", Some("containerRuntimeEndpoint: \"\"\n"), default),
            ("kubelet", Some(yaml), Some("/var/run/crio/crio.sock")),
            ("kubelet", Some(json), Some("/x.sock")),
            (
                "kubelet --container-runtime-endpoint=unix:///a.sock",
                Some(yaml),
                Some("/a.sock"),
            ),
            (
                "kubelet --container-runtime-endpoint /b.sock",
                None,
                Some("/b.sock"),
            ),
            (
                "kubelet --container-runtime-endpoint tcp://1.2.3.4:5",
                None,
                None,
            ),
            ("kubelet --container-runtime-endpoint", None, default),
        ] {
            assert_eq!(
                of(arguments, file).as_deref(),
                expected,
                "{arguments} {file:?}"
            );
        }
        assert_eq!(
            file(&["kubelet", "--v=2", "--config", "/k.yaml"]),
            Some("/k.yaml")
        );
        assert_eq!(
            file(&["kubelet", "--config-dir=/k.d", "--config=/k.yaml"]),
            Some("/k.yaml")
        );
        assert_eq!(file(&["kubelet"]), None);
    }
}
