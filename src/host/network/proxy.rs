//! The proxy itself: `CONNECT` for TLS and for whatever an address was permitted for, whole requests for plain HTTP.
//!
//! A permitted name is only as good as the check that it is that name which is spoken to. With plain HTTP the proxy
//! writes the `Host` itself, from the address of the request; inside `CONNECT` it reads the name in the ClientHello.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};

use axum::body::Body;
use http::{Method, Request, Response, StatusCode, Uri, Version, header};
use hyper::body::Incoming;
use hyper::ext::ReasonPhrase;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::{Instant, Sleep};
use tokio_util::sync::CancellationToken;

use super::policy::{Policy, host_name};
use super::{Egress, Journal, client_hello};
use crate::domain::lock;
use crate::host::agent::Link;
use crate::host::http::ports::{drop_hops, from_here};

/// Longest head of a request or an answer.
const HEAD_MAX: usize = 64 * 1024;

/// Serves one connection of a sandbox until both sides have ended. Dropping the future breaks everything off.
pub(super) async fn serve(egress: &Egress, policy: Arc<Policy>, link: Link) {
    let (tunnel, mut tunnels) = tokio::sync::mpsc::channel(1);
    // Of what this future started, nothing survives it.
    let over = CancellationToken::new();
    let _guard = over.clone().drop_guard();
    let service = service_fn(|request: Request<Incoming>| {
        let (tunnel, over) = (tunnel.clone(), over.clone());
        let policy = &policy;
        async move {
            let answer = match request.method() {
                &Method::CONNECT => connect(egress, policy, request, &tunnel).await,
                _ => forward(egress, policy, request, over).await,
            };
            Ok::<_, std::convert::Infallible>(answer.unwrap_or_else(Refusal::into_answer))
        }
    });
    let served = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(egress.0.options.idle)
        .max_buf_size(HEAD_MAX)
        .serve_connection(TokioIo::new(link), service)
        .with_upgrades()
        .await;
    if let Err(error) = served {
        tracing::debug!(sandbox.id = %egress.0.sandbox_id, %error, "a connection of a sandbox ended early");
    }
    // The tunnel that a `CONNECT` has left behind: the connection itself, after its head.
    if let Ok(Tunnel { upgrade, name, mut far }) = tunnels.try_recv() {
        let through = async {
            let mut near = TokioIo::new(upgrade.await.map_err(io::Error::other)?);
            if let Some(name) = name {
                let greeting = client_hello::read(&mut near);
                let greeting = tokio::time::timeout(egress.0.options.dial, greeting).await??;
                if greeting.name.as_deref() != Some(name.as_str()) {
                    far.meter.set_end("the TLS ClientHello names another host, or hides the name");
                    return Ok(());
                }
                far.write_all(&greeting.bytes).await?;
            }
            tokio::io::copy_bidirectional(&mut near, &mut far).await.map(drop)
        };
        let ended: io::Result<()> = through.await;
        if let Err(error) = ended {
            far.meter.set_end(match error.kind() {
                io::ErrorKind::InvalidData => "this port is for TLS only",
                io::ErrorKind::TimedOut => "it was idle for too long",
                io::ErrorKind::QuotaExceeded => "the sandbox has used up its traffic limit",
                _ => "broke off",
            });
        }
    }
}

/// A permitted `CONNECT`.
struct Tunnel {
    upgrade: hyper::upgrade::OnUpgrade,
    /// The name that the ClientHello must contain.
    name: Option<String>,
    far: Far,
}

/// Why a request is not carried out. The text goes to the sandbox and reveals nothing about this machine.
#[derive(Debug, thiserror::Error)]
enum Refusal {
    #[error("this is a proxy: send whole addresses (GET http://host/path) or CONNECT host:port")]
    NotForProxy,
    #[error("https goes through CONNECT host:port")]
    NotPlain,
    #[error("{0} is not in this sandbox's network allow list")]
    NotAllowed(String),
    #[error(
        "{0} is in the allow list, but its address is in a private or reserved network, which needs its own rule"
    )]
    NotPublic(String),
    #[error(
        "by name, only ports 80 (HTTP) and 443 (TLS) can be reached, not {0}; other ports need a rule on the address"
    )]
    Port(u16),
    #[error("{0} could not be looked up")]
    Unknown(String),
    #[error("{0} does not answer")]
    NoAnswer(String),
    #[error("this sandbox has used up its traffic limit")]
    UsedUp,
}

