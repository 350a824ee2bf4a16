//! Watched values: a write wakes readers only where it changes something.

use tokio::sync::watch;

/// Sets one field of a watched value.
pub(crate) fn set<S, T: PartialEq>(
    watched: &watch::Sender<S>,
    field: impl FnOnce(&mut S) -> &mut T,
    value: T,
) {
    watched.send_if_modified(|state| {
        let field = field(state);
        let changed = *field != value;
        *field = value;
        changed
    });
}
