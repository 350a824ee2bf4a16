//! What RDMA alone has: keys that the peer's device checks, and the rendezvous in its passive role.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::Instant;

use proto::frame::Op;
use proto::rdma::Rendezvous;
use proto::scheduler::Effect;

use super::beds::rdma::{Control, SERVED, bed_of, calls, is_real, with_device};
use super::{BASE, Event, LENGTH, LinkError, PATIENCE, PeerAddress};

const PEER: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

macro_rules! test {
    ($name:ident, $body:block) => {
        #[test]
        fn $name() {
            with_device(concat!(module_path!(), "::", stringify!($name)), || $body);
        }
    };
}

/// How both ends of a connection address each other, by the invented library.
fn addressed() -> Vec<String> {
    let mut bed = bed_of(&Control::new());
    bed.open();
    let made = std::fs::read_to_string(calls().join("path")).unwrap();
    made.lines().map(str::to_owned).collect()
}

test!(
    both_ends_of_a_roce_connection_send_with_the_class_of_their_ports,
    {
        if is_real() {
            return;
        }
        let ends = addressed();
        assert_eq!(ends, ["global 1 dgid 7 sgid 1 class 106 dlid 0 sl 3"; 4]);
    }
);

test!(
    both_ends_of_an_infiniband_connection_have_the_gid_of_the_other,
    {
        if is_real() {
            return;
        }
        let ends = addressed();
        assert_eq!(ends, ["global 1 dgid 7 sgid 1 class 106 dlid 7 sl 3"; 4]);
    }
);

test!(
    the_device_of_the_peer_rejects_the_key_of_an_earlier_epoch,
    {
        let control = Control::new();
        let mut bed = bed_of(&control);
        let stale = control.peer();
        bed.peer = Box::new(move || PeerAddress::Rdma(Arc::new(stale.clone())));
        bed.initiator.fill(1);
        for (op, length, effect) in [
            (Op::Read, LENGTH, Effect::None),
            (Op::Write, 100, Effect::None),
            // Another time its first packets may have arrived.
            (Op::Write, LENGTH, Effect::Unknown),
        ] {
            let (link, _) = bed.open();
            if control.far[0].key(SERVED, BASE).is_some() {
                bed.withdraw_at_target();
                // The same bytes, under another base and key.
                bed.target.serve(2 * BASE);
            }
            let before = bed.target.fill(2);
            let request = bed.request(op, BASE, 0, length);
            assert_eq!(bed.initiator.transport.post(link, &[request]), 1);
            let failure = bed.ended(link);
            assert!(matches!(failure.cause, LinkError::Rejected), "{failure:?}");
            assert_eq!(failure.effect, effect);
            assert!(bed.target.bytes() == before);
        }
    }
);

test!(
    a_write_of_which_the_first_packets_have_arrived_has_an_unknown_effect,
    {
        if is_real() {
            // It carries the write out before the key ends.
            return;
        }
        for (length, effect) in [(LENGTH, Effect::Unknown), (1024, Effect::None)] {
            let mut bed = bed_of(&Control::new());
            bed.initiator.fill(1);
            let before = bed.target.fill(2);
            let (link, _) = bed.open();
            let write = bed.request(Op::Write, BASE, 0, length);
            assert_eq!(bed.initiator.transport.post(link, &[write]), 1);
            bed.initiator.transport.flush();
            let target = &mut bed.target;
            let (endpoint, region) = (target.endpoint, target.region);
            target.transport.withdraw(endpoint, region, false);
            let end = Instant::now() + PATIENCE;
            while target.events.is_empty() {
                assert!(Instant::now() < end, "no answer to a withdrawal");
                target.turn();
            }
            let failure = bed.ended(link);
            assert!(matches!(failure.cause, LinkError::Rejected), "{failure:?}");
            assert_eq!(failure.effect, effect);
            let changed = bed.target.bytes() != before;
            assert_eq!(changed, effect == Effect::Unknown);
        }
    }
);

