//! By which socket the kubelet reaches the container runtime, as its command line and its file say. Pure.

use serde_json::Value;

/// Where a kubelet looks that is told nothing.
const USUAL: &str = "unix:///run/containerd/containerd.sock";

const FLAG: &str = "--container-runtime-endpoint";
const FIELD: &str = "containerRuntimeEndpoint";

/// The file that a kubelet's command line names.
pub(super) fn file<'a>(arguments: &[&'a str]) -> Option<&'a str> {
    flag(arguments, "--config")
}

/// The socket's path; none where it is no socket of the node's. What the command line says goes before what
/// stands in the file.
pub(super) fn socket(arguments: &[&str], file: Option<&str>) -> Option<String> {
    let said = flag(arguments, FLAG).map(str::to_owned);
    let said = said
        .or_else(|| field(file?))
        .filter(|said| !said.is_empty());
    let said = said.unwrap_or_else(|| USUAL.to_owned());
    let path = said.strip_prefix("unix://").unwrap_or(&said);
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

/// Of the file's first level, in YAML or in JSON.
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
    fn the_socket_is_that_of_the_command_line_or_of_the_file_or_the_usual_one() {
        let usual = Some("/run/containerd/containerd.sock");
        let of = |arguments: &str, file| {
            let arguments: Vec<&str> = arguments.split(' ').collect();
            socket(&arguments, file)
        };
        let yaml = "kind: KubeletConfiguration\ncontainerRuntimeEndpoint: \"unix:///var/run/crio/crio.sock\" # a\n";
        let json = r#"{"containerRuntimeEndpoint": "unix:///x.sock"}"#;
        for (arguments, file, wanted) in [
            ("kubelet", None, usual),
            (
                "kubelet",
                Some("kind: KubeletConfiguration\n  containerRuntimeEndpoint: /nested"),
                usual,
            ),
            ("kubelet", Some("containerRuntimeEndpoint: \"\"\n"), usual),
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
            ("kubelet --container-runtime-endpoint", None, usual),
        ] {
            assert_eq!(
                of(arguments, file).as_deref(),
                wanted,
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
