//! `process.Process`: programs that clients start, read and write to.

use std::sync::Arc;

use axum::body::Body;
use axum::response::Response;
use axum::routing::post;
use axum::{Extension, Json, Router};
use futures::{StreamExt, stream};
use http::HeaderMap;
use tokio::sync::mpsc;

use super::rpc::{self, Answer, Messages};
use super::{check_user, filesystem, home_path};
use crate::host::agent::{AgentError, FileKind, ProcessEvent, ProcessSpec, Stdin};
use crate::host::processes::{Exit, Heard, Running};
use crate::host::sandbox::Sandbox;
use crate::wire::connect::{Code, RpcError};
use crate::wire::envd::{
    self, Base64, Empty, ProcessEnd, ProcessInfo, ProcessInput, ProcessList, ProcessOutput, ProcessRequest,
    ProcessResponse, Selector, SendInput, SendSignal, Signal, StartRequest, Started, StreamInput,
    UpdateProcess,
};

type Box = Extension<Arc<Sandbox>>;

pub(super) fn router() -> Router {
    use envd::process::*;
    Router::new()
        .route(START, post(start))
        .route(CONNECT, post(connect))
        .route(LIST, post(list))
        .route(SEND_INPUT, post(send_input))
        .route(STREAM_INPUT, post(stream_input))
        .route(SEND_SIGNAL, post(send_signal))
        .route(UPDATE, post(update))
        .route(CLOSE_STDIN, post(close_stdin))
}

async fn start(Extension(sandbox): Box, headers: HeaderMap, body: Body) -> Response {
    let interval = rpc::keepalive_interval(&headers);
    let started = async {
        check_user(&headers)?;
        let request: StartRequest = rpc::only_envelope(body).await?;
        start_process(&sandbox, request, &headers).await
    };
    let messages = started.await.map(|(running, heard)| responses(&sandbox, &running, heard));
    rpc::stream_answer(messages, keepalive(), interval)
}

async fn start_process(
    sandbox: &Sandbox,
    request: StartRequest,
    headers: &HeaderMap,
) -> Result<(Arc<Running>, mpsc::Receiver<Heard>), RpcError> {
    let config = request.process;
    let home = sandbox.agent.home();
    let cwd = config.cwd.as_deref().filter(|cwd| !cwd.is_empty()).map(|cwd| home_path(home, cwd));
    if let Some(cwd) = &cwd {
        match filesystem::follow(sandbox, cwd).await {
            Ok(info) if info.kind == FileKind::Dir => {}
            Err(gone) if gone.code == Code::Unavailable => return Err(gone),
            _ => return Err(RpcError::new(Code::InvalidArgument, format!("cwd '{cwd}' does not exist"))),
        }
    }
    let env =
        sandbox.env().iter().chain(&config.envs).map(|(name, value)| (name.clone(), value.clone())).collect();
    let spec = ProcessSpec {
        argv: std::iter::once(&config.cmd).chain(&config.args).cloned().collect(),
        env,
        cwd,
        // A client that leaves it out is an old one, which means yes.
        stdin: if request.stdin.unwrap_or(true) { Stdin::Pipe } else { Stdin::Null },
        pty: request.pty.map(|pty| size(pty.size)),
        control: false,
    };
    let name = config.cmd.clone();
    let life = rpc::deadline(headers);
    sandbox.processes.start(&sandbox.agent, spec, config, request.tag, life).await.map_err(
        |error| match error {
            AgentError::Refused { source, .. } if source.kind() != std::io::ErrorKind::WouldBlock => {
                RpcError::new(Code::InvalidArgument, format!("error starting process '{name}': {source}"))
            }
            other => rpc::refused(other),
        },
    )
}