impl Refusal {
    fn into_answer(self) -> Response<Body> {
        let (status, reason) = match self {
            Self::NotForProxy | Self::NotPlain => (StatusCode::BAD_REQUEST, "Bad Request"),
            Self::NotAllowed(_) => (StatusCode::FORBIDDEN, "Not in this sandbox's allow list"),
            Self::NotPublic(_) => (StatusCode::FORBIDDEN, "Private address"),
            Self::Port(_) => (StatusCode::FORBIDDEN, "Port not allowed"),
            Self::UsedUp => (StatusCode::FORBIDDEN, "Byte limit met"),
            Self::Unknown(_) => (StatusCode::BAD_GATEWAY, "Name not found"),
            Self::NoAnswer(_) => (StatusCode::BAD_GATEWAY, "No answer"),
        };
        let mut answer = Response::new(Body::from(format!("pathbox: {self}\n")));
        *answer.status_mut() = status;
        answer.extensions_mut().insert(ReasonPhrase::from_static(reason.as_bytes()));
        answer.headers_mut().insert(header::CONTENT_TYPE, header::HeaderValue::from_static("text/plain"));
        answer.headers_mut().insert(header::CONNECTION, header::HeaderValue::from_static("close"));
        answer
    }
}

async fn connect(
    egress: &Egress,
    policy: &Policy,
    mut request: Request<Incoming>,
    tunnel: &tokio::sync::mpsc::Sender<Tunnel>,
) -> Result<Response<Body>, Refusal> {
    let (host, port) = target(request.uri(), None).ok_or(Refusal::NotForProxy)?;
    let is_tls = policy.is_tls_port(port);
    let (far, permit) = dial(egress, policy, ("CONNECT", is_tls), &host, port).await?;
    let name = (permit != Permit::Address && is_tls).then_some(host);
    let upgrade = hyper::upgrade::on(&mut request);
    // One connection is upgraded once.
    let _ = tunnel.try_send(Tunnel { upgrade, name, far });
    Ok(Response::new(Body::empty()))
}

async fn forward(
    egress: &Egress,
    policy: &Policy,
    request: Request<Incoming>,
    over: CancellationToken,
) -> Result<Response<Body>, Refusal> {
    match request.uri().scheme_str() {
        Some("http") => {}
        Some(_) => return Err(Refusal::NotPlain),
        None => return Err(Refusal::NotForProxy),
    }
    let (host, port) = target(request.uri(), Some(80)).ok_or(Refusal::NotForProxy)?;
    let (far, _) = dial(egress, policy, ("HTTP", port == 80), &host, port).await?;
    let meter = Arc::clone(&far.meter);
    let no_answer = |error: hyper::Error| {
        tracing::debug!(%error, "a request of a sandbox was not answered");
        meter.set_end("was not answered");
        Refusal::NoAnswer(host.clone())
    };
    let (mut sender, connection) = hyper::client::conn::http1::Builder::new()
        .max_buf_size(HEAD_MAX)
        .handshake(TokioIo::new(far))
        .await
        .map_err(no_answer)?;
    tokio::spawn(async move {
        tokio::select! {
            _ = connection => {} // the sender and the body tell how it went
            () = over.cancelled() => {}
        }
    });
    let answer = sender.send_request(onward(request, &host, port)).await.map_err(no_answer)?;
    let (mut head, body) = answer.into_parts();
    drop_hops(&mut head.headers);
    head.version = Version::HTTP_11;
    head.extensions = http::Extensions::new();
    Ok(Response::from_parts(head, Body::new(body)))
}

