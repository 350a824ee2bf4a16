//! Random sequences of calls to the master of the wheel and to ours: the answers are equal, field by field. Requires
//! root. `MASTER_CALLS` sets the number of calls (default 20,000) and `MASTER_SEED` the first seed.
#![allow(clippy::unwrap_used, reason = "a failed set-up ends the test")]

#[path = "differential/calls.rs"]
mod calls;
#[path = "fixture/client.rs"]
mod client;
#[path = "differential/compared.rs"]
mod compared;
#[path = "fixture/http.rs"]
mod http;
#[path = "differential/named.rs"]
mod named;
#[path = "fixture/namespace.rs"]
mod namespace;
#[path = "differential/timed.rs"]
mod timed;

use calls::{Generator, QUOTAS};
use compared::{ALLOWED, ALLOWED_OF_TENANTS, REACHABLE, REACHABLE_OF_TENANTS, Seen};
use namespace::{Host, OUR_HTTP, OURS, STOCK, STOCK_HTTP};
use proto::store::ErrorCode;
use serde_json::Value;

/// Nothing may happen by time alone, or the masters would have to read their clocks at the same instant.
const FLAGS: [&str; 6] = [
    "--default_kv_lease_ttl=1h",
    "--client_ttl=36000",
    "--put_start_discard_timeout_sec=36000",
    "--put_start_release_timeout_sec=72000",
    "--eviction_ratio=0",
    "--eviction_high_watermark_ratio=1.0",
];

/// Calls between two restarts of the masters.
const ROUND: u64 = 20_000;

fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| text.parse().unwrap())
}

#[tokio::test]
async fn random_calls_have_the_answers_of_the_stock_master() {
    let (calls, first_seed) = (setting("MASTER_CALLS", 20_000), setting("MASTER_SEED", 1));
    let mut seen = Seen::default();
    let mut done = 0;
    while done < calls {
        let seed = first_seed + done / ROUND;
        let host = Host::new().await;
        let _stock = host.stock(&FLAGS).await;
        let _ours = host.ours(&FLAGS).await;
        let (mut stock, mut ours) = (host.client(STOCK).await, host.client(OURS).await);
        let mut generator = Generator::new(seed);
        for number in 0..ROUND.min(calls - done) {
            let compared = generator.next(&mut stock, &mut ours).await;
            seen.add(seed, number, compared);
        }
        done += ROUND;
    }
    report(&seen, calls, ALLOWED, REACHABLE);
}

fn report(seen: &Seen, calls: u64, allowed: &[(&str, &str)], reachable: &[ErrorCode]) {
    seen.report(calls);
    println!("allowed differences:");
    for (what, reason) in allowed {
        println!("  {what}: {reason}");
    }
    // Each code that these calls can cause at all has occurred.
    let least = (calls / 10_000).clamp(1, 100);
    let rare: Vec<_> = reachable
        .iter()
        .filter(|code| seen.count(**code) < least)
        .collect();
    assert!(rare.is_empty(), "fewer than {least} times: {rare:?}");
}

/// Calls after which quotas and charges are compared.
const LOOK: u64 = 20;

#[tokio::test]
async fn random_calls_of_tenants_have_the_answers_of_the_stock_master() {
    let (calls, first_seed) = (setting("MASTER_CALLS", 20_000), setting("MASTER_SEED", 1));
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("quotas");
    std::fs::write(&file, QUOTAS).unwrap();
    let quotas = format!("--tenant_quota_connector_uri={}", file.display());
    let mut flags = FLAGS.to_vec();
    flags.extend(["--enable_multi_tenants", &quotas]);
    let mut seen = Seen::default();
    let mut done = 0;
    while done < calls {
        let seed = first_seed + done / ROUND;
        let host = Host::new().await;
        let _stock = host.stock(&flags).await;
        let _ours = host.ours(&flags).await;
        let (mut stock, mut ours) = (host.client(STOCK).await, host.client(OURS).await);
        let mut generator = Generator::with_tenants(seed);
        for number in 0..ROUND.min(calls - done) {
            let compared = generator.next(&mut stock, &mut ours).await;
            let call = compared.call.clone();
            seen.add(seed, number, compared);
            if number % LOOK == 0 {
                let of = async |address| {
                    let path = "/api/v1/tenant_quotas";
                    let (status, body) = http::http(&host, address, "GET", path).await;
                    assert_eq!(status, 200);
                    serde_json::from_str::<Value>(&body).unwrap()
                };
                let (stock, ours) = (of(STOCK_HTTP).await, of(OUR_HTTP).await);
                if ours != stock {
                    seen.print_recent();
                }
                assert_eq!(ours, stock, "seed {seed}, after call {number}: {call}");
            }
        }
        done += ROUND;
    }
    report(&seen, calls, ALLOWED_OF_TENANTS, REACHABLE_OF_TENANTS);
}
