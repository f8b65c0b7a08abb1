//! Connect RPC to envd: unary calls and streams of messages, as JSON.

use std::marker::PhantomData;
use std::time::Duration;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use bytes::Bytes;
use reqwest::header::{AUTHORIZATION, CONTENT_TYPE};
use reqwest::{Method, RequestBuilder, Response};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::time::{Instant, timeout_at};

use super::error::Hide;
use super::send::{read_all, sensitive};
use super::{Deadline, E2bClient, E2bError, SandboxAccess, Subject};
use crate::telemetry::metrics::E2B_CLIENT;
use crate::wire::connect::{
    EndStream, Envelope, EnvelopeReader, RpcError, STREAM_CONTENT_TYPE, UNARY_CONTENT_TYPE,
};
use crate::wire::{ENVD_PORT, Version, header};

/// How often envd should send a keepalive, in seconds.
const KEEPALIVE_S: u64 = 10;

/// A port of envd: which sandbox, and as which Linux user.
#[derive(Debug, Clone)]
pub(super) struct Envd {
    pub(super) client: E2bClient,
    pub(super) access: SandboxAccess,
    pub(super) user: Option<String>,
}

impl Envd {
    pub(super) fn request(&self, method: Method, path: &str) -> Result<RequestBuilder, E2bError> {
        let request = self.client.data(method, &self.access, ENVD_PORT, path)?;
        let user = match &self.user {
            // Before 0.4.0 there was no default user.
            None if self.access.envd_version.is_some_and(|version| version < Version(0, 4, 0)) => "user",
            None => return Ok(request),
            Some(user) if user.contains(':') => {
                let problem = "must hold no `:`".to_owned();
                return Err(E2bError::Setting { what: "user", problem });
            }
            Some(user) => user,
        };
        let basic = format!("Basic {}", BASE64_STANDARD.encode(format!("{user}:")));
        Ok(request.header(AUTHORIZATION, sensitive(&basic)?))
    }

    pub(super) fn hide(&self) -> Hide<'_> {
        Hide::new(&self.client.endpoint, Some(&self.access), None)
    }

    pub(super) async fn unary<T: DeserializeOwned>(
        &self,
        path: &str,
        message: &impl Serialize,
        subject: Subject,
    ) -> Result<T, E2bError> {
        let body = serde_json::to_vec(message).map_err(|error| E2bError::protocol("a request", error))?;
        let options = self.client.options();
        let within = options.request_timeout;
        let request = self
            .request(Method::POST, path)?
            .header(CONTENT_TYPE, UNARY_CONTENT_TYPE)
            .header(header::CONNECT_VERSION, "1")
            .header(header::CONNECT_TIMEOUT, within.as_millis().to_string())
            .body(body);
        let _timed = E2B_CLIENT.time(&["envd"]);
        let work = async {
            let response = request.send().await.map_err(|error| E2bError::transport(error, true))?;
            let response = self.accept(response, subject).await?;
            let body = read_all(response, "an answer of envd", options.max_answer_bytes).await?;
            serde_json::from_slice(&body).map_err(|error| E2bError::protocol("an answer of envd", error))
        };
        tokio::time::timeout(within, work).await.unwrap_or(Err(E2bError::TimedOut {
            clock: Deadline::Request,
            after: within,
            may_have_run: true,
        }))
    }

    /// Opens a server stream. `life` is envd's deadline for the whole; `None` leaves it open.
    pub(super) async fn stream<T: DeserializeOwned>(
        &self,
        path: &str,
        message: &impl Serialize,
        subject: Subject,
        life: Option<Duration>,
    ) -> Result<RpcStream<T>, E2bError> {
        let envelope =
            Envelope::message(message).map_err(|error| E2bError::protocol("a request", error))?.encode();
        let within = self.client.options().connect_timeout;
        let begun = Instant::now();
        let answer = self.answer_to(path, envelope.into(), subject, life);
        let response = tokio::time::timeout(within, answer).await.unwrap_or(Err(E2bError::TimedOut {
            clock: Deadline::Connect,
            after: within,
            may_have_run: true,
        }))?;
        Ok(self.messages(response, subject, begun))
    }

    /// Sends a client stream, however long it takes, and reads its one answer.
    pub(super) async fn send_stream<T: DeserializeOwned>(
        &self,
        path: &str,
        envelopes: impl futures::Stream<Item = Result<Bytes, serde_json::Error>> + Send + 'static,
        subject: Subject,
    ) -> Result<T, E2bError> {
        let begun = Instant::now();
        let response = self.answer_to(path, reqwest::Body::wrap_stream(envelopes), subject, None).await?;
        let mut messages = self.messages(response, subject, begun);
        let missing = E2bError::Protocol { what: "the answer to a stream", source: None };
        let answer = messages.next().await?.ok_or(missing)?;
        messages.next().await?;
        Ok(answer)
    }

    async fn answer_to(
        &self,
        path: &str,
        body: reqwest::Body,
        subject: Subject,
        life: Option<Duration>,
    ) -> Result<Response, E2bError> {
        let mut request = self
            .request(Method::POST, path)?
            .header(CONTENT_TYPE, STREAM_CONTENT_TYPE)
            .header(header::CONNECT_VERSION, "1")
            .header(header::KEEPALIVE_INTERVAL, KEEPALIVE_S.to_string())
            .body(body);
        if let Some(life) = life {
            request = request.header(header::CONNECT_TIMEOUT, life.as_millis().max(1).to_string());
        }
        let response = request.send().await.map_err(|error| E2bError::transport(error, true))?;
        self.accept(response, subject).await
    }

    fn messages<T>(&self, response: Response, subject: Subject, begun: Instant) -> RpcStream<T> {
        RpcStream {
            envd: self.clone(),
            subject,
            response: Some(response),
            reader: EnvelopeReader::new(self.client.options().max_answer_bytes),
            begun,
            messages: 0,
            of: PhantomData,
        }
    }

    /// A failure is a Connect error, or the proxy's body when it comes from in front of envd.
    async fn accept(&self, response: Response, subject: Subject) -> Result<Response, E2bError> {
        if response.status().is_success() {
            return Ok(response);
        }
        let status = response.status().as_u16();
        let body =
            tokio::time::timeout(Duration::from_secs(5), read_all(response, "an error", 64 << 10)).await;
        let body = body.ok().and_then(Result::ok).unwrap_or_default();
        let hide = self.hide();
        match serde_json::from_slice::<RpcError>(&body) {
            Ok(error) => Err(E2bError::from_rpc(&error, subject, &hide)),
            Err(_) => Err(E2bError::from_data(status, None, &body, ENVD_PORT, subject, &hide)),
        }
    }
}

