//! A master that does harm to one pool while a stock client verifies the pool of another pod on the same node: it loses no
//! operation, and the agent stays active.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

use mooncake_stock::Space;
use proto::coro_rpc::RequestHeader;
use proto::store::ErrorCode;
use proto::struct_pack;
use sys::net::Namespace;
use tokio::time::sleep;

use crate::hostile::POD;
use crate::hostile_pools::{
    Harm, MIB, NEIGHBOUR, assign_both, during, engine_of, is_served_again, memory, neighbour,
};
use crate::stage::{MASTER_PORT, PEERS_IP};

/// A master that answers the first call as a master of the release does, and each other one with much that is not its answer.
fn answer(mut stream: TcpStream, kind: u64) -> std::io::Result<u64> {
    let reply = |sequence: u32, length: u32| {
        let mut bytes = vec![0x15, 0, 0, 0];
        bytes.extend([sequence, length, 0].map(u32::to_le_bytes).concat());
        bytes
    };
    let version: Result<String, ErrorCode> = Ok("2.0.0".to_owned());
    let version = struct_pack::encode(&version);
    // A hash with a type literal behind it, which does not end before the last byte.
    let most = [16 * MIB, 64 << 10, 1 << 10][usize::try_from(kind % 3).unwrap()];
    let mut literal = vec![3, 0, 0, 0, 0b100];
    literal.resize(usize::try_from(most).unwrap(), 0xfd);
    if let Some(last) = literal.last_mut() {
        *last = 0;
    }
    for answered in 0.. {
        let mut header = [0; RequestHeader::BYTES];
        if stream.read_exact(&mut header).is_err() {
            return Ok(answered);
        }
        let Ok(header) = RequestHeader::decode(header) else {
            return Ok(answered);
        };
        let mut arguments = vec![0; usize::try_from(header.length).unwrap()];
        stream.read_exact(&mut arguments)?;
        let body = if answered == 0 { &version } else { &literal };
        let length = u32::try_from(body.len()).unwrap();
        stream.write_all(&reply(header.sequence, length))?;
        stream.write_all(body)?;
    }
    Ok(0)
}

/// Serves a hostile master. Counts answers.
fn hostile_master(space: &Space, port: u16) -> Harm {
    let inside = Namespace::of_process(space.pid()).unwrap();
    let listener = inside.run(|| TcpListener::bind((PEERS_IP, port))).unwrap();
    listener.set_nonblocking(true).unwrap();
    let mut accepted = 0;
    Harm::begin(move || match listener.accept() {
        Ok((stream, _)) => {
            stream.set_nonblocking(false).unwrap();
            let moment = Some(Duration::from_secs(1));
            stream.set_read_timeout(moment).unwrap();
            stream.set_write_timeout(moment).unwrap();
            accepted += 1;
            answer(stream, accepted - 1).unwrap_or(1)
        }
        Err(error) if error.kind() == ErrorKind::WouldBlock => {
            std::thread::park_timeout(Duration::from_millis(10));
            0
        }
        Err(error) => panic!("{error}"),
    })
}

#[tokio::test]
async fn a_master_that_answers_with_mebibytes_of_types_costs_the_neighbour_nothing() {
    const PORT: u16 = MASTER_PORT + 1;
    let (node, mut neighbour) = neighbour().await;
    let master = hostile_master(&node.peers, PORT);
    let _pool = node.pool(POD);
    let assigned = [("second", NEIGHBOUR, MASTER_PORT), ("default", POD, PORT)];
    node.assign_to_masters(&assigned, "m1", 1);
    let engine = engine_of(&node, &neighbour).await;
    // The most that it has ever had. It maps no page of its pool, which no client uses.
    let before = memory(engine, "VmHWM");
    during(&node, &mut neighbour, async {
        sleep(Duration::from_secs(6)).await;
    })
    .await;
    let most = memory(engine, "VmHWM");
    let answers = master.end();
    println!(
        "{answers} answers; the engine process had up to {} KiB, {} before",
        most >> 10,
        before >> 10
    );
    assert!(answers > 17, "it was not probed");
    assert!(most < before + 32 * MIB);
    assert_eq!(engine_of(&node, &neighbour).await, engine, "replaced");
    assign_both(&node);
    is_served_again(&node).await;
}