test!(
    requests_beside_one_to_an_unknown_range_are_returned_before_their_link_ends,
    {
        let mut bed = bed_of(&Control::new());
        let source = bed.initiator.fill(1);
        let (link, _) = bed.open();
        let requests = [1, BASE, BASE + LENGTH].map(|at| bed.request(Op::Write, at, 0, LENGTH));
        assert_eq!(bed.initiator.transport.post(link, &requests), 3);
        let returned = bed.until(|event| match event {
            Event::Returned(id, piece) if *id == link => Some(*piece),
            Event::Down(..) => panic!("{event:?}"),
            _ => None,
        });
        assert_eq!(returned, requests[1].piece);
        let others = |event: &Event| matches!(event, Event::Returned(..));
        assert!(!bed.initiator.events.iter().any(others));
        let failure = bed.ended(link);
        assert!(matches!(failure.cause, LinkError::Rejected), "{failure:?}");
        assert_eq!(failure.effect, Effect::None);
        let next = bed.open();
        bed.carry_out(next, &requests[1..2]);
        assert!(bed.target.bytes() == source);
    }
);

test!(links_of_two_data_threads_do_not_replace_each_other, {
    let control = Control::new();
    let mut bed = bed_of(&control);
    let mut other = control.other_thread();
    let sources = [bed.initiator.fill(1), other.fill(2)];
    let mut opened = Vec::new();
    for _ in 0..2 {
        opened.push(bed.open());
        std::mem::swap(&mut bed.initiator, &mut other);
    }
    for (link, source) in opened.into_iter().zip(sources) {
        let write = bed.request(Op::Write, BASE, 0, LENGTH);
        bed.carry_out(link, &[write]);
        assert!(bed.target.bytes() == source);
        std::mem::swap(&mut bed.initiator, &mut other);
    }
});

test!(
    peers_reach_a_region_over_each_device_until_it_is_withdrawn,
    {
        for near in 0..2 {
            let control = Control::from_device(near);
            let mut bed = bed_of(&control);
            let keys = control.far.each_ref().map(|card| card.key(SERVED, BASE));
            assert!(keys[0] != keys[1] && keys.iter().all(Option::is_some));
            bed.initiator.fill(1);
            let opened = bed.open();
            let request = bed.request(Op::Write, BASE, 0, LENGTH);
            bed.carry_out(opened, &[request]);
            bed.withdraw_at_target();
            let keys = control.far.each_ref().map(|card| card.key(SERVED, BASE));
            assert_eq!(keys, [None, None]);
        }
    }
);

test!(a_withheld_device_is_not_published_unless_all_are, {
    let cards = &Control::new().far_cards;
    let published = |withheld: &[&str]| {
        cards.withhold(withheld.iter().map(|name| (*name).to_owned()).collect());
        let published = cards.published(&[]);
        published
            .iter()
            .map(|card| card.device().to_owned())
            .collect::<Vec<_>>()
    };
    let all = published(&[]);
    assert_eq!(all.len(), 2);
    assert_eq!(published(&[&all[0]]), all[1..]);
    assert_eq!(published(&[&all[0], &all[1]]), all);
    assert_eq!(published(&[]), all);
    assert!(cards.published(&[(SERVED, BASE)]).is_empty());
});

/// A request of a peer with these queue pairs; nothing is sent over them.
fn request(path: &str, qp_num: &[u32]) -> Rendezvous {
    Rendezvous {
        local_nic_path: path.to_owned(),
        qp_num: qp_num.to_vec(),
        ready_ack: Some(false),
        ..Rendezvous::default()
    }
}

/// Completes a request for the served endpoint, with the GID of its own port.
fn answered(control: &Control, request: Rendezvous) -> Rendezvous {
    answered_to(PEER, control, request)
}

