//! One code context: an interpreter, the queue in front of it, and what happens when either side goes away.
//!
//! A task owns all of it. Executions run one at a time in the order in which they came. Anyone who stops reading an
//! answer thereby interrupts the execution; variables are kept if the interpreter listens. One that does not is
//! killed, and another takes its place in the same sandbox: files stay; variables are those from before the execution
//! where the driver could make a checkpoint, and gone otherwise.

use std::collections::BTreeMap;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt;
use futures::stream::FuturesUnordered;
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

use super::Options;
use super::cells::{self, Source};
use super::driver::{Aftermath, Driver, Exit, Interpreter, StartError, Writes};
use super::output::{Answer, Lane};
use super::protocol::{FrameKind, Made, frame};
use crate::domain::lock;
use crate::host::agent::{AgentError, AgentHandle, ProcessEvent, ProcessHandle};
use crate::host::credit::Credit;
use crate::host::journal::Level;
use crate::wire::interpreter::{Event, platform_error};

/// Files that are made ready at a time for one execution.
const SOURCES_MAX: usize = 64;
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
    /// For the code and the environment, while they are here.
    pub(super) _paid: Credit,
}

/// What does not wait for a turn.
#[derive(Debug)]
pub(super) enum Order {
    /// A new interpreter; answered when it is ready.
    Restart(oneshot::Sender<Result<(), StartError>>),
    /// Starts the interpreter if none runs.
    Start(oneshot::Sender<Result<(), StartError>>),
    /// Interrupts the execution that runs; answered with whether one did.
    Interrupt(oneshot::Sender<bool>),
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
    /// What became of variables, when no client was there to receive it.
    pub(super) news: Option<Aftermath>,
}

/// How the turn of one execution ended.
enum Turn {
    /// The interpreter is free again.
    Done,
    /// The interpreter has ended.
    Died,
    /// The interpreter has ended; its copy from before the execution is in its place.
    RolledBack,
    /// The caller does not want to wait for the end.
    Ordered(Order),
    /// The sandbox has ended.
    Gone,
}

/// An execution that has its turn.
struct Running {
    id: String,
    answer: Answer,
    /// What is to be said of the variables first.
    news: Option<Aftermath>,
    /// Processes that were killed for memory before it.
    memory_kills: u64,
    /// Whether the interpreter is free for it.
    may_send: bool,
    /// What is written again after each interrupt.
    again: Bytes,
    /// Files that are made ready for it.
    sources: FuturesUnordered<Pin<Box<dyn Future<Output = ()> + Send>>>,
    interrupt: Option<Interrupt>,
    /// Whether the interpreter has said that it has ended.
    done: bool,
    /// When its reader last heard of it.
    last_sign: Instant,
}

/// The next step of a turn.
enum Step<'a> {
    Order(Order),
    /// The client has gone.
    Left,
    /// There is room for an event.
    Room(mpsc::Permit<'a, Event>),
    /// Something was written to the interpreter.
    Sent(Result<(), AgentError>),
    Interpreter(Option<ProcessEvent>),
    /// There is room for the frame that it has begun.
    Paid(Credit),
    /// The interpreter does not become free.
    Restless,
    Tick,
}

impl Running {
    /// Whether more of the interpreter's words can be taken.
    fn listens(&self) -> bool {
        !self.done && (self.interrupt.is_some() || !self.answer.is_full())
    }

    fn deadline(&self, keepalive: Duration) -> Instant {
        let step = match &self.interrupt {
            Some(interrupt) if interrupt.killed => interrupt.kill_at,
            Some(interrupt) => interrupt.kill_at.min(interrupt.next_signal),
            None => self.last_sign + keepalive,
        };
        self.answer.due().map_or(step, |due| due.min(step))
    }

    /// Gives the reader the next event; that may have been the last.
    fn give(&mut self, permit: mpsc::Permit<'_, Event>) -> Option<Turn> {
        if let Some(event) = self.answer.take() {
            if matches!(*event, Event::PathboxState { .. }) {
                self.news = None;
            }
            permit.send(event.into_inner());
        }
        self.last_sign = Instant::now();
        (self.done && !self.answer.is_ready()).then_some(Turn::Done)
    }

    /// Interrupts it, unless it has ended or has not begun: then the turn is.
    fn give_up(&mut self, options: &Options) -> Option<Turn> {
        if self.done || !self.may_send {
            return Some(Turn::Done);
        }
        self.answer.silence();
        self.interrupt.get_or_insert_with(|| Interrupt::new(options));
        None
    }

