//! Settings of the local sandbox host, and what they make of its options.

use std::path::PathBuf;

use super::load::{ConfigError, Values};
use super::settings::{Allowed, settings};

/// How a local host isolates.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Isolation {
    /// By namespaces, or not at all.
    Auto,
    /// By Landlock alone.
    Landlock,
    /// Not at all.
    UnsafeNone,
}

settings! {
    /// Settings of the local sandbox host.
    HostSettings in "host" {
        /// How the local host isolates: auto is namespaces or a refusal, landlock is a weaker tier, unsafe-none
        /// isolates nothing.
        isolation ["PATHBOX_HOST_ISOLATION"]: Isolation = "auto", Allowed::Words("auto, landlock or unsafe-none"), isolation;
        /// Sandboxes that the local host keeps ready.
        pool ["PATHBOX_HOST_POOL"]: usize = "2", Allowed::Range(0, 64, ""), Values::ranged;
        /// The Python of the local host, for example a virtual environment's with pandas and matplotlib.
        python ["PATHBOX_HOST_PYTHON"]: Option<PathBuf> = "", Allowed::Words("a Python, or the directory of a virtual environment"), Values::path;
        /// Modules that Python imports in a local sandbox while it waits in the pool, for example
        /// numpy,pandas,matplotlib.pyplot: the first run that uses them does not wait.
        preload ["PATHBOX_HOST_PRELOAD"]: Vec<String> = "", Allowed::Words("modules, separated by commas"), modules;
        /// Memory of a local Python interpreter up to which its variables outlive a run that kills it; never
        /// more than a quarter of the sandbox's. 0 keeps none.
        checkpoint_mb ["PATHBOX_HOST_CHECKPOINT_MB"]: u64 = "300", Allowed::Range(0, 65_536, "MiB"), Values::ranged;
        /// Memory of one local sandbox.
        memory_mb ["PATHBOX_HOST_MEMORY_MB"]: u64 = "1024", Allowed::Range(64, 65_536, "MiB"), Values::ranged;
        /// Local sandboxes at most.
        max_sandboxes ["PATHBOX_HOST_MAX_SANDBOXES"]: usize = "20", Allowed::Range(1, 1000, ""), Values::ranged;
        /// Processes and threads of one local sandbox.
        processes ["PATHBOX_HOST_PROCESSES"]: u32 = "128", Allowed::Range(8, 32_768, ""), Values::ranged;
        /// CPU time of one local sandbox; without control groups, rounded up, on how many processors it runs.
        cpu_percent ["PATHBOX_HOST_CPU_PERCENT"]: u32 = "100", Allowed::Range(5, 6400, "100 is one core"), Values::ranged;
        /// The time zone of local sandboxes; the machine's own when empty.
        timezone ["PATHBOX_HOST_TIMEZONE"]: Option<String> = "", Allowed::Words("a name of /usr/share/zoneinfo, such as Europe/Dublin"), Values::word;
        /// The locale of local sandboxes.
        locale ["PATHBOX_HOST_LOCALE"]: Option<String> = "C.UTF-8", Allowed::Words("a locale that this machine has (`locale -a`)"), Values::word;
        /// One file in a local sandbox.
        file_mb ["PATHBOX_HOST_FILE_MB"]: u64 = "256", Allowed::Range(1, 65_536, "MiB"), Values::ranged;
        /// The home directory of a local sandbox; it counts as memory.
        home_mb ["PATHBOX_HOST_HOME_MB"]: u64 = "512", Allowed::Range(1, 65_536, "MiB"), Values::ranged;
        /// /tmp of a local sandbox; it counts as memory.
        tmp_mb ["PATHBOX_HOST_TMP_MB"]: u64 = "256", Allowed::Range(1, 65_536, "MiB"), Values::ranged;
        /// /dev/shm of a local sandbox; it counts as memory.
        shm_mb ["PATHBOX_HOST_SHM_MB"]: u64 = "64", Allowed::Range(1, 65_536, "MiB"), Values::ranged;
        /// Files in the home directory of a local sandbox, and as many again in /tmp.
        files ["PATHBOX_HOST_FILES"]: u32 = "20000", Allowed::Range(100, 10_000_000, ""), Values::ranged;
        /// Open descriptors of one process in a local sandbox.
        open_files ["PATHBOX_HOST_OPEN_FILES"]: u32 = "1024", Allowed::Range(64, 65_536, ""), Values::ranged;
        /// Output of one execution in a local sandbox; the rest is dropped and counted.
        output_mb ["PATHBOX_HOST_OUTPUT_MB"]: u64 = "64", Allowed::Range(1, 4096, "MiB"), Values::ranged;
        /// Disk of all snapshots of local sandboxes together, in the directory for temporary files (`TMPDIR`); one tenant's
        /// have a half. They end with the host. 0 for no snapshots and forks.
        snapshots_mb ["PATHBOX_HOST_SNAPSHOTS_MB"]: u64 = "2048", Allowed::Range(0, 1_048_576, "MiB"), Values::ranged;
        /// The longest life of a local sandbox.
        max_life_hours ["PATHBOX_HOST_MAX_LIFE_HOURS"]: u64 = "24", Allowed::Range(1, 8760, ""), Values::ranged;
        /// Concurrent connections of one local sandbox to the hosts of its allow list.
        network_connections ["PATHBOX_HOST_NETWORK_CONNECTIONS"]: usize = "64", Allowed::Range(1, 512, ""), Values::ranged;
        /// Traffic of one local sandbox, both directions together; beyond it, its connections are closed.
        network_mb ["PATHBOX_HOST_NETWORK_MB"]: u64 = "4096", Allowed::Range(1, 1_048_576, "MiB"), Values::ranged;
        /// A connection of a local sandbox that is idle for this long is closed.
        network_idle_seconds ["PATHBOX_HOST_NETWORK_IDLE_SECONDS"]: u64 = "120", Allowed::Range(1, 86_400, ""), Values::ranged;
        /// Whether a local sandbox reaches every public address unless its creator asks for less, as at E2B.
        /// Otherwise it reaches only the hosts of its allow list.
        internet ["PATHBOX_HOST_INTERNET"]: bool = "false", Allowed::Words("true or false"), Values::boolean;
        /// Whether control groups are used when the machine provides them. Without them, memory is watched by a scan
        /// and CPU time is only a priority.
        cgroups ["PATHBOX_HOST_CGROUPS"]: bool = "true", Allowed::Words("true or false"), Values::boolean;
    }
}

