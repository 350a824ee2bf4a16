//! Decides who may read the metrics, by TokenReview and SubjectAccessReview of the API server. Results are cached for a
//! short time.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use k8s_openapi::api::authentication::v1::{TokenReview, TokenReviewSpec, UserInfo};
use k8s_openapi::api::authorization::v1::{
    NonResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec,
};
use kube::api::PostParams;
use kube::{Api, Client};
use parking_lot::Mutex;

use crate::apply::fingerprint;

/// How long an answer of the API server is cached.
const CACHED_FOR: Duration = Duration::from_secs(60);
/// Deadline of one review.
const LIMIT: Duration = Duration::from_secs(5);
/// Most tokens that are cached, so that unknown clients cannot fill the memory.
const CACHED_TOKENS: usize = 128;

/// Whether a token may read the metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AccessDecision {
    Allowed,
    /// The token authenticates no user.
    Unknown,
    Forbidden,
    /// The API server did not answer.
    Unavailable,
}

pub(super) struct Access {
    client: Client,
    answers: Mutex<HashMap<String, (AccessDecision, Instant)>>,
}

impl Access {
    pub(super) fn new(client: Client) -> Self {
        Self {
            client,
            answers: Mutex::default(),
        }
    }

    pub(super) async fn check(&self, token: &str) -> AccessDecision {
        let key = fingerprint(&token);
        if let Some((decision, at)) = self.answers.lock().get(&key).copied()
            && at.elapsed() < CACHED_FOR
        {
            return decision;
        }
        let answer = tokio::time::timeout(LIMIT, self.review(token)).await;
        let decision = match answer {
            Ok(Ok(decision)) => decision,
            Ok(Err(error)) => {
                tracing::warn!(%error, "a reader of the metrics could not be checked");
                return AccessDecision::Unavailable;
            }
            Err(_) => return AccessDecision::Unavailable,
        };
        let mut answers = self.answers.lock();
        if answers.len() >= CACHED_TOKENS {
            answers.retain(|_, (_, at)| at.elapsed() < CACHED_FOR);
        }
        if answers.len() < CACHED_TOKENS {
            answers.insert(key, (decision, Instant::now()));
        }
        decision
    }

    async fn review(&self, token: &str) -> kube::Result<AccessDecision> {
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
            return Ok(AccessDecision::Unknown);
        };
        let reviews = Api::<SubjectAccessReview>::all(self.client.clone());
        let review = reviews
            .create(&PostParams::default(), &may_read(user))
            .await?;
        let allowed = review.status.is_some_and(|status| status.allowed);
        Ok(if allowed {
            AccessDecision::Allowed
        } else {
            AccessDecision::Forbidden
        })
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
