//! The Python processes of a container, and the folders in which each searches packages.

use crds::stock::{Demand, Set};

use super::Tree;
use super::rdma_settings::RdmaSettings;

/// Most entries of PYTHONPATH, and longest path, that are searched.
const ENTRIES: usize = 8;
const LONGEST: usize = 512;

/// One Python process: what locates its packages, and the settings of its engine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Interpreter {
    /// E.g. `python3.12`; `python3` where the program's name has no minor version.
    version: String,
    /// Folders of PYTHONPATH, in its order.
    first: Vec<String>,
    /// Installation prefixes (folders with `bin`), the nearest first.
    prefixes: Vec<String>,
    /// Home folder of its user.
    home: Option<String>,
    pub(super) tcp_only: bool,
    pub(super) rdma_settings: RdmaSettings,
    pub(super) demand: Option<Demand>,
}

impl Interpreter {
    /// None where the process is not Python.
    pub(super) fn of(tree: &Tree, pid: u32) -> Option<Self> {
        let program = tree.try_link(&format!("proc/{pid}/exe")).ok()?;
        let program = program.strip_suffix(" (deleted)").unwrap_or(&program);
        let version = version(program.rsplit('/').next()?)?;
        let text = |name: &str| tree.try_text(&format!("proc/{pid}/{name}"));
        let arguments = text("cmdline").unwrap_or_default();
        let environment = text("environ").unwrap_or_default();
        let variable = |name: &str| {
            environment.split('\0').find_map(|line| {
                let (known, value) = line.split_once('=')?;
                (known == name).then_some(value)
            })
        };
        let named = arguments.split('\0').next().unwrap_or_default();
        let mut prefixes: Vec<String> = ["VIRTUAL_ENV", "CONDA_PREFIX"]
            .into_iter()
            .filter_map(variable)
            .filter_map(below_root)
            .collect();
        // A virtual environment's program is a link to that of the system.
        prefixes.extend([named, program].into_iter().filter_map(prefix));
        let path = variable("PYTHONPATH").unwrap_or_default();
        let mut rdma_settings = RdmaSettings::of(variable);
        rdma_settings.matrix = rdma_settings
            .matrix
            .and_then(|path| match path.starts_with('/') {
                true => Some(path),
                false => {
                    let folder = tree.try_link(&format!("proc/{pid}/cwd")).ok()?;
                    Some(format!("{}/{path}", folder.trim_end_matches('/')))
                }
            });
        let set = |name: &str| variable(name).map_or(Set::No, Set::To);
        Some(Self {
            version,
            first: path
                .split(':')
                .filter_map(below_root)
                .take(ENTRIES)
                .collect(),
            prefixes,
            home: variable("HOME").and_then(below_root),
            tcp_only: variable("MC_FORCE_TCP").is_some(),
            rdma_settings,
            demand: Demand::of(set, arguments.split('\0')),
        })
    }

    /// Package folders in search order.
    pub(super) fn folders(&self, root: &Tree) -> Vec<String> {
        let mut folders = self.first.clone();
        for prefix in &self.prefixes {
            for version in self.versions(root, prefix) {
                for kind in ["site-packages", "dist-packages"] {
                    folders.push(join(prefix, &format!("lib/{version}/{kind}")));
                }
                // Debian's folder for packages that are not from Debian.
                folders.push(join(prefix, &format!("local/lib/{version}/dist-packages")));
                if let Some(home) = &self.home {
                    folders.push(join(home, &format!(".local/lib/{version}/site-packages")));
                }
            }
            folders.push(join(prefix, "lib/python3/dist-packages"));
        }
        folders
    }

    fn versions(&self, root: &Tree, prefix: &str) -> Vec<String> {
        if self.version.contains('.') {
            return vec![self.version.clone()];
        }
        let names = root.matching(&join(prefix, "lib"), |name| name.starts_with("python3."));
        names.into_iter().take(ENTRIES).collect()
    }
}

/// `python3.12` or `python3.13t`; `python3` for other names of Python.
fn version(program: &str) -> Option<String> {
    let rest = program.strip_prefix("python")?;
    let minor = rest.strip_prefix("3.").map(|rest| {
        let minor = rest.strip_suffix('t').unwrap_or(rest);
        !minor.is_empty() && minor.bytes().all(|byte| byte.is_ascii_digit())
    });
    match (rest, minor) {
        (_, Some(true)) => Some(program.to_owned()),
        ("" | "3", _) => Some("python3".to_owned()),
        _ => None,
    }
}

/// The folder above the `bin` of a program.
fn prefix(program: &str) -> Option<String> {
    let (folder, _) = program.rsplit_once('/')?;
    below_root(folder.strip_suffix("/bin")?).or_else(|| (folder == "/bin").then(String::new))
}

/// An absolute path without the leading slash.
fn below_root(path: &str) -> Option<String> {
    let path = path.strip_prefix('/')?.trim_end_matches('/');
    (!path.is_empty() && path.len() <= LONGEST).then(|| path.to_owned())
}

fn join(prefix: &str, path: &str) -> String {
    match prefix {
        "" => path.to_owned(),
        prefix => format!("{prefix}/{path}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recording::{Entry, Recording};

    fn process(exe: &str, cmdline: &str, environ: &str) -> Tree {
        let mut recording = Recording::default();
        recording.insert("proc/7/exe", Entry::Link(exe.to_owned()));
        recording.insert("proc/7/cmdline", Entry::Text(cmdline.to_owned()));
        recording.insert("proc/7/environ", Entry::Text(environ.to_owned()));
        Tree::recording(recording)
    }

    #[test]
    fn only_python_is_recognised() {
        for exe in [
            "/usr/bin/bash",
            "/usr/bin/pythonista",
            "/usr/bin/python2.7",
            "/usr/bin/python3.x",
            "python3.",
        ] {
            assert_eq!(Interpreter::of(&process(exe, "", ""), 7), None, "{exe}");
        }
    }

    #[test]
    fn packages_are_searched_in_the_interpreters_order() {
        let tree = process(
            "/usr/bin/python3.11",
            "/opt/venv/bin/python\0-m\0vllm",
            "PYTHONPATH=/forged:relative:/more/\0MC_FORCE_TCP=1",
        );
        let python = Interpreter::of(&tree, 7).unwrap();
        assert!(python.tcp_only);
        let folders = python.folders(&tree);
        assert_eq!(
            folders,
            [
                "forged",
                "more",
                "opt/venv/lib/python3.11/site-packages",
                "opt/venv/lib/python3.11/dist-packages",
                "opt/venv/local/lib/python3.11/dist-packages",
                "opt/venv/lib/python3/dist-packages",
                "usr/lib/python3.11/site-packages",
                "usr/lib/python3.11/dist-packages",
                "usr/local/lib/python3.11/dist-packages",
                "usr/lib/python3/dist-packages",
            ]
        );
    }

    #[test]
    fn packages_of_a_process_with_changed_arguments_are_found_by_its_environment() {
        let tree = process(
            "/root/uv/python/bin/python3.12 (deleted)",
            "VLLM::EngineCore",
            "VIRTUAL_ENV=/app/.venv",
        );
        let folders = Interpreter::of(&tree, 7).unwrap().folders(&tree);
        assert_eq!(folders[0], "app/.venv/lib/python3.12/site-packages");
    }
}
