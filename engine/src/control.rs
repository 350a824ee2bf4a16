//! Work in tokio beside the data threads: accepting, handshakes and connecting.

pub(crate) mod accept;
pub(crate) mod handshake;

use tokio::runtime::Handle;

use crate::command::{Command, CommandSender};
use crate::connect;
use crate::settings::Settings;
use crate::transport::tcp::Connector;
use crate::transport::{LinkId, NewSocket, TcpPeer};

/// Connects in tokio for one data thread.
#[derive(Debug)]
pub(crate) struct SocketConnector {
    pub(crate) runtime: Handle,
    pub(crate) commands: CommandSender,
    pub(crate) settings: Settings,
}

impl Connector for SocketConnector {
    fn connect(&self, link: LinkId, to: &TcpPeer) {
        let (commands, settings, to) = (self.commands.clone(), self.settings, to.clone());
        self.runtime.spawn(async move {
            let socket = connect::data(&to, settings).await;
            let connected = NewSocket::Connected {
                link,
                socket,
                version: to.version,
                pipeline_depth: to.pipeline_depth,
            };
            // Fails only after the engine has stopped.
            let _stopped = commands.send(Command::AddSocket(connected));
        });
    }
}
