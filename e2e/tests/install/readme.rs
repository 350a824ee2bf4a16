//! The commands of README.md's section on installation.

use anyhow::{Context, ensure};

const HEADING: &str = "## Install it into your cluster\n";
const BLOCK: &str = "```\n";
/// The registry and path that stand for the reader's own.
const EXAMPLE: &str = "registry.example/mooncake";

/// Arguments of helm and kubectl, in their order.
pub(crate) struct Commands {
    pub(crate) steps: Vec<(Program, Vec<String>)>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Program {
    Helm,
    Kubectl,
}

impl Commands {
    /// Reads the section's first block, which must begin with the build of the images.
    pub(crate) fn of(readme: &str) -> anyhow::Result<Self> {
        let (_, section) = readme.split_once(HEADING).context("no such section")?;
        let (_, block) = section.split_once(BLOCK).context("no commands")?;
        let (block, _) = block.split_once(BLOCK).context("the block does not end")?;
        let mut lines = block.lines();
        let images = format!("make images REGISTRY={EXAMPLE}");
        ensure!(
            lines.next() == Some(&images),
            "the block does not begin with `{images}`"
        );
        let steps = lines.map(|line| {
            let mut words = line.split_whitespace().map(str::to_owned);
            let program = match words.next().as_deref() {
                Some("helm") => Program::Helm,
                Some("kubectl") => Program::Kubectl,
                _ => anyhow::bail!("neither helm nor kubectl: {line}"),
            };
            Ok((program, words.collect()))
        });
        Ok(Self {
            steps: steps.collect::<anyhow::Result<_>>()?,
        })
    }
}

#[test]
fn commands_are_read_up_to_the_end_of_the_block() {
    let block =
        "make images REGISTRY=registry.example/mooncake\nhelm install a\nkubectl apply -f b\n";
    let readme = format!("{HEADING}text\n{BLOCK}{block}{BLOCK}rm -r /\n");
    let steps = Commands::of(&readme).unwrap().steps;
    let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect();
    let expected: [(Program, Vec<String>); 2] = [
        (Program::Helm, words(&["install", "a"])),
        (Program::Kubectl, words(&["apply", "-f", "b"])),
    ];
    assert_eq!(steps, expected);
    assert!(Commands::of(&readme.replace("helm", "curl")).is_err());
}