/// The messages of a server stream. Dropping it closes the connection.
#[derive(Debug)]
pub(super) struct RpcStream<T> {
    envd: Envd,
    subject: Subject,
    response: Option<Response>,
    reader: EnvelopeReader,
    begun: Instant,
    messages: u64,
    of: PhantomData<fn() -> T>,
}

impl<T: DeserializeOwned> RpcStream<T> {
    /// The next message; `None` after the end envelope. Safe to cancel.
    pub(super) async fn next(&mut self) -> Result<Option<T>, E2bError> {
        let result = self.next_or_fail().await;
        if !matches!(result, Ok(Some(_))) {
            self.response = None;
        }
        result
    }

    async fn next_or_fail(&mut self) -> Result<Option<T>, E2bError> {
        loop {
            let envelope =
                self.reader.next().map_err(|error| E2bError::protocol("a stream of envd", error))?;
            match envelope {
                Some(Envelope::Message(payload)) => {
                    self.messages += 1;
                    let message = serde_json::from_slice(&payload);
                    return message.map(Some).map_err(|error| E2bError::protocol("a message of envd", error));
                }
                Some(Envelope::End(payload)) => {
                    let end: EndStream = serde_json::from_slice(&payload)
                        .map_err(|error| E2bError::protocol("the end of a stream of envd", error))?;
                    let hide = self.envd.hide();
                    return match end.error {
                        None => Ok(None),
                        Some(error) => Err(E2bError::from_rpc(&error, self.subject, &hide)),
                    };
                }
                None => {}
            }
            let Some(response) = &mut self.response else { return Ok(None) };
            let stall = self.envd.client.options().stream_stall;
            match timeout_at(Instant::now() + stall, response.chunk()).await {
                Ok(Ok(Some(chunk))) => self.reader.push(&chunk),
                // Without its end envelope a stream was cut off.
                Ok(Ok(None)) => return Err(E2bError::Incomplete { events: self.messages }),
                Ok(Err(error)) => return Err(E2bError::transport(error, true)),
                Err(_) => {
                    let after = self.begun.elapsed();
                    return Err(E2bError::TimedOut { clock: Deadline::Stall, after, may_have_run: true });
                }
            }
        }
    }
}
