//! What happens to the rest of a reconcile when one write is refused: it goes on, and the refusal is reported at its end.

use crds::Reason;

use crate::apply::Error;

/// The first write of a reconcile that no retry repairs. Nodes are drained, pods start and the status is written in spite of it.
#[derive(Debug, Default)]
pub struct Refused(Option<Error>);

impl Refused {
    /// The result of a write; `None` if it is refused.
    ///
    /// # Errors
    /// Any other failure: it ends the reconcile, and a retry soon succeeds.
    pub fn pass<T>(&mut self, outcome: Result<T, Error>) -> Result<Option<T>, Error> {
        match outcome {
            Ok(done) => Ok(Some(done)),
            Err(error) if error.is_permanent() => {
                tracing::warn!(%error, "a write is refused; the rest of the reconcile goes on");
                self.0.get_or_insert(error);
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// Cause and message for the status.
    pub fn finding(&self) -> Option<(Reason, String)> {
        let error = self.0.as_ref()?;
        Some((error.reason(), error.to_string()))
    }

    /// True if a write was refused.
    pub fn is_any(&self) -> bool {
        self.0.is_some()
    }

    pub fn into_first(self) -> Option<Error> {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_refusal_is_reported_and_a_transient_failure_ends_the_reconcile() {
        let foreign = |name: &str| Error::NotOurs {
            object: name.to_owned(),
            owner: "no owner".to_owned(),
        };
        let silent = Error::Silent {
            verb: "apply",
            object: "c".to_owned(),
        };
        let mut refused = Refused::default();
        assert!(matches!(refused.pass(Ok(7)), Ok(Some(7))));
        assert!(!refused.is_any());
        assert!(matches!(refused.pass::<()>(Err(foreign("a"))), Ok(None)));
        assert!(matches!(refused.pass::<()>(Err(foreign("b"))), Ok(None)));
        assert!(refused.pass::<()>(Err(silent)).is_err());
        let (reason, message) = refused.finding().unwrap();
        assert_eq!(reason, Reason::InvalidSpec);
        assert!(message.starts_with("a exists"), "{message}");
    }
}
