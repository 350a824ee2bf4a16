//! The addresses on which a server listens.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};

use tokio::net::TcpListener;

/// Listens on a port of every address: of both families, or of IPv4 alone where the kernel has no IPv6.
///
/// # Errors
/// The port is in use.
pub async fn listen(port: u16) -> std::io::Result<TcpListener> {
    first(
        [Ipv6Addr::UNSPECIFIED.into(), Ipv4Addr::UNSPECIFIED.into()]
            .map(|any| SocketAddr::new(any, port)),
    )
    .await
}

/// Listens on the first of the addresses that exists.
async fn first(addresses: [SocketAddr; 2]) -> std::io::Result<TcpListener> {
    TcpListener::bind(&addresses[..]).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_machine_without_ipv6_is_listened_on_by_ipv4() {
        // An address for documentation, which no machine has.
        let absent: SocketAddr = "[2001:db8::1]:0".parse().unwrap();
        let present: SocketAddr = "127.0.0.1:0".parse().unwrap();
        let address = |listener: TcpListener| listener.local_addr().unwrap().ip();
        let listener = first([absent, present]).await.unwrap();
        assert_eq!(address(listener), present.ip());
        let listener = first([present, absent]).await.unwrap();
        assert_eq!(address(listener), present.ip());
    }

    #[tokio::test]
    async fn ipv6_is_served_where_it_exists() {
        // The test machine may have none.
        let loopback = SocketAddr::from((Ipv6Addr::LOCALHOST, 0));
        if TcpListener::bind(loopback).await.is_err() {
            return;
        }
        let v4: SocketAddr = "127.0.0.1:0".parse().unwrap();
        let listener = first([loopback, v4]).await.unwrap();
        let address = listener.local_addr().unwrap();
        assert!(address.is_ipv6());
        tokio::net::TcpStream::connect(address).await.unwrap();
    }
}