/// The same from another address.
fn answered_to(from: IpAddr, control: &Control, request: Rendezvous) -> Rendezvous {
    let device = control.far[0].published();
    let request = Rendezvous {
        local_gid: match request.local_gid.as_str() {
            "" => device.gid,
            gid => gid.to_owned(),
        },
        peer_nic_path: match request.peer_nic_path.as_str() {
            "" => format!("target@{}", device.name),
            path => path.to_owned(),
        },
        ..request
    };
    control
        .runtime
        .block_on(control.served.answer(from, request))
}

test!(
    a_repeated_request_gets_the_same_queue_pairs_and_another_one_replaces_them,
    {
        let control = Control::new();
        let first = answered(&control, request("peer@r0", &[100, 101]));
        assert_eq!(first.reply_msg, "");
        assert_eq!(first.qp_num.len(), 2);
        assert_eq!(first.peer_nic_path, "peer@r0");
        assert_eq!(first.ready_ack, Some(false));
        let again = answered(&control, request("peer@r0", &[100, 101]));
        assert_eq!(again.qp_num, first.qp_num);
        let acknowledgement = |numbers: &[u32]| Rendezvous {
            ready_ack: Some(true),
            ..request("peer@r0", numbers)
        };
        let confirmed = answered(&control, acknowledgement(&[100, 101]));
        assert_eq!(confirmed, Rendezvous::default());

        let other = answered(&control, request("other@r0", &[100, 101]));
        assert_ne!(other.qp_num, first.qp_num);
        let restarted = answered(&control, request("peer@r0", &[200, 201, 202]));
        assert_eq!(
            (restarted.reply_msg.as_str(), restarted.qp_num.len()),
            ("", 3)
        );
        let stale = answered(&control, acknowledgement(&[100, 101]));
        assert!(
            stale.reply_msg.contains("[100, 101] of peer@r0"),
            "{stale:?}"
        );
    }
);

test!(
    a_peer_does_not_replace_or_learn_the_connection_of_another_address,
    {
        let control = Control::new();
        let first = answered(&control, request("peer@r0", &[100, 101]));
        let stranger = IpAddr::V4(Ipv4Addr::new(127, 0, 0, 2));
        for numbers in [[100, 101], [200, 201]] {
            let reply = answered_to(stranger, &control, request("peer@r0", &numbers));
            assert!(reply.reply_msg.contains("from 127.0.0.2"), "{reply:?}");
            assert!(reply.qp_num.is_empty(), "{reply:?}");
        }
        let again = answered(&control, request("peer@r0", &[100, 101]));
        assert_eq!(again.qp_num, first.qp_num);
    }
);

test!(
    a_peer_gets_a_connection_for_the_path_with_its_address_whoever_has_it,
    {
        let control = Control::new();
        let stranger = IpAddr::V4(Ipv4Addr::new(127, 0, 0, 2));
        let path = "127.0.0.1:15000@r0#0";
        let taken = answered_to(stranger, &control, request(path, &[100, 101]));
        assert_eq!(taken.reply_msg, "");
        let acknowledgement = Rendezvous {
            ready_ack: Some(true),
            ..request(path, &[100, 101])
        };
        let reply = answered(&control, acknowledgement.clone());
        assert!(reply.reply_msg.contains("no connection"), "{reply:?}");
        // Also with the same numbers it gets queue pairs of its own.
        let owned = answered(&control, request(path, &[100, 101]));
        assert_eq!(owned.reply_msg, "");
        assert_ne!(owned.qp_num, taken.qp_num);
        assert_eq!(answered(&control, acknowledgement).reply_msg, "");
        let again = answered_to(stranger, &control, request(path, &[200, 201]));
        assert!(again.reply_msg.contains("from 127.0.0.2"), "{again:?}");
    }
);

