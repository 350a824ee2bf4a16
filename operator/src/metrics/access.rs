//! Who may read the metrics: the API server decides, and its answers are kept for a short while.

use std::collections::HashMap;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use k8s_openapi::api::authentication::v1::{TokenReview, TokenReviewSpec, UserInfo};
use k8s_openapi::api::authorization::v1::{
    NonResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec,
};
use kube::api::PostParams;
use kube::{Api, Client};

use crate::apply::fingerprint;

/// How long an answer of the API server is believed.
const BELIEVED: Duration = Duration::from_secs(60);
/// Longest time for one question.
const LIMIT: Duration = Duration::from_secs(5);
/// Tokens that are remembered at a time; strangers cannot make it more.
const REMEMBERED: usize = 128;

/// What a token is good for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Allowed,
    /// Nobody's token.
    Unknown,
    Forbidden,
    /// The API server gave no answer.
    Unheard,
}

pub(super) struct Access {
    client: Client,
    answers: Mutex<HashMap<String, (Verdict, Instant)>>,
}

impl Access {
    pub(super) fn new(client: Client) -> Self {
        Self {
            client,
            answers: Mutex::default(),
        }
    }

    pub(super) async fn check(&self, token: &str) -> Verdict {
        let key = fingerprint(&token);
        if let Some((verdict, at)) = self.lock().get(&key).copied()
            && at.elapsed() < BELIEVED
        {
            return verdict;
        }
        let asked = tokio::time::timeout(LIMIT, self.ask(token)).await;
        let verdict = match asked {
            Ok(Ok(verdict)) => verdict,
            Ok(Err(error)) => {
                tracing::warn!(%error, "a reader of the metrics could not be checked");
                return Verdict::Unheard;
            }
            Err(_) => return Verdict::Unheard,
        };
        let mut answers = self.lock();
        if answers.len() >= REMEMBERED {
            answers.retain(|_, (_, at)| at.elapsed() < BELIEVED);
        }
        if answers.len() < REMEMBERED {
            answers.insert(key, (verdict, Instant::now()));
        }
        verdict
    }

    async fn ask(&self, token: &str) -> kube::Result<Verdict> {
        let review = TokenReview {
            spec: TokenReviewSpec {
                token: Some(token.to_owned()),
                audiences: None,
            },
            ..TokenReview::default()
        };
        let reviews = Api::<TokenReview>::all(self.client.clone());
        let review = reviews.create(&PostParams::default(), &review).await?;
        let status = review.status.unwrap_or_default();
        let Some(user) = status.user.filter(|_| status.authenticated == Some(true)) else {
            return Ok(Verdict::Unknown);
        };
        let reviews = Api::<SubjectAccessReview>::all(self.client.clone());
        let review = reviews
            .create(&PostParams::default(), &may_read(user))
            .await?;
        let allowed = review.status.is_some_and(|status| status.allowed);
        Ok(if allowed {
            Verdict::Allowed
        } else {
            Verdict::Forbidden
        })
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<String, (Verdict, Instant)>> {
        self.answers
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

fn may_read(user: UserInfo) -> SubjectAccessReview {
    let UserInfo {
        extra,
        groups,
        uid,
        username,
    } = user;
    SubjectAccessReview {
        spec: SubjectAccessReviewSpec {
            extra,
            groups,
            uid,
            user: username,
            non_resource_attributes: Some(NonResourceAttributes {
                path: Some("/metrics".to_owned()),
                verb: Some("get".to_owned()),
            }),
            resource_attributes: None,
        },
        ..SubjectAccessReview::default()
    }
}
