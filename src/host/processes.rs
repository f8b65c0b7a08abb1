//! The processes that clients started in one sandbox, and who listens to them.
//!
//! A process belongs to the sandbox, not to the client that started it: clients come and go while it runs, each sees
//! what is said from then on, and what no one hears is lost. A client that listens but does not read slows the
//! process down, for a while; then it is cut off, so that one dead connection cannot hold everyone's output.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

use tokio::sync::mpsc;

use super::agent::{AgentError, AgentHandle, Process, ProcessEvent, ProcessHandle, ProcessSpec};
use crate::domain::lock;
use crate::wire::envd::{ProcessConfig, Selector};

/// Events that may wait for one listener.
const BACKLOG: usize = 16;
/// How long a listener may keep a process waiting before it is cut off.
const PATIENCE: Duration = Duration::from_secs(30);
/// How long the end of a process is remembered for clients that come late.
const MEMORY: Duration = Duration::from_secs(30);

/// How a process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Exit {
    pub(crate) code: Option<i32>,
    pub(crate) signal: Option<i32>,
    /// The memory limit was the reason.
    pub(crate) oom: bool,
}

/// The events for a listener.
#[derive(Debug, Clone)]
pub(crate) enum Heard {
    Output(ProcessEvent),
    /// The last one.
    Exited(Exit),
    /// The process reached its deadline and was killed. The last one.
    TimedOut,
}

/// One process that a client started.
#[derive(Debug)]
pub(crate) struct Running {
    pub(crate) handle: ProcessHandle,
    pub(crate) config: ProcessConfig,
    pub(crate) tag: Option<String>,
    state: Mutex<Listening>,
}

#[derive(Debug, Default)]
struct Listening {
    listeners: Vec<mpsc::Sender<Heard>>,
    ended: Option<(Instant, Heard)>,
    /// It was killed because its time was over.
    timed_out: bool,
}

/// The processes of one sandbox. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub(crate) struct Processes(Arc<Mutex<BTreeMap<u32, Arc<Running>>>>);

impl Processes {
    /// Starts a process and listens from its first byte on.
    ///
    /// After `life` it is killed with all it started; `None` lets it run as long as the sandbox.
    pub(crate) async fn start(
        &self,
        agent: &AgentHandle,
        spec: ProcessSpec,
        config: ProcessConfig,
        tag: Option<String>,
        life: Option<Duration>,
    ) -> Result<(Arc<Running>, mpsc::Receiver<Heard>), AgentError> {
        let Process { handle, events } = agent.start(spec).await?;
        let (listener, heard) = mpsc::channel(BACKLOG);
        let state = Mutex::new(Listening { listeners: vec![listener], ..Listening::default() });
        let running = Arc::new(Running { handle, config, tag, state });
        {
            let mut table = lock(&self.0);
            table.retain(|_, other| !other.is_forgotten());
            table.insert(running.pid(), Arc::clone(&running));
        }
        tokio::spawn(spread(Arc::clone(&running), events));
        if let Some(life) = life {
            tokio::spawn(end_after(Arc::downgrade(&running), life));
        }
        Ok((running, heard))
    }

    /// A process that runs.
    pub(crate) fn find(&self, which: &Selector) -> Option<Arc<Running>> {
        self.recent(which).filter(|process| !process.has_ended())
    }

    /// A process that runs, or ended just now.
    pub(crate) fn recent(&self, which: &Selector) -> Option<Arc<Running>> {
        let table = lock(&self.0);
        let found = match which {
            Selector::Pid(pid) => table.get(pid),
            // Of two processes with one tag, the running one is meant.
            Selector::Tag(tag) => {
                let mut tagged = table.values().filter(|process| process.tag.as_ref() == Some(tag));
                tagged.clone().find(|process| !process.has_ended()).or_else(|| tagged.next_back())
            }
        };
        found.filter(|process| !process.is_forgotten()).cloned()
    }

    /// All that run, by process number.
    pub(crate) fn list(&self) -> Vec<Arc<Running>> {
        lock(&self.0).values().filter(|process| !process.has_ended()).cloned().collect()
    }
}

impl Running {
    pub(crate) fn pid(&self) -> u32 {
        self.handle.pid.unsigned_abs()
    }

    /// Hears what is said from now on; of one that has ended, how it did.
    pub(crate) fn listen(&self) -> mpsc::Receiver<Heard> {
        let (listener, heard) = mpsc::channel(BACKLOG);
        let mut state = lock(&self.state);
        match &state.ended {
            // There is room: the channel is new.
            Some((_, last)) => drop(listener.try_send(last.clone())),
            None => state.listeners.push(listener),
        }
        heard
    }

    fn has_ended(&self) -> bool {
        lock(&self.state).ended.is_some()
    }

    fn is_forgotten(&self) -> bool {
        lock(&self.state).ended.as_ref().is_some_and(|(at, _)| at.elapsed() > MEMORY)
    }

    /// Tells every listener; drops those that left or do not read.
    async fn tell(&self, heard: &Heard) {
        let listeners = lock(&self.state).listeners.clone();
        for listener in listeners {
            if listener.send_timeout(heard.clone(), PATIENCE).await.is_err() {
                lock(&self.state).listeners.retain(|other| !other.same_channel(&listener));
            }
        }
    }

    /// Tells the last word and remembers it.
    async fn end(&self, last: Heard) {
        let listeners = {
            let mut state = lock(&self.state);
            state.ended = Some((Instant::now(), last.clone()));
            std::mem::take(&mut state.listeners)
        };
        for listener in listeners {
            // A listener that left does not need it.
            let _ = listener.send_timeout(last.clone(), PATIENCE).await;
        }
    }
}

/// Carries a process's output to its listeners, until it ends.
async fn spread(running: Arc<Running>, mut events: mpsc::Receiver<ProcessEvent>) {
    while let Some(event) = events.recv().await {
        match event {
            ProcessEvent::Exited { code, signal, oom } => {
                let timed_out = lock(&running.state).timed_out;
                let exit = Heard::Exited(Exit { code, signal, oom });
                return running.end(if timed_out { Heard::TimedOut } else { exit }).await;
            }
            output => running.tell(&Heard::Output(output)).await,
        }
    }
    // The sandbox is gone; listeners see their channel end.
    lock(&running.state).listeners.clear();
}

/// Kills a process when its time is up. Not part of `spread`, which may wait for a slow listener just then.
async fn end_after(running: Weak<Running>, life: Duration) {
    tokio::time::sleep(life).await;
    let Some(running) = running.upgrade().filter(|running| !running.has_ended()) else { return };
    lock(&running.state).timed_out = true;
    if let Err(error) = running.handle.signal(libc::SIGKILL, true).await {
        tracing::debug!(%error, "a process could not be killed at its deadline");
    }
}