async fn connect(Extension(sandbox): Box, headers: HeaderMap, body: Body) -> Response {
    let interval = rpc::keepalive_interval(&headers);
    let found = async {
        let request: ProcessRequest = rpc::only_envelope(body).await?;
        let running = sandbox.processes.recent(&request.process);
        running.ok_or_else(|| not_found(&request.process))
    };
    let messages = found.await.map(|running| responses(&sandbox, &running, running.listen()));
    rpc::stream_answer(messages, keepalive(), interval)
}

/// What a client hears of a process: that it runs, what it writes, how it ended.
fn responses(
    sandbox: &Sandbox,
    running: &Running,
    heard: mpsc::Receiver<Heard>,
) -> Messages<ProcessResponse> {
    let started = ProcessResponse { event: envd::ProcessEvent::Start(Started { pid: running.pid() }) };
    let state = Some((heard, sandbox.ending.clone()));
    let rest = stream::unfold(state, async |state| {
        let (mut heard, ending) = state?;
        let word = tokio::select! {
            biased;
            word = heard.recv() => word,
            () = ending.cancelled() => None,
        };
        let event = match word {
            Some(Heard::Output(event)) => match data(event) {
                Some(output) => envd::ProcessEvent::Data(output),
                None => envd::ProcessEvent::Keepalive(Empty {}),
            },
            Some(Heard::Exited(exit)) => {
                let event = envd::ProcessEvent::End(end(exit));
                return Some((Ok(ProcessResponse { event }), None));
            }
            Some(Heard::TimedOut) => {
                let message = "the process reached its deadline and was killed";
                return Some((Err(RpcError::new(Code::DeadlineExceeded, message)), None));
            }
            None if ending.is_cancelled() => return Some((Err(rpc::sandbox_gone()), None)),
            None => {
                let message = "output was not read for too long; connect again to continue";
                return Some((Err(RpcError::new(Code::ResourceExhausted, message)), None));
            }
        };
        Some((Ok(ProcessResponse { event }), Some((heard, ending))))
    });
    stream::once(async { Ok(started) }).chain(rest).boxed()
}

fn data(event: ProcessEvent) -> Option<ProcessOutput> {
    match event {
        ProcessEvent::Stdout(bytes) => Some(ProcessOutput::Stdout(Base64(bytes.into()))),
        ProcessEvent::Stderr(bytes) => Some(ProcessOutput::Stderr(Base64(bytes.into()))),
        ProcessEvent::Pty(bytes) => Some(ProcessOutput::Pty(Base64(bytes.into()))),
        ProcessEvent::Control(_) | ProcessEvent::Replaced { .. } | ProcessEvent::Exited { .. } => None,
    }
}

/// The end in the words of Go's `os.ProcessState`, which clients print.
fn end(exit: Exit) -> ProcessEnd {
    let by_signal = |signal: i32| {
        format!("{}{}", envd::signal_status(signal), if exit.oom { " (out of memory)" } else { "" })
    };
    match (exit.code, exit.signal) {
        (Some(0), _) => {
            ProcessEnd { exited: true, status: "exit status 0".to_owned(), ..ProcessEnd::default() }
        }
        (Some(code), _) => {
            let status = format!("exit status {code}");
            ProcessEnd { exit_code: code, exited: true, error: Some(status.clone()), status }
        }
        (None, signal) => {
            let status = by_signal(signal.unwrap_or(libc::SIGKILL));
            ProcessEnd { exit_code: -1, exited: false, error: Some(status.clone()), status }
        }
    }
}

async fn list(Extension(sandbox): Box) -> Answer<ProcessList> {
    let processes = sandbox.processes.list();
    let info = |process: &Arc<Running>| ProcessInfo {
        config: process.config.clone(),
        pid: process.pid(),
        tag: process.tag.clone(),
    };
    Ok(Json(ProcessList { processes: processes.iter().map(info).collect() }))
}

async fn send_input(Extension(sandbox): Box, body: Body) -> Answer<Empty> {
    let SendInput { process, input } = rpc::message(body).await?;
    write(&*find(&sandbox, &process)?, input).await?;
    Ok(Json(Empty {}))
}