fn isolation(values: &Values, key: &'static str) -> Result<Isolation, ConfigError> {
    let names = [
        ("auto", Isolation::Auto),
        ("landlock", Isolation::Landlock),
        ("unsafe-none", Isolation::UnsafeNone),
    ];
    values.one_of(key, &names)
}

fn modules(values: &Values, key: &'static str) -> Result<Vec<String>, ConfigError> {
    let names = values.list(key);
    let is_name = |name: &str| {
        name.split('.').all(|part| {
            !part.is_empty()
                && !part.starts_with(|c: char| c.is_ascii_digit())
                && part.chars().all(|c| c == '_' || c.is_alphanumeric())
        })
    };
    match names.iter().find(|name| !is_name(name)) {
        Some(name) => Err(values.invalid(key, format!("{name:?} is not a module name"))),
        None => Ok(names),
    }
}

/// Why this platform has no local host, and what to do.
#[cfg(not(target_os = "linux"))]
pub const NEEDS_LINUX: &str = "the local sandbox host needs Linux: `pathbox container up` starts one in a container; or set \
    E2B_API_KEY to use E2B; or run `pathbox host` in WSL and set what it prints (E2B_API_URL, E2B_SANDBOX_URL, E2B_API_KEY)";

#[cfg(target_os = "linux")]
impl HostSettings {
    /// The host's own options; its templates are kept in `templates`.
    pub fn options(&self, templates: PathBuf) -> crate::host::Options {
        use std::time::Duration;

        use crate::host::jail;

        let mut options = crate::host::Options {
            ready: self.pool,
            max_sandboxes: self.max_sandboxes,
            max_life: Duration::from_secs(self.max_life_hours * 3600),
            templates: Some(templates),
            snapshot_bytes: self.snapshots_mb << 20,
            ..crate::host::Options::default()
        };
        options.jail.isolation = match self.isolation {
            Isolation::Auto => jail::Isolation::Namespaces,
            Isolation::Landlock => jail::Isolation::Landlock,
            Isolation::UnsafeNone => jail::Isolation::None,
        };
        options.jail.cgroups = self.cgroups;
        let limits = &mut options.jail.limits;
        limits.memory_bytes = self.memory_mb << 20;
        limits.processes = self.processes;
        limits.cpu_percent = self.cpu_percent;
        limits.file_bytes = self.file_mb << 20;
        limits.home_bytes = self.home_mb << 20;
        limits.tmp_bytes = self.tmp_mb << 20;
        limits.shm_bytes = self.shm_mb << 20;
        limits.files = self.files;
        limits.open_files = self.open_files;
        options.kernel.max_output_bytes = self.output_mb << 20;
        options.kernel.checkpoint_bytes = self.checkpoint_mb << 20;
        options.kernel.preload.clone_from(&self.preload);
        options.network.connections = self.network_connections;
        options.network.max_bytes = self.network_mb << 20;
        options.network.idle = Duration::from_secs(self.network_idle_seconds);
        options.network.open = self.internet;
        options.search.python.clone_from(&self.python);
        options.env.extend(self.timezone.clone().map(|zone| ("TZ".to_owned(), zone)));
        options.env.extend(self.locale.clone().map(|locale| ("LANG".to_owned(), locale)));
        options
    }
}
