//! One `/execute` request and the events that it streams.
//!
//! Closing the connection is the protocol's only interrupt, so dropping an [`Execution`] stops the code. An end without
//! `end_of_execution` is a failure, though the official SDKs take it for success.

use std::collections::VecDeque;
use std::time::Duration;

use reqwest::{Method, Response};
use tokio::time::{Instant, timeout_at};

use super::{Deadline, E2bClient, E2bError, SandboxAccess, Subject};
use crate::wire::interpreter::{Event, ExecuteRequest, platform_error};
use crate::wire::text::{Line, Lines};
use crate::wire::{ENVD_PORT, INTERPRETER_PORT};

/// The clocks of one execution. Whichever ends first is named in the error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Deadlines {
    /// From asking for a connection until the answer's headers, which come at once even when the code has to wait.
    pub connect: Duration,
    /// From the headers until the interpreter takes the code. A kernel that was never used needs up to 4 s.
    pub start: Duration,
    /// Silence. The server sends a keepalive every 5 s while the code runs, so 15 s or more.
    pub stall: Duration,
    /// The whole execution, from the request on.
    pub overall: Duration,
}

impl Default for Deadlines {
    fn default() -> Self {
        Self {
            connect: Duration::from_secs(10),
            start: Duration::from_secs(30),
            stall: Duration::from_secs(20),
            overall: Duration::from_secs(60),
        }
    }
}

impl Deadlines {
    /// The defaults with another limit for the whole.
    pub fn overall(overall: Duration) -> Self {
        Self { overall, ..Self::default() }
    }
}

impl E2bClient {
    /// Sends code to a sandbox's interpreter; one request, sent again only when it certainly never arrived.
    ///
    /// Leave `env_vars` out and see [`Interpreter`](super::Interpreter): the hosted server pastes values into the source.
    ///
    /// # Errors
    /// [`is_lost`](E2bError::is_lost) when the sandbox is gone, [`E2bError::PortClosed`] when it has no interpreter (yet),
    /// [`E2bError::NotFound`] for the code context, [`E2bError::UnknownLanguage`], [`E2bError::TimedOut`].
    pub async fn execute(
        &self,
        access: &SandboxAccess,
        request: &ExecuteRequest,
        deadlines: Deadlines,
    ) -> Result<Execution, E2bError> {
        let begun = Instant::now();
        let response = self.begin(access, request, deadlines, begun).await?;
        let now = Instant::now();
        Ok(Execution {
            client: self.clone(),
            access: access.clone(),
            response: Some(response),
            lines: Lines::new(self.options().max_line_bytes),
            pending: VecDeque::new(),
            deadlines,
            begun,
            headers_at: now,
            heard_at: now,
            started: false,
            interrupted: false,
            events: 0,
            ended: false,
        })
    }

    /// Sends the request, again and again while the interpreter is not there yet, until it is accepted.
    async fn begin(
        &self,
        access: &SandboxAccess,
        request: &ExecuteRequest,
        deadlines: Deadlines,
        begun: Instant,
    ) -> Result<reqwest::Response, E2bError> {
        let connect = deadlines.connect.min(deadlines.overall);
        let connect_by = begun + connect;
        // An attempt that the clock cuts could have run, so none begins without time to be answered.
        let last_begin = begun + connect * 3 / 4;
        let body = serde_json::to_vec(request).map_err(|error| E2bError::protocol("a request", error))?;
        let body = bytes::Bytes::from(body);
        let mut attempt = 0;
        loop {
            let post = self
                .data(Method::POST, access, INTERPRETER_PORT, "/execute")?
                .header(reqwest::header::CONTENT_TYPE, "application/json")
                .body(body.clone());
            let sent = timeout_at(connect_by, async {
                let response = post.send().await.map_err(|error| E2bError::transport(error, true))?;
                self.accept(response, access, INTERPRETER_PORT, Subject::CodeContext).await
            })
            .await;
            let error = match sent {
                Ok(Ok(response)) => return Ok(response),
                Ok(Err(error)) => error,
                Err(_) => {
                    let clock = if deadlines.overall < deadlines.connect {
                        Deadline::Overall
                    } else {
                        Deadline::Connect
                    };
                    return Err(E2bError::TimedOut { clock, after: begun.elapsed(), may_have_run: true });
                }
            };
            // A port that is closed right after the create or a resume opens within seconds; a refused connection is a
            // blip or a dead host, which shows soon.
            let again = match &error {
                E2bError::PortClosed { .. } => true,
                E2bError::Unreachable(_) => attempt < 2,
                _ => false,
            };
            let pause =
                self.options().retry.pause(attempt, None, &self.shared.entropy).min(Duration::from_secs(1));
            if !again || Instant::now() + pause >= last_begin {
                return Err(error);
            }
            tokio::time::sleep(pause).await;
            attempt += 1;
        }
    }
}

