//! Progress notifications: the first after a third of a second, then on new output and at least every five seconds,
//! none beside the result.
//!
//! Clients that read a notification and the result at once handle the result first, do not know the token any more and
//! some of them close the connection over it. So a call that is quick reports nothing, and a result waits until the last
//! notification has been on the wire for a moment.

use std::sync::Arc;
use std::time::Duration;

use rmcp::RoleServer;
use rmcp::model::{ProgressNotificationParam, ProgressToken};
use rmcp::service::{Peer, RequestContext};
use tokio::sync::{Mutex, mpsc};
use tokio::time::Instant;
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::domain::OutputChunk;
use crate::domain::terminal::visible;
use crate::execution::{Progress, ProgressSender};

/// Before the first notification: quick runs and replays are over by then.
const FIRST: Duration = Duration::from_millis(350);
/// Between the last notification and the result, so that a client reads them apart.
const APART: Duration = Duration::from_millis(100);
/// At least so often while a call runs.
const HEARTBEAT: Duration = Duration::from_secs(5);
/// How long news is held back, and so the least distance between two notifications.
const HOLD: Duration = Duration::from_millis(250);
/// Characters of output in one notification.
const TAIL_CHARS: usize = 500;

/// The notifications of one call: held while one is on its way, with when the last one was written.
#[derive(Debug, Clone, Default)]
struct Line {
    last: Arc<Mutex<Option<Instant>>>,
    over: CancellationToken,
}

/// The end of a call's notifications. Dropped with the call, it ends them as well.
#[derive(Debug)]
pub(super) struct Reporting {
    line: Line,
    _over: DropGuard,
}

impl Reporting {
    /// For a call that may report.
    pub(super) fn begin(context: &mut RequestContext<RoleServer>) -> Self {
        let line = Line::default();
        context.extensions.insert(line.clone());
        let over = line.over.clone().drop_guard();
        Self { line, _over: over }
    }

    /// Ends the notifications, and returns when the result may follow.
    pub(super) async fn settle(self) {
        self.line.over.cancel();
        if let Some(last) = *self.line.last.lock().await {
            tokio::time::sleep_until(last + APART).await;
        }
    }
}

/// Where a call's news goes; the client hears of it when it asked for that.
pub(super) fn reporter(context: &RequestContext<RoleServer>) -> ProgressSender {
    let (news, receiver) = mpsc::channel(64);
    if let (Some(token), Some(line)) = (context.meta.get_progress_token(), context.extensions.get::<Line>()) {
        let to = To { peer: context.peer.clone(), token, line: line.clone(), step: 0.0 };
        tokio::spawn(line.over.clone().run_until_cancelled_owned(report(to, receiver)));
    }
    news
}

/// The client that hears of a call.
struct To {
    peer: Peer<RoleServer>,
    token: ProgressToken,
    line: Line,
    step: f64,
}

impl To {
    /// Sends one notification to its end, whatever becomes of the task that reports: its time must be known.
    async fn send(&mut self, message: String) -> bool {
        let Ok(mut last) = Arc::clone(&self.line.last).try_lock_owned() else { return false };
        if self.line.over.is_cancelled() {
            return false;
        }
        self.step += 1.0;
        let param = ProgressNotificationParam::new(self.token.clone(), self.step).with_message(message);
        let peer = self.peer.clone();
        let sending = tokio::spawn(async move {
            let sent = peer.notify_progress(param).await.is_ok();
            *last = Some(Instant::now());
            sent
        });
        sending.await.unwrap_or(false)
    }
}

/// Reports until the call has ended or the sender is gone.
async fn report(mut to: To, mut news: mpsc::Receiver<Progress>) {
    let began = Instant::now();
    let mut status = String::from("starting");
    let mut output = String::new();
    let mut due = Some(began + FIRST);
    let mut heartbeat = began + HEARTBEAT;
    loop {
        tokio::select! {
            biased;
            next = news.recv() => match next {
                None => return,
                Some(progress) => {
                    match progress {
                        Progress::Queued { position } => status = format!("queued: {position} before this run"),
                        Progress::Creating => status = "making a sandbox".into(),
                        Progress::Running => status = "running".into(),
                        Progress::Tasks { over, of, running } => {
                            status = format!("{over} of {of} tasks have ended");
                            if !running.is_empty() {
                                status.push_str(&format!("; running: {}", running.join(", ")));
                            }
                        }
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
                    text => last_frames(&text),
                };
                if !to.send(message).await {
                    return;
                }
                due = None;
                heartbeat = Instant::now() + HEARTBEAT;
            }
        }
    }
}

/// What stands on each line at the end, with whatever would draw or turn it written out. A part of what the guard has seen.
fn last_frames(text: &str) -> String {
    let lines: Vec<&str> = text
        .split('\n')
        .map(|line| line.trim_end_matches('\r'))
        .map(|line| line.rsplit_once('\r').map_or(line, |(_, last)| last))
        .collect();
    visible(&lines.join("\n"))
}

fn keep_tail(text: &mut String) {
    let chars = text.chars().count();
    if chars > TAIL_CHARS
        && let Some((at, _)) = text.char_indices().nth(chars - TAIL_CHARS)
    {
        text.drain(..at);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_holds_the_last_frame_of_a_line_and_no_raw_control() {
        for (text, shown) in [
            ("10%\r20%\r30%", "30%"),
            ("one\r\ntwo\r\n", "one\ntwo\n"),
            ("\u{1b}[32mdone\u{7}\u{202e}", "\\u001b[32mdone\\u0007\\u202e"),
        ] {
            assert_eq!(last_frames(text), shown);
        }
    }
}
