//! The quotas of tenants, as the stock master shows them. They are changed in the file that has them, never here.

use std::collections::HashMap;
use std::sync::Arc;

use axum::extract::{Query, State};
use axum::http::header::ALLOW;
use axum::http::{HeaderValue, StatusCode};
use axum::response::Response;
use proto::store::ErrorCode;
use serde_json::{Value, json};

use super::{body, failure};
use crate::index::{TenantDetail, is_tenant_name};
use crate::server::Master;

type Named = Query<HashMap<String, String>>;

fn value(tenant: &TenantDetail) -> Value {
    json!({
        "tenant_id": tenant.name,
        "requested_quota_bytes": tenant.requested,
        "effective_quota_bytes": tenant.effective,
        "charged_bytes": tenant.charged,
        "admission_closed": !tenant.registered,
        "over_quota": tenant.charged > tenant.effective,
        "has_explicit_policy": tenant.registered,
    })
}

fn no_tenants() -> Response {
    failure(StatusCode::CONFLICT, ErrorCode::UnavailableInCurrentMode)
}

/// The quotas of all tenants, or of one.
pub(super) async fn quotas(State(master): State<Arc<Master>>, Query(query): Named) -> Response {
    let Some(tenants) = master.with_index(|index, _| index.tenants()) else {
        return no_tenants();
    };
    let wanted = query.get("tenant_id").map_or("", String::as_str);
    let data = if wanted.is_empty() {
        tenants.list.iter().map(value).collect()
    } else if !is_tenant_name(wanted) {
        let code = ErrorCode::InvalidParams.code();
        let refused =
            json!({"success": false, "error_code": code, "error_message": "Invalid tenant_id"});
        return body(StatusCode::BAD_REQUEST, &refused);
    } else if let Some(tenant) = tenants.list.iter().find(|tenant| tenant.name == wanted) {
        value(tenant)
    } else {
        return failure(StatusCode::NOT_FOUND, ErrorCode::ObjectNotFound);
    };
    body(StatusCode::OK, &json!({"success": true, "data": data}))
}

/// Refuses a change.
pub(super) async fn refuse(State(master): State<Arc<Master>>) -> Response {
    if master.with_index(|index, _| index.tenants()).is_none() {
        return no_tenants();
    }
    let refused = json!({
        "success": false,
        "error_code": ErrorCode::UnavailableInCurrentMode.code(),
        "error_message": "quotas are changed in the file of --tenant_quota_connector_uri, which is read again",
    });
    let mut response = body(StatusCode::METHOD_NOT_ALLOWED, &refused);
    response
        .headers_mut()
        .insert(ALLOW, HeaderValue::from_static("GET"));
    response
}
