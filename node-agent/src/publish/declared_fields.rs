//! The fields of the status that the installed CRD does not declare, because it is of an older release. The API server
//! rejects a server-side apply that contains one, and names it. Pure.

use std::collections::BTreeSet;

use serde_json::Value;

/// End of the text that names an undeclared field in the API server's message.
const UNDECLARED: &str = ": field not declared in schema";

/// Undeclared fields, as names from the root of the object. A name applies to every entry of a list.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct UndeclaredFields(BTreeSet<Vec<String>>);

impl UndeclaredFields {
    /// Adds the fields that a message of the API server names. Returns false if it names no further one.
    pub(crate) fn note(&mut self, message: &str) -> bool {
        let before = self.0.len();
        let mut rest = message;
        while let Some((path, after)) = rest.split_once(UNDECLARED) {
            let path = path.rsplit(char::is_whitespace).next().unwrap_or_default();
            let names = names(path);
            // Only what this agent writes.
            if names.len() > 1 && names[0] == "status" {
                self.0.insert(names);
            }
            rest = after;
        }
        self.0.len() > before
    }

    /// Removes the fields from an object.
    pub(crate) fn remove_from(&self, object: &mut Value) {
        self.0.iter().for_each(|names| remove(object, names));
    }
}

/// The names of `.status.pools[podUid="u"].state`: status, pools, state.
fn names(path: &str) -> Vec<String> {
    let mut text = String::new();
    let mut inside = false;
    for sign in path.chars() {
        match sign {
            '[' => inside = true,
            ']' => inside = false,
            _ if inside => {}
            _ => text.push(sign),
        }
    }
    let names = text.split('.').filter(|name| !name.is_empty());
    names.map(str::to_owned).collect()
}

fn remove(value: &mut Value, names: &[String]) {
    match (value, names) {
        (Value::Array(entries), _) => entries.iter_mut().for_each(|entry| remove(entry, names)),
        (Value::Object(fields), [last]) => {
            fields.remove(last);
        }
        (Value::Object(fields), [first, rest @ ..]) => {
            if let Some(field) = fields.get_mut(first) {
                remove(field, rest);
            }
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn fields_that_the_api_server_names_are_removed_and_no_others() {
        let message = "failed to create typed patch object (/n1; mooncake.io/v1alpha1, Kind=MooncakeNode): errors:\n  \
            .status.memory: field not declared in schema\n  \
            .status.pools[podUid=\"8a.0c\"].engine.pid: field not declared in schema\n  \
            .status.findings[3].cause: field not declared in schema";
        let mut fields = UndeclaredFields::default();
        assert!(fields.note(message));
        assert!(!fields.note(message), "nothing further");
        assert!(!fields.note("admission webhook denied the request"));
        assert!(!fields.note(".metadata.name: field not declared in schema"));
        let mut object = json!({"metadata": {"name": "n1"}, "status": {
            "memory": 1, "capacity": "1Gi",
            "pools": [{"podUid": "8a.0c", "engine": {"pid": 7, "state": "Runs"}}],
            "findings": [{"check": "Clock", "cause": "x"}, {"check": "Dns"}],
        }});
        fields.remove_from(&mut object);
        let left = json!({"metadata": {"name": "n1"}, "status": {
            "capacity": "1Gi",
            "pools": [{"podUid": "8a.0c", "engine": {"state": "Runs"}}],
            "findings": [{"check": "Clock"}, {"check": "Dns"}],
        }});
        assert_eq!(object, left);
    }
}
