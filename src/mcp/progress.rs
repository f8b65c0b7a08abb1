//! Progress notifications: one at once, then on new output and at least every five seconds, none at the end.
//!
//! Clients lose a notification that arrives in one read with the result, and some then tear the connection down. So
//! what is new is held back for a moment, and dropped when the result comes first.

use std::time::Duration;

use rmcp::RoleServer;
use rmcp::model::{ProgressNotificationParam, ProgressToken};
use rmcp::service::{Peer, RequestContext};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::domain::OutputChunk;
use crate::execution::{Progress, ProgressSender};

/// At least so often while a call runs (SPEC section 5).
const HEARTBEAT: Duration = Duration::from_secs(5);
/// How long news is held back, and so the least distance between two notifications.
const HOLD: Duration = Duration::from_millis(250);
/// Characters of output in one notification.
const TAIL_CHARS: usize = 500;

/// A task that reports until this is dropped.
#[derive(Debug)]
pub(super) struct Reporter(JoinHandle<()>);

impl Drop for Reporter {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Where a call's news goes, and who tells the client when it asked for that.
pub(super) fn reporter(context: &RequestContext<RoleServer>) -> (ProgressSender, Option<Reporter>) {
    let (news, receiver) = mpsc::channel(64);
    let token = context.meta.get_progress_token();
    let reporter = token.map(|token| Reporter(tokio::spawn(report(context.peer.clone(), token, receiver))));
    (news, reporter)
}

/// Reports until it is dropped or the sender is gone.
async fn report(peer: Peer<RoleServer>, token: ProgressToken, mut news: mpsc::Receiver<Progress>) {
    let began = Instant::now();
    let mut step = 0.0;
    let mut send = async |message: String| {
        step += 1.0;
        let param = ProgressNotificationParam::new(token.clone(), step).with_message(message);
        peer.notify_progress(param).await.is_ok()
    };
    if !send("accepted".into()).await {
        return;
    }
    let mut status = String::from("starting");
    let mut output = String::new();
    let mut due: Option<Instant> = None;
    let mut heartbeat = Instant::now() + HEARTBEAT;
    loop {
        tokio::select! {
            biased;
            next = news.recv() => match next {
                None => return,
                Some(progress) => {
                    match progress {
                        Progress::Queued { position } => status = format!("waiting: {position} before this run"),
                        Progress::Creating => status = "making a sandbox".into(),
                        Progress::Running => status = "running".into(),
                        Progress::Output(chunk) => {
                            if let OutputChunk::Stdout(text) | OutputChunk::Stderr(text) = &*chunk {
                                output.push_str(text);
                                keep_tail(&mut output);
                            }
                        }
                    }
                    due.get_or_insert_with(|| Instant::now() + HOLD);
                }
            },
            () = tokio::time::sleep_until(due.unwrap_or(heartbeat).min(heartbeat)) => {
                let message = match std::mem::take(&mut output) {
                    text if text.is_empty() => format!("{status} ({} s)", began.elapsed().as_secs()),
                    text => text,
                };
                if !send(message).await {
                    return;
                }
                due = None;
                heartbeat = Instant::now() + HEARTBEAT;
            }
        }
    }
}

fn keep_tail(text: &mut String) {
    let chars = text.chars().count();
    if chars > TAIL_CHARS
        && let Some((at, _)) = text.char_indices().nth(chars - TAIL_CHARS)
    {
        text.drain(..at);
    }
}
