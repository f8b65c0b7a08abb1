//! One code context: an interpreter, the queue in front of it, and what happens when either side goes away.
//!
//! A task owns all of it. Executions run one at a time in the order in which they came. Whoever stops reading an
//! answer thereby interrupts the execution; variables are kept if the interpreter listens. One that does not is
//! killed, and another takes its place in the same sandbox: files stay; variables are those from before the execution
//! where the driver could make a checkpoint, and gone otherwise.

use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

use super::Options;
use super::driver::{Aftermath, Driver, Exit, Interpreter, StartError};
use super::output::{Answer, Lane};
use super::protocol::{FrameKind, Frames};
use crate::host::agent::{AgentError, AgentHandle, ProcessEvent};
use crate::wire::interpreter::{Event, platform_error};

/// Events of one execution that wait for a slow reader; the program waits then, too.
const READY_MAX: usize = 16;
/// How long a killed interpreter may take to be gone.
const KILL_WAIT: Duration = Duration::from_secs(10);
/// How long an interpreter may take after one cell until it waits for the next.
const REST_WAIT: Duration = Duration::from_secs(30);

/// An execution that waits for its turn.
#[derive(Debug)]
pub(super) struct Job {
    pub(super) code: String,
    pub(super) env: BTreeMap<String, String>,
    pub(super) events: mpsc::Sender<Event>,
}

/// What does not wait for a turn.
#[derive(Debug)]
pub(super) enum Order {
    /// A new interpreter; answered when it stands ready.
    Restart(oneshot::Sender<Result<(), StartError>>),
    /// Starts the interpreter if none runs.
    Start(oneshot::Sender<Result<(), StartError>>),
    /// Ends interpreter and context.
    Remove(oneshot::Sender<()>),
}

/// The sandbox's environment and how often it was set.
pub(super) type SharedEnv = Arc<Mutex<(u64, BTreeMap<String, String>)>>;

/// Owns one context.
#[derive(Debug)]
pub(super) struct Worker {
    pub(super) agent: AgentHandle,
    pub(super) options: Arc<Options>,
    pub(super) driver: Driver,
    pub(super) cwd: String,
    pub(super) env: SharedEnv,
    pub(super) jobs: mpsc::Receiver<Job>,
    pub(super) orders: mpsc::Receiver<Order>,
    /// What became of variables when nobody was there to be told.
    pub(super) news: Option<Aftermath>,
}

/// How the turn of one execution ended.
enum Turn {
    /// The interpreter is free again.
    Done,
    /// The interpreter is no more.
    Died,
    /// The interpreter is no more; its copy from before the execution is in its place.
    RolledBack,
    /// Somebody does not want to wait for the end.
    Ordered(Order),
    /// The sandbox is no more.
    Gone,
}

/// The steps against an execution that nobody waits for any more.
struct Interrupt {
    next_signal: Instant,
    kill_at: Instant,
    killed: bool,
}

impl Worker {
    /// Serves until the context is removed or nobody can reach it any more.
    pub(super) async fn run(mut self) {
        let mut interpreter: Option<Interpreter> = None;
        let mut count = 0;
        loop {
            let event = tokio::select! {
                biased;
                order = self.orders.recv() => match order {
                    Some(order) => Next::Order(order),
                    None => break,
                },
                job = self.jobs.recv() => match job {
                    Some(job) => Next::Job(job),
                    None => break,
                },
                idle = idle(&mut interpreter) => Next::Idle(idle),
            };
            let order = match event {
                Next::Order(order) => order,
                Next::Idle(idle) => {
                    if !self.after_idle(idle, interpreter.as_mut()).await {
                        interpreter = None;
                        self.news = Some(Aftermath::Lost);
                    }
                    continue;
                }
                Next::Job(job) => {
                    if job.events.is_closed() {
                        continue; // it left while it waited, so its code never runs
                    }
                    if interpreter.is_none() {
                        count = 0;
                        match self.start().await {
                            Ok(started) => interpreter = Some(started),
                            Err(error) => {
                                refuse(&job.events, &error).await;
                                continue;
                            }
                        }
                    }
                    let Some(running) = interpreter.as_mut() else { continue };
                    match self.execute(running, job, &mut count).await {
                        Turn::Done | Turn::RolledBack => continue,
                        Turn::Gone => break,
                        Turn::Died => {
                            // Ready before somebody asks for it. If it fails, the next execution tells why.
                            interpreter = self.start().await.ok();
                            count = 0;
                            continue;
                        }
                        Turn::Ordered(order) => order,
                    }
                }
            };
            match order {
                Order::Start(reply) => {
                    let started = match interpreter {
                        Some(_) => Ok(()),
                        None => self.start().await.map(|started| interpreter = Some(started)),
                    };
                    // Whoever asked may have left.
                    let _ = reply.send(started);
                }
                Order::Restart(reply) => {
                    end(interpreter.take()).await;
                    (count, self.news) = (0, None);
                    let _ = reply.send(self.start().await.map(|started| interpreter = Some(started)));
                }
                Order::Remove(reply) => {
                    end(interpreter.take()).await;
                    let _ = reply.send(());
                    return;
                }
            }
        }
        end(interpreter).await;
    }

