//! House rules of language: words of the former dialect and ids of requirements stay out of sources and docs.
//! `cargo test -p mooncake-e2e --test language -- --nocapture` prints the counts and every match.
#![allow(clippy::unwrap_used, reason = "a test ends where its set-up fails")]

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// Matches that are left. Lower it with the count; never raise it.
const LIMIT: usize = 200;

/// Sources and docs, by the endings of their names.
const ENDINGS: [&str; 6] = ["rs", "md", "yaml", "tpl", "py", "sh"];

/// Text that is not ours: recordings, files of upstream projects, build output, and these lists.
const NOT_OURS: [&str; 9] = [
    "target",
    ".git",
    "e2e/tests/language.rs",
    "node-agent/tests/machines/*.txt",
    "node-agent/machines",
    "recordings",
    "upstream",
    "e2e/cluster/go",
    "engine/proto/fuzz/corpus",
];

/// Words, with the phrases in which each is plain English. Names count too: `TellAll` and `tell_all` are the words
/// `tell all`.
const WORDS: &[(&[&str], &[&str])] = &[
    (&["told", "tell", "tells", "telling", "teller"], &[]),
    (&["say", "says", "said", "saying"], &[]),
    (&["ask", "asks", "asked", "asking"], &[]),
    (&["stand", "stands", "stood"], &["stand alone", "stand in"]),
    (&["hear", "hears", "heard"], &[]),
    (&["lend", "lends", "lent"], &[]),
    (&["sick", "sickness", "ailing", "ailment"], &[]),
    (&["crew"], &[]),
    (&["ward", "wards", "patient", "patients"], &[]),
    (&["story", "stories"], &[]),
    // The annotations are written on running pods: another key would replace every pool pod at an upgrade.
    (&["wish", "wishes"], &["master wish", "pool wish"]),
    (
        &["mirror", "mirrors"],
        &["registry mirror", "registry mirrors", "config mirror"],
    ),
    (
        &["world", "worlds"],
        &["world size", "hello world", "world readable"],
    ),
    (&["picture", "pictures"], &[]),
    (&["nobody", "somebody", "anew", "whom"], &[]),
    (&["way", "ways"], &["under way", "both ways", "this way"]),
    (&["life"], &[]),
    (&["orders"], &["orders the", "orders with"]),
    (&["boards"], &[]),
];

/// Phrases of the dialect.
const PHRASES: &[&str] = &[
    "a person",
    "is no more",
    "are no more",
    "gone after",
    "becomes of",
    "become of",
    "became of",
    "held of",
    "another generation",
    "other generation",
    "mooncake generation",
    "of this generation",
    "is well and",
    "are well and",
    "agent is well",
    "all is well",
    "node is well",
    "was well",
    "earlier lives",
    "certificates lives",
    "does not fit",
    "containers fit",
    // A record of what each task reported, not the board of an adapter.
    "struct board",
    "the board",
    "a board of",
    "board of nodes",
    "on board",
    // The result of a check is the only verdict; it is a type and a field, never prose.
    "the verdict",
    "a verdict",
    "its verdict",
    "of verdict",
    // Output of the CLI, not pages of memory or of the documentation.
    "page shows",
    "page prints",
    "page of the node",
    "page of a node",
    // A work request of verbs, not a sequence.
    "struct order",
    "enum order",
    "an order",
    "order to the",
    "post order",
    "posted order",
    // The limiter of connections, not the startup sidecar.
    "struct gate",
    "connection gate",
    "gate of the listener",
    "gate of a listener",
    "gate admits",
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Every file that is ours, with its path from the root.
fn texts() -> Vec<(String, String)> {
    let mut found = Vec::new();
    walk(&root(), &mut found);
    assert!(found.len() > 300, "only {} files", found.len());
    found
}

fn walk(folder: &Path, found: &mut Vec<(String, String)>) {
    let root = root();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.strip_prefix(&root).unwrap().display().to_string();
        if !is_ours(&name) {
            continue;
        }
        let ending = path.extension().and_then(|ending| ending.to_str());
        if path.is_dir() {
            walk(&path, found);
        } else if ending.is_some_and(|ending| ENDINGS.contains(&ending)) {
            found.push((name, fs::read_to_string(&path).unwrap()));
        }
    }
}

/// A pattern is a path, a name of a folder anywhere, or a folder with an ending.
fn is_ours(name: &str) -> bool {
    !NOT_OURS
        .iter()
        .any(|pattern| match pattern.split_once('*') {
            Some((folder, ending)) => name.starts_with(folder) && name.ends_with(ending),
            None => name == *pattern || name.split('/').any(|part| part == *pattern),
        })
}

