//! A pool process judged without sockets or memory.

use super::*;
use crds::ByteSize;

const AGENT: ConnectionId = 1;

fn state() -> State {
    State::new(ServeArgs {
        cluster: "c".to_owned(),
        pool: "p".to_owned(),
        bytes: ByteSize(1 << 20),
        page_size: PageSize::Base,
        handshake_port: 12001,
        data_port: 12002,
        ready_port: 12003,
        metadata_secret: None,
        pod_uid: "uid".to_owned(),
        pod_name: "pod".to_owned(),
        pod_namespace: "ns".to_owned(),
        pod_ip: "198.18.0.1".to_owned(),
        node_name: "n1".to_owned(),
    })
}

fn attached() -> (State, Instant) {
    let mut state = state();
    let now = Instant::now();
    let effect = state.request(AGENT, Caller::Root, Request::Attach { protocol: 1 }, now);
    assert!(matches!(effect, Effect::Attach { closes: None, .. }));
    (state, now)
}

fn grant(extents: Vec<u64>) -> Request {
    Request::Grant {
        extents,
        page_bytes: 4096,
    }
}

fn is_refused(effect: &Effect, wanted: RefusalKind) -> bool {
    matches!(effect, Effect::Answer(Reply::Refused { kind, .. }) if *kind == wanted)
}

#[test]
fn all_versions_attach_and_the_oldest_one_gets_no_ledger() {
    for (protocol, ledger) in [(1, None), (2, Some(1 << 20)), (3, Some(1 << 20))] {
        let effect = state().request(
            AGENT,
            Caller::Root,
            Request::Attach { protocol },
            Instant::now(),
        );
        let Effect::Attach { attached, .. } = effect else {
            panic!("{effect:?}");
        };
        assert_eq!(attached.ledger, ledger);
        let text = serde_json::to_string(&attached).unwrap();
        assert_eq!(text.contains("ledger"), ledger.is_some(), "{text}");
    }
    for protocol in [0, 4] {
        let request = Request::Attach { protocol };
        let effect = state().request(AGENT, Caller::Root, request, Instant::now());
        assert!(is_refused(&effect, RefusalKind::Protocol));
    }
}

#[test]
fn the_ledger_is_handed_over_after_the_grant() {
    let (mut state, now) = attached();
    let early = state.request(AGENT, Caller::Root, Request::Ledger, now);
    assert!(is_refused(&early, RefusalKind::OutOfOrder));
    state.made(&[4096]);
    let effect = state.request(AGENT, Caller::Root, Request::Ledger, now);
    assert_eq!(effect, Effect::HandLedger);
}

#[test]
fn the_secret_is_read_for_the_attached_engine_process_only_and_a_pod_without_one_refuses() {
    let (mut state, now) = attached();
    let none = state.request(AGENT, Caller::Root, Request::Secret, now);
    assert!(is_refused(&none, RefusalKind::OutOfOrder));
    let folder = PathBuf::from("/run/secrets/etcd");
    state.settings.metadata_secret = Some(folder.clone());
    let effect = state.request(AGENT, Caller::Root, Request::Secret, now);
    assert_eq!(effect, Effect::ReadSecret(folder));
    for (from, caller) in [(9, Caller::Root), (9, Caller::Own)] {
        let effect = state.request(from, caller, Request::Secret, now);
        assert!(is_refused(&effect, RefusalKind::NotAllowed));
    }
}

#[test]
fn the_pools_own_user_may_only_read_the_status() {
    let mut state = state();
    let now = Instant::now();
    let status = state.request(9, Caller::Own, Request::Status, now);
    assert!(matches!(
        status,
        Effect::Answer(Reply::Status(Status { ready: false, .. }))
    ));
    for request in [
        Request::Attach { protocol: 1 },
        Request::Listeners,
        Request::Drained,
        grant(vec![4096]),
    ] {
        let effect = state.request(9, Caller::Own, request, now);
        assert!(is_refused(&effect, RefusalKind::NotAllowed));
    }
}

#[test]
fn the_newest_agent_wins_and_the_older_one_is_rejected() {
    let (mut state, now) = attached();
    let effect = state.request(2, Caller::Root, Request::Attach { protocol: 1 }, now);
    assert!(matches!(
        effect,
        Effect::Attach {
            closes: Some(AGENT),
            ..
        }
    ));
    let late = state.request(AGENT, Caller::Root, Request::Listeners, now);
    assert!(is_refused(&late, RefusalKind::NotAllowed));
    state.closed(AGENT);
    assert_eq!(state.agent(), Some(2));
}

