//! Accepting connections, a bounded number at a time.

use std::net::SocketAddr;

use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

/// Accepts until it is dropped; each connection is served by its own task, which ends with this one.
pub(crate) async fn accept<Serving>(
    listener: TcpListener,
    limit: usize,
    serve: impl Fn(TcpStream, SocketAddr) -> Serving,
) where
    Serving: Future<Output = ()> + Send + 'static,
{
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept(), if connections.len() < limit => match accepted {
                Ok((stream, peer)) => { connections.spawn(serve(stream, peer)); }
                // Out of descriptors, most likely: go on once a connection has ended.
                Err(error) => {
                    tracing::warn!(%error, "a connection could not be accepted");
                    connections.join_next().await;
                }
            },
            Some(_) = connections.join_next() => {}
        }
    }
}
