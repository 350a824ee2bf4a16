//! The result of a command: text, JSON and an exit status.

use jiff::Timestamp;
use serde::Serialize;
use serde_json::Value;

use crate::bundle::Bundle;
use crate::doctor::Doctor;
use crate::drain::Drain;
use crate::keys::Keys;
use crate::node::Node;
use crate::preflight::Preflight;
use crate::read_error::{self, ReadError};
use crate::renderer::Renderer;
use crate::segment::Segment;
use crate::sizing::Sizing;
use crate::status::Status;
use crate::why::Why;

/// Version of the JSON. Fields may be added to it; none changes its meaning.
pub const API_VERSION: &str = "cli.mooncake.io/v2";

/// Exit status when some objects could not be read.
const INCOMPLETE: u8 = 2;

/// One variant for each command.
#[derive(Debug, Serialize)]
#[serde(tag = "kind")]
pub enum Report {
    Status(Status),
    Node(Box<Node>),
    Doctor(Doctor),
    Why(Box<Why>),
    Segment(Box<Segment>),
    Keys(Keys),
    Drain(Drain),
    Sizing(Sizing),
    Preflight(Preflight),
    Bundle(Bundle),
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Envelope<'a> {
    api_version: &'static str,
    #[serde(flatten)]
    report: &'a Report,
}

impl Report {
    /// Exit status of the process.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Doctor(doctor) => doctor.exit_code(),
            Self::Keys(keys) => keys.exit_code(),
            Self::Drain(drain) => drain.exit_code(),
            Self::Sizing(sizing) => sizing.exit_code(),
            Self::Preflight(preflight) => preflight.exit_code(),
            Self::Bundle(bundle) => bundle.exit_code(),
            _ if self.read_errors().is_empty() => 0,
            _ => INCOMPLETE,
        }
    }

    /// Text for a terminal.
    pub fn text(&self, colour: bool, now: Timestamp) -> String {
        let mut out = Renderer {
            colour,
            ..Renderer::default()
        };
        match self {
            Self::Status(status) => status.show(&mut out, now),
            Self::Node(node) => node.show(&mut out, now),
            Self::Doctor(doctor) => doctor.show(&mut out, now),
            Self::Why(why) => why.show(&mut out),
            Self::Segment(segment) => segment.show(&mut out),
            Self::Keys(keys) => keys.show(&mut out),
            Self::Drain(drain) => drain.show(&mut out),
            Self::Sizing(sizing) => sizing.show(&mut out),
            Self::Preflight(preflight) => preflight.show(&mut out),
            Self::Bundle(bundle) => bundle.show(&mut out),
        }
        read_error::show(&mut out, self.read_errors());
        match self {
            Self::Doctor(doctor) => doctor.show_summary(&mut out),
            Self::Preflight(preflight) => preflight.show_summary(&mut out),
            _ => {}
        }
        out.text
    }

    /// JSON with sorted keys, as of kubectl, and a final newline. Absent values are left out.
    ///
    /// # Errors
    /// A value that JSON cannot represent.
    pub fn json(&self) -> Result<String, serde_json::Error> {
        let mut value = serde_json::to_value(Envelope {
            api_version: API_VERSION,
            report: self,
        })?;
        remove_nulls(&mut value);
        Ok(format!("{value:#}\n"))
    }

    fn read_errors(&self) -> &[ReadError] {
        match self {
            Self::Status(status) => &status.read_errors,
            Self::Node(node) => &node.read_errors,
            Self::Doctor(doctor) => &doctor.read_errors,
            Self::Why(why) => &why.read_errors,
            Self::Segment(segment) => &segment.read_errors,
            Self::Drain(drain) => &drain.read_errors,
            Self::Preflight(preflight) => &preflight.read_errors,
            Self::Bundle(bundle) => &bundle.read_errors,
            Self::Keys(_) | Self::Sizing(_) => &[],
        }
    }
}

fn remove_nulls(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            fields.retain(|_, field| !field.is_null());
            fields.values_mut().for_each(remove_nulls);
        }
        Value::Array(items) => items.iter_mut().for_each(remove_nulls),
        _ => {}
    }
}