/// Host, in lower case, and port.
fn target(uri: &Uri, default_port: Option<u16>) -> Option<(String, u16)> {
    let authority = uri.authority()?;
    let port = authority.port_u16().or(default_port.filter(|_| authority.port().is_none()))?;
    let host = authority.host();
    let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    match bare.parse::<IpAddr>() {
        Ok(address) => Some((address.to_string(), port)),
        Err(_) => host_name(host).map(|name| (name, port)),
    }
    .filter(|(_, port)| *port != 0)
}

/// The request as it goes on: to whom the proxy has connected, and without what was meant for the proxy.
fn onward(request: Request<Incoming>, host: &str, port: u16) -> Request<Incoming> {
    let (mut head, body) = request.into_parts();
    drop_hops(&mut head.headers);
    head.headers.remove(header::EXPECT);
    let bracketed = if host.contains(':') { format!("[{host}]") } else { host.to_owned() };
    let host = if port == 80 { bracketed } else { format!("{bracketed}:{port}") };
    if let Ok(host) = host.parse() {
        head.headers.insert(header::HOST, host);
    }
    from_here(&mut head);
    Request::from_parts(head, body)
}

/// What a connection was permitted for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Permit {
    /// A rule names the name.
    Name,
    /// The address may be reached, no matter who is asked for there.
    Address,
    /// A rule names the name, and the address may be reached besides.
    Both,
}

