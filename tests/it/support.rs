//! What the tests share.

pub(crate) mod database;
pub(crate) mod fault_server;
pub(crate) mod http;
pub(crate) mod runs;
pub(crate) mod server;
pub(crate) mod wire;

/// A process's memory in bytes: `VmRSS` now, `VmHWM` at its highest.
pub(crate) fn memory(pid: u32, field: &str) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find(|line| line.starts_with(field)).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 1024
}

/// Each test twice, once a store: functions that take a [`database::World`].
macro_rules! on_every_store {
    ($($name:ident,)+) => {
        mod sqlite {
            $(#[tokio::test(flavor = "multi_thread")]
            async fn $name() {
                super::$name($crate::support::database::World::sqlite()).await;
            })+
        }
        mod postgres {
            $(#[tokio::test(flavor = "multi_thread")]
            #[ignore = "needs PostgreSQL: scripts/test installs it"]
            async fn $name() {
                super::$name($crate::support::database::World::postgres().await).await;
            })+
        }
    };
}

pub(crate) use on_every_store;
