//! Connections of a sandbox, carried over the agent's socket: to its proxy port, and to the ports of its servers.
//!
//! For the agent a connection is a program without a process, so credit bounds it in both directions as it bounds
//! programs. Dropping a [`Link`] closes it once what was written has gone out, or has had its time to. The place that a
//! connection takes is free when the agent has said that nothing of it is left, and not before.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, DuplexStream, ReadBuf};
use tokio::sync::OwnedSemaphorePermit;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::protocol::{CHUNK, ToAgent, WINDOW};
use super::{AgentError, AgentHandle, Process, ProcessEvent, STDIN};

/// How long what was written may take to be read, after the link was dropped, before the connection is closed over it.
const LINGER: Duration = Duration::from_secs(30);

/// One connection. Reading and writing wait for the sandbox, never the other way round.
#[derive(Debug)]
pub(crate) struct Link {
    stream: DuplexStream,
    _dropped: DropGuard,
}

impl AgentHandle {
    /// Opens the sandbox's proxy port, or finds it open: its number on the sandbox's loopback.
    pub(crate) async fn listen(&self) -> Result<u16, AgentError> {
        let answered = self.call(ToAgent::Listen).await?;
        answered.bytes[..].try_into().map(u16::from_le_bytes).map_err(|_| AgentError::Gone)
    }

    /// Waits for the next connection to the proxy port, which holds `place`. Not to be given up halfway.
    pub(crate) async fn accept(&self, place: OwnedSemaphorePermit) -> Result<Link, AgentError> {
        self.begin(&ToAgent::Accept).await.map(|process| link(process, place, LINGER))
    }

    /// Connects to a port of the sandbox. The connection holds `place`.
    ///
    /// # Errors
    /// [`AgentError::Refused`] when no one listens there.
    pub(crate) async fn connect_port(
        &self,
        port: u16,
        place: OwnedSemaphorePermit,
    ) -> Result<Link, AgentError> {
        let agent = self.clone();
        // A caller that gives up leaves a link that closes itself, not a connection that no one knows.
        let connecting = tokio::spawn(async move {
            agent.begin(&ToAgent::Connect { port }).await.map(|process| link(process, place, LINGER))
        });
        connecting.await.map_err(|_| AgentError::Gone)?
    }
}

/// Starts carrying.
pub(super) fn link(process: Process, place: OwnedSemaphorePermit, linger: Duration) -> Link {
    let (stream, far) = tokio::io::duplex(CHUNK);
    let dropped = CancellationToken::new();
    let (mut from_host, mut to_host) = tokio::io::split(far);
    let Process { handle, mut events } = process;
    let token = dropped.clone();
    let write = async move {
        let carry = async {
            let mut buffer = vec![0; CHUNK];
            while let Ok(count @ 1..) = from_host.read(&mut buffer).await {
                if handle.stdin(Bytes::copy_from_slice(&buffer[..count])).await.is_err() {
                    return;
                }
            }
            let _ = handle.close_stdin().await;
            token.cancelled().await;
            // All room is back once the socket has taken everything.
            let _ = handle.rooms[STDIN].acquire_many(WINDOW as u32).await;
        };
        let lose_patience = async {
            token.cancelled().await;
            tokio::time::sleep(linger).await;
        };
        tokio::select! {
            () = carry => {}
            () = lose_patience => {}
        }
        // Means nothing to an agent for whom it has ended.
        let _ = handle.connection.send(handle.id, &ToAgent::HangUp).await;
    };
    let read = async move {
        while let Some(event) = events.recv().await {
            match event {
                ProcessEvent::Stdout(bytes) if bytes.is_empty() => drop(to_host.shutdown().await),
                // Written to no one when the link was dropped; then the rest is taken and thrown away.
                ProcessEvent::Stdout(bytes) => drop(to_host.write_all(&bytes).await),
                _ => break,
            }
        }
        let _ = to_host.shutdown().await;
    };
    tokio::spawn(async move {
        tokio::join!(write, read);
        drop(place);
    });
    Link { stream, _dropped: dropped.drop_guard() }
}

impl AsyncRead for Link {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buffer)
    }
}

impl AsyncWrite for Link {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
