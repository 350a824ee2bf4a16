//! The log of the engine process. It has no file and no terminal of its own: the agent that is connected prints its
//! lines. Without an agent the latest lines are kept.

use std::collections::VecDeque;
use std::fmt::{self, Write as _};
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::layer::{Context, Layer};

/// Most lines that are kept.
const LINES_LIMIT: usize = 256;

/// Longest line in bytes.
const LINE_LIMIT: usize = 4 << 10;

/// The lines that no agent has printed yet.
#[derive(Debug, Clone, Default)]
pub struct Lines(Arc<Queue>);

#[derive(Debug, Default)]
struct Queue {
    lines: Mutex<Kept>,
    changed: Notify,
}

#[derive(Debug, Default)]
struct Kept {
    lines: VecDeque<(Level, String)>,
    dropped: u64,
}

impl Lines {
    /// Waits for lines. Cancel-safe.
    pub(crate) async fn changed(&self) {
        if self.0.lines.lock().lines.is_empty() {
            self.0.changed.notified().await;
        }
    }

    /// Takes all lines.
    pub(crate) fn take(&self) -> Vec<(Level, String)> {
        let mut kept = self.0.lines.lock();
        let mut lines: Vec<_> = kept.lines.drain(..).collect();
        let dropped = std::mem::take(&mut kept.dropped);
        if dropped > 0 {
            let line = format!("{dropped} earlier lines of this log are lost");
            lines.insert(0, (Level::WARN, line));
        }
        lines
    }

    fn push(&self, level: Level, mut line: String) {
        if line.len() > LINE_LIMIT {
            line.truncate(line.floor_char_boundary(LINE_LIMIT));
        }
        let mut kept = self.0.lines.lock();
        if kept.lines.len() == LINES_LIMIT {
            kept.lines.pop_front();
            kept.dropped += 1;
        }
        kept.lines.push_back((level, line));
        drop(kept);
        self.0.changed.notify_one();
    }
}

/// Formats events as `message field=value …`.
impl<S: Subscriber> Layer<S> for Lines {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let mut text = Text::default();
        event.record(&mut text);
        let Text { message, fields } = text;
        self.push(*event.metadata().level(), message + &fields);
    }
}

#[derive(Default)]
struct Text {
    message: String,
    fields: String,
}

impl Visit for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        // Writing to a string cannot fail.
        let _ = if field.name() == "message" {
            write!(self.message, "{value:?}")
        } else {
            write!(self.fields, " {}={value:?}", field.name())
        };
    }
}

#[cfg(test)]
mod tests {
    use tracing_subscriber::layer::SubscriberExt;

    use super::*;

    #[test]
    fn the_latest_lines_are_kept_and_the_lost_ones_are_counted() {
        let lines = Lines::default();
        let subscriber = tracing_subscriber::registry().with(lines.clone());
        tracing::subscriber::with_default(subscriber, || {
            for n in 0..LINES_LIMIT + 2 {
                tracing::info!(n, "mounted");
            }
        });
        let taken = lines.take();
        assert_eq!(taken.len(), LINES_LIMIT + 1);
        assert_eq!(taken[0].1, "2 earlier lines of this log are lost");
        assert_eq!(taken[1], (Level::INFO, "mounted n=2".to_owned()));
        assert_eq!(lines.take(), []);
    }
}
