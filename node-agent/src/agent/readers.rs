//! Who may read the metrics: whoever the API server knows and allows to get `/metrics`.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use k8s_openapi::api::authentication::v1::{TokenReview, TokenReviewSpec};
use k8s_openapi::api::authorization::v1::{
    NonResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec,
};
use kube::Api;
use kube::api::PostParams;
use sha2::{Digest, Sha256};

/// How long an answer of the API server holds, and with the API away the last yes.
const HOLDS: Duration = Duration::from_secs(60);

/// How long the API server may take.
const ANSWER_DEADLINE: Duration = Duration::from_secs(5);

/// Tokens remembered at a time.
const REMEMBERED: usize = 64;

/// What a reader's token is worth.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Worth {
    Allowed,
    /// No token, or nobody's.
    Unknown,
    Forbidden,
    /// The API server gave no answer.
    Unheard,
}

/// Judges tokens.
pub(crate) enum Readers {
    /// There is no Kubernetes to ask: the agent was started by hand.
    Anyone,
    Checked(Box<Checked>),
}

/// Answers by the hash of the token.
type Known = HashMap<[u8; 32], (Worth, Instant)>;

/// Asks the API server.
pub(crate) struct Checked {
    client: kube::Client,
    known: Mutex<Known>,
}

impl Readers {
    pub(crate) fn new(client: Option<kube::Client>) -> Self {
        client.map_or(Self::Anyone, |client| {
            Self::Checked(Box::new(Checked {
                client,
                known: Mutex::default(),
            }))
        })
    }

    /// What the bearer of this token may do.
    pub(crate) async fn judge(&self, token: Option<&str>) -> Worth {
        match (self, token) {
            (Self::Anyone, _) => Worth::Allowed,
            (Self::Checked(_), None) => Worth::Unknown,
            (Self::Checked(checked), Some(token)) => checked.judge(token).await,
        }
    }
}

impl Checked {
    async fn judge(&self, token: &str) -> Worth {
        let name: [u8; 32] = Sha256::digest(token.as_bytes()).into();
        let known = self.lock().get(&name).copied();
        if let Some((worth, at)) = known
            && at.elapsed() < HOLDS
        {
            return worth;
        }
        let worth = match tokio::time::timeout(ANSWER_DEADLINE, self.ask(token)).await {
            Ok(Ok(worth)) => worth,
            Ok(Err(error)) => {
                tracing::warn!(%error, "a reader of the metrics could not be checked");
                return Worth::Unheard;
            }
            Err(_) => return Worth::Unheard,
        };
        let mut known = self.lock();
        known.retain(|_, (_, at)| at.elapsed() < HOLDS);
        if known.len() < REMEMBERED {
            known.insert(name, (worth, Instant::now()));
        }
        worth
    }

    fn lock(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn ask(&self, token: &str) -> kube::Result<Worth> {
        let params = PostParams::default();
        let review = TokenReview {
            spec: TokenReviewSpec {
                token: Some(token.to_owned()),
                audiences: None,
            },
            ..TokenReview::default()
        };
        let reviews: Api<TokenReview> = Api::all(self.client.clone());
        let status = reviews
            .create(&params, &review)
            .await?
            .status
            .unwrap_or_default();
        let Some(user) = status.user.filter(|_| status.authenticated == Some(true)) else {
            return Ok(Worth::Unknown);
        };
        let wish = NonResourceAttributes {
            path: Some("/metrics".to_owned()),
            verb: Some("get".to_owned()),
        };
        let review = SubjectAccessReview {
            spec: SubjectAccessReviewSpec {
                user: user.username,
                uid: user.uid,
                groups: user.groups,
                extra: user.extra,
                non_resource_attributes: Some(wish),
                resource_attributes: None,
            },
            ..SubjectAccessReview::default()
        };
        let reviews: Api<SubjectAccessReview> = Api::all(self.client.clone());
        let status = reviews.create(&params, &review).await?.status;
        Ok(if status.is_some_and(|status| status.allowed) {
            Worth::Allowed
        } else {
            Worth::Forbidden
        })
    }
}
