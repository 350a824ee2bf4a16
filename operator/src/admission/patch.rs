//! JSON patches of a pod, written operation by operation: fields that this build does not know
//! stay as they are, and what is there already gives no operation.

use std::collections::BTreeMap;

use json_patch::jsonptr::PointerBuf;
use json_patch::{AddOperation, PatchOperation, RemoveOperation, ReplaceOperation};
use serde::Serialize;
use serde_json::{Value, json};

/// Collects operations; each sees the pod as the ones before it left it.
#[derive(Debug, Default)]
pub(super) struct Builder {
    operations: Vec<PatchOperation>,
}

/// Labels or annotations.
#[derive(Clone, Copy, Debug)]
pub(super) enum Table {
    Labels,
    Annotations,
}

impl Table {
    fn field(self) -> &'static str {
        match self {
            Self::Labels => "labels",
            Self::Annotations => "annotations",
        }
    }
}

impl Builder {
    /// The operations in the order in which they apply.
    pub(super) fn finish(self) -> Vec<PatchOperation> {
        self.operations
    }

    /// Makes a label or annotation have a value, or have none.
    pub(super) fn set(
        &mut self,
        table: Table,
        present: Option<&BTreeMap<String, String>>,
        wanted: &[(&str, Option<&str>)],
    ) {
        let field = table.field();
        let mut exists = present.is_some();
        for (key, value) in wanted {
            let now = present.and_then(|map| map.get(*key)).map(String::as_str);
            if now == *value {
                continue;
            }
            match value {
                Some(value) if exists => self.add(&["metadata", field, key], json!(value)),
                Some(value) => {
                    self.add(&["metadata", field], json!({ *key: value }));
                    exists = true;
                }
                None => self.remove(&["metadata", field, key]),
            }
        }
    }

    /// Appends to a list that may not be there yet.
    pub(super) fn append<T: Serialize>(&mut self, list: &[&str], exists: bool, items: &[T]) {
        if items.is_empty() {
            return;
        }
        if !exists {
            self.add(list, json!(items));
            return;
        }
        let end = [list, &["-"]].concat();
        for item in items {
            self.add(&end, json!(item));
        }
    }

    /// Puts an item before all others of a list that may not be there yet.
    pub(super) fn prepend<T: Serialize>(&mut self, list: &[&str], exists: bool, item: &T) {
        if exists {
            self.add(&[list, &["0"]].concat(), json!(item));
        } else {
            self.add(list, json!([item]));
        }
    }

    /// Gives a field a value, whether it is there or not.
    pub(super) fn put(&mut self, path: &[&str], value: Value) {
        self.add(path, value);
    }

    /// Gives a field that is there another value.
    pub(super) fn replace(&mut self, path: &[&str], value: Value) {
        self.operations
            .push(PatchOperation::Replace(ReplaceOperation {
                path: pointer(path),
                value,
            }));
    }

    fn add(&mut self, path: &[&str], value: Value) {
        self.operations.push(PatchOperation::Add(AddOperation {
            path: pointer(path),
            value,
        }));
    }

    fn remove(&mut self, path: &[&str]) {
        self.operations
            .push(PatchOperation::Remove(RemoveOperation {
                path: pointer(path),
            }));
    }
}

fn pointer(path: &[&str]) -> PointerBuf {
    PointerBuf::from_tokens(path.iter().copied())
}
