//! One sandbox as the doors see it: who may use it, and the machine behind it.
//!
//! A machine is made before anyone asks for it and given away once. What is particular to its owner (tokens,
//! environment) is added when it is given away.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use chrono::{DateTime, Utc};
use tokio::sync::{Semaphore, mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use super::agent::{self, AgentError, AgentHandle, ProcessEvent, ProcessSpec};
use super::http::ports;
use super::jail::{
    self, End, EndCause, Isolation, JailError, Jailed, SandboxLimits, SandboxSpec, Spawner, SpawnerChanges,
    Usage,
};
use super::journal::Level;
use super::kernel::{self, KernelError, Kernels};
use super::network::{self, Egress, LookUpPlaces, Policy};
use super::processes::Processes;
use super::templates::{OWN_NAMES, Template, TemplateError, Templates};
use super::watchers::Watchers;
use crate::domain::{Clock, lock};
use crate::telemetry::metrics;
use crate::wire::Secret;

/// For measuring how full the disks of a sandbox are.
const DISK_PATIENCE: Duration = Duration::from_secs(2);

/// For matplotlib to list the fonts of the machine.
const FONTS_PATIENCE: Duration = Duration::from_secs(120);

/// The factory of machines.
#[derive(Debug)]
pub(crate) struct Maker {
    spawner: Spawner,
    limits: SandboxLimits,
    isolation: Isolation,
    pub(crate) network: network::Options,
    pub(crate) look_ups: LookUpPlaces,
    search: kernel::Search,
    templates: Option<Templates>,
    /// The host's own environment.
    base: Arc<Environment>,
    /// Those of templates that were asked for, with the description that each was made by.
    others: Mutex<BTreeMap<String, (Template, Arc<Environment>)>>,
}

/// What machines are made with besides their jail.
#[derive(Debug)]
pub(crate) struct Surroundings {
    pub(crate) search: kernel::Search,
    pub(crate) templates: Option<Templates>,
    /// Added to the environment of every program.
    pub(crate) env: Vec<(String, String)>,
    pub(crate) network: network::Options,
}

/// What a machine is made from: the host's own interpreters, or a template's.
#[derive(Debug)]
pub(crate) struct Environment {
    /// `base`, or the template's name.
    pub(crate) name: String,
    spec: SandboxSpec,
    kernel: Arc<kernel::Options>,
    /// For those that are made before someone waits.
    kernel_ahead: Arc<kernel::Options>,
    fonts: OnceLock<FontList>,
}

impl Environment {
    fn new(name: &str, kernel: kernel::Options, spec: SandboxSpec) -> Self {
        let plain = kernel::Options { preload: Vec::new(), ..kernel.clone() };
        Self {
            name: name.to_owned(),
            spec,
            kernel: Arc::new(plain),
            kernel_ahead: Arc::new(kernel),
            fonts: OnceLock::new(),
        }
    }
}

/// matplotlib's list of the machine's fonts. To make it takes seconds, in every new home directory again.
#[derive(Debug)]
struct FontList {
    path: String,
    bytes: Bytes,
}

/// A machine could not be made.
#[derive(Debug, thiserror::Error)]
pub(crate) enum MachineError {
    #[error(transparent)]
    Jail(#[from] JailError),
    #[error("it ended while it was being assigned")]
    Died,
}

/// matplotlib's fonts were not listed.
#[derive(Debug, thiserror::Error)]
enum FontsError {
    #[error(transparent)]
    Jail(#[from] JailError),
    #[error(transparent)]
    Agent(#[from] AgentError),
}

/// A jail with an agent in it, not yet anyone's.
#[derive(Debug)]
pub(crate) struct Machine {
    jailed: Jailed,
    kernels: Kernels,
    limits: SandboxLimits,
    environment: Arc<Environment>,
}

impl Maker {
    /// Starts what makes sandboxes; fails where the machine cannot isolate.
    pub(crate) async fn start(
        jail: &jail::Options,
        kernel: kernel::Options,
        surroundings: Surroundings,
    ) -> Result<Self, JailError> {
        let spawner = Spawner::start(jail).await?;
        let Surroundings { search, templates, mut env, network } = surroundings;
        env.push(("PATH".to_owned(), jail::search_path(&kernel.interpreters.bins())));
        let spec = SandboxSpec { env, ..SandboxSpec::default() };
        Ok(Self {
            spawner,
            limits: jail.limits.clone(),
            isolation: jail.isolation,
            network,
            look_ups: LookUpPlaces::default(),
            search,
            templates,
            base: Arc::new(Environment::new("base", kernel, spec)),
            others: Mutex::default(),
        })
    }

    /// The host's own environment.
    pub(crate) fn base(&self) -> Arc<Environment> {
        Arc::clone(&self.base)
    }

    /// All environments that were asked for so far.
    pub(crate) fn environments(&self) -> Vec<Arc<Environment>> {
        let others = lock(&self.others);
        [&self.base].into_iter().chain(others.values().map(|(_, environment)| environment)).cloned().collect()
    }

    /// What can be asked for.
    pub(crate) fn templates(&self) -> Vec<Template> {
        self.templates.as_ref().map_or_else(Vec::new, Templates::list)
    }

    /// The environment of a template, as it is now.
    pub(crate) async fn environment(&self, name: &str) -> Result<Arc<Environment>, TemplateError> {
        if OWN_NAMES.contains(&name) {
            return Ok(self.base());
        }
        let templates = self.templates.as_ref().ok_or_else(|| TemplateError::NotFound(name.to_owned()))?;
        let template = templates.load(name).inspect_err(|_| {
            lock(&self.others).remove(name);
        })?;
        let known = lock(&self.others).get(name).cloned();
        if let Some((_, environment)) = known.filter(|(before, _)| *before == template) {
            return Ok(environment);
        }
        let python = template.python.clone().or_else(|| self.search.python.clone());
        let found = kernel::Interpreters::find(&kernel::Search { python, ..self.search.clone() }).await;
        for problem in found.problems() {
            tracing::warn!(template = name, "{problem}");
        }
        let mut spec = self.base.spec.clone();
        spec.read_only = found.dirs();
        spec.env.push(("PATH".to_owned(), jail::search_path(&found.bins())));
        if let Some(modules) = &template.node_modules {
            spec.read_only.push(modules.clone());
            spec.env.push(("NODE_PATH".to_owned(), modules.display().to_string()));
        }
        let base = &*self.base.kernel_ahead;
        let preload =
            if template.preload.is_empty() { base.preload.clone() } else { template.preload.clone() };
        let kernel = kernel::Options { interpreters: found, preload, ..base.clone() };
        let environment = Arc::new(Environment::new(name, kernel, spec));
        let mut others = lock(&self.others);
        others.insert(name.to_owned(), (template, Arc::clone(&environment)));
        Ok(environment)
    }

    /// Whether its sandboxes have a network of their own, which is what a way out can lead from.
    pub(crate) fn has_network(&self) -> bool {
        self.isolation == Isolation::Namespaces
    }

    /// Has matplotlib, where it is there, make its list of fonts once for all machines from now on: in a machine of
    /// its own, because the list counts as if a program had written it.
    pub(crate) async fn prepare(&self, environment: &Environment) {
        let Some(python) = environment.kernel.interpreters.matplotlib() else { return };
        if environment.fonts.get().is_some() {
            return;
        }
        match tokio::time::timeout(FONTS_PATIENCE, self.list_fonts(environment, python)).await {
            Ok(Ok(Some(fonts))) => drop(environment.fonts.set(fonts)),
            Ok(Ok(None)) => tracing::debug!("matplotlib keeps no list of fonts"),
            Ok(Err(error)) => {
                tracing::debug!(
                    error = &error as &dyn std::error::Error,
                    "matplotlib's fonts were not listed"
                );
            }
            Err(_) => tracing::debug!("matplotlib took too long to list the fonts"),
        }
    }

    async fn list_fonts(
        &self,
        environment: &Environment,
        python: &Path,
    ) -> Result<Option<FontList>, FontsError> {
        const DIR: &str = ".cache/matplotlib";
        const LIST_MAX: u64 = 4 << 20;
        let jailed = self.spawner.spawn(&environment.spec).await?;
        let agent = &jailed.agent;
        let program = python.to_string_lossy().into_owned();
        let argv = [&program, "-I", "-c", "import matplotlib.font_manager"].map(str::to_owned).to_vec();
        let mut process = agent.start(ProcessSpec { argv, ..ProcessSpec::default() }).await?;
        while let Some(event) = process.events.recv().await {
            if matches!(event, ProcessEvent::Exited { .. }) {
                break;
            }
        }
        let entries = agent.list_dir(DIR, 1).await?;
        let list = entries.iter().find(|file| {
            file.name.starts_with("fontlist") && file.name.ends_with(".json") && file.size <= LIST_MAX
        });
        let Some(file) = list else { return Ok(None) };
        let path = format!("{DIR}/{}", file.name);
        let mut bytes = BytesMut::new();
        while (bytes.len() as u64) < file.size {
            let piece = agent.read_file(&path, bytes.len() as u64, agent::READ_MAX).await?;
            if piece.is_empty() {
                break;
            }
            bytes.extend_from_slice(&piece);
        }
        Ok(Some(FontList { path, bytes: bytes.freeze() }))
    }

    /// Whether it can make machines now.
    pub(crate) fn is_up(&self) -> bool {
        self.spawner.is_up()
    }

    /// Notified when everything that it made has ended.
    pub(crate) fn changes(&self) -> SpawnerChanges {
        self.spawner.changes()
    }

    /// Features of the tier that this machine lacks.
    pub(crate) fn gaps(&self) -> Vec<String> {
        self.spawner.gaps()
    }

    /// Which control groups hold the limits.
    pub(crate) fn control(&self) -> jail::Control {
        self.spawner.control()
    }

    /// Makes a machine whose first interpreter is still starting. One that is made `ahead` of need imports what cells
    /// will need.
    pub(crate) async fn make(
        &self,
        environment: &Arc<Environment>,
        ahead: bool,
    ) -> Result<Machine, MachineError> {
        let began = Instant::now();
        let spawned = self.spawner.spawn(&environment.spec).await;
        metrics::HOST_BIRTHS.record(&[metrics::outcome(&spawned)], began.elapsed());
        let jailed = spawned?;
        if let Some(FontList { path, bytes }) = environment.fonts.get()
            && let Err(error) = jailed.agent.write_file(path, 0, true, bytes.clone()).await
        {
            tracing::debug!(error = &error as &dyn std::error::Error, "a sandbox has no list of fonts");
        }
        let options = if ahead { &environment.kernel_ahead } else { &environment.kernel };
        let kernels = Kernels::new(jailed.agent.clone(), Arc::clone(options));
        let environment = Arc::clone(environment);
        Ok(Machine { jailed, kernels, limits: self.limits.clone(), environment })
    }
}

impl Machine {
    /// Waits until its first interpreter runs. If it does not start, the machine is kept:
    /// a caller that needs it gets the reason.
    pub(crate) async fn warm(&self) {
        match self.kernels.ready().await {
            // A machine without Python was named when the host started.
            Ok(()) | Err(KernelError::Language { .. }) => {}
            Err(error) => tracing::warn!(%error, "a ready sandbox has no interpreter"),
        }
    }

    /// Whether it was made from this environment.
    pub(crate) fn is_from(&self, environment: &Arc<Environment>) -> bool {
        Arc::ptr_eq(&self.environment, environment)
    }

    /// Whether it could be given away now. A look that does not wait.
    pub(crate) fn is_alive(&self) -> bool {
        use futures::FutureExt;
        self.jailed.ended().now_or_never().is_none()
    }
}

/// Someone's sandbox.
#[derive(Debug)]
pub(crate) struct Sandbox {
    pub(crate) id: String,
    /// The name of its environment: `base`, or a template's.
    pub(crate) made_from: String,
    /// Asked for by envd; `None` for one that was made without `secure`.
    pub(crate) access_token: Option<Secret>,
    /// Asked for on every other port, when there is one.
    pub(crate) traffic_token: Option<Secret>,
    /// The `Host` that its servers see; `${PORT}` is replaced by the port.
    pub(crate) mask_host: Option<String>,
    /// What its owner wants every process in it to find in its environment.
    env: BTreeMap<String, String>,
    /// Its way to the network.
    egress: Egress,
    /// What clients started in it.
    pub(crate) processes: Processes,
    /// What clients watch in it.
    pub(crate) watchers: Watchers,
    /// For requests to its ports.
    pub(crate) port_places: Arc<Semaphore>,
    clock: Clock,
    /// The way to its processes and files.
    pub(crate) agent: AgentHandle,
    /// Its code contexts.
    pub(crate) kernels: Kernels,
    pub(crate) limits: SandboxLimits,
    /// Cancelled when the sandbox is to end; open streams break off then.
    pub(crate) ending: CancellationToken,
    /// Cancelled when nothing of it is left.
    ended: CancellationToken,
    /// Why it ends, once someone has said so.
    reason: Arc<OnceLock<Reason>>,
    /// Held over a pause or a resume, so that two never mix.
    pub(crate) turn: tokio::sync::Mutex<()>,
    orders: mpsc::Sender<Order>,
    /// It is frozen: its first process, too, where control groups do that.
    stands_still: AtomicBool,
    /// When usage was last asked for, and the CPU time until then.
    measured: Mutex<(Instant, u64)>,
}

/// What is asked of the owner of the jail.
#[derive(Debug)]
enum Order {
    Usage(oneshot::Sender<Usage>),
    /// Stand still, or go on; answers whether that was done.
    Freeze(bool, oneshot::Sender<bool>),
}

/// Why a sandbox ends that someone ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reason {
    /// A request said so, or the host ends.
    Killed,
    /// Its time was over.
    Expired,
}

/// The credentials of a sandbox.
#[derive(Debug)]
pub(crate) struct Identity {
    pub(crate) id: String,
    /// The template it is made from, and for whom: as its creator set it, for the log alone.
    pub(crate) template: String,
    pub(crate) tenant: Option<String>,
    pub(crate) access_token: Option<Secret>,
    pub(crate) traffic_token: Option<Secret>,
    pub(crate) env: BTreeMap<String, String>,
    pub(crate) clock: Clock,
    pub(crate) mask_host: Option<String>,
    pub(crate) network: network::Options,
    pub(crate) look_ups: LookUpPlaces,
}

/// What a sandbox uses and may use.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Metrics {
    pub(crate) cpu_count: u32,
    /// Of one core, since the time before that someone asked.
    pub(crate) cpu_used_percent: f64,
    pub(crate) memory_used_bytes: u64,
    pub(crate) memory_total_bytes: u64,
    pub(crate) disk_used_bytes: u64,
    pub(crate) disk_total_bytes: u64,
}

impl Sandbox {
    /// Gives a machine to a caller. `on_death` is called when it has ended without being asked to.
    ///
    /// # Errors
    /// When the environment holds what no environment can.
    pub(crate) fn new(
        machine: Machine,
        who: Identity,
        on_death: impl FnOnce() + Send + 'static,
    ) -> Result<Arc<Self>, KernelError> {
        if !who.env.is_empty() {
            machine.kernels.set_env(who.env.clone())?;
        }
        let ending = CancellationToken::new();
        let agent = machine.jailed.agent.clone();
        let egress = Egress::new(who.id.clone(), who.network, who.look_ups, agent, ending.clone());
        let reason = Arc::new(OnceLock::new());
        let life = Life {
            id: who.id.clone(),
            template: who.template,
            tenant: who.tenant,
            began: Instant::now(),
            egress: egress.clone(),
            reason: Arc::clone(&reason),
        };
        machine.jailed.agent.journal().begin(who.clock.now());
        let (orders, ordered) = mpsc::channel(8);
        let sandbox = Arc::new(Self {
            id: who.id,
            made_from: machine.environment.name.clone(),
            access_token: who.access_token,
            traffic_token: who.traffic_token,
            mask_host: who.mask_host,
            env: who.env,
            egress,
            processes: Processes::default(),
            watchers: Watchers::default(),
            port_places: Arc::new(Semaphore::new(ports::AT_ONCE)),
            clock: who.clock,
            agent: machine.jailed.agent.clone(),
            kernels: machine.kernels,
            limits: machine.limits,
            ending,
            ended: CancellationToken::new(),
            turn: tokio::sync::Mutex::new(()),
            orders,
            stands_still: AtomicBool::new(false),
            reason,
            measured: Mutex::new((Instant::now(), 0)),
        });
        let (ending, ended) = (sandbox.ending.clone(), sandbox.ended.clone());
        tokio::spawn(keep(machine.jailed, ordered, life, ending, ended, on_death));
        Ok(sandbox)
    }

    /// Ends it and returns when nothing of it is left. Safe to call twice; the first reason counts.
    pub(crate) async fn end(&self, reason: Reason) {
        let _ = self.reason.set(reason);
        self.ending.cancel();
        self.ended.cancelled().await;
    }

    pub(crate) fn now(&self) -> DateTime<Utc> {
        self.clock.now()
    }

    /// Nothing of it is left.
    pub(crate) fn has_ended(&self) -> bool {
        self.ended.is_cancelled()
    }

    /// What every process in it finds in its environment; what its owner set wins.
    pub(crate) fn env(&self) -> BTreeMap<String, String> {
        let mut env = self.egress.env();
        env.extend(self.env.clone());
        env
    }

    /// Adds to the logs of its life.
    pub(crate) fn note(&self, level: Level, text: impl Into<String>) {
        self.agent.journal().note(level, text);
    }

    /// What its owner set of it.
    pub(crate) fn own_env(&self) -> &BTreeMap<String, String> {
        &self.env
    }

    /// Ends it when what is returned is dropped before it is [kept](EndOnDrop::keep).
    pub(crate) fn end_on_drop(self: &Arc<Self>) -> EndOnDrop {
        EndOnDrop(Some(Arc::clone(self)))
    }

    /// Replaces what it may reach.
    ///
    /// # Errors
    /// When its way out cannot be opened.
    pub(crate) async fn set_network(&self, policy: Policy) -> Result<(), AgentError> {
        self.egress.set(policy).await?;
        // What its owner set was checked when it was made; the rest is ours.
        if let Err(error) = self.kernels.set_env(self.env()) {
            tracing::warn!(%error, "interpreters do not have the proxy settings");
        }
        Ok(())
    }

    /// The port of its way out, once that is open.
    pub(crate) fn egress_port(&self) -> Option<u16> {
        self.egress.port()
    }

    /// Its network access.
    pub(crate) fn network(&self) -> Arc<Policy> {
        self.egress.policy()
    }

    /// Freezes every process.
    pub(crate) async fn freeze(&self) {
        if self.order_freeze(true).await {
            self.stands_still.store(true, Ordering::Relaxed);
        } else {
            self.signal_all(libc::SIGSTOP).await;
        }
    }

    /// Lets every process go on.
    pub(crate) async fn thaw(&self) {
        if self.stands_still.swap(false, Ordering::Relaxed) {
            self.order_freeze(false).await;
        } else {
            self.signal_all(libc::SIGCONT).await;
        }
    }

    async fn order_freeze(&self, yes: bool) -> bool {
        let (reply, done) = oneshot::channel();
        let _ = self.orders.send(Order::Freeze(yes, reply)).await;
        done.await.unwrap_or(false)
    }

    async fn signal_all(&self, signal: i32) {
        // Of one that has ended nothing needs to be stopped.
        if let Err(error) = self.agent.signal_all(signal).await {
            tracing::debug!(%error, "a sandbox was not signalled");
        }
    }

    /// Measures now; zeros for values that an ending sandbox no longer reports.
    pub(crate) async fn metrics(&self) -> Metrics {
        let (reply, usage) = oneshot::channel();
        // A failed send drops `reply`, which the next line sees.
        let _ = self.orders.send(Order::Usage(reply)).await;
        let usage = usage.await.unwrap_or_default();
        // Programs in there can hold up the measuring program, and a frozen one measures nothing.
        let disk = match self.stands_still.load(Ordering::Relaxed) {
            true => None,
            false => tokio::time::timeout(DISK_PATIENCE, self.disk()).await.ok().flatten(),
        };
        let (disk_used_bytes, disk_total_bytes) =
            disk.unwrap_or((0, self.limits.home_bytes + self.limits.tmp_bytes));
        Metrics {
            cpu_count: self.limits.cpu_percent.div_ceil(100).max(1),
            cpu_used_percent: self.cpu_percent(usage.cpu_micros),
            memory_used_bytes: usage.memory_bytes,
            memory_total_bytes: self.limits.memory_bytes,
            disk_used_bytes,
            disk_total_bytes,
        }
    }

    fn cpu_percent(&self, cpu_micros: u64) -> f64 {
        let now = Instant::now();
        let mut measured = lock(&self.measured);
        let (before, micros_before) = std::mem::replace(&mut *measured, (now, cpu_micros));
        let wall_micros = now.duration_since(before).as_micros().max(1);
        let percent = cpu_micros.saturating_sub(micros_before) as f64 * 100.0 / wall_micros as f64;
        (percent * 100.0).round() / 100.0
    }

    /// Used and total bytes of the home directory and `/tmp`, asked of the file systems inside.
    async fn disk(&self) -> Option<(u64, u64)> {
        let argv = ["stat", "-f", "-c", "%S %b %f", self.agent.home(), "/tmp"].map(str::to_owned).to_vec();
        let mut process = self.agent.start(ProcessSpec { argv, ..ProcessSpec::default() }).await.ok()?;
        let mut text = Vec::new();
        while let Some(event) = process.events.recv().await {
            match event {
                ProcessEvent::Stdout(bytes) if text.len() < 1024 => text.extend_from_slice(&bytes),
                ProcessEvent::Exited { .. } => break,
                _ => {}
            }
        }
        let mut sum = (0u64, 0u64);
        for line in std::str::from_utf8(&text).ok()?.lines() {
            let numbers: Vec<u64> = line.split(' ').map_while(|number| number.parse().ok()).collect();
            let [size, blocks, free] = numbers[..] else { return None };
            sum.0 = sum.0.saturating_add(size.saturating_mul(blocks.saturating_sub(free)));
            sum.1 = sum.1.saturating_add(size.saturating_mul(blocks));
        }
        Some(sum)
    }
}

/// A sandbox that has not been handed out yet.
#[derive(Debug)]
pub(crate) struct EndOnDrop(Option<Arc<Sandbox>>);

impl EndOnDrop {
    /// Someone knows of it now.
    pub(crate) fn keep(mut self) {
        self.0 = None;
    }
}

impl Drop for EndOnDrop {
    fn drop(&mut self) {
        if let Some(sandbox) = self.0.take() {
            let _ = sandbox.reason.set(Reason::Killed);
            sandbox.ending.cancel();
        }
    }
}

/// The content of the one log line of a sandbox's life.
struct Life {
    id: String,
    template: String,
    tenant: Option<String>,
    began: Instant,
    egress: Egress,
    reason: Arc<OnceLock<Reason>>,
}

impl Life {
    /// Counts its end and writes its line.
    fn end(self, cause: EndCause, end: End) {
        let (cause, by_itself) = match (cause, self.reason.get()) {
            (EndCause::Oom, _) => ("oom", true),
            (EndCause::Spawner, _) => ("spawner", true),
            (_, Some(Reason::Expired)) => ("expired", false),
            (_, Some(Reason::Killed)) => ("killed", false),
            (_, None) => ("died", true),
        };
        metrics::HOST_ENDS.add(&[cause], 1);
        // A creator may set any value.
        let tenant: Option<String> = self.tenant.map(|tenant| tenant.chars().take(100).collect());
        macro_rules! line {
            ($level:ident) => {
                tracing::$level!(
                    sandbox.id = %self.id,
                    tenant,
                    template = %self.template,
                    cause,
                    seconds = self.began.elapsed().as_secs(),
                    peak_memory_mb = end.peak_bytes >> 20,
                    cpu_ms = end.cpu_micros / 1000,
                    network_bytes = self.egress.bytes(),
                    "a sandbox ended: {cause}"
                )
            };
        }
        if by_itself {
            line!(warn);
        } else {
            line!(info);
        }
    }
}

/// Owns the jail until it ends, by order or by itself.
async fn keep(
    jailed: Jailed,
    mut orders: mpsc::Receiver<Order>,
    life: Life,
    ending: CancellationToken,
    ended: CancellationToken,
    on_death: impl FnOnce() + Send + 'static,
) {
    let by_itself = loop {
        tokio::select! {
            cause = jailed.ended_as() => break Some(cause),
            () = ending.cancelled() => break None,
            // Anyone who asked may have left.
            Some(order) = orders.recv() => match order {
                Order::Usage(reply) => drop(reply.send(jailed.usage())),
                Order::Freeze(yes, reply) => drop(reply.send(jailed.freeze(yes))),
            }
        }
    };
    let (cause, end) = match by_itself {
        Some(ended) => ended,
        None => jailed.kill_as().await,
    };
    life.end(cause, end);
    ending.cancel();
    ended.cancel();
    if by_itself.is_some() {
        on_death();
    }
}
