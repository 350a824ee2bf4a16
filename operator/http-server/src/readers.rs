//! Who may read metrics: the API server authenticates the token of a client, and authorizes `get` of `/metrics`.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use axum::http::header::{AUTHORIZATION, WWW_AUTHENTICATE};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use k8s_openapi::api::authentication::v1::{TokenReview, TokenReviewSpec, UserInfo};
use k8s_openapi::api::authorization::v1::{
    NonResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec,
};
use kube::api::PostParams;
use kube::{Api, Client};
use parking_lot::Mutex;
use sha2::{Digest, Sha256};

/// How long a decision of the API server is cached.
const CACHE_TTL: Duration = Duration::from_secs(60);

/// Deadline of the API server's response.
const DEADLINE: Duration = Duration::from_secs(5);

/// Most decisions that are cached, so that unknown clients cannot fill the memory.
const CACHE_LIMIT: usize = 128;

/// Whether a client may read the metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Access {
    Allowed,
    /// No token, or one that authenticates no user.
    Unauthenticated,
    Forbidden,
    /// The API server did not respond.
    Unavailable,
}

/// The clients that may read the metrics.
pub struct Readers {
    /// None: all clients, without Kubernetes.
    client: Option<Client>,
    /// By the hash of the token.
    cache: Mutex<HashMap<[u8; 32], (Access, Instant)>>,
}

impl Readers {
    /// Admits clients that the API server authorizes; all clients if there is no API server.
    #[must_use]
    pub fn new(client: Option<Client>) -> Self {
        Self {
            client,
            cache: Mutex::default(),
        }
    }

    /// Checks a request.
    ///
    /// # Errors
    /// The response for a client that may not read the metrics: 401, 403, or 503 if the API server does not respond. It has
    /// nothing of the metrics.
    pub async fn check(&self, headers: &HeaderMap) -> Result<(), Response> {
        let token = headers
            .get(AUTHORIZATION)
            .and_then(|value| value.to_str().ok())
            .and_then(|value| value.strip_prefix("Bearer "));
        match self.access(token).await {
            Access::Allowed => Ok(()),
            Access::Unauthenticated => {
                Err((StatusCode::UNAUTHORIZED, [(WWW_AUTHENTICATE, "Bearer")]).into_response())
            }
            Access::Forbidden => {
                let body = "the token's user is not allowed to get the non-resource URL /metrics\n";
                Err((StatusCode::FORBIDDEN, body).into_response())
            }
            Access::Unavailable => {
                let body = "the API server did not answer the token review; retry\n";
                Err((StatusCode::SERVICE_UNAVAILABLE, body).into_response())
            }
        }
    }

    async fn access(&self, token: Option<&str>) -> Access {
        let Some(client) = &self.client else {
            return Access::Allowed;
        };
        let Some(token) = token else {
            return Access::Unauthenticated;
        };
        let key: [u8; 32] = Sha256::digest(token.as_bytes()).into();
        let cached = self.cache.lock().get(&key).copied();
        if let Some((access, at)) = cached
            && at.elapsed() < CACHE_TTL
        {
            return access;
        }
        let access = match tokio::time::timeout(DEADLINE, review(client, token)).await {
            Ok(Ok(access)) => access,
            Ok(Err(error)) => {
                tracing::warn!(%error, "cannot check the token of a metrics client");
                return Access::Unavailable;
            }
            Err(_) => return Access::Unavailable,
        };
        let mut cache = self.cache.lock();
        if cache.len() >= CACHE_LIMIT {
            cache.retain(|_, (_, at)| at.elapsed() < CACHE_TTL);
        }
        if cache.len() < CACHE_LIMIT {
            cache.insert(key, (access, Instant::now()));
        }
        access
    }
}

async fn review(client: &Client, token: &str) -> kube::Result<Access> {
    let review = TokenReview {
        spec: TokenReviewSpec {
            token: Some(token.to_owned()),
            audiences: None,
        },
        ..TokenReview::default()
    };
    let reviews = Api::<TokenReview>::all(client.clone());
    let review = reviews.create(&PostParams::default(), &review).await?;
    let status = review.status.unwrap_or_default();
    let Some(user) = status.user.filter(|_| status.authenticated == Some(true)) else {
        return Ok(Access::Unauthenticated);
    };
    let reviews = Api::<SubjectAccessReview>::all(client.clone());
    let review = reviews
        .create(&PostParams::default(), &get_metrics(user))
        .await?;
    let allowed = review.status.is_some_and(|status| status.allowed);
    Ok(if allowed {
        Access::Allowed
    } else {
        Access::Forbidden
    })
}

/// The question whether a user may get /metrics.
fn get_metrics(user: UserInfo) -> SubjectAccessReview {
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
