//! The house rules that no compiler keeps. Each test is one rule; CONTRIBUTING.md has the reasons.
#![allow(clippy::unwrap_used, reason = "a test ends where its set-up fails")]

use std::fs;
use std::path::{Path, PathBuf};

/// Lines past which a file must be on this list, with its reason.
const LONGEST_FILE: usize = 800;
const LONG_FILES: &[(&str, &str)] = &[];

const ATTICS: [&str; 12] = [
    "util", "utils", "common", "shared", "helper", "helpers", "misc", "manager", "impl", "base",
    "v2", "mod",
];

/// Where the environment is read: settings, once; and tests.
const ENVIRONMENT: [&str; 3] = ["/args.rs", "/settings.rs", "/tests/"];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Every Rust file that is ours, with its path from the root.
fn sources() -> Vec<(String, String)> {
    let mut found = Vec::new();
    for part in ["crds", "operator", "node-agent", "engine", "e2e"] {
        walk(&root().join(part), "rs", &mut found);
    }
    assert!(
        found.len() > 50,
        "only {} files: is the root right?",
        found.len()
    );
    found
}

fn walk(folder: &Path, ending: &str, found: &mut Vec<(String, String)>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            if path.file_name().is_none_or(|name| name != "target") {
                walk(&path, ending, found);
            }
        } else if path
            .extension()
            .is_some_and(|extension| extension == ending)
        {
            let name = path.strip_prefix(root()).unwrap().display().to_string();
            found.push((name, fs::read_to_string(&path).unwrap()));
        }
    }
}

/// Fails with every offender at once.
fn none(rule: &str, offenders: impl IntoIterator<Item = String>) {
    let offenders: Vec<_> = offenders.into_iter().collect();
    assert!(
        offenders.is_empty(),
        "{rule}:\n  {}",
        offenders.join("\n  ")
    );
}

/// Lines that are code, with their numbers: no comments, nothing below the inline tests.
fn code(text: &str) -> impl Iterator<Item = (usize, &str)> {
    text.lines()
        .enumerate()
        .take_while(|(_, line)| !line.starts_with("#[cfg(test)]"))
        .filter(|(_, line)| !line.trim_start().starts_with("//"))
        .map(|(number, line)| (number + 1, line))
}

/// Lines of code with one of these words, in files at these paths.
fn mentions(words: &[&str], at: impl Fn(&str) -> bool) -> Vec<String> {
    sources()
        .iter()
        .filter(|(path, _)| at(path))
        .flat_map(|(path, text)| {
            code(text)
                .filter(|(_, line)| words.iter().any(|word| line.contains(word)))
                .map(move |(number, line)| format!("{path}:{number}: {}", line.trim()))
                .collect::<Vec<_>>()
        })
        .collect()
}

/// The same, in all files but those at these places, and this one.
fn mentions_outside(places: &[&str], words: &[&str]) -> Vec<String> {
    mentions(words, |path| {
        !path.ends_with("tests/tidy.rs") && !places.iter().any(|place| path.contains(place))
    })
}

#[test]
fn no_file_grows_past_reading() {
    let mut files: Vec<_> = sources()
        .into_iter()
        .map(|(path, text)| (text.lines().count(), path))
        .collect();
    files.sort_unstable_by(|one, other| other.cmp(one));
    println!("the ten longest files:");
    for (lines, path) in &files[..10] {
        println!("{lines:6} {path}");
    }
    none(
        "split these, or give a reason in LONG_FILES",
        files
            .into_iter()
            .filter(|(lines, path)| {
                *lines > LONGEST_FILE && !LONG_FILES.iter().any(|(known, _)| known == path)
            })
            .map(|(lines, path)| format!("{path} ({lines} lines)")),
    );
}

#[test]
fn every_file_says_what_it_is_for() {
    none(
        "start with one to three lines of //! (lib.rs may say more)",
        sources()
            .into_iter()
            .filter(|(path, text)| {
                // A diagram may follow after an empty line.
                let doc = text
                    .lines()
                    .take_while(|line| line.starts_with("//! "))
                    .count();
                doc == 0 || (doc > 3 && !path.ends_with("/lib.rs"))
            })
            .map(|(path, _)| path),
    );
}

#[test]
fn no_file_is_an_attic() {
    none(
        "name these after what is in them",
        sources().into_iter().map(|(path, _)| path).filter(|path| {
            Path::new(path)
                .components()
                .filter_map(|part| Path::new(part.as_os_str()).file_stem()?.to_str())
                .any(|part| ATTICS.contains(&part))
        }),
    );
}

