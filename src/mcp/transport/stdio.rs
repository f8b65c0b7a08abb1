//! MCP over standard input and output: one JSON-RPC message a line.
//!
//! A transport of our own around rmcp's pipes, because a server that people live with must not fall over on what
//! clients really send: a notification before the first request, a line that is not JSON or far too long, an id
//! that is still in flight, wrong-typed parameters, and above all an end of input while a call runs.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use rmcp::RoleServer;
use rmcp::model::{ErrorData, RequestId};
use rmcp::service::{RxJsonRpcMessage, TxJsonRpcMessage};
use rmcp::transport::Transport;
use serde_json::Value;
use serde_json::value::RawValue;
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncWrite, AsyncWriteExt, BufReader};
use tokio::sync::Mutex;
use tokio_util::sync::CancellationToken;

use super::{InFlight, batch, is_array, refusal};

/// The longest line that is read, in bytes: two encodings of the largest accepted code and room to spare.
pub const MAX_LINE_BYTES: usize = 16 * 1024 * 1024;

/// Between the end of input and the cancelling of running calls. Clients kill the process after two seconds.
const GRACE: Duration = Duration::from_millis(300);

/// Newline-delimited JSON-RPC over a reader and a writer.
pub struct Lines<R, W> {
    reader: BufReader<R>,
    line: Vec<u8>,
    overlong: bool,
    /// Messages of a batch that have not been taken yet.
    batch: VecDeque<Box<RawValue>>,
    writer: Arc<Mutex<Option<W>>>,
    in_flight: InFlight,
    ended: CancellationToken,
}

impl<R, W> Lines<R, W>
where
    R: AsyncRead + Send + Unpin,
    W: AsyncWrite + Send + Unpin + 'static,
{
    /// Speaks over `reader` and `writer`. Some moments after the end of input, `ended` is cancelled.
    pub fn new(reader: R, writer: W, ended: CancellationToken) -> Self {
        Self {
            reader: BufReader::with_capacity(64 * 1024, reader),
            line: Vec::new(),
            overlong: false,
            batch: VecDeque::new(),
            writer: Arc::new(Mutex::new(Some(writer))),
            in_flight: InFlight::default(),
            ended,
        }
    }

    /// Waits until every request that has been read is answered.
    pub fn answers(&self) -> impl Future<Output = ()> + use<R, W> {
        let in_flight = self.in_flight.clone();
        async move { in_flight.all_answered().await }
    }

    /// Reads to the next newline into `self.line`. Safe to drop in between: what was read stays.
    /// `Ok(false)` is the end of input.
    async fn read_line(&mut self) -> io::Result<bool> {
        loop {
            let available = self.reader.fill_buf().await?;
            if available.is_empty() {
                return Ok(false);
            }
            let (take, complete) = match memchr::memchr(b'\n', available) {
                Some(at) => (at + 1, true),
                None => (available.len(), false),
            };
            if self.line.len() + take > MAX_LINE_BYTES {
                self.overlong = true;
                self.line.clear();
            }
            if !self.overlong {
                self.line.extend_from_slice(&available[..take]);
            }
            self.reader.consume(take);
            if complete {
                return Ok(true);
            }
        }
    }

    /// Answers outside of rmcp. On a task of its own: `receive` may be dropped at any await, half a line may not.
    fn answer(&self, id: Option<RequestId>, error: ErrorData) {
        let writer = self.writer.clone();
        let message = TxJsonRpcMessage::<RoleServer>::error(error, id);
        tokio::spawn(async move { write_line(&writer, &message).await });
    }

    /// What to do with a line: a message for the handler, or an answer given here.
    fn accept(&mut self) -> Option<RxJsonRpcMessage<RoleServer>> {
        if std::mem::take(&mut self.overlong) {
            self.line.clear();
            let text = format!("the message is longer than {MAX_LINE_BYTES} bytes");
            self.answer(None, ErrorData::invalid_request(text, None));
            return None;
        }
        let line = std::mem::take(&mut self.line);
        let bytes = line.strip_prefix(b"\xEF\xBB\xBF").unwrap_or(&line).trim_ascii();
        if bytes.is_empty() {
            return None;
        }
        if is_array(bytes) && self.in_flight.takes_batches() {
            match batch(bytes) {
                Ok(messages) => self.batch = messages.into(),
                Err(problem) => self.answer(None, ErrorData::invalid_request(problem, None)),
            }
            return None;
        }
        self.accept_message(bytes)
    }

    /// The same for one message.
    fn accept_message(&self, bytes: &[u8]) -> Option<RxJsonRpcMessage<RoleServer>> {
        let message: RxJsonRpcMessage<RoleServer> = match serde_json::from_slice(bytes) {
            Ok(message) => message,
            Err(error) => {
                self.refuse(bytes, &error);
                return None;
            }
        };
        match self.in_flight.admit(&message) {
            Ok(true) => Some(message),
            Ok(false) => None,
            Err((id, error)) => {
                self.answer(Some(id), error);
                None
            }
        }
    }

    /// Unknown notifications are ignored, as the other official SDKs do; all else that is not a message is answered.
    fn refuse(&self, bytes: &[u8], error: &serde_json::Error) {
        let is_notification = serde_json::from_slice::<Value>(bytes)
            .is_ok_and(|value| value.get("id").is_none() && value.get("method").is_some());
        if !is_notification {
            let (id, error) = refusal(bytes, error);
            self.answer(id, error);
        }
    }
}

async fn write_line<W, M>(writer: &Mutex<Option<W>>, message: &M) -> io::Result<()>
where
    W: AsyncWrite + Unpin,
    M: serde::Serialize,
{
    let mut bytes = serde_json::to_vec(message)?;
    bytes.push(b'\n');
    let mut writer = writer.lock().await;
    let writer = writer.as_mut().ok_or(io::ErrorKind::NotConnected)?;
    writer.write_all(&bytes).await?;
    writer.flush().await
}

impl<R, W> Transport<RoleServer> for Lines<R, W>
where
    R: AsyncRead + Send + Unpin,
    W: AsyncWrite + Send + Unpin + 'static,
{
    type Error = io::Error;

    fn name() -> Cow<'static, str> {
        "stdio".into()
    }

    fn send(
        &mut self,
        message: TxJsonRpcMessage<RoleServer>,
    ) -> impl Future<Output = Result<(), io::Error>> + Send + 'static {
        self.in_flight.answered(&message);
        let writer = self.writer.clone();
        async move { write_line(&writer, &message).await }
    }

    async fn receive(&mut self) -> Option<RxJsonRpcMessage<RoleServer>> {
        loop {
            if let Some(message) = self.batch.pop_front() {
                match self.accept_message(message.get().as_bytes()) {
                    Some(message) => return Some(message),
                    None => continue,
                }
            }
            match self.read_line().await {
                Ok(true) => {
                    if let Some(message) = self.accept() {
                        return Some(message);
                    }
                }
                Ok(false) => break,
                Err(error) => {
                    tracing::warn!(error = %error, "standard input cannot be read");
                    break;
                }
            }
        }
        let ended = self.ended.clone();
        tokio::spawn(async move {
            tokio::time::sleep(GRACE).await;
            ended.cancel();
        });
        None
    }

    async fn close(&mut self) -> Result<(), io::Error> {
        self.writer.lock().await.take();
        Ok(())
    }
}