    async fn start(&self) -> Result<Interpreter, StartError> {
        let (version, env) = self.env.lock().unwrap_or_else(PoisonError::into_inner).clone();
        Interpreter::start(&self.agent, self.driver, &self.options, env, version, &self.cwd).await
    }

    /// Runs one execution from its turn to its end.
    async fn execute(&mut self, interpreter: &mut Interpreter, job: Job, count: &mut u64) -> Turn {
        let id = self.options.entropy.hex::<16>();
        let (max, clock) = (self.options.max_output_bytes, self.options.clock.clone());
        let mut answer = Answer::new(&id, max, self.driver.complaints_lane(), clock);
        let memory_kills = self.agent.memory_kills();
        let mut news = self.news.take();
        // As IPython counts: an empty cell has the number of the next one.
        let blank = self.driver.skips_blank() && job.code.trim().is_empty();
        answer.say(Event::NumberOfExecutions { execution_count: *count + 1 });
        *count += u64::from(!blank);
        if let Some(news) = news {
            answer.say(news.to_event());
        }

        let base_env = {
            let shared = self.env.lock().unwrap_or_else(PoisonError::into_inner);
            let news = interpreter.env_version != shared.0;
            interpreter.env_version = shared.0;
            if news { shared.1.clone() } else { BTreeMap::new() }
        };
        let request = match self.driver.request(&self.agent, &id, &job, *count, &base_env).await {
            Ok(request) => request,
            Err(error) => {
                answer.error(&error.name, &error.value, &error.traceback);
                answer.end();
                deliver(&job.events, answer).await;
                return Turn::Done;
            }
        };
        let mut sending = pin!(request.write(interpreter.handle.clone()));
        let mut sent = false;
        let mut may_send = std::mem::replace(&mut interpreter.at_rest, !self.driver.tells_rest());
        let rest_by = Instant::now() + REST_WAIT;
        let mut interrupt: Option<Interrupt> = None;
        let mut done = false;
        let mut last_sign = Instant::now();
        let turn = loop {
            let deadline = next_deadline(&answer, interrupt.as_ref(), last_sign + self.options.keepalive);
            tokio::select! {
                biased;
                Some(order) = self.orders.recv() => {
                    if let Order::Start(reply) = order {
                        let _ = reply.send(Ok(()));
                        continue;
                    }
                    answer.error(
                        platform_error::WEB_SOCKET,
                        "The connections was lost, rerun the code to get the results",
                        "",
                    );
                    answer.error(
                        platform_error::UNEXPECTED_END,
                        "Connection to the execution was closed before the execution was finished",
                        "",
                    );
                    answer.end();
                    break Turn::Ordered(order);
                }
                () = job.events.closed(), if interrupt.is_none() => {
                    if done || !may_send {
                        break Turn::Done;
                    }
                    interrupt = Some(Interrupt {
                        next_signal: Instant::now(),
                        kill_at: Instant::now() + self.options.grace,
                        killed: false,
                    });
                }
                Ok(permit) = job.events.reserve(), if answer.is_ready() && interrupt.is_none() => {
                    if let Some(event) = answer.take() {
                        if matches!(event, Event::PathboxState { .. }) {
                            news = None;
                        }
                        permit.send(event);
                    }
                    last_sign = Instant::now();
                    if done && !answer.is_ready() {
                        break Turn::Done;
                    }
                }
                result = &mut sending, if may_send && !sent => {
                    sent = true;
                    if let Err(AgentError::Gone) = result {
                        break Turn::Gone;
                    }
                }
                event = interpreter.events.recv(), if !done && (interrupt.is_some() || answer.ready_len() < READY_MAX) => {
                    match event {
                        Some(ProcessEvent::Stdout(bytes) | ProcessEvent::Pty(bytes)) => answer.output(Lane::Stdout, bytes),
                        Some(ProcessEvent::Stderr(bytes)) => answer.output(Lane::Stderr, bytes),
                        Some(ProcessEvent::Control(bytes)) => {
                            interpreter.frames.push(&bytes);
                            loop {
                                match interpreter.frames.next() {
                                    Ok(Some(frame)) if frame.id.as_deref() == Some(&id) => {
                                        done |= answer.frame(frame);
                                    }
                                    Ok(Some(frame)) if frame.t == FrameKind::Rest => {
                                        // The sandbox's end shows in the events.
                                        let _ = interpreter.rests(frame.heir).await;
                                        if !may_send {
                                            may_send = std::mem::take(&mut interpreter.at_rest);
                                        }
                                    }
                                    Ok(Some(_)) => {}
                                    Ok(None) => break,
                                    Err(error) => {
                                        tracing::debug!(%error, "an interpreter broke the protocol");
                                        // Nothing that it says counts from here on; its end is waited for.
                                        interpreter.frames = Frames::default();
                                        let _ = interpreter.handle.signal(libc::SIGKILL, true).await;
                                        break;
                                    }
                                }
                            }
                            if done {
                                if answer.has_failed() && self.agent.memory_kills() > memory_kills {
                                    answer.stop("oom");
                                }
                                answer.end();
                                if interrupt.is_some() {
                                    break Turn::Done;
                                }
                            }
                        }
                        Some(ProcessEvent::Exited { code, signal, oom }) => {
                            let exit = Exit { code, signal, oom };
                            self.driver.tell_death(&mut answer, &exit, Aftermath::Lost);
                            answer.end();
                            tracing::debug!(%exit, "an interpreter ended in the middle of an execution");
                            break Turn::Died;
                        }
                        Some(ProcessEvent::Replaced { code, signal, oom }) => {
                            let exit = Exit { code, signal, oom };
                            tracing::debug!(%exit, "an interpreter ended in the middle of an execution");
                            let resumed = interpreter.resume().await;
                            let aftermath = if resumed.is_ok() { Aftermath::RolledBack } else { Aftermath::Lost };
                            self.driver.tell_death(&mut answer, &exit, aftermath);
                            answer.end();
                            if let Err(error) = resumed {
                                // Quoted: an interpreter's last words can be anything.
                                tracing::warn!(error = ?error.to_string(), "a checkpoint did not go on");
                                break Turn::Died;
                            }
                            break Turn::RolledBack;
                        }
                        None => break Turn::Gone,
                    }
                }
                () = tokio::time::sleep_until(rest_by), if !may_send => {
                    // The cell before left something that keeps it busy.
                    interpreter.end().await;
                    may_send = true;
                    sent = true;
                }
                () = tokio::time::sleep_until(deadline) => {
                    let now = Instant::now();
                    if answer.due().is_some_and(|due| due <= now) {
                        answer.flush();
                    }
                    if let Some(interrupt) = interrupt.as_mut() {
                        if !interrupt.step(interpreter, self.driver, now, &self.options).await {
                            break Turn::Died;
                        }
                    } else if !answer.is_ready() && now >= last_sign + self.options.keepalive {
                        answer.say(Event::Keepalive);
                    }
                }
            }
        };
        let told = interrupt.is_none() && !matches!(turn, Turn::Gone) && deliver(&job.events, answer).await;
        if !told {
            self.news = match turn {
                Turn::Died => Some(Aftermath::Lost),
                Turn::RolledBack => Some(Aftermath::RolledBack),
                // What was to be told at the beginning of this execution, unless it was.
                _ => news,
            };
        }
        turn
    }