/// An execution in progress: a stream of [`Event`]s. Dropping it interrupts the code.
///
/// ```no_run
/// # use pathbox::{e2b::*, wire::interpreter::*};
/// # async fn example(client: E2bClient, access: SandboxAccess) -> Result<(), E2bError> {
/// let request = ExecuteRequest::in_language("while True: pass", "python");
/// let deadlines = Deadlines::overall(std::time::Duration::from_secs(2));
/// let mut run = client.execute(&access, &request, deadlines).await?;
/// loop {
///     match run.next().await {
///         Ok(Some(event)) => println!("{event:?}"),
///         Ok(None) => break,
///         Err(error) if error.clock() == Some(Deadline::Overall) => break println!("took too long"),
///         Err(error) => return Err(error),
///     }
/// }
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct Execution {
    client: E2bClient,
    access: SandboxAccess,
    /// `None` once it is at its end, or closed.
    response: Option<Response>,
    lines: Lines,
    pending: VecDeque<Event>,
    deadlines: Deadlines,
    begun: Instant,
    headers_at: Instant,
    heard_at: Instant,
    started: bool,
    /// The platform lost the kernel; the next error event reports it with less detail.
    interrupted: bool,
    events: u64,
    ended: bool,
}

impl Execution {
    /// The next event; `None` after `end_of_execution`, which is itself given. Types from the future are left out.
    ///
    /// Safe to cancel: no event is lost when the future is dropped.
    ///
    /// # Errors
    /// [`E2bError::TimedOut`] with the clock that ended, [`E2bError::Incomplete`] or [`E2bError::Broken`] when the stream
    /// breaks off, [`is_lost`](E2bError::is_lost) when that was because the sandbox went away, [`E2bError::Protocol`] when
    /// a line is not an event. The connection is closed then, which interrupts the code; after any of them it may have run.
    pub async fn next(&mut self) -> Result<Option<Event>, E2bError> {
        loop {
            if let Some(event) = self.pending.pop_front() {
                return Ok(Some(event));
            }
            if self.ended {
                return Ok(None);
            }
            if let Some(line) = self.lines.next() {
                match self.take(line).await? {
                    Some(event) => return Ok(Some(event)),
                    None => continue,
                }
            }
            self.read().await?;
        }
    }

    /// Whether the interpreter took the code: some event other than a keepalive has come.
    pub fn started(&self) -> bool {
        self.started
    }

    /// Events so far, keepalives included.
    pub fn events(&self) -> u64 {
        self.events
    }

    /// How long ago the request was made.
    pub fn elapsed(&self) -> Duration {
        self.begun.elapsed()
    }

