//! The work of the index between calls, one step at a time: calls come also while a ledger is installed in part.

use crate::Model;

impl Model {
    /// Does one step of the work that waits. Returns whether there is more.
    pub(super) fn work(&mut self) -> bool {
        let now = self.now();
        if let Some(arrangement) = self.arrangement.take() {
            self.index.install(arrangement.arrange());
        }
        let more = self.index.step(now);
        self.arrangement = self.index.next_arrangement(now);
        more || self.arrangement.is_some()
    }
}