    /// Follows what an interpreter did that has nothing to do; says whether there still is one.
    async fn after_idle(&self, idle: Idle, interpreter: Option<&mut Interpreter>) -> bool {
        match (idle, interpreter) {
            (Idle::Rests(heir), Some(interpreter)) => {
                let _ = interpreter.rests(heir).await; // the sandbox's end shows in the events
                true
            }
            // Nothing is lost: the copy is as old as the last cell.
            (Idle::Replaced(exit), Some(interpreter)) => {
                tracing::debug!(%exit, "an idle interpreter ended; its copy goes on");
                interpreter.resume().await.is_ok()
            }
            (Idle::Ended(exit) | Idle::Replaced(exit), _) => {
                tracing::debug!(%exit, "an idle interpreter ended");
                false
            }
            (Idle::Rests(_), None) => false,
        }
    }
}

enum Next {
    Order(Order),
    Job(Job),
    Idle(Idle),
}

/// What an interpreter does that has nothing to do.
enum Idle {
    /// It waits for the next cell.
    Rests(i32),
    /// It ended, and its copy goes on.
    Replaced(Exit),
    /// It ended.
    Ended(Exit),
}

impl Interrupt {
    /// What is due now; says whether there is still something to wait for.
    async fn step(
        &mut self,
        interpreter: &Interpreter,
        driver: Driver,
        now: Instant,
        options: &Options,
    ) -> bool {
        if now >= self.kill_at {
            if self.killed {
                return false;
            }
            self.killed = true;
            self.kill_at = now + KILL_WAIT;
            let _ = interpreter.handle.signal(libc::SIGKILL, true).await;
        } else if !self.killed && now >= self.next_signal {
            self.next_signal = now + options.interrupt_again;
            driver.interrupt(interpreter).await;
        }
        true
    }
}