/// Judges, and connects to an address that was judged. `by_name`: whether on this port it can be checked that it is the
/// name that is spoken to.
async fn dial(
    egress: &Egress,
    policy: &Policy,
    (kind, by_name): (&'static str, bool),
    host: &str,
    port: u16,
) -> Result<(Far, Permit), Refusal> {
    let mut meter = Meter::new(egress, kind, host, port);
    let outcome = judge_and_connect(egress, policy, by_name, host, port).await;
    match outcome {
        Ok((stream, permit)) => {
            meter.carried = true;
            meter.end = AtomicEnd::new("done");
            Ok((Far::new(stream, egress, meter), permit))
        }
        Err(refusal) => {
            meter.end = AtomicEnd::new(match refusal {
                Refusal::Unknown(_) | Refusal::NoAnswer(_) => "was not reached",
                _ => "was refused",
            });
            Err(refusal)
        }
    }
}

async fn judge_and_connect(
    egress: &Egress,
    policy: &Policy,
    by_name: bool,
    host: &str,
    port: u16,
) -> Result<(TcpStream, Permit), Refusal> {
    if !egress.count(0) {
        return Err(Refusal::UsedUp);
    }
    let until = Instant::now() + egress.0.options.dial;
    let literal = host.parse::<IpAddr>().ok();
    let named = literal.is_none() && policy.names(host);
    let addresses = match literal {
        Some(address) => vec![address],
        // A look-up reveals the request to the name's owner: not for names that are private.
        None if !named && !policy.is_open() => return Err(Refusal::NotAllowed(host.to_owned())),
        None => {
            let looked_up = tokio::time::timeout_at(until, egress.0.look_ups.look_up(host)).await;
            let found = looked_up.ok().and_then(Result::ok).filter(|found| !found.is_empty());
            found.ok_or_else(|| Refusal::Unknown(host.to_owned()))?
        }
    };
    let mut refusal = match named {
        true => Refusal::NotPublic(host.to_owned()),
        false => Refusal::NotAllowed(host.to_owned()),
    };
    for address in addresses.into_iter().map(|address| address.to_canonical()) {
        if is_own(address) && !policy.names_address(address) {
            continue;
        }
        let permit = match (policy.permits(address), named && policy.permits_by_name(address)) {
            (true, true) => Permit::Both,
            (true, false) => Permit::Address,
            (false, true) if by_name => Permit::Name,
            (false, true) => {
                refusal = Refusal::Port(port);
                continue;
            }
            (false, false) => continue,
        };
        refusal = Refusal::NoAnswer(host.to_owned());
        let connecting = TcpStream::connect(SocketAddr::new(address, port));
        if let Ok(Ok(stream)) = tokio::time::timeout_at(until, connecting).await {
            return Ok((stream, permit));
        }
    }
    Err(refusal)
}

/// Whether an address is this machine's. Its public ones look like everyone's, and what listens there may ask no
/// neighbour for a password.
fn is_own(address: IpAddr) -> bool {
    // Only what is a machine's own can be bound. When that cannot be found out, it counts as found.
    match std::net::UdpSocket::bind((address, 0)) {
        Ok(_) => true,
        Err(error) => error.kind() != io::ErrorKind::AddrNotAvailable,
    }
}

/// The far end of a connection: counts, and gives up when nothing comes for too long.
struct Far {
    stream: TcpStream,
    egress: Egress,
    meter: Arc<Meter>,
    quiet: Pin<Box<Sleep>>,
}

/// What went over one connection; logged when it ends.
#[derive(Debug)]
struct Meter {
    journal: Arc<Journal>,
    kind: &'static str,
    host: String,
    port: u16,
    sent: AtomicU64,
    received: AtomicU64,
    /// Whether there is a connection.
    carried: bool,
    end: AtomicEnd,
}

/// How a connection ended; the first side to know reports it.
#[derive(Debug)]
struct AtomicEnd(std::sync::Mutex<&'static str>);

impl AtomicEnd {
    fn new(end: &'static str) -> Self {
        Self(std::sync::Mutex::new(end))
    }
}

impl Meter {
    fn new(egress: &Egress, kind: &'static str, host: &str, port: u16) -> Self {
        Self {
            journal: Arc::clone(&egress.0.journal),
            kind,
            host: host.to_owned(),
            port,
            sent: AtomicU64::new(0),
            received: AtomicU64::new(0),
            carried: false,
            end: AtomicEnd::new("was given up"),
        }
    }

    fn set_end(&self, end: &'static str) {
        *lock(&self.end.0) = end;
    }
}

impl Drop for Meter {
    fn drop(&mut self) {
        let end = *lock(&self.end.0);
        let (sent, received) = (*self.sent.get_mut(), *self.received.get_mut());
        if !self.journal.has_line(self.carried, sent + received) {
            return;
        }
        tracing::info!(
            sandbox.id = %self.journal.sandbox_id,
            host = %self.host,
            port = self.port,
            kind = self.kind,
            bytes.sent = sent,
            bytes.received = received,
            end = end,
            "a sandbox asked for {}:{}: {end}",
            self.host,
            self.port,
        );
    }
}

impl Far {
    fn new(stream: TcpStream, egress: &Egress, meter: Meter) -> Self {
        let _ = stream.set_nodelay(true);
        let quiet = Box::pin(tokio::time::sleep(egress.0.options.idle));
        Self { stream, egress: egress.clone(), meter: Arc::new(meter), quiet }
    }

    /// Something was carried, or nothing was: then whether it has been quiet for too long.
    fn carried<T>(
        &mut self,
        cx: &mut Context<'_>,
        outcome: Poll<io::Result<T>>,
        count: impl Fn(&T) -> usize,
        into: impl Fn(&Meter) -> &AtomicU64,
    ) -> Poll<io::Result<T>> {
        match outcome {
            Poll::Ready(Ok(done)) => {
                let bytes = count(&done);
                into(&self.meter).fetch_add(bytes as u64, Ordering::Relaxed);
                if !self.egress.count(bytes) {
                    self.meter.set_end("the sandbox has used up its traffic limit");
                    return Poll::Ready(Err(io::ErrorKind::QuotaExceeded.into()));
                }
                let until = Instant::now() + self.egress.0.options.idle;
                self.quiet.as_mut().reset(until);
                Poll::Ready(Ok(done))
            }
            Poll::Ready(error) => Poll::Ready(error),
            Poll::Pending => match self.quiet.as_mut().poll(cx) {
                Poll::Ready(()) => {
                    self.meter.set_end("it was idle for too long");
                    Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
                }
                Poll::Pending => Poll::Pending,
            },
        }
    }
}

impl AsyncRead for Far {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let outcome = Pin::new(&mut self.stream).poll_read(cx, buffer);
        let count = buffer.filled().len() - before;
        self.carried(cx, outcome, |()| count, |meter| &meter.received)
    }
}

impl AsyncWrite for Far {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let outcome = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.carried(cx, outcome, |count| *count, |meter| &meter.sent)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