    /// A caller wants another interpreter; with E2B's message.
    fn break_off(&mut self) {
        for (name, value) in [
            (platform_error::WEB_SOCKET, "The connections was lost, rerun the code to get the results"),
            (
                platform_error::UNEXPECTED_END,
                "Connection to the execution was closed before the execution was finished",
            ),
        ] {
            self.answer.error(name, value, "");
        }
        self.answer.end();
    }
}

/// Makes a file ready that a cell imports, and gives it to the interpreter.
async fn make_source(agent: AgentHandle, handle: ProcessHandle, n: u64, name: String, source: String) {
    let made = cells::prepare(&agent, &source, &Source::Module(name)).await;
    // An interpreter that is gone needs none.
    let _ = handle.control(frame(&Made { re: n, made })).await;
}

/// The steps against an execution whose client has gone.
struct Interrupt {
    next_signal: Instant,
    kill_at: Instant,
    signals: u32,
    killed: bool,
}

impl Worker {
    /// Serves until the context is removed or its last handle is dropped.
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
                            // Made ready before it is needed. If it fails, the next execution reports why.
                            interpreter = self.start().await.ok();
                            count = 0;
                            continue;
                        }
                        Turn::Ordered(order) => order,
                    }
                }
            };
            if !self.obey(order, &mut interpreter, &mut count).await {
                return;
            }
        }
        end(interpreter).await;
    }

    /// Does what was ordered; `false` when that was the last of the context.
    async fn obey(&mut self, order: Order, interpreter: &mut Option<Interpreter>, count: &mut u64) -> bool {
        match order {
            Order::Start(reply) => {
                let started = match interpreter {
                    Some(_) => Ok(()),
                    None => self.start().await.map(|started| *interpreter = Some(started)),
                };
                // Anyone who asked may have left.
                let _ = reply.send(started);
            }
            Order::Restart(reply) => {
                end(interpreter.take()).await;
                (*count, self.news) = (0, None);
                let _ = reply.send(self.start().await.map(|started| *interpreter = Some(started)));
            }
            Order::Interrupt(reply) => {
                let _ = reply.send(false);
            }
            Order::Remove(reply) => {
                end(interpreter.take()).await;
                let _ = reply.send(());
                return false;
            }
        }
        true
    }

    async fn start(&self) -> Result<Interpreter, StartError> {
        let (version, env) = lock(&self.env).clone();
        Interpreter::start(&self.agent, self.driver, &self.options, env, version, &self.cwd).await
    }

    /// Runs one execution from its turn to its end.
    async fn execute(&mut self, interpreter: &mut Interpreter, job: Job, count: &mut u64) -> Turn {
        let id = self.options.entropy.hex::<16>();
        let (max, clock) = (self.options.max_output_bytes, self.options.clock.clone());
        let mut answer = Answer::new(&id, max, self.driver.is_shell(), clock);
        if *count > 0 {
            answer.since_last(std::mem::take(&mut interpreter.late));
        }
        let news = self.news.take();
        // As IPython counts: an empty cell has the number of the next one.
        let blank = self.driver.skips_blank() && job.code.trim().is_empty();
        answer.say(Event::NumberOfExecutions { execution_count: *count + 1 });
        *count += u64::from(!blank);
        if let Some(news) = news {
            answer.say(news.to_event(None));
        }

        let base_env = {
            let shared = lock(&self.env);
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
        let mut running = Running {
            id,
            answer,
            news,
            memory_kills: self.agent.memory_kills(),
            may_send: std::mem::replace(&mut interpreter.at_rest, !self.driver.tells_rest()),
            again: request.again.clone(),
            sources: FuturesUnordered::new(),
            interrupt: None,
            done: false,
            last_sign: Instant::now(),
        };
        let turn = self.follow(&mut running, interpreter, &job, request).await;
        let Running { mut answer, news, interrupt, .. } = running;
        interpreter.late = answer.take_late();
        let was_delivered =
            interrupt.is_none() && !matches!(turn, Turn::Gone) && deliver(&job.events, answer).await;
        if !was_delivered {
            self.news = match turn {
                Turn::Died => Some(Aftermath::Lost),
                Turn::RolledBack => Some(Aftermath::RolledBack),
                // What the beginning of this execution would have reported, unless it did.
                _ => news,
            };
        }
        turn
    }

    /// Does one after the other what happens until the turn has ended. One flat list: what can happen, and what is done about it.
    async fn follow(
        &mut self,
        running: &mut Running,
        interpreter: &mut Interpreter,
        job: &Job,
        request: Writes,
    ) -> Turn {
        let mut sending = pin!(request.write(interpreter.handle.clone()));
        let mut sent = false;
        let rest_by = Instant::now() + REST_WAIT;
        let account = interpreter.handle.account().clone();
        loop {
            let deadline = running.deadline(self.options.keepalive);
            let is_read = running.interrupt.is_none();
            // The output of a program that is being ended is read without waiting for credit: its end must get through.
            let owes = interpreter.owes().filter(|_| is_read);
            let step = tokio::select! {
                biased;
                Some(order) = self.orders.recv() => Step::Order(order),
                () = job.events.closed(), if is_read => Step::Left,
                Ok(permit) = job.events.reserve(), if is_read && running.answer.is_ready() => Step::Room(permit),
                result = &mut sending, if running.may_send && !sent => {
                    sent = true;
                    Step::Sent(result)
                }
                Some(()) = running.sources.next(), if !running.sources.is_empty() => Step::Sent(Ok(())),
                event = interpreter.events.recv(), if running.listens() && owes.is_none() => {
                    Step::Interpreter(event)
                }
                room = account.wait(owes.unwrap_or_default()), if owes.is_some() => Step::Paid(room),
                () = tokio::time::sleep_until(rest_by), if !running.may_send => Step::Restless,
                () = tokio::time::sleep_until(deadline) => Step::Tick,
            };
            let ended = match step {
                Step::Order(Order::Start(reply)) => {
                    let _ = reply.send(Ok(()));
                    None
                }
                Step::Order(Order::Interrupt(reply)) => {
                    let _ = reply.send(true);
                    running.give_up(&self.options)
                }
                Step::Order(order) => {
                    running.break_off();
                    Some(Turn::Ordered(order))
                }
                Step::Left => running.give_up(&self.options),
                Step::Room(permit) => running.give(permit),
                Step::Sent(Err(AgentError::Gone)) => Some(Turn::Gone),
                Step::Sent(_) => None,
                Step::Interpreter(event) => self.hear(running, interpreter, event).await,
                Step::Paid(room) => {
                    interpreter.pay(room);
                    None
                }
                Step::Restless => {
                    // The cell before left something that keeps it busy.
                    interpreter.end().await;
                    (running.may_send, sent) = (true, true);
                    None
                }
                Step::Tick => self.tick(running, interpreter).await,
            };
            if let Some(turn) = ended {
                return turn;
            }
        }
    }

    /// Takes an interpreter's frame; returns how the turn ended, if it did.
    async fn hear(
        &self,
        running: &mut Running,
        interpreter: &mut Interpreter,
        event: Option<ProcessEvent>,
    ) -> Option<Turn> {
        match event {
            Some(ProcessEvent::Stdout(bytes) | ProcessEvent::Pty(bytes)) => {
                running.answer.output(Lane::Stdout, bytes);
            }
            Some(ProcessEvent::Stderr(bytes)) => running.answer.output(Lane::Stderr, bytes),
            Some(ProcessEvent::Control(bytes)) => {
                self.hear_frames(running, interpreter, &bytes).await;
                if running.done {
                    if running.answer.has_failed() && self.agent.memory_kills() > running.memory_kills {
                        running.answer.stop("oom");
                    }
                    running.answer.end();
                    return running.interrupt.is_some().then_some(Turn::Done);
                }
            }
            Some(ProcessEvent::Exited { code, signal, oom }) => {
                let exit = Exit { code, signal, oom };
                self.driver.report_death(&mut running.answer, &exit, Aftermath::Lost);
                running.answer.end();
                self.note_end("in the middle of an execution", &exit);
                return Some(Turn::Died);
            }
            Some(ProcessEvent::Replaced { code, signal, oom }) => {
                let exit = Exit { code, signal, oom };
                self.note_end("in the middle of an execution", &exit);
                let resumed = interpreter.resume().await;
                let aftermath = if resumed.is_ok() { Aftermath::RolledBack } else { Aftermath::Lost };
                self.driver.report_death(&mut running.answer, &exit, aftermath);
                running.answer.end();
                if let Err(error) = resumed {
                    // Quoted: an interpreter's last lines can be anything.
                    tracing::warn!(error = ?error.to_string(), "a checkpoint did not go on");
                    return Some(Turn::Died);
                }
                return Some(Turn::RolledBack);
            }
            None => return Some(Turn::Gone),
        }
        None
    }

    /// Takes frames out of what came over the control socket.
    async fn hear_frames(&self, running: &mut Running, interpreter: &mut Interpreter, bytes: &[u8]) {
        interpreter.hear(bytes);
        loop {
            match interpreter.next_frame().await {
                Ok(Some(frame)) if frame.id.as_deref() == Some(&running.id) => {
                    if frame.t == FrameKind::Source && running.sources.len() < SOURCES_MAX {
                        let (agent, handle) = (self.agent.clone(), interpreter.handle.clone());
                        running.sources.push(Box::pin(make_source(
                            agent,
                            handle,
                            frame.n,
                            frame.name.clone(),
                            frame.value.clone(),
                        )));
                    }
                    running.done |= running.answer.frame(frame);
                }
                Ok(Some(frame)) if frame.t == FrameKind::Rest => {
                    // The sandbox's end shows in the events.
                    let _ = interpreter.rests(frame.successor).await;
                    if !running.may_send {
                        running.may_send = std::mem::take(&mut interpreter.at_rest);
                    }
                }
                Ok(Some(_)) => {}
                Ok(None) => break,
                Err(error) => {
                    tracing::debug!(%error, "an interpreter broke the protocol");
                    // Its output no longer counts; only its end is awaited.
                    interpreter.forget_frames();
                    let _ = interpreter.handle.signal(libc::SIGKILL, true).await;
                    break;
                }
            }
        }
    }

    /// Adds the end of an interpreter to the logs of the sandbox. One that ends with its sandbox has no reason of its own.
    fn note_end(&self, when: &str, exit: &Exit) {
        tracing::debug!(%exit, "an interpreter ended {when}");
        if exit.oom || exit.code.or(exit.signal).is_some() {
            self.agent.journal().note(Level::Warn, format!("an interpreter ended {when}: {exit}"));
        }
    }

    /// Does what is due by now.
    async fn tick(&self, running: &mut Running, interpreter: &Interpreter) -> Option<Turn> {
        let now = Instant::now();
        if running.answer.due().is_some_and(|due| due <= now) {
            running.answer.flush();
        }
        if let Some(interrupt) = running.interrupt.as_mut() {
            let goes_on = interrupt.step(interpreter, self.driver, now, &self.options, &running.again).await;
            return (!goes_on).then_some(Turn::Died);
        }
        if !running.answer.is_ready() && now >= running.last_sign + self.options.keepalive {
            running.answer.say(Event::Keepalive);
        }
        None
    }

    /// Follows an interpreter that is idle; returns whether it still exists.
    async fn after_idle(&self, idle: Idle, interpreter: Option<&mut Interpreter>) -> bool {
        match (idle, interpreter) {
            (Idle::Rests(successor), Some(interpreter)) => {
                let _ = interpreter.rests(successor).await; // the sandbox's end shows in the events
                true
            }
            // Nothing is lost: the copy is as old as the last cell.
            (Idle::Replaced(exit), Some(interpreter)) => {
                self.note_end("between executions; its copy goes on", &exit);
                interpreter.resume().await.is_ok()
            }
            (Idle::Ended(exit) | Idle::Replaced(exit), _) => {
                self.note_end("between executions", &exit);
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
    /// Starts now. A busy machine needs longer to hear it, and a kill loses variables.
    fn new(options: &Options) -> Self {
        let now = Instant::now();
        let kill_at = now + options.grace.mul_f64(crowding());
        Self { next_signal: now, kill_at, signals: 0, killed: false }
    }

    /// Does what is due now; returns whether there is still something to wait for.
    async fn step(
        &mut self,
        interpreter: &Interpreter,
        driver: Driver,
        now: Instant,
        options: &Options,
        again: &Bytes,
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
            self.signals += 1;
            if self.signals > 1 && !again.is_empty() {
                let _ = interpreter.handle.stdin(again.clone()).await;
            }
        }
        true
    }
}

/// How many programs compete for each processor of this machine, at least one and at most ten.
fn crowding() -> f64 {
    let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let load = load.split(' ').next().and_then(|first| first.parse::<f64>().ok()).unwrap_or(1.0);
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    (load / processors as f64).clamp(1.0, 10.0)
}

/// The rest of an answer, to a reader that may have left; returns whether all of it was taken.
async fn deliver(events: &mpsc::Sender<Event>, mut answer: Answer) -> bool {
    while let Some(event) = answer.take() {
        if events.send(event.into_inner()).await.is_err() {
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

/// Waits until an idle interpreter does something. Its output meanwhile is reported with the next
/// execution.
/// May be dropped at any time.
async fn idle(interpreter: &mut Option<Interpreter>) -> Idle {
    let Some(interpreter) = interpreter else { return std::future::pending().await };
    loop {
        loop {
            match interpreter.next_paid_frame().await {
                Ok(Some(frame)) if frame.t == FrameKind::Rest => return Idle::Rests(frame.successor),
                Ok(Some(_)) => {}
                Ok(None) => break,
                Err(_) => {
                    interpreter.forget_frames();
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
            Some(ProcessEvent::Control(bytes)) => interpreter.hear(&bytes),
            Some(ProcessEvent::Stdout(bytes) | ProcessEvent::Stderr(bytes) | ProcessEvent::Pty(bytes)) => {
                interpreter.late.add(&bytes);
            }
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
