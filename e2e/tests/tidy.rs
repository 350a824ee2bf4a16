//! The house rules that no compiler keeps. Each test is one rule; CONTRIBUTING.md has the reasons.
#![allow(clippy::unwrap_used, reason = "a test ends where its set-up fails")]

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Lines past which a file must be on this list, with its reason.
const LONGEST_FILE: usize = 800;
const LONG_FILES: &[(&str, &str)] = &[];

const VAGUE_NAMES: [&str; 12] = [
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
fn no_file_is_longer_than_800_lines() {
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
fn every_file_states_its_purpose() {
    none(
        "start with one to three lines of //! (lib.rs may have more)",
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
fn no_file_has_a_vague_name() {
    none(
        "name these after what is in them",
        sources().into_iter().map(|(path, _)| path).filter(|path| {
            Path::new(path)
                .components()
                .filter_map(|part| Path::new(part.as_os_str()).file_stem()?.to_str())
                .any(|part| VAGUE_NAMES.contains(&part))
        }),
    );
}

#[test]
fn unsafe_code_is_only_in_engine_sys() {
    none(
        "unsafe code lives in engine/sys",
        mentions_outside(&["engine/sys/"], &["unsafe {", "unsafe fn", "unsafe impl"]),
    );
}

#[test]
fn the_environment_is_read_in_one_place() {
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
            || path.starts_with("engine/master/src/index")
            || path.starts_with("crds/src")
            || ["desired", "validate"].iter().any(|step| {
                path.ends_with(&format!("/{step}.rs")) || path.contains(&format!("/{step}/"))
            })
    };
    mentions(&WORDS, pure)
}

#[test]
fn every_exception_has_a_reason() {
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
fn every_test_target_belongs_to_a_suite() {
    let suites = fs::read_to_string(root().join("e2e/src/bin/suites/suite.rs")).unwrap();
    none(
        "give these a suite and a budget in e2e/src/bin/suites/suite.rs",
        fs::read_dir(root().join("e2e/tests"))
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .filter(|path| path.extension().is_some_and(|extension| extension == "rs"))
            // The suite `unit` runs all other tests.
            .filter(|path| fs::read_to_string(path).unwrap().contains("\n#[ignore"))
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
    assert_eq!(cluster.lines().count(), 7);
    assert!(
        readme.contains(&cluster),
        "README.md and e2e/demo/cluster.yaml differ"
    );
}

#[test]
fn documents_name_the_release_of_rust_that_the_manifest_requires() {
    let manifest = fs::read_to_string(root().join("Cargo.toml")).unwrap();
    let required = manifest
        .lines()
        .find_map(|line| line.strip_prefix("rust-version = \""))
        .unwrap();
    let named = format!("Rust {}", required.trim_end_matches('"'));
    for page in ["README.md", "CONTRIBUTING.md", "docs/install.md"] {
        let text = fs::read_to_string(root().join(page)).unwrap();
        assert!(text.contains(&named), "{page} does not name {named}");
    }
}

#[test]
fn a_decision_has_at_most_40_lines() {
    none(
        "at most 40 lines",
        fs::read_dir(root().join("docs/decisions"))
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .filter(|path| fs::read_to_string(path).unwrap().lines().count() > 40)
            .map(|path| path.display().to_string()),
    );
}

/// Names of registered metrics: the first string of each `register` call, with its unit.
fn registered_metrics() -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for (path, text) in sources() {
        let prefix = match path.split('/').next() {
            Some("node-agent") => "mooncake_agent_",
            Some("operator") => "mooncake_operator_",
            _ => continue,
        };
        let product = text.split("#[cfg(test)]\nmod ").next().unwrap_or_default();
        for call in ["registry.register(", "registry.register_with_unit("] {
            for rest in product.split(call).skip(1) {
                let words: Vec<_> = rest.split('"').take(5).collect();
                let unit = words.get(4).and_then(|rest| {
                    rest.trim_start_matches([',', ' ', '\n'])
                        .strip_prefix("Unit::")
                });
                let unit = unit.and_then(|unit| unit.split(',').next());
                let suffix = unit.map(|unit| format!("_{}", unit.to_lowercase()));
                names.insert(format!(
                    "{prefix}{}{}",
                    words[1],
                    suffix.unwrap_or_default()
                ));
            }
        }
    }
    names
}

#[test]
fn the_page_of_metrics_lists_every_registered_metric_and_no_other() {
    let page = fs::read_to_string(root().join("docs/metrics.md")).unwrap();
    let listed: BTreeSet<_> = page
        .lines()
        .filter_map(|line| line.strip_prefix("| `")?.split('`').next())
        .filter(|name| name.starts_with("mooncake_"))
        .map(|name| name.trim_end_matches("_total").to_owned())
        .collect();
    let registered = registered_metrics();
    assert!(registered.len() > 10, "only {registered:?} are found");
    none(
        "docs/metrics.md and the code differ in",
        listed.symmetric_difference(&registered).cloned(),
    );
}

/// Every page of the documentation, with its path from the root.
fn pages() -> Vec<(String, String)> {
    let mut pages = Vec::new();
    walk(&root().join("docs"), "md", &mut pages);
    for page in ["README.md", "CONTRIBUTING.md"] {
        let text = fs::read_to_string(root().join(page)).unwrap();
        pages.push((page.to_owned(), text));
    }
    pages
}

#[test]
fn every_source_file_that_the_documentation_names_exists() {
    let top = [
        "charts/",
        "crds/",
        "docs/",
        "e2e/",
        "engine/",
        "node-agent/",
        "operator/",
    ];
    let missing = pages().into_iter().flat_map(|(page, text)| {
        let quoted = text.split('`').skip(1).step_by(2);
        let named = quoted.filter(|name| {
            top.iter().any(|folder| name.starts_with(folder))
                && [".rs", ".md", ".py"]
                    .iter()
                    .any(|ending| name.ends_with(ending))
        });
        let missing = named.filter(|name| !root().join(name).exists());
        missing
            .map(|name| format!("{page}: {name}"))
            .collect::<Vec<_>>()
    });
    none("these files do not exist", missing);
}

#[test]
fn every_link_in_the_documentation_leads_somewhere() {
    let mut broken = Vec::new();
    for (page, text) in &pages() {
        let folder = root().join(page).parent().unwrap().to_owned();
        for target in text
            .split("](")
            .skip(1)
            .filter_map(|rest| rest.split(')').next())
        {
            let (file, anchor) = target.split_once('#').unwrap_or((target, ""));
            if target.starts_with("http") {
                continue;
            }
            let path = if file.is_empty() {
                root().join(page)
            } else {
                folder.join(file)
            };
            let leads = path.exists()
                && (anchor.is_empty()
                    || anchors(&fs::read_to_string(&path).unwrap()).contains(anchor));
            if !leads {
                broken.push(format!("{page}: {target}"));
            }
        }
    }
    none("these links lead nowhere", broken);
}

#[test]
fn every_scenario_that_the_troubleshooting_page_names_exists() {
    let page = fs::read_to_string(root().join("docs/troubleshooting.md")).unwrap();
    let lines = page.lines().filter(|line| line.contains("scenario"));
    let named: BTreeSet<_> = lines
        .flat_map(|line| line.split('`').skip(1).step_by(2))
        .filter(|name| name.contains('_') && !name.contains(['/', '.', ' ']))
        .collect();
    assert!(named.len() > 5, "only {named:?} are found");
    let exists = |name: &str| {
        root()
            .join(format!("e2e/tests/scenarios/{name}.rs"))
            .is_file()
    };
    none(
        "these scenarios do not exist",
        named
            .into_iter()
            .filter(|name| !exists(name))
            .map(str::to_owned),
    );
}

/// The scenarios and counts of the first release, and where they are now.
const OF_RELEASE_0_1_0: &str = include_str!("release-0.1.0.txt");

/// Whether a file below `e2e/tests` is compiled and has this test, or a part of one that another file calls.
fn is_tested(file: &str, name: &str) -> bool {
    let read = |file: &str| fs::read_to_string(root().join("e2e/tests").join(file));
    let modules = read("scenarios.rs").unwrap();
    let module = file.strip_prefix("scenarios/").map(|file| {
        let module = file.trim_end_matches(".rs");
        (module, format!("mod {module};"))
    });
    let Ok(text) = read(file) else {
        return false;
    };
    let Some((before, _)) = text.split_once(&format!("fn {name}(")) else {
        return false;
    };
    let Some((module, line)) = module else {
        return is_test(before);
    };
    let called = format!("{module}::{name}(");
    modules.contains(&line)
        && (is_test(before) || sources().iter().any(|(_, text)| text.contains(&called)))
}

/// Whether the text before a function ends with the attribute of a test, others between them.
fn is_test(before: &str) -> bool {
    let attributes = before.lines().rev().skip(1);
    let mut attributes = attributes.take_while(|line| line.starts_with("#["));
    attributes.any(|line| line.starts_with("#[tokio::test") || line == "#[test]")
}

/// The numbers in the arguments of the call that has this text as its first one.
fn numbers_after(text: &str, first: &str) -> Vec<u64> {
    let Some((_, rest)) = text.split_once(&format!("\"{first}\",")) else {
        return Vec::new();
    };
    let arguments = rest.split(')').next().unwrap_or_default();
    let number = |word: &str| {
        let word = word.trim().trim_matches('"').replace('_', "");
        let digits = word.split(char::is_alphabetic).next().unwrap_or_default();
        digits.parse().ok()
    };
    arguments.split(',').filter_map(number).collect()
}

#[test]
fn each_scenario_of_the_first_release_is_tested_with_its_counts() {
    let lines = OF_RELEASE_0_1_0.lines();
    let now: Vec<_> = lines
        .clone()
        .filter_map(|line| line.strip_prefix("  ")?.split_once(' '))
        .collect();
    let then = lines
        .clone()
        .filter(|line| line.contains(".rs ") && !line.starts_with(['c', ' ', '#']));
    assert_eq!(now.len(), then.count());
    assert_eq!(now.len(), 53, "a scenario of the release left the list");
    none(
        "these scenarios of release 0.1.0 are not tested",
        now.iter()
            .filter(|(file, name)| !is_tested(file, name))
            .map(|(file, name)| format!("{file}: {name}")),
    );
    let counts: Vec<_> = lines
        .filter_map(|line| line.strip_prefix("counts ")?.split_once(" \""))
        .collect();
    assert_eq!(counts.len(), 8, "a count of the release left the list");
    let lower = counts.iter().filter(|(file, rest)| {
        let (what, least) = rest.split_once("\" ").unwrap();
        let least: Vec<u64> = least
            .split(' ')
            .map(|count| count.parse().unwrap())
            .collect();
        let now = numbers_after(&fs::read_to_string(root().join(file)).unwrap(), what);
        now.len() != least.len() || now.iter().zip(&least).any(|(now, least)| now < least)
    });
    none(
        "these counts are lower than in release 0.1.0",
        lower.map(|(file, rest)| format!("{file}: \"{rest}")),
    );
}

/// Anchors of a page: marked ones and those of its headings, as GitHub forms them.
fn anchors(page: &str) -> BTreeSet<String> {
    let marked = page.split("<a id=\"").skip(1);
    let marked = marked
        .filter_map(|rest| rest.split('"').next())
        .map(str::to_owned);
    let headings = page.lines().filter_map(|line| {
        let words = line.strip_prefix('#')?.trim_start_matches('#').trim();
        let kept = |sign: &char| sign.is_alphanumeric() || " -_".contains(*sign);
        let words: String = words.to_lowercase().chars().filter(kept).collect();
        Some(words.replace(' ', "-"))
    });
    marked.chain(headings).collect()
}

/// What each of these packages must not depend on, so that its promise is kept by its manifest.
const FORBIDDEN_DEPENDENCIES: &[(&str, &[&str])] = &[
    (
        "mooncake-pool",
        &["kube", "tonic", "axum", "hyper", "mooncake-engine"],
    ),
    // tonic, hyper and axum come with etcd-client, which the gate and the engine process need for metadata in an etcd.
    ("mooncake-gate", &["kube", "mooncake-engine"]),
    ("mooncake-host", &["kube", "tokio", "mooncake-engine"]),
    ("mooncake-checks", &["kube", "tokio", "mooncake-engine"]),
    ("mooncake-engine", &["kube", "mooncake-crds"]),
    ("mooncake-engine-process", &["kube", "mooncake-node-agent"]),
    (
        "mooncake-http-server",
        &["mooncake-crds", "mooncake-operator"],
    ),
    ("mooncake-node-agent", &["mooncake-operator"]),
    ("mooncake-proto", &["tokio", "mooncake-sys"]),
    (
        "mooncake-master",
        &["kube", "mooncake-crds", "mooncake-engine", "mooncake-store"],
    ),
];

#[test]
fn no_crate_depends_on_what_it_must_not_know() {
    let offenders = FORBIDDEN_DEPENDENCIES
        .iter()
        .flat_map(|(package, forbidden)| {
            let tree = Command::new(env!("CARGO"))
                .args(["tree", "--locked", "--edges", "normal", "--prefix", "none"])
                .args(["--package", package])
                .output()
                .unwrap();
            let error = String::from_utf8_lossy(&tree.stderr);
            assert!(tree.status.success(), "cargo tree of {package}: {error}");
            let tree = String::from_utf8_lossy(&tree.stdout).into_owned();
            let found = forbidden.iter().filter(move |crate_name| {
                let family = format!("{crate_name}-");
                let mut names = tree.lines().filter_map(|line| line.split(' ').next());
                names.any(|name| name == **crate_name || name.starts_with(&family))
            });
            found.map(move |crate_name| format!("{package} depends on {crate_name}"))
        });
    none("these packages must do without", offenders);
}
