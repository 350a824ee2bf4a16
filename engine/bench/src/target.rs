//! An end of this engine: memory that is served, and the target, which does nothing else.

use std::net::{IpAddr, SocketAddr, TcpListener};
use std::sync::Arc;

use anyhow::Context;
use engine::{
    Admission, Endpoint, EndpointSpec, Engine, PageSize, Region, RegionId, Settings, Targets,
};

use crate::flags::Flags;

/// Above all mappings, as chosen by an agent.
const WIRE_BASE: u64 = 1 << 58;

/// An endpoint with one region.
#[derive(Debug)]
pub(crate) struct End {
    pub(crate) endpoint: Endpoint,
    pub(crate) region: RegionId,
    pub(crate) name: String,
    _engine: Engine,
}

impl End {
    /// Opens an endpoint at `--local_server_name` with `--buffer_size` bytes, all allocated.
    ///
    /// # Errors
    /// No such address here; not enough memory.
    pub(crate) fn open(flags: &Flags) -> anyhow::Result<Self> {
        let at = address(&flags.local_server_name)?;
        let handshake = TcpListener::bind(at).with_context(|| format!("listening on {at}"))?;
        let data = TcpListener::bind((at.ip(), 0))?;
        let name = handshake.local_addr()?.to_string();
        let engine = Engine::start(Settings::default())?;
        let endpoint = engine.endpoint(EndpointSpec {
            name: name.clone(),
            data_port: data.local_addr()?.port(),
            data_host: at.ip().to_string(),
            handshake,
            data,
            network: None,
            admission: Admission::Anyone,
            targets: Targets::Anyone,
            metadata: None,
        })?;
        let memory = sys::mem::memfd::create("bench", flags.buffer_size, PageSize::Base)?;
        let region = Region::map(memory, flags.buffer_size, PageSize::Base)?;
        region.populate(0, flags.buffer_size)?;
        let region = endpoint.add_region(Arc::new(region), WIRE_BASE)?;
        Ok(Self {
            endpoint,
            region,
            name,
            _engine: engine,
        })
    }
}

/// An IP address, with a port or without.
fn address(text: &str) -> anyhow::Result<SocketAddr> {
    let address = text.parse().or_else(|_| {
        let ip: Result<IpAddr, _> = text.parse();
        ip.map(|ip| SocketAddr::new(ip, 0))
    });
    address.with_context(|| format!("{text:?} is not an IP address, nor one with a port"))
}

/// Serves until the process is ended.
///
/// # Errors
/// As [`End::open`].
#[tokio::main]
pub(crate) async fn serve(flags: &Flags) -> anyhow::Result<()> {
    let end = End::open(flags)?;
    // The words of the stock program.
    println!(
        "Transfer Engine RPC using P2P handshake, listening on {}",
        end.name
    );
    std::future::pending().await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_needs_no_port() {
        assert_eq!(address("127.0.0.1").unwrap().port(), 0);
        assert_eq!(address("[::1]:7").unwrap().to_string(), "[::1]:7");
        assert_eq!(address("::1").unwrap().to_string(), "[::1]:0");
        assert!(address("localhost").is_err());
    }
}