/// The words of a line in lower case; names are split where they are joined.
fn words(line: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let mut lower_before = false;
    for letter in line.chars() {
        if !letter.is_alphabetic() || (letter.is_uppercase() && lower_before) {
            words.push(String::new());
        }
        if letter.is_alphabetic() {
            words.last_mut().unwrap().extend(letter.to_lowercase());
        }
        lower_before = letter.is_lowercase();
    }
    words.retain(|word| !word.is_empty());
    words
}

/// Positions at which a phrase begins.
fn positions(words: &[String], phrase: &str) -> Vec<usize> {
    let phrase: Vec<&str> = phrase.split(' ').collect();
    (0..words.len())
        .filter(|start| {
            words[*start..].len() >= phrase.len()
                && phrase
                    .iter()
                    .zip(&words[*start..])
                    .all(|(one, word)| one == word)
        })
        .collect()
}

/// The dialect in a line, by pattern.
fn dialect(line: &str) -> Vec<&'static str> {
    let words = words(line);
    let mut found: Vec<&str> = PHRASES
        .iter()
        .flat_map(|phrase| positions(&words, phrase).into_iter().map(|_| *phrase))
        .collect();
    for (forms, allowed) in WORDS {
        let excused: Vec<usize> = allowed
            .iter()
            .flat_map(|phrase| {
                let length = phrase.split(' ').count();
                positions(&words, phrase)
                    .into_iter()
                    .flat_map(move |start| start..start + length)
            })
            .collect();
        found.extend(
            words
                .iter()
                .enumerate()
                .filter(|(place, word)| forms.contains(&word.as_str()) && !excused.contains(place))
                .map(|_| forms[0]),
        );
    }
    found
}

#[test]
#[expect(clippy::print_stdout, reason = "the list of what to change")]
fn the_dialect_of_the_first_release_stays_out() {
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for (path, text) in texts() {
        for (number, line) in text.lines().enumerate() {
            for pattern in dialect(line) {
                *counts.entry(pattern).or_default() += 1;
                println!("{path}:{}: {pattern}: {}", number + 1, line.trim());
            }
        }
    }
    let mut sorted: Vec<_> = counts.iter().map(|(word, count)| (count, word)).collect();
    sorted.sort_unstable_by(|one, other| other.cmp(one));
    for (count, word) in sorted {
        println!("{count:6} {word}");
    }
    let all: usize = counts.values().sum();
    println!("{all:6} of at most {LIMIT}");
    assert!(all <= LIMIT, "{all} matches, {LIMIT} allowed: see the list");
}

/// Whether a word is the id of a requirement, or a name that begins with one.
fn is_id(word: &str) -> bool {
    let (letter, rest) = word.split_at_checked(1).unwrap_or(("", ""));
    let (digits, rest) = rest.split_at_checked(2).unwrap_or(("", ""));
    let number = digits.starts_with(['0', '1', '2', '3', '4'])
        && digits.bytes().all(|digit| digit.is_ascii_digit());
    number && ((letter == "S" && rest.is_empty()) || (letter == "s" && rest.starts_with('_')))
}

#[test]
#[expect(clippy::print_stdout, reason = "the list of what to change")]
fn ids_of_requirements_stay_out() {
    let mut count = 0;
    for (path, text) in texts() {
        for (number, line) in text.lines().enumerate() {
            let mut words = line.split(|letter: char| !letter.is_alphanumeric() && letter != '_');
            if words.any(is_id) {
                count += 1;
                println!("{path}:{}: {}", number + 1, line.trim());
            }
        }
    }
    assert_eq!(count, 0, "requirement ids: see the list");
}

#[test]
fn names_and_sentences_are_searched_for_words() {
    assert_eq!(
        words("fn tell_all(HeardOf)"),
        ["fn", "tell", "all", "heard", "of"]
    );
    assert_eq!(dialect("What the agent said"), ["say"]);
    assert_eq!(dialect("struct BoardOfNodes;").len(), 2);
    assert_eq!(dialect("a registry mirror on board"), ["on board"]);
    assert_eq!(dialect("proves its way to n2"), ["way"]);
    assert!(dialect("a request under way, in order; pages of a huge page").is_empty());
    assert_eq!(
        dialect("gives the verdict of an order"),
        ["the verdict", "an order"]
    );
    assert!(dialect("standard, asked_by_askama?").contains(&"ask"));
    assert!(dialect("standard askama keyboard").is_empty());
    assert!(is_id("S12") && is_id("s12_x") && !is_id("S3") && !is_id("s12") && !is_id("S50"));
}