fn next_deadline(answer: &Answer, interrupt: Option<&Interrupt>, keepalive: Instant) -> Instant {
    let step = match interrupt {
        Some(interrupt) if interrupt.killed => interrupt.kill_at,
        Some(interrupt) => interrupt.kill_at.min(interrupt.next_signal),
        None => keepalive,
    };
    answer.due().map_or(step, |due| due.min(step))
}

/// The rest of an answer, to somebody who may have left; says whether all of it was taken.
async fn deliver(events: &mpsc::Sender<Event>, mut answer: Answer) -> bool {
    while let Some(event) = answer.take() {
        if events.send(event).await.is_err() {
            return false;
        }
    }
    true
}

async fn refuse(events: &mpsc::Sender<Event>, error: &StartError) {
    let error = Event::Error(error.to_event());
    for event in [error, Event::EndOfExecution] {
        if events.send(event).await.is_err() {
            return;
        }
    }
}

/// Waits until an interpreter that has nothing to do does something. What it says meanwhile belongs to no execution.
/// May be dropped at any time.
async fn idle(interpreter: &mut Option<Interpreter>) -> Idle {
    let Some(interpreter) = interpreter else { return std::future::pending().await };
    loop {
        loop {
            match interpreter.frames.next() {
                Ok(Some(frame)) if frame.t == FrameKind::Rest => return Idle::Rests(frame.heir),
                Ok(Some(_)) => {}
                Ok(None) => break,
                Err(_) => {
                    interpreter.frames = Frames::default();
                    break;
                }
            }
        }
        match interpreter.events.recv().await {
            Some(ProcessEvent::Exited { code, signal, oom }) => {
                return Idle::Ended(Exit { code, signal, oom });
            }
            Some(ProcessEvent::Replaced { code, signal, oom }) => {
                return Idle::Replaced(Exit { code, signal, oom });
            }
            Some(ProcessEvent::Control(bytes)) => interpreter.frames.push(&bytes),
            Some(_) => {}
            None => return Idle::Ended(Exit { code: None, signal: None, oom: false }),
        }
    }
}

/// Kills an interpreter and waits until it is gone.
async fn end(interpreter: Option<Interpreter>) {
    let Some(mut interpreter) = interpreter else { return };
    interpreter.end().await;
    let gone = async {
        while let Some(event) = interpreter.events.recv().await {
            if matches!(event, ProcessEvent::Exited { .. } | ProcessEvent::Replaced { .. }) {
                return;
            }
        }
    };
    let _ = tokio::time::timeout(KILL_WAIT, gone).await;
}
