//! Access control of the metrics: the API server authenticates the client's token and authorizes `get` of `/metrics`.

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

/// How long a result of the API server is cached.
const CACHE_TTL: Duration = Duration::from_secs(60);

/// Deadline of the API server's response.
const DEADLINE: Duration = Duration::from_secs(5);

/// Maximum number of cached results.
const CACHE_LIMIT: usize = 64;

/// Whether a client may read the metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Access {
    Allowed,
    /// No token, or an invalid one.
    Unauthenticated,
    Forbidden,
    /// The API server did not respond.
    Unavailable,
}

/// The clients that may read the metrics.
pub(crate) enum Readers {
    /// All clients: the agent runs without Kubernetes.
    Anyone,
    Checked(Box<Checked>),
}

/// Cached results by the hash of the token.
type Cache = HashMap<[u8; 32], (Access, Instant)>;

/// Checks tokens with the API server.
pub(crate) struct Checked {
    client: kube::Client,
    cache: Mutex<Cache>,
}

impl Readers {
    pub(crate) fn new(client: Option<kube::Client>) -> Self {
        client.map_or(Self::Anyone, |client| {
            Self::Checked(Box::new(Checked {
                client,
                cache: Mutex::default(),
            }))
        })
    }

    /// Checks the token of a request.
    pub(crate) async fn check(&self, token: Option<&str>) -> Access {
        match (self, token) {
            (Self::Anyone, _) => Access::Allowed,
            (Self::Checked(_), None) => Access::Unauthenticated,
            (Self::Checked(checked), Some(token)) => checked.check(token).await,
        }
    }
}

impl Checked {
    async fn check(&self, token: &str) -> Access {
        let key: [u8; 32] = Sha256::digest(token.as_bytes()).into();
        let cached = self.lock().get(&key).copied();
        if let Some((access, at)) = cached
            && at.elapsed() < CACHE_TTL
        {
            return access;
        }
        let access = match tokio::time::timeout(DEADLINE, self.review(token)).await {
            Ok(Ok(access)) => access,
            Ok(Err(error)) => {
                tracing::warn!(%error, "cannot check the token of a metrics client");
                return Access::Unavailable;
            }
            Err(_) => return Access::Unavailable,
        };
        let mut cache = self.lock();
        cache.retain(|_, (_, at)| at.elapsed() < CACHE_TTL);
        if cache.len() < CACHE_LIMIT {
            cache.insert(key, (access, Instant::now()));
        }
        access
    }

    fn lock(&self) -> MutexGuard<'_, Cache> {
        self.cache.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn review(&self, token: &str) -> kube::Result<Access> {
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
            return Ok(Access::Unauthenticated);
        };
        let attributes = NonResourceAttributes {
            path: Some("/metrics".to_owned()),
            verb: Some("get".to_owned()),
        };
        let review = SubjectAccessReview {
            spec: SubjectAccessReviewSpec {
                user: user.username,
                uid: user.uid,
                groups: user.groups,
                extra: user.extra,
                non_resource_attributes: Some(attributes),
                resource_attributes: None,
            },
            ..SubjectAccessReview::default()
        };
        let reviews: Api<SubjectAccessReview> = Api::all(self.client.clone());
        let status = reviews.create(&params, &review).await?.status;
        Ok(if status.is_some_and(|status| status.allowed) {
            Access::Allowed
        } else {
            Access::Forbidden
        })
    }
}
