//! An answer: text for people, JSON for programs, and an exit status.

use jiff::Timestamp;
use serde::Serialize;

use crate::cli::doctor::Doctor;
use crate::cli::node::Node;
use crate::cli::page::Page;
use crate::cli::sizing::Sizing;
use crate::cli::status::Status;
use crate::cli::unseen::{self, Unseen};
use crate::cli::why::Why;

/// Name and version of the JSON; a field may be added to it, none changes its meaning.
pub const API_VERSION: &str = "cli.mooncake.io/v1";

/// Exit status where not everything could be looked at.
const BLIND: u8 = 2;

/// One of each command.
#[derive(Clone, Debug, Serialize)]
#[serde(tag = "kind")]
pub enum Answer {
    Status(Status),
    Node(Box<Node>),
    Doctor(Doctor),
    Why(Box<Why>),
    Sizing(Sizing),
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Envelope<'a> {
    api_version: &'static str,
    #[serde(flatten)]
    answer: &'a Answer,
}

impl Answer {
    /// What the process ends with.
    pub fn exit_code(&self) -> u8 {
        let seen = |unseen: &[Unseen]| if unseen.is_empty() { 0 } else { BLIND };
        match self {
            Self::Status(status) => seen(&status.unseen),
            Self::Node(node) => seen(&node.unseen),
            Self::Doctor(doctor) => doctor.exit_code(),
            Self::Why(why) => seen(&why.unseen),
            Self::Sizing(sizing) => sizing.exit_code(),
        }
    }

    /// For people.
    pub fn text(&self, colour: bool, now: Timestamp) -> String {
        let mut page = Page::new(colour);
        match self {
            Self::Status(status) => {
                status.show(&mut page, now);
                unseen::show(&mut page, &status.unseen);
            }
            Self::Node(node) => {
                node.show(&mut page, now);
                unseen::show(&mut page, &node.unseen);
            }
            // Its last line is about both.
            Self::Doctor(doctor) => doctor.show(&mut page, now),
            Self::Why(why) => {
                why.show(&mut page);
                unseen::show(&mut page, &why.unseen);
            }
            Self::Sizing(sizing) => sizing.show(&mut page),
        }
        page.into_text()
    }

    /// For programs.
    ///
    /// # Errors
    /// Where a value has no JSON.
    pub fn json(&self) -> Result<String, serde_json::Error> {
        let text = serde_json::to_string_pretty(&Envelope {
            api_version: API_VERSION,
            answer: self,
        })?;
        Ok(text + "\n")
    }
}