test!(
    another_connection_of_an_address_with_the_most_ends_its_oldest_one,
    {
        let control = Control::new();
        let connect = |path: &str| answered(&control, request(path, &[100]));
        let is_there = |path: &str| {
            let acknowledgement = Rendezvous {
                ready_ack: Some(true),
                ..request(path, &[100])
            };
            answered(&control, acknowledgement).reply_msg.is_empty()
        };
        let stranger = IpAddr::V4(Ipv4Addr::new(127, 0, 0, 2));
        let other = answered_to(stranger, &control, request("other@r0", &[100]));
        assert_eq!(other.reply_msg, "");
        // Engines that have ended left these behind, each with a port of its own.
        for number in 0..255 {
            assert_eq!(connect(&format!("peer:{number}@r0")).reply_msg, "");
        }
        assert_eq!(connect("new:1@r0").reply_msg, "");
        assert!(is_there("peer:0@r0"), "256 are allowed");
        assert_eq!(connect("new:1@r1").reply_msg, "");
        let left = [0, 1, 254].map(|number| is_there(&format!("peer:{number}@r0")));
        assert_eq!(left, [false, true, true]);
        assert_eq!(connect("peer:0@r0").reply_msg, "");
        // One that connects now has not left the others of its server behind.
        assert_eq!(connect("peer:2@r1").reply_msg, "");
        assert_eq!(connect("peer:2@r2").reply_msg, "");
        let left = [1, 2, 3, 4].map(|number| is_there(&format!("peer:{number}@r0")));
        assert_eq!(left, [false, true, false, false]);
        assert!(is_there("new:1@r0") && is_there("new:1@r1"));
        let again = Rendezvous {
            ready_ack: Some(true),
            ..request("other@r0", &[100])
        };
        assert_eq!(answered_to(stranger, &control, again).reply_msg, "");
    }
);

test!(
    links_whose_queue_pairs_do_not_fit_the_completion_queue_are_refused,
    {
        if is_real() {
            return;
        }
        // Three queue pairs with 64 requests each.
        let limit = calls().join("max_cqe-invented_0");
        std::fs::write(limit, "192").unwrap();
        let mut bed = bed_of(&Control::new());
        // Of two that are opened at once one is refused when it is connected.
        let _both = [bed.begin(), bed.begin()];
        bed.until(|event| matches!(event, Event::Up(..)).then_some(()));
        let refused = |event: &Event| match event {
            Event::Down(_, failure) => Some(failure.cause.to_string()),
            _ => None,
        };
        let full = "3 queue pairs fill the completion queue of RDMA device invented_0";
        let cause = bed.until(refused);
        assert!(cause.contains(full), "{cause}");
        let created = || std::fs::read_to_string(calls().join("ibv_create_qp")).unwrap();
        let before = created();
        bed.begin();
        let cause = bed.until(refused);
        assert!(cause.contains(full), "{cause}");
        assert_eq!(created(), before, "it is refused before");
    }
);

test!(a_refusal_names_who_refuses_and_both_values, {
    let control = Control::new();
    let own = format!("target@{}", control.far[0].device());
    let path = Rendezvous {
        peer_nic_path: "target@other_0".to_owned(),
        ..request("peer@r0", &[100])
    };
    let gid = Rendezvous {
        local_gid: "fe:80:0:0:0:0:0:0:0:0:0:0:0:0:0:1".to_owned(),
        ..request("peer@r0", &[100])
    };
    for (request, wanted) in [
        (path, "not target@other_0"),
        (gid, "fe80::1 (IPv6 link-local) at peer@r0"),
        (request("peer", &[100]), "`peer`"),
        (request("peer@r0", &[]), "peer@r0 has sent 0"),
        (request("peer@r0", &[7; 17]), "peer@r0 has sent 17"),
    ] {
        let reply = answered(&control, request);
        let text = &reply.reply_msg;
        assert!(text.starts_with(&own) && text.contains(wanted), "{text}");
        assert!(reply.qp_num.is_empty(), "{reply:?}");
    }
});