    async fn take(&mut self, line: Line) -> Result<Option<Event>, E2bError> {
        self.events += 1;
        let event = match line {
            Line::Whole(line) => Event::read(&line).map_err(|error| {
                self.response = None;
                E2bError::protocol("an event of the interpreter", error)
            })?,
            Line::Cut { head, dropped_bytes } => {
                let stop = Event::PathboxStop { reason: "output_truncated".to_owned(), dropped_bytes };
                match Event::salvage(&head) {
                    Some(event) => {
                        self.pending.push_back(stop);
                        event
                    }
                    None => {
                        let dropped_bytes = dropped_bytes + head.len() as u64;
                        Event::PathboxStop { reason: "output_truncated".to_owned(), dropped_bytes }
                    }
                }
            }
        };
        match &event {
            Event::Keepalive => {}
            Event::Unknown => return Ok(None),
            Event::EndOfExecution => {
                self.ended = true;
                // Kept first, so that it is not lost when the caller stops waiting here.
                self.pending.push_back(event);
                self.drain().await;
                return Ok(None);
            }
            Event::Error(error) => {
                self.started = true;
                // Two errors have one cause, and the second one has less detail.
                if self.interrupted && error.is_platforms(platform_error::UNEXPECTED_END) {
                    return Ok(None);
                }
                self.interrupted |= error.is_platforms(platform_error::WEB_SOCKET);
            }
            _ => self.started = true,
        }
        Ok(Some(event))
    }

    /// Reads to the end of the body, which is a millisecond away, so that the connection can serve again.
    async fn drain(&mut self) {
        if let Some(mut response) = self.response.take() {
            let rest = async { while let Ok(Some(_)) = response.chunk().await {} };
            let _ = tokio::time::timeout(Duration::from_millis(100), rest).await;
        }
    }

    /// Waits for more bytes, under all clocks.
    async fn read(&mut self) -> Result<(), E2bError> {
        let start = if self.started { self.deadlines.overall } else { self.deadlines.start };
        let clocks = [
            (self.begun + self.deadlines.overall, Deadline::Overall),
            (self.heard_at + self.deadlines.stall, Deadline::Stall),
            (self.headers_at + start, Deadline::Start),
        ];
        let mut by_clock = clocks[0];
        for clock in &clocks[1..] {
            if clock.0 < by_clock.0 {
                by_clock = *clock;
            }
        }
        let (by, clock) = by_clock;
        let Some(response) = &mut self.response else {
            return Err(E2bError::Incomplete { events: self.events });
        };
        match timeout_at(by, response.chunk()).await {
            Ok(Ok(Some(chunk))) => {
                self.heard_at = Instant::now();
                self.lines.push(chunk);
                Ok(())
            }
            Ok(Ok(None)) => {
                self.response = None;
                // The last line may lack its line feed.
                if let Some(line) = self.lines.finish()
                    && let Ok(Some(event)) = self.take(line).await
                {
                    self.pending.push_front(event);
                }
                if self.ended {
                    return Ok(());
                }
                Err(self.explain(E2bError::Incomplete { events: self.events }).await)
            }
            Ok(Err(error)) => {
                self.response = None;
                Err(self.explain(E2bError::transport(error, true)).await)
            }
            Err(_) => {
                self.response = None;
                Err(E2bError::TimedOut { clock, after: self.begun.elapsed(), may_have_run: true })
            }
        }
    }

    /// A stream that broke off: because the sandbox went away, or in itself?
    async fn explain(&self, broken: E2bError) -> E2bError {
        match self.client.port_health(&self.access, ENVD_PORT, Duration::from_secs(3)).await {
            Err(error) if error.is_lost() => E2bError::Lost { may_have_run: true },
            _ => broken,
        }
    }
}

impl E2bClient {
    /// Asks a port of a sandbox for `/health`.
    ///
    /// # Errors
    /// [`is_lost`](E2bError::is_lost), [`E2bError::PortClosed`], or that it does not answer within `within`.
    pub async fn port_health(
        &self,
        access: &SandboxAccess,
        port: u16,
        within: Duration,
    ) -> Result<(), E2bError> {
        let request = self.data(Method::GET, access, port, "/health")?;
        self.data_once(request, access, port, Subject::Route, 64 << 10, within).await.map(drop)
    }

    /// Whether the interpreter of a sandbox answers.
    ///
    /// # Errors
    /// As [`E2bClient::port_health`].
    pub async fn health(&self, access: &SandboxAccess) -> Result<(), E2bError> {
        self.port_health(access, INTERPRETER_PORT, Duration::from_secs(5)).await
    }
}