#[test]
fn unsafe_has_one_room() {
    none(
        "unsafe code lives in engine/sys",
        mentions_outside(&["engine/sys/"], &["unsafe {", "unsafe fn", "unsafe impl"]),
    );
}

#[test]
fn settings_are_read_once() {
    none(
        "read the environment in args.rs and pass a setting",
        mentions_outside(&ENVIRONMENT, &["env::var"])
            .into_iter()
            // PATH is the machine's, not a setting.
            .filter(|line| !line.contains("\"PATH\"")),
    );
}

#[test]
fn pure_parts_have_no_clock_and_no_socket() {
    none("hand the time and the bytes in", impure());
}

/// Clocks and sockets in the parts that must have none.
fn impure() -> Vec<String> {
    const WORDS: [&str; 5] = [
        "Instant::now",
        "SystemTime::now",
        "Timestamp::now",
        "TcpStream",
        "tokio::",
    ];
    let pure = |path: &str| {
        path.starts_with("engine/proto/src")
            || path.starts_with("crds/src")
            || ["desired", "validate"].iter().any(|step| {
                path.ends_with(&format!("/{step}.rs")) || path.contains(&format!("/{step}/"))
            })
    };
    mentions(&WORDS, pure)
}

#[test]
fn every_exception_has_its_reason() {
    none(
        "write #[ignore = \"…\"], and `reason = \"…\"` in allow and expect",
        sources().iter().flat_map(|(path, text)| {
            let lines: Vec<_> = text.lines().collect();
            lines
                .iter()
                .enumerate()
                .filter(|(_, line)| {
                    let line = line.trim();
                    line == "#[ignore]"
                        || ["#[allow(", "#![allow(", "#[expect(", "#![expect("]
                            .iter()
                            .any(|start| line.starts_with(start))
                })
                .filter(|(number, _)| {
                    !lines[*number..]
                        .iter()
                        .take(5)
                        .any(|line| line.contains("reason"))
                })
                .map(|(number, line)| format!("{path}:{}: {}", number + 1, line.trim()))
                .collect::<Vec<_>>()
        }),
    );
}

#[test]
fn every_value_of_the_chart_is_used() {
    let mut templates = Vec::new();
    for ending in ["yaml", "tpl"] {
        walk(
            &root().join("charts/mooncake/templates"),
            ending,
            &mut templates,
        );
    }
    let values = fs::read_to_string(root().join("charts/mooncake/values.yaml")).unwrap();
    let mut section = "";
    let mut unused = Vec::new();
    for line in values
        .lines()
        .filter(|line| !line.trim_start().starts_with('#'))
    {
        let Some((name, rest)) = line.split_once(':') else {
            continue;
        };
        let path = match name.len() - name.trim_start().len() {
            0 => {
                section = name;
                if rest.is_empty() {
                    continue;
                }
                name.to_owned()
            }
            2 => format!("{section}.{}", name.trim_start()),
            _ => continue,
        };
        let word = format!(".Values.{path}");
        if !templates.iter().any(|(_, text)| text.contains(&word)) {
            unused.push(path);
        }
    }
    none("no template reads these values", unused);
}

#[test]
fn every_test_target_stands_in_a_suite() {
    let suites = fs::read_to_string(root().join("e2e/src/bin/suites/suite.rs")).unwrap();
    none(
        "give these a suite and a budget in e2e/src/bin/suites/suite.rs",
        fs::read_dir(root().join("e2e/tests"))
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .filter(|path| path.extension().is_some_and(|extension| extension == "rs"))
            .filter_map(|path| Some(path.file_stem()?.to_str()?.to_owned()))
            .filter(|name| {
                !suites.contains(&format!("\"{name}\""))
                    && !suites.contains(&format!("--test {name}"))
            }),
    );
}

#[test]
fn the_readme_shows_the_cluster_that_the_demo_applies() {
    let readme = fs::read_to_string(root().join("README.md")).unwrap();
    let cluster = fs::read_to_string(root().join("e2e/demo/cluster.yaml")).unwrap();
    assert_eq!(cluster.lines().count(), 6);
    assert!(
        readme.contains(&cluster),
        "README.md and e2e/demo/cluster.yaml differ"
    );
}

#[test]
fn a_decision_fits_on_a_page() {
    none(
        "at most 40 lines",
        fs::read_dir(root().join("docs/decisions"))
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .filter(|path| fs::read_to_string(path).unwrap().lines().count() > 40)
            .map(|path| path.display().to_string()),
    );
}