async fn stream_input(Extension(sandbox): Box, headers: HeaderMap, body: Body) -> Response {
    let written = async {
        let mut messages = rpc::Envelopes::new(body);
        let mut process = None;
        while let Some(message) = messages.next().await? {
            match message {
                StreamInput::Start(request) => process = Some(find(&sandbox, &request.process)?),
                StreamInput::Data(data) => match &process {
                    Some(process) => write(process, data.input).await?,
                    None => return Err(RpcError::new(Code::InvalidArgument, "input came before start")),
                },
                StreamInput::Keepalive(_) => {}
            }
        }
        Ok(stream::once(async { Ok(Empty {}) }).boxed())
    };
    rpc::stream_answer(written.await, Empty {}, rpc::keepalive_interval(&headers))
}

/// A terminal and standard input are one way in here; the agent knows which it is.
async fn write(process: &Running, input: ProcessInput) -> Result<(), RpcError> {
    let (ProcessInput::Stdin(Base64(bytes)) | ProcessInput::Pty(Base64(bytes))) = input;
    process.handle.stdin(bytes.into()).await.map_err(rpc::refused)
}

async fn send_signal(Extension(sandbox): Box, body: Body) -> Answer<Empty> {
    let SendSignal { process, signal } = rpc::message(body).await?;
    let signal = match signal {
        Signal::Term => libc::SIGTERM,
        Signal::Kill => libc::SIGKILL,
    };
    // With the children that it left in its group, so that no one keeps its port.
    find(&sandbox, &process)?.handle.signal(signal, true).await.map_err(rpc::refused)?;
    Ok(Json(Empty {}))
}

async fn update(Extension(sandbox): Box, body: Body) -> Answer<Empty> {
    let UpdateProcess { process, pty } = rpc::message(body).await?;
    let running = find(&sandbox, &process)?;
    if let Some(pty) = pty {
        let (cols, rows) = size(pty.size);
        running.handle.resize(cols, rows).await.map_err(rpc::refused)?;
    }
    Ok(Json(Empty {}))
}

async fn close_stdin(Extension(sandbox): Box, body: Body) -> Answer<Empty> {
    let ProcessRequest { process } = rpc::message(body).await?;
    find(&sandbox, &process)?.handle.close_stdin().await.map_err(rpc::refused)?;
    Ok(Json(Empty {}))
}

fn find(sandbox: &Sandbox, which: &Selector) -> Result<Arc<Running>, RpcError> {
    sandbox.processes.find(which).ok_or_else(|| not_found(which))
}

fn not_found(which: &Selector) -> RpcError {
    let message = match which {
        Selector::Pid(pid) => format!("process with pid {pid} not found"),
        Selector::Tag(tag) => format!("process with tag {tag} not found"),
    };
    RpcError::new(Code::NotFound, message)
}

fn keepalive() -> ProcessResponse {
    ProcessResponse { event: envd::ProcessEvent::Keepalive(Empty {}) }
}

fn size(size: envd::PtySize) -> (u16, u16) {
    let clip = |n: u32| u16::try_from(n).unwrap_or(u16::MAX);
    (clip(size.cols), clip(size.rows))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_are_reported_in_the_words_that_clients_know() {
        let exit = |code, signal, oom| end(Exit { code, signal, oom });
        assert_eq!(exit(Some(0), None, false).status, "exit status 0");
        assert_eq!(exit(Some(0), None, false).error, None);
        let failed = exit(Some(3), None, false);
        assert_eq!(
            (failed.exit_code, failed.exited, failed.error.as_deref()),
            (3, true, Some("exit status 3"))
        );
        let killed = exit(None, Some(9), false);
        assert_eq!((killed.exit_code, killed.exited, killed.status.as_str()), (-1, false, "signal: killed"));
        assert_eq!(exit(None, Some(9), true).status, "signal: killed (out of memory)");
        assert_eq!(exit(None, Some(64), false).status, "signal: signal 64");
    }
}