#[test]
fn an_agent_of_another_protocol_is_rejected_with_both_versions() {
    let mut state = state();
    let effect = state.request(
        1,
        Caller::Root,
        Request::Attach {
            protocol: PROTOCOL + 1,
        },
        Instant::now(),
    );
    assert!(is_refused(&effect, RefusalKind::Protocol));
}

#[test]
fn a_grant_is_taken_once_and_only_within_the_pods_settings() {
    let (mut state, now) = attached();
    let beyond = [
        vec![],
        vec![0],
        vec![2 << 20],
        vec![u64::MAX, u64::MAX],
        vec![1; EXTENT_LIMIT + 1],
    ];
    for lengths in beyond {
        let effect = state.request(AGENT, Caller::Root, grant(lengths), now);
        assert!(is_refused(&effect, RefusalKind::OutOfBounds));
    }
    let huge = Request::Grant {
        extents: vec![4096],
        page_bytes: 2 << 20,
    };
    let effect = state.request(AGENT, Caller::Root, huge, now);
    assert!(is_refused(&effect, RefusalKind::OutOfBounds));
    let lengths = vec![512 << 10, 512 << 10];
    let effect = state.request(AGENT, Caller::Root, grant(lengths.clone()), now);
    assert_eq!(effect, Effect::Make(lengths.clone()));
    state.made(&lengths);
    let again = state.request(AGENT, Caller::Root, grant(vec![4096]), now);
    assert!(is_refused(&again, RefusalKind::OutOfOrder));
}

#[test]
fn one_extent_is_touched_at_a_time() {
    let (mut state, now) = attached();
    state.made(&[4096, 4096]);
    let touch = |state: &mut State, index| {
        state.request(AGENT, Caller::Root, Request::Touch { index }, now)
    };
    assert_eq!(touch(&mut state, 0), Effect::Touch(0));
    assert_eq!(touch(&mut state, 0), Effect::Answer(Reply::Done));
    assert!(is_refused(&touch(&mut state, 1), RefusalKind::OutOfOrder));
    state.touched(0, 4096, false);
    assert_eq!(touch(&mut state, 1), Effect::Touch(1));
    assert!(is_refused(&touch(&mut state, 2), RefusalKind::OutOfBounds));
}

#[test]
fn ready_needs_serving_and_an_agent_with_a_recent_request() {
    let (mut state, now) = attached();
    let serving = Request::SetServing {
        serving: true,
        reason: "serving".to_owned(),
    };
    state.request(AGENT, Caller::Root, serving, now);
    assert!(state.status(now).ready);
    state.closed(AGENT);
    assert!(state.status(now + AGENT_SILENCE).ready);
    let late = state.status(now + AGENT_SILENCE + Duration::from_secs(1));
    assert!(!late.ready && late.reason.contains("n1 is silent"));
}

#[test]
fn the_record_is_bounded_and_survives_agents() {
    let (mut state, now) = attached();
    let put = |record: String| Request::PutRecord { record };
    let effect = state.request(AGENT, Caller::Root, put("x".repeat(RECORD_LIMIT + 1)), now);
    assert!(is_refused(&effect, RefusalKind::OutOfBounds));
    state.request(AGENT, Caller::Root, put("kept".to_owned()), now);
    state.closed(AGENT);
    state.request(2, Caller::Root, Request::Attach { protocol: 1 }, now);
    let effect = state.request(2, Caller::Root, Request::GetRecord, now);
    let record = Some("kept".to_owned());
    assert_eq!(effect, Effect::Answer(Reply::Record { record }));
}

#[test]
fn a_terminating_pool_waits_for_its_agent_but_not_for_a_missing_one() {
    let mut fresh = state();
    assert!(fresh.end(Instant::now()), "nothing was granted");
    let (mut state, now) = attached();
    state.made(&[4096]);
    let early = state.request(AGENT, Caller::Root, Request::Drained, now);
    assert!(is_refused(&early, RefusalKind::OutOfOrder));
    assert!(!state.end(now));
    assert!(!state.abandoned(now + DRAIN_SILENCE));
    assert!(state.abandoned(now + DRAIN_SILENCE + Duration::from_secs(1)));
    let effect = state.request(AGENT, Caller::Root, Request::Drained, now);
    assert_eq!(effect, Effect::End);
}
